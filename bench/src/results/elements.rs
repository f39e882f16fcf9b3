//! What `bench-elements` found.

use serde::{Deserialize, Serialize};

use crate::gpu::elements::{ChecksumResult, ElementResult};

/// What elements and checksums of rows cost. What was not measured is empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ElementsAndChecksums {
    /// The GPU's name.
    pub gpu: String,
    /// Rows of each table of elements.
    pub rows: u64,
    /// Elements of a row.
    pub dim: u32,
    /// Bags of a look-up.
    pub bags: u64,
    /// Ids of a bag.
    pub hot: u64,
    /// Exponent of the power law that ids follow.
    pub alpha: f64,
    /// Bytes of rows on drives.
    pub size: u64,
    /// Repetitions, of which medians are taken.
    pub runs: u32,
    /// Seed of contents and ids.
    pub seed: u64,
    /// By kind of elements, tier and pooling.
    pub elements: Vec<ElementResult>,
    /// By bytes of a row and number of ids.
    pub checksums: Vec<ChecksumResult>,
    /// What was left out.
    pub notes: Vec<String>,
}
