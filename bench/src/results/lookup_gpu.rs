//! What `bench-lookup --gpu` found.

use serde::{Deserialize, Serialize};

use crate::gpu::ahead::AheadResult;
use crate::gpu::criteo::{CallResult, CriteoResult, LatencyResult, SplitResult};

/// Look-ups by the GPU executor. What was not measured is empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuLookups {
    /// The GPU's name.
    pub gpu: String,
    /// Seed of contents and ids.
    pub seed: u64,
    /// Small look-ups, by tier.
    pub small: Vec<LatencyResult>,
    /// One table and 26.
    pub split: Vec<SplitResult>,
    /// What calls cost.
    pub calls: Vec<CallResult>,
    /// Batches fetched ahead.
    #[serde(default)]
    pub ahead: Vec<AheadResult>,
    /// Tables as others publish them.
    pub tables: Vec<CriteoResult>,
    /// What was left out, and what peers publish.
    pub notes: Vec<String>,
}
