//! From a key to a number, for a fixed number of keys that lie elsewhere.

use crate::random::mix;

/// The number of an empty place; no key has it.
const NONE: u32 = u32::MAX;
/// An empty place.
const EMPTY: u64 = u64::MAX;

/// A hash table with linear probing that never allocates after it was made. A place has a number and 32 bits of its key's hash. Keys lie
/// where whoever has the index keeps them, and are looked at where these bits agree. Removing a key moves later ones of its run back, so
/// that no marks of removed keys are left; where a key may move to say the bits of its hash.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    places: Box<[u64]>,
}

/// The part of a key's hash that an index keeps.
fn bits(key: u64) -> u64 {
    mix(key) >> 32
}

fn number(place: u64) -> u32 {
    place as u32
}

impl Index {
    /// An index for up to `keys` keys, which fill at most half of it.
    pub(crate) fn new(keys: usize) -> Self {
        Self { places: vec![EMPTY; Self::places(keys)].into() }
    }

    /// Bytes that an index for `keys` keys takes.
    pub(crate) fn bytes(keys: usize) -> usize {
        Self::places(keys).saturating_mul(size_of::<u64>())
    }

    fn places(keys: usize) -> usize {
        keys.saturating_mul(2).saturating_add(2)
    }

    /// The place where a run of keys with these bits begins.
    fn home(&self, bits: u64) -> usize {
        ((u128::from(bits) * self.places.len() as u128) >> 32) as usize
    }

    /// The place behind `place`.
    fn behind(&self, place: usize) -> usize {
        if place + 1 == self.places.len() { 0 } else { place + 1 }
    }

    /// How many places further on `to` lies than `from`.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }

    /// The number of `key`, where `is` says whether a number is that of `key`.
    pub(crate) fn get(&self, key: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let bits = bits(key);
        let mut place = self.home(bits);
        loop {
            let found = self.places[place];
            if number(found) == NONE {
                return None;
            }
            if found >> 32 == bits && is(number(found)) {
                return Some(number(found));
            }
            place = self.behind(place);
        }
    }

    /// The place of `key`, which has the number `of`; `None`: it has not.
    fn place(&self, key: u64, of: u32) -> Option<usize> {
        let wanted = bits(key) << 32 | u64::from(of);
        let mut place = self.home(bits(key));
        while self.places[place] != wanted {
            if number(self.places[place]) == NONE {
                return None;
            }
            place = self.behind(place);
        }
        Some(place)
    }

    /// The place where a look for `key` begins.
    pub(crate) fn home_of(&self, key: u64) -> &u64 {
        &self.places[self.home(bits(key))]
    }

    /// Gives `key`, which has none, a number. There must be room.
    pub(crate) fn insert(&mut self, key: u64, of: u32) {
        let bits = bits(key);
        let mut place = self.home(bits);
        while number(self.places[place]) != NONE {
            place = self.behind(place);
        }
        self.places[place] = bits << 32 | u64::from(of);
    }

    /// Gives `key`, if it has the number `from`, the number `to`. Whether it has.
    pub(crate) fn renumber(&mut self, key: u64, from: u32, to: u32) -> bool {
        let place = self.place(key, from);
        if let Some(place) = place {
            self.places[place] = bits(key) << 32 | u64::from(to);
        }
        place.is_some()
    }

    /// Takes its number from `key`, if it is `of`. Whether it was.
    pub(crate) fn remove(&mut self, key: u64, of: u32) -> bool {
        let Some(mut hole) = self.place(key, of) else { return false };
        let mut next = hole;
        loop {
            next = self.behind(next);
            let found = self.places[next];
            if number(found) == NONE {
                break;
            }
            // What lies at `next` may fill the hole unless its home lies behind the hole.
            if self.distance(self.home(found >> 32), next) >= self.distance(hole, next) {
                self.places[hole] = found;
                hole = next;
            }
        }
        self.places[hole] = EMPTY;
        true
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
        fn it_is_a_map(steps in proptest::collection::vec((0u64..40, 0u32..100, 0u8..4), 0..400)) {
            // 18 places for 8 keys, which are in a list by their numbers: runs wrap around.
            let (mut index, mut map, mut keys) = (Index::new(8), HashMap::new(), [u64::MAX; 100]);
            for (key, number, what) in steps {
                let free = keys[number as usize] == u64::MAX;
                match (what, map.get(&key).copied()) {
                    (0, None) if map.len() < 8 && free => {
                        index.insert(key, number);
                        map.insert(key, number);
                        keys[number as usize] = key;
                    }
                    (1, Some(old)) => {
                        prop_assert!(index.remove(key, old));
                        map.remove(&key);
                        keys[old as usize] = u64::MAX;
                    }
                    (2, Some(old)) if free => {
                        prop_assert!(index.renumber(key, old, number));
                        map.insert(key, number);
                        (keys[old as usize], keys[number as usize]) = (u64::MAX, key);
                    }
                    (_, old) if old != Some(number) => {
                        prop_assert!(!index.remove(key, number) && !index.renumber(key, number, 5));
                    }
                    _ => {}
                }
                for key in 0..40 {
                    prop_assert_eq!(index.get(key, |number| keys[number as usize] == key), map.get(&key).copied());
                }
            }
        }
    }

    /// Keys whose hashes agree in the bits that are kept are told apart by what they are.
    #[test]
    fn keys_of_equal_bits_are_told_apart() {
        let mut seen = HashMap::new();
        // By the birthday bound some 93 of a million keys have bits that another one has.
        let twins = (0u64..1 << 20)
            .find_map(|key| Some([seen.insert(bits(key), key)?, key]))
            .expect("two keys with equal bits");
        let mut index = Index::new(4);
        let of = |key: u64| move |number: u32| twins[number as usize] == key;
        index.insert(twins[0], 0);
        assert_eq!((index.get(twins[0], of(twins[0])), index.get(twins[1], of(twins[1]))), (Some(0), None));
        index.insert(twins[1], 1);
        assert_eq!((index.get(twins[0], of(twins[0])), index.get(twins[1], of(twins[1]))), (Some(0), Some(1)));
        assert!(index.remove(twins[0], 0));
        assert_eq!((index.get(twins[0], of(twins[0])), index.get(twins[1], of(twins[1]))), (None, Some(1)));
    }
}
