use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use warprow_dma::FileMapping;
use warprow_layout::RowSource;

use super::buffers::check;
use super::error::RivalError;
use super::interface::Rival;
use crate::cold::warm;

/// Bytes that are written at a time.
const PART: usize = 1 << 20;

/// A table as people keep it who have no store: a file of its rows, one after another in the order of ids. The file has no name.
#[derive(Debug)]
pub struct PlainFile {
    file: File,
    rows: u64,
    row_bytes: usize,
}

impl PlainFile {
    /// Writes `rows` rows of `row_bytes` bytes, which `source` has by their ids, to a new file in `directory`, durably. `progress`
    /// hears how many bytes were written since it was last called, and may end it: the error is then of the kind
    /// [`Interrupted`](io::ErrorKind::Interrupted).
    pub fn new(
        directory: &Path,
        rows: u64,
        row_bytes: usize,
        source: &impl RowSource,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> io::Result<Self> {
        let empty = rows == 0 || row_bytes == 0;
        let bytes = rows.checked_mul(row_bytes as u64).filter(|_| !empty).ok_or(io::ErrorKind::InvalidInput)?;
        let file = tempfile::tempfile_in(directory)?;
        let at_once = (PART / row_bytes).max(1);
        let mut part = vec![0; at_once * row_bytes];
        for first in (0..rows).step_by(at_once) {
            let count = (rows - first).min(at_once as u64) as usize;
            let part = &mut part[..count * row_bytes];
            source.read(first, row_bytes, part)?;
            file.write_all_at(part, first * row_bytes as u64)?;
            if progress(part.len() as u64).is_break() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        // A mapping of ours has whole words.
        file.set_len(bytes.next_multiple_of(4096))?;
        file.sync_all()?;
        Ok(Self { file, rows, row_bytes })
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.rows * self.row_bytes as u64
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// How any process opens it, for as long as this one and this live.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Where the row of an id lies; `None` if there is no such row.
    pub fn bytes_of(&self, id: i64) -> Option<Range<u64>> {
        let id = u64::try_from(id).ok().filter(|&id| id < self.rows)?;
        let begin = id * self.row_bytes as u64;
        Some(begin..begin + self.row_bytes as u64)
    }

    /// Has the page cache hold what it can of it.
    pub fn warm(&self) -> io::Result<()> {
        warm(&self.file)
    }
}

/// A plain file can be attached as it is.
impl RowSource for PlainFile {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(rows, first * row_bytes as u64)
    }

    fn stretches(&self, first: u64, count: u64, row_bytes: usize, each: &mut dyn FnMut(&File, u64, u64)) {
        each(&self.file, first * row_bytes as u64, count * row_bytes as u64);
    }
}

/// A loop that copies rows from a mapping of a [`PlainFile`]. Rows of missing ids are zeros.
#[derive(Debug)]
pub struct MappedPlainFile {
    mapping: FileMapping,
    rows: u64,
    row_bytes: usize,
}

impl MappedPlainFile {
    /// Maps the file, whose rows are read at random (MADV_RANDOM).
    pub fn new(plain: &PlainFile) -> Result<Self, RivalError> {
        let mapping = plain.file.metadata().and_then(|found| FileMapping::new(&plain.file, found.len()));
        let mapping = mapping.map_err(|source| RivalError::Unavailable { what: "mmap", source })?;
        Ok(Self { mapping, rows: plain.rows, row_bytes: plain.row_bytes })
    }
}

impl Rival for MappedPlainFile {
    fn name(&self) -> String {
        "mmap of a plain file".to_owned()
    }

    fn lookup(&mut self, ids: &[i64], rows: &mut [u8], mask: &mut [u8]) -> Result<(), RivalError> {
        check(ids, rows, mask, usize::MAX, self.row_bytes)?;
        for ((&id, row), mask) in ids.iter().zip(rows.chunks_exact_mut(self.row_bytes)).zip(mask) {
            *mask = match u64::try_from(id).ok().filter(|&id| id < self.rows) {
                Some(id) => {
                    let copied = self.mapping.read(id as usize * self.row_bytes, row);
                    copied.map_err(|lost| RivalError::PlainFile { source: io::Error::other(lost) })?;
                    1
                }
                None => {
                    row.fill(0);
                    0
                }
            };
        }
        Ok(())
    }
}
