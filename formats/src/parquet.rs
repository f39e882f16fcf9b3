//! Tables in Parquet files: a column of vectors, all of one length, and perhaps one of ids. Flat columns and lists of numbers;
//! nothing missing, nothing nested.
//!
//! Column chunks are compressed, so rows come in their order. The library below is not trusted with a hostile file: what it
//! panics at is an error here.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{DataType, FixedLenByteArrayType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use warprow_layout::DType;

use crate::error::{FormatError, Kind};
use crate::format::ReadOptions;
use crate::input::Input;
use crate::keys::{KeyPlace, KeyStream, KeyType};
use crate::table::{FileTable, Found, Place, Rows, shape_of_table, stem};

/// Values, or places where there is none, that a page may have: a few bytes can promise any number of them.
const MAX_PAGE_VALUES: u32 = 1 << 25;
/// Bytes that a page may be unpacked to.
const MAX_PAGE_BYTES: u64 = 256 << 20;
/// Elements that a vector may have here: several at a time are decoded in memory.
const MAX_DIM: u64 = 1 << 20;

/// Where a table stands in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns {
    /// The leaf column of its vectors.
    vectors: usize,
    /// The leaf column of its ids.
    keys: Option<usize>,
}

pub(crate) fn open(path: &Path, options: &ReadOptions) -> Result<Found, FormatError> {
    let input = Input::open(path)?;
    let reader = open_reader(&input)?;
    let metadata = reader.metadata();
    let schema = metadata.file_metadata().schema_descr();
    let columns: Vec<_> = schema.columns().iter().map(|column| (name_of(column), kind_of(column))).collect();
    let mut keys = columns.iter().enumerate().filter_map(|(index, (name, kind))| match kind {
        Ok(Column::Key(width)) => Some((index, name, *width)),
        _ => None,
    });
    let keys = match &options.key_column {
        Some(wanted) => Some(keys.find(|(_, name, _)| *name == wanted).ok_or_else(|| {
            let all: Vec<&str> = columns.iter().map(|(name, _)| &**name).collect();
            let what = format!("it has no column {wanted:?} of whole numbers; its columns are {}", all.join(", "));
            input.error(Kind::Unsupported, what, "name the column that has the ids")
        })?),
        None => {
            let (first, others) = (keys.next(), keys.next());
            if let (Some((_, one, _)), Some((_, other, _))) = (first, others) {
                let what = format!("it has several columns of whole numbers: {one}, {other}");
                return Err(input.error(Kind::Unclear, what, "say which has the ids"));
            }
            first
        }
    };
    let rows = u64::try_from(metadata.file_metadata().num_rows())
        .map_err(|_| input.damaged("it has a negative number of rows"))?;
    let vectors = columns.iter().filter(|(_, kind)| matches!(kind, Ok(Column::Vector(_)))).count();
    let mut found = Found::default();
    for (index, (name, kind)) in columns.iter().enumerate() {
        let dtype = match kind {
            Ok(Column::Vector(dtype)) => *dtype,
            Ok(Column::Key(_)) => continue,
            Err(reason) => {
                found.skipped.push((name.clone(), (*reason).to_owned()));
                continue;
            }
        };
        let groups = metadata.row_groups().iter();
        let values = groups.map(|group| group.columns().get(index).map_or(0, |column| column.num_values()));
        let values = values.map(u64::try_from).try_fold(0u64, |all, n| all.checked_add(n.ok()?));
        let dim = values.filter(|values| rows > 0 && values.is_multiple_of(rows)).map(|values| values / rows);
        let name = if vectors == 1 { stem(path) } else { name.clone() };
        let shape = match dim {
            Some(MAX_DIM..) => Err(format!("its vectors have {MAX_DIM} elements or more")),
            Some(dim) => shape_of_table(rows, dim, dtype),
            None => Err(format!("its {rows} vectors are not all of one length")),
        };
        match shape {
            Ok((rows, dim)) => found.tables.push(FileTable {
                name,
                rows,
                dim,
                dtype,
                keys: keys.map(|(.., width)| width),
                place: Place::Parquet(Columns { vectors: index, keys: keys.map(|(index, ..)| index) }),
                key_place: KeyPlace::Nowhere,
            }),
            Err(reason) => found.skipped.push((name, reason)),
        }
    }
    found.inputs.push(input);
    Ok(found)
}

fn name_of(column: &ColumnDescriptor) -> String {
    column.path().parts().first().cloned().unwrap_or_default()
}

enum Column {
    Key(KeyType),
    Vector(DType),
}

