//! Loading tables.

use std::ops::ControlFlow;

use pyo3::prelude::*;
use warprow_formats::{ConvertedRows, FileRows, TableFile};
use warprow_layout::RowSource;
use warprow_store::{LoadOptions, LoadReport, Store, StoreError, TableLoad};

use crate::error::{invalid, of_store};
use crate::interrupt::Interrupt;
use crate::load_source::{Described, TableArgs, open, table_in};

/// Where the rows of a table are read from.
enum Rows<'a> {
    Memory(&'a [u8]),
    File(FileRows<'a>),
}

impl Rows<'_> {
    fn source(&self) -> &dyn RowSource {
        match self {
            Self::Memory(bytes) => bytes,
            Self::File(rows) => rows,
        }
    }
}

/// Loads tables as one generation, without the GIL.
///
/// # Safety
/// All addresses in `tables` are right, and nobody writes there while this runs.
pub(crate) unsafe fn load(
    store: &Store,
    model: &str,
    tables: &[TableArgs],
    options: &LoadOptions,
    progress: Option<Py<PyAny>>,
) -> PyResult<LoadReport> {
    let mut interrupt = Interrupt::new(None);
    let files = tables.iter().map(|it| it.file.as_ref().map(|(path, _)| open(path)).transpose());
    let files = files.collect::<PyResult<Vec<Option<TableFile>>>>()?;
    // SAFETY: the caller's promise.
    let described = tables.iter().zip(&files).map(|(it, file)| unsafe { it.describe(file.as_ref()) });
    let described = described.collect::<PyResult<Vec<Described>>>()?;
    let mut keyed = Vec::with_capacity(described.len());
    for it in &described {
        match it.keyed(&mut interrupt) {
            Ok(keys) => keyed.push(keys),
            Err(error) => return Err(interrupt.or(|| error)),
        }
    }
    let specs: Vec<_> = described
        .iter()
        .zip(&keyed)
        .map(|(it, keys)| keys.iter().fold(it.spec.clone(), |spec, keys| spec.keyed(keys)))
        .collect();
    let rows = tables.iter().zip(&files).map(|(it, file)| match (&it.file, file) {
        (Some((_, tensor)), Some(file)) => table_in(file, tensor).map(|table| Rows::File(file.rows(table))),
        // SAFETY: the caller's promise.
        _ => Ok(Rows::Memory(unsafe { it.bytes() })),
    });
    let rows = rows.collect::<PyResult<Vec<Rows<'_>>>>()?;
    let converted = rows.iter().zip(&described).map(|(rows, it)| {
        let (from, to) = (it.from, it.spec.dtype);
        let refused = || invalid("dtype", format!("rows of {from} cannot be stored as {to}: leave dtype out"));
        match from == to {
            true => Ok(None),
            false => ConvertedRows::new(rows.source(), it.spec.dim, from, to).ok_or_else(refused).map(Some),
        }
    });
    let converted = converted.collect::<PyResult<Vec<_>>>()?;
    let mut loads = Vec::with_capacity(tables.len());
    for (index, spec) in specs.iter().enumerate() {
        let (Some(rows), Some(converted), Some(it), Some(keys)) =
            (rows.get(index), converted.get(index), described.get(index), keyed.get(index))
        else {
            break;
        };
        let source: &dyn RowSource = converted.as_ref().map_or(rows.source(), |converted| converted);
        let load = TableLoad::new(spec, source);
        let load = match keys {
            Some(keys) => load.with_keys(keys),
            None => it.ranks.iter().fold(load, TableLoad::with_ranks),
        };
        let is_sequential = match (tables.get(index).and_then(|it| it.file.as_ref()), files.get(index)) {
            (Some((_, tensor)), Some(Some(file))) => table_in(file, tensor)?.is_sequential(),
            _ => false,
        };
        let load = match rows {
            _ if is_sequential => load.with_sequential_rows(),
            Rows::Memory(_) => load.with_random_access(),
            Rows::File(_) => load,
        };
        loads.push(it.order.iter().fold(load, TableLoad::with_order));
    }
    let mut interrupt = Interrupt::new(progress);
    let loaded =
        store.load(model, &loads, options, &mut |progress| match interrupt.flow(progress.written, progress.total) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        });
    loaded.map_err(|error| match error {
        StoreError::Interrupted => interrupt.or(|| of_store(StoreError::Interrupted)),
        error => of_store(error),
    })
}
