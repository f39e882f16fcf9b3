//! Updates of rows: logged and durable first, then seen by every look-up that begins later.

mod together;

pub use together::{FillRow, TakeRow};

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use warprow_layout::{Generation, Log, Patch, Table, Update, VolumeError};

use crate::member::lock;
use crate::overlay::{Entry, Overlay};
use crate::stage::SparseIds;
use crate::store::{Located, Shared};
use crate::{Store, StoreError};

/// Updates of all generations of a store.
#[derive(Debug)]
pub(crate) struct Updates {
    of: Mutex<HashMap<u64, Arc<Replayed>>>,
    /// Bytes that overlays of a generation may take.
    bound: u64,
    /// Held, besides, by whoever reads tables without overlays; locked by updates that are under way.
    unfollowing: RwLock<Arc<()>>,
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
    /// Of the generation as it was before compactions, where somebody still reads it so.
    older: Vec<Weak<Overlay>>,
    keyed: KeyedTables,
}

/// What finds the keys of a generation's tables that have keys, read when one is updated: overlays have their rows by slot, as
/// look-ups do, and logs by key.
#[derive(Debug, Default)]
struct KeyedTables(HashMap<u32, SparseIds>);

impl KeyedTables {
    /// That of table number `index`; `None`: it has ids.
    fn of(&mut self, store: &Shared, generation: &Generation, index: u32) -> Result<Option<&SparseIds>, StoreError> {
        let Some(table) = generation.tables.get(index as usize).filter(|table| table.keys.is_some()) else {
            return Ok(None);
        };
        Ok(Some(match self.0.entry(index) {
            MapEntry::Occupied(known) => known.into_mut(),
            MapEntry::Vacant(place) => {
                let (volume, index) = (&store.volume, index as usize);
                let missing = || StoreError::KeysNotStored { table: table.name.clone() };
                // A fingerprint that passes falsely would have another key's row changed.
                let stored = volume.read_keys(generation, index)?.ok_or_else(missing)?;
                let found = volume.read_key_index(generation, index)?.ok_or_else(missing)?;
                let ranks = volume.read_ranks(generation, index)?.map(Arc::new);
                place.insert(SparseIds { index: Arc::new(found), stored: Some(Arc::new(stored)), ranks })
            }
        }))
    }

    /// What overlays have rows of these ids or keys by.
    fn places(
        &mut self,
        store: &Shared,
        generation: &Generation,
        index: u32,
        ids: &[u64],
    ) -> Result<Option<Vec<u64>>, StoreError> {
        let Some(sparse) = self.of(store, generation, index)? else { return Ok(None) };
        let (slots, absent) = sparse.slots_of(ids);
        if absent.is_empty() {
            return Ok(Some(slots));
        }
        let kind = sparse.index.kind();
        let keys = absent.iter().take(10).map(|&key| kind.number(key).to_string()).collect();
        let table = generation.tables.get(index as usize).map(|table| table.name.clone()).unwrap_or_default();
        Err(StoreError::NoSuchKey { table, keys })
    }

    /// The same for records of a log, in their place.
    fn place(&mut self, store: &Shared, generation: &Generation, entries: &mut [Entry]) -> Result<(), StoreError> {
        for entry in entries {
            if let Some(slots) = self.places(store, generation, entry.table, &[entry.key])? {
                entry.key = slots.first().copied().unwrap_or(entry.key);
            }
        }
        Ok(())
    }
}

/// Updates that are put in at once when a log is replayed.
const REPLAYED: usize = 1024;

impl Updates {
    pub(crate) fn new(bound: u64) -> Self {
        Self { of: Mutex::default(), bound, unfollowing: RwLock::default() }
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
        self.keyed.place(store, &found, &mut entries)?;
        // An executor on a GPU that does not take them is behind until it takes the next update: that one's caller is told.
        let _ = self.publish(&entries, &rows.into());
        Ok(log)
    }

