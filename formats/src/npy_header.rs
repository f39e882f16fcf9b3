//! The header of NumPy's array files (NEP 1, versions 1.0 to 3.0).
//!
//! It is read here rather than by a library, because the ones there are overflow on absurd shapes and recurse as deep as a
//! file tells them to.

use std::io::Read;

/// The longest header that is read. NumPy writes less than 200 bytes for a plain array.
const MAX_HEADER: usize = 1 << 16;

/// What a `.npy` file says about its array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyHeader {
    /// The type of the elements, such as `<f4`.
    pub descr: String,
    /// The array's shape. Nothing says that the file holds as much.
    pub shape: Vec<u64>,
    /// Whether the first index runs fastest.
    pub fortran_order: bool,
    /// Offset of the data in the file.
    pub data_at: u64,
}

/// A `.npy` header cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NpyHeaderError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(std::io::Error),
    /// The header is damaged.
    #[error("damaged .npy header: {0}")]
    Damaged(&'static str),
}

impl NpyHeader {
    /// Reads the header at the start of a file, and not a byte more.
    pub fn read(reader: &mut impl Read) -> Result<Self, NpyHeaderError> {
        let damaged = NpyHeaderError::Damaged;
        let (header, data_at) = read_header(reader)?;
        // Of a key that comes twice NumPy takes the last, others the first: nobody knows what was meant.
        let value = |key, none, twice| {
            let mut values = values(&header, key);
            let value = values.next().ok_or(damaged(none))?;
            if values.next().is_some() { Err(damaged(twice)) } else { Ok(value) }
        };
        let descr = value("descr", "no 'descr'", "'descr' comes twice")?;
        let descr = quoted(descr).ok_or(damaged("'descr' is no name of a type"))?.to_owned();
        let shape = value("shape", "no 'shape'", "'shape' comes twice")?;
        let shape = shape_of(shape).ok_or(damaged("'shape' is no tuple of whole numbers from 0 to 2⁶⁴ - 1"))?;
        let fortran_order = value("fortran_order", "no 'fortran_order'", "'fortran_order' comes twice")?;
        let fortran_order = fortran_order.starts_with("True");
        Ok(Self { descr, shape, fortran_order, data_at })
    }

    /// Whether the elements stand in C order.
    pub fn is_c_order(&self) -> bool {
        !self.fortran_order || self.shape.iter().filter(|&&n| n != 1).count() <= 1
    }

    /// Elements of the array; saturates.
    pub fn elements(&self) -> u128 {
        self.shape.iter().fold(1, |elements, &n| elements.saturating_mul(n.into()))
    }
}

/// The header's text, and how many bytes of the file come before the data.
fn read_header(reader: &mut impl Read) -> Result<(String, u64), NpyHeaderError> {
    let damaged = NpyHeaderError::Damaged;
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

fn read_exact(reader: &mut impl Read, into: &mut [u8]) -> Result<(), NpyHeaderError> {
    reader.read_exact(into).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => NpyHeaderError::Damaged("the file ends in it"),
        _ => NpyHeaderError::Io(error),
    })
}

/// What follows each `'key':` in the dictionary.
fn values<'a>(header: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    ['\'', '"'].into_iter().flat_map(move |quote| {
        let quoted = format!("{quote}{key}{quote}");
        let ends: Vec<usize> = header.match_indices(&quoted).map(|(at, found)| at + found.len()).collect();
        let rests = ends.into_iter().filter_map(|end| header.get(end..));
        rests.filter_map(|rest| Some(rest.trim_start().strip_prefix(':')?.trim_start()))
    })
}

/// The string literal at the start of `text`.
fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    Some(text[1..].split_once(quote)?.0)
}

/// The tuple of numbers at the start of `text`.
fn shape_of(text: &str) -> Option<Vec<u64>> {
    let (numbers, _) = text.strip_prefix('(')?.split_once(')')?;
    let parts = numbers.split(',').map(str::trim).filter(|part| !part.is_empty());
    // Python 2 wrote long integers with an L.
    parts.map(|part| part.trim_end_matches('L').parse().ok()).collect()
}
