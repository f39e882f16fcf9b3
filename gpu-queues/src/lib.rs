//! NVMe queue pairs that a CUDA kernel drives: their memory, the gate before them, doorbells, faults and recovery.
//! `docs/gpu.md` is the contract with the kernels, [`abi`] what both sides keep in memory.
//!
//! CUDA is looked for at run time. Everything but [`Gpu`] itself also works with a thread of this process in the place of the
//! kernels, which is how it is tested where there is no GPU.

pub mod abi;
mod bells;
mod error;
mod forwarder;
mod gate;
mod gpu;
mod ladder;
mod memory;
mod set;
mod side;

pub use error::{GpuError, ends_context};
pub use forwarder::{DoorbellForwarder, ForwardedGate};
pub use gate::Gate;
pub use gpu::{Current, Gpu};
pub use ladder::{Choice, Ladder, Rung};
pub use memory::{DeviceMemory, Registered};
pub use set::{MOST_LANDING_BYTES, QueueSet, QueueSetOptions};
