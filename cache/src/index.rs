//! From a key to a number, for a fixed number of keys.

use crate::random::mix;

/// An empty place; no key has this number.
const EMPTY: u32 = u32::MAX;

/// A hash table with linear probing that never allocates after it was made. Removing a key moves later ones of its run
/// back, so that no marks of removed keys are left.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    keys: Box<[u64]>,
    numbers: Box<[u32]>,
}

impl Index {
    /// An index for up to `keys` keys, which fill at most two thirds of it.
    pub(crate) fn new(keys: usize) -> Self {
        let places = Self::places(keys);
        Self { keys: vec![0; places].into(), numbers: vec![EMPTY; places].into() }
    }

    /// Bytes that an index for `keys` keys takes.
    pub(crate) fn bytes(keys: usize) -> usize {
        Self::places(keys) * (size_of::<u64>() + size_of::<u32>())
    }

    fn places(keys: usize) -> usize {
        keys.saturating_add(keys / 2).saturating_add(2)
    }

    fn home(&self, key: u64) -> usize {
        ((u128::from(mix(key)) * self.numbers.len() as u128) >> 64) as usize
    }

    /// The place behind `place`.
    fn behind(&self, place: usize) -> usize {
        if place + 1 == self.numbers.len() { 0 } else { place + 1 }
    }

    /// How many places further on `to` lies than `from`.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.numbers.len() - from }
    }

    /// The place of `key`, or the empty place where it would go.
    fn place(&self, key: u64) -> usize {
        let mut place = self.home(key);
        while self.numbers[place] != EMPTY && self.keys[place] != key {
            place = self.behind(place);
        }
        place
    }

    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        let number = self.numbers[self.place(key)];
        (number != EMPTY).then_some(number)
    }

    /// Gives `key` a number. There must be room.
    pub(crate) fn set(&mut self, key: u64, number: u32) {
        let place = self.place(key);
        (self.keys[place], self.numbers[place]) = (key, number);
    }

    pub(crate) fn remove(&mut self, key: u64) {
        let mut hole = self.place(key);
        if self.numbers[hole] == EMPTY {
            return;
        }
        let mut next = hole;
        loop {
            next = self.behind(next);
            if self.numbers[next] == EMPTY {
                break;
            }
            // The key at `next` may fill the hole unless its home lies behind the hole.
            let home = self.home(self.keys[next]);
            if self.distance(home, next) >= self.distance(hole, next) {
                (self.keys[hole], self.numbers[hole]) = (self.keys[next], self.numbers[next]);
                hole = next;
            }
        }
        self.numbers[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u64..40, 0u32..100, 0u8..3), 0..400)) {
            // 14 places for 8 keys: runs are long and wrap around.
            let (mut index, mut map) = (Index::new(8), HashMap::new());
            for (key, number, what) in steps {
                match what {
                    0 if map.len() < 8 || map.contains_key(&key) => {
                        index.set(key, number);
                        map.insert(key, number);
                    }
                    1 => {
                        index.remove(key);
                        map.remove(&key);
                    }
                    _ => {}
                }
                for key in 0..40 {
                    prop_assert_eq!(index.get(key), map.get(&key).copied());
                }
            }
        }
    }
}
