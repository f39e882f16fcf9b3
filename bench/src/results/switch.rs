//! What `bench-switch` found.

use serde::{Deserialize, Serialize};
use warprow_workload::Latencies;

use crate::switch::{LIMIT_US, SwitchResult, SwitchSetup};

/// Look-ups while generations are switched, and while they are not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Switches {
    /// Bytes of rows of a generation.
    pub size: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Exponent of the power law that ids follow.
    pub alpha: f64,
    /// Ids in a batch.
    pub batch: u32,
    /// The share of rows that lie in DRAM.
    pub hot: f64,
    /// Threads that look up.
    pub readers: u32,
    /// Drives.
    pub drives: u32,
    /// Bytes a second that filling the DRAM tier reads at most.
    pub rate: Option<u64>,
    /// Seed of ids and contents.
    pub seed: u64,
    /// Look-ups while nothing was switched.
    pub calm: SwitchTimes,
    /// Look-ups that overlap a switch.
    pub switching: SwitchTimes,
    /// Switches with their preparations.
    pub switches: SwitchTimes,
    /// Switches without.
    pub adoptions: SwitchTimes,
    /// By how much p99.9 of look-ups grows.
    pub p999_growth_us: f64,
    /// By how much it may grow.
    pub p999_growth_limit_us: f64,
    /// Whether it grows by less.
    pub met: bool,
    /// Rows compared, of the first generation and of the second.
    pub rows_checked: [u64; 2],
}

/// Durations.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SwitchTimes {
    /// How many.
    pub count: u64,
    /// Median, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, microseconds.
    pub p999_us: f64,
}

impl From<&Latencies> for SwitchTimes {
    fn from(latencies: &Latencies) -> Self {
        let [p50_us, p99_us, p999_us] = [50.0, 99.0, 99.9].map(|percent| latencies.percentile_us(percent));
        Self { count: latencies.count(), p50_us, p99_us, p999_us }
    }
}

impl Switches {
    /// Of what was found.
    pub fn new(setup: &SwitchSetup, result: &SwitchResult) -> Self {
        Self {
            size: setup.size,
            row_bytes: u64::from(setup.dim) * 4,
            alpha: setup.alpha,
            batch: setup.batch,
            hot: setup.hot,
            readers: setup.readers,
            drives: setup.drives,
            rate: setup.rate,
            seed: setup.seed,
            calm: (&result.before).into(),
            switching: (&result.during).into(),
            switches: (&result.switches).into(),
            adoptions: (&result.adoptions).into(),
            p999_growth_us: result.growth_us(),
            p999_growth_limit_us: LIMIT_US,
            met: result.is_met(),
            rows_checked: result.checked,
        }
    }
}
