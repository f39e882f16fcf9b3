//! Measurements on a GPU.
//!
//! Launches, and calls into CUDA that have no safe form, stand here and nowhere else in the benchmarks.
#![allow(unsafe_code, reason = "kernels of rivals are launched here, and look-ups take addresses")]

pub mod ahead;
pub mod criteo;
pub mod dedupe;
pub mod dram;
pub mod elements;
pub mod hbm;
mod kernels;
mod module;
mod processor;
mod python;
mod request;
pub mod resident;
pub mod ring;
pub mod ssd;
mod stream;
mod timed_lookup;

pub use kernels::{Gather, Kernels};
pub use processor::{HostRows, gather, pool};
pub use request::{Drawn, Request, Shape, ready};
pub use stream::{Graph, Stream};
pub use timed_lookup::TimedLookup;

/// Microseconds.
pub(crate) fn us(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
