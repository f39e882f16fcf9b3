//! Sizes and figures for people: three digits and a unit, which no crate writes so. Sizes that people write are read by
//! `warprow_soft_controller::parse_size`.

use std::time::Duration;

use indicatif::HumanCount;

/// `512 B`, `1.50 KiB`, `64.0 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be written as 1024.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{} {}", three_digits(value), UNITS.get(unit).unwrap_or(&""))
}

/// A rate or a count with three digits: `940`, `4.15 M`.
pub fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 999.5e6 => (v / 1e9, " G"),
        v if v >= 999.5e3 => (v / 1e6, " M"),
        v if v >= 999.5 => (v / 1e3, " k"),
        v => (v, ""),
    };
    format!("{}{unit}", three_digits(value))
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// A whole number with commas: `2,097,152`.
pub fn count(value: u64) -> String {
    HumanCount(value).to_string()
}

/// `1 row`, `2 rows`, `2 queries`, `2 batches`.
pub fn plural(value: u64, what: &str) -> String {
    let many = match what.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        None if what.ends_with("ch") => format!("{what}es"),
        _ => format!("{what}s"),
    };
    format!("{} {}", count(value), if value == 1 { what } else { &many })
}

/// `84.0 µs`, `840 ms`, `12.5 s`.
pub fn time(duration: Duration) -> String {
    seconds(duration.as_secs_f64())
}

/// A [`time`] of so many seconds.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.9995e-3 => format!("{} µs", three_digits(s * 1e6)),
        s if s < 0.9995 => format!("{} ms", three_digits(s * 1e3)),
        s => format!("{} s", three_digits(s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_with_three_digits() {
        let written = [0, 1023, 1024, 1536, 1_048_575, 64 << 30, u64::MAX].map(bytes);
        assert_eq!(written, ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "1.00 MiB", "64.0 GiB", "16.0 EiB"]);
        let written = [0.0, 999.4, 999.6, 4_150_000.0, 999_600_000.0, 12e9].map(short);
        assert_eq!(written, ["0.00", "999", "1.00 k", "4.15 M", "1.00 G", "12.0 G"]);
        assert_eq!([0, 999, 1000, 2_097_152].map(count), ["0", "999", "1,000", "2,097,152"]);
        assert_eq!([plural(1, "row"), plural(1000, "row")], ["1 row", "1,000 rows"]);
        assert_eq!([plural(2, "query"), plural(2, "key"), plural(2, "batch")], ["2 queries", "2 keys", "2 batches"]);
        let written = [84, 999_700, 840_000, 12_500_000].map(|us| time(Duration::from_micros(us)));
        assert_eq!(written, ["84.0 µs", "1.00 s", "840 ms", "12.5 s"]);
    }
}
