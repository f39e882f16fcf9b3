//! Finds the different keys of a batch, and for each key its index among them (the *inverse*).

use super::keys::KEY_PADDING;

/// The inverse of a key that stands for a missing row.
pub const MISSING: u32 = u32::MAX;
/// The inverse of a key that stands for padding.
pub const PADDING: u32 = u32::MAX - 1;
/// Numbers of an inverse from here up are no indices: this one is [`PADDING`], the next one [`MISSING`].
pub const NONE: u32 = PADDING;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    key: u64,
    /// The entry is empty unless this equals the table's stamp.
    stamp: u32,
    index: u32,
}

/// A hash table of keys with open addressing. Changing the table's stamp empties it. The table has at least twice as
/// many entries as it can have keys, and small batches use only its beginning.
#[derive(Debug)]
pub struct KeyTable {
    entries: Box<[Entry]>,
    stamp: u32,
}

impl KeyTable {
    /// A table for up to `keys` keys at once. There must be fewer than 2³¹.
    pub fn new(keys: usize) -> Self {
        Self { entries: vec![Entry::default(); Self::entries_for(keys)].into(), stamp: 0 }
    }

    /// Bytes that a table for `keys` keys takes.
    pub fn bytes(keys: usize) -> usize {
        Self::entries_for(keys).saturating_mul(size_of::<Entry>())
    }

    fn entries_for(keys: usize) -> usize {
        keys.max(8).saturating_mul(2).checked_next_power_of_two().unwrap_or(usize::MAX)
    }

    /// Empties the table; returns the stamp of live entries.
    fn clear(&mut self) -> u32 {
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.entries.fill(Entry::default());
            self.stamp = 1;
        }
        self.stamp
    }
}

/// The entry at which the search for a key begins, in a table of 2^(64 - `shift`) entries. Both halves of the product
/// take part, so that keys that differ in their row, and keys that differ in their table, are spread alike.
#[inline(always)]
fn place(key: u64, shift: u32) -> usize {
    let product = u128::from(key) * 0x9E37_79B9_7F4A_7C15;
    (((product >> 64) as u64 ^ product as u64) >> shift) as usize
}

/// Writes the different keys to `unique`, in the order in which they first appear, and for each key its index in
/// `unique`, or [`MISSING`] or [`PADDING`], to `inverse`. Returns how many different keys there are.
///
/// # Panics
/// If `unique` or `inverse` is shorter than `keys`, or the table is for fewer keys.
pub fn dedupe(table: &mut KeyTable, keys: &[u64], unique: &mut [u64], inverse: &mut [u32]) -> usize {
    let mut deduping = begin(table, keys.len());
    deduping.add(table, keys, unique, inverse);
    deduping.count
}

/// A [`dedupe`] that is done in parts.
#[derive(Debug)]
pub(crate) struct Deduping {
    stamp: u32,
    shift: u32,
    /// Different keys so far.
    pub(crate) count: usize,
}

/// Empties `table`, for up to `keys` keys. It must have room for them.
pub(crate) fn begin(table: &mut KeyTable, keys: usize) -> Deduping {
    let size = KeyTable::entries_for(keys);
    assert!(size <= table.entries.len(), "the table has no room for {keys} keys");
    Deduping { stamp: table.clear(), shift: 64 - size.trailing_zeros(), count: 0 }
}

impl Deduping {
    /// Adds keys. `unique` is the list of all different keys so far, `inverse` has room for these keys alone.
    pub(crate) fn add(&mut self, table: &mut KeyTable, keys: &[u64], unique: &mut [u64], inverse: &mut [u32]) {
        let entries = &mut table.entries[..1 << (64 - self.shift)];
        let mask = entries.len() - 1;
        let stamp = self.stamp;
        let mut count = self.count;
        for (inverse, &key) in inverse[..keys.len()].iter_mut().zip(keys) {
            if key >= KEY_PADDING {
                *inverse = if key == KEY_PADDING { PADDING } else { MISSING };
                continue;
            }
            let mut at = place(key, self.shift);
            *inverse = loop {
                let entry = &mut entries[at & mask];
                let live = entry.stamp == stamp;
                if live & (entry.key != key) {
                    at += 1;
                    continue;
                }
                // The processor cannot predict whether a key is new. So there is no branch: everything is written in
                // either case.
                let index = if live { entry.index } else { count as u32 };
                *entry = Entry { key, stamp, index };
                unique[count] = key;
                count += usize::from(!live);
                break index;
            };
        }
        self.count = count;
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::{KEY_MISSING, TABLE_SHIFT};
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn naive(keys: &[u64]) -> (Vec<u64>, Vec<u32>) {
        let mut unique = Vec::new();
        let inverse = keys.iter().map(|&key| match key {
            KEY_MISSING => MISSING,
            KEY_PADDING => PADDING,
            _ => match unique.iter().position(|&seen| seen == key) {
                Some(index) => index as u32,
                None => {
                    unique.push(key);
                    unique.len() as u32 - 1
                }
            },
        });
        let inverse = inverse.collect();
        (unique, inverse)
    }

    fn check(table: &mut KeyTable, keys: &[u64]) {
        let mut unique = vec![0; keys.len()];
        let mut inverse = vec![0; keys.len()];
        let count = dedupe(table, keys, &mut unique, &mut inverse);
        unique.truncate(count);
        assert_eq!((unique, inverse), naive(keys));
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn matches_the_naive_search(
            batches in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![
                    (0u64..4, 0u64..40).prop_map(|(table, row)| table << TABLE_SHIFT | row),
                    any::<u64>(), Just(KEY_MISSING), Just(KEY_PADDING)], 0..100), 1..6),
            stamp in prop_oneof![Just(0), Just(u32::MAX - 2), any::<u32>()],
        ) {
            let mut table = KeyTable::new(100);
            table.stamp = stamp;
            for keys in &batches {
                check(&mut table, keys);
            }
        }
    }

    #[test]
    fn a_full_table_of_different_keys_ends() {
        for keys in [1usize, 8, 9, 1000, 4096] {
            let mut table = KeyTable::new(keys);
            check(&mut table, &(0..keys as u64).map(|key| key << 32).collect::<Vec<_>>());
            check(&mut table, &(0..keys as u64).collect::<Vec<_>>());
        }
    }
}
