//! Updates of each generation: the log that they are written to, and the overlays that show them.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use warprow_keys::KeyIndex;
use warprow_layout::{Generation, Log, LogUpdate, Volume, VolumeError};

use super::desk::DeskPlace;
use super::key_changes::KeyChanges;
use super::kinship::Kinship;
use super::spec::spec_changed;
use crate::StoreError;
use crate::drive_access::lock;
use crate::overlay::{CREATED, Overlay, OverlayEntry, OverlaySnapshot};
use crate::sparse_ids::SparseIds;
use crate::table_version::TableVersion;

/// Updates of all generations of a store.
#[derive(Debug)]
pub(crate) struct Updates {
    pub(crate) of: Mutex<HashMap<u64, Arc<Replayed>>>,
    /// Bytes that the overlays of a generation may take together.
    pub(crate) bound: u64,
    /// Held, besides, by whoever reads tables without overlays; locked by updates that are under way.
    pub(crate) unfollowing: RwLock<Arc<()>>,
    /// Whoever compacts before it is asked to.
    pub(crate) desk: DeskPlace,
    /// Which versions of a generation have the same rows but for updates.
    pub(super) kinship: Kinship,
}

/// A generation's log: replayed by whoever needs it first, while others wait, of this generation alone.
#[derive(Debug, Default)]
pub(crate) struct Replayed(Mutex<Option<Result<Arc<Updating>, Damage>>>);

/// Why there is no use in replaying a log once more.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    drive: String,
    unit: u32,
    what: &'static str,
}

/// The log and the overlays of one generation.
#[derive(Debug)]
pub(crate) struct Updating(pub(crate) Mutex<Writer>);

#[derive(Debug)]
pub(crate) struct Writer {
    /// `None`: the store was opened for reading, or it was closed, to be opened again by the next update.
    pub(crate) log: Option<Log>,
    /// The overlay of the generation as it is in the catalogue.
    pub(crate) current: Arc<Overlay>,
    pub(crate) keyed: KeyedTables,
    /// Of the generation as it was before compactions, where somebody still reads it so.
    pub(crate) older: Vec<Older>,
    /// Sequence numbers of compactions that gave tables other keys.
    pub(crate) grown: Vec<u64>,
    /// Keys that were created and removed since the last compaction, by table.
    pub(crate) changes: HashMap<u32, KeyChanges>,
    /// Free chunks that are known to be kept for writing the generation anew with these keys.
    pub(crate) kept: u64,
}

#[derive(Debug)]
pub(crate) struct Older {
    overlay: Weak<Overlay>,
    keyed: KeyedTables,
}

/// What finds the keys of a generation's tables that have keys, read when one is updated: overlays have their rows by slot, as
/// look-ups do, and logs by key. What the current overlay has those before have, as they were then.
#[derive(Debug, Default, Clone)]
pub(crate) struct KeyedTables(pub(crate) HashMap<u32, SparseIds>);

impl KeyedTables {
    /// Reads what finds the keys of table number `index`; `None`: the table is looked up by ids.
    pub(crate) fn read(volume: &Volume, generation: &Generation, index: u32) -> Result<Option<SparseIds>, StoreError> {
        let Some(table) = generation.tables.get(index as usize).filter(|table| table.keys.is_some()) else {
            return Ok(None);
        };
        let index = index as usize;
        let missing = || StoreError::NotUpdatable { table: table.name.clone() };
        // A fingerprint that passes falsely would have another key's row changed.
        let stored = volume.read_keys(generation, index)?.ok_or_else(missing)?;
        let found = volume.read_key_index(generation, index)?.ok_or_else(missing)?;
        let ranks = volume.read_ranks(generation, index)?.map(Arc::new);
        Ok(Some(SparseIds { index: Arc::new(found), stored: Some(Arc::new(stored)), ranks }))
    }

