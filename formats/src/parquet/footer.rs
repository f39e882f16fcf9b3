//! A look at the schema in a file's footer before the library reads it, which takes memory for as many children as a group claims to have.

use super::thrift::{fields, varint};

/// Types of fields in Thrift's compact protocol.
const I32: u8 = 5;
const BINARY: u8 = 8;
const LISTS: std::ops::RangeInclusive<u8> = 9..=10;
const STRUCT: u8 = 12;
/// Structs within each other: a logical type has three.
const DEPTH: u32 = 8;

/// Whether a group of the schema claims more children than the schema has elements. What cannot be read is left to the library.
pub(super) fn claims_too_many_children(footer: &[u8]) -> bool {
    let mut most = None;
    let _ = fields::<true>(&mut &*footer, |field, kind, rest| {
        if (field, kind) != (2, 9) {
            return skip(kind, rest, DEPTH);
        }
        let (element, count) = list(rest)?;
        for _ in 0..count {
            if element != STRUCT {
                return None;
            }
            fields::<true>(rest, |field, kind, rest| {
                if (field, kind) == (5, I32) {
                    let children = varint(rest)? >> 1;
                    most = most.max(Some((children, count)));
                    return Some(());
                }
                skip(kind, rest, DEPTH)
            })?;
        }
        // What is behind the schema is not looked at.
        None
    });
    most.is_some_and(|(children, elements)| children > elements)
}

/// The type of a list's elements, and how many there are.
fn list(rest: &mut &[u8]) -> Option<(u8, u64)> {
    let head = *rest.split_off_first()?;
    let count = if head >> 4 == 15 { varint(rest)? } else { u64::from(head >> 4) };
    Some((head & 15, count))
}

fn skip(kind: u8, rest: &mut &[u8], depth: u32) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match kind {
        1 | 2 => Some(()),
        3 => rest.split_off_first().map(|_| ()),
        4..=6 => varint(rest).map(|_| ()),
        7 => rest.split_off(..8).map(|_| ()),
        BINARY => {
            let len = usize::try_from(varint(rest)?).ok()?;
            rest.split_off(..len).map(|_| ())
        }
        STRUCT => fields::<true>(rest, |_, kind, rest| skip(kind, rest, depth)),
        _ if LISTS.contains(&kind) => {
            let (element, count) = list(rest)?;
            (0..count).try_for_each(|_| match element {
                // In lists these take a byte each.
                1 | 2 => rest.split_off_first().map(|_| ()),
                _ => skip(element, rest, depth),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 1; a root with one child, a number with a logical type; rows.
    const SOUND: &[u8] = &[
        0x15, 2, 0x19, 0x2c, 0x48, 1, b'm', 0x15, 2, 0, 0x15, 2, 0x25, 0, 0x18, 1, b'i', 0x6c, 0x1c, 0x1c, 0, 0, 0, 0,
        0x16, 20, 0,
    ];

    #[test]
    fn children_are_compared_with_elements() {
        assert!(!claims_too_many_children(SOUND));
        for (children, is_too_many) in [(2u8, false), (4, false), (6, true), (0x7e, true)] {
            let mut footer = SOUND.to_vec();
            footer[8] = children;
            assert_eq!(claims_too_many_children(&footer), is_too_many, "{children}");
        }
        // The field's number spelt out, and 2³¹ − 1.
        let long = [&SOUND[..7], &[0x05, 10, 0xfe, 0xff, 0xff, 0xff, 0x0f], &SOUND[9..]].concat();
        assert!(claims_too_many_children(&long));
    }

    #[test]
    fn any_bytes_are_looked_at_without_harm() {
        for at in 0..SOUND.len() {
            for byte in 0..=255 {
                let mut footer = SOUND.to_vec();
                footer[at] = byte;
                claims_too_many_children(&footer);
                claims_too_many_children(&footer[..at]);
            }
        }
        // Structs within each other, and a list of nothing that has no end.
        claims_too_many_children(&[0x1c; 1 << 16]);
        claims_too_many_children(&[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    }
}
