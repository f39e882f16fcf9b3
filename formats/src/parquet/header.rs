//! The header of a page of values, as Thrift's compact protocol has it. The library below reads headers too, but not without
//! the page behind them.

use super::thrift::{fields, varint};

/// What stands in front of a page of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of itself.
    pub(super) len: usize,
    /// Bytes of the page behind it.
    pub(super) page: u64,
    /// Values, or places where there is none.
    pub(super) values: u64,
    /// Bytes of the repetition and of the definition levels; `None`: each has its length in front.
    pub(super) levels: Option<(u64, u64)>,
    /// Whether the values stand as they are: neither compressed nor encoded, and without a checksum that has to be compared.
    pub(super) is_plain: bool,
}

/// Parquet's numbers for two kinds of pages and two encodings.
const DATA_PAGE: i64 = 0;
const DATA_PAGE_V2: i64 = 3;
const PLAIN: i64 = 0;
const RLE: i64 = 3;

/// Types of fields.
const BOOLS: [u8; 2] = [1, 2];
const BYTE: u8 = 3;
const NUMBERS: std::ops::RangeInclusive<u8> = 4..=6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const STRUCT: u8 = 12;

/// Numbers of a page's header, by field.
#[derive(Default)]
struct Fields {
    numbers: [Option<i64>; 9],
}

impl Fields {
    fn get(&self, field: usize) -> Option<i64> {
        self.numbers.get(field).copied().flatten()
    }
}

impl Header {
    /// The header at the start of `bytes`; `None` if it is none of a page of values, ends behind them, or is written in a way that
    /// no writer has.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut page = Fields::default();
        let mut values = None;
        fields::<false>(&mut rest, |field, kind, rest| {
            if kind == STRUCT && matches!(field, 5 | 8) {
                let mut inner = Fields::default();
                fields::<false>(rest, |field, kind, rest| number(&mut inner, field, kind, rest))?;
                values = Some((field, inner));
                return Some(());
            }
            number(&mut page, field, kind, rest)
        })?;
        let (field, inner) = values?;
        let unpacked = page.get(2)?;
        let packed = page.get(3)?;
        let as_they_are = unpacked == packed && page.get(4).is_none();
        let size = |field| inner.get(field).and_then(|size| u64::try_from(size).ok());
        let (levels, is_plain) = match (page.get(1)?, field) {
            (DATA_PAGE, 5) => (None, (inner.get(2)?, inner.get(3)?, inner.get(4)?) == (PLAIN, RLE, RLE)),
            (DATA_PAGE_V2, 8) => (Some((size(6)?, size(5)?)), inner.get(4)? == PLAIN),
            _ => return None,
        };
        let len = bytes.len() - rest.len();
        let page = u64::try_from(packed).ok()?;
        let values = size(1)?;
        Some(Self { len, page, values, levels, is_plain: is_plain && as_they_are })
    }
}

/// Notes a field that is a number, and reads past any other.
fn number(found: &mut Fields, field: usize, kind: u8, rest: &mut &[u8]) -> Option<()> {
    if !NUMBERS.contains(&kind) {
        return skip(kind, rest);
    }
    let value = varint(rest)?;
    if let Some(place) = found.numbers.get_mut(field) {
        *place = Some((value >> 1) as i64 ^ -((value & 1) as i64));
    }
    Some(())
}

/// Reads past what is no number. Lists and maps are in no header.
fn skip(kind: u8, rest: &mut &[u8]) -> Option<()> {
    match kind {
        _ if BOOLS.contains(&kind) => Some(()),
        BYTE => rest.split_off_first().map(|_| ()),
        DOUBLE => rest.split_off(..8).map(|_| ()),
        BINARY => {
            let len = usize::try_from(varint(rest)?).ok()?;
            rest.split_off(..len).map(|_| ())
        }
        // Of statistics, which hold no further ones.
        STRUCT => fields::<false>(rest, |_, kind, rest| match kind {
            STRUCT => None,
            _ if NUMBERS.contains(&kind) => varint(rest).map(|_| ()),
            _ => skip(kind, rest),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of version 1, with statistics: 100 values in 500 bytes.
    const FIRST: &[u8] = &[
        0x15, 0, 0x15, 0xe8, 7, 0x15, 0xe8, 7, 0x2c, 0x15, 0xc8, 1, 0x15, 0, 0x15, 6, 0x15, 6, 0x1c, 0x36, 0, 0x28, 2,
        1, 2, 0x11, 0, 0, 0,
    ];
    /// Of version 2: the same, with levels of 7 and 3 bytes; compression is said to be used.
    const SECOND: &[u8] = &[
        0x15, 6, 0x15, 0xe8, 7, 0x15, 0xe8, 7, 0x5c, 0x15, 0xc8, 1, 0x15, 0, 0x15, 20, 0x15, 0, 0x15, 6, 0x15, 14,
        0x11, 0, 0,
    ];

    #[test]
    fn headers_of_both_versions_are_read() {
        let header = Header { len: FIRST.len(), page: 500, values: 100, levels: None, is_plain: true };
        assert_eq!(Header::read(&[FIRST, &[9; 30]].concat()), Some(header));
        let header = Header { len: SECOND.len(), levels: Some((7, 3)), ..header };
        assert_eq!(Header::read(&[SECOND, &[9; 30]].concat()), Some(header));
    }

    #[test]
    fn what_is_not_plain_is_told() {
        let with = |at: usize, byte: u8| {
            let mut bytes = FIRST.to_vec();
            bytes[at] = byte;
            Header::read(&bytes)
        };
        // Unpacked size, values' encoding, levels' encodings.
        for (at, byte) in [(3, 0xea), (13, 16), (15, 8), (17, 8)] {
            assert!(!with(at, byte).unwrap().is_plain, "{at}");
        }
        let checked = [&FIRST[..8], &[0x15, 2, 0x1c], &FIRST[9..]].concat();
        assert!(!Header::read(&checked).unwrap().is_plain, "a checksum");
        // The kind of the page; a field's long form; a list.
        for (at, byte) in [(1, 4), (0, 5), (9, 0x19)] {
            assert_eq!(with(at, byte), None, "{at}");
        }
    }

    #[test]
    fn no_bytes_are_read_past_the_end() {
        for whole in [FIRST, SECOND] {
            assert!((0..whole.len()).all(|len| Header::read(&whole[..len]).is_none()));
            for at in 0..whole.len() {
                for byte in 0..=255 {
                    let mut bytes = whole.to_vec();
                    bytes[at] = byte;
                    assert!(Header::read(&bytes).is_none_or(|header| header.len <= bytes.len()));
                }
            }
        }
    }
}
