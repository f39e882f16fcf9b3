//! Rivals: the same look-ups from the same files by other means.
//!
//! *Per id* they read one row for each id, as programs do that know nothing better. With *equal means* they have everything
//! that Warprow's host executor has: the same deduplication, the same rows in DRAM, the same order and merging of
//! reads (its own functions), and the same depth. They read what an emulated drive keeps in its file; they know where
//! each row lies and the rank of each id.
//!
//! Two rivals have a [`PlainFile`] of the same rows in the order of ids and map it: [`MappedPlain`] in Rust, and [`Numpy`].

mod engine;
mod equal;
mod numpy;
mod per_id;
mod plain;
mod target;
mod threads;

use std::time::Duration;

pub use engine::{Mapped, Pread, Uring};
pub use equal::Equal;
pub use numpy::{Numpy, NumpyProcess};
pub use per_id::PerId;
pub use plain::{MappedPlain, PlainFile};
pub use target::{Caching, Target};
pub use threads::Threads;

/// Someone else who looks rows up.
pub trait Rival {
    /// What it is called: `pread`, `io_uring, equal means`.
    fn name(&self) -> String;

    /// Writes the row of `ids[i]` to `rows` at `i` rows, the default row for those that are missing, and to `mask` 1 or 0. `rows`
    /// has as many bytes as rows for all ids take, and `mask` as many as there are ids.
    fn lookup(&mut self, ids: &[i64], rows: &mut [u8], mask: &mut [u8]) -> Result<(), RivalError>;

    /// How long the last answer took, if the rival knows that better than the caller's clock: one in another process does not
    /// count the way there and back.
    fn took(&self) -> Option<Duration> {
        None
    }
}

/// Refuses buffers that do not fit the ids.
fn check(ids: &[i64], rows: &[u8], mask: &[u8], max_ids: usize, row_bytes: usize) -> Result<(), RivalError> {
    let (ids, rows, mask) = (ids.len(), rows.len(), mask.len());
    match ids <= max_ids && rows == ids * row_bytes && mask == ids {
        true => Ok(()),
        false => Err(RivalError::Size { ids, rows, mask, max_ids, row_bytes }),
    }
}

/// A rival cannot take part, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum RivalError {
    /// The system does not offer what the rival is made of. Others can go on.
    #[error("{what} is not available here: {source}{}", remedy(what))]
    Unavailable {
        /// `io_uring`, `mmap`, `O_DIRECT`, or `numpy.memmap`.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A read failed.
    #[error("cannot read {len} bytes at {offset} of drive {drive}'s file: {source}")]
    Read {
        /// Index of the drive.
        drive: usize,
        /// Offset in its file.
        offset: u64,
        /// Bytes.
        len: usize,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A [`PlainFile`] cannot be read.
    #[error("the plain file of the rows cannot be read: {source}")]
    PlainFile {
        /// The system's answer.
        source: std::io::Error,
    },
    /// A process that answers for a rival has ended, failed, or not answered in time. Others can go on.
    #[error("{what} has failed: {source}")]
    Process {
        /// `numpy.memmap`.
        what: &'static str,
        /// What it says.
        source: std::io::Error,
    },
    /// A row lies on a drive whose file was not given, or outside its table's place.
    #[error("row {rank} lies on drive {drive:?}, but there are files of {files} drives")]
    Misplaced {
        /// The row's rank.
        rank: u64,
        /// The drive; `None`: nowhere.
        drive: Option<usize>,
        /// Files given.
        files: usize,
    },
    /// More ids than the rival was prepared for, or buffers of another size than they need.
    #[error("{ids} ids with {rows} bytes of rows and {mask} of mask: at most {max_ids} ids of {row_bytes} bytes fit")]
    Size {
        /// Ids given.
        ids: usize,
        /// Bytes for rows.
        rows: usize,
        /// Bytes for the mask.
        mask: usize,
        /// Most ids.
        max_ids: usize,
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// No memory.
    #[error(transparent)]
    Memory(#[from] warprow_dma::AllocateError),
}

fn remedy(what: &str) -> &'static str {
    match what {
        "io_uring" => " (see /proc/sys/kernel/io_uring_disabled; containers filter it by default)",
        _ => "",
    }
}