    /// Makes room for so many rows more, of so many bytes, in the overlays that live; else the bytes that they would take.
    fn make_room(&mut self, more: usize, bytes: usize, bound: u64) -> Result<(), u64> {
        self.older.retain(|overlay| overlay.strong_count() > 0);
        let older = self.older.iter().filter_map(Weak::upgrade);
        let all: Vec<Arc<Overlay>> = older.chain([self.current.clone()]).collect();
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

    /// Room with those who follow the overlays.
    fn make_followers_room(&self, table: u32, rows: usize) -> Result<(), StoreError> {
        let mut all = self.older.iter().filter_map(Weak::upgrade).chain([self.current.clone()]);
        all.try_for_each(|it| it.make_followers_room(table, rows))
    }

    fn publish(&mut self, entries: &[Entry], rows: &Arc<[u8]>) -> Result<(), StoreError> {
        self.older.retain(|overlay| overlay.strong_count() > 0);
        let older = self.older.iter().filter_map(Weak::upgrade).map(|older| older.publish(entries, rows));
        let older = older.fold(Ok(()), Result::and);
        older.and(self.current.publish(entries, rows)).map_err(|why| StoreError::GpuBehind { why })
    }
}

impl Shared {
    /// The updated rows that belong over a generation's chunks; `None`: the catalogue has it with other chunks, and nobody reads
    /// these any more.
    fn overlay_of(&self, generation: &Generation) -> Result<Option<Arc<Overlay>>, StoreError> {
        let updating = self.updating(generation.id)?;
        let writer = lock(&updating.0);
        let older = writer.older.iter().filter_map(Weak::upgrade);
        // An older one has all that a later one has, and more.
        Ok(older.chain([writer.current.clone()]).filter(|it| it.base() <= generation.base_sequence).last())
    }

    /// The same; [`VolumeError::NoSuchGeneration`] if the catalogue no longer has it so.
    pub(crate) fn overlay(&self, generation: &Generation) -> Result<Arc<Overlay>, StoreError> {
        let found = self.overlay_of(generation)?;
        found.ok_or(StoreError::Volume(VolumeError::NoSuchGeneration { id: generation.id }))
    }

