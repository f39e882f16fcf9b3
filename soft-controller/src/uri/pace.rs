//! How fast a drive is, as an address says it.

use std::time::Duration;

/// Reads a second, more than none.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct ReadRate(f64);

// It is never NaN.
impl Eq for ReadRate {}

impl ReadRate {
    /// So many reads a second; `None` unless that is finite and more than 0.
    pub fn new(per_second: f64) -> Option<Self> {
        (per_second.is_finite() && per_second > 0.0).then_some(Self(per_second))
    }

    /// Reads a second.
    pub fn per_second(self) -> f64 {
        self.0
    }

    /// The rate that `10000000`, `2.5e6` or `10e6` means.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let is_decimal = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        let is_exponent = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_decimal && is_exponent).and_then(Self::new)
    }
}

/// The longest time that an address may say.
const LONGEST: Duration = Duration::from_secs(1);

/// The time that `20us`, `500ns` or `1ms` means.
pub(super) fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text.strip_prefix(digits)? {
        "ns" => 1,
        "us" => 1000,
        "ms" => 1_000_000,
        _ => return None,
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    number.checked_mul(unit).map(Duration::from_nanos).filter(|&time| time <= LONGEST)
}
