//! What a look-up on a GPU did.

use std::time::Duration;

use warprow_lookup::MissingId;

/// What a look-up on the GPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuReport {
    /// Launches of this ticket that have ended: more than one if it was captured in a graph.
    pub runs: u64,
    /// Ids given.
    pub ids: u64,
    /// Ids that were the padding id and were not read, and missing ids of features that ignore them.
    pub padding: u64,
    /// Ids that their table does not have, but for ignored ones.
    pub missing: u64,
    /// Ids whose row could not be read.
    pub failed: u64,
    /// Ids served from GPU memory.
    pub ids_hbm: u64,
    /// Ids served from DRAM.
    pub ids_dram: u64,
    /// Ids served from drives.
    pub ids_ssd: u64,
    /// Different rows that lay in DRAM.
    pub rows_dram: u64,
    /// Different rows that had to be read from drives.
    pub rows_ssd: u64,
    /// Read commands.
    pub commands: u64,
    /// Stores to doorbells.
    pub doorbells: u64,
    /// Bytes read from drives.
    pub bytes_read: u64,
    /// Completions that nobody waited for.
    pub anomalies: u64,
    /// Rows from drives that did not match their checksums.
    pub damaged: u64,
    /// Commands for several rows that a drive could not carry out for a bad block: rows were read again one by one, so that those of them failed
    /// that lie in it. `commands` does not count that.
    pub split: u64,
    /// The first id that its table does not have, of features with [`Bounds::Report`](warprow_lookup::Bounds::Report).
    pub first_missing: Option<MissingId>,
    /// The latest generation among those that were read.
    pub generation: u64,
    /// From the first kernel's start until unique keys were known, by the GPU's clock.
    pub prepare: Duration,
    /// From there until all rows were in GPU memory.
    pub fetch: Duration,
    /// From there to the end.
    pub expand: Duration,
}
