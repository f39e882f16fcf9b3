//! Rows that change while they are served, and whether what is stored is whole.

use std::ffi::{c_char, c_void};

use ::warprow_store::UpdateOptions;

use crate::arguments::{slice, store as put, text};
use crate::error::{Failure, warprow_error};
use crate::guard;
use crate::load::{told, warprow_progress};
use crate::sized::{check, fill, options, versioned};
use crate::status::warprow_status;
use crate::store::{store_of, warprow_store};

/// Options of warprow_store_update and warprow_store_remove. Zeros, or NULL for all, mean the usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_update_options {
    /// sizeof(warprow_update_options).
    pub struct_size: usize,
    /// The generation whose table is updated, which may be on standby, if `has_generation` is set.
    pub generation: u64,
    /// Not 0: `generation` says which generation; 0: the one that look-ups find.
    pub has_generation: i32,
    /// Not 0: keys that the table does not have are created. Of a table with keys alone.
    pub create_keys: i32,
}

/// What warprow_store_verify found.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_verify_report {
    /// sizeof(warprow_verify_report).
    pub struct_size: usize,
    /// Rows read.
    pub rows: u64,
    /// Bytes that were compared.
    pub bytes: u64,
    /// Rows that drives could not read, or whose checksum does not match.
    pub damaged: u64,
    /// Rows that were read wrong once, and right when they were read again.
    pub transient: u64,
    /// 1: nothing that could be checked is damaged; else 0.
    pub is_sound: i32,
    /// 1: rows have checksums, so that their content was checked; else 0.
    pub checked: i32,
    /// 1: which row belongs to which id or key is lost; else 0.
    pub order_damaged: i32,
    /// 0.
    pub reserved: u32,
}

versioned! {
    warprow_update_options: 24,
    warprow_verify_report: 56,
}

/// Gives rows of a table other content, by id, or by key where the table has keys (a signed key by its bits). When the call returns, they
/// are durable, and every look-up that begins later sees them; no look-up sees some of them without the others. Where an id comes
/// twice, its last row counts. If the call fails, nothing was changed, unless the code is WARPROW_STATUS_DRIVE, when nobody knows.
///
/// `ids` has `id_count` numbers, `rows` one row after another, of `row_bytes` bytes all together; both stay the caller's. If `sequence` is
/// not NULL, it gets the number of the last row's update in its generation.
///
/// Any thread may call it. It blocks until drives have written.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_update(
    store: *const warprow_store,
    table: *const c_char,
    ids: *const u64,
    id_count: usize,
    rows: *const c_void,
    row_bytes: usize,
    update: *const warprow_update_options,
    sequence: *mut u64,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let (store, table) = (store_of(store)?, text("table", table)?);
            let given = options(update)?;
            let mut how = UpdateOptions::default();
            if given.has_generation != 0 {
                how = how.with_generation(given.generation);
            }
            if given.create_keys != 0 {
                how = how.with_created_keys();
            }
            let (ids, rows) = (slice("ids", ids.cast(), id_count)?, slice("rows", rows, row_bytes)?);
            put(sequence, store.update_with(table, ids, rows, &how)?);
            Ok(())
        })
    }
}

/// Removes keys of a table, with their rows (a signed key by its bits). When the call returns, that is durable, and every look-up that
/// begins later treats these keys as ones that the table never had. A key that the table does not have is passed over. If the call fails,
/// nothing was changed, unless the code is WARPROW_STATUS_DRIVE, when nobody knows.
///
/// `keys` has `key_count` numbers, and stays the caller's. Of `update`, the generation counts. If `removed` is not NULL, it gets the number
/// of keys that were there. warprow_store_compact gives the room of the rows back.
///
/// Any thread may call it. It blocks until drives have written.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_remove(
    store: *const warprow_store,
    table: *const c_char,
    keys: *const u64,
    key_count: usize,
    update: *const warprow_update_options,
    removed: *mut u64,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let (store, table) = (store_of(store)?, text("table", table)?);
            let given = options(update)?;
            let mut how = UpdateOptions::default();
            if given.has_generation != 0 {
                how = how.with_generation(given.generation);
            }
            let keys = slice("keys", keys.cast(), key_count)?;
            put(removed, store.remove_with(table, keys, &how)?);
            Ok(())
        })
    }
}

/// Brings the updates of a generation from the log into its chunks. If `chunks` is not NULL, it gets the number of chunks that were
/// written. Executors keep the memory of updated rows until they prepare and adopt the tables anew.
///
/// Any thread may call it. It blocks until the chunks are written. Look-ups and updates go on meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_compact(
    store: *const warprow_store,
    generation: u64,
    chunks: *mut usize,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let written = store_of(store)?.compact(generation)?;
            put(chunks, written);
            Ok(())
        })
    }
}

/// Reads all rows of a table, their order and their keys, and compares them with their checksums as far as there are any. Damage is
/// no failure of the call: `report`, whose struct_size the caller has set, tells it.
///
/// `progress` is told how many rows were read, of how many; NULL: nobody is. It gets `user` first.
///
/// Any thread may call it. It blocks until the table is read. Look-ups go on meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_verify(
    store: *const warprow_store,
    table: *const c_char,
    progress: warprow_progress,
    user: *mut c_void,
    report: *mut warprow_verify_report,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let (store, table) = (store_of(store)?, text("table", table)?);
            if report.is_null() {
                return Err(Failure::invalid("report is NULL: what was found could not be told"));
            }
            check(report)?;
            let rows = store.table(table).map_or(0, |table| table.rows);
            let found = store.verify(table, &mut |done| told(progress, user, done, rows))?;
            let filled = warprow_verify_report {
                struct_size: 0,
                rows: found.rows,
                bytes: found.bytes,
                damaged: found.damaged,
                transient: found.transient,
                is_sound: found.is_sound().into(),
                checked: found.checked.into(),
                order_damaged: (found.damaged_ranks.is_some() || found.damaged_keys.is_some()).into(),
                reserved: 0,
            };
            fill(report, &filled)
        })
    }
}
