//! Sizes and figures, read and written.

use std::time::Duration;

/// Bytes from text, as `size=` of an emulated drive takes them: `4096`, `512K`, `16M`, `64G`, `1T` and `KiB` … are powers of
/// 1024; `kB`, `MB`, `GB` and `TB` of 1000.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "m" | "MiB" => 1 << 20,
        "G" | "g" | "GiB" => 1 << 30,
        "T" | "t" | "TiB" => 1 << 40,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err("give bytes, or a number with K, M, G, T or KiB, … (1024), kB, MB, … (1000)".into()),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{digits:?} is no whole number"))?;
    number.checked_mul(unit).ok_or_else(|| "that passes 2⁶⁴ bytes".into())
}

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
    let digits = value.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 row`, `2 rows`.
pub fn plural(value: u64, what: &str) -> String {
    format!("{} {what}{}", count(value), if value == 1 { "" } else { "s" })
}

/// `84.0 µs`, `840 ms`, `12.5 s`.
pub fn time(duration: Duration) -> String {
    match duration.as_secs_f64() {
        s if s < 0.9995e-3 => format!("{} µs", three_digits(s * 1e6)),
        s if s < 0.9995 => format!("{} ms", three_digits(s * 1e3)),
        s => format!("{} s", three_digits(s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read() {
        for (text, want) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("16M", 16 << 20),
            ("64GiB", 64 << 30),
            ("1t", 1 << 40),
            ("4MB", 4_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(want), "{text}");
            let uri = format!("emulated:x,size={}", text.replace("512", "512K"));
            if let Ok(uri) = uri.parse::<warprow_soft_controller::DriveUri>() {
                assert_eq!(uri.size, parse_bytes(&text.replace("512", "512K")).ok(), "{text}: one meaning everywhere");
            }
        }
        for text in ["", "G", "1.5G", "-1", "1X", "1MM", "4KiBB", "17179869184G", "ü"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_are_written_with_three_digits() {
        let written = [0, 1023, 1024, 1536, 1_048_575, 64 << 30, u64::MAX].map(bytes);
        assert_eq!(written, ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "1.00 MiB", "64.0 GiB", "16.0 EiB"]);
        let written = [0.0, 999.4, 999.6, 4_150_000.0, 999_600_000.0, 12e9].map(short);
        assert_eq!(written, ["0.00", "999", "1.00 k", "4.15 M", "1.00 G", "12.0 G"]);
        assert_eq!([0, 999, 1000, 2_097_152].map(count), ["0", "999", "1,000", "2,097,152"]);
        assert_eq!([plural(1, "row"), plural(1000, "row")], ["1 row", "1,000 rows"]);
        let written = [84, 999_700, 840_000, 12_500_000].map(|us| time(Duration::from_micros(us)));
        assert_eq!(written, ["84.0 µs", "1.00 s", "840 ms", "12.5 s"]);
    }
}
