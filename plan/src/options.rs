//! What a tier proposal is asked for.

use serde::{Deserialize, Serialize};
use warprow_layout::DType;

use crate::budget::MemoryBudgets;
use crate::costs::{GpuCosts, HostCosts};
use crate::drives::AlikeDrives;

/// A table that tiers are proposed for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableShape {
    /// The name of the table.
    pub name: String,
    /// Rows of the table; at least one.
    pub rows: u64,
    /// Elements in a row; at least one.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Looked up by keys: bytes of their index, which lies in memory beside rows. `None`: by ids, from 0 on.
    pub index_bytes: Option<u64>,
}

impl TableShape {
    /// Bytes that the index of so many keys takes, about, with the usual fingerprints of 16 bits.
    pub fn index_of(rows: u64) -> u64 {
        (rows as f64 * (3.4 + 16.0) / 8.0) as u64
    }

    pub(crate) fn is_keyed(&self) -> bool {
        self.index_bytes.is_some()
    }
}

/// Whether rows that are looked up together shall share LBAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupRows {
    /// Rows are grouped where that saves reads on the part of the trace that the grouping was not learnt from.
    #[default]
    Auto,
    /// In any case.
    On,
    /// No.
    Off,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct ProposalOptions {
    /// Memory for rows.
    pub budgets: MemoryBudgets,
    /// Where the others lie.
    pub drives: AlikeDrives,
    /// Queries of a look-up.
    pub batch: u32,
    /// The last part of the trace, on which the proposal is tested: a share above 0 and up to a half.
    pub held_out: f64,
    /// Bytes that counting may take. More rows than fit are counted by a sketch.
    pub memory: u64,
    /// Grouping.
    pub group: GroupRows,
    /// Whether ids that their table does not have are counted rather than refused.
    pub allow_missing: bool,
    /// What look-ups cost the host.
    pub costs: HostCosts,
    /// What they cost a GPU.
    pub gpu: GpuCosts,
    /// Seed of what is drawn.
    pub seed: u64,
}

impl Default for ProposalOptions {
    /// No memory for rows, one drive of which nothing is known, look-ups of 4,096 queries, a fifth held out, 2 GiB for
    /// counting.
    fn default() -> Self {
        Self {
            budgets: MemoryBudgets::default(),
            drives: AlikeDrives { count: 1, profile: "none".to_owned(), bytes: 0, lba: 512, emulated: false },
            batch: 4096,
            held_out: 0.2,
            memory: 2 << 30,
            group: GroupRows::Auto,
            allow_missing: false,
            costs: HostCosts::default(),
            gpu: GpuCosts::default(),
            seed: 1,
        }
    }
}
