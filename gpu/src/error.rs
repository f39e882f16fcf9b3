use std::path::PathBuf;
use std::sync::Arc;

use warprow_driver::DriverError;
use warprow_kernels::CachePins;
use warprow_kernels::abi::CACHE_WAYS;
use warprow_layout::VolumeError;

use warprow_lookup::MissingId;
use warprow_store::StoreError;

use crate::cache_file::CacheFileError;
use crate::report::GpuReport;

/// Why the GPU executor cannot do what it was asked to, or what went wrong with a look-up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The GPU, its memory or its driver failed.
    #[error(transparent)]
    Gpu(#[from] warprow_gpu_queues::GpuQueueError),
    /// The kernels could not be compiled, loaded or launched.
    #[error(transparent)]
    Kernels(#[from] warprow_kernels::KernelError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A drive's controller failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The GPU was asked to store to doorbell registers of a drive, and the ring test of the drive failed.
    #[error(transparent)]
    RingTest(#[from] warprow_gpu_queues::RingTestError),
    /// A plan or an option that the GPU executor cannot serve.
    #[error("{0}")]
    Unsupported(String),
    /// A table of the plan was found damaged when the executor was attached: which row belongs to which id is lost.
    #[error(
        "{source}: load it again, and attach again (no look-up can find the rows of {table:?}; other tables are as they were)"
    )]
    TableDamaged {
        /// The table.
        table: String,
        /// What is wrong with it.
        source: Arc<VolumeError>,
    },
    /// A plan has no room for the tables that it is to adopt; nothing was changed.
    #[error("look-ups cannot go over to these tables: {0}")]
    Unfit(String),
    /// The batch or the output does not fit; nothing was launched.
    #[error("{what}: {why}")]
    Invalid {
        /// Which part of the batch or the output.
        what: &'static str,
        /// What is wrong, and what to do.
        why: String,
    },
    /// All slots of a plan are in use.
    #[error("all {slots} slots of the plan are in use: drop one, or plan more")]
    NoFreeSlot {
        /// Slots of the plan.
        slots: u32,
    },
    /// The slot holds a batch that was prefetched.
    #[error("the slot holds a batch that was prefetched: look that up or drop it, or take another slot")]
    SlotHoldsBatch,
    /// The cache has too few lines: for the rows of a batch, or to tell a table's rows apart. Nothing was changed.
    #[error(
        "a cache of {bytes} B has too few lines, {needed} B would do: give GpuOptions::cache_bytes as many, or plan smaller batches"
    )]
    CacheTooSmall {
        /// What it has.
        bytes: u64,
        /// What would do.
        needed: u64,
    },
    /// Shares of tables in the cache that cannot be: two of one table, of a table of which no row may be cached, or more than the cache has.
    /// Nothing was changed.
    #[error("{0}")]
    CacheShares(String),
    /// A table's share of the cache has too few lines: for the table's rows of a batch, or to tell them apart. Nothing was changed.
    #[error(
        "the share of table {table:?} in the cache, {bytes} B, has too few lines, {needed} B would do: give GpuOptions::with_table_cache as many, or plan smaller batches"
    )]
    CacheShareTooSmall {
        /// The table.
        table: String,
        /// What its lines have.
        bytes: u64,
        /// What would do.
        needed: u64,
    },
    /// Sets of the cache's lines have no room for so many pinned rows. Nothing was changed.
    #[error(
        "{rows} of the rows to pin of table {table:?}, the first of id {first}, may each lie in {} lines of which {} are pinned already, or would be: pin fewer rows, unpin others, give GpuOptions::cache_bytes more, or keep these rows in GPU memory by GpuOptions::with_hbm_rows",
        CACHE_WAYS,
        CachePins::MOST
    )]
    CachePinsFull {
        /// The table.
        table: String,
        /// Rows that find no room.
        rows: u64,
        /// The id, or key, of the first of them.
        first: u64,
    },
    /// A list of what a cache has cannot be saved or read; nothing was changed.
    #[error("the cache's list {path:?}: {source}")]
    CacheFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: CacheFileError,
    },
    /// There is no cache.
    #[error("the executor has no cache: attach with GpuOptions::with_cache_bytes")]
    NoCache,
    /// A look-up did not end in time, so that the cache could not be swept; it is as it was.
    #[error(
        "a look-up of slot {slot} of those that use the cache did not end in time, and may read its lines: look its prefetched batch up or drop it, and call this again"
    )]
    CacheBusy {
        /// The slot, by its place among those that use the cache.
        slot: u64,
    },
    /// Work that has not ended is in the way: another launch of the slot, tickets that are held, or look-ups that read
    /// what is to be replaced. The text names it, with the remedy.
    #[error("{0}")]
    Busy(&'static str),
    /// An earlier launch was cut off half-way by an error of CUDA's.
    #[error("the slot cannot be used any more since a launch failed half-way: drop it and take another")]
    Broken,
    /// The batch has more ids or bags than planned, or offsets that do not ascend, which was found on the GPU.
    #[error("the batch was wrong: {0}; {1}")]
    Flawed(&'static str, &'static str),
    /// Ids are missing of a feature with [`MissingPolicy::Error`](warprow_lookup::MissingPolicy::Error). They got rows
    /// of zeros; all other rows are valid.
    #[error(
        "{missing} ids are missing from their tables, the first that is an error is id {} at position {}: they got rows of zeros",
        .first.id, .first.position
    )]
    MissingIds {
        /// How many ids are missing, those of other features included.
        missing: u64,
        /// The first one of a feature with `MissingPolicy::Error`.
        first: MissingId,
        /// The report of the look-up.
        report: Box<GpuReport>,
    },
    /// Launches of a graph failed before its latest one, which did not.
    #[error(
        "{failures} launches of the graph failed since the last check; what was wrong with them is overwritten: check between launches"
    )]
    RunsFailed {
        /// How many.
        failures: u32,
        /// The report of the latest launch.
        report: Box<GpuReport>,
    },
    /// Rows could not be read. All other rows of the output are valid; the mask tells which these are.
    #[error(
        "{failed} ids got no row, because {}; the next look-up of this slot starts queues anew that take no more commands",
        .first.as_ref().map_or_else(|| "their queues were closed for a reset, or have been started anew since".to_owned(), ToString::to_string)
    )]
    RowsFailed {
        /// How many ids got no row.
        failed: u64,
        /// The first cause that is known, with its queue.
        first: Option<QueueFault>,
        /// The report of the look-up.
        report: Box<GpuReport>,
    },
}

/// A command or a row that failed, and on which queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{drive}: {what} (queue {queue}, CID {:#06x}, LBA {})", .command.0, .command.1)]
pub struct QueueFault {
    /// The drive.
    pub drive: String,
    /// NVMe queue identifier.
    pub queue: u16,
    /// Identifier and first LBA of a command that was not answered, failed by its status, or read a damaged row.
    pub command: (u16, u64),
    /// What happened.
    pub what: String,
}

impl QueueFault {
    /// What failed, and which command it was, without the drive.
    pub fn failed(&self) -> String {
        format!("{} (queue {}, CID {:#06x}, LBA {})", self.what, self.queue, self.command.0, self.command.1)
    }
}
