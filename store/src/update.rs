//! Updates of rows: logged and durable first, then seen by every look-up that begins later.

mod compactor;
mod grown;
mod pending;
mod together;

pub use compactor::{Compacted, Compactor, CompactorOptions};
pub use pending::{CompactionNeeds, PendingTable, PendingUpdates};
pub use together::{CheckRows, FillRow, TakeRow};

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use warprow_keys::KeyIndex;
use warprow_layout::{
    Generation, Log, LogUsage, Patch, Rebuilt, Rewriting, Rewritten, Table, Update, Volume, VolumeError,
};

use self::compactor::{DeskPlace, LOG_OF_MEMORY};
use crate::member::lock;
use crate::overlay::{CREATED, Entry, Overlay, Snapshot};
use crate::sparse_ids::SparseIds;
use crate::store::{Shared, TableVersion};
use crate::{Store, StoreError};

/// Updates of all generations of a store.
#[derive(Debug)]
pub(crate) struct Updates {
    of: Mutex<HashMap<u64, Arc<Replayed>>>,
    /// Bytes that overlays of a generation may take.
    bound: u64,
    /// Held, besides, by whoever reads tables without overlays; locked by updates that are under way.
    unfollowing: RwLock<Arc<()>>,
    /// Whoever compacts before it is asked to.
    desk: DeskPlace,
}

/// A generation's log: replayed by whoever needs it first, while others wait, of this generation alone.
#[derive(Debug, Default)]
struct Replayed(Mutex<Option<Result<Arc<Updating>, Damage>>>);

/// Why there is no use in replaying a log once more.
#[derive(Debug, Clone)]
struct Damage {
    drive: String,
    unit: u32,
    what: &'static str,
}

/// Updates of one generation.
#[derive(Debug)]
struct Updating(Mutex<Writer>);

#[derive(Debug)]
struct Writer {
    /// `None`: the store was opened for reading, or it was closed, to be opened again by the next update.
    log: Option<Log>,
    /// Of the generation as it is in the catalogue.
    current: Arc<Overlay>,
    keyed: KeyedTables,
    /// Of the generation as it was before compactions, where somebody still reads it so.
    older: Vec<Older>,
    /// Sequence numbers of compactions that gave tables other keys.
    grown: Vec<u64>,
    /// Keys that were created since the last compaction, by table.
    created: HashMap<u32, u64>,
    /// Free chunks that are known to be kept for writing the generation anew with them.
    kept: u64,
}

#[derive(Debug)]
struct Older {
    overlay: Weak<Overlay>,
    keyed: KeyedTables,
}

/// What finds the keys of a generation's tables that have keys, read when one is updated: overlays have their rows by slot, as
/// look-ups do, and logs by key. What the current overlay has those before have, as they were then.
#[derive(Debug, Default, Clone)]
struct KeyedTables(HashMap<u32, SparseIds>);

impl KeyedTables {
    /// That of table number `index`; `None`: it has ids.
    fn read(store: &Shared, generation: &Generation, index: u32) -> Result<Option<SparseIds>, StoreError> {
        let Some(table) = generation.tables.get(index as usize).filter(|table| table.keys.is_some()) else {
            return Ok(None);
        };
        let (volume, index) = (&store.volume, index as usize);
        let missing = || StoreError::NotUpdatable { table: table.name.clone() };
        // A fingerprint that passes falsely would have another key's row changed.
        let stored = volume.read_keys(generation, index)?.ok_or_else(missing)?;
        let found = volume.read_key_index(generation, index)?.ok_or_else(missing)?;
        let ranks = volume.read_ranks(generation, index)?.map(Arc::new);
        Ok(Some(SparseIds { index: Arc::new(found), stored: Some(Arc::new(stored)), ranks }))
    }

    /// Reads that of table number `index`, if there is one and it is not there.
    fn know(&mut self, store: &Shared, generation: &Generation, index: u32) -> Result<(), StoreError> {
        if let MapEntry::Vacant(place) = self.0.entry(index)
            && let Some(sparse) = Self::read(store, generation, index)?
        {
            place.insert(sparse);
        }
        Ok(())
    }

    /// What overlays have rows of these ids or keys by: table and key of their entries.
    fn places(&self, table: u32, ids: &[u64]) -> Vec<(u32, u64)> {
        let Some(sparse) = self.0.get(&table) else { return ids.iter().map(|&id| (table, id)).collect() };
        let place = |(&slot, &id)| if slot == KeyIndex::ABSENT { (table | CREATED, id) } else { (table, slot) };
        sparse.slots_of(ids).iter().zip(ids).map(place).collect()
    }

    /// Entries of a log, in their places.
    fn placed(&self, entries: &[Entry]) -> Vec<Entry> {
        let place = |entry: &Entry| {
            let (table, key) = self.places(entry.table, &[entry.key]).first().copied()?;
            Some(Entry { table, key, ..*entry })
        };
        entries.iter().filter_map(place).collect()
    }

