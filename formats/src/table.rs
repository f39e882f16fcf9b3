//! Tables in files, read row by row, never whole.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use warprow_layout::{DType, RowSource, Table, VolumeError};

use crate::error::FormatError;
use crate::format::{Format, ReadOptions};
use crate::held::Held;
use crate::input::{Input, room};
use crate::keys::{KeyArray, KeyPlace, KeyType};
use crate::seen::Seen;
use crate::zip::Member;
use crate::{collection, dynamicemb, hugectr, npy, npz, raw, safetensors, sharded};

/// Files with tables in them: one, or several that belong together.
///
/// ```
/// use warprow_formats::TableFile;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("m.safetensors");
/// # let mut bytes = br#"{"emb":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},"bias":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}}"#.to_vec();
/// # bytes.splice(0..0, (bytes.len() as u64).to_le_bytes());
/// # bytes.extend(0..8);
/// # std::fs::write(&path, bytes)?;
/// let file = TableFile::open(&path)?;
/// for table in &file.tables {
///     let mut rows = vec![0; table.rows as usize * table.row_bytes()];
///     file.rows(table).fill(0, &mut rows)?;
///     assert_eq!((&*table.name, rows), ("emb", vec![0, 1, 2, 3, 4, 5]));
/// }
/// assert_eq!(file.skipped, [("bias".to_owned(), "rank 1".to_owned())]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TableFile {
    /// Where it is: a file, or the folder of several.
    pub path: PathBuf,
    /// What it was read as.
    pub format: Format,
    /// What can be loaded, by name.
    pub tables: Vec<FileTable>,
    /// What cannot, by name, and why not.
    pub skipped: Vec<(String, String)>,
    /// Those of them that would be tables if they had rows.
    pub empty: Vec<String>,
    /// Lists of whole numbers, which may be the keys of its tables: see [`with_keys`](Self::with_keys).
    pub key_arrays: Vec<KeyArray>,
    pub(crate) inputs: Vec<Arc<Input>>,
}

/// A table in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTable {
    /// Its name there; the file's without its ending where a file is one table.
    pub name: String,
    /// Rows; at least one.
    pub rows: u64,
    /// Elements in a row; at least one.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// The type of the keys that say which row is whose; `None`: row i is that of id i.
    pub keys: Option<KeyType>,
    /// Where the rows stand.
    pub(crate) place: Place,
    /// Where the keys stand.
    pub(crate) key_place: KeyPlace,
}

/// Where rows stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// One after another, in one or several pieces, which hold the rows in their order.
    Flat(Vec<Part>),
    /// One after another, in a stored member of a zip archive, which has a checksum of it.
    Stored(Part, Member),
    /// Compressed: in a deflated member of a zip archive.
    Deflated(npz::Deflated),
    /// In column chunks.
    #[cfg(feature = "parquet")]
    Parquet(crate::parquet::Columns),
}

/// Rows, or keys, that stand one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Which of the inputs.
    pub(crate) input: usize,
    /// Byte of it at which they begin.
    pub(crate) at: u64,
    /// The first of them.
    pub(crate) first: u64,
    /// How many.
    pub(crate) rows: u64,
}

/// What a format's reader finds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) inputs: Vec<Input>,
    pub(crate) tables: Vec<FileTable>,
    pub(crate) skipped: Vec<(String, String)>,
    pub(crate) empty: Vec<String>,
    pub(crate) key_arrays: Vec<KeyArray>,
}

impl FileTable {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.dim).unwrap_or(0) as usize
    }

    /// Whether its rows can only be read from the first to the last: they are compressed, or stand in pages that have to be unpacked. What asks
    /// for others gets them too, at the cost of reading from the beginning. Of a Parquet file that is neither compressed nor in another encoding by its
    /// footer, the first call reads the headers of all pages.
    pub fn is_sequential(&self) -> bool {
        match &self.place {
            Place::Flat(_) | Place::Stored(..) => false,
            Place::Deflated(_) => true,
            #[cfg(feature = "parquet")]
            Place::Parquet(columns) => !columns.are_plain(),
        }
    }

    /// Whether its rows stand in pages, between which there is something else: where they do is to be found first.
    pub fn is_in_pages(&self) -> bool {
        #[cfg(feature = "parquet")]
        return matches!(self.place, Place::Parquet(_));
        #[cfg(not(feature = "parquet"))]
        false
    }

    /// A table of an array that stands at `at` of the only input.
    pub(crate) fn flat(name: impl Into<String>, rows: u64, dim: u32, dtype: DType, at: u64) -> Self {
        let place = Place::Flat(vec![Part { input: 0, at, first: 0, rows }]);
        Self { name: name.into(), rows, dim, dtype, keys: None, place, key_place: KeyPlace::Nowhere }
    }
}

