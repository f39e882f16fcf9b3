//! Ids whose popularity changes.

use crate::random::{SeededRandom, mix_all};
use crate::{IdShuffle, PowerLaw};

/// A generator of drift: ranks are drawn from a power law, and ids are a shuffle of the ranks. But each time `period`
/// ids were drawn, a share of the hottest ranks, drawn at random, get other ids, which were not among the hottest.
/// The ids that they had are not drawn any more unless they come back by the same chance. It is no recorded trace: real
/// popularity fades and grows.
#[derive(Clone, Debug)]
pub struct DriftingLaw {
    law: PowerLaw,
    shuffle: IdShuffle,
    random: SeededRandom,
    seed: u64,
    period: u64,
    share: f64,
    /// The places in the shuffle of the hottest ranks.
    hottest: Vec<u64>,
    drawn: u64,
}

impl DriftingLaw {
    /// Of the `hottest` ranks of `law`, `share` get other ids after each `period` ids. There must be more rows than
    /// hottest ranks.
    pub fn new(law: PowerLaw, hottest: u64, share: f64, period: u64, seed: u64) -> Self {
        let hottest = hottest.min(law.rows().saturating_sub(1));
        Self {
            law,
            shuffle: IdShuffle::new(law.rows(), seed),
            random: SeededRandom::new(mix_all([seed, 1])),
            seed,
            period: period.max(1),
            share,
            hottest: (0..hottest).collect(),
            drawn: 0,
        }
    }

    /// Draws an id.
    pub fn id(&mut self) -> u64 {
        if self.drawn != 0 && self.drawn.is_multiple_of(self.period) {
            self.turn();
        }
        self.drawn += 1;
        let rank = self.law.sample(&mut self.random);
        self.shuffle.id(self.hottest.get(rank as usize).copied().unwrap_or(rank))
    }

    fn turn(&mut self) {
        let (first, colder) = (self.hottest.len() as u64, self.law.rows() - self.hottest.len() as u64);
        let mut random = SeededRandom::new(mix_all([self.seed, 2, self.drawn]));
        for place in &mut self.hottest {
            if random.unit() < self.share {
                *place = first + random.below(colder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_share_of_the_hottest_changes_with_each_period() {
        let seed = 3;
        let law = PowerLaw::new(100_000, 0.0).unwrap();
        let mut drift = DriftingLaw::new(law, 1000, 0.1, 500, seed);
        let before = drift.hottest.clone();
        for _ in 0..500 {
            drift.id();
        }
        assert_eq!(drift.hottest, before, "the period is not over");
        drift.id();
        let changed = drift.hottest.iter().zip(&before).filter(|(now, before)| now != before).count();
        // Four standard deviations of a binomial law are 38.
        assert!((62..138).contains(&changed), "seed {seed}: {changed} of 1,000");
        let others = drift.hottest.iter().zip(&before).filter(|(now, before)| now != before);
        assert!(others.into_iter().all(|(&now, _)| (1000..100_000).contains(&now)));
    }

    #[test]
    fn counts_follow_the_law_while_nothing_changes() {
        let law = PowerLaw::new(1000, 1.05).unwrap();
        let mut drift = DriftingLaw::new(law, 100, 0.5, 1_000_000, 4);
        let mut counts: HashMap<u64, u32> = HashMap::new();
        (0..100_000).for_each(|_| *counts.entry(drift.id()).or_default() += 1);
        let first: u32 = (0..10).map(|rank| counts[&IdShuffle::new(1000, 4).id(rank)]).sum();
        let want = law.share_of_first(10);
        assert!((f64::from(first) / 1e5 - want).abs() < 0.01, "{first} of 100,000, not {want}");
        let again: Vec<u64> = (0..10).map(|_| DriftingLaw::new(law, 100, 0.5, 10, 4).id()).collect();
        assert!(again.iter().all(|id| *id == again[0]), "a seed names one sequence");
    }
}
