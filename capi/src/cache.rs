//! Caches of rows that look-ups have read from drives.

use std::time::Duration;

use warprow_gpu::{GpuCacheStatistics, GpuError};
use warprow_lookup::CacheStatistics;

use crate::arguments::check_place;
use crate::error::{Failure, warprow_error};
use crate::gpu::{self, warprow_gpu_executor};
use crate::guard;
use crate::handle;
use crate::host::{self, warprow_host_executor};
use crate::sized::{check, fill, versioned};
use crate::status::warprow_status;

/// What a cache has done since its executor was attached.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_cache_statistics {
    /// sizeof(warprow_cache_statistics).
    pub struct_size: usize,
    /// Rows that it has room for.
    pub lines: u64,
    /// Rows that it has.
    pub used: u64,
    /// Rows that were taken in.
    pub admissions: u64,
    /// Rows that were given up for others.
    pub evictions: u64,
    /// On the host: different rows of batches that were looked for and found. On a GPU 0: reports count ids.
    pub hits: u64,
    /// On the host: different rows of batches that were looked for and not found. On a GPU 0.
    pub misses: u64,
    /// On a GPU: rows that found no line, because look-ups under way may read all lines that come into question. On the host 0.
    pub full: u64,
    /// On a GPU: rows that the admission refused. On the host 0.
    pub refusals: u64,
    /// On a GPU: for how many look-ups a line is held that one has used. On the host 0.
    pub hold: u64,
}

versioned! {
    warprow_cache_statistics: 80,
}

impl From<CacheStatistics> for warprow_cache_statistics {
    fn from(it: CacheStatistics) -> Self {
        Self {
            struct_size: 0,
            lines: it.lines,
            used: it.used,
            admissions: it.admissions,
            evictions: it.evictions,
            hits: it.hits,
            misses: it.misses,
            full: 0,
            refusals: 0,
            hold: 0,
        }
    }
}

impl From<GpuCacheStatistics> for warprow_cache_statistics {
    fn from(it: GpuCacheStatistics) -> Self {
        Self {
            struct_size: 0,
            lines: it.lines,
            used: it.used,
            admissions: it.admissions,
            evictions: it.evictions,
            hits: 0,
            misses: 0,
            full: it.full,
            refusals: it.refusals,
            hold: it.hold,
        }
    }
}

fn no_cache() -> Failure {
    Failure::invalid("the executor has no cache: attach one with cache_bytes")
}

/// Says what the cache of a host executor has done. WARPROW_STATUS_INVALID_ARGUMENT: it was attached without one.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_cache_statistics(
    executor: *const warprow_host_executor,
    statistics: *mut warprow_cache_statistics,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("statistics", statistics)?;
            check(statistics)?;
            let found = handle::get::<host::Executor>(executor)?.0.cache_statistics().ok_or_else(no_cache)?;
            fill(statistics, &found.into())
        })
    }
}

/// Gives up all rows of a host executor's cache. Look-ups go on meanwhile, and fill it again. WARPROW_STATUS_INVALID_ARGUMENT: it was
/// attached without one.
///
/// Any thread may call it. It never blocks for long.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_clear_cache(
    executor: *const warprow_host_executor,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<host::Executor>(executor)?;
            executor.0.cache_statistics().ok_or_else(no_cache)?;
            executor.0.clear_cache();
            Ok(())
        })
    }
}

/// Says what the cache of a GPU executor has done. WARPROW_STATUS_INVALID_ARGUMENT: it was attached without one.
///
/// Any thread may call it. It waits for what CUDA's default stream was given before. No stream may be being captured meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_cache_statistics(
    executor: *const warprow_gpu_executor,
    statistics: *mut warprow_cache_statistics,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("statistics", statistics)?;
            check(statistics)?;
            let found = handle::get::<gpu::Executor>(executor)?.0.cache_statistics()?.ok_or_else(no_cache)?;
            fill(statistics, &found.into())
        })
    }
}

/// Gives up all rows of a GPU executor's cache: they are read anew. Look-ups go on meanwhile without the cache. It waits up to
/// `patience_ms` milliseconds for look-ups that may read the cache's rows. WARPROW_STATUS_BUSY: one did not end, such as one whose batch
/// was fetched ahead; the cache is as it was. WARPROW_STATUS_INVALID_ARGUMENT: it was attached without one.
///
/// Any thread may call it. It blocks for as long as said.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_clear_cache(
    executor: *const warprow_gpu_executor,
    patience_ms: u64,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<gpu::Executor>(executor)?;
            executor.0.clear_cache(Duration::from_millis(patience_ms)).map_err(|error| match error {
                GpuError::NoCache => no_cache(),
                other => other.into(),
            })
        })
    }
}
