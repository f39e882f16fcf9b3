//! Percentiles of measured times.

use serde::{Deserialize, Serialize};
use warprow_workload::Latencies;

/// Percentiles, microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 99th.
    pub p99: f64,
    /// 99.9th.
    pub p99_9: f64,
    /// The longest.
    pub max: f64,
}

impl Percentiles {
    pub(in crate::gpu) fn of(latencies: &Latencies) -> Self {
        let [p50, p99, p99_9, max] = [50.0, 99.0, 99.9, 100.0].map(|percent| latencies.percentile_us(percent));
        Self { p50, p99, p99_9, max }
    }
}
