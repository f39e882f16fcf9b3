//! Quotients and bytes, as parts of the page have them.

/// A quotient of two times that were both measured.
pub(super) fn times(other: f64, ours: f64) -> Option<f64> {
    (ours > 0.0 && other.is_finite()).then_some(other / ours)
}

/// Bytes, as people write them.
pub(super) fn bytes(bytes: f64) -> String {
    if bytes == 0.0 {
        return "nothing".to_owned();
    }
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in units {
        if bytes >= unit as f64 {
            let value = format!("{:.1}", bytes / unit as f64);
            return format!("{} {name}", value.trim_end_matches(".0"));
        }
    }
    format!("{bytes} B")
}
