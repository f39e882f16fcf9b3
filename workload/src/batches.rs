//! Batches of ids: drawn from a power law, or replayed.

use crate::random::{SeededRandom, mix_all};
use crate::{IdShuffle, PowerLaw};

/// Where batches of ids come from. The batch of a number is always the same, so that every contender can be given the same
/// batches and a repetition fresh ones.
#[derive(Clone, Debug)]
pub enum BatchSource {
    /// Ranks drawn from a power law; the ids are a shuffle of the ranks.
    PowerLaw {
        /// Distribution of the ranks.
        law: PowerLaw,
        /// Rank → id.
        shuffle: IdShuffle,
        /// Seed of the draws.
        seed: u64,
    },
    /// A trace, over and over.
    Replay(Vec<i64>),
}

impl BatchSource {
    /// Fills `ids` with batch `number`.
    pub fn fill(&self, number: u64, ids: &mut [i64]) {
        match self {
            Self::PowerLaw { law, shuffle, seed } => {
                let mut random = SeededRandom::new(mix_all([*seed, number]));
                ids.fill_with(|| shuffle.id(law.sample(&mut random)) as i64);
            }
            Self::Replay(trace) => {
                let start = u128::from(number) * ids.len() as u128 % trace.len().max(1) as u128;
                let mut turn = trace.iter().cycle().skip(start as usize);
                ids.fill_with(|| turn.next().copied().unwrap_or(-1));
            }
        }
    }
}

/// How often each id below `rows` comes in `ids`.
pub fn counts(ids: &[i64], rows: usize) -> Vec<u64> {
    let mut counts = vec![0; rows];
    for &id in ids {
        if let Some(count) = usize::try_from(id).ok().and_then(|id| counts.get_mut(id)) {
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_the_same_each_time_and_no_two_are_alike() {
        let batches = |seed| BatchSource::PowerLaw {
            law: PowerLaw::new(1 << 20, 1.05).unwrap(),
            shuffle: IdShuffle::new(1 << 20, 9),
            seed,
        };
        let batch = |seed, number| {
            let mut ids = vec![0; 512];
            batches(seed).fill(number, &mut ids);
            ids
        };
        assert_eq!(batch(1, 5), batch(1, 5));
        assert_ne!(batch(1, 5), batch(1, 6));
        assert_ne!(batch(1, 5), batch(2, 5));
        assert!(batch(1, 5).iter().all(|&id| (0..1 << 20).contains(&id)));
    }

    #[test]
    fn the_hottest_ids_are_the_shuffled_first_ranks() {
        let shuffle = IdShuffle::new(10_000, 3);
        let batches = BatchSource::PowerLaw { law: PowerLaw::new(10_000, 1.05).unwrap(), shuffle, seed: 4 };
        let mut ids = vec![0; 200_000];
        batches.fill(0, &mut ids);
        let counts = counts(&ids, 10_000);
        let hottest = (0..10_000).max_by_key(|&id| counts[id as usize]).unwrap();
        assert_eq!(hottest, shuffle.id(0));
        assert_eq!(counts.iter().sum::<u64>(), 200_000);
    }

    #[test]
    fn a_trace_is_replayed_in_turns() {
        let replay = BatchSource::Replay(vec![1, 2, 3, 4, 5]);
        let mut ids = [0; 3];
        let mut seen = Vec::new();
        for number in [0, 1, 2, u64::MAX] {
            replay.fill(number, &mut ids);
            seen.push(ids);
        }
        assert_eq!(seen[..3], [[1, 2, 3], [4, 5, 1], [2, 3, 4]]);
        // 3 · (2⁶⁴ − 1) = 0 modulo 5.
        assert_eq!(seen[3], [1, 2, 3]);
        BatchSource::Replay(vec![]).fill(1, &mut ids);
        assert_eq!(ids, [-1; 3]);
    }

    #[test]
    fn counts_leave_missing_ids_out() {
        assert_eq!(counts(&[0, 2, 2, -1, 3, i64::MAX], 3), [1, 0, 2]);
    }
}
