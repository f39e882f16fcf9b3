//! How often keys were seen lately, roughly and in little memory.

use crate::random::mix;

/// Rows of counters, each with a hash of its own.
const ROWS: usize = 4;
/// Counters stop here.
const MOST: u8 = 15;

/// A count-min sketch: the count of a key is the lowest of four counters, so it is never too low until counts are
/// halved. Only the lowest of a key's counters grow. All are halved when as many keys were counted as the sketch was
/// made for.
#[derive(Debug, Clone)]
pub struct Sketch {
    counters: Box<[u8]>,
    mask: u64,
    seen: u64,
    period: u64,
}

impl Sketch {
    /// A sketch for a cache of `lines` lines, with `per_line` bytes a line (at least 1), whose counts are halved when
    /// ten times as many keys as lines were counted.
    pub fn new(lines: usize, per_line: usize) -> Self {
        let row = lines.max(16).saturating_mul(per_line.max(1)).div_ceil(ROWS).next_power_of_two();
        Self {
            counters: vec![0; row * ROWS].into(),
            mask: row as u64 - 1,
            seen: 0,
            period: (lines.max(16) as u64).saturating_mul(10),
        }
    }

    fn places(&self, key: u64) -> [usize; ROWS] {
        let (hash, mask) = (mix(key), self.mask);
        std::array::from_fn(|row| {
            let place = mix(hash.wrapping_add((row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))) & mask;
            row * (mask as usize + 1) + place as usize
        })
    }

    /// How often `key` was counted, roughly.
    pub fn count(&self, key: u64) -> u8 {
        self.places(key).into_iter().map(|place| self.counters[place]).min().unwrap_or(0)
    }

    /// Counts `key` once.
    pub fn add(&mut self, key: u64) {
        let places = self.places(key);
        let least = places.into_iter().map(|place| self.counters[place]).min().unwrap_or(0);
        if least < MOST {
            places.into_iter().for_each(|place| {
                if self.counters[place] == least {
                    self.counters[place] += 1;
                }
            });
        }
        self.seen += 1;
        if self.seen >= self.period {
            self.seen /= 2;
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_never_too_low_and_mostly_right() {
        let seed = 7;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut sketch = Sketch::new(1000, 8);
        let mut counts = vec![0u8; 1000];
        for _ in 0..4000 {
            let key = random.usize(..1000);
            sketch.add(key as u64);
            counts[key] += 1;
        }
        let wrong = (0..1000).filter(|&key| sketch.count(key as u64) != counts[key].min(MOST)).count();
        assert!((0..1000).all(|key| sketch.count(key as u64) >= counts[key].min(MOST)), "seed {seed}");
        assert!(wrong < 20, "seed {seed}: {wrong} of 1,000 counts are wrong");
    }

    #[test]
    fn counts_halve() {
        let mut sketch = Sketch::new(16, 8);
        for _ in 0..12 {
            sketch.add(1);
        }
        assert_eq!(sketch.count(1), 12);
        // The period is 160.
        (1000..1148).for_each(|key| sketch.add(key));
        assert_eq!(sketch.count(1), 6);
        (0..100).for_each(|_| sketch.add(2));
        assert_eq!(sketch.count(2), MOST);
    }
}