    /// Reads that of table number `index`, if there is one and it is not there.
    pub(crate) fn know(&mut self, volume: &Volume, generation: &Generation, index: u32) -> Result<(), StoreError> {
        if let MapEntry::Vacant(place) = self.0.entry(index)
            && let Some(sparse) = Self::read(volume, generation, index)?
        {
            place.insert(sparse);
        }
        Ok(())
    }

    /// What overlays have rows of these ids or keys by: table and key of their entries.
    pub(crate) fn places(&self, table: u32, ids: &[u64]) -> Vec<Place> {
        let Some(sparse) = self.0.get(&table) else { return ids.iter().map(|&id| (table, id)).collect() };
        let place = |(&slot, &id)| if slot == KeyIndex::ABSENT { (table | CREATED, id) } else { (table, slot) };
        sparse.positions_of(ids).iter().zip(ids).map(place).collect()
    }

    /// Entries of a log, in their places.
    pub(crate) fn placed(&self, entries: &[OverlayEntry]) -> Vec<OverlayEntry> {
        let place = |entry: &OverlayEntry| {
            let (table, key) = self.places(entry.table, &[entry.key]).first().copied()?;
            Some(OverlayEntry { table, key, ..*entry })
        };
        entries.iter().filter_map(place).collect()
    }

    /// Puts an entry that is placed by `before` where it is by these.
    pub(crate) fn replace(&self, before: &Self, entry: &mut OverlayEntry) {
        let table = entry.table & !CREATED;
        let key = match before.0.get(&table) {
            Some(sparse) if entry.table & CREATED == 0 => sparse.id_at(entry.key),
            _ => Some(entry.key),
        };
        // All of them have their keys: they were found by these.
        if let Some(&place) = key.and_then(|key| self.places(table, &[key]).first().copied()).as_ref() {
            (entry.table, entry.key) = place;
        }
    }
}

/// Updates that are put in at once when a log is replayed.
const REPLAYED: usize = 1024;

impl Updates {
    pub(crate) fn new(bound: u64) -> Self {
        Self {
            of: Mutex::default(),
            bound,
            unfollowing: RwLock::default(),
            desk: DeskPlace::default(),
            kinship: Kinship::default(),
        }
    }

    /// Closes all logs; updates open them again.
    pub(crate) fn close(&self) {
        let all: Vec<Arc<Replayed>> = lock(&self.of).values().cloned().collect();
        for replayed in all {
            if let Some(Ok(updating)) = &*lock(&replayed.0) {
                lock(&updating.0).log = None;
            }
        }
    }

