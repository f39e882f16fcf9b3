use warprow_layout::Ranks;

use crate::random::{SeededRandom, mix_all};

/// Rounds of [`IdShuffle`].
const ROUNDS: usize = 4;

/// A seeded permutation of `0..len` that needs no table: rank → id, and back.
///
/// Each round adds a key, multiplies by an odd number and folds the upper half of the bits onto the lower, all modulo the next
/// power of two: each step is a bijection. A result past the end is put through again until it falls inside (cycle walking:
/// fewer than two turns on average).
#[derive(Clone, Copy, Debug)]
pub struct IdShuffle {
    len: u64,
    mask: u64,
    fold: u32,
    rounds: [Round; ROUNDS],
}

#[derive(Clone, Copy, Debug)]
struct Round {
    key: u64,
    factor: u64,
    /// factor · inverse = 1 modulo 2⁶⁴.
    inverse: u64,
}

impl IdShuffle {
    /// The permutation of `0..len` that `seed` names.
    pub fn new(len: u64, seed: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let mut random = SeededRandom::new(mix_all([seed, len]));
        let rounds = std::array::from_fn(|_| {
            let key = random.word();
            let factor = random.word() | 1;
            Round { key, factor, inverse: inverse(factor) }
        });
        Self { len, mask: 1u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1), fold: bits.div_ceil(2).max(1), rounds }
    }

    /// Number of elements.
    #[allow(clippy::len_without_is_empty, reason = "an empty permutation is of no use to anybody")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The id at `rank`; a rank past the end is its own id.
    #[inline]
    pub fn id(&self, rank: u64) -> u64 {
        self.walk(rank, |word| {
            self.rounds.iter().fold(word, |word, round| {
                let word = word.wrapping_add(round.key).wrapping_mul(round.factor) & self.mask;
                word ^ word >> self.fold
            })
        })
    }

    /// The rank of `id`: the inverse of [`id`](Self::id).
    #[inline]
    pub fn rank(&self, id: u64) -> u64 {
        self.walk(id, |word| {
            self.rounds.iter().rev().fold(word, |word, round| {
                // At least half of the bits are folded away at once: folding again undoes it.
                let word = word ^ word >> self.fold;
                word.wrapping_mul(round.inverse).wrapping_sub(round.key) & self.mask
            })
        })
    }

    /// The id → rank permutation as a table, 4 bytes an id up to 2³² ids and 8 beyond.
    pub fn ranks(&self) -> Ranks {
        match u32::try_from(self.len.saturating_sub(1)) {
            Ok(_) => Ranks::U32((0..self.len).map(|id| self.rank(id) as u32).collect()),
            Err(_) => Ranks::U64((0..self.len).map(|id| self.rank(id)).collect()),
        }
    }

    #[inline(always)]
    fn walk(&self, start: u64, step: impl Fn(u64) -> u64) -> u64 {
        if start >= self.len {
            return start;
        }
        let mut word = step(start);
        // The cycle of `start` comes back to `start`, which is inside.
        while word >= self.len {
            word = step(word);
        }
        word
    }
}

/// The inverse of an odd number modulo 2⁶⁴, by Newton's iteration: each turn doubles the correct bits, from 3.
fn inverse(odd: u64) -> u64 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_sets_are_permuted() {
        for len in (0..70).chain([127, 128, 129, 1000, 4096, 65_537]) {
            for seed in 0..8 {
                let shuffle = IdShuffle::new(len, seed);
                let mut seen = vec![false; len as usize];
                for rank in 0..len {
                    let id = shuffle.id(rank);
                    assert!(
                        !std::mem::replace(&mut seen[id as usize], true),
                        "len {len}, seed {seed}: {id} came twice"
                    );
                    assert_eq!(shuffle.rank(id), rank, "len {len}, seed {seed}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_size_goes_there_and_back(len in 1u64.., seed: u64, at: u64, shift in 0u32..64) {
            let len = (len >> shift).max(1);
            let shuffle = IdShuffle::new(len, seed);
            let rank = at % len;
            let id = shuffle.id(rank);
            prop_assert!(id < len);
            prop_assert_eq!(shuffle.rank(id), rank);
            prop_assert_eq!(shuffle.id(shuffle.rank(rank)), rank);
        }
    }

    #[test]
    fn neighbours_are_scattered() {
        // Of a random permutation, the gaps between the ids of neighbouring ranks have a mean of len/3.
        const LEN: u64 = 1 << 20;
        for seed in 0..8 {
            let shuffle = IdShuffle::new(LEN, seed);
            let gaps: u64 = (0..10_000).map(|rank| shuffle.id(rank).abs_diff(shuffle.id(rank + 1))).sum();
            let mean = gaps as f64 / 10_000.0 / LEN as f64;
            assert!((0.31..0.36).contains(&mean), "seed {seed}: mean gap {mean}");
            let low = (0..10_000).filter(|&rank| shuffle.id(rank) < LEN / 16).count();
            assert!((500..760).contains(&low), "seed {seed}: {low} of 10,000 in the first sixteenth");
        }
    }

    #[test]
    fn the_table_is_the_permutation() {
        let shuffle = IdShuffle::new(1000, 5);
        let ranks = shuffle.ranks();
        assert!(matches!(ranks, Ranks::U32(_)));
        assert!((0..1000).all(|id| ranks.get(id) == Some(shuffle.rank(id))));
    }

    #[test]
    fn seeds_differ() {
        let a = IdShuffle::new(1 << 20, 1);
        let b = IdShuffle::new(1 << 20, 2);
        assert!((0..1000).filter(|&rank| a.id(rank) == b.id(rank)).count() < 5);
    }
}
