//! Caches of rows that look-ups have read from drives.

use std::ffi::c_char;
use std::time::Duration;

use warprow_gpu::{GpuCacheStatistics, GpuError, GpuPinned, GpuWarmed};
use warprow_lookup::CacheStatistics;

use crate::arguments::{check_place, path, slice, store, text};
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
    /// On the host: different rows of batches that were looked for and found. On a GPU: ids that were served from the cache, 0 until 1.7.
    pub hits: u64,
    /// On the host: different rows of batches that were looked for and not found. On a GPU: ids that were served from drives, 0 until 1.7.
    pub misses: u64,
    /// On a GPU: rows that found no line, because look-ups under way may read all lines that come into question. On the host 0.
    pub full: u64,
    /// On a GPU: rows that the admission refused. On the host 0.
    pub refusals: u64,
    /// On a GPU: for how many look-ups a line is held that one has used. On the host 0.
    pub hold: u64,
    /// On a GPU: rows that stay until they are let go, by warprow_gpu_executor_pin_cache_rows. On the host 0. Since 1.4.
    pub pinned: u64,
    /// How long ago rows that were given up for others had been used. On the host of the latest of them, in different rows of batches that
    /// were looked for since; on a GPU of all of them, on average, in look-ups. 0: none was given up. Since 1.7.
    pub eviction_age: u64,
}

/// What became of rows that were to be brought into the cache of a GPU, or to stay there. Since 1.4.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_cache_warmed {
    /// sizeof(warprow_cache_warmed).
    pub struct_size: usize,
    /// Ids that the cache has now, each as often as it was given; of rows to pin: different rows that are pinned now and were not before.
    pub cached: u64,
    /// Of rows to pin: different rows that were pinned before. Else 0.
    pub already: u64,
    /// Ids whose row lies in GPU memory or DRAM anyway.
    pub in_memory: u64,
    /// Ids that the table does not have.
    pub missing: u64,
    /// Ids whose row found no line: all in which it may lie are pinned, or held for look-ups under way.
    pub left: u64,
}

versioned! {
    warprow_cache_statistics: 80 => 96,
    warprow_cache_warmed: 48,
}

impl From<GpuWarmed> for warprow_cache_warmed {
    fn from(it: GpuWarmed) -> Self {
        let (in_memory, missing) = (it.in_memory, it.missing);
        Self { struct_size: 0, cached: it.cached, already: 0, in_memory, missing, left: it.left }
    }
}

impl From<GpuPinned> for warprow_cache_warmed {
    fn from(it: GpuPinned) -> Self {
        let (in_memory, missing) = (it.in_memory, it.missing);
        Self { struct_size: 0, cached: it.pinned, already: it.already, in_memory, missing, left: it.left }
    }
}

fn of_cache(error: GpuError) -> Failure {
    match error {
        GpuError::NoCache => no_cache(),
        other => other.into(),
    }
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
            pinned: 0,
            eviction_age: it.eviction_age,
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
            hits: it.hits,
            misses: it.misses,
            full: it.full,
            refusals: it.refusals,
            hold: it.hold,
            pinned: it.pinned,
            eviction_age: it.eviction_age,
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
            executor.0.clear_cache(Duration::from_millis(patience_ms)).map_err(of_cache)
        })
    }
}

/// Brings rows of a table into a GPU executor's cache before they are looked up. `ids` has `id_count` ids of the table, or keys by their
/// bits, the hottest first; they stay the caller's. Each row that has to be read gets a line, whatever the cache's admission says. If
/// `warmed` is not NULL, whose struct_size the caller has set, it is told what came of it.
///
/// Any thread may call it. It blocks until the rows are there. Look-ups go on meanwhile. It takes a slot's queue pairs on each drive for
/// that time. No stream may be being captured meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_warm_cache(
    executor: *const warprow_gpu_executor,
    table: *const c_char,
    ids: *const u64,
    id_count: usize,
    warmed: *mut warprow_cache_warmed,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<gpu::Executor>(executor)?;
            let (table, ids) = (text("table", table)?, slice("ids", ids.cast(), id_count)?);
            tell(warmed, || executor.0.warm(table, ids).map(Into::into))
        })
    }
}

