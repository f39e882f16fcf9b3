//! The little that this crate asks of a drive.

use std::error::Error;
use std::sync::Arc;

/// A block device reached in whole logical blocks (LBAs).
///
/// Calls are synchronous and may come from any thread. A write may stay in the drive's volatile cache, in any order and
/// torn between LBAs, until a later [`flush`](Self::flush) has returned. A `flush` covers every write that had completed
/// before it was called, whichever queue or thread issued it (NVMe base specification 2.0, section 7.1).
pub trait Drive: Send + Sync {
    /// How to call this drive in messages: a PCI address, a path, a URI.
    fn name(&self) -> &str;

    /// The serial number by which the list of members remembers the drive. At most 48 bytes are kept.
    fn serial(&self) -> &str {
        self.name()
    }

    /// Bytes in an LBA: a power of two.
    fn lba_size(&self) -> u32;

    /// LBAs on the drive.
    fn lba_count(&self) -> u64;

    /// The most bytes that one read or write may move. At least one LBA.
    fn max_transfer(&self) -> usize;

    /// Fills `buf`, a whole number of LBAs and at most [`max_transfer`](Self::max_transfer) bytes, from `lba` on.
    fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError>;

    /// Writes `data`, a whole number of LBAs and at most [`max_transfer`](Self::max_transfer) bytes, from `lba` on.
    fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError>;

    /// Returns when every completed write is durable.
    fn flush(&self) -> Result<(), DriveError>;

    /// A number that changes whenever the drive may have lost writes that had completed and were not flushed, although
    /// the drive goes on: when it was reset, or lost power. A flush after that succeeds, but proves nothing about what
    /// was written before.
    fn incarnation(&self) -> u64 {
        0
    }
}

/// The cause in a [`DriveError`] of a flush: it succeeded, and what was written before it may be lost all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the drive was reset or lost power while it was being written; what was not durable yet may be lost: write it again"
)]
pub struct WritesLost;

/// A drive failed an operation.
#[derive(Debug, thiserror::Error)]
#[error("drive {drive}: {operation} failed")]
pub struct DriveError {
    /// The drive's [`name`](Drive::name).
    pub drive: String,
    /// What was asked, with its address: `read of 8 LBAs at 64`.
    pub operation: String,
    /// Why it failed.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

impl DriveError {
    /// An error of `drive` in `operation`, caused by `source`.
    pub fn new(
        drive: impl Into<String>,
        operation: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { drive: drive.into(), operation: operation.into(), source: source.into() }
    }
}

macro_rules! forward {
    ($pointer:ty) => {
        impl<T: Drive + ?Sized> Drive for $pointer {
            fn name(&self) -> &str {
                (**self).name()
            }
            fn serial(&self) -> &str {
                (**self).serial()
            }
            fn lba_size(&self) -> u32 {
                (**self).lba_size()
            }
            fn lba_count(&self) -> u64 {
                (**self).lba_count()
            }
            fn max_transfer(&self) -> usize {
                (**self).max_transfer()
            }
            fn read(&self, lba: u64, buf: &mut [u8]) -> Result<(), DriveError> {
                (**self).read(lba, buf)
            }
            fn write(&self, lba: u64, data: &[u8]) -> Result<(), DriveError> {
                (**self).write(lba, data)
            }
            fn flush(&self) -> Result<(), DriveError> {
                (**self).flush()
            }
            fn incarnation(&self) -> u64 {
                (**self).incarnation()
            }
        }
    };
}
forward!(&T);
forward!(Box<T>);
forward!(Arc<T>);
