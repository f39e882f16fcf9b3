//! Ids from files.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::Keys;

mod csv;
mod npy;
mod raw;

/// A file of ids, written `FILE` or `FILE:COLUMN`.
///
/// - `*.csv`, `*.tsv`, `*.txt`: text with a header line, separated by commas, in `*.tsv` by tabs. The column may be left out
///   where there is only one.
/// - `*.npy`: one array of 32- or 64-bit integers, taken flat in C order.
/// - `*.u32`, `*.u64`, `*.i32`, `*.i64`: nothing but integers of that type, little-endian. In a file of another name
///   the type stands in the place of the column: `trace.bin:u32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFile {
    /// The file.
    pub path: PathBuf,
    /// The column, or the type of a raw file.
    pub column: Option<String>,
}

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
    /// Its name does not tell what it is.
    #[error("the name does not tell the format: use .csv, .npy, .u32 or .u64, or add :u32 or :u64 for raw integers")]
    UnknownFormat,
    /// It holds no id.
    #[error("it holds no ids")]
    Empty,
    /// Its size is no multiple of the width of an integer.
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
    Csv(#[from] ::csv::Error),
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

impl FromStr for TraceFile {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A path may contain colons: a file that is there is meant as it stands.
        Ok(match text.rsplit_once(':') {
            Some((path, column)) if !path.is_empty() && !column.is_empty() && !Path::new(text).exists() => {
                Self { path: path.into(), column: Some(column.to_owned()) }
            }
            _ => Self { path: text.into(), column: None },
        })
    }
}

impl TraceFile {
    /// Reads all ids.
    pub fn read(&self) -> Result<Keys, TraceError> {
        let keys = self.read_any().and_then(|keys| if keys.is_empty() { Err(TraceProblem::Empty) } else { Ok(keys) });
        keys.map_err(|problem| TraceError { path: self.path.clone(), problem })
    }

    fn read_any(&self) -> Result<Keys, TraceProblem> {
        let extension = self.path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
        let column = self.column.as_deref();
        let raw = raw::Type::from_name(&extension).or_else(|| raw::Type::from_name(column?));
        let text = matches!(&*extension, "csv" | "tsv" | "txt");
        if raw.is_none() && !text && extension != "npy" {
            return Err(TraceProblem::UnknownFormat);
        }
        let file = File::open(&self.path)?;
        let len = file.metadata()?.len();
        let mut reader = BufReader::with_capacity(1 << 16, file);
        match raw {
            _ if text => csv::read(reader, if extension == "tsv" { b'\t' } else { b',' }, column),
            Some(of) => raw::read(&mut reader, len, of),
            None => npy::read(&mut reader, len),
        }
    }
}

/// Reads `reader` to its end, into memory that grows with what is there, whatever the size was said to be.
fn read_rest(reader: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(bytes)
}
