//! HugeCTR's Parquet data sets: files of a list or a folder, and what `_metadata.json` says of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use warprow_formats::{FileError, FileErrorKind, IntegerFile, IntegerReader, KeyType};

use crate::block::{MAX_SAMPLE_KEYS, TraceBlock};
use crate::list;
use crate::sample_source::{Opened, SampleSource};
use crate::slot::TraceSlot;
use crate::spec::TraceSpec;
use crate::stream::Stream;

/// What stands beside the files.
pub(crate) const METADATA: &str = "_metadata.json";
/// The longest that is read.
const MAX_METADATA: u64 = 64 << 20;
/// Rows that are decoded at once: rows of lists may have many keys.
const ROWS: usize = 1024;

/// What `_metadata.json` says, as far as it matters here.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    #[serde(default)]
    file_stats: Vec<FileStats>,
    #[serde(default)]
    cats: Vec<NamedColumn>,
    #[serde(default)]
    conts: Vec<NamedColumn>,
    #[serde(default)]
    labels: Vec<NamedColumn>,
}

#[derive(Debug, Deserialize)]
struct FileStats {
    file_name: String,
    num_rows: u64,
}

#[derive(Debug, Deserialize)]
struct NamedColumn {
    col_name: String,
    index: i64,
}

impl Metadata {
    /// The columns of keys, by their index.
    pub(crate) fn cats(&self) -> Vec<String> {
        by_index(&self.cats)
    }

    /// The columns of dense features, by their index.
    pub(crate) fn conts(&self) -> Vec<String> {
        by_index(&self.conts)
    }

    /// The columns of labels, by their index.
    pub(crate) fn labels(&self) -> Vec<String> {
        by_index(&self.labels)
    }

    /// Rows of files by base name, which alone counts: the folder has another place since it was written.
    pub(crate) fn stated(&self) -> HashMap<String, u64> {
        let base = |name: &str| name.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
        self.file_stats.iter().map(|file| (base(&file.file_name), file.num_rows)).collect()
    }
}

fn by_index(columns: &[NamedColumn]) -> Vec<String> {
    let mut columns: Vec<&NamedColumn> = columns.iter().collect();
    columns.sort_by_key(|column| column.index);
    columns.into_iter().map(|column| column.col_name.clone()).collect()
}

/// Refuses a file that has other rows than the metadata say.
pub(crate) fn check_rows(stated: &HashMap<String, u64>, path: &Path, rows: u64) -> Result<(), FileError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match stated.get(&*name) {
        Some(&stated) if stated != rows => {
            let what = format!("it has {rows} rows; {METADATA} says {stated}");
            Err(FileError::new(FileErrorKind::Disagree, path, what, "write the data set again"))
        }
        _ => Ok(()),
    }
}

/// Refuses a folder that lacks a file which its metadata name, if `path` means the whole folder.
pub(crate) fn check_files(path: &Path, folder: &Path, metadata: Option<&Metadata>) -> Result<(), FileError> {
    let is_whole = path.is_dir() || path.ends_with(METADATA);
    let mut stated: Vec<String> = match metadata {
        Some(metadata) if is_whole => metadata.stated().into_keys().collect(),
        _ => return Ok(()),
    };
    stated.sort();
    match stated.iter().find(|name| !folder.join(name).is_file()) {
        Some(name) => {
            let what = format!("{METADATA} names it, and it is not there");
            let remedy = "bring it back, or write the data set again; to read the others alone, name them one by one";
            Err(FileError::new(FileErrorKind::Missing, &folder.join(name), what, remedy))
        }
        None => Ok(()),
    }
}

struct DataSet {
    files: std::vec::IntoIter<PathBuf>,
    names: Vec<String>,
    types: Vec<KeyType>,
    /// Rows of files, as the metadata say, by base name.
    stated: HashMap<String, u64>,
    open: Option<Rows>,
    read: u64,
    bytes: u64,
}

/// A file that is being read.
struct Rows {
    path: PathBuf,
    columns: Vec<Column>,
    rows: u64,
    next: u64,
    bytes: u64,
}

struct Column {
    reader: IntegerReader,
    keys: Vec<u64>,
    lengths: Vec<u32>,
    /// How many of `keys`, and how many of `lengths`, were used.
    key: usize,
    row: usize,
}

pub(crate) fn open(spec: &TraceSpec) -> Result<Opened, FileError> {
    let (files, folder) = files(&spec.path)?;
    let Some(first) = files.first() else { return Err(no_files(&spec.path)) };
    let metadata = metadata(&folder.join(METADATA))?;
    check_files(&spec.path, &folder, metadata.as_ref())?;
    let file = IntegerFile::open(first)?;
    let names = match (&*spec.columns, &metadata) {
        ([], Some(metadata)) if !metadata.cats.is_empty() => metadata.cats(),
        ([], _) => file.columns().iter().map(|column| column.name.clone()).collect(),
        (columns, _) => columns.to_vec(),
    };
    if names.is_empty() {
        let what = format!("it has no column of integers; its columns are: {}", file.others().join(", "));
        return Err(FileError::new(FileErrorKind::Unsupported, first, what, "write the keys as int64"));
    }
    let rows = Rows::open(first, &file, &names)?;
    let types = types(&file, &names);
    let slots = names.iter().zip(&types);
    let slots = slots.map(|(name, width)| TraceSlot { name: name.clone(), signed: width.is_signed() }).collect();
    let stated = metadata.map(|metadata| metadata.stated()).unwrap_or_default();
    let bytes = list::bytes(&files);
    let mut files = files.into_iter();
    files.next();
    let set = DataSet { files, names, types, stated, open: None, read: 0, bytes };
    check_rows(&set.stated, &rows.path, rows.rows)?;
    Ok(Opened { slots, source: Box::new(DataSet { open: Some(rows), ..set }) })
}

