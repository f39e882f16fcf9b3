//! Ids from files.

mod csv;
mod error;
mod file;
mod npy;
mod raw;
mod rest;

pub use error::{TraceError, TraceProblem};
pub use file::TraceFile;
