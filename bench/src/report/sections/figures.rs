//! Units, figures and plots, as several sections have them.

use crate::report::{Bars, Chart, Group, Series, Unit};

/// Commands a second.
pub(super) const COMMANDS: Unit = Unit::PerSecond("commands/s");
/// Ids a second.
pub(super) const IDS: Unit = Unit::PerSecond("ids/s");
/// Bytes a second.
pub(super) const BYTES: Unit = Unit::PerSecond("B/s");
/// What stands for drives behind queues in memory that the processor and a GPU share.
pub(super) const GPU_DRIVES: &str = "The drives: software controllers, one thread of the processor each; rings in pinned memory (rung C). The GPU is real.";

/// A quotient of two times that were both measured.
pub(super) fn times(other: f64, ours: f64) -> Option<f64> {
    (ours > 0.0 && other.is_finite()).then_some(other / ours)
}

/// A plot of bars.
pub(super) fn bars(title: impl Into<String>, unit: Unit, groups: Vec<Group>) -> Chart {
    Chart::Bars(Bars { title: title.into(), unit, groups })
}

/// A line through what was measured.
pub(super) fn line(name: &str, points: impl Iterator<Item = (f64, f64)>) -> Series {
    Series { name: name.to_owned(), points: points.filter(|&(x, y)| x > 0.0 && y > 0.0).collect() }
}

/// The law that ids follow, by its exponent.
pub(super) fn law(alpha: f64) -> String {
    if alpha == 0.0 { "uniform ids".to_owned() } else { format!("α = {alpha}") }
}

/// The drive whose timing is emulated.
pub(super) fn timing_of(profile: &str) -> String {
    match profile {
        "p5800x" => "an Intel Optane P5800X".to_owned(),
        "gen5-tlc" => "a Gen5 TLC flash drive".to_owned(),
        "gen6" => "a Gen6 drive as announced".to_owned(),
        "none" => "no drive (none at all)".to_owned(),
        other => other.to_owned(),
    }
}
