//! The rows of a table in a file, read row by row, never whole.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use warprow_layout::{RowSource, Table, VolumeError};

use crate::error::FileError;
use crate::extent::{extents_of, read_extents};
use crate::file_table::FileTable;
use crate::input::room;
use crate::place::Place;
use crate::scaled_place::assembled;
use crate::seen::Seen;
use crate::streams::RowStream;
use crate::table_file::TableFile;

/// The rows of a table in a file, in the order in which they stand there. Several threads may ask at once: rows that are not
/// compressed are read from where they stand.
pub struct FileRows<'a> {
    source: &'a TableFile,
    table: &'a FileTable,
    /// Rows that can only be read in their order: the reader, and the row that it comes to next.
    stream: Mutex<Option<(u64, Box<dyn RowStream>)>>,
    /// Rows that have a checksum together: what was read of them as a source of rows.
    seen: Mutex<Seen>,
    /// Rows that stand in pages as they are: where, as far as it was found.
    #[cfg(feature = "parquet")]
    pages: Mutex<Option<Box<crate::parquet::PlainPages>>>,
}

impl TableFile {
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
    pub fn fill(&self, first: u64, rows: &mut [u8]) -> Result<(), FileError> {
        let past = || FileError::damaged(&self.source.path, "a row past the last was asked for");
        let row_bytes = self.row_bytes().max(1);
        let count = (rows.len() / row_bytes) as u64;
        if first.checked_add(count).is_none_or(|end| end > self.table.rows) {
            return Err(past());
        }
        match &self.table.place {
            Place::Flat(extents) => read_extents(&self.source.inputs, extents, first, row_bytes, rows),
            Place::Scaled(scaled) => scaled.fill(&self.source.inputs, first, rows),
            Place::Stored(extent, _) => {
                read_extents(&self.source.inputs, std::slice::from_ref(extent), first, row_bytes, rows)
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
    ) -> Result<Option<Vec<(u64, usize)>>, FileError> {
        if !columns.are_plain() {
            return Ok(None);
        }
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = match &mut *pages {
            Some(pages) => pages,
            none => none.insert(Box::new(columns.plain_pages(self.table.dim, self.table.dtype))),
        };
        pages.places(first, bytes).map(Some)
    }

    fn fill_in_order(&self, first: u64, rows: &mut [u8]) -> Result<(), FileError> {
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

    fn reader(&self) -> Result<Box<dyn RowStream>, FileError> {
        match &self.table.place {
            Place::Flat(_) | Place::Scaled(_) | Place::Stored(..) => {
                Err(FileError::damaged(&self.source.path, "its rows are in no order"))
            }
            Place::Deflated(place) => place.reader(&self.source.inputs),
            #[cfg(feature = "parquet")]
            Place::Parquet(columns) => Ok(columns.reader(self.table.dim, self.table.dtype)),
        }
    }
}

impl RowSource for FileRows<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        if row_bytes != self.row_bytes() {
            return Err(io::Error::other("rows of another size were asked for"));
        }
        self.fill(first, rows)?;
        if let Place::Stored(extent, _) = &self.table.place {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.note(extent.at + first * row_bytes as u64, rows);
        }
        Ok(())
    }

    fn stretches(&self, first: u64, count: u64, row_bytes: usize, each: &mut dyn FnMut(&File, u64, u64)) {
        let extents = match &self.table.place {
            Place::Flat(extents) => extents,
            Place::Stored(extent, _) => std::slice::from_ref(extent),
            Place::Scaled(scaled) => return scaled.stretches(&self.source.inputs, first, count, each),
            _ => return,
        };
        for (input, at, rows) in extents_of(&self.source.inputs, extents, first, count, row_bytes) {
            each(&input.file, at, rows * row_bytes as u64);
        }
    }

    fn stored_bytes(&self) -> Option<usize> {
        match &self.table.place {
            Place::Scaled(scaled) => Some(scaled.stored_bytes()),
            _ => None,
        }
    }

    fn assemble(&self, first: u64, row_bytes: usize, stored: &[u8], rows: &mut [u8]) -> io::Result<()> {
        match &self.table.place {
            Place::Scaled(scaled) => assembled(scaled, first, row_bytes, stored, rows),
            _ => Err(io::Error::other("its rows are not put together")),
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

#[cfg(all(test, feature = "parquet"))]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts the rows that a reader gives.
    struct Counted(Box<dyn RowStream>, Arc<AtomicU64>, usize);

    impl RowStream for Counted {
        fn next(&mut self, rows: &mut [u8]) -> Result<(), FileError> {
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
        let rows = file.rows(table);
        let row_bytes = table.row_bytes();
        let count = Arc::new(AtomicU64::new(0));
        let counted = Counted(rows.reader().unwrap(), count.clone(), row_bytes);
        *rows.stream.lock().unwrap() = Some((0, Box::new(counted)));
        for first in (0..table.rows).step_by(3) {
            rows.fill(first, &mut vec![0; (table.rows - first).min(3) as usize * row_bytes]).unwrap();
        }
        assert_eq!(count.load(Ordering::Relaxed), table.rows);
    }
}
