//! Reading a file to its end.

use std::io::Read;

/// Reads `reader` to its end, into memory that grows with what is there, whatever the size was said to be.
pub(super) fn read_rest(reader: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(bytes)
}
