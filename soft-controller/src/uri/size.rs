//! Sizes as people write them.

/// Bytes of `64G`, `64GiB`, `64GB`, `65536`: a whole number with an optional unit. K, M, G, T and KiB … are powers of
/// 1024; kB, MB, GB, TB are powers of 1000.
pub(super) fn parse(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (base, power): (u64, u32) = match unit {
        "" | "B" => (1, 0),
        "K" | "k" | "KiB" => (1024, 1),
        "M" | "m" | "MiB" => (1024, 2),
        "G" | "g" | "GiB" => (1024, 3),
        "T" | "t" | "TiB" => (1024, 4),
        "kB" | "KB" => (1000, 1),
        "MB" => (1000, 2),
        "GB" => (1000, 3),
        "TB" => (1000, 4),
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(base.pow(power)).filter(|&size| i64::try_from(size).is_ok())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn units() {
        assert_eq!(parse("4096"), Some(4096));
        assert_eq!(parse("64G"), Some(64 << 30));
        assert_eq!(parse("64GiB"), Some(64 << 30));
        assert_eq!(parse("3TB"), Some(3_000_000_000_000));
        assert_eq!(parse("7k"), Some(7168));
        for text in ["", "G", "1.5G", "-1", "1 G", "1P", "99999999999999999999", "9999999T", "１"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
