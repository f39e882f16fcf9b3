//! Updated rows in memory, which look-ups read instead of the rows on drives. One writer appends to an overlay; anybody
//! reads it, as of one sequence number.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use crate::StoreError;
use crate::drive_access::lock;

/// An executor that keeps its own copy of an overlay's rows, and so has to be told of updates.
pub trait Follower: std::fmt::Debug + Send + Sync {
    /// Makes room for `rows` more rows of table number `table`, or says why that cannot be done.
    fn make_room(&self, table: u32, rows: usize) -> Result<(), StoreError>;

    /// Takes over rows that the overlay shows already, and shows all of them at once. An error says why the follower
    /// does not show them yet.
    fn publish(&self, entries: &[OverlayEntry], rows: &[u8]) -> Result<(), String>;
}

/// A bit in an entry's table number: the entry's key is one that the table does not have, and no id or key position.
pub const CREATED: u32 = 1 << 31;

/// The rows of one generation that were updated.
#[derive(Debug)]
pub struct Overlay {
    table: RwLock<Arc<Records>>,
    /// Whether any row was updated.
    any: AtomicBool,
    /// The sequence number up to which updates are not here, but in the generation's chunks.
    base: u64,
    /// Held while rows are published.
    followers: Mutex<Vec<Weak<dyn Follower>>>,
}

/// A hash table, and the records to which it leads. What was published in either never changes.
#[derive(Debug)]
struct Records {
    /// Hash in the upper half, number of the key's latest record and one in the lower; 0: empty. Twice as many as records.
    slots: Box<[AtomicU64]>,
    records: Box<[OnceLock<Record>]>,
    /// Records up to this sequence number are to be seen.
    published: AtomicU64,
    /// Records in use, and bytes of their rows; keys, and bytes of their latest rows: written to by the writer alone.
    used: AtomicU64,
    bytes: AtomicU64,
    live: AtomicU64,
    live_bytes: AtomicU64,
    /// Whether any are of created keys, and whether any say that a key was removed.
    created: AtomicBool,
    removed: AtomicBool,
}

#[derive(Debug, Clone)]
struct Record {
    table: u32,
    key: u64,
    sequence: u64,
    /// The number of the record that this key had before, plus one; 0: there was none.
    before: u32,
    /// The rows of one batch, and where this one begins in them.
    rows: Arc<[u8]>,
    begin: usize,
    bytes: usize,
}

impl Record {
    /// Appends the row to `rows`, and returns the entry that says where it begins there.
    fn moved_to(&self, rows: &mut Vec<u8>) -> OverlayEntry {
        let Self { table, key, sequence, bytes, .. } = *self;
        let entry = OverlayEntry { table, key, sequence, begin: rows.len(), bytes };
        rows.extend_from_slice(self.row());
        entry
    }

    fn row(&self) -> &[u8] {
        self.rows.get(self.begin..self.begin + self.bytes).unwrap_or_default()
    }

    fn is_removal(&self) -> bool {
        self.bytes == 0
    }
}

/// A row that is to be put into an overlay.
#[derive(Debug, Clone, Copy)]
pub struct OverlayEntry {
    /// The index of the table in the generation, with [`CREATED`] if the key is one that the table does not have.
    pub table: u32,
    /// The row's id, or its key's position.
    pub key: u64,
    /// The sequence number of the update.
    pub sequence: u64,
    /// The byte at which the row begins in the rows of its batch.
    pub begin: usize,
    /// Bytes of the row; 0: the key was removed.
    pub bytes: usize,
}

/// An overlay as of one sequence number.
#[derive(Debug, Clone)]
pub struct OverlaySnapshot {
    records: Arc<Records>,
    sequence: u64,
}

