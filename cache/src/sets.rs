//! A cache as a GPU has it: a key may lie in the lines of one set.

use crate::cache::{Admission, Gate};
use crate::hit_rate::Policy;
use crate::random::{Draws, mix};
use crate::set_sketch::SetSketch;

/// Which line of a set is given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SetEviction {
    /// The one with the oldest stamp.
    #[default]
    Lru,
    /// The one with the lowest counter, of those the one with the oldest stamp. Counters stop at 15, and are halved
    /// when stamps were renewed eight times as often as there are lines.
    Lfu,
    /// The one whose key was looked for least lately, by 64 B of counters of the set, of those the one with the oldest
    /// stamp. A key that was not looked for oftener than that of the line that it would take is refused. Hits count
    /// when stamps are renewed, and misses once in `hold` times.
    Sketch,
    /// As [`Eviction::S3Fifo`](crate::Eviction::S3Fifo), with two queues and remembered keys in each set.
    S3Fifo,
}

/// Counters of a newcomer, and of [`SetEviction::S3Fifo`], stop here.
const S3_MOST: u8 = 3;

#[derive(Debug, Clone, Copy, Default)]
struct Line {
    key: u64,
    /// The number of a batch that used it lately, from 1; 0: it is empty.
    stamp: u64,
    /// The number of the admission, or of the move to the main queue.
    order: u64,
    count: u8,
    in_main: bool,
}

/// A cache of sets of lines. A batch's keys are all looked for before those that were missing are admitted. The stamp of
/// a line is renewed when it is more than `hold` batches old, and counters count that; a line whose stamp is not older
/// is not given away, because a launch that reads it may still run. Where a set has no other line, a key is not
/// admitted.
#[derive(Debug, Clone)]
pub struct SetCache {
    lines: Box<[Line]>,
    /// Keys that left the small queue of a set, as many as the set has lines; 0: none.
    ghosts: Box<[u64]>,
    ghost_next: Box<[u32]>,
    /// Of [`SetEviction::Sketch`], one a set.
    sketches: Box<[SetSketch]>,
    draws: Draws,
    sets: usize,
    ways: usize,
    eviction: SetEviction,
    gate: Gate,
    hold: u64,
    batch: u64,
    orders: u64,
    renewals: usize,
    /// How many keys found no line of their set that could be given away.
    refused: u64,
}

impl SetCache {
    /// A cache of at most `lines` lines, in sets of `ways`.
    pub fn new(lines: usize, ways: usize, eviction: SetEviction, admission: Admission, hold: u64) -> Self {
        let (ways, sets) = (ways.max(1), (lines / ways.max(1)).max(1));
        let ghosts = if eviction == SetEviction::S3Fifo { sets * ways } else { 0 };
        Self {
            lines: vec![Line::default(); sets * ways].into(),
            ghosts: vec![0; ghosts].into(),
            ghost_next: vec![0; if ghosts == 0 { 0 } else { sets }].into(),
            sketches: vec![SetSketch::default(); if eviction == SetEviction::Sketch { sets } else { 0 }].into(),
            draws: Draws::default(),
            sets,
            ways,
            eviction,
            gate: Gate::new(admission, sets * ways),
            hold,
            batch: 0,
            orders: 0,
            renewals: 0,
            refused: 0,
        }
    }

