//! How often the keys of one set were seen lately, in 64 bytes.

use crate::random::mix;

const BYTES: usize = 64;
/// The last byte counts additions.
const COUNTERS: u64 = BYTES as u64 - 1;
/// Counters of a key.
const HASHES: usize = 4;
/// Counters stop here.
const MOST: u8 = 60;
/// Additions after which all counters are halved: 20 for each of eight lines.
const PERIOD: u8 = 160;

/// A count-min sketch of a set of lines, as a GPU has it beside the set's words (`kernels/cuda/cache.cuh`): the count of a key is the
/// lowest of four counters, and only the lowest grow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetSketch {
    bytes: [u8; BYTES],
}

impl Default for SetSketch {
    fn default() -> Self {
        Self { bytes: [0; BYTES] }
    }
}

impl SetSketch {
    fn places(key: u64) -> [usize; HASHES] {
        let hash = mix(mix(key));
        std::array::from_fn(|row| ((hash >> (40 + 6 * row)) % COUNTERS) as usize)
    }

    /// How often `key` was counted, roughly.
    pub(crate) fn count(&self, key: u64) -> u8 {
        Self::places(key).into_iter().filter_map(|place| self.bytes.get(place)).copied().min().unwrap_or(0)
    }

    /// Counts `key` once.
    pub(crate) fn add(&mut self, key: u64) {
        let least = self.count(key);
        if least < MOST {
            for place in Self::places(key) {
                if let Some(counter) = self.bytes.get_mut(place).filter(|counter| **counter == least) {
                    *counter += 1;
                }
            }
        }
        if let Some(seen) = self.bytes.last_mut() {
            *seen += 1;
            if *seen >= PERIOD {
                self.bytes.iter_mut().for_each(|counter| *counter /= 2);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_never_too_low_stop_and_halve() {
        let mut sketch = SetSketch::default();
        for key in 0..20 {
            (0..=key % 5).for_each(|_| sketch.add(key));
        }
        assert!((0..20).all(|key| u64::from(sketch.count(key)) > key % 5), "{sketch:?}");
        assert!((0..20).map(|key| u64::from(sketch.count(key))).sum::<u64>() < 120, "{sketch:?}");
        let mut sketch = SetSketch::default();
        (0..u64::from(PERIOD) - 1).for_each(|_| sketch.add(7));
        assert_eq!(sketch.count(7), MOST);
        sketch.add(7);
        assert_eq!((sketch.count(7), sketch.bytes.last()), (MOST / 2, Some(&(PERIOD / 2))));
    }
}
