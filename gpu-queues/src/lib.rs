//! NVMe queue pairs that a CUDA kernel drives.

pub mod abi;