    /// How many keys found no line that could be given away.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn set_of(&self, key: u64) -> usize {
        ((u128::from(mix(key)) * self.sets as u128) >> 64) as usize
    }

    fn find(&mut self, key: u64) -> bool {
        self.gate.looked_for(key);
        let number = self.set_of(key);
        let first = number * self.ways;
        let set = &mut self.lines[first..first + self.ways];
        let Some(line) = set.iter_mut().find(|line| line.stamp != 0 && line.key == key) else { return false };
        if line.stamp + self.hold < self.batch {
            line.stamp = self.batch;
            let most = if self.eviction == SetEviction::S3Fifo { S3_MOST } else { 15 };
            line.count = (line.count + 1).min(most);
            self.renewals += 1;
            if let Some(sketch) = self.sketches.get_mut(number) {
                sketch.add(key);
            }
            if self.eviction == SetEviction::Lfu && self.renewals >= self.lines.len().saturating_mul(8) {
                self.renewals = 0;
                self.lines.iter_mut().for_each(|line| line.count /= 2);
            }
        }
        true
    }

    fn admit(&mut self, key: u64) {
        let set = self.set_of(key);
        let first = set * self.ways;
        if let Some(sketch) = self.sketches.get_mut(set)
            && (self.hold <= 1 || self.draws.unit() * (self.hold as f64) < 1.0)
        {
            sketch.add(key);
        }
        let sketch = self.sketches.get(set);
        let count = |key: u64| sketch.map_or(0, |sketch| sketch.count(key));
        let lines = &mut self.lines[first..first + self.ways];
        if lines.iter().any(|line| line.stamp != 0 && line.key == key) {
            return;
        }
        self.orders += 1;
        let (hold, batch) = (self.hold, self.batch);
        let is_free = |line: &Line| line.stamp == 0 || line.stamp + hold < batch;
        let victim = match lines.iter().position(|line| line.stamp == 0) {
            Some(empty) => Some(empty),
            None => match self.eviction {
                SetEviction::Lru => oldest(lines, is_free, |line| line.stamp),
                SetEviction::Lfu => oldest(lines, is_free, |line| u64::from(line.count) << 48 | line.stamp),
                SetEviction::Sketch => oldest(lines, is_free, |line| u64::from(count(line.key)) << 48 | line.stamp),
                SetEviction::S3Fifo => s3_victim(lines, is_free, &mut self.orders),
            },
        };
        let Some(victim) = victim else {
            self.refused += 1;
            return;
        };
        let line = &mut lines[victim];
        if sketch.is_some() && line.stamp != 0 && count(key) <= count(line.key) {
            return;
        }
        if !self.gate.admits(key, (line.stamp != 0).then_some(line.key)) {
            return;
        }
        let mut in_main = false;
        if self.eviction == SetEviction::S3Fifo {
            let ghosts = &mut self.ghosts[first..first + self.ways];
            if let Some(known) = ghosts.iter_mut().find(|ghost| **ghost == key.wrapping_add(1)) {
                (*known, in_main) = (0, true);
            }
            if line.stamp != 0 && !line.in_main {
                let next = &mut self.ghost_next[set];
                ghosts[*next as usize] = line.key.wrapping_add(1);
                *next = (*next + 1) % self.ways as u32;
            }
        }
        *line = Line { key, stamp: batch, order: self.orders, count: 0, in_main };
    }
}

fn oldest(lines: &[Line], is_free: impl Fn(&Line) -> bool, by: impl Fn(&Line) -> u64) -> Option<usize> {
    lines.iter().enumerate().filter(|(_, line)| is_free(line)).min_by_key(|(_, line)| by(line)).map(|(at, _)| at)
}

fn s3_victim(lines: &mut [Line], is_free: impl Fn(&Line) -> bool, orders: &mut u64) -> Option<usize> {
    let small = (lines.len() / 10).max(1);
    // A line moves or counts down at each turn, so the turns end.
    for _ in 0..lines.len() * (usize::from(S3_MOST) + 2) {
        let newcomers = lines.iter().filter(|line| !line.in_main).count();
        let from_small = newcomers > small || newcomers == lines.len();
        let first =
            |from_small: bool| oldest(lines, |line| line.in_main != from_small && is_free(line), |line| line.order);
        let at = first(from_small).or_else(|| first(!from_small))?;
        let line = &mut lines[at];
        match (line.in_main, line.count) {
            (_, 0) => return Some(at),
            (true, _) => line.count -= 1,
            (false, _) => (line.in_main, line.count) = (true, 0),
        }
        *orders += 1;
        line.order = *orders;
    }
    None
}