    /// To be held by a reader that does not follow updates: while it lives, there are none. Those under way have ended.
    pub(crate) fn unfollowing(&self) -> Arc<()> {
        self.unfollowing.write().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Writer {
    /// Takes the log of generation `generation`, opened if it was not, with everything that it has in the overlays. Where it is
    /// not put back, it is opened again by whoever comes next.
    pub(crate) fn take_log(&mut self, volume: &Volume, generation: u64) -> Result<Log, StoreError> {
        if let Some(log) = self.log.take() {
            return Ok(log);
        }
        if let Some(reason) = volume.read_only() {
            return Err(VolumeError::ReadOnly { reason: reason.to_owned() }.into());
        }
        // What was in doubt when it was closed may turn out to be there.
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let known = self.current.sequence();
        let mut entries = Vec::new();
        let mut rows = Vec::new();
        let log = volume.log(generation, |sequence, LogUpdate { table, key, row }| {
            if sequence > known {
                entries.push(OverlayEntry { table, key, sequence, begin: rows.len(), bytes: row.len() });
                rows.extend_from_slice(row);
            }
        })?;
        entries.iter().try_for_each(|entry| self.know(volume, &found, entry.table))?;
        // An executor on a GPU that does not take them is behind until it takes the next update: that one's caller is told.
        let _ = self.publish(&self.keyed.placed(&entries), &entries, &rows.into());
        if !entries.is_empty() {
            self.count_changes(volume, &found)?;
        }
        Ok(log)
    }

    /// Reads the keys of a table, if it has any and they were not read. It has those of `generation` since the oldest of the overlays.
    pub(crate) fn know(&mut self, volume: &Volume, generation: &Generation, table: u32) -> Result<(), StoreError> {
        if self.keyed.0.contains_key(&table) {
            return Ok(());
        }
        self.keyed.know(volume, generation, table)?;
        if let Some(sparse) = self.keyed.0.get(&table) {
            for older in &mut self.older {
                older.keyed.0.entry(table).or_insert_with(|| sparse.clone());
            }
        }
        Ok(())
    }

    /// Makes room for so many rows more, of so many bytes, in the overlays that live; else the bytes that they would take.
    pub(crate) fn make_room(&mut self, more: usize, bytes: usize, bound: u64) -> Result<(), u64> {
        let all = self.overlays();
        let needed = |all: &[Arc<Overlay>]| all.iter().map(|overlay| overlay.bytes_with(more, bytes)).sum::<u64>();
        let wanted = needed(&all);
        if wanted <= bound {
            return Ok(());
        }
        // It takes time: not for a little each time.
        let worth = |overlay: &&Arc<Overlay>| {
            overlay.bytes_with(more, bytes).saturating_sub(overlay.least_with(more, bytes)) > bound / 8
        };
        all.iter().filter(worth).for_each(|overlay| overlay.squeeze(more));
        let wanted = needed(&all);
        if wanted <= bound { Ok(()) } else { Err(wanted) }
    }

    /// All that live, the current one last.
    pub(crate) fn overlays(&mut self) -> Vec<Arc<Overlay>> {
        self.older.retain(|older| older.overlay.strong_count() > 0);
        let older = self.older.iter().filter_map(|older| older.overlay.upgrade());
        older.chain([self.current.clone()]).collect()
    }

    /// Room with those who follow the overlays.
    pub(crate) fn make_followers_room(&mut self, table: u32, rows: usize) -> Result<(), StoreError> {
        self.overlays().iter().try_for_each(|overlay| overlay.make_followers_room(table, rows))
    }

    /// Puts rows in: `placed` where the current overlay has them, `logged` by their ids or keys.
    pub(crate) fn publish(
        &mut self,
        placed: &[OverlayEntry],
        logged: &[OverlayEntry],
        rows: &Arc<[u8]>,
    ) -> Result<(), StoreError> {
        self.older.retain(|older| older.overlay.strong_count() > 0);
        let living = self.older.iter().filter_map(|older| Some((older.overlay.upgrade()?, &older.keyed)));
        let older = living.map(|(overlay, keyed)| overlay.publish(&keyed.placed(logged), rows));
        // All of them, whatever one says.
        let older = older.fold(Ok(()), Result::and);
        older.and(self.current.publish(placed, rows)).map_err(|why| StoreError::GpuBehind { why })
    }

    /// Keeps room for the compaction that writes the generation anew, where table number `index` has the key changes `changes`; else
    /// [`StoreError::NoRoomToCreate`].
    pub(crate) fn keep_room_to_change(
        &mut self,
        volume: &Volume,
        generation: &Generation,
        index: u32,
        changes: KeyChanges,
    ) -> Result<(), StoreError> {
        let mut all = self.changes.clone();
        all.insert(index, changes);
        let needed = volume.chunks_to_write(&spec_changed(generation, &all))?.0;
        if needed > self.kept {
            let free = volume.free_chunks().iter().sum();
            if needed > free {
                let chunk_size = volume.geometry().chunk_size();
                return Err(StoreError::NoRoomToCreate { generation: generation.id, needed, free, chunk_size });
            }
            let chunks = generation.placement.map().len() as u64;
            volume.keep_for_compaction(generation.id, needed, needed.saturating_sub(chunks));
            self.kept = needed;
        }
        Ok(())
    }

    /// Counts the keys that the current overlay says were created and removed, and says how much room their compaction needs.
    pub(crate) fn count_changes(&mut self, volume: &Volume, generation: &Generation) -> Result<(), StoreError> {
        self.kept = 0;
        self.changes = KeyChanges::of_all(self.current.snapshot().as_ref(), generation);
        let mut chunks = 1;
        let mut growth = 0;
        if !self.changes.is_empty() {
            chunks = volume.chunks_to_write(&spec_changed(generation, &self.changes))?.0;
            growth = chunks.saturating_sub(generation.placement.map().len() as u64);
        }
        volume.keep_for_compaction(generation.id, chunks, growth);
        Ok(())
    }

    /// The generation has all updates up to `sequence` in its chunks now; tables in `grown` have other keys.
    pub(crate) fn compacted(&mut self, sequence: u64, grown: HashMap<u32, SparseIds>) {
        let mut keyed = self.keyed.clone();
        if !grown.is_empty() {
            self.grown.push(sequence);
        }
        keyed.0.extend(grown);
        let left = Arc::new(self.current.after(sequence, |entry| keyed.replace(&self.keyed, entry)));
        let before = std::mem::replace(&mut self.current, left);
        let before_keyed = std::mem::replace(&mut self.keyed, keyed);
        self.older.retain(|older| older.overlay.strong_count() > 0);
        if Arc::strong_count(&before) > 1 {
            self.older.push(Older { overlay: Arc::downgrade(&before), keyed: before_keyed });
        }
    }
}

impl Updates {
    /// The updated rows that belong over a generation's chunks; `None`: the catalogue has it with other chunks, and nobody reads
    /// these any more.
    pub(crate) fn overlay_of(
        &self,
        volume: &Volume,
        generation: &Generation,
    ) -> Result<Option<Arc<Overlay>>, StoreError> {
        let updating = self.updating(volume, generation.id)?;
        let mut writer = lock(&updating.0);
        let all = writer.overlays();
        let base = generation.base_sequence;
        // An older one has all that a later one has, and more; but by other slots, where keys were brought into a table between.
        let grew = |from: u64| writer.grown.iter().any(|&at| from < at && at <= base);
        Ok(all.into_iter().rfind(|overlay| overlay.base() <= base && !grew(overlay.base())))
    }

    /// The overlay of a generation; [`VolumeError::NoSuchGeneration`] if the catalogue no longer has the generation so.
    pub(crate) fn overlay(&self, volume: &Volume, generation: &Generation) -> Result<Arc<Overlay>, StoreError> {
        let found = self.overlay_of(volume, generation)?;
        found.ok_or(StoreError::Volume(VolumeError::NoSuchGeneration { id: generation.id }))
    }

    /// A table with the updated rows that belong over it, as both are now, or as they were together a moment ago.
    pub(crate) fn with_overlay(
        &self,
        volume: &Volume,
        located: TableVersion,
    ) -> (TableVersion, Result<Arc<Overlay>, StoreError>) {
        let mut located = located;
        let mut turns = 0;
        loop {
            let missing = VolumeError::NoSuchGeneration { id: located.generation.id };
            match self.overlay_of(volume, &located.generation) {
                Ok(Some(overlay)) => return (located, Ok(overlay)),
                Err(error) => return (located, Err(error)),
                // A compaction came between: they take longer than this.
                Ok(None) if turns < 8 => match volume.generation(located.generation.id) {
                    Some(now) => (located.generation, turns) = (now, turns + 1),
                    None => return (located, Err(missing.into())),
                },
                Ok(None) => return (located, Err(missing.into())),
            }
        }
    }

    /// Many tables, each with the overlay over it; `None`: the overlay could not be had. Where a log cannot be read, no other table
    /// of the generation asks again.
    pub(crate) fn with_overlays(
        &self,
        volume: &Volume,
        located: Vec<TableVersion>,
    ) -> Vec<(TableVersion, Option<Arc<Overlay>>)> {
        let mut failed = HashSet::new();
        let mut one = |located: TableVersion| {
            if failed.contains(&located.generation.id) {
                return (located, None);
            }
            let (located, overlay) = self.with_overlay(volume, located);
            failed.extend(overlay.is_err().then_some(located.generation.id));
            (located, overlay.ok())
        };
        located.into_iter().map(&mut one).collect()
    }

    /// Replays the log, if that has not been done.
    pub(crate) fn updating(&self, volume: &Volume, generation: u64) -> Result<Arc<Updating>, StoreError> {
        let replayed = lock(&self.of).entry(generation).or_default().clone();
        let mut replayed = lock(&replayed.0);
        match &*replayed {
            Some(Ok(updating)) => return Ok(updating.clone()),
            Some(Err(Damage { drive, unit, what })) => {
                let drive = drive.clone();
                let unit = *unit;
                return Err(VolumeError::LogDamaged { generation, drive, unit, what }.into());
            }
            None => {}
        }
        match self.replay(volume, generation) {
            Ok(writer) => {
                let updating = Arc::new(Updating(Mutex::new(writer)));
                *replayed = Some(Ok(updating.clone()));
                Ok(updating)
            }
            Err(error) => {
                if let StoreError::Volume(VolumeError::LogDamaged { drive, unit, what, .. }) = &error {
                    *replayed = Some(Err(Damage { drive: drive.clone(), unit: *unit, what }));
                }
                Err(error)
            }
        }
    }

    /// Replays the logs of which it cannot be told otherwise how much room their compactions need: those of tables in which keys may
    /// have been created. One that is damaged can be dropped, and needs none.
    pub(crate) fn know_kept_room(&self, volume: &Volume) {
        for generation in volume.generations() {
            if !generation.log.is_empty() && generation.tables.iter().any(|table| table.keys.is_some()) {
                let _ = self.updating(volume, generation.id);
            }
        }
    }

    /// The ranks of rows of a table that updates override, or whose keys were removed: what is stored of them counts for nothing.
    pub(crate) fn overridden(&self, volume: &Volume, located: &TableVersion) -> Result<HashSet<u64>, StoreError> {
        let Some(snapshot) = self.overlay_of(volume, &located.generation)?.and_then(|overlay| overlay.snapshot())
        else {
            return Ok(HashSet::new());
        };
        let ranks = volume.read_ranks(&located.generation, located.index)?;
        let rank_of = |id: u64| ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id));
        let index = located.index as u32;
        Ok(snapshot.rows(index).map(|(id, _)| id).chain(snapshot.removed(index)).filter_map(rank_of).collect())
    }