/// The type of a column's whole numbers, or of those in its lists.
pub(crate) fn whole(column: &ColumnDescriptor) -> Option<KeyType> {
    let unsigned = match column.logical_type_ref() {
        Some(LogicalType::Integer(integer)) => !integer.is_signed,
        // Times and decimals are no keys.
        Some(_) => return None,
        None => matches!(column.converted_type(), ConvertedType::UINT_64 | ConvertedType::UINT_32),
    };
    match column.physical_type() {
        Type::INT64 => Some(if unsigned { KeyType::U64 } else { KeyType::I64 }),
        Type::INT32 => Some(if unsigned { KeyType::U32 } else { KeyType::I32 }),
        _ => None,
    }
}

/// What a column can be, or why nothing.
fn kind_of(column: &ColumnDescriptor) -> Result<Column, &'static str> {
    let float16 = matches!(column.logical_type_ref(), Some(LogicalType::Float16));
    if let (0, Some(width)) = (column.max_rep_level(), whole(column)) {
        return Ok(Column::Key(width));
    }
    match (column.max_rep_level(), column.physical_type()) {
        (1, Type::FLOAT) => Ok(Column::Vector(DType::F32)),
        (1, Type::FIXED_LEN_BYTE_ARRAY) if float16 => Ok(Column::Vector(DType::F16)),
        (1, Type::DOUBLE) => Err("vectors of doubles: convert them to float"),
        (0 | 1, _) => Err("neither ids of whole numbers nor vectors of floats"),
        _ => Err("nested"),
    }
}

impl Columns {
    pub(crate) fn reader(&self, inputs: &[Arc<Input>], table: &FileTable) -> Result<Box<dyn Rows>, FormatError> {
        let chunks = Chunks::new(inputs, self.vectors, table.dim as usize)?;
        Ok(match table.dtype {
            DType::F16 => Box::new(Vectors::<FixedLenByteArrayType>::new(chunks)),
            _ => Box::new(Vectors::<FloatType>::new(chunks)),
        })
    }

    pub(crate) fn key_reader(
        &self,
        inputs: &[Arc<Input>],
        table: &FileTable,
    ) -> Result<Option<Box<dyn KeyStream>>, FormatError> {
        let (Some(column), Some(width)) = (self.keys, table.keys) else { return Ok(None) };
        let chunks = Chunks::new(inputs, column, 1)?;
        Ok(Some(match width {
            KeyType::I64 | KeyType::U64 => {
                Box::new(Numbers { values: Values::<Int64Type>::new(chunks), to_bits: |key| *key as u64 })
            }
            KeyType::U32 => {
                Box::new(Numbers { values: Values::<Int32Type>::new(chunks), to_bits: |key| u64::from(*key as u32) })
            }
            KeyType::I32 => {
                Box::new(Numbers { values: Values::<Int32Type>::new(chunks), to_bits: |key| i64::from(*key) as u64 })
            }
        }))
    }
}

/// Calls the library, of which a panic is one more way to say that a file is damaged.
pub(crate) fn guarded<T>(path: &Path, call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, FormatError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ParquetError::External(error))) if error.is::<io::Error>() => {
            Err(FormatError::damaged(path, format!("cannot be read: {error}")))
        }
        Ok(Err(error)) => Err(FormatError::damaged(path, error.to_string())),
        Err(_) => Err(FormatError::damaged(path, "it contradicts itself")),
    }
}

pub(crate) type Reader = SerializedFileReader<Positioned>;

pub(crate) fn open_reader(input: &Input) -> Result<Reader, FormatError> {
    let file = input.file.try_clone().map_err(|error| FormatError::io(&input.path, "cannot be read", error))?;
    guarded(&input.path, || SerializedFileReader::new(Positioned { file: Arc::new(file), len: input.len }))
}

/// A file that is read at positions: several readers at a time do not share one.
pub(crate) struct Positioned {
    file: Arc<File>,
    len: u64,
}

