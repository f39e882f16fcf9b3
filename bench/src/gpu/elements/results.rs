//! What was measured of elements and checksums.

use serde::{Deserialize, Serialize};

/// Rows of some elements in one tier, pooled or not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ElementResult {
    /// Elements.
    pub elements: String,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Where rows are: `hbm` or `dram`.
    pub tier: String,
    /// Whether bags are summed.
    pub pooled: bool,
    /// Ids of a look-up.
    pub ids: u64,
    /// Kernels of a look-up.
    pub kernels: usize,
    /// Median microseconds as a graph, by the GPU, its launch hidden.
    pub us: f64,
    /// The time divided by the time of f32 in the same tier, pooled likewise; none if f32 was not measured.
    pub of_f32: Option<f64>,
    /// Ids a second.
    pub ids_per_second: f64,
    /// Bytes of rows and output a second, rows once for each id.
    pub bytes_per_second: f64,
    /// Rows or bags compared, all of every answer.
    pub checked: u64,
    /// Elements that the processor computed too.
    pub checked_by_cpu: u64,
}

/// A look-up of rows on drives, without and with comparing them; medians.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ChecksumResult {
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Ids of a look-up.
    pub ids: u64,
    /// Drives.
    pub drives: u32,
    /// Read commands of a look-up.
    pub commands: u64,
    /// Microseconds from the call until its end is seen, unchecked and checked.
    pub seen_us: [f64; 2],
    /// Microseconds of it in which rows are read, by the GPU's clock.
    pub fetch_us: [f64; 2],
    /// Checked by unchecked, as seen.
    pub ratio: f64,
    /// Rows compared with what they must be, all of every answer.
    pub checked: u64,
}