    /// Puts an entry that is placed by `before` where it is by these.
    fn replace(&self, before: &Self, entry: &mut Entry) {
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
        Self { of: Mutex::default(), bound, unfollowing: RwLock::default(), desk: DeskPlace::default() }
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
    fn take_log(&mut self, store: &Shared, generation: u64) -> Result<Log, StoreError> {
        if let Some(log) = self.log.take() {
            return Ok(log);
        }
        if let Some(reason) = store.volume.read_only() {
            return Err(VolumeError::ReadOnly { reason: reason.to_owned() }.into());
        }
        // What was in doubt when it was closed may turn out to be there.
        let found = store.volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let (known, mut entries, mut rows) = (self.current.sequence(), Vec::new(), Vec::new());
        let log = store.volume.log(generation, |sequence, Update { table, key, row }| {
            if sequence > known {
                entries.push(Entry { table, key, sequence, begin: rows.len(), bytes: row.len() });
                rows.extend_from_slice(row);
            }
        })?;
        entries.iter().try_for_each(|entry| self.know(store, &found, entry.table))?;
        // An executor on a GPU that does not take them is behind until it takes the next update: that one's caller is told.
        let _ = self.publish(&self.keyed.placed(&entries), &entries, &rows.into());
        Ok(log)
    }

    /// Reads the keys of a table, if it has any and they were not read. It has those of `generation` since the oldest of the overlays.
    fn know(&mut self, store: &Shared, generation: &Generation, table: u32) -> Result<(), StoreError> {
        if self.keyed.0.contains_key(&table) {
            return Ok(());
        }
        self.keyed.know(store, generation, table)?;
        if let Some(sparse) = self.keyed.0.get(&table) {
            for older in &mut self.older {
                older.keyed.0.entry(table).or_insert_with(|| sparse.clone());
            }
        }
        Ok(())
    }

    /// Makes room for so many rows more, of so many bytes, in the overlays that live; else the bytes that they would take.
    fn make_room(&mut self, more: usize, bytes: usize, bound: u64) -> Result<(), u64> {
        let all = self.overlays();
        let needed = |all: &[Arc<Overlay>]| all.iter().map(|it| it.bytes_with(more, bytes)).sum::<u64>();
        let wanted = needed(&all);
        if wanted <= bound {
            return Ok(());
        }
        // It takes time: not for a little each time.
        let worth =
            |it: &&Arc<Overlay>| it.bytes_with(more, bytes).saturating_sub(it.least_with(more, bytes)) > bound / 8;
        all.iter().filter(worth).for_each(|it| it.squeeze(more));
        let wanted = needed(&all);
        if wanted <= bound { Ok(()) } else { Err(wanted) }
    }

    /// All that live, the current one last.
    fn overlays(&mut self) -> Vec<Arc<Overlay>> {
        self.older.retain(|older| older.overlay.strong_count() > 0);
        let older = self.older.iter().filter_map(|older| older.overlay.upgrade());
        older.chain([self.current.clone()]).collect()
    }

    /// Room with those who follow the overlays.
    fn make_followers_room(&mut self, table: u32, rows: usize) -> Result<(), StoreError> {
        self.overlays().iter().try_for_each(|it| it.make_followers_room(table, rows))
    }

    /// Puts rows in: `placed` where the current overlay has them, `logged` by their ids or keys.
    fn publish(&mut self, placed: &[Entry], logged: &[Entry], rows: &Arc<[u8]>) -> Result<(), StoreError> {
        self.older.retain(|older| older.overlay.strong_count() > 0);
        let living = self.older.iter().filter_map(|older| Some((older.overlay.upgrade()?, &older.keyed)));
        let older = living.map(|(overlay, keyed)| overlay.publish(&keyed.placed(logged), rows));
        // All of them, whatever one says.
        let older = older.fold(Ok(()), Result::and);
        older.and(self.current.publish(placed, rows)).map_err(|why| StoreError::GpuBehind { why })
    }

    /// Keeps room for the compaction that brings created keys into their tables, `new` more of table number `index` among them; else
    /// [`StoreError::NoRoomToCreate`].
    fn keep_room_to_grow(
        &mut self,
        volume: &Volume,
        generation: &Generation,
        index: u32,
        new: u64,
    ) -> Result<(), StoreError> {
        let mut created = self.created.clone();
        *created.entry(index).or_default() += new;
        let needed = volume.chunks_to_write(&grown::spec_grown(generation, &created))?.0;
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

    /// Counts the keys that the current overlay says were created, and says how much room their compaction needs.
    fn count_created(&mut self, volume: &Volume, generation: &Generation) -> Result<(), StoreError> {
        self.created.clear();
        self.kept = 0;
        if let Some(snapshot) = self.current.snapshot().filter(Snapshot::creates) {
            let tables = 0..generation.tables.len() as u32;
            let counted = tables.map(|table| (table, snapshot.rows(table | CREATED).count() as u64));
            self.created = counted.filter(|it| it.1 > 0).collect();
        }
        let (mut chunks, mut growth) = (1, 0);
        if !self.created.is_empty() {
            chunks = volume.chunks_to_write(&grown::spec_grown(generation, &self.created))?.0;
            growth = chunks.saturating_sub(generation.placement.map().len() as u64);
        }
        volume.keep_for_compaction(generation.id, chunks, growth);
        Ok(())
    }

    /// The generation has all updates up to `sequence` in its chunks now; tables in `grown` have other keys.
    fn compacted(&mut self, sequence: u64, grown: HashMap<u32, SparseIds>) {
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

impl Shared {
    /// The updated rows that belong over a generation's chunks; `None`: the catalogue has it with other chunks, and nobody reads
    /// these any more.
    fn overlay_of(&self, generation: &Generation) -> Result<Option<Arc<Overlay>>, StoreError> {
        let updating = self.updating(generation.id)?;
        let mut writer = lock(&updating.0);
        let (all, base) = (writer.overlays(), generation.base_sequence);
        // An older one has all that a later one has, and more; but by other slots, where keys were brought into a table between.
        let grew = |from: u64| writer.grown.iter().any(|&at| from < at && at <= base);
        Ok(all.into_iter().rfind(|it| it.base() <= base && !grew(it.base())))
    }

    /// The same; [`VolumeError::NoSuchGeneration`] if the catalogue no longer has it so.
    pub(crate) fn overlay(&self, generation: &Generation) -> Result<Arc<Overlay>, StoreError> {
        let found = self.overlay_of(generation)?;
        found.ok_or(StoreError::Volume(VolumeError::NoSuchGeneration { id: generation.id }))
    }

    /// A table with the updated rows that belong over it, as both are now, or as they were together a moment ago.
    pub(crate) fn with_overlay(&self, located: TableVersion) -> (TableVersion, Result<Arc<Overlay>, StoreError>) {
        let (mut located, mut turns) = (located, 0);
        loop {
            let missing = VolumeError::NoSuchGeneration { id: located.generation.id };
            match self.overlay_of(&located.generation) {
                Ok(Some(overlay)) => return (located, Ok(overlay)),
                Err(error) => return (located, Err(error)),
                // A compaction came between: they take longer than this.
                Ok(None) if turns < 8 => match self.volume.generation(located.generation.id) {
                    Some(now) => (located.generation, turns) = (now, turns + 1),
                    None => return (located, Err(missing.into())),
                },
                Ok(None) => return (located, Err(missing.into())),
            }
        }
    }

    /// The same of many; `None`: it could not be had. Where a log cannot be read, no other table of its generation asks again.
    pub(crate) fn with_overlays(&self, located: Vec<TableVersion>) -> Vec<(TableVersion, Option<Arc<Overlay>>)> {
        let mut failed = HashSet::new();
        let mut one = |located: TableVersion| {
            if failed.contains(&located.generation.id) {
                return (located, None);
            }
            let (located, overlay) = self.with_overlay(located);
            failed.extend(overlay.is_err().then_some(located.generation.id));
            (located, overlay.ok())
        };
        located.into_iter().map(&mut one).collect()
    }

    /// Replays the log, if that has not been done.
    fn updating(&self, generation: u64) -> Result<Arc<Updating>, StoreError> {
        let replayed = lock(&self.updates.of).entry(generation).or_default().clone();
        let mut replayed = lock(&replayed.0);
        match &*replayed {
            Some(Ok(updating)) => return Ok(updating.clone()),
            Some(Err(Damage { drive, unit, what })) => {
                let (drive, unit) = (drive.clone(), *unit);
                return Err(VolumeError::LogDamaged { generation, drive, unit, what }.into());
            }
            None => {}
        }
        match self.replay(generation) {
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
    pub(crate) fn know_kept_room(&self) {
        for generation in self.volume.generations() {
            if !generation.log.is_empty() && generation.tables.iter().any(|table| table.keys.is_some()) {
                let _ = self.updating(generation.id);
            }
        }
    }

    /// The ranks of rows of a table that updates override: what is stored of them counts for nothing.
    pub(crate) fn overridden(&self, located: &TableVersion) -> Result<HashSet<u64>, StoreError> {
        let Some(snapshot) = self.overlay_of(&located.generation)?.and_then(|overlay| overlay.snapshot()) else {
            return Ok(HashSet::new());
        };
        let ranks = self.volume.read_ranks(&located.generation, located.index)?;
        let rank_of = |id: u64| ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id));
        Ok(snapshot.rows(located.index as u32).filter_map(|(id, _)| rank_of(id)).collect())
    }

    fn replay(&self, generation: u64) -> Result<Writer, StoreError> {
        let volume = &self.volume;
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let overlay = Overlay::new(found.base_sequence);
        let (mut entries, mut rows) = (Vec::new(), Vec::new());
        let (mut keyed, mut failed) = (KeyedTables::default(), None);
        let mut publish = |entries: &mut Vec<Entry>, rows: &mut Vec<u8>| {
            match entries.iter().try_for_each(|entry| keyed.know(self, &found, entry.table)) {
                // Nobody follows it yet.
                Ok(()) => drop(overlay.publish(&keyed.placed(entries), &std::mem::take(rows).into())),
                Err(error) => failed = Some(error),
            }
            entries.clear();
        };
        let mut take = |sequence, update: Update<'_>| {
            let Update { table, key, row } = update;
            entries.push(Entry { table, key, sequence, begin: rows.len(), bytes: row.len() });
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
                let (current, older, grown) = (Arc::new(overlay), Vec::new(), Vec::new());
                let mut writer = Writer { log, current, keyed, older, grown, created: HashMap::new(), kept: 0 };
                writer.count_created(volume, &found)?;
                Ok(writer)
            }
        }
    }
}

/// How rows are updated.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct UpdateOptions {
    /// Of the table as generation `id` has it, which may stand by; `None`: as look-ups find it.
    pub generation: Option<u64>,
    /// Keys that the table does not have are created, with their rows; else they are refused ([`StoreError::NoSuchKey`]).
    pub create: bool,
}

impl UpdateOptions {
    /// Of generation `id`.
    #[must_use]
    pub fn with_generation(self, id: u64) -> Self {
        Self { generation: Some(id), ..self }
    }