impl Policy for SetCache {
    fn serve(&mut self, keys: &[u64], hit: &mut dyn FnMut(usize)) {
        self.batch += 1;
        let mut missed = Vec::new();
        for (at, &key) in keys.iter().enumerate() {
            match self.find(key) {
                true => hit(at),
                false => missed.push(key),
            }
        }
        missed.into_iter().for_each(|key| self.admit(key));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;
    use crate::hit_rate::{Batch, HitRate};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        /// A set that evicts by stamp is a short list, the least recently used first; what `hold` batches used stays.
        #[test]
        fn sets_are_lists(
            batches in proptest::collection::vec(proptest::collection::vec(0u64..40, 1..6), 1..60),
            hold in 0u64..4,
        ) {
            let mut cache = SetCache::new(12, 4, SetEviction::Lru, Admission::Always, hold);
            let mut naive: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
            for (number, batch) in (1u64..).zip(&batches) {
                let batch = Batch::new(batch);
                let mut hits = Vec::new();
                cache.serve(&batch.keys, &mut |at| hits.push(batch.keys[at]));
                let mut want = Vec::new();
                for &key in &batch.keys {
                    let set = naive.entry(cache.set_of(key)).or_default();
                    if let Some((_, stamp)) = set.iter_mut().find(|(it, _)| *it == key) {
                        if *stamp + hold < number {
                            *stamp = number;
                        }
                        want.push(key);
                    }
                }
                for &key in batch.keys.iter().filter(|key| !want.contains(key)) {
                    let set = naive.entry(cache.set_of(key)).or_default();
                    if set.len() == 4 {
                        let oldest = set.iter().map(|&(_, stamp)| stamp).min().unwrap();
                        if oldest + hold >= number {
                            continue;
                        }
                        let at = set.iter().position(|&(_, stamp)| stamp == oldest).unwrap();
                        // Among equal stamps the cache takes the first line; so the list keeps lines in their places.
                        set[at] = (key, number);
                        continue;
                    }
                    set.push((key, number));
                }
                prop_assert_eq!(hits, want);
            }
        }

        #[test]
        fn what_was_used_lately_stays(
            batches in proptest::collection::vec(proptest::collection::vec(0u64..200, 1..20), 1..60),
            hold in 0u64..4,
            eviction in prop_oneof![Just(SetEviction::Lru), Just(SetEviction::Lfu), Just(SetEviction::Sketch), Just(SetEviction::S3Fifo)],
        ) {
            let mut cache = SetCache::new(32, 8, eviction, Admission::Always, hold);
            // A key that was a hit is a hit in each of the next batches up to `hold`, whatever else they bring.
            let mut held: HashMap<u64, u64> = HashMap::new();
            for (number, batch) in (1u64..).zip(&batches) {
                let mut batch = batch.clone();
                batch.extend(held.iter().filter(|&(_, &until)| until >= number).map(|(&key, _)| key));
                let batch = Batch::new(&batch);
                let mut hits = Vec::new();
                cache.serve(&batch.keys, &mut |at| hits.push(batch.keys[at]));
                for (key, until) in &held {
                    prop_assert!(*until < number || hits.contains(key), "{} in batch {}", key, number);
                }
                // A key may live for `hold` batches from its stamp, which may be `hold` batches old already.
                for key in hits {
                    held.entry(key).or_insert(number);
                }
            }
        }
    }

    #[test]
    fn counters_keep_what_is_used_often() {
        let mut cache = SetCache::new(8, 8, SetEviction::Lfu, Admission::Always, 0);
        let often = Batch::new(&[1, 2, 3, 4]);
        HitRate::of(&mut cache, [&often, &often, &often]);
        for scan in 0..50u64 {
            HitRate::of(&mut cache, &[Batch::new(&[100 + 2 * scan, 101 + 2 * scan])]);
        }
        let rate = HitRate::of(&mut cache, [&often]);
        assert_eq!(rate.row_hits, 4, "a scan evicted them");
    }

    #[test]
    fn counters_of_a_set_refuse_what_comes_once() {
        let mut cache = SetCache::new(8, 8, SetEviction::Sketch, Admission::Always, 0);
        let often = Batch::new(&[1, 2, 3, 4, 5, 6, 7, 8]);
        HitRate::of(&mut cache, [&often, &often, &often]);
        for scan in 0..10u64 {
            HitRate::of(&mut cache, &[Batch::new(&[100 + 2 * scan, 101 + 2 * scan])]);
            HitRate::of(&mut cache, [&often]);
        }
        assert_eq!(HitRate::of(&mut cache, [&often]).row_hits, 8, "a scan evicted them");
        // What comes often from then on replaces them.
        let others = Batch::new(&[21, 22, 23, 24]);
        for _ in 0..40 {
            HitRate::of(&mut cache, [&others]);
        }
        assert_eq!(HitRate::of(&mut cache, [&others]).row_hits, 4, "nothing new is taken in");
    }

    #[test]
    fn queues_keep_what_is_used_often() {
        let mut cache = SetCache::new(8, 8, SetEviction::S3Fifo, Admission::Always, 0);
        let often = Batch::new(&[1, 2, 3, 4]);
        HitRate::of(&mut cache, [&often, &often, &often]);
        for scan in 0..50u64 {
            HitRate::of(&mut cache, &[Batch::new(&[100 + scan])]);
            HitRate::of(&mut cache, [&often]);
        }
        let rate = HitRate::of(&mut cache, [&often]);
        assert_eq!(rate.row_hits, 4, "a scan evicted them");
    }

    #[test]
    fn a_sketch_refuses_what_comes_once() {
        let mut cache = SetCache::new(64, 8, SetEviction::Lru, Admission::Sketch, 0);
        let often = Batch::new(&(0..48).collect::<Vec<_>>());
        for _ in 0..4 {
            HitRate::of(&mut cache, [&often]);
        }
        let had = HitRate::of(&mut cache, [&often]).row_hits;
        HitRate::of(&mut cache, &[Batch::new(&(1000..1100).collect::<Vec<_>>())]);
        // Few of a hundred keys are taken for others that came often.
        let has = HitRate::of(&mut cache, [&often]).row_hits;
        assert!(had > 40 && has + 3 >= had, "{has} of {had} keys are left");
    }
}
