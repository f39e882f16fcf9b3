//! Loading tables from a file.

use std::ffi::c_char;

use ::warprow_store::{KeyKind, TableLoad};
use warprow_formats::{FileTable, KeyOrder, TableFile};
use warprow_keys::KeyList;
use warprow_layout::{Ranks, TableSpec};

use crate::arguments::{path, text, texts};
use crate::error::{Failure, warprow_error};
use crate::guard;
use crate::load::{Keyed, Loading, report_load, table_keys, warprow_load_options, warprow_load_report};
use crate::sized::{check, options, versioned};
use crate::status::warprow_status;
use crate::store::{reserved, store_of, warprow_store};

/// Which tables of a file are loaded, and how. Zeros, or NULL for all, mean all tables as the file has them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_file_options {
    /// sizeof(warprow_file_options).
    pub struct_size: usize,
    /// The names of the tables in the file that are loaded; NULL: all.
    pub tensors: *const *const c_char,
    /// The names that they get in the store, in the same order; NULL: those of the file.
    pub names: *const *const c_char,
    /// How many names each list has.
    pub tensor_count: usize,
    /// How many of the first rows of each table are worth keeping in memory: a hint to executors.
    pub hot_rows: u64,
    /// Not 0: a checksum of each row is stored.
    pub row_crc: i32,
    /// 0.
    pub reserved: u32,
}

versioned! {
    warprow_file_options: 48,
}

/// A table of a file, with the name that it gets.
struct Chosen<'a> {
    table: &'a FileTable,
    spec: TableSpec,
    order: Option<Ranks>,
    keyed: Option<Keyed>,
}

fn find<'a>(file: &'a TableFile, name: &str) -> Result<&'a FileTable, Failure> {
    file.tables.iter().find(|table| table.name == name).ok_or_else(|| {
        let why = file.skipped.iter().find(|(skipped, _)| skipped == name);
        let why = why.map_or_else(String::new, |(_, why)| format!(" that can be loaded ({why})"));
        let known = file.tables.iter().map(|table| &*table.name).collect::<Vec<_>>().join(", ");
        let what = format!("{} has no table {name:?}{why}; it has {known}", file.path.display());
        Failure::new(warprow_status::NotFound, what)
    })
}

/// How the rows of a table are found: their order by id, or their keys.
fn row_names(file: &TableFile, table: &FileTable) -> Result<(Option<Ranks>, Option<Keyed>), Failure> {
    match file.key_order(table)? {
        KeyOrder::InOrder => Ok((None, None)),
        KeyOrder::Dense(order) => Ok((Some(order), None)),
        KeyOrder::Sparse { .. } => {
            let is_signed = table.keys.is_some_and(|keys| keys.is_signed());
            let kind = if is_signed { KeyKind::I64 } else { KeyKind::U64 };
            let mut keys = Vec::new();
            let room = usize::try_from(table.rows).ok().filter(|&rows| keys.try_reserve_exact(rows).is_ok());
            room.ok_or_else(|| {
                let what = format!("there is no memory for the {} keys of table {:?}", table.rows, table.name);
                Failure::new(warprow_status::OutOfResources, what)
            })?;
            for key in file.keys(table)?.into_iter().flatten() {
                keys.push(key?);
            }
            Ok((None, Some(Keyed::new(KeyList { keys, kind })?)))
        }
    }
}

/// Loads tables of a file (safetensors, NumPy, Parquet and what else docs/formats.md names) as one generation of the model called
/// `model`: when the call returns, all of them are there, or none is. Keys that are the ids in another order put the rows in order;
/// other keys get an index.
///
/// All arguments stay the caller's. `report`, whose struct_size the caller has set, is filled, unless it is NULL.
///
/// Any thread may call it; a store has one load at a time. It blocks until the tables are on the drives. Look-ups go on meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_load_file(
    store: *const warprow_store,
    model: *const c_char,
    file: *const c_char,
    file_options: *const warprow_file_options,
    load: *const warprow_load_options,
    report: *mut warprow_load_report,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let (store, model, at) = (store_of(store)?, text("model", model)?, path("file", file)?);
            check(report)?;
            let loading = Loading::new(load)?;
            let given = options(file_options)?;
            reserved("warprow_file_options", given.reserved)?;
            let names = |list, what| match given.tensor_count {
                _ if given.tensors.is_null() && given.tensor_count != 0 => {
                    Err(Failure::invalid("tensor_count is not 0, and tensors is NULL"))
                }
                count => texts(what, list, count),
            };
            let open = TableFile::open(at)?;
            let tensors = names(given.tensors, "tensors")?;
            let tables: Vec<&FileTable> = match tensors.is_empty() {
                true => open.tables.iter().collect(),
                false => tensors.iter().map(|name| find(&open, name)).collect::<Result<_, _>>()?,
            };
            if tables.is_empty() {
                let what = format!("{} holds no table that can be loaded", open.path.display());
                return Err(Failure::new(warprow_status::File, what));
            }
            let renamed = match given.names.is_null() {
                true => Vec::new(),
                false => names(given.names, "names")?,
            };
            let chosen = tables.into_iter().enumerate().map(|(index, table)| {
                let name = renamed.get(index).copied().unwrap_or(&table.name);
                let mut spec = TableSpec::new(name, table.rows, table.dim, table.dtype);
                (spec.hot_rows, spec.row_crc) = (given.hot_rows.min(table.rows), given.row_crc != 0);
                let (order, keyed) = row_names(&open, table)?;
                Ok(Chosen { table, spec, order, keyed })
            });
            let mut chosen = chosen.collect::<Result<Vec<_>, Failure>>()?;
            let keyed: Vec<Option<Keyed>> = chosen.iter_mut().map(|it| it.keyed.take()).collect();
            let keys = keyed.iter().map(|keyed| keyed.as_ref().map(|keyed| table_keys(keyed, None)).transpose());
            let keys = keys.collect::<Result<Vec<_>, Failure>>()?;
            for (chosen, keys) in chosen.iter_mut().zip(&keys) {
                if let Some(keys) = keys {
                    chosen.spec = chosen.spec.clone().keyed(keys);
                }
            }
            let rows: Vec<_> = chosen.iter().map(|it| open.rows(it.table)).collect();
            let loads = chosen.iter().zip(&rows).zip(&keys).map(|((chosen, rows), keys)| {
                let load = TableLoad::new(&chosen.spec, rows);
                let load = if chosen.table.is_sequential() { load.with_sequential_rows() } else { load };
                let load = keys.iter().fold(load, TableLoad::with_keys);
                chosen.order.iter().fold(load, TableLoad::with_order)
            });
            let loads: Vec<TableLoad<'_>> = loads.collect();
            let loaded = loading.run(&store, model, &loads)?;
            report_load(report, &loaded, loads.len())
        })
    }
}
