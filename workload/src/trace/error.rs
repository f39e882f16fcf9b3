//! Why an id trace cannot be read.

use std::path::PathBuf;

/// An id trace could not be read. Nothing of it is used.
#[derive(Debug, thiserror::Error)]
#[error("id trace {}: {problem}", path.display())]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub problem: TraceProblem,
}

/// What is wrong with an id trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceProblem {
    /// It cannot be opened or read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The name of the file does not tell what it is.
    #[error("the name does not tell the format: use .csv, .npy, .u32 or .u64, or add :u32 or :u64 for raw integers")]
    UnknownFormat,
    /// It holds no id.
    #[error("it holds no ids")]
    Empty,
    /// The size of the file is no multiple of the width of an integer.
    #[error("{bytes} bytes are not a whole number of {width}-byte integers: the file is cut off, or of another type")]
    NotWhole {
        /// Bytes of data.
        bytes: u64,
        /// Bytes of an integer.
        width: usize,
    },
    /// There are several columns and none was named, or there is none of the name.
    #[error("{}; its columns are: {}", match .wanted {
        Some(wanted) => format!("there is no column {wanted:?}"),
        None => "name the column of ids as FILE:COLUMN".to_owned(),
    }, .columns.join(", "))]
    Column {
        /// The name asked for.
        wanted: Option<String>,
        /// The names there are.
        columns: Vec<String>,
    },
    /// The text is no CSV.
    #[error("{0}")]
    Csv(#[from] csv::Error),
    /// A cell is no integer.
    #[error("line {line}, column {column}: {text:?} is no integer")]
    Cell {
        /// Line in the file, from 1.
        line: u64,
        /// The column's name.
        column: String,
        /// What stands there.
        text: String,
    },
    /// The keys need both a sign and all 64 bits.
    #[error(
        "line {line}: {key} does not fit beside the other ids: a file has negative ids or ids from 2⁶³ on, not both"
    )]
    Sign {
        /// Line in the file, from 1.
        line: u64,
        /// The key.
        key: i128,
    },
    /// The `.npy` header is damaged.
    #[error("damaged .npy header: {0}")]
    NpyHeader(&'static str),
    /// The array's elements are no ids.
    #[error("its elements are {0}; ids are i4, i8, u4 or u8, little-endian")]
    NpyType(String),
    /// The array is shorter than its header says, or longer.
    #[error("its header promises {promised} bytes of data, but {found} follow: the file is cut off or damaged")]
    NpySize {
        /// Bytes promised.
        promised: u128,
        /// Bytes there.
        found: u64,
    },
}
