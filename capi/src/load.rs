//! Loading tables from arrays, or from a function of the program's.

use std::ffi::{c_char, c_void};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use ::warprow_store::{LoadOptions, LoadReport, Store, StoreError, TableLoad};
use warprow_keys::{IndexOptions, KeyIndex, KeyList};
use warprow_layout::{Ranks, RowOrder, RowSource, TableKeys, TableSpec};

use crate::arguments::{slice, text};
use crate::error::{Failure, warprow_error};
use crate::guard;
use crate::sized::{array, check, fill, options, versioned};
use crate::status::warprow_status;
use crate::store::{reserved, store_of, warprow_store};
use crate::types::{dtype, key_kind, span};

/// Gives rows of a table that is loaded: fills `rows`, of `bytes` bytes, with the `count` rows from number `first` on, one after
/// another. Returns 0, or anything else if that failed, which ends the load.
///
/// It is called by the thread that called warprow_store_load and by threads of the library, several at once. It must not throw, and
/// must not call longjmp. `rows` is the library's, and valid until the function returns.
pub type warprow_read_rows =
    Option<unsafe extern "C" fn(user: *mut c_void, first: u64, count: u64, rows: *mut c_void, bytes: usize) -> i32>;

/// Is told how far something is: `done` of `total`, in bytes or rows as the call that takes it says. Returns 0 to go on, or anything
/// else to stop it.
///
/// It is called by the thread that made the call. It must not throw, and must not call longjmp.
pub type warprow_progress = Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64) -> i32>;

/// A table to load, and where its rows come from: either `data` or `read`. Everything it points to stays the caller's, and stays as it
/// is until the call returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_table_source {
    /// sizeof(warprow_table_source).
    pub struct_size: usize,
    /// The table's name.
    pub name: *const c_char,
    /// Rows; at least one.
    pub rows: u64,
    /// Elements in a row; at least one.
    pub dim: u32,
    /// The type of the elements: a WARPROW_DTYPE_ constant.
    pub dtype: i32,
    /// All rows, one after another, little-endian; NULL: `read` gives them.
    pub data: *const c_void,
    /// Bytes of `data`.
    pub data_bytes: usize,
    /// Gives rows; NULL: they lie at `data`.
    pub read: warprow_read_rows,
    /// What `read` gets first.
    pub user: *mut c_void,
    /// How often each row is looked up, `rows` numbers: rows lie in that order, the hottest first. NULL: the first rows are the
    /// hottest, or nobody knows which are.
    pub counts: *const u64,
    /// How many of the hottest rows are worth keeping in memory: a hint to executors.
    pub hot_rows: u64,
    /// The key of each row, `rows` different numbers of 64 bits; NULL: row i is that of id i.
    pub keys: *const u64,
    /// The row of ids that the table does not have: bytes as of any row. NULL: zeros.
    pub default_row: *const c_void,
    /// Bytes of `default_row`.
    pub default_row_bytes: usize,
    /// What the keys are: a WARPROW_KEY_TYPE_ constant, WARPROW_KEY_TYPE_NONE exactly if `keys` is NULL.
    pub key_type: i32,
    /// Not 0: a checksum of each row is stored.
    pub row_crc: i32,
}

/// Options of a load. Zeros, or NULL for all, mean the usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_load_options {
    /// sizeof(warprow_load_options).
    pub struct_size: usize,
    /// Not 0: tables of the same names are dropped in the same commit.
    pub replace: i32,
    /// Not 0: the generation is on standby until warprow_store_switch, and tables of the same names stay.
    pub standby: i32,
    /// The most bytes of memory for putting rows in order; 0: 1 GiB.
    pub memory_bytes: u64,
    /// Is told how many bytes were written, of how many. NULL: nobody is.
    pub progress: warprow_progress,
    /// What `progress` gets first.
    pub user: *mut c_void,
    /// Which free chunks of each drive the tables get: a WARPROW_SPAN_ constant. Since 1.8.
    pub span: i32,
    /// 0.
    pub reserved: u32,
}

/// What a load did.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_load_report {
    /// sizeof(warprow_load_report).
    pub struct_size: usize,
    /// The new generation.
    pub generation: u64,
    /// Bytes written to drives, without metadata.
    pub bytes: u64,
    /// Tables that were loaded.
    pub tables: usize,
    /// Nanoseconds from the first write to the end of the commit.
    pub elapsed_ns: u64,
}

versioned! {
    warprow_table_source: 112,
    warprow_load_options: 40 => 48,
    warprow_load_report: 40,
}

