//! What is measured of rows in DRAM.

use anyhow::{bail, ensure};
use warprow_layout::DType;
use warprow_workload::{ContentOracle, PowerLaw};

use crate::gpu::python::Asked;

/// What is measured.
#[derive(Clone, Debug)]
pub struct DramSetup {
    /// Bytes of the table.
    pub size: u64,
    /// Bytes of a row, a multiple of 4.
    pub row_bytes: u32,
    /// Numbers of ids.
    pub counts: Vec<u64>,
    /// Exponents of the power law of ids; 0: uniform.
    pub alphas: Vec<f64>,
    /// Repetitions, each with fresh ids.
    pub runs: u32,
    /// Of contents and ids.
    pub seed: u64,
    /// Thread blocks that gather; 0: as the executor thinks best.
    pub gatherers: u32,
    /// Up to so many ids rows are read where they lie, without deduplication; `None`: as the executor thinks best.
    pub direct_ids: Option<u64>,
    /// Whether PyTorch is asked.
    pub torch: Asked,
}

impl DramSetup {
    /// Refuses what cannot be measured; no GPU is needed for that.
    pub fn check(&self) -> anyhow::Result<()> {
        let row = self.row_bytes;
        ensure!(row >= 4 && row.is_multiple_of(4) && row <= 8192, "rows of {row} bytes: multiples of 4 up to 8192");
        ensure!(self.rows() > 0, "a table of {} bytes has no row", self.size);
        ensure!(self.counts.iter().all(|&count| count > 0), "a look-up of no ids");
        ensure!(!self.counts.is_empty() && !self.alphas.is_empty(), "no ids to look up");
        let law = |alpha: &&f64| PowerLaw::new(self.rows(), **alpha).is_none();
        if let Some(alpha) = self.alphas.iter().find(law) {
            bail!("no power law has the exponent {alpha}: it is 0 or more");
        }
        Ok(())
    }

    pub(super) fn rows(&self) -> u64 {
        self.size / u64::from(self.row_bytes)
    }

    pub(super) fn content(&self) -> ContentOracle {
        ContentOracle::new(self.seed, 0, self.rows(), self.row_bytes / 4, DType::F32)
    }

    pub(super) fn most(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or(0)
    }
}