    /// A table with the updated rows that belong over it, as both are now, or as they were together a moment ago.
    pub(crate) fn with_overlay(&self, located: Located) -> (Located, Result<Arc<Overlay>, StoreError>) {
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
    pub(crate) fn with_overlays(&self, located: Vec<Located>) -> Vec<(Located, Option<Arc<Overlay>>)> {
        let mut failed = HashSet::new();
        let mut one = |located: Located| {
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

    fn replay(&self, generation: u64) -> Result<Writer, StoreError> {
        let volume = &self.volume;
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let overlay = Overlay::new(found.base_sequence);
        let (mut entries, mut rows) = (Vec::new(), Vec::new());
        let (mut keyed, mut failed) = (KeyedTables::default(), None);
        let mut publish = |entries: &mut Vec<Entry>, rows: &mut Vec<u8>| {
            match keyed.place(self, &found, entries) {
                // Nobody follows it yet.
                Ok(()) => drop(overlay.publish(entries, &std::mem::take(rows).into())),
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
            None => Ok(Writer { log, current: Arc::new(overlay), older: Vec::new(), keyed }),
        }
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
    /// executor on a GPU is attached without [`overlay_bytes`](crate::GpuOptions::overlay_bytes) of its own; with them its look-ups see updates
    /// as those of the host do, captured ones too. If a drive fails, the updates are in doubt
    /// ([`VolumeError::UpdateInDoubt`]).
    pub fn update(&self, table: &str, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
        self.update_located(&self.locate(table)?, ids, rows)
    }

    /// Whether [`update`](Self::update) would find rows of all these ids or keys. Nothing is changed.
    pub fn check_update(&self, table: &str, ids: &[u64]) -> Result<(), StoreError> {
        let located = self.locate(table)?;
        refuse_absent(located.table(), ids)?;
        if located.table().keys.is_some() {
            let updating = self.shared.updating(located.generation.id)?;
            lock(&updating.0).keyed.places(&self.shared, &located.generation, located.index as u32, ids)?;
        }
        Ok(())
    }

    /// As [`update`](Self::update), of a table of generation `generation`, which may stand by.
    pub fn update_generation(&self, generation: u64, table: &str, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
        self.update_located(&self.locate_in(generation, table)?, ids, rows)
    }

    pub(crate) fn locate_in(&self, id: u64, table: &str) -> Result<Located, StoreError> {
        let generation = self.shared.volume.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        match generation.table_index(table) {
            Some(index) => Ok(Located { generation, index }),
            None => Err(StoreError::NoSuchTable {
                table: table.to_owned(),
                known: generation.tables.iter().map(|table| table.name.clone()).collect(),
            }),
        }
    }

    fn update_located(&self, located: &Located, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
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
        let updating = self.shared.updating(located.generation.id)?;
        let mut writer = lock(&updating.0);
        let places = writer.keyed.places(&self.shared, &located.generation, index, ids)?;
        let bound = self.shared.updates.bound;
        // First what was in doubt, for which room was made then.
        let mut log = writer.take_log(&self.shared, located.generation.id)?;
        let made = writer.make_room(ids.len(), rows.len(), bound).map_err(|bytes| {
            let generation = located.generation.id;
            StoreError::OverlayFull { generation, bytes, bound }
        });
        if let Err(error) = made.and_then(|()| writer.make_followers_room(index, ids.len())) {
            writer.log = Some(log);
            return Err(error);
        }
        let updates: Vec<Update<'_>> =
            ids.iter().zip(rows.chunks_exact(row_bytes)).map(|(&key, row)| Update { table: index, key, row }).collect();
        let appended = log.append(&updates);
        writer.log = Some(log);
        let last = appended?;
        let entry = |(position, &key): (usize, &u64)| Entry {
            table: index,
            key,
            sequence: last - (ids.len() - 1 - position) as u64,
            begin: position * row_bytes,
            bytes: row_bytes,
        };
        let entries: Vec<Entry> = places.as_deref().unwrap_or(ids).iter().enumerate().map(entry).collect();
        writer.publish(&entries, &rows.into())?;
        Ok(last)
    }

    /// The updated rows of a table, if any: by rank, as of now.
    pub(crate) fn updated_by_rank(
        &self,
        located: &Located,
        overlay: &Overlay,
    ) -> Result<HashMap<u64, Vec<u8>>, StoreError> {
        let Some(snapshot) = overlay.snapshot() else { return Ok(HashMap::new()) };
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
    /// [`prepare`](crate::Host::prepare) and [`adopt`](crate::Host::adopt) anew. How many chunks were copied.
    pub fn compact(&self, generation: u64) -> Result<usize, StoreError> {
        self.shared.watch()?;
        let volume = &self.shared.volume;
        let updating = self.shared.updating(generation)?;
        let (sequence, snapshot) = {
            let mut writer = lock(&updating.0);
            let mut log = writer.take_log(&self.shared, generation)?;
            let sequence = log.seal();
            writer.log = Some(log);
            (sequence, writer.current.snapshot())
        };
        let Some(snapshot) = snapshot else { return Ok(0) };
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let mut patches = Vec::new();
        for (index, table) in (0u32..).zip(&found.tables) {
            let mut rows = snapshot.rows(index).peekable();
            if rows.peek().is_none() {
                continue;
            }
            let ranks = volume.read_ranks(&found, index as usize)?;
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
        let rewritten = volume.rewrite(generation, &patches)?;
        let chunks = rewritten.chunks();
        self.shared.watch()?;
        let mut writer = lock(&updating.0);
        let mut log = writer.take_log(&self.shared, generation)?;
        let compacted = log.compact(sequence, rewritten);
        writer.log = Some(log);
        compacted?;
        let left = Arc::new(writer.current.after(sequence));
        let before = std::mem::replace(&mut writer.current, left);
        writer.older.push(Arc::downgrade(&before));
        Ok(chunks)
    }

    /// Forgets the updates of a generation that is gone.
    pub(crate) fn forget_updates(&self, generation: u64) {
        lock(&self.shared.updates.of).remove(&generation);
    }
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

    use warprow_layout::{DType, FormatOptions, TableSpec};
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
                let rows = before.into_iter().flat_map(|it| it.rows(0));
                lock(&told.rows).extend(rows.map(|(id, row)| (id, row.to_vec())));
                Ok::<_, StoreError>((told.clone(), told as Arc<dyn Follower>, ()))
            })
            .unwrap();
        (told, overlay)
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
