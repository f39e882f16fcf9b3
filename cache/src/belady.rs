//! The bound that no policy can beat.

use std::collections::{BTreeSet, HashMap};

use crate::hit_rate::{Batch, HitRate};

/// The share of rows that a cache of `lines` lines has if it knows what comes: after each batch it keeps those of its
/// keys and of the batch's whose next use comes first (Belady's rule, with the right to admit nothing). No cache that
/// admits keys after their batch has more hits among rows. Among ids, where keys of a batch have different counts, a
/// cache can have slightly more: the rule counts a key once a batch.
///
/// `counted`: the batches from this one on count.
pub fn hit_rate(batches: &[Batch], lines: usize, counted: usize) -> HitRate {
    // The batch of the next use of each key of each batch; keys that do not come back have none.
    let mut next: Vec<Vec<usize>> = batches.iter().map(|batch| vec![usize::MAX; batch.keys.len()]).collect();
    let mut latest = HashMap::new();
    for (number, batch) in batches.iter().enumerate().rev() {
        for (next, &key) in next[number].iter_mut().zip(&batch.keys) {
            *next = latest.insert(key, number).unwrap_or(usize::MAX);
        }
    }
    let mut rate = HitRate::default();
    let mut kept: BTreeSet<(usize, u64)> = BTreeSet::new();
    for (number, (batch, next)) in batches.iter().zip(&next).enumerate() {
        for ((&key, &count), &next) in batch.keys.iter().zip(&batch.counts).zip(next) {
            let had = kept.remove(&(number, key));
            if number >= counted {
                rate.rows += 1;
                rate.ids += u64::from(count);
                rate.row_hits += u64::from(had);
                rate.id_hits += if had { u64::from(count) } else { 0 };
            }
            if next != usize::MAX {
                kept.insert((next, key));
            }
        }
        while kept.len() > lines {
            kept.pop_last();
        }
    }
    rate
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    /// The most row hits by any choice of what is kept.
    fn best(batches: &[Batch], lines: usize) -> u64 {
        let mut states: BTreeMap<Vec<u64>, u64> = BTreeMap::from([(Vec::new(), 0)]);
        for batch in batches {
            let mut after: BTreeMap<Vec<u64>, u64> = BTreeMap::new();
            for (had, hits) in states {
                let hits = hits + batch.keys.iter().filter(|key| had.contains(key)).count() as u64;
                let mut all = had.clone();
                all.extend(batch.keys.iter().filter(|key| !had.contains(key)));
                for choice in 0u32..1 << all.len() {
                    if choice.count_ones() as usize > lines {
                        continue;
                    }
                    let mut kept: Vec<u64> =
                        all.iter().enumerate().filter(|(at, _)| choice >> at & 1 == 1).map(|(_, &key)| key).collect();
                    kept.sort_unstable();
                    let entry = after.entry(kept).or_insert(0);
                    *entry = hits.max(*entry);
                }
            }
            states = after;
        }
        states.into_values().max().unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn no_choice_has_more_hits(
            ids in proptest::collection::vec(proptest::collection::vec(0u64..7, 1..4), 1..8),
            lines in 0usize..4,
        ) {
            let batches: Vec<_> = ids.iter().map(|ids| Batch::new(ids)).collect();
            prop_assert_eq!(hit_rate(&batches, lines, 0).row_hits, best(&batches, lines));
        }
    }
}
