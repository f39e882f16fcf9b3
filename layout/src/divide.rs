//! Division by a number known in advance, without a divide instruction.

/// A divisor with its 64-bit reciprocal. Exact for every dividend.
///
/// With m = ⌊(2⁶⁴ − 1) / d⌋ the product's high half is ⌊n/d⌋ or one less: n/d − n·m/2⁶⁴ = n·(2⁶⁴ − m·d) / (d·2⁶⁴) ≤ n/2⁶⁴
/// < 1. So one comparison corrects it. The same two numbers serve a GPU kernel (`__umul64hi`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divider {
    divisor: u64,
    reciprocal: u64,
}

impl Divider {
    /// Divides by `divisor`; 0 is taken as 1.
    pub const fn new(divisor: u64) -> Self {
        let divisor = if divisor == 0 { 1 } else { divisor };
        Self { divisor, reciprocal: u64::MAX / divisor }
    }

    /// Quotient and remainder of `n`.
    #[inline(always)]
    pub const fn div_rem(self, n: u64) -> (u64, u64) {
        let quotient = ((n as u128 * self.reciprocal as u128) >> 64) as u64;
        let remainder = n - quotient * self.divisor;
        if remainder >= self.divisor { (quotient + 1, remainder - self.divisor) } else { (quotient, remainder) }
    }

    /// What is divided by, at least 1.
    pub const fn divisor(self) -> u64 {
        self.divisor
    }

    /// ⌊(2⁶⁴ − 1) / divisor⌋.
    pub const fn reciprocal(self) -> u64 {
        self.reciprocal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    #[test]
    fn edges_divide_exactly() {
        for d in [1, 2, 3, 5, 7, 64, 1 << 32, (1 << 32) + 1, 1 << 63, u64::MAX - 1, u64::MAX] {
            for n in [0, 1, d - 1, d, d.saturating_add(1), d.saturating_mul(3), u64::MAX - 1, u64::MAX] {
                assert_eq!(Divider::new(d).div_rem(n), (n / d, n % d), "{n} / {d}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn divides_like_the_hardware(n: u64, d in 1u64.., shift in 0u32..64) {
            let d = (d >> shift).max(1);
            prop_assert_eq!(Divider::new(d).div_rem(n), (n / d, n % d));
        }
    }
}
