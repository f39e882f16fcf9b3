//! Ranks that were chosen for DRAM, in the place of the first ones: which they are, and the place of each among them.

use std::ops::Range;

use warprow_dma::prefetch::prefetch;
use zerocopy::IntoBytes;

/// Ranks in a block.
const RANKS: u64 = 7 * 64;

/// Chosen ranks of a table, in a bitmap. The row of a chosen rank lies in DRAM behind those of the chosen ranks below it. To
/// find its place costs one line of a processor's cache, whether the rank is chosen or not; the bitmap takes a seventh of a byte
/// for each row of the table.
#[derive(Debug)]
pub struct ChosenRanks {
    blocks: Box<[Block]>,
    count: u64,
}

/// A line of a processor's cache: which of [`RANKS`] ranks are chosen, and how many below them are.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Block {
    below: u64,
    bits: [u64; 7],
}

impl ChosenRanks {
    /// Chooses `count` of `ranks`, all of a table but for the first ones: those that `list` begins with and, where it has too few,
    /// the lowest of the others. Ranks of the list that are not among `ranks` are left out. `None`: there is no memory.
    pub fn new(ranks: Range<u64>, list: &[u64], count: u64) -> Option<Self> {
        let len = usize::try_from(ranks.end.div_ceil(RANKS)).ok()?;
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(len).ok()?;
        blocks.resize(len, Block::default());
        let mut chosen = Self { blocks: blocks.into_boxed_slice(), count: 0 };
        let count = count.min(ranks.end.saturating_sub(ranks.start));
        for &rank in list.iter().filter(|rank| ranks.contains(rank)) {
            if chosen.count == count {
                break;
            }
            chosen.choose(rank);
        }
        let mut rank = ranks.start;
        while chosen.count < count {
            chosen.choose(rank);
            rank += 1;
        }
        let mut below = 0;
        for block in &mut chosen.blocks {
            block.below = below;
            below += block.bits.iter().map(|bits| u64::from(bits.count_ones())).sum::<u64>();
        }
        Some(chosen)
    }

    /// Bytes that the bitmap of a table of so many rows takes.
    pub fn bytes(rows: u64) -> u64 {
        rows.div_ceil(RANKS).saturating_mul(size_of::<Block>() as u64)
    }

    /// Of each 448 ranks, how many chosen ranks are below them, and a bit for each.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, [u64; 7])> + '_ {
        self.blocks.iter().map(|block| (block.below, block.bits))
    }

    fn choose(&mut self, rank: u64) {
        let word = self.blocks.get_mut((rank / RANKS) as usize);
        if let Some(word) = word.and_then(|block| block.bits.get_mut((rank % RANKS / 64) as usize)) {
            let bit = 1 << (rank % 64);
            self.count += u64::from(*word & bit == 0);
            *word |= bit;
        }
    }

    /// How many ranks are chosen.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many chosen ranks are below `rank`, if `rank` is chosen; else `u64::MAX`.
    #[inline(always)]
    pub fn place(&self, rank: u64) -> u64 {
        let Some(block) = self.blocks.get((rank / RANKS) as usize) else { return u64::MAX };
        let (word, bit) = ((rank % RANKS / 64) as usize, rank % 64);
        let bits = block.bits[word];
        if bits >> bit & 1 == 0 {
            return u64::MAX;
        }
        let before = block.bits.iter().take(word).map(|bits| u64::from(bits.count_ones())).sum::<u64>();
        block.below + before + u64::from((bits & ((1 << bit) - 1)).count_ones())
    }

    /// Whether `rank` is chosen.
    pub fn contains(&self, rank: u64) -> bool {
        self.place(rank) != u64::MAX
    }

    /// Has what [`place`](Self::place) reads for `rank` brought towards the caches.
    #[inline(always)]
    pub(crate) fn expect(&self, rank: u64) {
        if let Some(block) = self.blocks.get((rank / RANKS) as usize) {
            prefetch(block.bits.as_bytes());
        }
    }

    /// The chosen ranks, ascending.
    pub fn ranks(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.blocks.iter().flat_map(|block| &block.bits);
        (0u64..)
            .step_by(64)
            .zip(words)
            .filter(|(_, bits)| **bits != 0)
            .flat_map(|(first, &bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| first + bit))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn the_first_of_the_list_are_chosen_and_then_the_lowest(
            rows in prop_oneof![0u64..10, 440u64..460, 2000u64..2010],
            list in proptest::collection::vec(prop_oneof![0u64..20, 430u64..470, 0u64..3000], 0..200),
            count in prop_oneof![0u64..10, 100u64..300, Just(u64::MAX)],
            first in prop_oneof![Just(0u64), 0u64..500],
        ) {
            let first = first.min(rows);
            let chosen = ChosenRanks::new(first..rows, &list, count).unwrap();
            let mut want = BTreeSet::new();
            for rank in list.iter().copied().filter(|rank| (first..rows).contains(rank)).chain(first..rows) {
                if (want.len() as u64) < count {
                    want.insert(rank);
                }
            }
            prop_assert_eq!(chosen.count(), want.len() as u64);
            prop_assert_eq!(chosen.ranks().collect::<Vec<_>>(), want.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(chosen.blocks().count() as u64 * 64, ChosenRanks::bytes(rows));
            for rank in (0..rows + 500).chain([u64::MAX]) {
                let place = want.iter().position(|&it| it == rank).map_or(u64::MAX, |place| place as u64);
                prop_assert_eq!(chosen.place(rank), place, "rank {}", rank);
                chosen.expect(rank);
            }
        }
    }
}
