//! The look-up's CUDA kernels: their sources, embedded; their compilation for the device that is there, once; their launches.
//! `docs/gpu.md` says how they work together, `cuda/` holds them.

pub mod abi;
mod cache;
mod cache_pins;
mod compile;
pub mod crc;
pub mod dedupe;
mod error;
mod graph;
mod lookup;
mod ngrams;
mod overlay;
mod prebuilt;
mod ring_test;
mod row_cache;
mod sampled;

pub use cache::cache_directory;
pub use cache_pins::{CachePins, NoRoomForPins};
pub use compile::{Arch, compile, compile_with};
pub use error::KernelError;
pub use graph::LookupGraph;
pub use lookup::{FEW_IDS, Kernels, LONG_SHARED, LaunchShape, LookupKind, PrefetchKind, SAMPLED_IDS, SMALL_IDS};
pub use overlay::{OVERLAY_ALIGN, OverlayBatch, OverlayMap, StagedBatch, overlay_row_bytes};
pub use prebuilt::{prebuild, use_prebuilt};
pub use row_cache::{CacheClaim, CacheLines, CacheMap, CacheShape, CacheShare, CacheTooSmall, GivenRange};
pub use sampled::{SAMPLED_BYTES, SAMPLED_PLANS, SampledOf, SampledRing};
