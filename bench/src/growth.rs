//! Look-ups in tables of growing size, on a drive with a real one's timing whose rows are computed when they are
//! read: larger than any disk here.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use warprow_soft_controller::TimingProfile;
use warprow_workload::{median, peak_resident_bytes};

use crate::Cores;
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::lookup::{LookupSetup, Ours, Race, TABLE};

/// Bytes of an LBA, and of a row.
const LBA: u32 = 512;

/// One size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GrowthResult {
    /// Bytes of rows.
    pub size: u64,
    /// Exponent of the power law that ids follow.
    pub alpha: f64,
    /// Rows in DRAM.
    pub hot_rows: u64,
    /// Median ids a second.
    pub ids_per_second: f64,
    /// Read commands a second, over all look-ups.
    pub commands_per_second: f64,
    /// Median and 99th percentile of a batch's latency, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// Rows compared.
    pub checked: u64,
    /// Most memory that the process has had resident.
    pub peak_resident_bytes: Option<u64>,
}

/// One kind of look-up over all sizes; medians of runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Growth {
    /// Exponent of the power law that ids follow.
    pub alpha: f64,
    /// Bytes of rows in DRAM.
    pub dram_bytes: u64,
    /// The largest size's ids a second to the smallest's, run by run: the median.
    pub ratio: Option<f64>,
    /// By size.
    pub sizes: Vec<GrowthSize>,
}

/// All runs of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GrowthSize {
    /// Bytes of rows.
    pub size: Option<u64>,
    /// Ids a second.
    pub ids_per_second: f64,
    /// Read commands a second.
    pub commands_per_second: f64,
    /// Median latency of batches, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// Rows compared, of all runs.
    pub rows_checked: u64,
    /// Most memory that a run has had resident.
    pub peak_resident_bytes: Option<u64>,
}

impl Growth {
    /// `runs`: by size, all runs, in the order in which sizes took turns.
    pub fn new(alpha: f64, dram_bytes: u64, runs: &[Vec<GrowthResult>]) -> Self {
        let ratio = runs.first().zip(runs.last()).map(|(first, last)| {
            median(first.iter().zip(last).map(|(first, last)| last.ids_per_second / first.ids_per_second))
        });
        Self { alpha, dram_bytes, ratio, sizes: runs.iter().map(|runs| GrowthSize::new(runs)).collect() }
    }
}

impl GrowthSize {
    fn new(runs: &[GrowthResult]) -> Self {
        let of = |what: fn(&GrowthResult) -> f64| median(runs.iter().map(what));
        Self {
            size: runs.first().map(|run| run.size),
            ids_per_second: of(|run| run.ids_per_second),
            commands_per_second: of(|run| run.commands_per_second),
            p50_us: of(|run| run.p50_us),
            p99_us: of(|run| run.p99_us),
            rows_checked: runs.iter().map(|run| run.checked).sum(),
            peak_resident_bytes: runs.iter().filter_map(|run| run.peak_resident_bytes).max(),
        }
    }
}

/// Looks up batches in a table of `setup.size` bytes for `time`, with `dram` bytes of its rows in DRAM. Ids are ranks: a
/// permutation would be memory that grows with the table. The drive has the timing of `profile`.
pub fn run(setup: &LookupSetup, dram: u64, profile: TimingProfile, time: Duration) -> anyhow::Result<GrowthResult> {
    setup.check()?;
    ensure!(setup.dim * 4 == LBA, "rows of {} bytes: growth is measured with rows of {LBA}", setup.dim * 4);
    let hot_rows = (dram / u64::from(LBA)).min(setup.rows());
    let cores = Cores::two();
    let fixture = Fixture { media: Media::Computed, profile, ..Fixture::default() };
    let store =
        fixture.store(&[FixtureTable::new(TABLE, setup.content())], cores.as_ref()).context("no computed drive")?;
    let mut ours = Ours::new(&store, setup, hot_rows)?;
    let mut race = Race::new(setup, false)?;
    let before = ours.metrics();
    let (ids_per_second, latencies) = race.alone(&mut ours, time)?;
    let after = ours.metrics();
    let commands = after.commands - before.commands;
    let ids = after.ids - before.ids;
    Ok(GrowthResult {
        size: setup.size,
        alpha: setup.alpha,
        hot_rows,
        ids_per_second,
        commands_per_second: ids_per_second * commands as f64 / ids as f64,
        p50_us: latencies.percentile_us(50.0),
        p99_us: latencies.percentile_us(99.0),
        checked: race.checked,
        peak_resident_bytes: peak_resident_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_tables_of_any_size_are_looked_up() {
        for size in [1 << 20, (100 << 20) + 512, 64 << 30] {
            let setup = LookupSetup { size, dim: 128, alpha: 0.5, batch: 300, hot: 0.0, seed: 3 };
            let result = run(&setup, 10 << 10, TimingProfile::None, Duration::ZERO).unwrap();
            assert_eq!(result.hot_rows, 20);
            assert!(result.checked >= 16 * 300 && result.ids_per_second > 0.0, "{result:?}");
        }
    }

    #[test]
    fn rows_of_another_size_are_refused() {
        let setup = LookupSetup { size: 1 << 20, dim: 64, alpha: 0.5, batch: 300, hot: 0.0, seed: 3 };
        assert!(run(&setup, 0, TimingProfile::None, Duration::ZERO).is_err());
    }
}
