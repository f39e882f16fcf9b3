//! Files of tables, as the command meets them.

use std::io;
use std::path::{Path, PathBuf};

use warprow_formats::{FileError, FileErrorKind, FileTable, NewFile, RowsInAnyOrder, TableFile, TableWriter, followed};
use warprow_layout::{DType, Ranks, RowSource, Table, VolumeError};
use warprow_soft_controller::in_use;
use warprow_store::{DriveAddress, KeyKind};

use crate::attached;
use crate::drives::split;
use crate::failure::{Class, Failure, lacks_resources};

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let class = match error.kind {
            FileErrorKind::Name | FileErrorKind::Unclear => Class::Usage,
            FileErrorKind::Exists => Class::Refused,
            _ if error.io_error().is_some_and(lacks_resources) => Class::Resources,
            _ => Class::Input,
        };
        Self::new(class, error.file.display().to_string(), error.message()).remedy(error.remedy)
    }
}

/// Begins a file of a table, see [`TableWriter::create`]. What is in use is never overwritten ([`refuse_in_use`]).
pub fn create(path: &Path, force: bool, name: &str, rows: u64, dim: u32, dtype: DType) -> Result<TableWriter, Failure> {
    refuse_in_use(path)?;
    Ok(TableWriter::create(path, force, name, rows, dim, dtype)?)
}

/// Begins a file of keys, see [`TableWriter::create_keys`]. What is in use is never overwritten ([`refuse_in_use`]).
pub fn create_keys(path: &Path, force: bool, count: u64, kind: KeyKind) -> Result<TableWriter, Failure> {
    refuse_in_use(path)?;
    Ok(TableWriter::create_keys(path, force, count, kind == KeyKind::I64)?)
}

/// What a drive in use depends on is never overwritten, nor anything else that is needed as it is ([`in_use`]). Every command asks
/// this before it writes a file that its user names.
pub fn refuse_in_use(path: &Path) -> Result<(), Failure> {
    let target = followed(path);
    // What nothing is known of cannot be written either, which says more.
    let Ok(Some(found)) = in_use(&target) else { return Ok(()) };
    let same =
        |other: &Path| other.canonicalize().is_ok_and(|other| target.canonicalize().is_ok_and(|path| path == other));
    let what = match same(&found.path) {
        true => format!("is in use by {}, and was left as it is", found.who()),
        false => {
            let drive = found.path.display();
            format!("belongs to {drive}, a drive in use by {}, and was left as it is", found.who())
        }
    };
    Err(Failure::new(Class::Refused, path.display().to_string(), what).remedy("choose another name"))
}

/// Begins a file that replaces what is there as a whole, or not at all. See [`refuse_in_use`]; what is no regular file stays too.
pub fn replacing(path: &Path) -> Result<NewFile, Failure> {
    refuse_special(path)?;
    refuse_in_use(path)?;
    NewFile::create(path).map_err(|error| Failure::io(path.display().to_string(), "cannot be written", &error))
}

/// Refuses to write over the drives that a command was given, be they closed again: their files are all that there is of them.
pub fn refuse_own(path: &Path, drives: &[String]) -> Result<(), Failure> {
    let drives: Vec<String> = drives.iter().flat_map(|argument| split(argument)).collect();
    let target = followed(path).canonicalize();
    // A folder is compared as a whole.
    let same = |own: &Path| target.as_ref().is_ok_and(|path| own.canonicalize().is_ok_and(|own| path.starts_with(own)));
    let depends = |address: &&String| match address.parse() {
        Ok(DriveAddress::Emulated(uri)) => uri.files().iter().any(|own| same(own)),
        _ => attached::file_of(address).is_some_and(|own| same(&own)),
    };
    match drives.iter().find(depends) {
        None => Ok(()),
        Some(drive) => {
            let what = format!("belongs to {drive}, and was left as it is");
            Err(Failure::new(Class::Refused, path.display().to_string(), what).remedy("choose another name"))
        }
    }
}

/// Refuses to write `output`, the file of `option`, over one of the `inputs`, the files that the command reads: each with its option. An
/// input that is a folder is compared as a whole.
pub fn refuse_inputs(option: &str, output: &Path, inputs: &[(&str, PathBuf)]) -> Result<(), Failure> {
    let Ok(place) = followed(output).canonicalize() else { return Ok(()) };
    let reads = |input: &Path| input.canonicalize().is_ok_and(|input| place.starts_with(input));
    match inputs.iter().find(|(_, input)| reads(input)) {
        None => Ok(()),
        Some((other, _)) => {
            let what = format!("{} is the file of {other} as well", output.display());
            Err(Failure::usage(option, what).remedy("name another file"))
        }
    }
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
    rows: RowsInAnyOrder<'a>,
    /// Where in the file the row of each id stands; `None`: at its id.
    places: Option<Ranks>,
}

impl<'a> ById<'a> {
    /// The rows of `table`, which is one of `file`'s.
    pub fn new(file: &'a TableFile, table: &'a FileTable) -> Result<Self, FileError> {
        Self::of(file, table, file.order(table)?.as_ref().map(Ranks::inverse))
    }

    /// The rows of `table` by other numbers: `places` says where the row of each number stands.
    pub fn placed(file: &'a TableFile, table: &'a FileTable, places: Ranks) -> Result<Self, FileError> {
        Self::of(file, table, Some(places))
    }

    fn of(file: &'a TableFile, table: &'a FileTable, places: Option<Ranks>) -> Result<Self, FileError> {
        let rows = file.rows_in_any_order(table, &std::env::temp_dir(), &mut |_| Ok::<_, FileError>(()))?;
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
