//! The sample that a slot's look-ups take of their ids.

use super::counters::{RowCounters, SampledId};

/// Ids that wait for a mailbox that was locked, at most.
const ROOM: usize = 1 << 12;

/// Draws positions of batches at random, one in so many, and keeps their ids until the counters take them.
#[derive(Debug)]
pub(crate) struct Sampler {
    state: u64,
    /// Positions until the next that is drawn.
    gap: u64,
    ids: Vec<SampledId>,
}

impl Sampler {
    /// The sampler of slot number `slot`; `counts`: it will be used.
    pub(crate) fn new(slot: u32, counts: bool) -> Self {
        let state = u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed;
        Self { state, gap: 0, ids: Vec::with_capacity(if counts { ROOM } else { 0 }) }
    }

    /// A gap of 1 to 2 · `every` - 1, `every` on average.
    fn draw(&mut self, every: u32) -> u64 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let span = 2 * u64::from(every.max(1)) - 1;
        1 + ((u128::from(word ^ word >> 31) * u128::from(span)) >> 64) as u64
    }

    /// Draws some of `positions` positions, which have ids of table `table`; `id` gives the id of a position, or `None` where it is
    /// not to be counted.
    pub(crate) fn sample(
        &mut self,
        counters: &RowCounters,
        table: u16,
        positions: usize,
        id: impl Fn(usize) -> Option<u64>,
    ) {
        let mut at = self.gap;
        while at < positions as u64 {
            if let Some(id) = id(at as usize) {
                if self.ids.len() >= ROOM {
                    self.leave(counters);
                }
                match self.ids.len() < ROOM {
                    true => self.ids.push((table, id)),
                    false => counters.lose(1),
                }
            }
            at += self.draw(counters.every());
        }
        self.gap = at - positions as u64;
    }

    /// Gives the counters what was drawn, if they take it now.
    pub(crate) fn leave(&mut self, counters: &RowCounters) {
        if !self.ids.is_empty() && counters.take(&self.ids) {
            self.ids.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::popularity::CounterOptions;

    #[test]
    fn each_position_is_drawn_as_often_as_others() {
        for every in [1, 2, 64] {
            let options = CounterOptions::new(1 << 20).with_every(every).with_halved_after(0);
            let counters = RowCounters::new(options, vec!["t".to_owned()]).unwrap();
            let mut sampler = Sampler::new(3, true);
            let runs = 4000 * u64::from(every) / 10;
            for _ in 0..runs {
                sampler.sample(&counters, 0, 10, |at| (at != 9).then_some(at as u64));
                sampler.leave(&counters);
            }
            while !sampler.ids.is_empty() {
                sampler.leave(&counters);
            }
            let rows = counters.popular("t", 20).unwrap();
            assert_eq!((rows.len(), counters.lost()), (9, 0), "one in {every}");
            let expected = runs / u64::from(every);
            assert!(
                rows.iter().all(|row| row.count.abs_diff(expected) <= expected / 4),
                "{every}: {expected}, {rows:?}"
            );
        }
    }
}
