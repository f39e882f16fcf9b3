//! The bytes of a record of last touches. `docs/formats.md` has the table.

use std::io;

use super::{LastTouches, TouchedKeys};

/// How a file begins.
const MAGIC: [u8; 8] = *b"\x89WPTCHS\n";
/// The version that is written, and the newest that is read.
const VERSION: u32 = 1;
/// Bytes before the first table, and before a table's name.
const HEADER: usize = 32;
const TABLE: usize = 16;

/// Why a record of last touches cannot be written or read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TouchesFileError {
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another process writes it.
    #[error("another process saves last touches there: give each executor a file of its own")]
    Taken,
    /// It begins as no such file does.
    #[error("it is no record of last touches: give what save_touches has written")]
    NotOne,
    /// A later version of Warprow has written it.
    #[error("it has version {version}, and this program reads up to {}: use the version that wrote it", VERSION)]
    Newer {
        /// What the file says.
        version: u32,
    },
    /// It is not as it was written.
    #[error("it is damaged, for {0}: remove it, and have executors save their last touches anew")]
    Damaged(&'static str),
}

pub(super) fn encode(touches: &LastTouches) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&(touches.tables.len() as u64).to_le_bytes());
    for (name, touched) in &touches.tables {
        bytes.extend_from_slice(&(touched.keys.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(name.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        touched.keys.iter().for_each(|key| bytes.extend_from_slice(&key.to_le_bytes()));
        touched.epochs.iter().for_each(|epoch| bytes.extend_from_slice(&epoch.to_le_bytes()));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let len = bytes.len() as u64;
    put(&mut bytes, 16, &len.to_le_bytes());
    let crc = crc32c::crc32c(bytes.get(12..).unwrap_or_default());
    put(&mut bytes, 8, &crc.to_le_bytes());
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Result<LastTouches, TouchesFileError> {
    if bytes.len() < HEADER || !bytes.starts_with(&MAGIC) {
        return Err(TouchesFileError::NotOne);
    }
    let version = number(bytes, 12, 4) as u32;
    if version > VERSION {
        return Err(TouchesFileError::Newer { version });
    }
    if number(bytes, 16, 8) != bytes.len() as u64 {
        return Err(TouchesFileError::Damaged("its length is not the one that it had"));
    }
    if u64::from(crc32c::crc32c(bytes.get(12..).unwrap_or_default())) != number(bytes, 8, 4) {
        return Err(TouchesFileError::Damaged("its checksum does not match"));
    }
    let damaged = || TouchesFileError::Damaged("its tables are not as long as it is");
    let (mut touches, mut at) = (LastTouches::default(), HEADER);
    let mut take = |len: Option<usize>| {
        let end = len.and_then(|len| at.checked_add(len)).ok_or_else(damaged)?;
        let taken = bytes.get(at..end).ok_or_else(damaged)?;
        at = end.next_multiple_of(8);
        Ok::<_, TouchesFileError>(taken)
    };
    for _ in 0..number(bytes, 24, 8) {
        let head = take(Some(TABLE))?;
        let count = usize::try_from(number(head, 0, 8)).map_err(|_| damaged())?;
        let name = std::str::from_utf8(take(Some(number(head, 8, 4) as usize))?)
            .map_err(|_| TouchesFileError::Damaged("a name is no text"))?;
        let keys: Vec<u64> =
            take(count.checked_mul(8))?.as_chunks().0.iter().map(|key| u64::from_le_bytes(*key)).collect();
        let epochs: Vec<u16> =
            take(count.checked_mul(2))?.as_chunks().0.iter().map(|epoch| u16::from_le_bytes(*epoch)).collect();
        if !keys.is_sorted_by(|a, b| a < b) || epochs.contains(&0) {
            return Err(TouchesFileError::Damaged("its keys are not in order, or have no epoch"));
        }
        touches.tables.insert(name.to_owned(), TouchedKeys { keys, epochs });
    }
    if at == bytes.len() { Ok(touches) } else { Err(damaged()) }
}

fn put(bytes: &mut [u8], at: usize, number: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + number.len()) {
        place.copy_from_slice(number);
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes.get(at..at + len).unwrap_or_default().iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touches() -> LastTouches {
        let mut touches = LastTouches::default();
        touches.touch("item", [(5, 9), (u64::MAX, 1), (0, 65_535)]);
        touches.touch("ünamed", []);
        touches
    }

    /// With the length and the checksum that it should have.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let len = bytes.len() as u64;
        put(&mut bytes, 16, &len.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[12..]);
        put(&mut bytes, 8, &crc.to_le_bytes());
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(decode(&encode(&touches())).unwrap(), touches());
        assert_eq!(decode(&encode(&LastTouches::default())).unwrap(), LastTouches::default());
    }

    #[test]
    fn each_flipped_bit_and_each_cut_is_found() {
        let bytes = encode(&touches());
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                assert!(decode(&bytes).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn nonsense_with_a_checksum_is_refused() {
        let bytes = encode(&touches());
        let with = |at: usize, number: &[u8]| {
            let mut bytes = bytes.clone();
            put(&mut bytes, at, number);
            decode(&sealed(bytes))
        };
        // The number of tables, of keys, of bytes of a name.
        for (at, number) in [
            (24, 3),
            (24, u64::MAX),
            (24, 1),
            (HEADER, 4),
            (HEADER, u64::MAX),
            (HEADER, 1 << 61),
            (HEADER + 8, 1 << 31),
        ] {
            let read = with(at, &number.to_le_bytes());
            assert!(matches!(read, Err(TouchesFileError::Damaged(_))), "{number} at {at}: {read:?}");
        }
        // The name; the first key, which comes after the second then; the first epoch.
        let name = HEADER + TABLE;
        for (at, number) in [(name, &[0xff][..]), (name + 8, &[6; 8][..]), (name + 32, &[0; 2][..])] {
            let read = with(at, number);
            assert!(matches!(read, Err(TouchesFileError::Damaged(_))), "{number:?} at {at}: {read:?}");
        }
        assert!(matches!(with(12, &2u32.to_le_bytes()), Err(TouchesFileError::Newer { version: 2 })));
        let longer = sealed([&bytes[..], &[0; 8]].concat());
        assert!(matches!(decode(&longer), Err(TouchesFileError::Damaged(_))));
        assert!(matches!(decode(b"something else, of some length"), Err(TouchesFileError::NotOne)));
    }
}
