//! Reports and descriptions as Python dictionaries.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_gpu::{GpuCacheStatistics, GpuPinned, GpuReport, GpuWarmed};
use warprow_lookup::{CacheStatistics, LookupMetrics, LookupReport, Stage};
use warprow_store::{ChangedFile, DriveState, GenerationInfo, LoadReport, RerankReport, TableInfo, VerifyReport};

macro_rules! dict {
    ($py:expr, { $($key:literal: $value:expr),* $(,)? }) => {{
        let dict = PyDict::new($py);
        $(dict.set_item($key, $value)?;)*
        Ok(dict)
    }};
}

type Described<'py> = PyResult<Bound<'py, PyDict>>;

macro_rules! counts {
    ($dict:expr, $from:expr, $($name:ident),*) => { $($dict.set_item(stringify!($name), $from.$name)?;)* };
}

/// What a look-up on the host did.
pub(crate) fn of_lookup<'py>(py: Python<'py>, report: &LookupReport) -> Described<'py> {
    let dict = PyDict::new(py);
    counts!(
        dict,
        report,
        ids,
        padding,
        missing,
        failed,
        unique,
        rows_dram,
        rows_cached,
        rows_ssd,
        ids_dram,
        ids_cached,
        ids_ssd,
        commands,
        merges,
        bytes_read,
        bytes_needed,
        generation
    );
    let seconds: f64 = report.stages.iter().map(|time| time.as_secs_f64()).sum();
    dict.set_item("seconds", seconds)?;
    Ok(dict)
}

/// What a look-up on a GPU did.
pub(crate) fn of_gpu_lookup<'py>(py: Python<'py>, report: &GpuReport) -> Described<'py> {
    let dict = PyDict::new(py);
    counts!(
        dict, report, runs, ids, padding, missing, failed, ids_hbm, ids_dram, ids_cached, ids_ssd, rows_dram, rows_ssd,
        commands, bytes_read, generation
    );
    for (name, time) in
        [("prepare_seconds", report.prepare), ("fetch_seconds", report.fetch), ("expand_seconds", report.expand)]
    {
        dict.set_item(name, time.as_secs_f64())?;
    }
    dict.set_item("seconds", (report.prepare + report.fetch + report.expand).as_secs_f64())?;
    Ok(dict)
}

/// Totals of a host executor.
pub(crate) fn of_metrics<'py>(py: Python<'py>, totals: &LookupMetrics) -> Described<'py> {
    let dict = PyDict::new(py);
    counts!(
        dict,
        totals,
        lookups,
        drives_failed,
        ids,
        padding,
        missing,
        failed,
        unique,
        rows_dram,
        rows_cached,
        rows_ssd,
        ids_dram,
        ids_cached,
        ids_ssd,
        commands,
        merges,
        bytes_read,
        bytes_needed
    );
    for (stage, time) in Stage::ALL.iter().zip(totals.stages) {
        dict.set_item(format!("{}_seconds", stage.name()), time.as_secs_f64())?;
    }
    Ok(dict)
}

/// What the cache of a host executor has done.
pub(crate) fn of_host_cache<'py>(py: Python<'py>, found: &CacheStatistics) -> Described<'py> {
    let dict = PyDict::new(py);
    counts!(dict, found, lines, used, hits, misses, admissions, evictions, eviction_age);
    Ok(dict)
}

/// What the cache of a GPU executor has done.
pub(crate) fn of_gpu_cache<'py>(py: Python<'py>, found: &GpuCacheStatistics) -> Described<'py> {
    let dict = PyDict::new(py);
    counts!(dict, found, lines, used, hits, misses, admissions, evictions, eviction_age, full, refusals, hold, pinned);
    Ok(dict)
}

/// What became of rows that were to be brought into a cache.
pub(crate) fn of_warmed<'py>(py: Python<'py>, found: &GpuWarmed) -> Described<'py> {
    let dict = PyDict::new(py);
    counts!(dict, found, ids, cached, in_memory, missing, left);
    Ok(dict)
}

/// What became of rows that were to stay in a cache.
pub(crate) fn of_pinned<'py>(py: Python<'py>, found: &GpuPinned) -> Described<'py> {
    let dict = PyDict::new(py);
    counts!(dict, found, pinned, already, in_memory, missing, left);
    Ok(dict)
}

/// A table.
pub(crate) fn of_table<'py>(py: Python<'py>, table: &TableInfo) -> Described<'py> {
    dict!(py, {
        "name": &table.name,
        "rows": table.rows,
        "dim": table.dim,
        "dtype": table.dtype.name(),
        "row_bytes": table.row_bytes,
        "hot_rows": table.hot_rows,
        "keyed": table.keys.is_some(),
        "index_bytes": table.keys.as_ref().map(|keys| keys.index_bytes),
        "checksums": table.row_crc,
        "model": &table.model,
        "generation": table.generation,
    })
}

/// A generation.
pub(crate) fn of_generation<'py>(py: Python<'py>, it: &GenerationInfo) -> Described<'py> {
    dict!(py, {
        "id": it.id,
        "model": &it.model,
        "tables": &it.tables,
        "found": &it.found,
        "shown": it.shown != 0,
        "bytes": it.bytes,
        "readers": it.readers,
    })
}

/// A drive.
pub(crate) fn of_drive<'py>(py: Python<'py>, drive: &DriveState) -> Described<'py> {
    dict!(py, {
        "name": &drive.drive,
        "failure": drive.failure.as_ref().map(ToString::to_string),
        "resets": drive.resets,
    })
}

/// A file of an attached table that has changed.
pub(crate) fn of_changed_file<'py>(py: Python<'py>, changed: &ChangedFile) -> Described<'py> {
    dict!(py, { "path": changed.file.display().to_string(), "what": &changed.what })
}

/// What a load did.
pub(crate) fn of_load<'py>(py: Python<'py>, report: &LoadReport) -> Described<'py> {
    dict!(py, {
        "generation": report.generation,
        "bytes": report.bytes,
        "superseded": &report.superseded,
        "seconds": report.elapsed.as_secs_f64(),
    })
}

/// What listing rows for DRAM did.
pub(crate) fn of_rerank<'py>(py: Python<'py>, report: &RerankReport) -> Described<'py> {
    dict!(py, {
        "listed": report.listed,
        "before": report.before,
        "added": report.added,
        "missing": report.missing,
        "repeated": report.repeated,
    })
}

/// What a check of a table found.
pub(crate) fn of_verify<'py>(py: Python<'py>, report: &VerifyReport) -> Described<'py> {
    dict!(py, {
        "is_sound": report.is_sound(),
        "rows": report.rows,
        "bytes": report.bytes,
        "checked": report.checked,
        "damaged": report.damaged,
        "first_damaged": &report.first_damaged,
        "damaged_ranks": report.damaged_ranks.as_deref(),
        "damaged_keys": report.damaged_keys.as_deref(),
        "transient": report.transient,
    })
}
