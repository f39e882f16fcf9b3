//! When keys were last touched: a record by table and key, which executors keep and [`Store::expire`](crate::Store::expire) reads.

mod file;

use std::collections::BTreeMap;
use std::path::Path;

pub use file::TouchesFileError;

use crate::dram_list::{read_list, write_list};

/// When keys of tables were last touched, by epochs from 1 to 65,535. What an epoch stands for (a day, a thousand steps of a
/// training) is the caller's; a later one has a higher number.
///
/// Records of several executors are [merged](Self::merge), where each key gets the latest of its epochs.
///
/// ```
/// # use warprow_store::LastTouches;
/// let mut touches = LastTouches::default();
/// touches.touch("item", [(7, 3), (1 << 40, 5)]);
/// let mut others = LastTouches::default();
/// others.touch("item", [(7, 4), (1 << 40, 2)]);
/// touches.merge(&others);
/// assert_eq!(touches.of("item").collect::<Vec<_>>(), [(7, 4), (1 << 40, 5)]);
/// assert_eq!((touches.last("item", 8), touches.latest()), (None, 5));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastTouches {
    tables: BTreeMap<String, TouchedKeys>,
}

/// Keys of a table, ascending and each once, with the epoch of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TouchedKeys {
    keys: Vec<u64>,
    epochs: Vec<u16>,
}

impl TouchedKeys {
    fn with_room(keys: usize) -> Self {
        Self { keys: Vec::with_capacity(keys), epochs: Vec::with_capacity(keys) }
    }

    fn iter(&self) -> impl Iterator<Item = (u64, u16)> {
        self.keys.iter().copied().zip(self.epochs.iter().copied())
    }

    /// Adds a key that is none before the last.
    fn push(&mut self, (key, epoch): (u64, u16)) {
        match (self.keys.last(), self.epochs.last_mut()) {
            (Some(&last), Some(before)) if last == key => *before = epoch.max(*before),
            _ => {
                self.keys.push(key);
                self.epochs.push(epoch);
            }
        }
    }

    /// Both lists in one.
    fn merged(&self, other: &Self) -> Self {
        let mut merged = Self::with_room(self.keys.len().max(other.keys.len()));
        let (mut left, mut right) = (self.iter().peekable(), other.iter().peekable());
        loop {
            let next = match (left.peek(), right.peek()) {
                (Some(a), Some(b)) if a.0 <= b.0 => left.next(),
                (_, Some(_)) => right.next(),
                (_, None) => left.next(),
            };
            match next {
                Some(touched) => merged.push(touched),
                None => return merged,
            }
        }
    }
}

impl LastTouches {
    /// Records touches of keys of a table, an `i64` by its bits, each with its epoch. A key keeps the latest of its epochs. An epoch of 0 is
    /// none, and is passed over.
    pub fn touch(&mut self, table: &str, touched: impl IntoIterator<Item = (u64, u16)>) {
        let mut touched: Vec<(u64, u16)> = touched.into_iter().filter(|&(_, epoch)| epoch != 0).collect();
        touched.sort_unstable();
        let mut added = TouchedKeys::with_room(touched.len());
        touched.into_iter().for_each(|touched| added.push(touched));
        self.add(table, &added);
    }

    fn add(&mut self, table: &str, added: &TouchedKeys) {
        match self.tables.get_mut(table) {
            Some(known) => *known = known.merged(added),
            None => drop(self.tables.insert(table.to_owned(), added.clone())),
        }
    }

    /// Takes over what another record has: of each key the latest of the epochs.
    pub fn merge(&mut self, other: &Self) {
        other.tables.iter().for_each(|(table, touched)| self.add(table, touched));
    }

    /// The tables that it has, in the order of their names.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(|name| &**name)
    }

    /// The keys of a table that it has, ascending by their bits, with their epochs.
    pub fn of(&self, table: &str) -> impl Iterator<Item = (u64, u16)> {
        self.tables.get(table).into_iter().flat_map(TouchedKeys::iter)
    }

    /// When a key was last touched; `None`: it has no such key.
    pub fn last(&self, table: &str, key: u64) -> Option<u16> {
        let touched = self.tables.get(table)?;
        touched.epochs.get(touched.keys.binary_search(&key).ok()?).copied()
    }

    /// The highest epoch that it has; 0: it has none.
    pub fn latest(&self) -> u16 {
        self.tables.values().flat_map(|touched| touched.epochs.iter().copied()).max().unwrap_or(0)
    }

    /// Forgets the keys of a table that are not to be kept.
    pub fn retain(&mut self, table: &str, mut keep: impl FnMut(u64) -> bool) {
        if let Some(touched) = self.tables.get_mut(table) {
            let mut kept = TouchedKeys::default();
            touched.iter().filter(|&(key, _)| keep(key)).for_each(|touched| kept.push(touched));
            *touched = kept;
        }
    }

    /// Reads what [`write`](Self::write) has written; `None`: there is no such file. All of it is read, 10 bytes for each key.
    ///
    /// # Errors
    /// [`TouchesFileError`].
    pub fn read(path: &Path) -> Result<Option<Self>, TouchesFileError> {
        read_list(path, u64::MAX)?.map(|bytes| file::decode(&bytes)).transpose()
    }

    /// Writes it to a file, in one step: after a crash the file before is there, or this one.
    ///
    /// # Errors
    /// [`TouchesFileError::Io`]; [`TouchesFileError::Taken`] if another process writes there.
    pub fn write(&self, path: &Path) -> Result<(), TouchesFileError> {
        if write_list(path, &file::encode(self))? { Ok(()) } else { Err(TouchesFileError::Taken) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn each_key_keeps_its_latest_epoch(
            batches in prop::collection::vec(prop::collection::vec((prop_oneof![0u64..30, any::<u64>()], 0u16..6), 0..40), 0..8),
            split in 0usize..8,
        ) {
            let mut model = BTreeMap::<u64, u16>::new();
            let (mut left, mut right) = (LastTouches::default(), LastTouches::default());
            for (number, batch) in batches.iter().enumerate() {
                batch.iter().filter(|touched| touched.1 != 0).for_each(|&(key, epoch)| {
                    let known = model.entry(key).or_default();
                    *known = epoch.max(*known);
                });
                if number < split { &mut left } else { &mut right }.touch("t", batch.iter().copied());
            }
            left.merge(&right);
            prop_assert_eq!(left.of("t").collect::<Vec<_>>(), model.clone().into_iter().collect::<Vec<_>>());
            prop_assert_eq!(left.latest(), model.values().copied().max().unwrap_or(0));
            for key in 0..32 {
                prop_assert_eq!(left.last("t", key), model.get(&key).copied());
            }
            left.retain("t", |key| key % 3 == 0);
            model.retain(|key, _| key % 3 == 0);
            prop_assert_eq!(left.of("t").collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_file_is_replaced_whole_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("touches");
        assert_eq!(LastTouches::read(&path).unwrap(), None);
        let mut touches = LastTouches::default();
        touches.write(&path).unwrap();
        assert_eq!(LastTouches::read(&path).unwrap(), Some(LastTouches::default()));
        touches.touch("a", (0..1000).map(|key| (key * key, key as u16)));
        touches.touch("b", [(u64::MAX, u16::MAX)]);
        touches.write(&path).unwrap();
        assert_eq!(LastTouches::read(&path).unwrap(), Some(touches));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
