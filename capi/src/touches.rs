//! When keys were last touched, and the removal of keys that were not touched for long.

use std::ffi::c_char;

use ::warprow_store::{ExpireOptions, LastTouches, StoreError};

use crate::arguments::{path, slice, text};
use crate::error::{Failure, warprow_error};
use crate::gpu::{self, warprow_gpu_executor};
use crate::guard;
use crate::handle;
use crate::host::{self, warprow_host_executor};
use crate::sized::{check, fill, options, versioned};
use crate::status::warprow_status;
use crate::store::{store_of, warprow_store};

/// Which keys warprow_store_expire removes, and how. Since 1.6.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_expire_options {
    /// sizeof(warprow_expire_options).
    pub struct_size: usize,
    /// Keys that are removed, and made durable, at once; 0: 4,096.
    pub batch: u64,
    /// Keys that were last touched before this epoch, from 1 to 65,535.
    pub before: u32,
    /// Not 0: nothing is removed, and the report counts what would be.
    pub dry_run: i32,
}

/// What warprow_store_expire did. Since 1.6.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_expire_report {
    /// sizeof(warprow_expire_report).
    pub struct_size: usize,
    /// Keys that the table had, with those that updates created.
    pub present: u64,
    /// Keys that were last touched before the epoch, of which none has a row that was updated.
    pub expired: u64,
    /// Keys that were removed: those, or 0 if nothing was to be removed.
    pub removed: u64,
    /// Keys that stay because no file has them, or because updates created them and no compaction has brought them into the table yet.
    pub unknown: u64,
    /// Keys that stay because their rows were updated, and no compaction has brought that into the table yet.
    pub updated: u64,
}

versioned! {
    warprow_expire_options: 24,
    warprow_expire_report: 48,
}

/// The epoch in a field of options; 0: none was given.
pub(crate) fn epoch_in(field: &str, epoch: u32) -> Result<Option<u16>, Failure> {
    let wrong = |_| Failure::invalid(format!("{field} is {epoch}: epochs are from 1 to 65,535"));
    Ok(Some(u16::try_from(epoch).map_err(wrong)?).filter(|&epoch| epoch != 0))
}

fn epoch_of(field: &str, epoch: u32) -> Result<u16, Failure> {
    epoch_in(field, epoch)?.ok_or_else(|| Failure::invalid(format!("{field} is 0: epochs are from 1 to 65,535")))
}

/// The message of an executor without an epoch names the field of this interface.
fn of_touches(error: impl Into<Failure>, notes: bool) -> Failure {
    match notes {
        true => error.into(),
        false => Failure::invalid("the executor notes no last touches: attach it with touch_epoch"),
    }
}

/// Has look-ups of a host executor that begin from now on note another epoch as that of the last touch of each key that they find: one
/// that is no lower than the one before. WARPROW_STATUS_INVALID_ARGUMENT: it is lower, or the executor was attached without
/// `touch_epoch`. Since 1.6.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_set_touch_epoch(
    executor: *const warprow_host_executor,
    epoch: u32,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<host::Executor>(executor)?;
            let (executor, epoch) = (&executor.0, epoch_of("epoch", epoch)?);
            executor.set_touch_epoch(epoch).map_err(|error| of_touches(error, executor.touch_epoch().is_some()))
        })
    }
}

/// Writes to `file` when each key of a host executor's tables was last touched, together with what the file has from before, for
/// warprow_store_expire. After a crash the file is the one before, or the new one. Each executor has a file of its own.
/// WARPROW_STATUS_INVALID_ARGUMENT: the executor was attached without `touch_epoch`. WARPROW_STATUS_FILE: the file cannot be read or
/// written, is something else, or is damaged. Since 1.6.
///
/// Any thread may call it. It blocks until the keys of the tables are read and the file is written. Look-ups go on meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_save_touches(
    executor: *const warprow_host_executor,
    file: *const c_char,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<host::Executor>(executor)?;
            let (executor, file) = (&executor.0, path("file", file)?);
            executor.save_touches(file).map_err(|error| of_touches(error, executor.touch_epoch().is_some()))
        })
    }
}

