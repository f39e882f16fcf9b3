//! Parquet files as the library reads them, and what it is not trusted with.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};

use crate::caught::catching;
use crate::error::FileError;
use crate::input::Input;

use super::footer::claims_too_many_children;

/// Values, or places where there is none, that a page may have: a few bytes can promise any number of them.
pub(super) const MAX_PAGE_VALUES: u32 = 1 << 25;
/// Bytes that a page may be unpacked to.
pub(super) const MAX_PAGE_BYTES: u64 = 256 << 20;

/// Calls the library, of which a panic is one more way to say that a file is damaged.
pub(crate) fn guarded<T>(path: &Path, call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, FileError> {
    match catching(call) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ParquetError::External(error))) if error.is::<io::Error>() => {
            Err(FileError::damaged(path, format!("cannot be read: {error}")))
        }
        Ok(Err(error)) => Err(FileError::damaged(path, error.to_string())),
        Err(_) => Err(FileError::damaged(path, "it contradicts itself")),
    }
}

/// A file and its footer.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) file: Positioned,
    pub(crate) metadata: Arc<ParquetMetaData>,
}

/// The footer, if the file ends with one.
fn footer(file: &Positioned) -> Option<Vec<u8>> {
    let mut end = [0; 8];
    file.fill(file.len.checked_sub(8)?, &mut end).ok()?;
    let len = u32::from_le_bytes(*end.first_chunk()?);
    let begin = (file.len - 8).checked_sub(len.into()).filter(|_| end.ends_with(b"PAR1"))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).ok()?;
    bytes.resize(len as usize, 0);
    file.fill(begin, &mut bytes).ok()?;
    Some(bytes)
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.path).finish()
    }
}

impl Source {
    pub(crate) fn open(input: &Input) -> Result<Self, FileError> {
        let file = input.file.try_clone().map_err(|error| FileError::io(&input.path, "cannot be read", error))?;
        let file = Positioned { file: Arc::new(file), len: input.len };
        if footer(&file).is_some_and(|footer| claims_too_many_children(&footer)) {
            return Err(FileError::damaged(&input.path, "its schema claims more columns than it has"));
        }
        let metadata = guarded(&input.path, || ParquetMetaDataReader::new().parse_and_finish(&file))?;
        Ok(Self { path: input.path.clone(), file, metadata: Arc::new(metadata) })
    }

    /// What the footer says of a column in group `group` of the rows; `None` behind the last.
    pub(crate) fn chunk(&self, group: usize, column: usize) -> Option<&ColumnChunkMetaData> {
        self.metadata.row_groups().get(group)?.columns().get(column)
    }
}

/// A file that is read at positions: several readers at a time do not share one.
#[derive(Clone)]
pub(crate) struct Positioned {
    file: Arc<File>,
    len: u64,
}

impl Positioned {
    /// Bytes from `at` to its end.
    pub(super) fn left(&self, at: u64) -> u64 {
        self.len.saturating_sub(at)
    }

    /// Fills `bytes` from byte `at` on.
    pub(super) fn fill(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }
}

impl Length for Positioned {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Positioned {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::with_capacity(HEADER, At { file: self.file.clone(), at: start }))
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

impl Read for At {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buf, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Bytes that are read for the header of a page; more if it has more.
const HEADER: usize = 512;

/// The file, for those who read the pages of a chunk one after the other: they ask for a reader where the header of a page
/// begins, and nowhere else. What a page says that it unpacks to is allocated at once; here it is looked at before.
pub(crate) struct Headers {
    file: Positioned,
    at: AtomicU64,
    unpacked: AtomicU64,
}

impl Headers {
    pub(crate) fn new(file: Positioned) -> Self {
        Self { file, at: AtomicU64::new(0), unpacked: AtomicU64::new(0) }
    }

    /// Where the last header that was asked for begins, and to how many bytes its page unpacks.
    pub(crate) fn last(&self) -> (u64, u64) {
        (self.at.load(Ordering::Relaxed), self.unpacked.load(Ordering::Relaxed))
    }

    /// What the page with a header at `start` says that it unpacks to: the second field of the header, a number.
    fn size_unpacked(&self, start: u64) -> Option<u64> {
        let mut header = [0; 16];
        let read = self.file.file.read_at(&mut header, start).ok()?;
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

impl Length for Headers {
    fn len(&self) -> u64 {
        self.file.len
    }
}

impl ChunkReader for Headers {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let refuse = |what: String| Err(ParquetError::General(what));
        match self.size_unpacked(start) {
            None => return refuse(format!("what begins at byte {start} is no header of a page")),
            Some(bytes @ 0..=MAX_PAGE_BYTES) => {
                self.at.store(start, Ordering::Relaxed);
                self.unpacked.store(bytes, Ordering::Relaxed);
            }
            Some(bytes) => {
                let most = MAX_PAGE_BYTES;
                return refuse(format!("the page at byte {start} unpacks to {bytes} bytes; at most {most} are read"));
            }
        }
        self.file.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.file.get_bytes(start, length)
    }
}
