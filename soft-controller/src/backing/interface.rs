//! The trait [`Backing`]: what every backing of a namespace does.

use std::fmt;

use warprow_dma::DmaMemory;

use super::engine::BackingEngine;
use super::media_error::MediaError;

/// Reads of a file that one worker has under way at most, unless it is told another number.
pub(crate) const DEPTH: u32 = 256;
/// Most bytes of a command that are fetched ahead: the processor's own prefetcher follows longer runs.
pub(super) const PREFETCHED: usize = 1024;

/// What holds the bytes of a namespace. The caller has checked that each range lies inside [`size`](Self::size), and
/// that a command as a whole begins and ends at multiples of 512. A command may come in several calls, each for a
/// multiple of 4 bytes at a multiple of 4. Several workers call at once.
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
    fn engine(&self) -> std::io::Result<Option<Box<dyn BackingEngine>>> {
        Ok(None)
    }

    /// Whether writes that were not flushed can be lost: whether there is a volatile write cache to speak of.
    fn is_volatile(&self) -> bool {
        false
    }
}
