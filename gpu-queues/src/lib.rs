//! NVMe queue pairs that a CUDA kernel drives.

pub mod abi;
mod error;
mod gpu;
mod memory;

pub use error::GpuError;
pub use gpu::{Current, Gpu};
pub use memory::{DeviceMemory, Registered};
