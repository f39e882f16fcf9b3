//! Where the rows and keys of a table come from: memory of the caller's, or a file.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use warprow_formats::{KeyOrder, TableFile};
use warprow_layout::{DType, Ranks, RowOrder, TableKeys, TableSpec};
use warprow_plan::{ProposalFile, ranks_of};
use warprow_store::{IndexBuildError, KeyIndex, KeyKind, KeySource};

use crate::arrays::{dtype, slice};
use crate::error::{Kind, invalid, of_file, of_proposal, raise_with};
use crate::interrupt::Interrupt;
use crate::planning::Proposal;

/// A table to load, as Python gives it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TableArgs {
    /// What the table is called in the store.
    pub(crate) name: String,
    /// The file, and the table's name there; `None`: the rows are in memory.
    pub(crate) file: Option<(PathBuf, String)>,
    /// Address of the rows in memory, and their bytes.
    pub(crate) memory: (usize, usize),
    /// Rows, and elements of a row; in a file the file says that.
    shape: (u64, u32),
    /// Type of the rows in memory.
    dtype: String,
    /// The type to store; `None`: that of the source.
    to: Option<String>,
    /// Address and number of counts, u64.
    counts: Option<(usize, usize)>,
    /// Address and number of keys, and whether they are i64 (else u64).
    keys: Option<(usize, usize, bool)>,
    /// Whether each row gets a checksum.
    checksums: bool,
    /// The tier proposal that says the order of rows and how many belong in memory; of this table if it has one of its name.
    plan: Option<Py<Proposal>>,
}

/// Keys in memory.
pub(crate) struct Keys {
    numbers: Vec<u64>,
    kind: KeyKind,
}

impl KeySource for Keys {
    fn len(&self) -> u64 {
        self.numbers.len() as u64
    }

    fn kind(&self) -> KeyKind {
        self.kind
    }

    fn read(&self, first: u64, keys: &mut [u64]) -> std::io::Result<()> {
        self.numbers[..].read(first, keys)
    }
}

/// What is known of a table before its keys have an index.
pub(crate) struct Described {
    pub(crate) spec: TableSpec,
    /// Type of the elements in the source.
    pub(crate) from: DType,
    /// The ids that a file's rows belong to, if not the ids in their order.
    pub(crate) order: Option<Ranks>,
    pub(crate) ranks: Option<Ranks>,
    pub(crate) keys: Option<Keys>,
}

/// The tables of a file, `(name, rows, dim, dtype, keyed)` each, and what it has besides, with the reason.
#[pyfunction]
#[pyo3(signature = (path))]
pub(crate) fn tables_in(py: Python<'_>, path: PathBuf) -> PyResult<Contents> {
    let file = py.detach(|| TableFile::open(&path)).map_err(of_file)?;
    let of = |it: &warprow_formats::FileTable| (it.name.clone(), it.rows, it.dim, it.dtype.name(), it.keys.is_some());
    Ok((file.tables.iter().map(of).collect(), file.skipped))
}

type FileTable = (String, u64, u32, &'static str, bool);
type Contents = (Vec<FileTable>, Vec<(String, String)>);

/// The file at `path`, opened.
pub(crate) fn open(path: &Path) -> PyResult<TableFile> {
    TableFile::open(path).map_err(of_file)
}

/// The table of that name in a file.
pub(crate) fn table_in<'a>(file: &'a TableFile, name: &str) -> PyResult<&'a warprow_formats::FileTable> {
    file.tables.iter().find(|table| table.name == name).ok_or_else(|| {
        let text = format!("{} has no table {name:?}: it was written to since it was looked at", file.path.display());
        raise_with(Kind::FileError, text, |details| details.set_item("path", &file.path))
    })
}

