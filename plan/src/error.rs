//! What keeps a tier proposal from being made.

use warprow_formats::FileError;

/// There is no proposal. Nothing was moved or written.
#[derive(Debug, thiserror::Error)]
pub enum ProposalError {
    /// No table was given.
    #[error("no table was given")]
    NoTables,
    /// A table cannot be.
    #[error("table {table:?}: {reason}")]
    Table {
        /// The name of the table.
        table: String,
        /// Why not.
        reason: String,
    },
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] FileError),
    /// A trace was changed while it was read.
    #[error("the trace had {queries} queries, and now has fewer")]
    Changed {
        /// Queries that it had.
        queries: u64,
    },
    /// Traces of several tables do not belong together.
    #[error("the trace of table {table:?} ends after query {queries}, that of {longer:?} goes on")]
    Uneven {
        /// The table whose trace is the shorter.
        table: String,
        /// How many queries it has.
        queries: u64,
        /// The table whose trace goes on.
        longer: String,
    },
    /// A trace is too short to learn from one part and to be tested by another.
    #[error(
        "the trace has {queries} queries; a plan needs {least} at least, to learn from one part and to be tested by another"
    )]
    TooShort {
        /// Queries in it.
        queries: u64,
        /// The least.
        least: u64,
    },
    /// A trace has ids that its table does not have.
    #[error(
        "{count} of {ids} ids in the trace of table {table:?} are none of its {rows} rows; the first is id {id}, in query {query}"
    )]
    IdsOutside {
        /// The table.
        table: String,
        /// Rows of the table.
        rows: u64,
        /// How many are outside.
        count: u64,
        /// Ids of its trace.
        ids: u64,
        /// The first of them.
        id: i64,
        /// The number of its query, from 0.
        query: u64,
        /// All tables of which the trace has ids past their rows, as keys are.
        sparse: Vec<String>,
    },
    /// A trace has more keys than its table can have.
    #[error("the trace of table {table:?} has {different} different keys, the table only {rows} rows")]
    KeysOutside {
        /// The table.
        table: String,
        /// Rows of the table.
        rows: u64,
        /// Different keys in the trace, as far as counted.
        different: u64,
    },
    /// Nothing of a budget is left beside the indices of keys.
    #[error("{budget} of {bytes} bytes does not hold the indices of the tables' keys, which take {index_bytes}")]
    Index {
        /// Which one.
        budget: &'static str,
        /// Bytes of the budget.
        bytes: u64,
        /// Bytes of all indices.
        index_bytes: u64,
    },
    /// None of the ids is in its table.
    #[error("none of the ids in the trace is in its table")]
    NothingInTables,
    /// A budget is too small for a single row.
    #[error("{budget} of {bytes} bytes does not hold the hottest row, of table {table:?}, which takes {row_bytes}")]
    Budget {
        /// Which one.
        budget: &'static str,
        /// Bytes of the budget.
        bytes: u64,
        /// The table of the hottest row.
        table: String,
        /// Bytes that the row takes there.
        row_bytes: u64,
    },
    /// No executor takes a cache of so few bytes.
    #[error("a cache of {bytes} bytes has too few lines for these tables and look-ups, {needed} bytes have enough")]
    CacheTooSmall {
        /// What was given.
        bytes: u64,
        /// The least.
        needed: u64,
    },
    /// The drives are too small.
    #[error("the tables take {needed} bytes on drives, which have {room}")]
    Drives {
        /// Bytes of all tables as they lie on drives.
        needed: u64,
        /// Bytes of all drives.
        room: u64,
    },
    /// An option is out of range.
    #[error("{option}: {reason}")]
    Option {
        /// Which one.
        option: &'static str,
        /// Why.
        reason: String,
    },
    /// A proposal's file cannot be read or written.
    #[error("plan {path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// Look-ups could not be timed on this machine.
    #[error("look-ups could not be timed here: {0}")]
    Timing(String),
    /// Whoever waits has asked to stop.
    #[error("stopped")]
    Stopped,
}

impl ProposalError {
    /// What to do.
    pub fn remedy(&self) -> &str {
        match self {
            Self::NoTables => "give one table at least",
            Self::Table { .. } => "look at the shape of the table",
            Self::Trace(error) => &error.remedy,
            Self::Changed { .. } => "let nobody write to the trace meanwhile",
            Self::Uneven { .. } => "give traces of the same queries",
            Self::TooShort { .. } => "give a longer trace",
            Self::IdsOutside { sparse, .. } if !sparse.is_empty() => {
                "if these are keys, any numbers of 64 bits, plan for a table that is looked up by keys; else give the table that the \
                 trace is of"
            }
            Self::IdsOutside { .. } | Self::KeysOutside { .. } => {
                "give the table that the trace is of, or allow missing ids (--allow-missing)"
            }
            Self::NothingInTables => "check which column or slot is of which table",
            Self::Index { .. } => "give more",
            Self::Budget { .. } => "give as much as the row takes, or 0 for no such tier",
            Self::CacheTooSmall { .. } => "give as many, or keep the hottest rows in so little memory",
            Self::Drives { .. } => "give more drives, or larger ones",
            Self::Option { .. } => "give what is possible",
            Self::File { .. } => "make the plan again: `warprow plan --out`",
            Self::Timing(_) => "take the costs of a typical machine (--typical-host)",
            Self::Stopped => "start again",
        }
    }
}