/// Rows that a function of the program's gives.
struct Called {
    read: unsafe extern "C" fn(*mut c_void, u64, u64, *mut c_void, usize) -> i32,
    user: *mut c_void,
}

// SAFETY: warprow_read_rows says that the function is called from several threads at once.
unsafe impl Sync for Called {}
// SAFETY: as above.
unsafe impl Send for Called {}

impl RowSource for Called {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        let count = (rows.len() / row_bytes.max(1)) as u64;
        // SAFETY: the program vouches for its function; the memory is as large as said.
        match unsafe { (self.read)(self.user, first, count, rows.as_mut_ptr().cast(), rows.len()) } {
            0 => Ok(()),
            code => {
                Err(io::Error::other(format!("the program's function returned {code} for {count} rows from {first}")))
            }
        }
    }
}

/// Where a table's rows come from.
enum Rows<'a> {
    Array(&'a [u8]),
    Called(Called),
}

/// Keys with their index.
pub(crate) struct Keyed {
    pub(crate) list: KeyList,
    pub(crate) index: Arc<KeyIndex>,
}

impl Keyed {
    /// Builds the index of keys.
    pub(crate) fn new(list: KeyList) -> Result<Self, Failure> {
        let index = KeyIndex::build(&list, &IndexOptions::default(), &mut |_| ControlFlow::Continue(()))?;
        Ok(Self { list, index: Arc::new(index) })
    }
}

/// A table to load, read from the caller's structure.
struct Source<'a> {
    spec: TableSpec,
    rows: Rows<'a>,
    ranks: Option<Ranks>,
    keyed: Option<Keyed>,
}

impl<'a> Source<'a> {
    /// # Safety
    /// What `given` points to is valid for `'a`.
    unsafe fn new(given: &warprow_table_source) -> Result<Self, Failure> {
        // SAFETY: the caller's promise, for each pointer.
        unsafe {
            let name = text("a table's name", given.name)?;
            let invalid = |what: String| Err(Failure::invalid(format!("table {name:?}: {what}")));
            let mut spec = TableSpec::new(name, given.rows, given.dim, dtype("dtype", given.dtype)?);
            (spec.hot_rows, spec.row_crc) = (given.hot_rows, given.row_crc != 0);
            let Some(row_bytes) = spec.dtype.row_bytes(spec.dim).filter(|&bytes| bytes > 0) else {
                return invalid(format!("a row of {} elements of type {} cannot be", spec.dim, spec.dtype));
            };
            let Some(count) = usize::try_from(given.rows).ok().filter(|&rows| rows > 0) else {
                return invalid("it has no rows".to_owned());
            };
            let rows = match (given.data.is_null(), given.read) {
                (true, Some(read)) => Rows::Called(Called { read, user: given.user }),
                (false, None) if count.checked_mul(row_bytes as usize) == Some(given.data_bytes) => {
                    Rows::Array(slice("data", given.data, given.data_bytes)?)
                }
                (false, None) => {
                    let bytes = given.data_bytes;
                    return invalid(format!("{count} rows of {row_bytes} bytes are not the {bytes} bytes of data"));
                }
                _ => return invalid("set either data or read".to_owned()),
            };
            if !given.default_row.is_null() {
                if given.default_row_bytes != row_bytes as usize {
                    let bytes = given.default_row_bytes;
                    return invalid(format!("its default row has {bytes} bytes, its rows {row_bytes}"));
                }
                spec.default_row = Some(slice("default_row", given.default_row, row_bytes as usize)?.to_vec());
            }
            let ranks = match given.counts.is_null() {
                true => None,
                false => Some(Ranks::by_hotness(slice("counts", given.counts.cast(), count)?)),
            };
            let keyed = match (key_kind(given.key_type)?, given.keys.is_null()) {
                (None, true) => None,
                (Some(kind), false) => {
                    let keys = slice("keys", given.keys.cast(), count)?.to_vec();
                    Some(Keyed::new(KeyList { keys, kind })?)
                }
                _ => return invalid("keys and key_type go together: set both or neither".to_owned()),
            };
            spec.permuted = ranks.is_some() && keyed.is_none();
            Ok(Self { spec, rows, ranks, keyed })
        }
    }
}

/// Keys in the order of their rows, or of ranks.
pub(crate) fn table_keys(keyed: &Keyed, ranks: Option<Ranks>) -> Result<TableKeys<'_>, Failure> {
    let order = ranks.map_or(RowOrder::Given, RowOrder::Ranks);
    let keys = TableKeys::new(keyed.index.clone(), &keyed.list, order, true);
    keys.map_err(|error| Failure::of(warprow_status::InvalidArgument, &error))
}