impl TableArgs {
    /// The bytes of the rows in memory.
    ///
    /// # Safety
    /// They lie there, and nobody writes to them while the result lives.
    pub(crate) unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { slice(self.memory.0, self.memory.1) }
    }

    /// The table as it is to be, with its counts and keys read.
    ///
    /// # Safety
    /// Counts and keys lie where they are said to, and nobody writes to them while this runs.
    pub(crate) unsafe fn describe(&self, file: Option<&TableFile>) -> PyResult<Described> {
        let (rows, dim, from, mut order, mut keys) = match (&self.file, file) {
            (Some((_, tensor)), Some(file)) => {
                let table = table_in(file, tensor)?;
                let (order, keys) = in_file(file, table)?;
                (table.rows, table.dim, table.dtype, order, keys)
            }
            _ => (self.shape.0, self.shape.1, dtype(&self.dtype)?, None, None),
        };
        let to = self.to.as_deref().map(dtype).transpose()?.unwrap_or(from);
        if let Some((address, len, signed)) = self.keys {
            let kind = if signed { KeyKind::I64 } else { KeyKind::U64 };
            // SAFETY: the caller's promise.
            let numbers: &[u64] = unsafe { slice(address, len) };
            if numbers.len() as u64 != rows {
                return Err(invalid(
                    "keys",
                    format!("table {:?} has {rows} rows, and {len} keys were given", self.name),
                ));
            }
            (order, keys) = (None, Some(Keys { numbers: numbers.to_vec(), kind }));
        }
        let ranks = match self.counts {
            None => None,
            Some((_, len)) if len as u64 != rows => {
                let text = format!("table {:?} has {rows} rows, and {len} counts were given", self.name);
                return Err(invalid("hotness", text));
            }
            // SAFETY: the caller's promise.
            Some((address, len)) => Some(Ranks::by_hotness(unsafe { slice(address, len) })),
        };
        let (ranks, hot_rows) = match &self.plan {
            None => (ranks, 0),
            Some(plan) => {
                let (ranks, hot_rows) = self.planned(&plan.get().file, rows, keys.as_ref())?;
                (Some(ranks), hot_rows)
            }
        };
        let mut spec = TableSpec::new(&self.name, rows, dim, to);
        spec.permuted = ranks.is_some();
        spec.hot_rows = hot_rows;
        spec.row_crc = self.checksums;
        Ok(Described { spec, from, order, ranks, keys })
    }
}

impl TableArgs {
    /// The ranks that a tier proposal gives the rows, and how many of them belong in memory.
    fn planned(&self, plan: &ProposalFile, rows: u64, keys: Option<&Keys>) -> PyResult<(Ranks, u64)> {
        let Some(keys) = keys else { return plan.ranks(&self.name, rows).map_err(of_proposal) };
        let (hottest, hot_rows) = plan.keys(&self.name, rows).map_err(of_proposal)?;
        let row_of: HashMap<u64, u64> = keys.numbers.iter().copied().zip(0..).collect();
        // A trace may speak of keys that the table does not have.
        let hottest: Vec<u64> = hottest.iter().filter_map(|key| row_of.get(key).copied()).collect();
        let ranks = ranks_of(rows, hottest.into_iter());
        let ranks = ranks.map_err(|error| invalid("plan", format!("its order of table {:?}: {error}", self.name)))?;
        Ok((ranks, hot_rows))
    }
}

/// The order of a file's rows, if it is not that of their ids, or the keys that they are looked up by.
fn in_file(file: &TableFile, table: &warprow_formats::FileTable) -> PyResult<(Option<Ranks>, Option<Keys>)> {
    let Some(width) = table.keys else { return Ok((None, None)) };
    match file.key_order(table).map_err(of_file)? {
        KeyOrder::InOrder => Ok((None, None)),
        KeyOrder::Dense(order) => Ok((Some(order), None)),
        KeyOrder::Sparse { .. } => {
            let read = file.keys(table).map_err(of_file)?.into_iter().flatten();
            let numbers = read.collect::<Result<Vec<u64>, _>>().map_err(of_file)?;
            let kind = if width.is_signed() { KeyKind::I64 } else { KeyKind::U64 };
            Ok((None, Some(Keys { numbers, kind })))
        }
    }
}

impl Described {
    /// The index of its keys, if it has keys; its order is then that of its counts, or of its source.
    pub(crate) fn keyed(&self, interrupt: &mut Interrupt) -> PyResult<Option<TableKeys<'_>>> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let name = &self.spec.name;
        let built = KeyIndex::build(keys, &Default::default(), &mut |_| match interrupt.flow(0, u64::MAX) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        });
        let index = built.map_err(|error| {
            let text = match &error {
                IndexBuildError::Duplicate { first, second, .. } => {
                    format!("table {name:?} has one key twice, in rows {first} and {second}: leave one of the rows out")
                }
                error => format!("the keys of table {name:?}: {error}"),
            };
            invalid("keys", text)
        })?;
        let order = self.ranks.clone().map_or(RowOrder::Given, RowOrder::Ranks);
        let keyed = TableKeys::new(Arc::new(index), keys, order, true);
        keyed.map(Some).map_err(|error| invalid("keys", format!("the keys of table {name:?}: {error}")))
    }
}
