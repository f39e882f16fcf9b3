//! What a namespace keeps its data in.

use std::fmt;

use warprow_dma::DmaMemory;
use warprow_spec::StatusCode;

mod null;
mod ram;

pub use null::Null;
pub use ram::Ram;

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
    /// Sorts a failed write or flush.
    pub fn of_write(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::Full(error),
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
/// bytes at a multiple of 4. Several workers call at once. What is deallocated reads as zeros.
pub trait Backing: Send + Sync + fmt::Debug {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Copies `len` bytes at `offset` to `to`, from its byte `at`.
    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError>;

    /// Copies `len` bytes of `from`, from its byte `at`, to `offset`.
    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError>;

    /// Makes `len` bytes at `offset` read as zeros, giving their space back if `deallocate`.
    fn zero(&self, offset: u64, len: u64, deallocate: bool) -> Result<(), MediaError>;

    /// Makes everything written so far durable.
    fn flush(&self) -> Result<(), MediaError>;

    /// Makes everything written so far to `len` bytes at `offset` durable.
    fn persist(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        let _ = (offset, len);
        self.flush()
    }

    /// Whether each command's data has to come in one piece, of whole LBAs.
    fn wants_whole_commands(&self) -> bool {
        false
    }

    /// Whether writes that were not flushed can be lost: whether there is a volatile write cache to speak of.
    fn is_volatile(&self) -> bool {
        false
    }
}