fn hash(table: u32, key: u64) -> u64 {
    let mixed = (key ^ u64::from(table) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

impl Records {
    fn new(records: usize, published: u64) -> Self {
        let slots = (records * 2).next_power_of_two();
        Self {
            slots: std::iter::repeat_with(|| AtomicU64::new(0)).take(slots).collect(),
            records: std::iter::repeat_with(OnceLock::new).take(records).collect(),
            published: AtomicU64::new(published),
            used: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            live: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            created: AtomicBool::new(false),
            removed: AtomicBool::new(false),
        }
    }

    /// Bytes of memory that so many records take, and the slots that lead to them.
    fn size_of(records: usize) -> u64 {
        let slots = (records * 2).next_power_of_two() * size_of::<AtomicU64>();
        (records * size_of::<OnceLock<Record>>() + slots) as u64
    }

    /// How many records there should be room for, to have that many more.
    fn roomy(&self, more: usize) -> usize {
        (self.live.load(Ordering::Relaxed) as usize + more).max(64) * 2
    }

    /// The slot that has the key or would have it, and the number and one of its latest record.
    #[inline]
    fn find(&self, table: u32, key: u64) -> (usize, u32) {
        let hash = hash(table, key);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        // Half of them are empty.
        loop {
            let word = self.slots[at].load(Ordering::Acquire);
            if word == 0 {
                return (at, 0);
            }
            if word >> 32 == hash >> 32
                && self.get(word as u32).is_some_and(|record| record.key == key && record.table == table)
            {
                return (at, word as u32);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn get(&self, number_and_one: u32) -> Option<&Record> {
        self.records.get((number_and_one as usize).wrapping_sub(1))?.get()
    }

    /// Room for more records.
    fn room(&self) -> usize {
        self.records.len() - self.used.load(Ordering::Relaxed) as usize
    }

    /// Puts a record in. There is room, and nobody else does.
    fn insert(&self, entry: &OverlayEntry, rows: &Arc<[u8]>) {
        let OverlayEntry { table, key, sequence, begin, bytes } = *entry;
        let number = self.used.fetch_add(1, Ordering::Relaxed) as usize;
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let (slot, before) = self.find(table, key);
        if before == 0 {
            self.live.fetch_add(1, Ordering::Relaxed);
        }
        // Rows of a table are of one size; a removed key has none.
        let replaced = self.get(before).map_or(0, |record| record.bytes);
        self.live_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.live_bytes.fetch_sub(replaced as u64, Ordering::Relaxed);
        if table & CREATED != 0 {
            self.created.store(true, Ordering::Relaxed);
        }
        if bytes == 0 {
            self.removed.store(true, Ordering::Relaxed);
        }
        let Some(place) = self.records.get(number) else { return };
        let _ = place.set(Record { table, key, sequence, before, rows: rows.clone(), begin, bytes });
        self.slots[slot].store(hash(table, key) >> 32 << 32 | (number as u64 + 1), Ordering::Release);
    }

    /// The latest record of each key.
    fn latest(&self) -> impl Iterator<Item = &Record> {
        let words = self.slots.iter().map(|slot| slot.load(Ordering::Acquire));
        words.filter_map(|word| self.get(word as u32))
    }

    /// Bytes of memory that it takes: every row that its records keep is one of theirs.
    fn bytes(&self) -> u64 {
        Self::size_of(self.records.len()) + self.bytes.load(Ordering::Relaxed)
    }

    /// The latest row of each key, with room for `more`. The rows are copied: else one of them would keep all of its batch.
    fn rebuilt(&self, more: usize) -> Self {
        let larger = Self::new(self.roomy(more), self.published.load(Ordering::Relaxed));
        let mut rows = Vec::with_capacity(self.live_bytes.load(Ordering::Relaxed) as usize);
        let entries: Vec<OverlayEntry> = self.latest().map(|record| record.moved_to(&mut rows)).collect();
        let rows: Arc<[u8]> = rows.into();
        entries.iter().for_each(|entry| larger.insert(entry, &rows));
        larger
    }
}

impl Overlay {
    /// An empty overlay; updates that are put in come after `sequence`.
    pub(crate) fn new(sequence: u64) -> Self {
        Self {
            table: RwLock::new(Arc::new(Records::new(0, sequence))),
            any: AtomicBool::new(false),
            base: sequence,
            followers: Mutex::default(),
        }
    }

    /// Registers a follower, which is told of every update from now on. `begin` makes the follower; it is given the rows that were
    /// updated before.
    pub fn follow<F, T, E>(
        &self,
        begin: impl FnOnce(Option<&OverlaySnapshot>) -> Result<(F, Arc<dyn Follower>, T), E>,
    ) -> Result<(F, T), E> {
        let mut followers = lock(&self.followers);
        let (own, follower, more) = begin(self.snapshot().as_ref())?;
        followers.push(Arc::downgrade(&follower));
        Ok((own, more))
    }

    /// Makes room with all who follow.
    pub(crate) fn make_followers_room(&self, table: u32, rows: usize) -> Result<(), StoreError> {
        let followers: Vec<Arc<dyn Follower>> = lock(&self.followers).iter().filter_map(Weak::upgrade).collect();
        followers.iter().try_for_each(|follower| follower.make_room(table, rows))
    }

    /// The sequence number of the last update that the overlay does not hold: the chunks have that one and all before it.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The overlay that is left when rows up to `sequence` are in the generation's chunks, each where `place` puts its entry.
    /// Nobody publishes meanwhile.
    pub(crate) fn after(&self, sequence: u64, place: impl Fn(&mut OverlayEntry)) -> Self {
        let left = Self::new(sequence);
        let records = self.records();
        let mut later: Vec<&Record> = records.latest().filter(|record| record.sequence > sequence).collect();
        later.sort_unstable_by_key(|record| record.sequence);
        let mut rows = Vec::new();
        let mut entries: Vec<OverlayEntry> = later.into_iter().map(|record| record.moved_to(&mut rows)).collect();
        entries.iter_mut().for_each(place);
        left.publish_here(&entries, &rows.into());
        left
    }

    /// The sequence number of the last update in it.
    pub(crate) fn sequence(&self) -> u64 {
        self.records().published.load(Ordering::Acquire)
    }

    fn records(&self) -> Arc<Records> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The overlay as it is now; `None`: no row was ever updated.
    #[inline]
    pub fn snapshot(&self) -> Option<OverlaySnapshot> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let records = self.records();
        let sequence = records.published.load(Ordering::Acquire);
        Some(OverlaySnapshot { records, sequence })
    }

    /// Bytes of memory that the overlay takes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.records().bytes()
    }

    /// Bytes that it takes once so many rows more, of so many bytes, are published.
    pub(crate) fn bytes_with(&self, more: usize, bytes: usize) -> u64 {
        let records = self.records();
        match records.room() < more {
            false => records.bytes() + bytes as u64,
            true => self.least_with(more, bytes),
        }
    }

    /// Bytes that the records take with `more` rows of `bytes` bytes together, once rows that were updated again are let go.
    pub(crate) fn least_with(&self, more: usize, bytes: usize) -> u64 {
        let records = self.records();
        Records::size_of(records.roomy(more)) + records.live_bytes.load(Ordering::Relaxed) + bytes as u64
    }

    /// Lets go of rows that were updated again, and makes room for `more` rows. To be called by one thread at a time.
    pub(crate) fn squeeze(&self, more: usize) {
        // Everything in it is published, so nobody misses what is superseded.
        let rebuilt = Arc::new(self.records().rebuilt(more));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = rebuilt;
    }

    /// Puts the rows of a batch in, and then shows all of them at once; then all followers do the same. To be called by
    /// one thread at a time. An error says why a follower does not show them yet.
    pub(crate) fn publish(&self, entries: &[OverlayEntry], rows: &Arc<[u8]>) -> Result<(), String> {
        let mut followers = lock(&self.followers);
        followers.retain(|follower| follower.strong_count() > 0);
        self.publish_here(entries, rows);
        let published = followers.iter().filter_map(Weak::upgrade).map(|follower| follower.publish(entries, rows));
        // All of them, whatever one says.
        published.fold(Ok(()), Result::and)
    }

    fn publish_here(&self, entries: &[OverlayEntry], rows: &Arc<[u8]>) {
        let Some(last) = entries.iter().map(|entry| entry.sequence).max() else { return };
        if self.records().room() < entries.len() {
            self.squeeze(entries.len());
        }
        let records = self.records();
        entries.iter().for_each(|entry| records.insert(entry, rows));
        records.published.store(last, Ordering::Release);
        self.any.store(true, Ordering::Release);
    }
}

impl OverlaySnapshot {
    /// The record that has the row of that key, if it was updated.
    #[inline]
    pub fn find(&self, table: u32, key: u64) -> Option<u32> {
        let mut number = self.records.find(table, key).1;
        loop {
            let record = self.records.get(number)?;
            if record.sequence <= self.sequence {
                return Some(number);
            }
            number = record.before;
        }
    }

    /// Whether a record says that its key was removed: then it has no row.
    #[inline]
    pub fn is_removal(&self, record: u32) -> bool {
        self.records.get(record).is_none_or(Record::is_removal)
    }

    /// The row of a record.
    #[inline]
    pub fn row(&self, record: u32) -> &[u8] {
        self.records.get(record).map_or(&[], Record::row)
    }

    /// Whether keys may have been created: else none was.
    #[inline]
    pub fn creates(&self) -> bool {
        // Written before what this one shows was published.
        self.records.created.load(Ordering::Relaxed)
    }

    /// Whether keys may have been removed: else none was.
    #[inline]
    pub fn removes(&self) -> bool {
        self.records.removed.load(Ordering::Relaxed)
    }

    /// All updated rows of a table in no particular order, each with its id or key position. With [`CREATED`], the rows
    /// of its created keys, each with its key.
    pub fn rows(&self, table: u32) -> impl Iterator<Item = (u64, &[u8])> {
        self.latest(table).filter(|&(_, record)| !self.is_removal(record)).map(|(key, record)| (key, self.row(record)))
    }

    /// The positions of all removed keys of a table, in no particular order. With [`CREATED`], the keys that were created
    /// and then removed.
    pub fn removed(&self, table: u32) -> impl Iterator<Item = u64> {
        let removals = if self.removes() { Some(self.latest(table)) } else { None };
        removals.into_iter().flatten().filter(|&(_, record)| self.is_removal(record)).map(|(key, _)| key)
    }

    /// All keys of a table that it has records of, with their records.
    fn latest(&self, table: u32) -> impl Iterator<Item = (u64, u32)> {
        let keys = self.records.latest().filter(move |record| record.table == table).map(|record| record.key);
        keys.filter_map(move |key| Some((key, self.find(table, key)?)))
    }

    #[cfg(test)]
    fn sequence(&self) -> u64 {
        self.sequence
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn batch(first: u64, keys: &[(u32, u64)]) -> (Vec<OverlayEntry>, Arc<[u8]>) {
        let row = |sequence: u64| sequence.to_le_bytes();
        let entries = (first..).zip(keys).enumerate().map(|(position, (sequence, &(table, key)))| OverlayEntry {
            table,
            key,
            sequence,
            begin: position * 8,
            bytes: 8,
        });
        (entries.collect(), (first..first + keys.len() as u64).flat_map(row).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn a_snapshot_is_a_map_of_its_sequence_for_ever(
            batches in prop::collection::vec(prop::collection::vec((0u32..3, prop_oneof![0u64..20, any::<u64>()]), 1..40), 1..30),
        ) {
            let overlay = Overlay::new(0);
            prop_assert!(overlay.snapshot().is_none());
            let mut model = HashMap::new();
            let mut next = 1;
            let mut past = Vec::new();
            for keys in &batches {
                let (entries, rows) = batch(next, keys);
                overlay.publish_here(&entries, &rows);
                model.extend((next..).zip(keys).map(|(sequence, &key)| (key, sequence)));
                next += keys.len() as u64;
                past.push((overlay.snapshot().unwrap(), model.clone()));
            }
            for (snapshot, model) in &past {
                for &(table, key) in batches.iter().flatten() {
                    let found = snapshot.find(table, key).map(|record| snapshot.row(record).to_vec());
                    prop_assert_eq!(found, model.get(&(table, key)).map(|sequence| sequence.to_le_bytes().to_vec()));
                }
                for table in 0..3 {
                    let rows: HashMap<u64, Vec<u8>> = snapshot.rows(table).map(|(key, row)| (key, row.to_vec())).collect();
                    let wanted = model.iter().filter(|((of, _), _)| *of == table);
                    let wanted: HashMap<u64, Vec<u8>> =
                        wanted.map(|((_, key), sequence)| (*key, sequence.to_le_bytes().to_vec())).collect();
                    prop_assert_eq!(rows, wanted);
                }
            }
        }
    }

    /// Of each batch all rows but one are updated again: that one keeps no other, and what is kept is what is counted.
    #[test]
    fn what_is_counted_is_what_is_kept() {
        const ROW: usize = 1000;
        let overlay = Overlay::new(0);
        let mut batches = Vec::new();
        for turn in 0..200u64 {
            let keys: Vec<u64> = std::iter::once(1000 + turn).chain(0..63).collect();
            let rows: Arc<[u8]> = vec![turn as u8; keys.len() * ROW].into();
            let entry = |(position, &key): (usize, &u64)| OverlayEntry {
                table: 0,
                key,
                sequence: turn * 64 + position as u64 + 1,
                begin: position * ROW,
                bytes: ROW,
            };
            let entries: Vec<OverlayEntry> = keys.iter().enumerate().map(entry).collect();
            let announced = overlay.bytes_with(entries.len(), rows.len());
            overlay.publish_here(&entries, &rows);
            assert_eq!(overlay.bytes(), announced);
            batches.push(Arc::downgrade(&rows));
            drop(rows);
            let kept: usize = batches.iter().filter_map(std::sync::Weak::upgrade).map(|rows| rows.len()).sum();
            let counted = overlay.records().bytes.load(Ordering::Relaxed);
            assert!(kept as u64 <= counted, "{kept} bytes of batches are kept, {counted} of rows are counted");
        }
        let live = (200 + 63) * ROW as u64;
        assert!(overlay.bytes() > 2 * live);
        overlay.squeeze(0);
        assert!(overlay.bytes() < live + live / 4, "{} bytes for {live}", overlay.bytes());
        let snapshot = overlay.snapshot().unwrap();
        for turn in 0..200 {
            assert_eq!(snapshot.row(snapshot.find(0, 1000 + turn).unwrap()), [turn as u8; ROW]);
        }
        (0..63).for_each(|key| assert_eq!(snapshot.row(snapshot.find(0, key).unwrap()), [199; ROW]));
    }

    /// A key of each batch has the row of that batch, in every snapshot that is taken while others are published.
    #[test]
    fn readers_see_whole_batches() {
        let overlay = Overlay::new(0);
        let keys: Vec<(u32, u64)> = (0..16).map(|key| (0, key)).collect();
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut seen = 0;
                        let mut last = 0;
                        while last < 16 * 3000 {
                            let Some(snapshot) = overlay.snapshot() else { continue };
                            let of = |key| {
                                let row = snapshot.row(snapshot.find(0, key).unwrap());
                                u64::from_le_bytes(row.try_into().unwrap())
                            };
                            let first = of(0);
                            (0..16).for_each(|key| assert_eq!(of(key), first + key));
                            assert!(first + 15 >= last && snapshot.sequence() == first + 15);
                            seen += u64::from(first + 15 != last);
                            last = first + 15;
                        }
                        seen
                    })
                })
                .collect();
            for turn in 0..3000 {
                let (entries, rows) = batch(turn * 16 + 1, &keys);
                overlay.publish_here(&entries, &rows);
            }
            readers.into_iter().for_each(|reader| assert!(reader.join().unwrap() > 0));
        });
    }
}
