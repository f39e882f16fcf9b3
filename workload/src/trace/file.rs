//! Files of ids.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::{TraceError, TraceProblem};
use super::{csv, npy, raw};
use crate::keys::Keys;

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
