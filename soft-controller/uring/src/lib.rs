//! Reads and writes between files and DMA memory.
//!
//! The kernel gets the address of memory that others may read and write at the same time, so no Rust reference to it
//! may exist: the standard library's `read_at` and `write_at` cannot be used. [`read_at`] and [`write_at`] are
//! `pread` and `pwrite` on [`DmaMemory`](warprow_dma::DmaMemory); [`FileRing`] is an io_uring that keeps files and memory alive for as long as the
//! kernel uses them.

mod direct;
mod ring;
mod sync;

pub use direct::{DirectAlignment, alignment, open_direct, reopen_direct};
pub use ring::{FileRing, FileRingFull, FileTransfer, FileTransferResult, OwnTransfer};
pub use sync::{read_at, write_at};
