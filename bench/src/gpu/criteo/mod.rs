//! Look-ups shaped like those of the Criteo 1 TB click logs: 26 tables from 3 to 40 million rows, power-law ids, some rows in GPU
//! memory, some in DRAM, the others on drives; and like those that peers publish.

mod call;
mod latency;
pub mod report;
mod rivals;
mod shapes;
mod split;
mod tables;

pub use call::{CallResult, calls};
pub use latency::{LatencyResult, LatencySetup, Tier, latencies};
pub use shapes::{Defaults, Shape};
pub use split::{SplitResult, Spread, split};
pub use tables::{CARDINALITIES, CriteoResult, CriteoSetup, HostTimes, run};

use serde::Serialize;
use warprow_workload::Latencies;

/// Percentiles, microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
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
    pub(super) fn of(latencies: &Latencies) -> Self {
        let [p50, p99, p99_9, max] = [50.0, 99.0, 99.9, 100.0].map(|percent| latencies.percentile_us(percent));
        Self { p50, p99, p99_9, max }
    }
}

/// Ids that differ, spread over `0..rows`: batch `number` of them.
pub(super) fn different(shuffle: &warprow_workload::Shuffle, number: u64, ids: &mut [i64]) {
    let first = number.wrapping_mul(ids.len() as u64);
    (0u64..).zip(ids).for_each(|(i, id)| *id = shuffle.id(first.wrapping_add(i) % shuffle.len()) as i64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_batch_differ() {
        let shuffle = warprow_workload::Shuffle::new(1003, 4);
        for number in 0..50 {
            let mut ids = [0; 100];
            different(&shuffle, number, &mut ids);
            ids.sort_unstable();
            assert!(ids.windows(2).all(|two| two[0] < two[1]) && ids[99] < 1003, "batch {number}");
        }
    }
}
