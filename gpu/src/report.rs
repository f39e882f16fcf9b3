//! The report of a look-up on a GPU: counts and times.

use std::time::Duration;

use warprow_lookup::MissingId;

/// The report of a look-up on the GPU. Times are by the GPU's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuReport {
    /// How many launches of this ticket have ended: more than one if the look-up was captured in a graph that ran
    /// again.
    pub runs: u64,
    /// How many ids the batch had.
    pub ids: u64,
    /// Padding ids whose row was not read, and missing ids of features that ignore these
    /// ([`BoundsCheck::Ignore`](warprow_lookup::BoundsCheck::Ignore)).
    pub padding: u64,
    /// Ids that their table does not have, without those that count as `padding`.
    pub missing: u64,
    /// Ids whose row could not be read.
    pub failed: u64,
    /// Ids served from GPU memory.
    pub ids_hbm: u64,
    /// Ids served from DRAM.
    pub ids_dram: u64,
    /// Ids served from the cache in GPU memory.
    pub ids_cached: u64,
    /// Ids served from drives.
    pub ids_ssd: u64,
    /// Different rows that lay in DRAM.
    pub rows_dram: u64,
    /// Different rows that had to be read from drives.
    pub rows_ssd: u64,
    /// Read commands sent to drives.
    pub commands: u64,
    /// Stores to doorbells.
    pub doorbells: u64,
    /// Bytes read from drives.
    pub bytes_read: u64,
    /// Completions that answered no outstanding command.
    pub anomalies: u64,
    /// Rows from drives that did not match their checksums.
    pub damaged: u64,
    /// Commands for several rows that a drive could not carry out because of a bad block. Their rows were read again
    /// one by one, so that only rows in that block failed. `commands` does not count such a second read.
    pub split: u64,
    /// The first id that its table does not have, of features with
    /// [`BoundsCheck::Report`](warprow_lookup::BoundsCheck::Report).
    pub first_missing: Option<MissingId>,
    /// The latest of the generations that the look-up's tables belong to.
    pub generation: u64,
    /// From the first kernel's start until unique keys were known, by the GPU's clock.
    pub prepare: Duration,
    /// From then until all rows were in GPU memory.
    pub fetch: Duration,
    /// From then until the look-up ended.
    pub expand: Duration,
}
