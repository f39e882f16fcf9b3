//! Measurements on a GPU.
//!
//! Launches, and calls into CUDA that have no safe form, stand here and nowhere else in the benchmarks.
#![allow(unsafe_code, reason = "kernels of rivals are launched here, and look-ups take addresses")]

mod cuda;
pub mod dram;
pub mod ring;

pub use cuda::{Graph, Rivals, Stream};
