//! Journals of version 2, which had no seals and did not name their store. They are read as they are, and become journals of the present
//! version when something is written to them.

use super::content::{Content, cut_off, damaged};
use super::record::{KEYS, RECORD, record, records};

pub(super) const VERSION: u32 = 2;
/// Magic, version, CRC32C of the table's name; the number of the last pass before the mark, CRC32C of that, nothing.
pub(super) const HEAD: usize = 32;
/// Where that number stands.
pub(super) const MARK: usize = 16;

/// What the file says. How far it was acknowledged is not known: what may have been torn at its end by a power cut is left out.
pub(super) fn read(bytes: &[u8], table: &str) -> Result<Content, String> {
    let Some(head) = bytes.get(..HEAD) else { return Err(cut_off(bytes, HEAD)) };
    if head.get(12..MARK) != Some(&crc32c::crc32c(table.as_bytes()).to_le_bytes()[..]) {
        return Err(format!("it is the journal of another table than {table:?}"));
    }
    let mark = marked(head).ok_or("its head is damaged")?;
    let rest = bytes.get(HEAD..).unwrap_or_default();
    let (records, valid) = records(rest);
    if !is_torn(rest.get(valid..).unwrap_or_default()) {
        return Err(damaged());
    }
    let last = records.iter().map(|record| record.pass).fold(mark, u64::max);
    let end = (HEAD + valid) as u64;
    Ok(Content { records, begin: HEAD as u64, end, mark, last, seal: None, reseal: false })
}

/// The number of the last pass before the mark.
fn marked(head: &[u8]) -> Option<u64> {
    let (number, rest) = head.get(MARK..)?.split_first_chunk::<8>()?;
    let crc = rest.first_chunk::<4>()?;
    (crc32c::crc32c(number) == u32::from_le_bytes(*crc)).then(|| u64::from_le_bytes(*number))
}

/// Whether `bytes`, which do not begin with a whole record, may be what was left of the last append: parts of it can be on the drive and
/// others not. All records of one but the last are of [`KEYS`] keys, and all are of one pass.
fn is_torn(bytes: &[u8]) -> bool {
    let full = RECORD + KEYS * 8;
    let mut passes = None;
    // Records have multiples of 8 bytes.
    for at in (0..bytes.len()).step_by(8) {
        let Some(found) = record(bytes.get(at..).unwrap_or_default()) else { continue };
        if !at.is_multiple_of(full) || *passes.get_or_insert(found.pass) != found.pass {
            return false;
        }
    }
    true
}
