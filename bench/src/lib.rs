//! Microbenchmarks against named rivals.

pub mod ahead;
pub mod arguments;
mod bytes;
pub mod cache;
pub mod cold;
mod copies;
mod cores;
pub mod drive;
pub mod fixtures;
pub mod gpu;
pub mod growth;
pub mod host_cache;
pub mod landing;
pub mod load;
pub mod lookup;
pub mod merging;
mod minimal_ring;
pub mod output;
pub mod passes;
pub mod plan;
mod processor_time;
pub mod report;
pub mod rerank;
pub mod results;
pub mod ring;
mod scratch;
pub mod ssd;
mod sustained;
pub mod switch;
mod vfio_user;

pub use bytes::{Bytes, BytesError, Count, CountError};
pub use copies::Copies;
pub use cores::Cores;
pub use minimal_ring::{MinimalRing, MinimalRingError};
pub use scratch::Scratch;
