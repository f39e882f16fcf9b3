//! The C interface of Warprow: `libwarprow` and `include/warprow.h`, which is generated from this crate.
//!
//! `docs/capi.md` has the rules that hold for all functions: ownership, threads, errors, and how structures may grow.
#![allow(non_camel_case_types, reason = "the names are those of the header")]

mod abi;
mod arguments;
mod batch;
mod cache;
mod cache_shares;
mod classify;
mod error;
mod gpu;
mod gpu_lookup;
mod guard;
mod handle;
mod host;
mod load;
mod load_file;
mod ngrams;
mod operators;
mod plan;
mod report;
mod sized;
mod status;
mod store;
mod tables;
mod touches;
mod types;
mod update;

pub use abi::*;
pub use batch::{warprow_batch, warprow_output};
pub use cache::*;
pub use error::*;
pub use gpu::*;
pub use gpu_lookup::*;
pub use host::*;
pub use load::*;
pub use load_file::*;
pub use ngrams::*;
pub use operators::*;
pub use plan::{warprow_feature, warprow_plan_options};
pub use report::*;
pub use status::warprow_status;
pub use store::*;
pub use tables::*;
pub use touches::*;
pub use types::*;
pub use update::*;