impl TableFile {
    /// Lets others see, until what this returns is dropped, that its files are needed as they are.
    pub fn hold(&self) -> Vec<Held> {
        self.inputs.iter().map(|input| Held::new(&input.file)).collect()
    }

    /// Opens it and reads its headers, in the format that its name and its first bytes show.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        Self::open_with(path, &ReadOptions::default())
    }

    /// Opens it and reads its headers. Nothing that they say is believed before it has been compared with what is there.
    pub fn open_with(path: &Path, options: &ReadOptions) -> Result<Self, FormatError> {
        let format = Format::of(path, options)?;
        let mut found = match format {
            Format::Safetensors => safetensors::open(path)?,
            Format::SafetensorsIndex => sharded::open(path)?,
            Format::Npy => npy::open(path)?,
            Format::Npz => npz::open(path)?,
            Format::HugeCtr => hugectr::open(path, options)?,
            Format::EmbeddingCollection => collection::open(path)?,
            Format::DynamicEmb => dynamicemb::open(path, options)?,
            #[cfg(feature = "parquet")]
            Format::Parquet => crate::parquet::open(path, options)?,
            #[cfg(not(feature = "parquet"))]
            Format::Parquet => {
                let what = "is a Parquet file, which this build does not read";
                let remedy = "build with the feature `parquet`, or save the vectors as .npy";
                return Err(FormatError::new(crate::error::Kind::Unsupported, path, what, remedy));
            }
            Format::Raw => raw::open(path, options)?,
        };
        found.tables.sort_by(|a, b| a.name.cmp(&b.name));
        found.skipped.sort();
        let Found { inputs, tables, skipped, empty, key_arrays } = found;
        let inputs = inputs.into_iter().map(Arc::new).collect();
        Ok(Self { path: path.to_owned(), format, tables, skipped, empty, key_arrays, inputs })
    }

    /// What tells these files from others, and from themselves after a change: paths, inodes, sizes, times.
    pub fn identity(&self) -> String {
        self.inputs.iter().map(|input| input.identity()).collect::<Vec<_>>().join("; ")
    }

    /// Refuses files that have been written to, or replaced, since they were opened: what was read of them may be of both.
    pub fn unchanged(&self) -> Result<(), FormatError> {
        self.inputs.iter().try_for_each(|input| input.unchanged())
    }

    /// The rows of `table`, one of this file's, as they stand there: row i of them is that of the i-th key, if there are keys.
    pub fn rows<'a>(&'a self, table: &'a FileTable) -> FileRows<'a> {
        FileRows {
            source: self,
            table,
            stream: Mutex::new(None),
            seen: Mutex::default(),
            #[cfg(feature = "parquet")]
            pages: Mutex::new(None),
        }
    }
}

/// The rows of a table in a file, in the order in which they stand there. Several threads may ask at once: rows that are not
/// compressed are read from where they stand.
pub struct FileRows<'a> {
    source: &'a TableFile,
    table: &'a FileTable,
    /// Rows that can only be read in their order: the reader, and the row that it comes to next.
    stream: Mutex<Option<(u64, Box<dyn Rows>)>>,
    /// Rows that have a checksum together: what was read of them as a source of rows.
    seen: Mutex<Seen>,
    /// Rows that stand in pages as they are: where, as far as it was found.
    #[cfg(feature = "parquet")]
    pages: Mutex<Option<Box<crate::parquet::PlainPages>>>,
}

/// Rows that come in their order.
pub(crate) trait Rows: Send {
    /// Fills `rows` with the next ones.
    fn next(&mut self, rows: &mut [u8]) -> Result<(), FormatError>;
}

impl std::fmt::Debug for FileRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileRows").field("file", &self.source.path).field("table", &self.table.name).finish()
    }
}

