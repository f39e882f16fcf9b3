//! Look-ups of a store's rows on a GPU: CUDA kernels on the caller's stream read the hottest rows from GPU memory and DRAM, and the
//! others from drives, to which they write NVMe commands themselves. Features, batches' meaning and options are those of
//! `warprow-lookup`; [`GpuExecutor::attach`] is the way in.
//!
//! CUDA is looked for when [`Gpu::open`] is called: everything builds, and starts, on a machine that has none. `docs/gpu.md` has the
//! protocol.

mod adopt;
mod arrange;
mod attached;
mod attempt;
mod batch;
mod copied;
mod dedupe;
mod describe;
mod drive_waker;
mod error;
mod executor;
mod launch;
mod merging;
mod options;
mod overlay;
mod plan;
mod prefetch;
mod reading_plan;
mod report;
mod slot;
mod table;
mod table_abi;
mod ticket;
mod view;

pub use adopt::GpuUpcoming;
pub use arrange::{GpuPlacement, TablePlacement, gpu_row_bytes};
pub use batch::{GpuBatch, GpuOutput, IdType, Len};
pub use copied::CopiedSlot;
pub use dedupe::choose_dedupe;
pub use error::{GpuError, QueueFault};
pub use executor::{DramRows, GpuExecutor};
pub use options::GpuOptions;
pub use plan::GpuPlan;
pub use prefetch::Prefetched;
pub use report::GpuReport;
pub use slot::GpuSlot;
pub use ticket::Ticket;
pub use warprow_gpu_queues::{Gpu, QueuePlacement, QueuePlacements};
