//! Emulated NVMe drives whose reads are answered by a CUDA kernel, at the speed of hardware: `emulated:/data/a.img,gpu=0`.
//!
//! A drive of this kind is the software controller's, as every emulated drive, and what lasts is its file. The GPU has a copy of the
//! namespace, and a kernel on it answers the plain reads of those queues that another kernel drives. `docs/gpu-drive.md` says how, what it
//! proves, and what holds such a drive up.
//!
//! [`register`] makes the property `gpu=` known in a process:
//!
//! ```no_run
//! warprow_gpu_drive::register();
//! let drive: warprow_soft_controller::DriveUri = "emulated:/data/a.img,gpu=0".parse()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod abi;
mod image;
mod launches;
mod maker;
mod mirrored;
mod offload;
mod player;

pub use maker::{play, register};
