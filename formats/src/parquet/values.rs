//! Columns of whole numbers, or of lists of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::serialized_reader::SerializedPageReader;

use super::source::{Headers, MAX_PAGE_VALUES, Source, guarded};
use crate::error::{FileError, FileErrorKind};
use crate::streams::KeyStream;

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
        // Otherwise the next page's first level tells; looking at its header here would have it read twice.
        Ok(self.left == 0)
    }
}

/// The chunks of a column, one after the other.
struct Chunks {
    source: Source,
    column: usize,
    group: usize,
    asked: Arc<AtomicI64>,
}

impl Chunks {
    fn next(&mut self) -> Result<Option<ColumnReader>, FileError> {
        let Source { path, file, metadata } = &self.source;
        let Some(chunk) = self.source.chunk(self.group, self.column) else { return Ok(None) };
        let found = guarded(path, || {
            let headers = Arc::new(Headers::new(file.clone()));
            let inner = Box::new(SerializedPageReader::new(headers, chunk, 0, None)?);
            let descriptor = metadata.file_metadata().schema_descr().column(self.column);
            let pages = Pages { inner, left: chunk.num_values(), asked: self.asked.clone() };
            Ok(get_column_reader(descriptor, Box::new(pages)))
        })?;
        self.group += 1;
        Ok(Some(found))
    }
}

/// The numbers of a column, or of the lists in it.
pub(crate) struct Values<T: DataType> {
    chunks: Chunks,
    reader: Option<ColumnReaderImpl<T>>,
    pub(crate) values: Vec<T::T>,
    pub(crate) repetition: Vec<i16>,
    pub(crate) definition: Vec<i16>,
    /// The row that comes next.
    pub(crate) row: u64,
}

impl<T: DataType> Values<T> {
    pub(crate) fn new(source: Source, column: usize) -> Self {
        let chunks = Chunks { source, column, group: 0, asked: Arc::default() };
        Self { chunks, reader: None, values: Vec::new(), repetition: Vec::new(), definition: Vec::new(), row: 0 }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.chunks.source.path
    }

    /// Reads the next rows, at least one and at most `most`, which have at most `asked` values: rows, values that are there,
    /// and levels. `None` behind the last.
    pub(crate) fn read(&mut self, most: usize, asked: usize) -> Result<Option<(usize, usize, usize)>, FileError> {
        loop {
            let Some(reader) = &mut self.reader else {
                let Some(next) = self.chunks.next()? else { return Ok(None) };
                let damaged = |what: &str| FileError::damaged(&self.chunks.source.path, what);
                self.reader = Some(T::get_column_reader(next).ok_or_else(|| damaged("a column changes its type"))?);
                continue;
            };
            self.chunks.asked.store(asked as i64, Ordering::Relaxed);
            self.values.clear();
            self.repetition.clear();
            self.definition.clear();
            let values = &mut self.values;
            let repetition = &mut self.repetition;
            let definition = &mut self.definition;
            let path = &self.chunks.source.path;
            let read = guarded(path, || reader.read_records(most, Some(definition), Some(repetition), values))?;
            let (rows, present, levels) = read;
            if rows > 0 {
                return Ok(Some((rows, present, levels)));
            }
            self.reader = None;
        }
    }
}

/// The numbers of a column that has one in each row.
pub(super) struct Numbers<T: DataType> {
    pub(super) values: Values<T>,
    pub(super) to_bits: fn(&T::T) -> u64,
}

impl<T: DataType> KeyStream for Numbers<T> {
    fn next(&mut self, most: usize) -> Result<Vec<u64>, FileError> {
        let Some((rows, present, _)) = self.values.read(most, most)? else {
            return Err(FileError::damaged(self.values.path(), format!("it ends after {} rows", self.values.row)));
        };
        let Values { values, definition, row, .. } = &self.values;
        if present != rows || values.len() != rows {
            let most = definition.iter().max();
            let missing = definition.iter().position(|level| Some(level) < most).unwrap_or(0) as u64;
            let what = format!("row {} lacks a value", row + missing);
            let remedy = "leave out or fill in such rows";
            return Err(FileError::new(FileErrorKind::Unsupported, self.values.path(), what, remedy));
        }
        let bits = values.iter().map(self.to_bits).collect();
        self.values.row += rows as u64;
        Ok(bits)
    }
}