    /// Creating keys.
    #[must_use]
    pub fn with_created_keys(self) -> Self {
        Self { create: true, ..self }
    }
}

impl Store {
    /// Gives rows of a table other content, by id, or by key where it has keys, an `i64` by its bits: `rows` has one row after another. When it returns, they are durable, and every
    /// look-up of the host executor that begins later reads them; none reads some of them without the others. Where an id comes
    /// twice, its last row counts. The sequence number of the last, which counts the updates of the generation.
    ///
    /// The first update of a table that has keys reads these, and keeps them: eight bytes a row. They have to be stored.
    ///
    /// Refused, with nothing written: ids or keys that the table does not have, rows of another size, more than
    /// [`overlay_bytes`](crate::OpenOptions::overlay_bytes) hold ([`StoreError::OverlayFull`]: compact), and anything while an
    /// executor on a GPU is attached without `GpuOptions::overlay_bytes` of its own; with them its look-ups see updates
    /// as those of the host do, captured ones too. If a drive fails, the updates are in doubt
    /// ([`VolumeError::UpdateInDoubt`]).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
    /// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let plan = Host::attach(&store, HostOptions::default())?.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
    /// let new: Vec<u8> = [-1.0f32; 8].iter().flat_map(|x| x.to_le_bytes()).collect();
    /// store.update("user", &[7, 999], &new)?;                  // two rows, durable now
    /// let mut found = [0.0f32; 8];
    /// plan.slot()?.lookup(&Batch::new(&[8i64, 999], 2), &mut Output::new(Rows::F32(&mut found), 4))?;
    /// assert_eq!(found, [32.0, 33.0, 34.0, 35.0, -1.0, -1.0, -1.0, -1.0]);
    /// assert!(matches!(store.update("user", &[1000], &new[..16]), Err(StoreError::NoSuchRow { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn update(&self, table: &str, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
        self.update_with(table, ids, rows, &UpdateOptions::default())
    }

