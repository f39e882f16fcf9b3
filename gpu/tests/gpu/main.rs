//! Whole look-ups on a GPU, against the naive one that the host executor is held to as well. Without a GPU they are
//! skipped.
//!
//! `WARPROW_SEEDS` sets how many random stores are tried, `WARPROW_TIME_SCALE` multiplies all time-outs and waits, for
//! tools under which kernels are slow.
#![allow(unsafe_code, reason = "look-ups on a GPU take addresses")]

#[path = "../../../lookup/tests/common/mod.rs"]
mod common;

mod ablations;
mod attach;
mod cache_shares;
mod cached_dram;
mod captures;
mod checkpoints;
mod dead;
mod failed_rows;
mod faults;
mod fixture;
mod follow;
mod foreign;
mod graphs;
mod host_doorbells;
mod listed;
mod lookups;
mod merging;
mod ngrams;
mod pinned_rows;
mod prefetch;
mod prefetch_captured;
mod refusals;
#[cfg(target_arch = "x86_64")]
mod registers;
mod removals;
mod row_cache;
mod saved_cache;
#[cfg(target_arch = "x86_64")]
mod stand_in;
mod touches;
mod updates;
mod wraps;
mod written_rows;