/// The data files, and the folder that their metadata are in.
pub(crate) fn files(path: &Path) -> Result<(Vec<PathBuf>, PathBuf), FileError> {
    let parent = || path.parent().unwrap_or(Path::new("")).to_owned();
    let ends =
        |path: &Path, ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
    let folder = match path.is_dir() {
        true => path.to_owned(),
        false if path.ends_with(METADATA) => parent(),
        false if ends(path, "parquet") => return Ok((vec![path.to_owned()], parent())),
        false => return Ok((list::files(path)?, parent())),
    };
    let cannot = |error| FileError::io(&folder, "cannot be listed", error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if ends(&path, "parquet") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok((files, folder))
}

pub(crate) fn metadata(path: &Path) -> Result<Option<Metadata>, FileError> {
    if !path.exists() {
        return Ok(None);
    }
    let mut stream = Stream::open(path)?;
    if stream.len > MAX_METADATA {
        return Err(stream.damaged(format!("it has {} bytes, at most {MAX_METADATA} are read", stream.len)));
    }
    let len = stream.len as usize;
    let parsed = serde_json::from_slice(stream.take(len)?);
    parsed.map(Some).map_err(|error| stream.damaged(format!("it is not what HugeCTR writes: {error}")))
}

/// The error of a folder without files.
pub(crate) fn no_files(path: &Path) -> FileError {
    FileError::new(FileErrorKind::Missing, path, "holds no file that ends in .parquet", "look at the path")
}

fn types(file: &IntegerFile, names: &[String]) -> Vec<KeyType> {
    let of = |name: &String| file.columns().iter().find(|column| column.name == *name).map(|column| column.keys);
    names.iter().filter_map(of).collect()
}

impl Rows {
    fn open(path: &Path, file: &IntegerFile, names: &[String]) -> Result<Self, FileError> {
        let open = |name: &String| {
            let column = file.columns().iter().find(|column| column.name == *name).ok_or_else(|| {
                let known = file.columns().iter().map(|column| &*column.name).collect::<Vec<_>>().join(", ");
                let what = format!("it has no column {name:?} of integers, but: {known}");
                FileError::new(FileErrorKind::Missing, path, what, "name one of these columns")
            })?;
            Ok(Column { reader: file.read(column)?, keys: Vec::new(), lengths: Vec::new(), key: 0, row: 0 })
        };
        let columns = names.iter().map(open).collect::<Result<_, FileError>>()?;
        Ok(Self { path: path.to_owned(), columns, rows: file.rows(), next: 0, bytes: file.bytes() })
    }

    /// Adds the next row.
    fn push(&mut self, block: &mut TraceBlock) -> Result<(), FileError> {
        let mut keys = 0;
        for column in &mut self.columns {
            if column.row >= column.lengths.len() {
                column.refill(&self.path, self.next)?;
            }
            let length = column.lengths.get(column.row).copied().unwrap_or(0) as usize;
            let now = column.keys.get(column.key..column.key + length).unwrap_or_default();
            block.push(now.iter().copied());
            (column.key, column.row) = (column.key + length, column.row + 1);
            keys += length;
        }
        self.next += 1;
        if keys > MAX_SAMPLE_KEYS {
            let what = format!("row {} has {keys} keys; at most {MAX_SAMPLE_KEYS} are read", self.next - 1);
            return Err(FileError::new(FileErrorKind::Unsupported, &self.path, what, "leave the row out"));
        }
        Ok(())
    }
}

impl Rows {
    /// Refuses columns that go on past the rows that the file says it has.
    fn end(&mut self) -> Result<(), FileError> {
        for column in &mut self.columns {
            let used = column.row == column.lengths.len();
            if !used || column.reader.next(1, &mut column.keys, &mut column.lengths)? > 0 {
                let what = format!("a column goes on after the {} rows that it says it has", self.rows);
                return Err(FileError::damaged(&self.path, what));
            }
        }
        Ok(())
    }
}

impl Column {
    fn refill(&mut self, path: &Path, row: u64) -> Result<(), FileError> {
        self.keys.clear();
        self.lengths.clear();
        (self.key, self.row) = (0, 0);
        match self.reader.next(ROWS, &mut self.keys, &mut self.lengths)? {
            0 => Err(FileError::damaged(path, format!("a column ends after {row} rows"))),
            _ => Ok(()),
        }
    }
}

impl DataSet {
    /// Goes on to the next file; `false` if there is none.
    fn next_file(&mut self) -> Result<bool, FileError> {
        let Some(path) = self.files.next() else { return Ok(false) };
        let file = IntegerFile::open(&path)?;
        let rows = Rows::open(&path, &file, &self.names)?;
        if types(&file, &self.names) != self.types {
            let what = "its columns are of other types than those of the files before it";
            return Err(FileError::new(FileErrorKind::Disagree, &path, what, "list only files of one data set"));
        }
        check_rows(&self.stated, &rows.path, rows.rows)?;
        self.open = Some(rows);
        Ok(true)
    }
}

impl SampleSource for DataSet {
    fn fill(&mut self, block: &mut TraceBlock) -> Result<(), FileError> {
        while !block.is_full() {
            match &mut self.open {
                Some(rows) if rows.next < rows.rows => rows.push(block)?,
                Some(rows) => {
                    rows.end()?;
                    self.read += rows.bytes;
                    self.open = None;
                }
                None => {
                    if !self.next_file()? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn progress(&self) -> (u64, u64) {
        let within = self
            .open
            .as_ref()
            .map_or(0, |rows| (u128::from(rows.bytes) * u128::from(rows.next) / u128::from(rows.rows.max(1))) as u64);
        (self.read + within, self.bytes)
    }
}
