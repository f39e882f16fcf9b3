//! What `bench-load` found.

use serde::{Deserialize, Serialize};
use warprow_workload::median;

use crate::load::LoadResult;

/// Loading a table against `dd`. Drives that were not measured are `None`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Loads {
    /// Bytes of rows.
    pub size: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Seed of contents and permutation.
    pub seed: u64,
    /// Loads of each kind, of which medians are taken.
    pub pairs: u32,
    /// A drive that writes through the page cache.
    pub cached: Option<LoadedTable>,
    /// A drive that writes past the page cache.
    pub direct: Option<LoadedTable>,
}

/// Loads onto one drive. Ratios are how many times as fast Warprow is: medians of pairs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadedTable {
    /// Rows in the order of their ids.
    pub identity_bytes_per_second: f64,
    /// To `dd`.
    pub identity_ratio: f64,
    /// Rows put in the order of a random permutation.
    pub permuted_bytes_per_second: f64,
    /// To `dd`.
    pub permuted_ratio: f64,
    /// Rows picked when their rank is due.
    pub picked_bytes_per_second: f64,
    /// To `dd`.
    pub picked_ratio: f64,
    /// `dd` onto the same file system, over all of its runs.
    pub dd_bytes_per_second: f64,
    /// Verifying; early versions did not measure it.
    #[serde(flatten)]
    pub verified: Option<VerifyRates>,
    /// Rows read back and compared.
    pub rows_checked: u64,
    /// The type of the file system.
    pub filesystem: String,
    /// Bytes of an LBA.
    pub lba: u32,
}

/// Verifying rows against `dd` that reads as many bytes of the drive's file.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct VerifyRates {
    /// Warprow.
    pub verify_bytes_per_second: f64,
    /// To `dd`.
    pub verify_ratio: f64,
    /// `dd`.
    pub dd_read_bytes_per_second: f64,
}

impl From<&LoadResult> for LoadedTable {
    fn from(result: &LoadResult) -> Self {
        let LoadResult { identity, permuted, picked, verified, checked, filesystem, lba } = result;
        let dd = [identity, permuted, picked].into_iter().flat_map(|pairs| pairs.pairs()).map(|pair| pair.1);
        Self {
            identity_bytes_per_second: identity.median_a(),
            identity_ratio: identity.ratio(),
            permuted_bytes_per_second: permuted.median_a(),
            permuted_ratio: permuted.ratio(),
            picked_bytes_per_second: picked.median_a(),
            picked_ratio: picked.ratio(),
            dd_bytes_per_second: median(dd),
            verified: Some(VerifyRates {
                verify_bytes_per_second: verified.median_a(),
                verify_ratio: verified.ratio(),
                dd_read_bytes_per_second: verified.median_b(),
            }),
            rows_checked: *checked,
            filesystem: filesystem.clone(),
            lba: *lba,
        }
    }
}
