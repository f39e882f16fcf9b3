//! What a store has: its tables, its generations, its drives. Lists are snapshots, which own the texts in them.

use std::ffi::{CString, c_char};

use crate::arguments::{check_place, store as put};
use crate::error::{Failure, c_text, warprow_error};
use crate::guard;
use crate::handle::{self, Object};
use crate::sized::{check, fill, versioned};
use crate::status::warprow_status;
use crate::store::{close, store_of, warprow_store};
use crate::types::key_type;

use ::warprow_store::{DriveState, GenerationInfo, Store, TableInfo};

/// A list of tables, as a store had them at one moment.
pub struct warprow_table_list {
    _opaque: [u8; 0],
}

/// A list of generations, as a store had them at one moment.
pub struct warprow_generation_list {
    _opaque: [u8; 0],
}

/// A list of drives, as they did at one moment.
pub struct warprow_drive_list {
    _opaque: [u8; 0],
}

/// A table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_table_info {
    /// sizeof(warprow_table_info).
    pub struct_size: usize,
    /// The table's name. It belongs to the list.
    pub name: *const c_char,
    /// The name of the model that the table was loaded with. It belongs to the list.
    pub model: *const c_char,
    /// Rows.
    pub rows: u64,
    /// Elements in a row.
    pub dim: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// The type of the elements: a WARPROW_DTYPE_ constant.
    pub dtype: i32,
    /// The numbers that rows are looked up by: a WARPROW_KEY_TYPE_ constant.
    pub key_type: i32,
    /// How many rows are worth keeping in memory, as whoever loaded the table said.
    pub hot_rows: u64,
    /// The generation that the table belongs to.
    pub generation: u64,
    /// 1: rows have checksums; else 0.
    pub has_row_crc: i32,
    /// 0.
    pub reserved: u32,
}

/// A generation: one version of a model's tables.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_generation_info {
    /// sizeof(warprow_generation_info).
    pub struct_size: usize,
    /// The generation's number, which is never given twice in a store.
    pub id: u64,
    /// The model's name. It belongs to the list.
    pub model: *const c_char,
    /// The number of the generation's tables.
    pub tables: usize,
    /// How many of them look-ups find by name: none of a generation on standby.
    pub tables_found: usize,
    /// The number of the commit that switched to it; 0: it is on standby.
    pub shown: u64,
    /// Bytes that it takes on the drives.
    pub bytes: u64,
}

/// A drive of a store.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_drive_info {
    /// sizeof(warprow_drive_info).
    pub struct_size: usize,
    /// The drive's name. It belongs to the list.
    pub name: *const c_char,
    /// Why the drive serves nothing; NULL: it serves. It belongs to the list.
    pub failure: *const c_char,
    /// How often its controller was reset since the store was opened.
    pub resets: u64,
}

versioned! {
    warprow_table_info: 72,
    warprow_generation_info: 56,
    warprow_drive_info: 32,
}

struct Tables(Vec<(CString, CString, TableInfo)>);
struct Generations(Vec<(CString, GenerationInfo)>);
struct Drives(Vec<(CString, Option<CString>, u64)>);

impl Object for Tables {
    type Tag = warprow_table_list;
    const KIND: u8 = 3;
    const NAME: &'static str = "warprow_table_list";
}

impl Object for Generations {
    type Tag = warprow_generation_list;
    const KIND: u8 = 4;
    const NAME: &'static str = "warprow_generation_list";
}

impl Object for Drives {
    type Tag = warprow_drive_list;
    const KIND: u8 = 5;
    const NAME: &'static str = "warprow_drive_list";
}

fn past_the_end(index: usize, count: usize) -> Failure {
    Failure::invalid(format!("index {index} is past the end of a list of {count}"))
}

/// Lists every table that look-ups find. The list in `*tables` is the caller's, who closes it with warprow_table_list_close.
///
/// Any thread may call it. It reads memory only.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_tables(
    store: *const warprow_store,
    tables: *mut *mut warprow_table_list,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("tables", tables)?;
            tables.write(std::ptr::null_mut());
            let found = store_of(store)?.tables();
            let named = found.into_iter().map(|table| (c_text(&table.name), c_text(&table.model), table));
            put(tables, handle::open(Tables(named.collect()))?);
            Ok(())
        })
    }
}

/// How many tables a list has; 0 if it was closed. Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_table_list_count(tables: *const warprow_table_list) -> usize {
    handle::get::<Tables>(tables).map_or(0, |tables| tables.0.len())
}

/// Describes table number `index` of a list, from 0 on, in `*table`, whose struct_size the caller has set. Texts in it belong to the
/// list, and are valid until that is closed.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_table_list_get(
    tables: *const warprow_table_list,
    index: usize,
    table: *mut warprow_table_info,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("table", table)?;
            check(table)?;
            let tables = handle::get::<Tables>(tables)?;
            let (name, model, found) = tables.0.get(index).ok_or_else(|| past_the_end(index, tables.0.len()))?;
            let info = warprow_table_info {
                struct_size: 0,
                name: name.as_ptr(),
                model: model.as_ptr(),
                rows: found.rows,
                dim: found.dim,
                row_bytes: found.row_bytes,
                dtype: found.dtype as i32,
                key_type: key_type(found.keys.map(|keys| keys.kind)),
                hot_rows: found.hot_rows,
                generation: found.generation,
                has_row_crc: found.row_crc.into(),
                reserved: 0,
            };
            fill(table, &info)
        })
    }
}

