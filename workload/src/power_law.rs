use crate::SeededRandom;

/// A power law with exponent α over the ranks `0..rows`: rank r, counted from 1, has a density of about r^−α.
///
/// From a uniform u, x = ((N^(1−α) − 1)·u + 1)^(1/(1−α)) for α ≠ 1 and x = N^u for α = 1, N = rows; the rank is ⌊x⌋ − 1. It is
/// the inverse of the continuous distribution function over [1, N], the usual generator of embedding benchmarks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerLaw {
    rows: u64,
    /// N^(1−α) − 1, or ln N for α = 1.
    span: f64,
    /// 1/(1−α); 0 stands for α = 1.
    power: f64,
}

impl PowerLaw {
    /// The exponent that peers report for production traces.
    pub const USUAL_ALPHA: f64 = 1.05;

    /// A law over `rows` ranks (at least 1) with exponent `alpha`, finite and not negative; 0 is uniform. `None` for
    /// anything else.
    pub fn new(rows: u64, alpha: f64) -> Option<Self> {
        if rows == 0 || !alpha.is_finite() || alpha < 0.0 {
            return None;
        }
        let n = rows as f64;
        let rest = 1.0 - alpha;
        // Near α = 1 the closed form loses its digits: (N^ε − 1) / ε is ln N to 10⁻⁸ there.
        Some(match rest.abs() < 1e-10 {
            true => Self { rows, span: n.ln(), power: 0.0 },
            false => Self { rows, span: (rest * n.ln()).exp_m1(), power: rest.recip() },
        })
    }

    /// Number of ranks.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Span and power of the inverse (see [`PowerLaw`]), for those who draw elsewhere.
    pub fn parameters(&self) -> (f64, f64) {
        (self.span, self.power)
    }

    /// The rank at `u` in [0, 1): rank 0 is the most frequent.
    #[inline]
    pub fn rank(&self, u: f64) -> u64 {
        let x = match self.power == 0.0 {
            true => (self.span * u).exp(),
            false => ((self.span * u).ln_1p() * self.power).exp(),
        };
        // Rounding may reach N itself or just miss 1.
        ((x as u64).max(1) - 1).min(self.rows - 1)
    }

    /// A random rank.
    #[inline]
    pub fn sample(&self, random: &mut SeededRandom) -> u64 {
        self.rank(random.unit())
    }

    /// The share of samples that fall on the first `ranks` ranks, from 0 to 1.
    pub fn share_of_first(&self, ranks: u64) -> f64 {
        // x < ranks + 1, solved for u.
        let x = ranks.saturating_add(1) as f64;
        let u = match self.power == 0.0 {
            true => x.ln() / self.span,
            false => (x.ln() / self.power).exp_m1() / self.span,
        };
        if ranks >= self.rows { 1.0 } else { u.clamp(0.0, 1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_law() {
        const SAMPLES: u32 = 400_000;
        for (alpha, seed) in [(0.0, 1), (0.5, 2), (1.0, 3), (1.05, 4), (1.5, 5), (3.0, 6)] {
            let law = PowerLaw::new(100_000, alpha).unwrap();
            let mut random = SeededRandom::new(seed);
            let ranks: Vec<u64> = (0..SAMPLES).map(|_| law.sample(&mut random)).collect();
            assert!(ranks.iter().all(|&rank| rank < 100_000), "α {alpha}");
            for first in [1, 10, 1000, 5000, 50_000, 99_999] {
                let got = ranks.iter().filter(|&&rank| rank < first).count() as f64 / f64::from(SAMPLES);
                let want = law.share_of_first(first);
                // Four standard deviations of a binomial share.
                let tolerance = 4.0 * (want * (1.0 - want) / f64::from(SAMPLES)).sqrt() + 1e-6;
                assert!(
                    (got - want).abs() <= tolerance,
                    "α {alpha}, seed {seed}: {first} ranks take {got}, not {want}"
                );
            }
        }
    }

    #[test]
    fn shares_are_those_of_the_integral() {
        // ∫₁^(r+1) x^−α dx over ∫₁^N x^−α dx, by the trapezoid rule on a logarithmic grid.
        for alpha in [0.0, 0.9, 1.0, 1.05, 2.0] {
            let integral = |end: f64| -> f64 {
                let steps = 20_000;
                let width = end.ln() / 20_000.0;
                let at = |i: i32| ((1.0 - alpha) * f64::from(i) * width).exp();
                (0..steps).map(|i| (at(i) + at(i + 1)) / 2.0 * width).sum()
            };
            let law = PowerLaw::new(1 << 20, alpha).unwrap();
            for ranks in [1, 100, 50_000] {
                let want = integral(ranks as f64 + 1.0) / integral((1 << 20) as f64);
                assert!((law.share_of_first(ranks) - want).abs() < 1e-5, "α {alpha}, {ranks} ranks");
            }
        }
    }

    #[test]
    fn near_one_is_continuous() {
        let at = |alpha| PowerLaw::new(1 << 30, alpha).unwrap().rank(0.77) as f64;
        for alpha in [1.0 - 1e-9, 1.0 - 1e-11, 1.0 + 1e-11, 1.0 + 1e-9] {
            assert!((at(alpha) / at(1.0) - 1.0).abs() < 1e-6, "α {alpha}");
        }
    }

    #[test]
    fn ends_and_bad_parameters() {
        for alpha in [0.0, 1.0, 1.05, 40.0] {
            for rows in [1, 2, 3, 1 << 40] {
                let law = PowerLaw::new(rows, alpha).unwrap();
                assert_eq!(law.rank(0.0), 0);
                assert!(law.rank(1.0 - f64::EPSILON / 2.0) < rows);
                assert_eq!(law.share_of_first(rows), 1.0);
            }
        }
        assert!(PowerLaw::new(0, 1.0).is_none());
        assert!(PowerLaw::new(5, f64::NAN).is_none());
        assert!(PowerLaw::new(5, -0.1).is_none());
    }
}
