//! Why a rival takes no part, or no longer.

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
    /// A [`PlainFile`](crate::rival::PlainFile) cannot be read.
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