impl FileRows<'_> {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.table.row_bytes()
    }

    /// Fills `rows`, whole ones, with those from row `first` on.
    pub fn fill(&self, first: u64, rows: &mut [u8]) -> Result<(), FormatError> {
        let past = || FormatError::damaged(&self.source.path, "a row past the last was asked for");
        let row_bytes = self.row_bytes().max(1);
        let count = (rows.len() / row_bytes) as u64;
        if first.checked_add(count).is_none_or(|end| end > self.table.rows) {
            return Err(past());
        }
        match &self.table.place {
            Place::Flat(parts) => read_parts(&self.source.inputs, parts, first, row_bytes, rows),
            Place::Stored(part, _) => {
                read_parts(&self.source.inputs, std::slice::from_ref(part), first, row_bytes, rows)
            }
            Place::Deflated(_) => self.fill_in_order(first, rows),
            #[cfg(feature = "parquet")]
            Place::Parquet(columns) => match self.plain_places(columns, first, rows.len())? {
                Some(places) => crate::parquet::fill(&self.source.inputs, &places, rows),
                None => self.fill_in_order(first, rows),
            },
        }
    }

    /// Where rows stand in a Parquet file, if they do as they are.
    #[cfg(feature = "parquet")]
    fn plain_places(
        &self,
        columns: &crate::parquet::Columns,
        first: u64,
        bytes: usize,
    ) -> Result<Option<Vec<(u64, usize)>>, FormatError> {
        if !columns.are_plain() {
            return Ok(None);
        }
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = match &mut *pages {
            Some(pages) => pages,
            none => none.insert(Box::new(columns.plain_pages(self.table))),
        };
        pages.places(first, bytes).map(Some)
    }

    fn fill_in_order(&self, first: u64, rows: &mut [u8]) -> Result<(), FormatError> {
        let row_bytes = self.row_bytes().max(1);
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut next, mut reader) = match stream.take() {
            Some((next, reader)) if next <= first => (next, reader),
            _ => (0, self.reader()?),
        };
        // What lies between is read past.
        let at_once = (first - next).min(((64 << 10) / row_bytes as u64).max(1));
        let mut skipped = room(&self.source.path, at_once * row_bytes as u64)?;
        while next < first {
            let count = (first - next).min((skipped.len() / row_bytes) as u64);
            reader.next(skipped.get_mut(..count as usize * row_bytes).unwrap_or_default())?;
            next += count;
        }
        reader.next(rows)?;
        *stream = Some((next + (rows.len() / row_bytes) as u64, reader));
        Ok(())
    }

    fn reader(&self) -> Result<Box<dyn Rows>, FormatError> {
        match &self.table.place {
            Place::Flat(_) | Place::Stored(..) => {
                Err(FormatError::damaged(&self.source.path, "its rows are in no order"))
            }
            Place::Deflated(place) => place.reader(&self.source.inputs),
            #[cfg(feature = "parquet")]
            Place::Parquet(columns) => Ok(columns.reader(self.table)),
        }
    }
}

/// The pieces that hold `count` rows, or keys, from `first` on: the input, the byte of it, and how many rows.
fn pieces<'a>(
    inputs: &'a [Arc<Input>],
    parts: &'a [Part],
    first: u64,
    count: u64,
    row_bytes: usize,
) -> impl Iterator<Item = (&'a Arc<Input>, u64, u64)> {
    let (mut row, end) = (first, first.saturating_add(count));
    let begin = parts.partition_point(|part| part.first + part.rows <= first);
    parts.iter().skip(begin).map_while(move |part| {
        let skip = row.checked_sub(part.first)?;
        let rows = part.rows.checked_sub(skip)?.min(end - row);
        row += rows;
        let at = part.at + skip * row_bytes as u64;
        (rows > 0).then_some((inputs.get(part.input)?, at, rows))
    })
}

/// Reads rows, or keys, from the pieces that hold them.
pub(crate) fn read_parts(
    inputs: &[Arc<Input>],
    parts: &[Part],
    first: u64,
    row_bytes: usize,
    mut rows: &mut [u8],
) -> Result<(), FormatError> {
    let count = (rows.len() / row_bytes) as u64;
    for (input, at, count) in pieces(inputs, parts, first, count, row_bytes) {
        let (now, rest) = rows.split_at_mut(count as usize * row_bytes);
        input.read(at, now)?;
        rows = rest;
    }
    Ok(())
}

