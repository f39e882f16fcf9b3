//! Files of tables, as the command meets them.

use std::io;
use std::path::Path;

use warprow_formats::{AnyOrder, FileTable, FormatError, Kind, TableFile, TableWriter, followed};
use warprow_layout::{DType, Ranks, RowSource, Table, VolumeError};
use warprow_soft_controller::SoftController;
use warprow_store::KeyKind;

use crate::failure::{Class, Failure, lacks_resources};

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        let class = match error.kind {
            Kind::Name | Kind::Unclear => Class::Usage,
            Kind::Exists => Class::Refused,
            _ if error.io_error().is_some_and(lacks_resources) => Class::Resources,
            _ => Class::Input,
        };
        Self::new(class, error.file.display().to_string(), error.message()).remedy(error.remedy)
    }
}

/// Begins a file of a table, see [`TableWriter::create`]. A drive in use is never overwritten.
pub fn create(path: &Path, force: bool, name: &str, rows: u64, dim: u32, dtype: DType) -> Result<TableWriter, Failure> {
    refuse_drive(path, force)?;
    Ok(TableWriter::create(path, force, name, rows, dim, dtype)?)
}

/// Begins a file of keys, see [`TableWriter::create_keys`]. A drive in use is never overwritten.
pub fn create_keys(path: &Path, force: bool, count: u64, kind: KeyKind) -> Result<TableWriter, Failure> {
    refuse_drive(path, force)?;
    Ok(TableWriter::create_keys(path, force, count, kind == KeyKind::I64)?)
}

/// A drive in use is never overwritten.
pub fn refuse_drive(path: &Path, force: bool) -> Result<(), Failure> {
    let target = followed(path);
    if force && target.is_file() && SoftController::is_open(&target).unwrap_or(false) {
        let what = "is a drive in use, and was left as it is";
        return Err(Failure::new(Class::Refused, path.display().to_string(), what).remedy("choose another name"));
    }
    Ok(())
}

/// What is there and is no regular file, such as a device, is neither read nor put out of its place.
pub fn refuse_special(path: &Path) -> Result<(), Failure> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => {
            let what = "is no regular file, and was left as it is";
            Err(Failure::input(path.display().to_string(), what).remedy("choose another name"))
        }
        _ => Ok(()),
    }
}

/// The rows of a table in a file by their ids, in any order. Compressed ones are unpacked into a file without a name first.
#[derive(Debug)]
pub struct ById<'a> {
    rows: AnyOrder<'a>,
    /// Where in the file the row of each id stands; `None`: at its id.
    places: Option<Ranks>,
}

impl<'a> ById<'a> {
    /// Those of `table`, one of `file`'s.
    pub fn new(file: &'a TableFile, table: &'a FileTable) -> Result<Self, FormatError> {
        Self::of(file, table, file.order(table)?.as_ref().map(Ranks::inverse))
    }

    /// Those of `table` by other numbers: `places` says where the row of each stands.
    pub fn placed(file: &'a TableFile, table: &'a FileTable, places: Ranks) -> Result<Self, FormatError> {
        Self::of(file, table, Some(places))
    }

    fn of(file: &'a TableFile, table: &'a FileTable, places: Option<Ranks>) -> Result<Self, FormatError> {
        let rows = file.rows_in_any_order(table, &std::env::temp_dir(), &mut |_| Ok::<_, FormatError>(()))?;
        Ok(Self { rows, places })
    }
}

impl RowSource for ById<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        let Some(places) = &self.places else { return self.rows.read(first, row_bytes, rows) };
        (first..).zip(rows.chunks_exact_mut(row_bytes.max(1))).try_for_each(|(id, row)| {
            let place = places.get(id).ok_or_else(|| io::Error::other("an id that the table does not have"))?;
            self.rows.read(place, row_bytes, row)
        })
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        self.rows.check(table)
    }
}