/// Closes a list of tables, and the texts in it. NULL is left alone. Any thread may call it. It never blocks.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_table_list_close(
    tables: *mut warprow_table_list,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Tables>(tables)) }
}

/// Lists all generations, oldest first. The list in `*generations` is the caller's, who closes it with warprow_generation_list_close.
///
/// Any thread may call it. It reads memory only.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_generations(
    store: *const warprow_store,
    generations: *mut *mut warprow_generation_list,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("generations", generations)?;
            generations.write(std::ptr::null_mut());
            let found = store_of(store)?.generations().into_iter();
            put(generations, handle::open(Generations(found.map(|it| (c_text(&it.model), it)).collect()))?);
            Ok(())
        })
    }
}

/// How many generations a list has; 0 if it was closed. Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_generation_list_count(generations: *const warprow_generation_list) -> usize {
    handle::get::<Generations>(generations).map_or(0, |generations| generations.0.len())
}

/// Describes generation number `index` of a list, from 0 on, in `*generation`, whose struct_size the caller has set. Texts in it belong
/// to the list, and are valid until that is closed.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_generation_list_get(
    generations: *const warprow_generation_list,
    index: usize,
    generation: *mut warprow_generation_info,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("generation", generation)?;
            check(generation)?;
            let list = handle::get::<Generations>(generations)?;
            let (model, found) = list.0.get(index).ok_or_else(|| past_the_end(index, list.0.len()))?;
            let info = warprow_generation_info {
                struct_size: 0,
                id: found.id,
                model: model.as_ptr(),
                tables: found.tables.len(),
                tables_found: found.found.len(),
                shown: found.shown,
                bytes: found.bytes,
            };
            fill(generation, &info)
        })
    }
}

/// Closes a list of generations, and the texts in it. NULL is left alone. Any thread may call it. It never blocks.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_generation_list_close(
    generations: *mut warprow_generation_list,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Generations>(generations)) }
}

/// # Safety
/// The pointers are valid.
unsafe fn list_drives(
    store: *const warprow_store,
    drives: *mut *mut warprow_drive_list,
    states: impl FnOnce(&Store) -> Vec<DriveState>,
) -> Result<(), Failure> {
    check_place("drives", drives)?;
    // SAFETY: the place is checked.
    unsafe { drives.write(std::ptr::null_mut()) };
    let list = states(&store_of(store)?).into_iter().map(|it| {
        let failure = it.failure.map(|failure| c_text(&failure.to_string()));
        (c_text(&it.drive), failure, it.resets)
    });
    let list = handle::open(Drives(list.collect()))?;
    // SAFETY: as above.
    unsafe { put(drives, list) };
    Ok(())
}

/// Says how each drive does: whether it serves, or why not. The list in `*drives` is the caller's, who closes it with
/// warprow_drive_list_close.
///
/// Any thread may call it. It reads memory only.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_drives(
    store: *const warprow_store,
    drives: *mut *mut warprow_drive_list,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe { guard::call(error, || list_drives(store, drives, Store::drive_states)) }
}

/// Tries every drive that was given up once more, when somebody says that it may work again, and lists how these drives do then. The
/// list in `*drives` is the caller's, who closes it with warprow_drive_list_close.
///
/// Any thread may call it. It blocks while drives are reset.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_retry_drives(
    store: *const warprow_store,
    drives: *mut *mut warprow_drive_list,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe { guard::call(error, || list_drives(store, drives, Store::retry_drives)) }
}

/// How many drives a list has; 0 if it was closed. Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_drive_list_count(drives: *const warprow_drive_list) -> usize {
    handle::get::<Drives>(drives).map_or(0, |drives| drives.0.len())
}

/// Describes drive number `index` of a list, from 0 on, in `*drive`, whose struct_size the caller has set. Texts in it belong to the
/// list, and are valid until that is closed.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_drive_list_get(
    drives: *const warprow_drive_list,
    index: usize,
    drive: *mut warprow_drive_info,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("drive", drive)?;
            check(drive)?;
            let list = handle::get::<Drives>(drives)?;
            let (name, failure, resets) = list.0.get(index).ok_or_else(|| past_the_end(index, list.0.len()))?;
            let failure = failure.as_ref().map_or(std::ptr::null(), |failure| failure.as_ptr());
            fill(drive, &warprow_drive_info { struct_size: 0, name: name.as_ptr(), failure, resets: *resets })
        })
    }
}

/// Closes a list of drives, and the texts in it. NULL is left alone. Any thread may call it. It never blocks.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_drive_list_close(
    drives: *mut warprow_drive_list,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Drives>(drives)) }
}

/// Makes names of tables mean the tables of a generation, and no longer those of other generations of its model: durable, and whole
/// or not at all. If tables would vanish, the call is refused unless `allow_vanishing` is not 0. Executors go on with what they read
/// until they adopt other tables.
///
/// Any thread may call it. It blocks for a commit.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_switch(
    store: *const warprow_store,
    generation: u64,
    allow_vanishing: i32,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || Ok(store_of(store)?.switch(generation, allow_vanishing != 0)?)) }
}

/// Drops a generation of which no table is found by name. Its room is free once nobody in this process reads it any more.
///
/// Any thread may call it. It blocks for a commit.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_drop_generation(
    store: *const warprow_store,
    generation: u64,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || Ok(store_of(store)?.drop_generation(generation)?)) }
}
