//! A file that is read from its first byte to its last.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use warprow_formats::{FileError, FileErrorKind, KeyType, refuse_special};

/// A regular file, of which nothing is believed.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) path: PathBuf,
    file: File,
    /// Bytes of the file when it was opened.
    pub(crate) len: u64,
    /// Bytes that were taken.
    pub(crate) at: u64,
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
}

/// Read at once.
const CHUNK: usize = 1 << 18;

impl Stream {
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let cannot = |error: io::Error| FileError::io(path, "cannot be opened", error);
        refuse_special(path)?;
        let file = File::open(path).map_err(cannot)?;
        let len = file.metadata().map_err(cannot)?.len();
        Ok(Self { path: path.to_owned(), file, len, at: 0, buffer: Vec::new(), begin: 0, end: 0 })
    }

    /// Bytes that are still to come.
    pub(crate) fn left(&self) -> u64 {
        self.len.saturating_sub(self.at)
    }

    /// The next `count` bytes, which stay to be taken.
    pub(crate) fn peek(&mut self, count: usize) -> Result<&[u8], FileError> {
        if count as u64 > self.left() {
            return Err(self.damaged("it is cut off").at(self.len));
        }
        if self.end - self.begin < count {
            self.refill(count)?;
        }
        Ok(&self.buffer[self.begin..self.begin + count])
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Result<&[u8], FileError> {
        self.peek(count)?;
        let begin = self.begin;
        self.begin += count;
        self.at += count as u64;
        Ok(&self.buffer[begin..begin + count])
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn refill(&mut self, count: usize) -> Result<(), FileError> {
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let want = count.max(CHUNK);
        if self.buffer.len() < want {
            let more = want - self.buffer.len();
            if self.buffer.try_reserve_exact(more).is_err() {
                let what = format!("there is no memory for {want} bytes of it");
                return Err(
                    FileError::new(FileErrorKind::Unsupported, &self.path, what, "close other programs").at(self.at)
                );
            }
            self.buffer.resize(want, 0);
        }
        while self.end < count {
            match self.file.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(self.damaged("the file became shorter while it was read").at(self.at)),
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(FileError::io(&self.path, "cannot be read", error).at(self.at)),
            }
        }
        Ok(())
    }

    pub(crate) fn damaged(&self, what: impl Into<String>) -> FileError {
        FileError::damaged(&self.path, what)
    }

    pub(crate) fn error(&self, kind: FileErrorKind, what: impl Into<String>, remedy: impl Into<String>) -> FileError {
        FileError::new(kind, &self.path, what, remedy)
    }
}

/// The keys in `bytes`.
pub(crate) fn numbers(bytes: &[u8], width: KeyType) -> impl Iterator<Item = u64> + '_ {
    let size = width.size() as usize;
    bytes.chunks_exact(size).map(move |bytes| match (width, bytes) {
        (KeyType::U32, &[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]).into(),
        (KeyType::I32, &[a, b, c, d]) => i64::from(i32::from_le_bytes([a, b, c, d])) as u64,
        (_, &[a, b, c, d, e, f, g, h]) => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        // Chunks have the width of a key.
        _ => 0,
    })
}

/// The name of a file without its ending.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
