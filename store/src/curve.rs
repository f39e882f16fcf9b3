//! What reads of a drive cost, by their length.

use std::fmt;

/// Picoseconds in a second.
const SECOND: f64 = 1e12;
/// Points of a curve, at most.
const MAX_POINTS: usize = 64;

/// A drive's read curve: what a read command of so many bytes costs while many are in flight, which is the time between
/// two completions. Between its points a curve is linear. Commands shorter than the first point cost as much as the
/// first point; commands longer than the last point cost as much for each byte as the last point.
///
/// ```
/// use warprow_store::ReadCurve;
///
/// // An Optane drive reads short blocks more often; of flash that costs a page each time.
/// let optane = ReadCurve::new(&[(512, 5e6), (4096, 1.5e6), (8192, 7.2e9 / 8192.0)])?;
/// let flash = ReadCurve::of_limits(3.3e6, 14e9)?;
/// assert!((optane.reads_per_second(512) / optane.reads_per_second(4096) - 5.0 / 1.5).abs() < 1e-3);
/// assert_eq!(flash.reads_per_second(512), flash.reads_per_second(4096));
/// # Ok::<(), warprow_store::CurveError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadCurve {
    /// Points of the curve, at least one: bytes, ascending, and picoseconds, never descending.
    points: Vec<(u32, u64)>,
}

/// Why points are no curve.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CurveError {
    /// There are no points, or too many.
    #[error("a read curve of {points} points: give 1 to {MAX_POINTS}")]
    Points {
        /// How many.
        points: usize,
    },
    /// The lengths do not ascend from 1 byte on.
    #[error("a read curve's lengths ascend from 1 byte on: {bytes} bytes are out of order")]
    Order {
        /// The length.
        bytes: u32,
    },
    /// A rate is one that no drive has.
    #[error("{rate} a second, of {bytes} bytes: give a rate from 1 to 10^12")]
    Rate {
        /// The length of the reads.
        bytes: u32,
        /// The rate.
        rate: f64,
    },
    /// Longer reads would be cheaper than shorter ones.
    #[error("more reads of {bytes} bytes a second than of shorter ones: a longer read is never cheaper")]
    Cheaper {
        /// The length of the longer.
        bytes: u32,
    },
}

impl ReadCurve {
    /// A curve by points: bytes of a read, and how many of these a drive answers a second, 1 to 10¹², with its queue kept full. Lengths
    /// ascend, rates do not. 1 to 64 points.
    ///
    /// # Errors
    /// [`CurveError`]
    pub fn new(points: &[(u32, f64)]) -> Result<Self, CurveError> {
        if points.is_empty() || points.len() > MAX_POINTS {
            return Err(CurveError::Points { points: points.len() });
        }
        let mut known: Vec<(u32, u64)> = Vec::with_capacity(points.len());
        for &(bytes, rate) in points {
            if !(1.0..=1e12).contains(&rate) {
                return Err(CurveError::Rate { bytes, rate });
            }
            let (before, least) = known.last().copied().unwrap_or((0, 0));
            if bytes <= before {
                return Err(CurveError::Order { bytes });
            }
            let cost = (SECOND / rate).round() as u64;
            if cost < least {
                return Err(CurveError::Cheaper { bytes });
            }
            known.push((bytes, cost));
        }
        Ok(Self { points: known })
    }

    /// The curve of a drive that takes so many commands and so many bytes a second, whichever is less.
    ///
    /// # Errors
    /// [`CurveError`], for rates that are no drive's.
    pub fn of_limits(reads_per_second: f64, bytes_per_second: f64) -> Result<Self, CurveError> {
        // Up to this length commands are what counts, then bytes.
        let knee = (bytes_per_second / reads_per_second).round().clamp(1.0, f64::from(u32::MAX)) as u32;
        Self::new(&[(knee, reads_per_second)])
    }

    /// A curve of what was measured, in the order of length: scattered figures are brought to where a drive's can be. A
    /// longer read costs no less than a shorter one, and no more a byte. `None`: there are fewer than two lengths to
    /// compare.
    pub(crate) fn of_measured(points: &[(u32, f64)]) -> Option<Self> {
        let mut curve = Self::new(points.get(..1)?).ok()?;
        for &(bytes, rate) in points.get(1..)? {
            let &(before, least) = curve.points.last()?;
            if bytes <= before || curve.points.len() == MAX_POINTS {
                return None;
            }
            // Not a picosecond more: else two would seem cheaper than one of both.
            let most = u128::from(least) * u128::from(bytes) / u128::from(before);
            let cost = (SECOND / rate).round() as u64;
            curve.points.push((bytes, cost.clamp(least, u64::try_from(most).unwrap_or(u64::MAX))));
        }
        (curve.points.len() > 1).then_some(curve)
    }

    /// Reads of `bytes` a second, with many in flight.
    pub fn reads_per_second(&self, bytes: u64) -> f64 {
        SECOND / (self.cost(bytes).max(1) as f64)
    }

