//! NVMe queue pairs that a CUDA kernel drives: their memory, the gate before them, doorbells, faults and recovery.
//! `docs/gpu-rings.md` is the contract with the kernels; [`abi`] declares what host and kernels keep in memory.
//!
//! The letters A, A⁻, B, B′, C and D stand for where rings, rows and doorbells lie and who stores to the doorbells:
//! [`QueuePlacement`] says what each means.
//!
//! CUDA is looked for at run time. Everything but [`Gpu`] itself also works with a thread of this process in the place
//! of the kernels, which is how it is tested where there is no GPU.

pub mod abi;
mod address_space;
mod capture_mode;
mod doorbell_access;
mod doorbell_memory;
mod doorbell_proxy;
mod doorbell_registers;
mod error;
mod gate;
mod gdrdrv;
mod gpu;
mod kept_gpu_memory;
mod kept_memory;
mod kept_memory_error;
mod kernel_module;
mod memory;
mod memory_placement;
mod peer_memory;
mod pinned_ranges;
mod queue_memory;
mod queue_placement;
mod register_facts;
mod register_refusal;
mod ring_test;
mod set;

pub use capture_mode::RelaxedCapture;
pub use doorbell_access::DoorbellAccess;
pub use doorbell_proxy::{DoorbellProxy, ForwardedGate};
pub use error::{GpuQueueError, ends_context};
pub use gate::Gate;
pub use gdrdrv::{Gdrdrv, GdrdrvError, GdrdrvMemory};
pub use gpu::{CurrentContext, Gpu};
pub use kept_gpu_memory::KeptGpuMemory;
pub use kept_memory::{KeptMemory, MemoryKeeper, kept_memory};
pub use kept_memory_error::KeptMemoryError;
pub use kernel_module::KernelModule;
pub use memory::{DeviceMemory, PinnedMemory};
pub use memory_placement::MemoryPlacement;
pub use pinned_ranges::{pinned_address, pinned_changes};
pub use queue_memory::{DriveWritable, DriveWritableBlock};
pub use queue_placement::{DrivePlacement, QueuePlacement, QueuePlacements};
pub use register_refusal::RegisterRefusal;
pub use ring_test::{RingLaunchError, RingTest, RingTestError, RingTestReport};
pub use set::{MAX_LANDING_BYTES, QueueSet, QueueSetOptions};
pub use warprow_vfio::{Keeper, KeeperError};
