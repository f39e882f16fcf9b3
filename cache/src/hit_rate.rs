//! Hit rates of policies, by batches as look-ups have them.

use std::collections::{HashMap, HashSet};

use crate::cache::Cache;

/// The different keys of a batch, with how many ids stand for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Different keys, in the order in which they first appear.
    pub keys: Vec<u64>,
    /// Ids of each of them.
    pub counts: Vec<u32>,
}

impl Batch {
    /// The batch of these ids.
    pub fn new(ids: &[u64]) -> Self {
        let mut batch = Self::default();
        let mut index = HashMap::with_capacity(ids.len());
        for &id in ids {
            let at = *index.entry(id).or_insert(batch.keys.len());
            match batch.counts.get_mut(at) {
                Some(count) => *count += 1,
                None => {
                    batch.keys.push(id);
                    batch.counts.push(1);
                }
            }
        }
        batch
    }
}

/// What answers batches.
pub trait Policy {
    /// Looks for the different keys of a batch, then admits those that it lacks. Calls `hit` with the position of each
    /// key that it had before the batch.
    fn serve(&mut self, keys: &[u64], hit: &mut dyn FnMut(usize));
}

impl Policy for Cache {
    fn serve(&mut self, keys: &[u64], hit: &mut dyn FnMut(usize)) {
        let mut missed = Vec::new();
        for (at, &key) in keys.iter().enumerate() {
            match self.find(key) {
                Some(_) => hit(at),
                None => missed.push(key),
            }
        }
        for key in missed {
            self.admit(key);
        }
    }
}

/// A tier of keys that were chosen beforehand.
#[derive(Debug, Clone, Default)]
pub struct StaticTier(HashSet<u64>);

impl StaticTier {
    /// The `lines` keys with the most ids in `past`; of those with equal counts, the one that came first.
    pub fn counted<'a>(past: impl IntoIterator<Item = &'a Batch>, lines: usize) -> Self {
        let mut counts: HashMap<u64, (u64, usize)> = HashMap::new();
        for batch in past {
            for (&key, &count) in batch.keys.iter().zip(&batch.counts) {
                let order = counts.len();
                counts.entry(key).or_insert((0, order)).0 += u64::from(count);
            }
        }
        let mut keys: Vec<_> = counts.into_iter().collect();
        keys.sort_unstable_by_key(|&(_, (count, order))| (std::cmp::Reverse(count), order));
        Self(keys.into_iter().take(lines).map(|(key, _)| key).collect())
    }
}

impl Policy for StaticTier {
    fn serve(&mut self, keys: &[u64], hit: &mut dyn FnMut(usize)) {
        keys.iter().enumerate().filter(|(_, key)| self.0.contains(key)).for_each(|(at, _)| hit(at));
    }
}

/// How many ids, and how many different rows of batches, were there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HitRate {
    /// Ids looked up.
    pub ids: u64,
    /// Ids whose row was there.
    pub id_hits: u64,
    /// Different rows, each once a batch.
    pub rows: u64,
    /// Different rows that were there.
    pub row_hits: u64,
}

impl HitRate {
    /// Serves `batches`, and counts.
    pub fn of<'a>(policy: &mut dyn Policy, batches: impl IntoIterator<Item = &'a Batch>) -> Self {
        let mut rate = Self::default();
        batches.into_iter().for_each(|batch| rate.add(policy, batch));
        rate
    }

    /// Serves one batch more.
    pub fn add(&mut self, policy: &mut dyn Policy, batch: &Batch) {
        self.rows += batch.keys.len() as u64;
        self.ids += batch.counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        policy.serve(&batch.keys, &mut |at| {
            self.row_hits += 1;
            self.id_hits += u64::from(batch.counts[at]);
        });
    }

    /// The share of ids whose row was there, from 0 to 1.
    pub fn of_ids(&self) -> f64 {
        self.id_hits as f64 / (self.ids as f64).max(1.0)
    }

    /// The share of different rows that were there, from 0 to 1.
    pub fn of_rows(&self) -> f64 {
        self.row_hits as f64 / (self.rows as f64).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_deduplicated() {
        let batch = Batch::new(&[7, 3, 7, 7, 3, 9]);
        assert_eq!((batch.keys, batch.counts), (vec![7, 3, 9], vec![3, 2, 1]));
    }

    #[test]
    fn a_static_tier_has_the_most_frequent() {
        let past = [Batch::new(&[1, 1, 2]), Batch::new(&[3, 3, 2, 4])];
        let mut tier = StaticTier::counted(&past, 3);
        let rate = HitRate::of(&mut tier, &[Batch::new(&[1, 2, 3, 4, 4])]);
        assert_eq!(rate, HitRate { ids: 5, id_hits: 3, rows: 4, row_hits: 3 });
    }

    #[test]
    fn a_key_is_a_hit_from_the_next_batch_on() {
        let mut cache = Cache::new(4, Default::default(), Default::default());
        let batches = [Batch::new(&[1, 1, 2]), Batch::new(&[1, 1, 1])];
        let rate = HitRate::of(&mut cache, &batches);
        assert_eq!(rate, HitRate { ids: 6, id_hits: 3, rows: 3, row_hits: 1 });
        assert_eq!((rate.of_ids(), rate.of_rows()), (0.5, 1.0 / 3.0));
    }
}