    fn replay(&self, volume: &Volume, generation: u64) -> Result<Writer, StoreError> {
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let overlay = Overlay::new(found.base_sequence);
        let mut entries = Vec::new();
        let mut rows = Vec::new();
        let mut keyed = KeyedTables::default();
        let mut failed = None;
        let mut publish = |entries: &mut Vec<OverlayEntry>, rows: &mut Vec<u8>| {
            match entries.iter().try_for_each(|entry| keyed.know(volume, &found, entry.table)) {
                // Nobody follows it yet.
                Ok(()) => drop(overlay.publish(&keyed.placed(entries), &std::mem::take(rows).into())),
                Err(error) => failed = Some(error),
            }
            entries.clear();
        };
        let mut take = |sequence, update: LogUpdate<'_>| {
            let LogUpdate { table, key, row } = update;
            entries.push(OverlayEntry { table, key, sequence, begin: rows.len(), bytes: row.len() });
            rows.extend_from_slice(row);
            if entries.len() == REPLAYED {
                publish(&mut entries, &mut rows);
            }
        };
        let log = match volume.is_writable() {
            true => Some(volume.log(generation, &mut take)?),
            false => {
                volume.read_log(&found, &mut take)?;
                None
            }
        };
        publish(&mut entries, &mut rows);
        match failed {
            Some(error) => Err(error),
            None => {
                let current = Arc::new(overlay);
                let older = Vec::new();
                let grown = Vec::new();
                let mut writer = Writer { log, current, keyed, older, grown, changes: HashMap::new(), kept: 0 };
                writer.count_changes(volume, &found)?;
                Ok(writer)
            }
        }
    }
}

