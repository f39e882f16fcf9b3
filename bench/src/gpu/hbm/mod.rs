//! Look-ups in a table that lies in GPU memory, against PyTorch's and against the memory's own speed.

pub mod cached;
mod measure;
pub mod report;

pub use measure::{HbmResult, HbmTimes, TorchTimes, copy_bytes_per_second, measure};

use anyhow::{bail, ensure};
use warprow_layout::DType;
use warprow_workload::{ContentOracle, PowerLaw};

use super::python::Asked;

/// How many times as fast as PyTorch it shall be.
pub const AIM: f64 = 1.4;

/// What is measured.
#[derive(Clone, Debug)]
pub struct HbmSetup {
    /// Rows of the table.
    pub rows: u64,
    /// Elements (f32) of a row.
    pub dim: u32,
    /// Bags of a look-up.
    pub bags: u64,
    /// Ids of a bag.
    pub hot: u64,
    /// Exponents of the power law of ids; 0: uniform.
    pub alphas: Vec<f64>,
    /// Repetitions, each with fresh ids.
    pub runs: u32,
    /// Of contents and ids.
    pub seed: u64,
    /// Whether PyTorch is asked.
    pub torch: Asked,
}

impl HbmSetup {
    /// Refuses what cannot be measured; no GPU is needed for that.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=2048).contains(&self.dim), "rows of {} elements: 1 to 2048 are possible", self.dim);
        ensure!((1..=1 << 32).contains(&self.rows), "{} rows: 1 to 2^32 are possible", self.rows);
        let most = 1 << 26;
        let ids = self.bags.checked_mul(self.hot).filter(|ids| (1..=most).contains(ids));
        ensure!(ids.is_some(), "{} bags of {} ids: 1 to {most} ids are possible", self.bags, self.hot);
        ensure!(self.runs > 0 && !self.alphas.is_empty(), "no repetitions, or no ids: nothing is left to measure");
        if let Some(alpha) = self.alphas.iter().find(|alpha| PowerLaw::new(self.rows, **alpha).is_none()) {
            bail!("no power law has the exponent {alpha}: it is 0 or more");
        }
        Ok(())
    }

    fn content(&self) -> ContentOracle {
        ContentOracle::new(self.seed, 0, self.rows, self.dim, DType::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_setups_are_refused() {
        let good = HbmSetup {
            rows: 1000,
            dim: 128,
            bags: 256,
            hot: 1024,
            alphas: vec![0.0, 1.05],
            runs: 3,
            seed: 1,
            torch: Asked::Auto,
        };
        good.check().unwrap();
        for bad in [
            HbmSetup { rows: 0, ..good.clone() },
            HbmSetup { dim: 0, ..good.clone() },
            HbmSetup { bags: 0, ..good.clone() },
            HbmSetup { hot: u64::MAX, ..good.clone() },
            HbmSetup { runs: 0, ..good.clone() },
            HbmSetup { alphas: vec![-1.0], ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
