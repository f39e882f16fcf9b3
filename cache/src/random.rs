//! Hashes of keys, and draws for admission by chance. They are the same in every run.

/// A bijection of 64-bit words that spreads every bit over all (the finaliser of SplitMix64).
#[inline(always)]
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// A sequence of numbers in [0, 1) that is the same in every run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) >> 11) as f64 / (1u64 << 53) as f64
    }
}
