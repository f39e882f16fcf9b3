//! Pseudo-random numbers that stay the same from version to version, so that a seed names a workload for good.

/// The increment of [`SeededRandom`]: 2⁶⁴ / φ, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of 64-bit words that spreads every bit over all (the finaliser of SplitMix64).
#[inline(always)]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// One word out of several, each of which changes it.
#[inline(always)]
pub const fn mix_all<const N: usize>(words: [u64; N]) -> u64 {
    let mut hash = STEP;
    let mut i = 0;
    while i < N {
        hash = mix(hash.wrapping_add(words[i]).wrapping_mul(STEP) ^ i as u64);
        i += 1;
    }
    hash
}

/// SplitMix64: a counter, mixed. Period 2⁶⁴.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next word.
    #[inline]
    pub const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// The next number in [0, 1), a multiple of 2⁻⁵³.
    #[inline]
    pub const fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// The next number in `0..bound`; 0 if `bound` is 0.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.word() as u128 * bound as u128) >> 64) as u64
    }
}

/// Word `index` of the sequence that begins at `start`: [`SeededRandom`] with random access.
#[inline(always)]
pub(crate) const fn word_at(start: u64, index: u64) -> u64 {
    mix(start.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_splitmix64() {
        // The first outputs for seed 1234567, as published with the generator.
        let mut random = SeededRandom::new(1_234_567);
        let want = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(want.map(|_| random.word()), want);
        assert_eq!([0, 1, 2].map(|i| word_at(1_234_567, i)), want);
    }

    #[test]
    fn bounds_hold() {
        let mut random = SeededRandom::new(1);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!(random.below(0), 0);
        assert!((0..1000).map(|_| random.unit()).all(|u| (0.0..1.0).contains(&u)));
    }
}
