//! NumPy's array files, as far as arrays of integers go (NEP 1, versions 1.0 to 3.0).
//!
//! The header is read here rather than by a library, because the ones there are overflow on absurd shapes and recurse as
//! deep as a file tells them to.

use std::io::Read;

use super::raw::Type;
use super::{TraceProblem, read_rest};
use crate::Keys;

/// The longest header that is read. NumPy writes less than 200 bytes for a plain array.
const MAX_HEADER: usize = 1 << 16;

pub(super) fn read(reader: &mut impl Read, len: u64) -> Result<Keys, TraceProblem> {
    let (header, before) = read_header(reader)?;
    let damaged = TraceProblem::NpyHeader;
    let descr =
        quoted(value(&header, "descr").ok_or(damaged("no 'descr'"))?).ok_or(damaged("'descr' is no name of a type"))?;
    let of = match descr {
        "<u4" => Type::U32,
        "<u8" => Type::U64,
        "<i4" => Type::I32,
        "<i8" => Type::I64,
        other => return Err(TraceProblem::NpyType(other.to_owned())),
    };
    let shape = shape(value(&header, "shape").ok_or(damaged("no 'shape'"))?).ok_or(damaged("'shape' is no tuple"))?;
    let fortran = value(&header, "fortran_order").ok_or(damaged("no 'fortran_order'"))?;
    if fortran.starts_with("True") && shape.iter().filter(|&&n| n != 1).count() > 1 {
        return Err(damaged("the array is in Fortran order: save numpy.ascontiguousarray(ids)"));
    }
    let promised = shape.iter().fold(of.width() as u128, |bytes, &n| bytes.saturating_mul(n.into()));
    let found = len.saturating_sub(before);
    if promised != u128::from(found) {
        return Err(TraceProblem::NpySize { promised, found });
    }
    Ok(of.decode(&read_rest(reader)?))
}

/// The header's text, and how many bytes of the file come before the data.
fn read_header(reader: &mut impl Read) -> Result<(String, u64), TraceProblem> {
    let damaged = TraceProblem::NpyHeader;
    let mut start = [0; 8];
    read_exact(reader, &mut start)?;
    let [magic @ .., major, _] = start;
    if magic != *b"\x93NUMPY" {
        return Err(damaged("it does not begin with \\x93NUMPY"));
    }
    let (len, before) = match major {
        1 => {
            let mut len = [0; 2];
            read_exact(reader, &mut len)?;
            (usize::from(u16::from_le_bytes(len)), 10)
        }
        2 | 3 => {
            let mut len = [0; 4];
            read_exact(reader, &mut len)?;
            (u32::from_le_bytes(len) as usize, 12)
        }
        _ => return Err(damaged("its version is none of 1, 2 and 3")),
    };
    if len > MAX_HEADER {
        return Err(damaged("it is longer than 64 KiB"));
    }
    let mut text = vec![0; len];
    read_exact(reader, &mut text)?;
    let text = String::from_utf8(text).map_err(|_| damaged("it is no text"))?;
    Ok((text, before + len as u64))
}

fn read_exact(reader: &mut impl Read, into: &mut [u8]) -> Result<(), TraceProblem> {
    reader.read_exact(into).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => TraceProblem::NpyHeader("the file ends in it"),
        _ => error.into(),
    })
}

/// What follows `'key':` in the dictionary.
fn value<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    ['\'', '"'].into_iter().find_map(|quote| {
        let (_, rest) = header.split_once(&format!("{quote}{key}{quote}"))?;
        Some(rest.trim_start().strip_prefix(':')?.trim_start())
    })
}

/// The string literal at the start of `text`.
fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    Some(text[1..].split_once(quote)?.0)
}

/// The tuple of numbers at the start of `text`.
fn shape(text: &str) -> Option<Vec<u64>> {
    let (numbers, _) = text.strip_prefix('(')?.split_once(')')?;
    let parts = numbers.split(',').map(str::trim).filter(|part| !part.is_empty());
    // Python 2 wrote long integers with an L.
    parts.map(|part| part.trim_end_matches('L').parse().ok()).collect()
}