impl Updating {
    /// Goes on with the log where a compaction sealed it, which did not come about.
    pub(crate) fn unseal(&self, sequence: u64) {
        if let Some(log) = &mut lock(&self.0).log {
            log.unseal(sequence);
        }
    }
}

/// What overlays have a row by: table and key of its entry.
pub(crate) type Place = (u32, u64);

/// Where overlays have rows that are to be updated, and how many keys that have no row now get one.
pub(crate) struct Placed {
    pub(crate) places: Vec<Place>,
    /// Keys that the table's index does not have.
    pub(crate) created: u64,
    /// Keys of the index that were removed.
    pub(crate) revived: u64,
}

impl Writer {
    /// Where overlays have the rows of ids or keys of a table. Refuses keys that are not there, unless they are to be created.
    pub(crate) fn places(
        &mut self,
        volume: &Volume,
        located: &TableVersion,
        ids: &[u64],
        create: bool,
    ) -> Result<Placed, StoreError> {
        let table = located.table();
        let index = located.index as u32;
        self.know(volume, &located.generation, index)?;
        let places = self.keyed.places(index, ids);
        let Some(keys) = &table.keys else { return Ok(Placed { places, created: 0, revived: 0 }) };
        let snapshot = self.current.snapshot();
        let is_new = |&&(place, _): &&(Place, u64)| !has_row(snapshot.as_ref(), place);
        let placed: Vec<(Place, u64)> = places.iter().copied().zip(ids.iter().copied()).collect();
        let new = placed.iter().filter(is_new);
        if !create {
            let absent: Vec<String> = new.take(10).map(|&(_, key)| keys.spec.kind.number(key).to_string()).collect();
            return match absent.is_empty() {
                true => Ok(Placed { places, created: 0, revived: 0 }),
                false => Err(StoreError::NoSuchKey { table: table.name.clone(), keys: absent }),
            };
        }
        let new: HashSet<Place> = new.map(|&(place, _)| place).collect();
        let created = new.iter().filter(|place| place.0 & CREATED != 0).count() as u64;
        Ok(Placed { places, created, revived: new.len() as u64 - created })
    }