    /// The points of the curve: bytes of a read, and reads a second.
    pub fn points(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.points.iter().map(|&(bytes, cost)| (bytes, SECOND / cost.max(1) as f64))
    }

    /// Picoseconds that a read of `bytes` takes of the drive, rounded up: then that of two together is at most the sum of both, where longer reads cost no more a byte.
    pub fn cost(&self, bytes: u64) -> u64 {
        let after = self.points.partition_point(|&(known, _)| u64::from(known) < bytes);
        let before = after.checked_sub(1).and_then(|before| self.points.get(before));
        let linear = |bytes: u64, by: u64, cost: u64| {
            u64::try_from((u128::from(bytes) * u128::from(cost)).div_ceil(by.max(1).into())).unwrap_or(u64::MAX)
        };
        match (before, self.points.get(after)) {
            (None, Some(&(_, cost))) => cost,
            (Some(&(from, low)), Some(&(to, high))) => {
                low + linear(bytes - u64::from(from), (to - from).into(), high - low)
            }
            (Some(&(last, cost)), None) => linear(bytes, last.into(), cost),
            (None, None) => 0,
        }
    }
}

impl fmt::Display for ReadCurve {
    /// `512 B 5.00 M/s, 4096 B 1.50 M/s`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (bytes, rate)) in self.points().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match rate {
                rate if rate >= 1e6 => write!(f, "{comma}{bytes} B {:.2} M/s", rate / 1e6)?,
                rate if rate >= 1e3 => write!(f, "{comma}{bytes} B {:.1} k/s", rate / 1e3)?,
                rate => write!(f, "{comma}{bytes} B {rate:.0}/s")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    #[test]
    fn it_is_linear_between_points_and_goes_on_beyond_them() {
        let curve = ReadCurve::new(&[(512, 5e6), (4096, 1e6), (8192, 1e6)]).unwrap();
        assert_eq!(curve.cost(1), 200_000);
        assert_eq!(curve.cost(512), 200_000);
        assert_eq!(curve.cost((512 + 4096) / 2), 600_000);
        assert_eq!(curve.cost(4096), 1_000_000);
        assert_eq!(curve.cost(5000), 1_000_000);
        assert_eq!(curve.cost(8192 * 3), 3_000_000);
        assert_eq!(curve.reads_per_second(512), 5e6);
        assert_eq!(curve.to_string(), "512 B 5.00 M/s, 4096 B 1.00 M/s, 8192 B 1.00 M/s");
        assert_eq!(curve.points().last(), Some((8192, 1e6)));
    }

    #[test]
    fn limits_are_the_larger_of_two_costs() {
        let curve = ReadCurve::of_limits(2e6, 8e9).unwrap();
        assert_eq!((curve.cost(512), curve.cost(4000), curve.cost(8000)), (500_000, 500_000, 1_000_000));
        assert!(ReadCurve::of_limits(0.0, 8e9).is_err());
        assert!(ReadCurve::of_limits(f64::NAN, 8e9).is_err());
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        assert_eq!(ReadCurve::new(&[]), Err(CurveError::Points { points: 0 }));
        assert_eq!(ReadCurve::new(&[(1, 1.0); 65]), Err(CurveError::Points { points: 65 }));
        assert_eq!(ReadCurve::new(&[(0, 5.0)]), Err(CurveError::Order { bytes: 0 }));
        assert_eq!(ReadCurve::new(&[(512, 5.0), (512, 4.0)]), Err(CurveError::Order { bytes: 512 }));
        assert_eq!(ReadCurve::new(&[(512, 5.0), (513, 5.1)]), Err(CurveError::Cheaper { bytes: 513 }));
        for rate in [0.0, -1.0, 2e12, f64::INFINITY] {
            assert_eq!(ReadCurve::new(&[(512, rate)]), Err(CurveError::Rate { bytes: 512, rate }));
        }
        assert!(matches!(ReadCurve::new(&[(512, f64::NAN)]), Err(CurveError::Rate { .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn scattered_figures_become_what_a_drive_can_be(rates in proptest::collection::vec(1e3f64..1e7, 2..10)) {
            let points: Vec<(u32, f64)> = (0..).zip(&rates).map(|(i, &rate)| (512 << i, rate)).collect();
            let curve = ReadCurve::of_measured(&points).unwrap();
            prop_assert_eq!(curve.cost(512), (SECOND / rates[0]).round() as u64);
            for bytes in (512..=512u64 << rates.len()).step_by(512) {
                let cost = curve.cost(bytes);
                let next = curve.cost(bytes + 512);
                let double = curve.cost(2 * bytes);
                prop_assert!(cost <= next, "a longer one is no cheaper");
                prop_assert!(double <= 2 * cost, "two of them are no cheaper than one of both: {} {}", cost, double);
                for more in (512..=bytes).step_by(1536) {
                    prop_assert!(curve.cost(bytes + more) <= cost + curve.cost(more), "{} and {}", bytes, more);
                }
            }
        }
    }
}
