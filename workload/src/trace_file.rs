//! Ids from files.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use warprow_traces::{FileError, Trace, TraceBlock, TraceFormat, TraceSpec};

use crate::keys::RecordedKeys;

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
    /// Reads all ids, of which there may be none.
    pub fn read(&self) -> Result<RecordedKeys, FileError> {
        read_slots(&TraceSpec::list(&self.path, self.column.as_deref())?, None)
    }
}

/// Reads the keys of some slots of a trace, sample by sample; of all slots, if none are named. There may be no keys.
pub fn read_slots(spec: &TraceSpec, slots: Option<&[usize]>) -> Result<RecordedKeys, FileError> {
    let mut trace = Trace::open(spec)?;
    let mut keys = Vec::new();
    let mut block = TraceBlock::default();
    while trace.next_block(&mut block)? {
        match slots {
            None => keys.extend_from_slice(block.keys()),
            Some(slots) => block.samples().for_each(|sample| {
                slots.iter().for_each(|&slot| keys.extend_from_slice(sample.keys(slot)));
            }),
        }
    }
    let is_meant = |slot: &usize| slots.is_none_or(|slots| slots.contains(slot));
    let is_signed = (0..).zip(trace.slots()).any(|(nth, slot)| slot.signed && is_meant(&nth));
    // Text has no types: its numbers are unsigned only where one of them needs all 64 bits.
    let fits = || trace.format() == TraceFormat::Csv && keys.iter().all(|&key| i64::try_from(key).is_ok());
    Ok(match is_signed || fits() {
        true => RecordedKeys::Signed(keys.into_iter().map(|key| key as i64).collect()),
        false => RecordedKeys::Unsigned(keys),
    })
}
