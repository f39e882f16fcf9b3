//! Which ranks of a table lose their rows, and which ranks the others had before.

/// Ranks whose keys were removed, ascending.
#[derive(Debug, Default)]
pub(super) struct RemovedRanks(Vec<u64>);

impl RemovedRanks {
    pub(super) fn new(mut ranks: Vec<u64>) -> Self {
        ranks.sort_unstable();
        ranks.dedup();
        Self(ranks)
    }

    /// Whether the row of `rank` is removed.
    pub(super) fn has(&self, rank: u64) -> bool {
        self.0.binary_search(&rank).is_ok()
    }

    /// How many ranks below `end` are removed.
    pub(super) fn below(&self, end: u64) -> u64 {
        self.0.partition_point(|&rank| rank < end) as u64
    }

    /// The rank that a row had before, which has `rank` once the removed ones are gone.
    pub(super) fn rank_before(&self, rank: u64) -> u64 {
        // Removed rank number n, from 0, lies before the row if rank - n rows or fewer that stay come before it.
        let (mut least, mut most) = (0, self.0.len());
        while least < most {
            let middle = least + (most - least) / 2;
            match self.0.get(middle).is_some_and(|&removed| removed - middle as u64 <= rank) {
                true => least = middle + 1,
                false => most = middle,
            }
        }
        rank + least as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_stay_keep_their_order() {
        for mask in 0u64..1 << 10 {
            let of = |wanted: u64| (0..10).filter(move |rank| mask >> rank & 1 == wanted);
            let removed = RemovedRanks::new(of(1).rev().collect());
            for (rank, before) in (0..).zip(of(0).chain(10..15)) {
                assert_eq!(removed.rank_before(rank), before, "{mask:b}");
            }
            for rank in 0..12 {
                assert_eq!(removed.has(rank), mask >> rank & 1 == 1);
                assert_eq!(removed.below(rank), of(1).filter(|&other| other < rank).count() as u64);
            }
        }
    }
}
