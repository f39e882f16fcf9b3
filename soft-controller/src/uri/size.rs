//! Sizes as people write them.

use thiserror::Error;

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SizeError {
    /// What stands behind the number is no unit.
    #[error("give bytes, or a number with K, M, G, T or KiB, … (1024), kB, MB, … (1000)")]
    Unit,
    /// What stands before the unit is no whole number.
    #[error("{number:?} is no whole number")]
    Number {
        /// The text that stands before the unit.
        number: String,
    },
    /// There is no such size.
    #[error("that passes 2⁶⁴ bytes")]
    TooLarge,
}

/// Bytes of `64G`, `64GiB`, `64GB`, `65536`: a whole number with an optional unit. K, M, G, T and KiB … are powers of
/// 1024; kB, MB, GB, TB are powers of 1000. `size=` of a drive's address takes sizes so, and the command's options do.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (base, power): (u64, u32) = match text.strip_prefix(number).unwrap_or_default() {
        "" | "B" => (1, 0),
        "K" | "k" | "KiB" => (1024, 1),
        "M" | "m" | "MiB" => (1024, 2),
        "G" | "g" | "GiB" => (1024, 3),
        "T" | "t" | "TiB" => (1024, 4),
        "kB" | "KB" => (1000, 1),
        "MB" => (1000, 2),
        "GB" => (1000, 3),
        "TB" => (1000, 4),
        _ => return Err(SizeError::Unit),
    };
    // A sign is no part of a size.
    let digits = Some(number).filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let parsed: Option<u64> = digits.and_then(|digits| digits.parse().ok());
    let parsed = parsed.ok_or_else(|| SizeError::Number { number: number.to_owned() })?;
    parsed.checked_mul(base.pow(power)).ok_or(SizeError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4096", 4096),
            ("16M", 16 << 20),
            ("64G", 64 << 30),
            ("64GiB", 64 << 30),
            ("1t", 1 << 40),
            ("4MB", 4_000_000),
            ("3TB", 3_000_000_000_000),
            ("7k", 7168),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["1 G", "G", "", "-1", "+1", "1.5G", "99999999999999999999", "１", "ü"] {
            assert!(matches!(parse_size(text), Err(SizeError::Number { .. })), "{text}");
        }
        for text in ["1P", "1X", "1MM", "4KiBB"] {
            assert_eq!(parse_size(text), Err(SizeError::Unit), "{text}");
        }
        assert_eq!(parse_size("17179869184G"), Err(SizeError::TooLarge));
    }
}