    /// The same, of another generation, or creating keys. A key that was created is as any other from then on: look-ups give its row, not
    /// that of a key whose fingerprint is the same; [`compact`](Self::compact) brings it into the table. Until then it takes memory of the
    /// overlay as an updated row does. Tables of ids do not grow.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
    /// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// // A table that is looked up by keys.
    /// let (keys, rows) = (&[1u64 << 40, 7, 99][..], &[1u8, 2, 3][..]);
    /// let index = KeyIndex::build(keys, &Default::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let keyed = Keyed::new(index.into(), &keys, RowOrder::Given, true)?;
    /// let spec = TableSpec::new("sparse", 3, 1, DType::U8).keyed(&keyed);
    /// let load = TableLoad::new(&spec, &rows).with_keys(&keyed);
    /// store.load("k", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    ///
    /// assert!(matches!(store.update("sparse", &[7, 8], &[20, 80]), Err(StoreError::NoSuchKey { .. })));
    /// store.update_with("sparse", &[7, 8], &[20, 80], &UpdateOptions::default().with_created_keys())?;
    /// assert_eq!(store.created("sparse")?, [(8, vec![80])]);
    /// let generation = store.table("sparse").ok_or("gone")?.generation;
    /// store.compact(generation)?;                              // from now on it is a key as any other
    /// assert_eq!(store.table("sparse").ok_or("gone")?.rows, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn update_with(
        &self,
        table: &str,
        ids: &[u64],
        rows: &[u8],
        options: &UpdateOptions,
    ) -> Result<u64, StoreError> {
        let generation = self.locate_for(table, options)?.generation.id;
        // A compaction may give it another place, and another index.
        self.with_room(generation, || self.update_located(&self.locate_for(table, options)?, ids, rows, options.create))
    }

    /// Whether [`update`](Self::update) would find rows of all these ids or keys. Nothing is changed.
    pub fn check_update(&self, table: &str, ids: &[u64]) -> Result<(), StoreError> {
        self.check_update_with(table, ids, &UpdateOptions::default()).map(drop)
    }

    /// The same of [`update_with`](Self::update_with). How many keys it would create.
    pub fn check_update_with(&self, table: &str, ids: &[u64], options: &UpdateOptions) -> Result<u64, StoreError> {
        let located = self.locate_for(table, options)?;
        refuse_absent(located.table(), ids)?;
        if located.table().keys.is_none() {
            return Ok(0);
        }
        let updating = self.shared.updating(located.generation.id)?;
        let placed = lock(&updating.0).places(&self.shared, &located, ids, options.create)?;
        Ok(placed.new)
    }

    /// As [`update`](Self::update), of a table of generation `generation`, which may stand by.
    pub fn update_generation(&self, generation: u64, table: &str, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
        self.update_with(table, ids, rows, &UpdateOptions::default().with_generation(generation))
    }

    /// The rows of keys that were created since the table was loaded, or compacted: its [`keys`](Self::keys), and the ranks of
    /// [`scan`](Self::scan), do not have them. Each key once, an `i64` by its bits, in the order of these.
    pub fn created(&self, table: &str) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let (located, overlay) = self.shared.with_overlay(self.locate(table)?);
        let Some(snapshot) = overlay?.snapshot() else { return Ok(Vec::new()) };
        let rows = created_rows(&snapshot, located.index as u32);
        Ok(rows.into_iter().map(|(key, row)| (key, row.to_vec())).collect())
    }

    fn locate_for(&self, table: &str, options: &UpdateOptions) -> Result<TableVersion, StoreError> {
        match options.generation {
            Some(generation) => self.locate_in(generation, table),
            None => self.locate(table),
        }
    }

    pub(crate) fn locate_in(&self, id: u64, table: &str) -> Result<TableVersion, StoreError> {
        let generation = self.shared.volume.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        match generation.table_index(table) {
            Some(index) => Ok(TableVersion { generation, index }),
            None => Err(StoreError::NoSuchTable {
                table: table.to_owned(),
                known: generation.tables.iter().map(|table| table.name.clone()).collect(),
            }),
        }
    }

    fn update_located(
        &self,
        located: &TableVersion,
        ids: &[u64],
        rows: &[u8],
        create: bool,
    ) -> Result<u64, StoreError> {
        let (table, index) = (located.table(), located.index as u32);
        let row_bytes = table.row_bytes() as usize;
        if ids.len().checked_mul(row_bytes) != Some(rows.len()) {
            let (table, ids) = (table.name.clone(), ids.len());
            return Err(StoreError::UpdateRows { table, ids, row_bytes, given: rows.len() });
        }
        refuse_absent(table, ids)?;
        let unfollowing = self.shared.updates.unfollowing.read().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(&unfollowing) > 1 {
            return Err(StoreError::Unfollowing { table: table.name.clone() });
        }
        self.shared.watch()?;
        self.shared.know_kept_room();
        let updating = self.shared.updating(located.generation.id)?;
        let mut writer = lock(&updating.0);
        let bound = self.shared.updates.bound;
        // First what was in doubt, for which room was made then.
        let mut log = writer.take_log(&self.shared, located.generation.id)?;
        let placed = writer.places(&self.shared, located, ids, create).and_then(|placed| {
            let full = |bytes| StoreError::OverlayFull { generation: located.generation.id, bytes, bound };
            writer.make_room(ids.len(), rows.len(), bound).map_err(full)?;
            writer.make_followers_room(index, ids.len())?;
            if placed.new > 0 {
                writer.keep_room_to_grow(&self.shared.volume, &located.generation, index, placed.new)?;
            }
            Ok(placed)
        });
        let Placed { places, new } = match placed {
            Ok(placed) => placed,
            Err(error) => {
                writer.log = Some(log);
                return Err(error);
            }
        };
        let updates: Vec<Update<'_>> =
            ids.iter().zip(rows.chunks_exact(row_bytes)).map(|(&key, row)| Update { table: index, key, row }).collect();
        let chunks = || self.shared.volume.generation(located.generation.id).map_or(0, |it| it.log.len());
        let before = chunks();
        let appended = log.append(&updates);
        let desk = lock(&self.shared.updates.desk).upgrade();
        // It is counted over all chunks of the store: not for each update.
        let usage = desk.as_ref().filter(|_| chunks() != before).and_then(|_| log.usage().ok());
        writer.log = Some(log);
        let last = appended?;
        if new > 0 {
            *writer.created.entry(index).or_default() += new;
        }
        let entry = |(position, (table, key)): (usize, (u32, u64))| Entry {
            table,
            key,
            sequence: last - (ids.len() - 1 - position) as u64,
            begin: position * row_bytes,
            bytes: row_bytes,
        };
        let placed: Vec<Entry> = places.into_iter().enumerate().map(entry).collect();
        let logged = ids.iter().map(|&key| (index, key)).enumerate().map(entry);
        let logged: Vec<Entry> = if writer.older.is_empty() { Vec::new() } else { logged.collect() };
        let published = writer.publish(&placed, &logged, &rows.into());
        if let Some(desk) = desk {
            // What a compaction would bring into chunks; what older overlays keep is for those to let go who read them.
            desk.note(located.generation.id, writer.current.least_with(0, 0), usage);
        }
        published.map(|()| last)
    }

    /// The updated rows of a table, if any: by rank, as of now.
    pub(crate) fn updated_by_rank(
        &self,
        located: &TableVersion,
        overlay: &Overlay,
    ) -> Result<HashMap<u64, Vec<u8>>, StoreError> {
        match overlay.snapshot() {
            Some(snapshot) => self.rows_by_rank(located, &snapshot),
            None => Ok(HashMap::new()),
        }
    }

    /// The same, as of then.
    fn rows_by_rank(&self, located: &TableVersion, snapshot: &Snapshot) -> Result<HashMap<u64, Vec<u8>>, StoreError> {
        let mut rows = snapshot.rows(located.index as u32).peekable();
        if rows.peek().is_none() {
            return Ok(HashMap::new());
        }
        let ranks = self.shared.volume.read_ranks(&located.generation, located.index)?;
        let rank_of = |id: u64| ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id));
        Ok(rows.filter_map(|(id, row)| Some((rank_of(id)?, row.to_vec()))).collect())
    }

    /// Brings the updates of a generation into its chunks: copies those that hold updated rows, with these, and commits them without
    /// the log. Updates go on meanwhile, and are seen; only the commit makes them wait. Needs as many free chunks as are copied, which
    /// the old ones become when nobody reads them any more: hosts go on with them, and with their updated rows in memory, until they
    /// `Host::prepare` and `Host::adopt` anew. How many chunks were copied.
    ///
    /// Where keys were created since, they come into their tables, behind the last rank: the whole generation is written anew for it, into as
    /// many free chunks as it takes, with other indexes for these tables, under its id. It reads and writes all of it, and a table that is put
    /// in order and has more than 256 MiB of rows twice; so create many at a time.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
    /// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// store.update("user", &[5], &[0; 16])?;
    /// let id = store.generations()[0].id;
    /// let needs = store.compaction_needs(id)?;
    /// assert!(needs.has_room() && !needs.rewrites);
    /// assert_eq!(store.compact(id)? as u64, needs.chunks);
    /// assert_eq!(store.pending_updates(id)?, None);
    /// store.scan("user", 5..6, &mut |_, row| {
    ///     assert_eq!(row, [0; 16]);
    ///     ControlFlow::Continue(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self, generation: u64) -> Result<usize, StoreError> {
        self.shared.watch()?;
        // Before anything is sealed, and until it is committed: nobody else changes what the updates are brought into.
        let rewriting = self.shared.volume.rewriting(generation)?;
        let updating = self.shared.updating(generation)?;
        let (sequence, snapshot, keyed) = {
            let mut writer = lock(&updating.0);
            let mut log = writer.take_log(&self.shared, generation)?;
            let snapshot = writer.current.snapshot();
            let room = self.make_room_to_compact(&rewriting, &mut log, snapshot.as_ref(), &writer.created);
            let sequence = if room.is_ok() && snapshot.is_some() { log.seal() } else { 0 };
            writer.log = Some(log);
            room?;
            (sequence, snapshot, writer.keyed.clone())
        };
        let Some(snapshot) = snapshot else { return Ok(0) };
        let compacted = self.compact_up_to(&updating, &rewriting, sequence, &snapshot, &keyed);
        if compacted.is_err() {
            updating.unseal(sequence);
        }
        compacted
    }

    /// Brings the updates of a snapshot, which are those up to `sequence`, into chunks.
    fn compact_up_to(
        &self,
        updating: &Updating,
        rewriting: &Rewriting,
        sequence: u64,
        snapshot: &Snapshot,
        keyed: &KeyedTables,
    ) -> Result<usize, StoreError> {
        let (volume, generation) = (&self.shared.volume, rewriting.generation());
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let (chunks, written, grown) = if has_created(snapshot, &found) {
            let anew = self.write_anew(&found, snapshot, keyed, rewriting)?;
            (anew.chunks, Written::Anew(anew.rebuilt), anew.tables)
        } else {
            let patches = self.patches(&found, snapshot)?;
            // Its chunks are free when they are replaced, and nobody reads it.
            drop(found);
            let rewritten = volume.rewrite_in_steps(rewriting, &patches)?;
            (rewritten.chunks(), Written::Copied(rewritten), HashMap::new())
        };
        self.shared.watch()?;
        let mut writer = lock(&updating.0);
        let mut log = writer.take_log(&self.shared, generation)?;
        let compacted = match written {
            Written::Anew(rebuilt) => log.replace(sequence, rebuilt),
            Written::Copied(rewritten) => log.compact(sequence, rewritten),
        };
        writer.log = Some(log);
        let compacted = compacted?;
        writer.compacted(sequence, grown);
        writer.count_created(volume, &compacted)?;
        Ok(chunks)
    }

    /// The latest row of each id that a snapshot has, by ranks.
    fn patches<'a>(&self, found: &Generation, snapshot: &'a Snapshot) -> Result<Vec<Patch<'a>>, StoreError> {
        let mut patches = Vec::new();
        for (index, table) in (0u32..).zip(&found.tables) {
            let mut rows = snapshot.rows(index).peekable();
            if rows.peek().is_none() {
                continue;
            }
            let ranks = self.shared.volume.read_ranks(found, index as usize)?;
            for (id, row) in rows {
                let rank = ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id));
                let rank = rank.ok_or_else(|| StoreError::NoSuchRow {
                    table: table.name.clone(),
                    rows: table.rows,
                    ids: vec![id],
                })?;
                patches.push(Patch { table: index, rank, row });
            }
        }
        Ok(patches)
    }

    /// Refuses a compaction for which there is certainly no room, and makes some where the log can take less.
    fn make_room_to_compact(
        &self,
        rewriting: &Rewriting,
        log: &mut Log,
        snapshot: Option<&Snapshot>,
        created: &HashMap<u32, u64>,
    ) -> Result<(), StoreError> {
        let Some(snapshot) = snapshot else { return Ok(()) };
        let refused = match self.check_compaction(rewriting.generation(), snapshot, created) {
            Err(refused @ (StoreError::NoRoomToGrow { .. } | StoreError::Volume(VolumeError::NoSpace { .. }))) => {
                refused
            }
            other => return other,
        };
        match log.repack(rewriting)? {
            0 => Err(refused),
            _ => self.check_compaction(rewriting.generation(), snapshot, created),
        }
    }

    fn check_compaction(
        &self,
        generation: u64,
        snapshot: &Snapshot,
        created: &HashMap<u32, u64>,
    ) -> Result<(), StoreError> {
        let volume = &self.shared.volume;
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        if has_created(snapshot, &found) {
            let checked = volume.check_anew(&grown::spec_grown(&found, created), &[generation]);
            return checked.map_err(|error| grown::no_room(generation, error));
        }
        match volume.free_chunks().iter().any(|&free| free > 0) {
            true => Ok(()),
            false => Err(volume.no_space(1).into()),
        }
    }

    /// Whether the log of a generation is several times as long as what memory keeps of its updates may be: opening the store reads all
    /// of it, and a compaction would win much.
    pub fn is_log_long(&self, generation: u64) -> Result<bool, StoreError> {
        let usage = self.log_usage(generation)?;
        Ok(usage.bytes >= self.shared.updates.bound.saturating_mul(LOG_OF_MEMORY))
    }

    /// How much of its chunks the log of a generation has used.
    pub fn log_usage(&self, generation: u64) -> Result<LogUsage, StoreError> {
        let updating = self.shared.updating(generation)?;
        let mut writer = lock(&updating.0);
        let log = writer.take_log(&self.shared, generation)?;
        let usage = log.usage();
        writer.log = Some(log);
        Ok(usage?)
    }

    /// Forgets the updates of a generation that is gone.
    pub(crate) fn forget_updates(&self, generation: u64) {
        lock(&self.shared.updates.of).remove(&generation);
    }
}