/// Brings rows into the cache as warprow_gpu_executor_warm_cache does, and has them stay there until they are let go, the cache is
/// emptied, or other tables are adopted. WARPROW_STATUS_INVALID_ARGUMENT: of the 8 lines in which a row may lie more than 6 would be
/// pinned; then nothing was changed.
///
/// Any thread may call it. It blocks until the rows are there. Look-ups go on meanwhile. No stream may be being captured meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_pin_cache_rows(
    executor: *const warprow_gpu_executor,
    table: *const c_char,
    ids: *const u64,
    id_count: usize,
    pinned: *mut warprow_cache_warmed,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<gpu::Executor>(executor)?;
            let (table, ids) = (text("table", table)?, slice("ids", ids.cast(), id_count)?);
            tell(pinned, || executor.0.pin(table, ids).map(Into::into))
        })
    }
}

/// Lets rows of a table go that stay in a GPU executor's cache: those of `ids`, or, if `ids` is NULL, all of them. They leave it when
/// others take their places. If `count` is not NULL, it gets the number of these rows.
///
/// Any thread may call it. It blocks for microseconds, or for as long as the order of a table takes to read. No stream may be being
/// captured meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_unpin_cache_rows(
    executor: *const warprow_gpu_executor,
    table: *const c_char,
    ids: *const u64,
    id_count: usize,
    count: *mut u64,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<gpu::Executor>(executor)?;
            let table = text("table", table)?;
            let ids = if ids.is_null() { None } else { Some(slice("ids", ids.cast(), id_count)?) };
            store(count, executor.0.unpin(table, ids).map_err(of_cache)?);
            Ok(())
        })
    }
}

/// Writes to the file `file` which rows a GPU executor's cache has, by their ids, so that warprow_gpu_executor_warm_cache_from can bring
/// them back. The file replaces one that is there, whole. If `rows` is not NULL, it gets the number of rows that were listed; rows whose
/// keys are not stored cannot be.
///
/// Any thread may call it. It blocks until the file is written. Look-ups go on meanwhile. No stream may be being captured meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_save_cache(
    executor: *const warprow_gpu_executor,
    file: *const c_char,
    rows: *mut u64,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<gpu::Executor>(executor)?;
            store(rows, executor.0.save_cache(path("file", file)?).map_err(of_cache)?.rows);
            Ok(())
        })
    }
}

/// Brings the rows into a GPU executor's cache that warprow_gpu_executor_save_cache has listed in `file`, as
/// warprow_gpu_executor_warm_cache does. If `warmed` is not NULL, whose struct_size the caller has set, it is told what came of it, of
/// all tables together. WARPROW_STATUS_INVALID_ARGUMENT: the file is damaged, no such file, or of another store; then nothing was
/// changed.
///
/// Any thread may call it. It blocks until the rows are there. Look-ups go on meanwhile. No stream may be being captured meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_warm_cache_from(
    executor: *const warprow_gpu_executor,
    file: *const c_char,
    warmed: *mut warprow_cache_warmed,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<gpu::Executor>(executor)?;
            let file = path("file", file)?;
            tell(warmed, || {
                let restored = executor.0.warm_from(file)?;
                let sum = |of: fn(&GpuWarmed) -> u64| restored.tables.iter().map(|table| of(&table.warmed)).sum();
                Ok(warprow_cache_warmed {
                    struct_size: 0,
                    cached: sum(|it| it.cached),
                    already: 0,
                    in_memory: sum(|it| it.in_memory),
                    missing: sum(|it| it.missing),
                    left: sum(|it| it.left),
                })
            })
        })
    }
}

/// Does it, and tells what came of it where somebody wants to know.
///
/// # Safety
/// `to` is NULL, or points to a structure of the caller's.
unsafe fn tell(
    to: *mut warprow_cache_warmed,
    work: impl FnOnce() -> Result<warprow_cache_warmed, GpuError>,
) -> Result<(), Failure> {
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { check(to)? };
    }
    let done = work().map_err(of_cache)?;
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { fill(to, &done) }
}
