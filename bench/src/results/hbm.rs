//! What `bench-hbm` found.

use serde::{Deserialize, Serialize};

use crate::gpu::hbm::HbmResult;
use crate::gpu::hbm::cached::CacheMeasured;

/// Look-ups of rows in GPU memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HbmLookups {
    /// The GPU's name.
    pub gpu: String,
    /// Rows of the table.
    pub rows: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Bags of a look-up.
    pub bags: u64,
    /// Ids of a bag.
    pub hot: u64,
    /// Repetitions, of which medians are taken.
    pub runs: u32,
    /// Seed of contents and ids.
    pub seed: u64,
    /// Bytes a second that a copy within GPU memory reads and writes.
    pub copy_bytes_per_second: f64,
    /// Sums and rows, by the law of their ids.
    pub results: Vec<HbmResult>,
    /// A cache for the same rows, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheMeasured>,
    /// What was left out, and who took part.
    pub notes: Vec<String>,
}
