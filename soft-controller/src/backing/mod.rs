//! What a namespace keeps its data in.

use std::fmt;

use warprow_dma::DmaMemory;
use warprow_spec::StatusCode;

mod direct;
mod engine;
mod file;
mod file_end;
mod null;
mod procedural;
mod ram;

pub use direct::Direct;
pub use engine::{Engine, Operation, Piece};
pub use file::{File, will_need};
pub use null::Null;
pub use procedural::{Block, Procedural};
pub use ram::Ram;

/// Reads of a file that one worker has under way at most, unless it is told another number.
pub(crate) const DEPTH: u32 = 256;
/// Most bytes of a command that are fetched ahead: the processor's own prefetcher follows longer runs.
const PREFETCHED: usize = 1024;

/// Why a backing could not serve a command.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// There is no room left for the data.
    #[error("no space left for the data: {0}")]
    Full(std::io::Error),
    /// The data could not be read.
    #[error("cannot read: {0}")]
    Read(std::io::Error),
    /// The data could not be written, or made durable.
    #[error("cannot write: {0}")]
    Write(std::io::Error),
    /// This backing's content is given and cannot be written.
    #[error("the backing is read-only")]
    ReadOnly,
}

impl MediaError {
    /// Sorts a failed write or flush. No room is left also where files may not be as large as that (`ulimit -f`).
    pub fn of_write(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::Full(error),
            _ => Self::Write(error),
        }
    }

    pub(crate) fn code(&self) -> StatusCode {
        match self {
            Self::Full(_) => StatusCode::CapacityExceeded,
            Self::Read(_) => StatusCode::UnrecoveredReadError,
            Self::Write(_) => StatusCode::WriteFault,
            Self::ReadOnly => StatusCode::NamespaceWriteProtected,
        }
    }
}

/// The bytes of a namespace. Whoever calls has checked that the range lies inside [`size`](Self::size) and that it begins
/// and ends at multiples of 512 in the whole command; one command may come in several pieces, each a multiple of 4
/// bytes at a multiple of 4. Several workers call at once.
pub trait Backing: Send + Sync + fmt::Debug {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Copies `len` bytes at `offset` to `to`, from its byte `at`.
    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError>;

    /// Hints that `len` bytes at `offset` will be read soon.
    fn prefetch(&self, offset: u64, len: usize) {
        let _ = (offset, len);
    }

    /// Whether [`prefetch`](Self::prefetch) does anything.
    fn prefetches(&self) -> bool {
        false
    }

    /// Hints that `len` bytes at `offset` will be read, for a disk to fetch them while others are waited for. Waits for nothing.
    fn will_need(&self, offset: u64, len: usize) {
        let _ = (offset, len);
    }

    /// Most reads that [`will_need`](Self::will_need) tells of before they are executed; 0 if it does nothing.
    fn depth(&self) -> u32 {
        0
    }

    /// Copies `len` bytes of `from`, from its byte `at`, to `offset`.
    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError>;

    /// Makes `len` bytes at `offset` read as zeros. If `deallocate`, their space is given back; then they may read as
    /// something else, which [`deallocated_reads_zero`](Self::deallocated_reads_zero) tells.
    fn zero(&self, offset: u64, len: u64, deallocate: bool) -> Result<(), MediaError>;

    /// Makes everything written so far durable.
    fn flush(&self) -> Result<(), MediaError>;

    /// Makes everything written so far to `len` bytes at `offset` durable.
    fn persist(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        let _ = (offset, len);
        self.flush()
    }

    /// Whether what was deallocated reads as zeros.
    fn deallocated_reads_zero(&self) -> bool {
        true
    }

    /// Whether each command's data has to come in one piece, of whole LBAs.
    fn wants_whole_commands(&self) -> bool {
        false
    }

    /// The smallest LBA that it can serve, bytes.
    fn smallest_lba(&self) -> u32 {
        512
    }

    /// A way to work on several commands at once, if it has one; each worker asks for its own.
    fn engine(&self) -> std::io::Result<Option<Box<dyn Engine>>> {
        Ok(None)
    }

    /// Whether writes that were not flushed can be lost: whether there is a volatile write cache to speak of.
    fn is_volatile(&self) -> bool {
        false
    }
}