/// How a load goes, and who hears of it.
pub(crate) struct Loading {
    options: LoadOptions,
    progress: warprow_progress,
    user: *mut c_void,
}

impl Loading {
    /// # Safety
    /// `at` is NULL, or points to options.
    pub(crate) unsafe fn new(at: *const warprow_load_options) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let given = unsafe { options(at) }?;
        reserved("warprow_load_options", given.reserved)?;
        let mut chosen = LoadOptions::default();
        chosen.span = span(given.span)?;
        if given.replace != 0 {
            chosen = chosen.with_replace();
        }
        if given.standby != 0 {
            chosen = chosen.with_standby();
        }
        if given.memory_bytes != 0 {
            chosen = chosen.with_memory(given.memory_bytes);
        }
        Ok(Self { options: chosen, progress: given.progress, user: given.user })
    }

    /// Loads the tables.
    pub(crate) fn run(&self, store: &Store, model: &str, tables: &[TableLoad<'_>]) -> Result<LoadReport, StoreError> {
        store.load(model, tables, &self.options, &mut |now| told(self.progress, self.user, now.written, now.total))
    }
}

/// Tells the program how far something is.
pub(crate) fn told(progress: warprow_progress, user: *mut c_void, done: u64, total: u64) -> ControlFlow<()> {
    let Some(progress) = progress else { return ControlFlow::Continue(()) };
    // SAFETY: the program vouches for its function.
    match unsafe { progress(user, done, total) } {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    }
}

/// # Safety
/// `report` is NULL, or points to a report.
pub(crate) unsafe fn report_load(
    report: *mut warprow_load_report,
    loaded: &LoadReport,
    tables: usize,
) -> Result<(), Failure> {
    let elapsed_ns = u64::try_from(loaded.elapsed.as_nanos()).unwrap_or(u64::MAX);
    let (generation, bytes) = (loaded.generation, loaded.bytes);
    let filled = warprow_load_report { struct_size: 0, generation, bytes, tables, elapsed_ns };
    // SAFETY: the caller's promise.
    unsafe { fill(report, &filled) }
}

/// Loads tables as one generation of the model called `model`: when the call returns, all of them are there, or none is.
///
/// `tables` has `table_count` sources, which stay the caller's, with everything that they point to. `report`, whose struct_size the
/// caller has set, is filled, unless it is NULL.
///
/// Any thread may call it; a store has one load at a time. It blocks until the tables are on the drives. Look-ups go on meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_store_load(
    store: *const warprow_store,
    model: *const c_char,
    tables: *const warprow_table_source,
    table_count: usize,
    load: *const warprow_load_options,
    report: *mut warprow_load_report,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let (store, model) = (store_of(store)?, text("model", model)?);
            check(report)?;
            let loading = Loading::new(load)?;
            let sources = array(tables, table_count)?;
            if sources.is_empty() {
                return Err(Failure::invalid("no table was given"));
            }
            let mut sources = sources.iter().map(|it| Source::new(it)).collect::<Result<Vec<_>, _>>()?;
            let keys = sources.iter_mut().map(|it| (it.keyed.take(), it.ranks.take())).collect::<Vec<_>>();
            let placed = keys.iter().map(|(keyed, ranks)| match keyed {
                Some(keyed) => Ok((Some(table_keys(keyed, ranks.clone())?), None)),
                None => Ok((None, ranks.as_ref())),
            });
            let placed = placed.collect::<Result<Vec<_>, Failure>>()?;
            for (source, (keys, _)) in sources.iter_mut().zip(&placed) {
                if let Some(keys) = keys {
                    source.spec = source.spec.clone().keyed(keys);
                }
            }
            let loads = sources.iter().zip(&placed).map(|(source, (keys, ranks))| {
                let load = match &source.rows {
                    Rows::Array(rows) => TableLoad::new(&source.spec, rows).with_random_access(),
                    Rows::Called(rows) => TableLoad::new(&source.spec, rows),
                };
                let load = ranks.iter().fold(load, |load, ranks| load.with_ranks(ranks));
                keys.iter().fold(load, TableLoad::with_keys)
            });
            let loads: Vec<TableLoad<'_>> = loads.collect();
            let loaded = loading.run(&store, model, &loads)?;
            report_load(report, &loaded, loads.len())
        })
    }
}
