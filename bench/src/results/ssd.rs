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
    /// Bytes of an LBA.
    #[serde(default)]
    pub lba: u32,
    /// The drives hold so many times as much as the table.
    #[serde(default)]
    pub room: u32,
    /// Which parts of the drives the table takes ([`ChunkSpread`](warprow_layout::ChunkSpread)).
    #[serde(default)]
    pub spread: String,
    /// The GPU that played the drives, if one did.
    #[serde(default)]
    pub player: Option<u32>,
    /// The exponent of the power law by which ids were drawn; 0: uniform.
    #[serde(default)]
    pub alpha: f64,
    /// Seed of contents and ids.
    pub seed: u64,
    /// By timing, drives and ids.
    pub results: Vec<SsdResult>,
    /// What was left out, and why figures are not to be trusted.
    pub notes: Vec<String>,
}
