//! The most frequent of very many numbers, in bounded memory.

use crate::random::mix;

/// Share of the places that may be taken: 7 of 8 make long searches, so 3 of 4.
const FULL: (usize, usize) = (3, 4);
/// Counts that the median is estimated from.
const SAMPLE: usize = 1 << 10;

/// Counts of the most frequent keys of a stream (Misra and Gries 1982, with the median taken off when there is no room
/// left, as Anderson et al. 2017 do).
///
/// A count that is kept is too low by at most [`error`](Self::error), and every key that came more often than that is kept.
/// While the error is 0, all keys are kept and all counts are exact.
#[derive(Debug, Clone)]
pub struct FrequentKeys {
    keys: Vec<u64>,
    /// 0: the place is empty.
    counts: Vec<u32>,
    len: usize,
    error: u64,
    total: u64,
}

/// Bytes of a place: a key and its count.
const PLACE: u64 = 12;

impl FrequentKeys {
    /// The least memory that counts are kept in.
    pub const LEAST_BYTES: u64 = PLACE << 10;

    /// Takes at most `bytes` bytes, but [`LEAST_BYTES`](Self::LEAST_BYTES) at least; twice that for a moment when the table is
    /// renewed.
    pub fn new(bytes: u64) -> Self {
        let places = usize::try_from(bytes / PLACE).unwrap_or(usize::MAX >> 8).max(1 << 10);
        // The largest power of two that fits.
        let places = 1usize << (usize::BITS - 1 - places.leading_zeros());
        Self { keys: vec![0; places], counts: vec![0; places], len: 0, error: 0, total: 0 }
    }

    /// Keys kept.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// By how much a count may be too low.
    pub fn error(&self) -> u64 {
        self.error
    }

    /// Everything that was counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Counts `key` once.
    #[inline]
    pub fn add(&mut self, key: u64) {
        self.total += 1;
        let place = self.place(key);
        if let (Some(slot), Some(count)) = (self.keys.get_mut(place), self.counts.get_mut(place)) {
            if *count == 0 {
                *slot = key;
                self.len += 1;
            }
            *count = count.saturating_add(1);
        }
        if self.len * FULL.1 > self.keys.len() * FULL.0 {
            self.shrink();
        }
    }

    /// The count of `key`; 0 if it is not kept.
    pub fn count(&self, key: u64) -> u32 {
        self.counts.get(self.place(key)).copied().unwrap_or(0)
    }

    /// The keys kept, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.keys.iter().zip(&self.counts).filter(|&(_, &count)| count != 0).map(|(&key, &count)| (key, count))
    }

    /// Where `key` is, or would be.
    #[inline]
    fn place(&self, key: u64) -> usize {
        let mask = self.keys.len() - 1;
        let mut place = mix(key) as usize & mask;
        // There always is an empty place.
        while self.counts[place] != 0 && self.keys[place] != key {
            place = (place + 1) & mask;
        }
        place
    }

    /// Keys that fit, about: so many are kept between two renewals of the table.
    pub fn room(&self) -> usize {
        self.keys.len() / FULL.1 * FULL.0
    }

    /// Halves all counts, so that what came lately counts for more; keys that came once are kept no more.
    pub fn halve(&mut self) {
        (self.error, self.total) = (self.error.div_ceil(2), self.total / 2);
        self.renew(|count| count / 2);
    }

    /// Takes the median count from all, which at least half of them do not survive.
    fn shrink(&mut self) {
        let mut sample: Vec<u32> = self.iter().map(|(_, count)| count).take(SAMPLE).collect();
        let middle = sample.len() / 2;
        let (_, &mut median, _) = sample.select_nth_unstable(middle);
        self.error += u64::from(median);
        self.renew(|count| count.saturating_sub(median));
    }

    /// Gives each key the count that `count` makes of its own; one of which that is 0 is kept no more.
    fn renew(&mut self, count: impl Fn(u32) -> u32) {
        let keys = std::mem::take(&mut self.keys);
        let counts = std::mem::take(&mut self.counts);
        (self.keys, self.counts, self.len) = (vec![0; keys.len()], vec![0; counts.len()], 0);
        for (key, count) in keys.into_iter().zip(counts.into_iter().map(count)).filter(|&(_, count)| count != 0) {
            let place = self.place(key);
            (self.keys[place], self.counts[place]) = (key, count);
            self.len += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn counts_are_within_the_error_and_nothing_frequent_is_lost() {
        // Powers of a uniform number: the higher, the more often small keys come.
        for (power, seed) in [(1, 1), (3, 2), (9, 3)] {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut frequent, mut truth) = (FrequentKeys::new(48 << 10), HashMap::<u64, u64>::new());
            for _ in 0..300_000 {
                let key = mix((random.f64().powi(power) * f64::from(1 << 20)) as u64);
                frequent.add(key);
                *truth.entry(key).or_default() += 1;
            }
            let kept: HashMap<u64, u32> = frequent.iter().collect();
            assert_eq!(kept.len(), frequent.len());
            assert!(frequent.error() > 0, "power {power}, seed {seed}: there was room for all");
            for (&key, &count) in &truth {
                let got = kept.get(&key).map_or(0, |&count| u64::from(count));
                assert!(
                    got <= count && count <= got + frequent.error(),
                    "power {power}, seed {seed}: {got} of {count}, with an error of {}",
                    frequent.error()
                );
            }
            assert!(kept.keys().all(|key| truth.contains_key(key)));
            // Each time it is taken from half of the places at least.
            assert!(frequent.error() <= 2 * 300_000 / (3 << 10) * 2, "{}", frequent.error());
        }
    }

    #[test]
    fn what_fits_is_exact() {
        let mut frequent = FrequentKeys::new(1 << 20);
        (0..60_000u64).for_each(|i| frequent.add(i % 20_000));
        assert_eq!((frequent.error(), frequent.len(), frequent.total()), (0, 20_000, 60_000));
        assert!(frequent.iter().all(|(key, count)| key < 20_000 && count == 3));
        assert_eq!((frequent.count(7), frequent.count(20_000)), (3, 0));
    }

    #[test]
    fn halved_counts_let_newcomers_by() {
        let mut frequent = FrequentKeys::new(FrequentKeys::LEAST_BYTES);
        (0..100).for_each(|_| frequent.add(1));
        frequent.add(2);
        frequent.halve();
        assert_eq!((frequent.count(1), frequent.count(2), frequent.len(), frequent.total()), (50, 0, 1, 50));
        (0..40).for_each(|_| frequent.add(3));
        frequent.halve();
        (0..40).for_each(|_| frequent.add(3));
        assert!(frequent.count(3) > frequent.count(1), "{frequent:?}");
        assert!(frequent.room() >= 512 && frequent.room() < 1024);
    }
}
