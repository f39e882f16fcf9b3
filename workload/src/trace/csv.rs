//! Text in columns.

use std::io::Read;

use super::error::TraceProblem;
use crate::keys::Keys;

pub(super) fn read(reader: impl Read, separator: u8, column: Option<&str>) -> Result<Keys, TraceProblem> {
    let mut reader = csv::ReaderBuilder::new().delimiter(separator).trim(csv::Trim::All).from_reader(reader);
    let header = reader.headers()?.clone();
    // Tables written by other programs may begin with a byte order mark.
    let columns: Vec<String> = header.iter().map(|name| name.trim_start_matches('\u{feff}').to_owned()).collect();
    let index = match column {
        Some(wanted) => columns.iter().position(|name| name == wanted),
        None => (columns.len() == 1).then_some(0),
    };
    let Some(index) = index else {
        return Err(TraceProblem::Column { wanted: column.map(str::to_owned), columns });
    };
    let mut keys = Keys::Signed(Vec::new());
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record)? {
        let line = record.position().map_or(0, csv::Position::line);
        let text = record.get(index).unwrap_or("");
        let key: i128 = text.parse().map_err(|_| TraceProblem::Cell {
            line,
            column: columns[index].clone(),
            text: text.chars().take(40).collect(),
        })?;
        push(&mut keys, key).ok_or(TraceProblem::Sign { line, key })?;
    }
    Ok(keys)
}

/// Appends `key`; the keys turn unsigned with the first one that needs it. `None` if it does not fit.
fn push(keys: &mut Keys, key: i128) -> Option<()> {
    match keys {
        Keys::Signed(signed) => match i64::try_from(key) {
            Ok(key) => signed.push(key),
            Err(_) => {
                let key = u64::try_from(key).ok()?;
                let unsigned: Result<Vec<u64>, _> = signed.iter().map(|&key| u64::try_from(key)).collect();
                let mut unsigned = unsigned.ok()?;
                unsigned.push(key);
                *keys = Keys::Unsigned(unsigned);
            }
        },
        Keys::Unsigned(unsigned) => unsigned.push(u64::try_from(key).ok()?),
    }
    Some(())
}