/// Chunks that a compaction wrote and has not committed.
enum Written {
    /// Those that held updated rows.
    Copied(Rewritten),
    /// All of a generation.
    Anew(Rebuilt),
}

impl Updating {
    /// Goes on with the log where a compaction sealed it, which did not come about.
    fn unseal(&self, sequence: u64) {
        if let Some(log) = &mut lock(&self.0).log {
            log.unseal(sequence);
        }
    }
}

/// Where overlays have rows that are to be updated, and how many keys are new.
struct Placed {
    places: Vec<(u32, u64)>,
    new: u64,
}

impl Writer {
    /// Those of ids or keys of a table; refuses keys that are not there, unless they are to be created.
    fn places(
        &mut self,
        store: &Shared,
        located: &TableVersion,
        ids: &[u64],
        create: bool,
    ) -> Result<Placed, StoreError> {
        let (table, index) = (located.table(), located.index as u32);
        self.know(store, &located.generation, index)?;
        let places = self.keyed.places(index, ids);
        let snapshot = self.current.snapshot();
        let is_there = |&(table, key)| snapshot.as_ref().is_some_and(|it| it.find(table, key).is_some());
        let created = places.iter().filter(|place| place.0 & CREATED != 0);
        let new = created.filter(|place| !is_there(place)).map(|place| place.1);
        match (&table.keys, create) {
            (Some(keys), false) => {
                let keys: Vec<String> = new.take(10).map(|key| keys.spec.kind.number(key).to_string()).collect();
                match keys.is_empty() {
                    true => Ok(Placed { places, new: 0 }),
                    false => Err(StoreError::NoSuchKey { table: table.name.clone(), keys }),
                }
            }
            _ => {
                let new = new.collect::<HashSet<_>>().len() as u64;
                Ok(Placed { places, new })
            }
        }
    }
}

