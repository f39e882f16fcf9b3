//! The GPU executor: look-ups as CUDA kernels on the caller's stream. `docs/gpu.md` has the protocol.

mod arrange;
mod batch;
mod copied;
mod dedupe;
mod describe;
mod error;
mod executor;
mod follow;
mod herald;
mod launch;
mod merging;
mod overlay;
mod plan;
mod prefetch;
mod slot;
mod ticket;
mod view;

pub use arrange::{GpuPlacement, TablePlacement, gpu_row_bytes};
pub use batch::{GpuBatch, GpuOutput, IdType, Len};
pub use copied::CopiedSlot;
pub use dedupe::Dedupe;
pub use error::{GpuError, QueueFault};
pub use executor::{DramRows, GpuExecutor, GpuOptions};
pub use follow::GpuUpcoming;
pub use plan::GpuPlan;
pub use prefetch::Prefetched;
pub use slot::GpuSlot;
pub use ticket::{GpuReport, Ticket};