impl RowSource for FileRows<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        if row_bytes != self.row_bytes() {
            return Err(io::Error::other("rows of another size were asked for"));
        }
        self.fill(first, rows)?;
        if let Place::Stored(part, _) = &self.table.place {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.note(part.at + first * row_bytes as u64, rows);
        }
        Ok(())
    }

    fn stretches(&self, first: u64, count: u64, row_bytes: usize, each: &mut dyn FnMut(&File, u64, u64)) {
        let parts = match &self.table.place {
            Place::Flat(parts) => parts,
            Place::Stored(part, _) => std::slice::from_ref(part),
            _ => return,
        };
        for (input, at, rows) in pieces(&self.source.inputs, parts, first, count, row_bytes) {
            each(&input.file, at, rows * row_bytes as u64);
        }
    }

    /// Neither was the file written to, nor do its rows contradict the checksum that there is of them together. What was not read of
    /// them is, for that.
    fn unchanged(&self, read: &mut dyn FnMut(u64) -> ControlFlow<()>) -> io::Result<()> {
        self.source.unchanged()?;
        if let (Place::Stored(_, member), Some(input)) = (&self.table.place, self.source.inputs.first()) {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.compare(input, member, read)?.is_break() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        Ok(())
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        let bytes = |rows: u64, row_bytes: u64| rows.saturating_mul(row_bytes);
        let expected = bytes(table.rows, u64::from(table.row_bytes()));
        let given = bytes(self.table.rows, self.row_bytes() as u64);
        if expected != given || table.rows != self.table.rows {
            return Err(VolumeError::Length { what: "the tensor", expected, given });
        }
        Ok(())
    }
}

/// A table's shape, if it can have it: at least one element, rows below 4 GiB.
pub(crate) fn shape_of_table(rows: u64, dim: u64, dtype: DType) -> Result<(u64, u32), String> {
    if rows == 0 || dim == 0 {
        return Err(format!("shape [{rows}, {dim}] is empty"));
    }
    let dim = u32::try_from(dim).ok().filter(|&dim| dtype.row_bytes(dim).is_some());
    Ok((rows, dim.ok_or("its rows pass 4 GiB")?))
}

/// The types of tensors that can be tables, as safetensors calls them.
const TYPES: [(&str, DType); 7] = [
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("F8_E4M3", DType::F8E4M3),
    ("F8_E5M2", DType::F8E5M2),
    ("I8", DType::I8),
    ("U8", DType::U8),
];

/// The types of tensors that can be tables, in words.
pub fn tensor_types() -> String {
    let names = TYPES.map(|(name, _)| name);
    let [first @ .., last] = &names;
    format!("{} or {last}", first.join(", "))
}

/// The table of the type and shape that a tensor of `name` has, or why it is none.
pub(crate) fn table_of(tensor: &safetensors::Tensor) -> Result<FileTable, String> {
    let Some(&(_, dtype)) = TYPES.iter().find(|(name, _)| *name == tensor.dtype) else {
        return Err(format!("type {}: tables are of {}", tensor.dtype, tensor_types()));
    };
    let &[rows, dim] = &*tensor.shape else { return Err(format!("rank {}", tensor.shape.len())) };
    let (rows, dim) = shape_of_table(rows, dim, dtype)?;
    Ok(FileTable::flat(&tensor.name, rows, dim, dtype, tensor.at))
}

/// The name of a file that is one table: without its ending.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(all(test, feature = "parquet"))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts the rows that a reader gives.
    struct Counted(Box<dyn Rows>, Arc<AtomicU64>, usize);

    impl Rows for Counted {
        fn next(&mut self, rows: &mut [u8]) -> Result<(), FormatError> {
            self.1.fetch_add((rows.len() / self.2) as u64, Ordering::Relaxed);
            self.0.next(rows)
        }
    }

    #[test]
    fn rows_that_are_asked_for_in_their_order_are_read_once() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/words2.parquet");
        let file = TableFile::open(&path).unwrap();
        let table = &file.tables[0];
        assert!(table.is_sequential());
        let (rows, row_bytes) = (file.rows(table), table.row_bytes());
        let count = Arc::new(AtomicU64::new(0));
        let counted = Counted(rows.reader().unwrap(), count.clone(), row_bytes);
        *rows.stream.lock().unwrap() = Some((0, Box::new(counted)));
        for first in (0..table.rows).step_by(3) {
            rows.fill(first, &mut vec![0; (table.rows - first).min(3) as usize * row_bytes]).unwrap();
        }
        assert_eq!(count.load(Ordering::Relaxed), table.rows);
    }
}
