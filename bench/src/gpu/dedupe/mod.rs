//! How the different rows among a batch's ids are found on a GPU: every way, and the one that a plan would take.

pub(in crate::gpu) mod fixture;
mod measure;
pub mod report;

pub use measure::measure;

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};
use warprow_lookup::DedupeMethod;
use warprow_workload::PowerLaw;

/// What is measured.
#[derive(Clone, Debug)]
pub struct DedupeSetup {
    /// Rows of tables, each by itself.
    pub rows: Vec<u64>,
    /// Ids of a batch.
    pub ids: Vec<u64>,
    /// Exponents of the power law that ids follow; 0 is uniform.
    pub alphas: Vec<f64>,
    /// Repetitions of which the median counts.
    pub runs: u32,
    /// Of contents and ids.
    pub seed: u64,
}

impl DedupeSetup {
    /// Refuses what cannot be measured; no GPU is needed for that.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.rows.is_empty() && !self.ids.is_empty() && !self.alphas.is_empty(), "nothing to measure");
        if let Some(rows) = self.rows.iter().find(|rows| !(1..=1 << 33).contains(*rows)) {
            bail!("a table of {rows} rows: 1 to 2^33");
        }
        if let Some(ids) = self.ids.iter().find(|ids| !(1..=1 << 28).contains(*ids)) {
            bail!("a batch of {ids} ids: 1 to 2^28");
        }
        if let Some(alpha) = self.alphas.iter().find(|alpha| PowerLaw::new(1, **alpha).is_none()) {
            bail!("no power law has the exponent {alpha}: it is 0 or more");
        }
        ensure!(self.runs > 0, "no repetitions");
        Ok(())
    }
}

/// One way, on batches of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WayTimes {
    /// The way's name.
    pub way: String,
    /// Median microseconds of the whole look-up, by the GPU, launches hidden.
    pub us: f64,
    /// Median microseconds until unique keys are known, by the GPU's clock.
    pub unique_us: f64,
}

/// All ways, on batches of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DedupeResult {
    /// Where the rows are said to be: `memory`, or `drives`, of which there are none, so that each row fails at once.
    pub tier: String,
    /// Rows of the table.
    pub rows: u64,
    /// Ids of a batch.
    pub ids: u64,
    /// Exponent of the ids' power law.
    pub alpha: f64,
    /// Different ids of the last batch that was compared.
    pub uniques: u64,
    /// Each way.
    pub ways: Vec<WayTimes>,
    /// The way whose look-ups are shortest.
    pub best: String,
    /// What a plan takes.
    pub chosen: String,
    /// The time of the chosen way's look-ups by that of the shortest.
    pub over_best: f64,
    /// Positions and uniques compared, all of some batches of each way.
    pub compared: u64,
    /// Output rows compared, all of every batch; rows on drives have none.
    pub rows_compared: u64,
}

/// The name of a way.
pub fn name(way: DedupeMethod) -> &'static str {
    match way {
        DedupeMethod::Block => "block",
        DedupeMethod::Bitmap => "bitmap",
        DedupeMethod::Hash => "hash",
        DedupeMethod::Radix => "radix",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let good = DedupeSetup { rows: vec![1 << 20], ids: vec![100], alphas: vec![0.0, 1.05], runs: 3, seed: 1 };
        good.check().unwrap();
        for (bad, why) in [
            (DedupeSetup { rows: vec![], ..good.clone() }, "nothing"),
            (DedupeSetup { rows: vec![0], ..good.clone() }, "0 rows"),
            (DedupeSetup { ids: vec![1 << 29], ..good.clone() }, "536870912 ids"),
            (DedupeSetup { alphas: vec![-1.0], ..good.clone() }, "exponent"),
            (DedupeSetup { runs: 0, ..good.clone() }, "repetitions"),
        ] {
            assert!(bad.check().unwrap_err().to_string().contains(why), "{bad:?}");
        }
    }
}
