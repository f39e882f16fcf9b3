//! What `bench-dedupe` found.

use serde::{Deserialize, Serialize};

use crate::gpu::dedupe::DedupeResult;

/// Ways to find the different rows among a batch's ids.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dedupes {
    /// The GPU's name.
    pub gpu: String,
    /// Repetitions, of which medians are taken.
    pub runs: u32,
    /// Seed of contents and ids.
    pub seed: u64,
    /// By table, law and number of ids.
    pub results: Vec<DedupeResult>,
    /// Rows, exponent, and which way is best from how many ids on.
    pub crossovers: Vec<(u64, f64, String)>,
    /// What was left out.
    pub notes: Vec<String>,
}
