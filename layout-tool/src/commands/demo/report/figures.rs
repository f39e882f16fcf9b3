//! Figures and words that text and JSON share.

use warprow_workload::KeyMapping;

use crate::commands::demo::replay::Outcome;

/// In what state the file's pages are for every contender: written just now, and all in memory that fit.
pub(super) const CACHE: &str = "page cache warm";

pub(super) fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}

/// The time that `percent` of the batches did not pass, in microseconds.
pub(super) fn percentile(outcome: &Outcome, percent: f64) -> f64 {
    outcome.latencies.percentile_us(percent)
}

pub(super) fn mapping_name(mapping: KeyMapping) -> &'static str {
    match mapping {
        KeyMapping::Strict => "strict",
        KeyMapping::Dense => "dense",
        KeyMapping::Modulo => "modulo",
    }
}
