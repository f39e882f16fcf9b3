//! What a tier proposal says.

use serde::{Deserialize, Serialize};
use warprow_gpu::GpuOptions;

use crate::budget::MemoryBudgets;
use crate::drives::AlikeDrives;
use crate::order::HotnessOrder;

/// A tier proposal: how many rows of each table belong in which tier, and what look-ups then cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierProposal {
    /// Memory for rows.
    pub budgets: MemoryBudgets,
    /// The drives that the other rows lie on.
    pub drives: AlikeDrives,
    /// What is proposed for each table in turn.
    pub tables: Vec<TableProposal>,
    /// What was learnt from.
    pub trace: TraceSummary,
    /// What look-ups will do.
    pub expected: ExpectedLookups,
    /// What they would do with other budgets, the smallest first.
    pub curve: Vec<BudgetPoint>,
}

impl TierProposal {
    /// Bytes of memory for rows, GPU memory and DRAM together: what indices of keys leave of the budgets.
    pub fn memory_for_rows(&self) -> u64 {
        let indices: u64 = self.tables.iter().filter_map(|table| table.index_bytes).sum();
        self.budgets.hbm.saturating_add(self.budgets.dram).saturating_sub(indices)
    }

    /// What a GPU executor has to be attached with so that it keeps the rows in memory as proposed, of tables that were loaded by it. Indices of keys
    /// take GPU memory besides.
    pub fn gpu_options(&self) -> GpuOptions {
        let indices: u64 = self.tables.iter().filter_map(|table| table.index_bytes).sum();
        let options = GpuOptions::default()
            .with_hbm_bytes(self.budgets.hbm.saturating_sub(indices))
            .with_dram_bytes(self.budgets.dram);
        self.tables.iter().fold(options, |options, it| options.with_hbm_rows(&it.name, it.hbm_rows))
    }
}

/// A table in a tier proposal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableProposal {
    /// The name of the table.
    pub name: String,
    /// Rows of the table.
    pub rows: u64,
    /// Elements in a row.
    pub dim: u32,
    /// Type of the elements, by name.
    pub dtype: String,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// The hottest rows, which lie in GPU memory.
    pub hbm_rows: u64,
    /// The next ones, which lie in DRAM.
    pub dram_rows: u64,
    /// Bytes that `hbm_rows` take in GPU memory, as an executor pads them.
    #[serde(default)]
    pub hbm_bytes: u64,
    /// Bytes that `dram_rows` take in DRAM.
    #[serde(default)]
    pub dram_bytes: u64,
    /// Rows that the trace speaks of, as far as counted.
    pub seen_rows: u64,
    /// By how much the count of a row may be too low: 0 where counting was exact.
    pub count_error: u64,
    /// Looked up by keys: bytes of their index. `None`: by ids.
    #[serde(default)]
    pub index_bytes: Option<u64>,
    /// What sharing of LBAs does, if it was tried.
    pub grouping: Option<RowGrouping>,
}

/// Rows that share LBAs because they are looked up together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RowGrouping {
    /// Whether it is proposed.
    pub applied: bool,
    /// Groups of two rows and more.
    pub groups: u64,
    /// Rows in them.
    pub rows: u64,
    /// The share of read commands that it saved on the part held out.
    pub commands_saved: f64,
    /// The standard error of that.
    pub error: f64,
    /// The share of bytes read that it saved.
    pub bytes_saved: f64,
}

/// The trace that a tier proposal was made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// Queries.
    pub queries: u64,
    /// Queries of these that were held out.
    pub held_out: u64,
    /// Ids of all tables.
    pub ids: u64,
    /// Ids that their table does not have.
    pub missing: u64,
    /// Queries of a look-up.
    pub batch: u64,
}

/// What look-ups will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpectedLookups {
    /// The share of ids (of those that their table has) whose rows are in GPU memory.
    pub hbm: f64,
    /// The share whose rows are in DRAM.
    pub dram: f64,
    /// The share whose rows are on drives.
    pub ssd: f64,
    /// Half of the first of [`intervals`](Self::intervals), before it was cut to what a share can be.
    pub error: f64,
    /// The part of the error that comes of changes in what is looked up.
    pub drift: f64,
    /// Where the share in memory will be: of the queries that follow the trace, as many as were held out, and as many as the trace has. By how
    /// much parts of what was held out differ, by how much what was foreseen earlier in the trace differed from what came at once and
    /// later, and by what the hottest rows take, as far as rows cease to be hot.
    #[serde(default)]
    pub intervals: Vec<HitInterval>,
    /// Ids of a look-up.
    pub ids: f64,
    /// Different rows of a look-up on drives.
    pub rows_ssd: f64,
    /// Read commands of a look-up.
    pub commands: f64,
    /// Bytes that a look-up reads from drives.
    pub bytes: f64,
    /// Bytes read for each byte of a row that was asked for, repeats in a look-up not counted. 0: nothing is read.
    pub amplification: f64,
    /// Look-ups a second of one slot, one after another.
    pub lookups_per_second: f64,
    /// Ids a second.
    pub ids_per_second: f64,
    /// Reads a second on each drive, at that rate.
    pub iops_per_drive: f64,
    /// The share of the time that is spent waiting for drives, with nothing else to do.
    pub waited: f64,
    /// What look-ups wait for.
    pub bound: Bottleneck,
}

/// The share of unseen traces that an [`HitInterval`] is made to hold.
pub const INTERVAL_COVERAGE: f64 = 0.9;

/// The coverage that was measured, as the mean of all sources: of intervals for as many queries as were held out, and for as many as the trace
/// has. `plan/tests/coverage.rs` measures it, `docs/plan.md` has it by source.
pub const MEASURED_COVERAGE: [f64; 2] = [0.946, 0.971];

/// Where the share of ids in memory will be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HitInterval {
    /// The number of queries, right behind the trace, that it holds for.
    pub queries: u64,
    /// For this share of traces that were not seen.
    pub coverage: f64,
    /// For this share it was so, of the mean of the sources that it was measured on ([`MEASURED_COVERAGE`]).
    pub measured: f64,
    /// The least.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

/// What look-ups wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Reads from drives.
    Drives,
    /// The processor.
    Host,
    /// The GPU.
    Gpu,
    /// Nothing that was timed.
    Unknown,
}

/// What another budget would give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BudgetPoint {
    /// Bytes of memory for rows, GPU memory and DRAM together.
    pub bytes: u64,
    /// The share of ids in memory.
    pub hit: f64,
    /// Read commands of a look-up.
    pub commands: f64,
    /// Ids a second with so many drives.
    pub rates: Vec<DriveRate>,
}

/// A rate with a number of drives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DriveRate {
    /// Drives.
    pub drives: u32,
    /// Ids a second; 0 if it is not known.
    pub ids_per_second: f64,
}

/// A tier proposal, with the orders that the tables are to be loaded in.
#[derive(Debug)]
pub struct OrderedProposal {
    /// What goes to which tier.
    pub tiers: TierProposal,
    /// In the order of its tables.
    pub orders: Vec<HotnessOrder>,
}
