//! Errors of passes. Each names the thing and the remedy.

use warprow_store::StoreError;
use warprow_traces::FileError;

/// What can go wrong with passes. Unless it says otherwise, nothing has moved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The store, or a drive of it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file.
    #[error(transparent)]
    File(#[from] Box<FileError>),
    /// The journal of what was touched.
    #[error("the journal {path} {what}: {source}; name another, or none")]
    Journal {
        /// The path of the journal.
        path: String,
        /// What is wrong with it.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A GPU.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] warprow_gpu_queues::GpuQueueError),
    /// GPU memory that the rows of a pass are not as many as.
    #[error(
        "the pass has {rows} rows, {bytes} bytes, and the GPU memory {room} from there on: give more, or less before"
    )]
    GpuRoom {
        /// Rows.
        rows: usize,
        /// Bytes of the rows.
        bytes: u64,
        /// Bytes of the memory behind the offset.
        room: u64,
    },
    /// Options that make no sense.
    #[error("{what}")]
    Options {
        /// Which, and what to do.
        what: String,
    },
    /// More rows than memory was given for.
    #[error(
        "{what} has {rows} rows, which take {bytes} bytes, and {memory} were given for them: give more memory, or {remedy}"
    )]
    TooLarge {
        /// The pass, or the table.
        what: String,
        /// Rows.
        rows: u64,
        /// Bytes of the rows.
        bytes: u64,
        /// Bytes that were given.
        memory: u64,
        /// What else can be done.
        remedy: &'static str,
    },
    /// Keys that the table does not have.
    #[error(
        "{count} keys of the pass are not in table {table:?}, such as {}: leave them out, or have them created",
        first.join(", ")
    )]
    NewKeys {
        /// The table.
        table: String,
        /// How many.
        count: u64,
        /// The first of them, ten at most.
        first: Vec<String>,
    },
    /// Rows in a file that are not those of this table in this store, or do not say whose they are.
    #[error("{path} {what}; {remedy}")]
    Foreign {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Rows in a file that were staged from rows which have changed since.
    #[error("{path} is stale: {what}; begin the pass anew, or allow stale rows to overwrite what came since")]
    Stale {
        /// The file.
        path: String,
        /// What changed.
        what: String,
    },
    /// Keys that were created have no rank before a compaction, and those that were removed have theirs still.
    #[error("table {table:?} has keys that were created or removed since it was written: compact first")]
    Uncompacted {
        /// The table.
        table: String,
    },
    /// Somebody asked to stop.
    #[error("stopped; nothing was changed")]
    Stopped,
    /// Keys that cannot be made rows of.
    #[error("key {key} cannot become a row of table {table:?}: {reason}")]
    Uncreatable {
        /// The table.
        table: String,
        /// The first of them.
        key: String,
        /// Why not.
        reason: String,
    },
    /// One pass at a time.
    #[error("a pass is under way: finish it, or drop it, before the next is staged")]
    PassOpen,
    /// A pass of other passes, or one that was followed by others.
    #[error("this is not the pass that is under way")]
    NotThisPass,
    /// Rows that are not those of the pass.
    #[error("the pass has {rows} rows of {row_bytes} bytes, {given} bytes were given: give all rows, in its order")]
    Length {
        /// Rows.
        rows: usize,
        /// Bytes of each.
        row_bytes: usize,
        /// Bytes that were given.
        given: usize,
    },
    /// Somebody else changed the table.
    #[error("table {table:?} was {how} by others since the passes were opened: open them anew")]
    Changed {
        /// The table.
        table: String,
        /// How.
        how: &'static str,
    },
    /// Rows are in memory, and not on the drives.
    #[error(
        "{rows} rows of finished passes are in memory, and could not be made durable: {source}; mend what is wrong, \
         and commit again"
    )]
    NotDurable {
        /// How many.
        rows: usize,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// A thread could not be had.
    #[error("no thread can be made: {0}; do without prefetching and without becoming durable behind the next pass")]
    Thread(#[source] std::io::Error),
    /// Memory for rows could not be had.
    #[error("cannot allocate {bytes} bytes for rows: {source}; ask for less")]
    Allocate {
        /// Bytes.
        bytes: u64,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

impl From<FileError> for PassError {
    fn from(error: FileError) -> Self {
        Self::File(Box::new(error))
    }
}
