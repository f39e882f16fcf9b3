//! What `bench-dram` found.

use serde::{Deserialize, Serialize};

use crate::gpu::dram::{CachedDram, DramResult, Sweep};

/// Look-ups of rows in DRAM by a GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DramLookups {
    /// The GPU's name.
    pub gpu: String,
    /// Seed of contents and ids.
    pub seed: u64,
    /// Repetitions, of which medians are taken.
    pub runs: u32,
    /// By table, law and number of ids.
    pub results: Vec<DramResult>,
    /// By number of gathering blocks.
    pub sweeps: Vec<Sweep>,
    /// With a cache in GPU memory, and without.
    #[serde(default)]
    pub cached: Vec<CachedDram>,
    /// What was left out.
    pub notes: Vec<String>,
}