    /// Which of `ids`, keys of a table, have rows now, each once; and where overlays have these.
    pub(crate) fn with_rows(
        &mut self,
        volume: &Volume,
        located: &TableVersion,
        ids: &[u64],
    ) -> Result<(Vec<u64>, Vec<Place>), StoreError> {
        let index = located.index as u32;
        self.know(volume, &located.generation, index)?;
        let snapshot = self.current.snapshot();
        let mut seen = HashSet::new();
        let all = ids.iter().copied().zip(self.keyed.places(index, ids));
        Ok(all.filter(|&(_, place)| has_row(snapshot.as_ref(), place) && seen.insert(place)).unzip())
    }
}

/// Whether what overlays have in `place`, or the table by its index, is a row.
fn has_row(snapshot: Option<&OverlaySnapshot>, (table, key): Place) -> bool {
    match snapshot.and_then(|snapshot| Some((snapshot, snapshot.find(table, key)?))) {
        Some((snapshot, record)) => !snapshot.is_removal(record),
        None => table & CREATED == 0,
    }
}

/// The rows of created keys of table number `table`, by key.
pub(crate) fn created_rows(snapshot: &OverlaySnapshot, table: u32) -> Vec<(u64, &[u8])> {
    if !snapshot.creates() {
        return Vec::new();
    }
    let mut rows: Vec<(u64, &[u8])> = snapshot.rows(table | CREATED).collect();
    rows.sort_unstable_by_key(|row| row.0);
    rows
}

/// Whether a generation has updates that only an overlay shows.
pub(crate) fn is_updated(generation: &Generation) -> bool {
    !generation.log.is_empty()
}
