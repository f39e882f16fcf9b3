//! Look-ups of a store's rows on a GPU: CUDA kernels on the caller's stream read the hottest rows from GPU memory and
//! DRAM, and the others from drives, to which they write NVMe commands themselves. Features, plan options and the
//! meaning of batches are those of `warprow-lookup`. A program begins with [`GpuExecutor::attach`], makes a
//! [`GpuPlan`], and takes a [`GpuSlot`] of it for each look-up that is under way at one time.
//!
//! CUDA is looked for when [`Gpu::open`] is called: everything builds, and starts, on a machine that has none.
//! `docs/gpu.md` follows a batch through the kernels.

mod ablations;
mod adopt;
mod arrange;
mod attached;
mod attempt;
mod batch;
mod cache_file;
mod cache_lines;
mod cache_pins;
mod cache_shares;
mod capture;
mod captured_tickets;
mod copied;
mod dedupe;
mod describe;
mod drive_waker;
mod error;
mod executor;
mod launch;
mod merging;
mod ngrams;
mod options;
mod overlay;
mod plan;
mod prefetch;
mod reading_plan;
mod report;
mod ring_refusals;
mod row_cache;
mod row_names;
mod sampling;
mod saved_cache;
mod scales;
mod second_tier;
mod slot;
mod table;
mod table_abi;
mod ticket;
mod touch_epochs;
mod touches;
mod view;
mod warm;
mod warming;
mod written_rows;

pub use ablations::Ablations;
pub use adopt::GpuPreparedTables;
pub use arrange::{GpuTiers, TableTiers, gpu_row_bytes};
pub use batch::{BatchLen, GpuBatch, GpuOutput, IdType};
pub use cache_file::CacheFileError;
pub use cache_lines::GpuCacheLines;
pub use copied::CopyingSlot;
pub use dedupe::choose_dedupe;
pub use error::{GpuError, QueueFault};
pub use executor::{DramRows, GpuExecutor};
pub use ngrams::{GpuNgramHash, GpuTokens};
pub use options::{CacheAdmission, GpuOptions, PrefetchPriority};
pub use plan::GpuPlan;
pub use prefetch::PrefetchedBatch;
pub use report::GpuReport;
pub use row_cache::GpuCacheStatistics;
pub use saved_cache::{GpuCacheRestored, GpuCacheSaved, RestoredTable};
pub use scales::ResidentScales;
pub use slot::GpuSlot;
pub use ticket::Ticket;
pub use warm::{GpuPinned, GpuWarmed};
pub use warprow_gpu_queues::{
    DoorbellAccess, Gpu, Keeper, KeeperError, KeptGpuMemory, KeptMemoryError, MemoryPlacement, QueuePlacement,
    QueuePlacements,
};