/// The rows of created keys of table number `table`, by key.
fn created_rows(snapshot: &Snapshot, table: u32) -> Vec<(u64, &[u8])> {
    if !snapshot.creates() {
        return Vec::new();
    }
    let mut rows: Vec<(u64, &[u8])> = snapshot.rows(table | CREATED).collect();
    rows.sort_unstable_by_key(|row| row.0);
    rows
}

/// Whether there are any.
fn has_created(snapshot: &Snapshot, generation: &Generation) -> bool {
    let any = |table: u32| snapshot.rows(table | CREATED).next().is_some();
    snapshot.creates() && (0..).take(generation.tables.len()).any(any)
}

/// Refuses ids that a table of ids does not have.
fn refuse_absent(table: &Table, ids: &[u64]) -> Result<(), StoreError> {
    let is_absent = |&id: &u64| table.keys.is_none() && id >= table.rows;
    let absent: Vec<u64> = ids.iter().copied().filter(is_absent).take(10).collect();
    match absent.is_empty() {
        true => Ok(()),
        false => Err(StoreError::NoSuchRow { table: table.name.clone(), rows: table.rows, ids: absent }),
    }
}

/// Whether a generation has updates that only an overlay shows.
pub(crate) fn is_updated(generation: &Generation) -> bool {
    !generation.log.is_empty()
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use warprow_layout::{DType, FormatOptions, Keyed, RowOrder, TableSpec};
    use warprow_soft_controller::{Namespace, Ram, SoftController};

    use super::*;
    use crate::overlay::Follower;
    use crate::{Device, LoadOptions, OpenOptions, TableLoad};

    const ROW: usize = 64;

    /// What was told to it: number of the row, content.
    #[derive(Debug, Default)]
    struct Told {
        rows: Mutex<Vec<(u64, Vec<u8>)>>,
        full: AtomicBool,
        fails: AtomicBool,
    }

    impl Follower for Told {
        fn make_room(&self, table: u32, rows: usize) -> Result<(), StoreError> {
            assert!(table == 0 && rows > 0);
            match self.full.load(Ordering::Relaxed) {
                true => Err(StoreError::GpuOverlayFull { bytes: 2, bound: 1 }),
                false => Ok(()),
            }
        }

        fn publish(&self, entries: &[Entry], rows: &[u8]) -> Result<(), String> {
            let row = |it: &Entry| (it.key, rows[it.begin..it.begin + it.bytes].to_vec());
            lock(&self.rows).extend(entries.iter().map(row));
            if self.fails.load(Ordering::Relaxed) { Err("it is asleep".to_owned()) } else { Ok(()) }
        }
    }

    /// With the overlay, which who follows holds.
    fn follow(store: &Store) -> (Arc<Told>, Arc<Overlay>) {
        let generation = store.shared.volume.generations().pop().unwrap();
        let overlay = store.shared.overlay(&generation).unwrap();
        let (told, ()) = overlay
            .follow(|before| {
                let told = Arc::new(Told::default());
                let rows = before.into_iter().flat_map(|it| it.rows(0).chain(it.rows(CREATED)));
                lock(&told.rows).extend(rows.map(|(id, row)| (id, row.to_vec())));
                Ok::<_, StoreError>((told.clone(), told as Arc<dyn Follower>, ()))
            })
            .unwrap();
        (told, overlay)
    }

    /// A table of sparse keys, all rows 7.
    fn keyed() -> (Store, u64) {
        let namespace = Namespace::new(Ram::new(24 << 20).unwrap());
        let controller = SoftController::builder().name("drive").namespace(namespace).build().unwrap();
        let options = OpenOptions::default();
        let store = Store::create(&[Device::new(controller, 1)], &FormatOptions::default(), &options).unwrap();
        let keys: Vec<u64> = (0..100).map(|key| key * 1000).collect();
        let source = &keys[..];
        let go_on = &mut |_| ControlFlow::Continue(());
        let index = Arc::new(KeyIndex::build(source, &warprow_keys::Options::default(), go_on).unwrap());
        let keyed = Keyed::new(index, &source, RowOrder::Slots, true).unwrap();
        let (spec, rows) = (TableSpec::new("a", 100, 16, DType::F32).keyed(&keyed), vec![7u8; 100 * ROW]);
        let source = &rows[..];
        let load = TableLoad::new(&spec, &source).with_keys(&keyed);
        let loaded = store.load("m", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        (store, loaded.generation)
    }

    /// By the key itself, for as long as it reads an index that does not have it.
    #[test]
    fn who_follows_is_told_of_created_keys() {
        let (store, generation) = keyed();
        let create =
            |key, byte| store.update_with("a", &[key], &[byte; ROW], &UpdateOptions::default().with_created_keys());
        let (first, pinned) = follow(&store);
        create(12_345, 1).unwrap();
        assert_eq!(*lock(&first.rows), [(12_345, vec![1; ROW])]);
        create(1000, 2).unwrap();
        let last = |told: &Told| lock(&told.rows).last().cloned().unwrap();
        assert!(last(&first).0 < 100, "by its slot");
        store.compact(generation).unwrap();
        let (second, _pinned) = follow(&store);
        assert!(!Arc::ptr_eq(&pinned, &_pinned) && lock(&second.rows).is_empty());
        create(12_345, 3).unwrap();
        assert_eq!(last(&first), (12_345, vec![3; ROW]));
        let (slot, row) = last(&second);
        assert!(slot < 101 && row == [3; ROW], "it is in the table now");
        create(67_890, 4).unwrap();
        assert_eq!((last(&first), last(&second)), ((67_890, vec![4; ROW]), (67_890, vec![4; ROW])));
        // Who comes later is told of what is there.
        let (third, _) = follow(&store);
        let mut rows = lock(&third.rows).clone();
        rows.sort_unstable();
        assert_eq!(rows, [(slot, vec![3; ROW]), (67_890, vec![4; ROW])]);
    }

    /// The caller may compact too, while the compactor lives.
    #[test]
    fn an_update_without_room_waits_for_somebody_else_s_compaction() {
        let (store, generation) = keyed();
        let (told, reports) = std::sync::mpsc::channel();
        let compactor =
            store.keep_compacted(&CompactorOptions::default(), move |_, done| told.send(done).unwrap()).unwrap();
        store.update("a", &[1000], &[1; ROW]).unwrap();
        let others = store.shared.volume.begin_rewrite(generation, []).unwrap();
        let full = AtomicBool::new(true);
        let attempt = || match full.swap(false, Ordering::Relaxed) {
            true => Err(StoreError::GpuOverlayFull { bytes: 2, bound: 1 }),
            false => Ok(()),
        };
        std::thread::scope(|scope| {
            let update = scope.spawn(|| store.with_room(generation, attempt));
            assert!(reports.recv_timeout(Duration::from_millis(100)).is_err(), "it goes on to wait");
            drop(others);
            update.join().unwrap().unwrap();
        });
        assert!(reports.recv().unwrap().chunks.is_ok());
        store.update("a", &[1000], &[2; ROW]).unwrap();
        // Nor does it wait longer than the compactor lives.
        let _others = store.shared.volume.begin_rewrite(generation, []).unwrap();
        full.store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let update = scope.spawn(|| store.with_room(generation, attempt));
            while full.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            drop(compactor);
            assert!(matches!(update.join().unwrap(), Err(StoreError::GpuOverlayFull { .. })));
        });
    }

    /// Rows that replace others wait for somebody else's compaction, and not for ever.
    #[test]
    fn replaced_rows_wait_for_somebody_else_s_compaction() {
        let (store, generation) = keyed();
        let rewriting = |done| matches!(done, Err(StoreError::Volume(VolumeError::Rewriting { .. })));
        let moment = Duration::from_millis(30);
        let rows = || {
            let mut rows = Vec::new();
            let scanned = store.scan("a", 0..u64::MAX, &mut |_, row| {
                rows.push(row[0]);
                ControlFlow::Continue(())
            });
            scanned.map(|()| rows).unwrap()
        };
        let replace = |byte: u8, patience| {
            store.replace_rows_within(generation, "a", &[3, 50], &|_, row: &mut [u8]| row.fill(byte), patience)
        };
        // With an update to be compacted before, and with none.
        for (turn, byte) in [(0, 20), (1, 30)] {
            let slot = store.key_index("a").unwrap().unwrap().slot(7000).unwrap() as usize;
            if turn == 0 {
                store.update("a", &[7000], &[9; ROW]).unwrap();
            }
            let before = rows();
            let others = store.shared.volume.begin_rewrite(generation, []).unwrap();
            assert!(rewriting(replace(byte, moment)) && rewriting(store.compact_within(generation, moment)));
            assert_eq!(rows(), before, "nothing has moved");
            std::thread::scope(|scope| {
                let replaced = scope.spawn(|| replace(byte, Duration::from_secs(60)));
                let compacted = scope.spawn(|| store.compact_within(generation, Duration::from_secs(60)));
                std::thread::sleep(moment);
                assert!(!replaced.is_finished() && !compacted.is_finished());
                drop(others);
                replaced.join().unwrap().unwrap();
                compacted.join().unwrap().unwrap();
            });
            let mut wanted = before;
            (wanted[slot], wanted[3], wanted[50]) = (9, byte, byte);
            assert_eq!(rows(), wanted);
        }
        // Keys that came into the table meanwhile have given its rows other ranks.
        let created = UpdateOptions::default().with_created_keys();
        store.update_with("a", &[1], &[4; ROW], &created).unwrap();
        assert!(matches!(replace(40, moment), Err(StoreError::CreatedKeys { .. })));
        let begun = store.begin_replacing(generation, ("a", 99), &[3], Instant::now());
        assert!(matches!(begun, Err(StoreError::CreatedKeys { .. })));
    }

    /// Who holds a generation as it was before compactions gets an overlay of its index, or none.
    #[test]
    fn overlays_are_of_the_index_that_is_read() {
        let (store, generation) = keyed();
        let now = || store.shared.volume.generation(generation).unwrap();
        let create = |key| store.update_with("a", &[key], &[1; ROW], &UpdateOptions::default().with_created_keys());
        create(1000).unwrap();
        let first = now();
        let oldest = store.shared.overlay(&first).unwrap();
        create(1).unwrap();
        store.compact(generation).unwrap();
        let grown = now();
        create(2000).unwrap();
        store.compact(generation).unwrap();
        // The one that was between is gone. The first has all rows, but by other slots.
        assert!(oldest.base() < grown.base_sequence);
        assert!(store.shared.overlay_of(&grown).unwrap().is_none());
        let of = |held: &Arc<Generation>| store.shared.overlay_of(held).unwrap().unwrap();
        assert!(Arc::ptr_eq(&of(&first), &oldest));
        assert!(of(&now()).base() > grown.base_sequence);
    }

    #[test]
    fn who_follows_is_told_everything_once_and_what_it_refuses_is_not_written() {
        let namespace = Namespace::new(Ram::new(24 << 20).unwrap());
        let controller = SoftController::builder().name("drive").namespace(namespace).build().unwrap();
        let devices = [Device::new(controller, 1)];
        let store = Store::create(&devices, &FormatOptions::default(), &OpenOptions::default()).unwrap();
        let (spec, rows) = (TableSpec::new("a", 100, 16, DType::F32), vec![7u8; 100 * ROW]);
        let source = &rows[..];
        let loads = [TableLoad::new(&spec, &source)];
        let loaded = store.load("model", &loads, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        let update = |id: u64, byte: u8| store.update("a", &[id], &[byte; ROW]);
        update(3, 1).unwrap();
        let (first, pinned) = follow(&store);
        assert_eq!(*lock(&first.rows), [(3, vec![1; ROW])]);
        update(4, 2).unwrap();
        assert_eq!(lock(&first.rows).last(), Some(&(4, vec![2; ROW])));
        // Of the chunks before a compaction: it is told what comes later too, and so is who follows what is left.
        store.compact(loaded.generation).unwrap();
        let (second, _pinned) = follow(&store);
        assert!(lock(&second.rows).is_empty());
        update(5, 3).unwrap();
        for told in [&first, &second] {
            assert_eq!(lock(&told.rows).last(), Some(&(5, vec![3; ROW])));
        }
        first.full.store(true, Ordering::Relaxed);
        assert!(matches!(update(6, 4), Err(StoreError::GpuOverlayFull { .. })));
        first.full.store(false, Ordering::Relaxed);
        // It is written, and all are told, whatever one says.
        first.fails.store(true, Ordering::Relaxed);
        let behind = update(7, 5).unwrap_err();
        assert!(matches!(&behind, StoreError::GpuBehind { why } if why.contains("asleep")), "{behind}");
        assert_eq!(lock(&second.rows).last(), Some(&(7, vec![5; ROW])));
        drop((first, pinned));
        update(8, 6).unwrap();
        let told: Vec<u64> = lock(&second.rows).iter().map(|(id, _)| *id).collect();
        assert_eq!(told, [5, 7, 8]);
        let mut found = Vec::new();
        let mut take = |rank: u64, row: &[u8]| {
            found.extend((row[0] != 7).then_some((rank, row[0])));
            ControlFlow::Continue(())
        };
        drop(store);
        let store = Store::open(&devices, &OpenOptions::default()).unwrap();
        store.scan("a", 0..u64::MAX, &mut take).unwrap();
        assert_eq!(found, [(3, 1), (4, 2), (5, 3), (7, 5), (8, 6)]);
    }
}
