//! What `bench-ssd` found.

use serde::{Deserialize, Serialize};

use crate::ssd::SsdResult;

/// Look-ups of rows on drives, by the GPU and by threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SsdLookups {
    /// The GPU's name, where there is one.
    pub gpu: Option<String>,
    /// Bytes of rows.
    pub size: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// What drives are made of.
    pub media: String,
    /// Which rows share a command, where that was asked for.
    pub merging: Option<String>,
    /// Seed of contents and ids.
    pub seed: u64,
    /// By timing, drives and ids.
    pub results: Vec<SsdResult>,
    /// What was left out, and why figures are not to be trusted.
    pub notes: Vec<String>,
}
