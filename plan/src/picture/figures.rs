//! Figures as short as axes and bars want them.

/// `0.25`, `16`, `4.2k`, `1.5M`.
pub(super) fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    format!("{}{unit}", digits(value))
}

/// A number of MiB as a figure with a unit: `64 KiB`, `1.5 GiB`.
pub(super) fn memory(mib: f64) -> String {
    let (value, unit) = match mib * f64::from(1 << 20) {
        bytes if bytes < 1024.0 => (bytes, "B"),
        _ if mib < 1.0 => (mib * 1024.0, "KiB"),
        _ if mib < 1024.0 => (mib, "MiB"),
        _ if mib < f64::from(1 << 20) => (mib / 1024.0, "GiB"),
        _ => (mib / f64::from(1 << 20), "TiB"),
    };
    format!("{} {unit}", digits(value))
}

/// Two digits behind the point at most, and none that says nothing.
fn digits(value: f64) -> String {
    let text = if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        let shorts = [0.0, 8e6, 1.25e6, 15e6, 20_000.0, 250.0].map(short);
        assert_eq!(shorts, ["0", "8M", "1.25M", "15M", "20k", "250"]);
        let sizes = [0.0001, 0.25, 1.5, 2048.0, f64::from(3 << 20)].map(memory);
        assert_eq!(sizes, ["105 B", "256 KiB", "1.5 MiB", "2 GiB", "3 TiB"]);
    }
}