impl Length for Positioned {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Positioned {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        // This is how the header of a page is asked for, and what the page is unpacked to is allocated at once.
        if let Some(bytes) = self.unpacked(start).filter(|bytes| *bytes > MAX_PAGE_BYTES) {
            let what = format!("the page at byte {start} unpacks to {bytes} bytes; at most {MAX_PAGE_BYTES} are read");
            return Err(ParquetError::General(what));
        }
        Ok(BufReader::with_capacity(64 << 10, At { file: self.file.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        // What a damaged file asks for is not allocated before it is known to be there.
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(ParquetError::EOF(format!("{length} bytes at byte {start} lie past its end")));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

pub(crate) struct At {
    file: Arc<File>,
    at: u64,
}

impl Positioned {
    /// What the page with a header at `start` says that it unpacks to: the second field of the header, a number.
    fn unpacked(&self, start: u64) -> Option<u64> {
        let mut header = [0; 16];
        let read = self.file.read_at(&mut header, start).ok()?;
        let mut bytes = header.get(..read)?.iter();
        // A field of the next number and of type i32 begins with 15h; numbers have seven bits a byte, zigzag.
        let mut field = || {
            bytes.next().filter(|byte| **byte == 0x15)?;
            let mut value = 0;
            for shift in (0..35).step_by(7) {
                let byte = *bytes.next()?;
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    return Some(value >> 1);
                }
            }
            None
        };
        field()?;
        field()
    }
}

impl Read for At {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buf, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The pages of a column chunk, as long as they have no more values than the chunk, and than were asked for. Where a row
/// ends, the reader above only sees in the next page: rows that never end would fill the memory.
struct Pages {
    inner: Box<dyn PageReader>,
    /// Values of the chunk that are still to come.
    left: i64,
    /// How many values are still asked for, of the pages to come.
    asked: Arc<AtomicI64>,
}

impl Pages {
    fn count(&mut self, page: &Page) -> Result<(), ParquetError> {
        if page.is_dictionary_page() {
            return Ok(());
        }
        let values = page.num_values();
        self.left = self.left.saturating_sub(values.into());
        if values > MAX_PAGE_VALUES || self.left < 0 {
            return Err(ParquetError::General(match self.left {
                ..0 => "its pages have more values than their column chunk".into(),
                _ => format!("a page has {values} values; at most {MAX_PAGE_VALUES} are read: write smaller pages"),
            }));
        }
        self.asked.fetch_sub(values.into(), Ordering::Relaxed);
        Ok(())
    }
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        if self.asked.load(Ordering::Relaxed) < 0 {
            return Err(ParquetError::General("a row has more values than rows have".into()));
        }
        let page = self.inner.get_next_page()?;
        page.iter().try_for_each(|page| self.count(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.inner.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.inner.at_record_boundary()
    }
}

/// The chunks of a column, one after the other.
pub(crate) struct Chunks {
    path: PathBuf,
    reader: Reader,
    column: usize,
    /// Values of a row; of lists, most values of all rows that are read at once.
    dim: usize,
    group: usize,
    asked: Arc<AtomicI64>,
}

impl Chunks {
    fn new(inputs: &[Arc<Input>], column: usize, dim: usize) -> Result<Self, FormatError> {
        let Some(input) = inputs.first() else { return Err(FormatError::damaged(Path::new(""), "no file is open")) };
        Self::of(input, column, dim)
    }

    pub(crate) fn of(input: &Input, column: usize, dim: usize) -> Result<Self, FormatError> {
        let (path, reader) = (input.path.clone(), open_reader(input)?);
        Ok(Self { path, reader, column, dim, group: 0, asked: Arc::default() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn next(&mut self) -> Result<Option<ColumnReader>, FormatError> {
        if self.group >= self.reader.metadata().num_row_groups() {
            return Ok(None);
        }
        let found = guarded(&self.path, || {
            let group = self.reader.get_row_group(self.group)?;
            let descriptor = self.reader.metadata().file_metadata().schema_descr().column(self.column);
            let left = group.metadata().columns().get(self.column).map_or(0, |chunk| chunk.num_values());
            let inner = group.get_column_page_reader(self.column)?;
            Ok(get_column_reader(descriptor, Box::new(Pages { inner, left, asked: self.asked.clone() })))
        })?;
        self.group += 1;
        Ok(Some(found))
    }
}

/// The values of a column, `dim` of each row, none of them missing.
pub(crate) struct Values<T: DataType> {
    pub(crate) chunks: Chunks,
    reader: Option<ColumnReaderImpl<T>>,
    pub(crate) values: Vec<T::T>,
    pub(crate) repetition: Vec<i16>,
    pub(crate) definition: Vec<i16>,
    /// The row that comes next.
    pub(crate) row: u64,
}

impl<T: DataType> Values<T> {
    pub(crate) fn new(chunks: Chunks) -> Self {
        Self { chunks, reader: None, values: Vec::new(), repetition: Vec::new(), definition: Vec::new(), row: 0 }
    }

    /// The values of the next rows, at least one and at most `most`.
    fn take(&mut self, most: usize) -> Result<&[T::T], FormatError> {
        let Some((rows, present, levels)) = self.read(most, most.saturating_mul(self.chunks.dim))? else {
            return Err(FormatError::damaged(&self.chunks.path, format!("it ends after {} rows", self.row)));
        };
        self.check(rows, present, levels)?;
        self.row += rows as u64;
        Ok(&self.values)
    }

    /// Reads the next rows, at least one and at most `most`, which have at most `asked` values: rows, values that are there,
    /// and levels. `None` behind the last.
    pub(crate) fn read(&mut self, most: usize, asked: usize) -> Result<Option<(usize, usize, usize)>, FormatError> {
        loop {
            let Some(reader) = &mut self.reader else {
                let Some(next) = self.chunks.next()? else { return Ok(None) };
                let damaged = |what: &str| FormatError::damaged(&self.chunks.path, what);
                self.reader = Some(T::get_column_reader(next).ok_or_else(|| damaged("a column changes its type"))?);
                continue;
            };
            self.chunks.asked.store(asked as i64, Ordering::Relaxed);
            self.values.clear();
            self.repetition.clear();
            self.definition.clear();
            let (values, repetition, definition) = (&mut self.values, &mut self.repetition, &mut self.definition);
            let read =
                guarded(&self.chunks.path, || reader.read_records(most, Some(definition), Some(repetition), values))?;
            let (rows, present, levels) = read;
            if rows > 0 {
                return Ok(Some((rows, present, levels)));
            }
            self.reader = None;
        }
    }

    /// Refuses rows that lack a value, or have more or fewer than the others.
    fn check(&self, rows: usize, present: usize, levels: usize) -> Result<(), FormatError> {
        let dim = self.chunks.dim;
        let refuse = |row: usize, what: String| {
            let what = format!("row {} {what}", self.row + row as u64);
            Err(FormatError::new(Kind::Unsupported, &self.chunks.path, what, "leave out or fill in such rows"))
        };
        let begins = |index: &usize| self.repetition.get(*index).is_none_or(|&level| level == 0);
        let mut starts = (0..levels).filter(begins);
        for row in 0..rows {
            let start = starts.next();
            if start != Some(row * dim) {
                let bad = row.saturating_sub(1);
                let length = start.unwrap_or(levels).saturating_sub(bad * dim);
                return refuse(bad, format!("has {length} values, others {dim}"));
            }
        }
        if present != levels {
            let most = self.definition.iter().copied().max().unwrap_or(0);
            let at = self.definition.iter().position(|&level| level < most).unwrap_or(0);
            return refuse(at / dim.max(1), "lacks a value".into());
        }
        if levels != rows * dim || self.values.len() != present {
            return refuse(rows - 1, format!("has another number of values than {dim}"));
        }
        Ok(())
    }
}

struct Numbers<T: DataType> {
    values: Values<T>,
    to_bits: fn(&T::T) -> u64,
}

impl<T: DataType> KeyStream for Numbers<T> {
    fn next(&mut self, most: usize) -> Result<Vec<u64>, FormatError> {
        let to_bits = self.to_bits;
        Ok(self.values.take(most)?.iter().map(to_bits).collect())
    }
}

struct Vectors<T: DataType> {
    values: Values<T>,
}

impl<T: DataType> Vectors<T> {
    fn new(chunks: Chunks) -> Self {
        Self { values: Values::new(chunks) }
    }
}

/// Rows that are decoded at once, and elements.
const ROWS: usize = 4096;
const ELEMENTS: usize = 1 << 20;

impl<T: DataType> Rows for Vectors<T>
where
    T::T: parquet::data_type::AsBytes + Send,
    ColumnReaderImpl<T>: Send,
{
    fn next(&mut self, mut rows: &mut [u8]) -> Result<(), FormatError> {
        use parquet::data_type::AsBytes;
        let dim = self.values.chunks.dim;
        let size = if T::get_physical_type() == Type::FLOAT { 4 } else { 2 };
        let row_bytes = dim * size;
        while !rows.is_empty() {
            let most = (rows.len() / row_bytes.max(1)).min(ELEMENTS / dim.max(1)).clamp(1, ROWS);
            let values = self.values.take(most)?;
            let count = values.len() * size;
            let Some((now, rest)) = rows.split_at_mut_checked(count) else {
                return Err(FormatError::damaged(&self.values.chunks.path, "it gives more rows than were asked for"));
            };
            for (slot, value) in now.chunks_exact_mut(size).zip(values) {
                let bytes = value.as_bytes();
                if bytes.len() != size {
                    return Err(FormatError::damaged(&self.values.chunks.path, "a value is too short"));
                }
                slot.copy_from_slice(bytes);
            }
            rows = rest;
        }
        Ok(())
    }
}
