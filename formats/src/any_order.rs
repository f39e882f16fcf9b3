//! Making rows that can only be read in their order readable in any order.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use warprow_layout::{RowSource, Table, VolumeError};

use crate::error::FileError;
use crate::file_rows::FileRows;
use crate::file_table::FileTable;
use crate::input::room;
use crate::table_file::TableFile;

/// Bytes that are moved at once.
const RUN: usize = 1 << 20;

/// The rows of a table, which can be asked for in any order: those of the file itself, or a copy.
#[derive(Debug)]
pub enum RowsInAnyOrder<'a> {
    /// The rows are read from where they stand in the file.
    There(FileRows<'a>),
    /// The rows were unpacked into a file without a name.
    Copied {
        /// The file of rows in their order.
        file: File,
        /// The source, for its shape.
        rows: FileRows<'a>,
    },
}

impl TableFile {
    /// The rows of `table`, in any order. Compressed rows are unpacked into a file without a name in `folder`, which is
    /// gone when the result is dropped; `moved` is called with the number of rows that were unpacked, and may end it.
    pub fn rows_in_any_order<'a, E: From<FileError>>(
        &'a self,
        table: &'a FileTable,
        folder: &Path,
        moved: &mut dyn FnMut(u64) -> Result<(), E>,
    ) -> Result<RowsInAnyOrder<'a>, E> {
        let rows = self.rows(table);
        if !table.is_sequential() {
            return Ok(RowsInAnyOrder::There(rows));
        }
        let cannot = |error: io::Error| FileError::io(folder, "cannot hold an unpacked copy", error);
        let file = tempfile::tempfile_in(folder).map_err(cannot)?;
        let row_bytes = table.row_bytes().max(1);
        let at_once = (RUN / row_bytes).max(1) as u64;
        let mut buf: Vec<u8> = room(&self.path, at_once.min(table.rows) * row_bytes as u64)?;
        let mut first = 0;
        while first < table.rows {
            let count = at_once.min(table.rows - first);
            let run = buf.get_mut(..count as usize * row_bytes).unwrap_or_default();
            rows.fill(first, run)?;
            file.write_all_at(run, first * row_bytes as u64).map_err(cannot)?;
            first += count;
            moved(first)?;
        }
        Ok(RowsInAnyOrder::Copied { file, rows })
    }
}

impl RowSource for RowsInAnyOrder<'_> {
    fn read(&self, first: u64, row_bytes: usize, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::There(rows) => rows.read(first, row_bytes, out),
            Self::Copied { file, .. } => file.read_exact_at(out, first * row_bytes as u64),
        }
    }

    fn unchanged(&self, read: &mut dyn FnMut(u64) -> ControlFlow<()>) -> io::Result<()> {
        let (Self::There(rows) | Self::Copied { rows, .. }) = self;
        rows.unchanged(read)
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        let (Self::There(rows) | Self::Copied { rows, .. }) = self;
        rows.check(table)
    }
}
