//! A set of small numbers, a bit each.

/// A set of numbers below a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// An empty set of numbers below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        Self { words: vec![0; bound.div_ceil(64)], len: 0 }
    }

    /// The set of `numbers`, which are below `bound`.
    pub(crate) fn of(bound: usize, numbers: impl IntoIterator<Item = u32>) -> Self {
        let mut bits = Self::new(bound);
        numbers.into_iter().for_each(|number| bits.add(number));
        bits
    }

    /// As [`insert`](Self::insert).
    pub(crate) fn add(&mut self, number: u32) {
        self.insert(number);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn has(&self, number: u32) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Whether it was not there. A number beyond the bound is not taken.
    #[inline]
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        let Some(word) = self.words.get_mut(number as usize / 64) else { return false };
        let new = *word >> (number % 64) & 1 == 0;
        *word |= 1 << (number % 64);
        self.len += usize::from(new);
        new
    }

    /// Adds all of `other`, a set below no higher a bound.
    pub(crate) fn unite(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            self.len += (more & !*word).count_ones() as usize;
            *word |= more;
        }
    }

    /// Takes those of `other` out that are not in `kept`.
    pub(crate) fn subtract(&mut self, other: &Self, kept: &Self) {
        let kept = kept.words.iter().chain(std::iter::repeat(&0));
        for ((word, less), kept) in self.words.iter_mut().zip(&other.words).zip(kept) {
            let gone = *word & less & !kept;
            self.len -= gone.count_ones() as usize;
            *word &= !gone;
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: u32) {
        if self.has(number)
            && let Some(word) = self.words.get_mut(number as usize / 64)
        {
            *word &= !(1 << (number % 64));
            self.len -= 1;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
        self.len = 0;
    }

    /// Allows numbers below `bound`, a larger one.
    pub(crate) fn grow(&mut self, bound: usize) {
        self.words.resize(bound.div_ceil(64).max(self.words.len()), 0);
    }

    /// All of them, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then(|| index as u32 * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(0x5eed), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_a_set(steps in prop::collection::vec((0u32..300, any::<bool>()), 0..400)) {
            let mut bits = Bits::new(100);
            let mut model = BTreeSet::new();
            for (number, add) in steps {
                if number >= 128 {
                    bits.grow(300);
                }
                match add {
                    true => prop_assert_eq!(bits.insert(number), model.insert(number)),
                    false => { bits.remove(number); model.remove(&number); }
                }
                prop_assert_eq!(bits.len(), model.len());
                prop_assert_eq!(bits.has(number), model.contains(&number));
            }
            prop_assert_eq!(bits.iter().collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn sets_are_united_and_subtracted(
            one in prop::collection::btree_set(0u32..300, 0..200), two in prop::collection::btree_set(0u32..200, 0..200),
            three in prop::collection::btree_set(0u32..100, 0..60),
        ) {
            let of = |bound: usize, set: &BTreeSet<u32>| Bits::of(bound, set.iter().copied());
            let mut bits = of(300, &one);
            let two_bits = of(200, &two);
            bits.unite(&two_bits);
            let mut model: BTreeSet<u32> = one.union(&two).copied().collect();
            prop_assert_eq!(&bits, &of(300, &model));
            bits.subtract(&two_bits, &of(100, &three));
            model.retain(|number| !two.contains(number) || three.contains(number));
            prop_assert_eq!(&bits, &of(300, &model));
        }
    }
}
