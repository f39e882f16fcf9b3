//! Rows in DRAM, read by the GPU: the whole look-up against rivals that only gather.

mod measure;
mod presets;
pub mod report;
mod rivals;
mod sweep;
mod torch;

pub use measure::{DramResult, Times, measure};
pub use presets::{Case, Preset, duration, everything};
pub use rivals::{MOST_COPIES, gather_and_copy};
pub use sweep::{Sweep, SweepPoint, sweep};
pub use torch::{Torch, TorchLine};

use anyhow::{Context, bail, ensure};
use warprow_gpu::{GpuExecutor, GpuOptions, GpuPlan};
use warprow_layout::DType;
use warprow_lookup::{Feature, PlanOptions, Pooling};
use warprow_store::Store;
use warprow_workload::{Oracle, PowerLaw};

use super::Stream;
use super::processor::HostRows;
use crate::beds::{Bed, BedTable, Media};

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

/// Whether something that may be missing takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Asked {
    /// If it is there; else a line says why not.
    #[default]
    Auto,
    /// It must.
    Yes,
    /// No.
    No,
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

    fn rows(&self) -> u64 {
        self.size / u64::from(self.row_bytes)
    }

    fn content(&self) -> Oracle {
        Oracle::new(self.seed, 0, self.rows(), self.row_bytes / 4, DType::F32)
    }

    fn most(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or(0)
    }
}

/// A store whose only table will be in DRAM. The drive's rows are computed, so that memory holds them once.
fn store(setup: &DramSetup) -> anyhow::Result<Store> {
    setup.check()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bed = Bed { drives: (cores / 2).clamp(1, 8) as u32, media: Media::Computed, ..Bed::default() };
    bed.store(&[BedTable::new("table", setup.content())], None)
}

/// The table in DRAM, where it lies, and a plan of look-ups in it.
struct Field {
    executor: GpuExecutor,
    plan: GpuPlan,
    rows: HostRows,
}

impl Field {
    fn new(store: &Store, stream: &Stream, setup: &DramSetup, most: u64) -> anyhow::Result<Self> {
        let mut options = GpuOptions::default().with_dram_bytes(u64::MAX / 2).with_gatherers(setup.gatherers);
        options.direct_ids = setup.direct_ids;
        let executor = GpuExecutor::attach(store, stream.gpu().clone(), options)?;
        let feature = Feature::new("f", "table").pooling(Pooling::None);
        let plan = executor.plan(&[feature], PlanOptions::default().with_max(1, most as usize))?;
        let found = executor.dram_rows("table").context("no rows in DRAM")?;
        let row_bytes = setup.row_bytes as usize;
        let (on_gpu, here, stride) = (found.on_gpu, found.here, found.stride as usize);
        let rows = HostRows { on_gpu, here, stride, row_bytes };
        Ok(Self { executor, plan, rows })
    }
}
