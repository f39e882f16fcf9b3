//! Which chunks a new generation gets.

use crate::generation::ChunkSpread;
use crate::placement::ChunkRef;

/// The free chunks of each member, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FreeChunks(Vec<Vec<u32>>);

impl FreeChunks {
    /// The free chunks: all chunks of members that have `counts` chunks each, except for those in `used`.
    pub(crate) fn new(counts: &[u32], used: impl Iterator<Item = ChunkRef>) -> Self {
        let mut taken: Vec<Vec<bool>> = counts.iter().map(|&count| vec![false; count as usize]).collect();
        for chunk in used {
            if let Some(taken) =
                taken.get_mut(usize::from(chunk.drive())).and_then(|drive| drive.get_mut(chunk.chunk() as usize))
            {
                *taken = true;
            }
        }
        Self(
            taken
                .iter()
                .map(|drive| (0..).zip(drive).filter(|(_, taken)| !**taken).map(|(i, _)| i).collect())
                .collect(),
        )
    }

    /// Free chunks of each member.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.0.iter().map(|drive| drive.len() as u64).collect()
    }

    /// Free chunks on all members.
    pub(crate) fn total(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// How many members have a free chunk.
    pub(crate) fn members(&self) -> u64 {
        self.0.iter().filter(|drive| !drive.is_empty()).count() as u64
    }

    /// A free chunk for each of `members`: on that member if it has one left, else on the one that has most left.
    pub(crate) fn near(&self, members: &[u16]) -> Vec<ChunkRef> {
        let mut left: Vec<_> = self.0.iter().map(|free| free.iter()).collect();
        let near = |&member: &u16| {
            let own = left.get_mut(usize::from(member)).and_then(Iterator::next);
            let (member, chunk) = match own {
                Some(chunk) => (usize::from(member), chunk),
                None => {
                    let (most, free) = left.iter_mut().enumerate().max_by_key(|(_, free)| free.len())?;
                    (most, free.next()?)
                }
            };
            Some(ChunkRef::new(member as u8, *chunk))
        };
        members.iter().filter_map(near).collect()
    }

    /// The lowest free chunks of a member, as many as it has, and `count` at most.
    pub(crate) fn on(&self, member: u16, count: usize) -> Vec<ChunkRef> {
        let free = self.0.get(usize::from(member)).into_iter().flatten();
        free.take(count).map(|&chunk| ChunkRef::new(member as u8, chunk)).collect()
    }

    /// Free chunks for `count` chunks that move: from every member in proportion to how many are free there.
    pub(crate) fn spread(&self, count: usize) -> Vec<ChunkRef> {
        self.allocate(count as u64, ChunkSpread::Packed)
    }

    /// `count` chunks (at most [`total`](Self::total)) in the order of a chunk map: from every member its share, in proportion
    /// to what is free on it, evenly interleaved.
    pub(crate) fn allocate(&self, count: u64, span: ChunkSpread) -> Vec<ChunkRef> {
        let shares = self.shares(count);
        let mut next = vec![0u64; shares.len()];
        interleave(&shares)
            .into_iter()
            .filter_map(|drive| {
                let free = self.0.get(drive)?;
                let share = *shares.get(drive)?;
                let nth = next.get_mut(drive)?;
                let index = match span {
                    ChunkSpread::Packed => *nth,
                    ChunkSpread::Whole => (u128::from(*nth) * free.len() as u128 / u128::from(share.max(1))) as u64,
                };
                *nth += 1;
                Some(ChunkRef::new(drive as u8, *free.get(index as usize)?))
            })
            .collect()
    }

    /// How many of `count` chunks each member gives: proportional, rounded by largest remainder; at least one from each member
    /// that has any, if there are enough to go round.
    fn shares(&self, count: u64) -> Vec<u64> {
        let free = self.counts();
        let total = self.total();
        let count = count.min(total);
        if count == 0 {
            return vec![0; free.len()];
        }
        let exact =
            |free: u64| (count as u128 * free as u128 / total as u128, count as u128 * free as u128 % total as u128);
        let least = u64::from(count >= self.members());
        let mut shares: Vec<u64> = free.iter().map(|&free| (exact(free).0 as u64).max(least.min(free))).collect();
        let mut order: Vec<usize> = (0..free.len()).collect();
        order.sort_by_key(|&drive| std::cmp::Reverse(exact(free[drive]).1));
        let mut given: u64 = shares.iter().sum();
        while given < count {
            for &drive in &order {
                if given < count && shares[drive] < free[drive] {
                    shares[drive] += 1;
                    given += 1;
                }
            }
        }
        while given > count {
            // A member got one beyond its share: the one with the most gives it.
            let largest = (0..shares.len()).max_by_key(|&drive| shares[drive]).unwrap_or(0);
            shares[largest] -= 1;
            given -= 1;
        }
        shares
    }
}

/// Members in an order in which each comes as often as its share says, as evenly as can be (smooth weighted round-robin).
fn interleave(shares: &[u64]) -> Vec<usize> {
    let total: u64 = shares.iter().sum();
    let mut credit = vec![0i128; shares.len()];
    (0..total)
        .map(|_| {
            credit.iter_mut().zip(shares).for_each(|(credit, &share)| *credit += i128::from(share));
            let next = (0..credit.len()).max_by_key(|&drive| (credit[drive], std::cmp::Reverse(drive))).unwrap_or(0);
            credit[next] -= i128::from(total);
            next
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    #[test]
    fn unequal_drives_are_interleaved_in_proportion() {
        let free = FreeChunks::new(&[400, 200, 100], std::iter::empty());
        let drives: Vec<u16> = free.allocate(14, ChunkSpread::Packed).iter().map(|chunk| chunk.drive()).collect();
        assert_eq!(drives, [0, 1, 0, 2, 0, 1, 0, 0, 1, 0, 2, 0, 1, 0]);
    }

    #[test]
    fn a_whole_span_reaches_both_ends() {
        let free = FreeChunks::new(&[100], [ChunkRef::new(0, 0)].into_iter());
        let chunks: Vec<u32> = free.allocate(3, ChunkSpread::Whole).iter().map(|chunk| chunk.chunk()).collect();
        assert_eq!(chunks, [1, 34, 67]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn gives_as_many_as_asked_and_none_twice(
            counts in prop::collection::vec(0u32..200, 1..6), used in prop::collection::vec(any::<(u8, u32)>(), 0..300),
            ask: prop::sample::Index, whole: bool,
        ) {
            let used: HashSet<ChunkRef> = used
                .into_iter()
                .map(|(drive, chunk)| {
                    let drive = usize::from(drive) % counts.len();
                    ChunkRef::new(drive as u8, chunk % counts[drive].max(1))
                })
                .collect();
            let free = FreeChunks::new(&counts, used.iter().copied());
            let ask = ask.index(free.total() as usize + 1) as u64;
            let map = free.allocate(ask, if whole { ChunkSpread::Whole } else { ChunkSpread::Packed });
            prop_assert_eq!(map.len() as u64, ask);
            let distinct: HashSet<ChunkRef> = map.iter().copied().collect();
            prop_assert_eq!(distinct.len(), map.len());
            for chunk in &map {
                prop_assert!(chunk.chunk() < counts[usize::from(chunk.drive())]);
                prop_assert!(!used.contains(chunk));
            }
            let drives: HashSet<u16> = map.iter().map(|chunk| chunk.drive()).collect();
            prop_assert!(ask < free.members() || drives.len() as u64 == free.members(), "it spans all drives");
        }
    }
}
