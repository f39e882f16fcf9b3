//! The row that stands for ids a table does not have: `--default`.

use std::path::Path;

use warprow_formats::{npy, refuse_special};
use warprow_layout::{DType, Ranks, TableSpec};
use warprow_workload::NpyHeader;
use warprow_workload::units;

use super::conversion::converted;
use crate::failure::Failure;
use crate::keyed::{FileKeys, RowNames};
use crate::select::Chosen;

/// The bytes of the default row as the table stores it; `None`: zeros.
pub(super) fn default_row(
    argument: &str,
    chosen: &Chosen<'_>,
    spec: &TableSpec,
    whose: &RowNames<'_>,
) -> Result<Option<Vec<u8>>, Failure> {
    if argument == "zeros" {
        return Ok(None);
    }
    if let Some(id) = argument.strip_prefix("id:") {
        let place = match whose {
            RowNames::Keys(keys) => keyed_place(keys, id, chosen)?,
            RowNames::Ids(order) => dense_place(order.as_ref(), id, chosen)?,
        };
        let mut row = vec![0; chosen.table.row_bytes()];
        chosen.file.rows(chosen.table).fill(place, &mut row)?;
        return convert(argument, row, chosen, spec).map(Some);
    }
    from_file(argument, chosen, spec).map(Some)
}

/// The row of the .npy file at `path`.
fn from_file(path: &str, chosen: &Chosen<'_>, spec: &TableSpec) -> Result<Vec<u8>, Failure> {
    let table = chosen.table;
    refuse_special(Path::new(path))?;
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::io(path, "cannot be read", &error).remedy("give zeros, id:N or FILE.npy as the default row")
    })?;
    let header = NpyHeader::read(&mut &bytes[..])
        .map_err(|error| Failure::input(path, error.to_string()).remedy("give zeros, id:N or FILE.npy"))?;
    let row = bytes.get(header.data_at as usize..).unwrap_or_default();
    let dtype: Option<DType> = npy::dtype_of(&header.descr);
    let fits = |wanted: DType| {
        dtype == Some(wanted)
            && header.elements() == table.dim.into()
            && Some(row.len()) == wanted.row_bytes(table.dim).map(|bytes| bytes as usize)
    };
    if fits(spec.dtype) {
        Ok(row.to_vec())
    } else if fits(table.dtype) {
        convert(path, row.to_vec(), chosen, spec)
    } else {
        let what = format!(
            "{path} holds {:?} elements of {}, a row of {} is {} elements of {}",
            header.shape, header.descr, chosen.name, table.dim, spec.dtype
        );
        Err(Failure::input(path, what).remedy("give one row of the table's type and width"))
    }
}

/// A row of the file's type as one of the table's.
fn convert(argument: &str, row: Vec<u8>, chosen: &Chosen<'_>, spec: &TableSpec) -> Result<Vec<u8>, Failure> {
    let rows = chosen.file.rows(chosen.table);
    match converted(&rows, chosen, spec)? {
        Some(converted) => converted
            .row(&row)
            .map_err(|error| Failure::input(argument, error.to_string()).remedy("choose another row")),
        None => Ok(row),
    }
}

/// The row of an id.
fn dense_place(order: Option<&Ranks>, id: &str, chosen: &Chosen<'_>) -> Result<u64, Failure> {
    let argument = format!("id:{id}");
    let id: u64 = id
        .parse()
        .map_err(|_| Failure::usage(&argument, format!("{id:?} is no id")).remedy("give zeros, id:N or FILE.npy"))?;
    let rows = chosen.table.rows;
    let place = order.map_or(Some(id), |order| (0..rows).find(|&row| order.get(row) == Some(id)));
    place.filter(|_| id < rows).ok_or_else(|| {
        let what = format!("{} has {}; there is no row {id}", chosen.name, units::plural(rows, "row"));
        Failure::input(&argument, what).remedy("give an id that the table has")
    })
}

/// The row of a key.
fn keyed_place(keys: &FileKeys<'_>, key: &str, chosen: &Chosen<'_>) -> Result<u64, Failure> {
    let argument = format!("id:{key}");
    let number: i128 = key.parse().map_err(|_| {
        Failure::usage(&argument, format!("{key:?} is no key")).remedy("give zeros, id:KEY or FILE.npy")
    })?;
    keys.position(number)?.ok_or_else(|| {
        let what = format!("{} has no key {number}", chosen.name);
        Failure::input(&argument, what).remedy("give a key that the table has")
    })
}