/// Has look-ups of a GPU executor note another epoch, as warprow_host_executor_set_touch_epoch does: those whose kernels begin when the
/// call has returned, in graphs that were captured before too. Since 1.6.
///
/// Any thread may call it. It blocks for as long as a copy of 4 bytes to the GPU takes. Streams may be being captured meanwhile.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_set_touch_epoch(
    executor: *const warprow_gpu_executor,
    epoch: u32,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<gpu::Executor>(executor)?;
            let (executor, epoch) = (&executor.0, epoch_of("epoch", epoch)?);
            executor.set_touch_epoch(epoch).map_err(|error| of_touches(error, executor.touch_epoch().is_some()))
        })
    }
}

/// Writes to `file` when each key of a GPU executor's tables was last touched, as warprow_host_executor_save_touches does. Look-ups that
/// have not ended may be missing: synchronise with their streams first. Since 1.6.
///
/// Any thread may call it. It blocks until the keys of the tables are read, 2 bytes for each are copied from the GPU, and the file is
/// written. Look-ups go on meanwhile, and streams may be being captured.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_save_touches(
    executor: *const warprow_gpu_executor,
    file: *const c_char,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<gpu::Executor>(executor)?;
            let (executor, file) = (&executor.0, path("file", file)?);
            executor.save_touches(file).map_err(|error| of_touches(error, executor.touch_epoch().is_some()))
        })
    }
}

/// Removes the keys of a table that were last touched before an epoch, as executors have saved it in `file_count` files; of several files
/// each key gets the latest epoch. A key stays that no file has, or whose row was created or updated since the table was loaded or
/// compacted. Keys are removed in batches, each as warprow_store_remove does. After an error some batches are removed; the call may be
/// made again.
///
/// All arguments stay the caller's. `expire` says before which epoch, so it is not NULL. If `report` is not NULL, whose struct_size the
/// caller has set, it is told what was done. WARPROW_STATUS_FILE: a file is not there, is something else, or is damaged.
/// WARPROW_STATUS_NOT_FOUND: none has the table. WARPROW_STATUS_REFUSED: no key would be left. Since 1.6.
///
/// Any thread may call it. It blocks until drives have written. Look-ups go on meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_expire(
    store: *const warprow_store,
    table: *const c_char,
    files: *const *const c_char,
    file_count: usize,
    expire: *const warprow_expire_options,
    report: *mut warprow_expire_report,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check(report)?;
            let (store, table) = (store_of(store)?, text("table", table)?);
            let given = options(expire)?;
            let before = epoch_of("before", given.before)?;
            let files: &[*const c_char] = slice("files", files.cast(), file_count)?;
            if files.is_empty() {
                return Err(Failure::invalid("there is no file: give what warprow_host_executor_save_touches wrote"));
            }
            let mut touches = LastTouches::default();
            for (number, &file) in files.iter().enumerate() {
                let file = path(&format!("files[{number}]"), file)?;
                let failed = |source| StoreError::TouchesFile { path: file.to_owned(), source };
                let absent = || failed(std::io::Error::from(std::io::ErrorKind::NotFound).into());
                touches.merge(&LastTouches::read(file).map_err(failed)?.ok_or_else(absent)?);
            }
            let done = match given.dry_run != 0 {
                true => {
                    let found = store.expired_keys(table, &touches, before)?;
                    let (present, expired) = (found.present, found.keys.len() as u64);
                    (present, expired, 0, found.unknown, found.updated)
                }
                false => {
                    let mut how = ExpireOptions::before(before);
                    if given.batch != 0 {
                        how = how.with_batch(usize::try_from(given.batch).unwrap_or(usize::MAX));
                    }
                    let done = store.expire(table, &touches, &how)?;
                    (done.present, done.removed, done.removed, done.unknown, done.updated)
                }
            };
            let (present, expired, removed, unknown, updated) = done;
            fill(report, &warprow_expire_report { struct_size: 0, present, expired, removed, unknown, updated })
        })
    }
}
