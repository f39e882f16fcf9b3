//! Pages of vectors: their levels say that no row lacks a value or differs in length, and their values are taken as they stand.
//!
//! The library unpacks pages. What is in them is read here: it makes a level of 16 bits, twice, and a number of every value,
//! where most pages need one comparison for many levels, and no copy of their values.

use std::path::Path;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;

use super::hybrid::{CutOff, Hybrid, Packed, Run};
use super::source::Source;
use crate::error::{FileError, FileErrorKind};

/// What all pages of a column have in common.
pub(super) struct Vectors {
    /// Values of a row.
    pub(super) dim: u64,
    /// Bytes of a value: 4 or 2.
    pub(super) size: usize,
    /// The definition level of a value that is there.
    pub(super) present: u32,
}

impl Vectors {
    /// The pages of a column of vectors of `dim` values of `size` bytes.
    pub(super) fn of(source: &Source, column: usize, dim: u64, size: usize) -> Self {
        let descriptor = source.metadata.file_metadata().schema_descr().column(column);
        Self { dim, size, present: descriptor.max_def_level().max(0) as u32 }
    }

    /// The values of a page whose first is number `first` of its column.
    pub(super) fn values(
        &self,
        path: &Path,
        page: Page,
        first: u64,
        dictionary: Option<&Bytes>,
    ) -> Result<Bytes, FileError> {
        let damaged = |what: &str| FileError::damaged(path, what);
        let (buf, count, encoding, levels) = match page {
            Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, .. } => {
                let other = |encoding: &Encoding| *encoding != Encoding::RLE;
                let used = [Some(rep_level_encoding), (self.present > 0).then_some(def_level_encoding)];
                if let Some(other) = used.into_iter().flatten().find(other) {
                    return Err(unknown(path, "levels", other));
                }
                (buf, num_values, encoding, None)
            }
            Page::DataPageV2 { buf, num_values, encoding, rep_levels_byte_len, def_levels_byte_len, .. } => {
                (buf, num_values, encoding, Some((rep_levels_byte_len, def_levels_byte_len)))
            }
            Page::DictionaryPage { .. } => return Err(damaged("a dictionary stands where values should be")),
        };
        let cut_off = || damaged("a page ends before its levels do");
        let mut rest = &buf[..];
        let mut part = |len: Option<u32>| {
            let len = match len {
                Some(len) => len,
                // Of older pages, the length stands in front.
                None => u32::from_le_bytes(rest.split_off(..4)?.try_into().ok()?),
            };
            rest.split_off(..usize::try_from(len).ok()?)
        };
        let repetition = part(levels.map(|level| level.0)).ok_or_else(cut_off)?;
        let definition = match self.present {
            0 => &[],
            _ => part(levels.map(|level| level.1)).ok_or_else(cut_off)?,
        };
        let count = count as usize;
        self.check(path, (repetition, definition), count, first).map_err(|CutOff| cut_off())??;
        match self.decoded(rest, count, encoding, dictionary) {
            Ok(Decoded::There(bytes)) => Ok(buf.slice_ref(bytes)),
            Ok(Decoded::Made(bytes)) => Ok(bytes.into()),
            Err(Undecoded::Damaged(what)) => Err(damaged(what)),
            Err(Undecoded::Unknown) => Err(unknown(path, "values", encoding)),
        }
    }

    /// Whether the repetition and definition levels of `count` values, of which the first is number `first` of its column, say that no row lacks a value
    /// or differs in length.
    pub(super) fn check(
        &self,
        path: &Path,
        (repetition, definition): (&[u8], &[u8]),
        count: usize,
        first: u64,
    ) -> Result<Result<(), FileError>, CutOff> {
        let missing = self.missing(definition, count)?;
        let uneven = self.uneven(repetition, count, first)?;
        let row = |index: usize| (first + index as u64) / self.dim;
        let what = match (uneven, missing) {
            // A list that is missing or empty has one level too.
            (Some((index, Uneven::Short)), Some(missing)) if missing < index => {
                format!("row {} lacks a value", row(missing))
            }
            (Some((index, Uneven::Short)), _) => {
                let length = (first + index as u64) % self.dim;
                format!("row {} has {length} values, others {}", row(index), self.dim)
            }
            (Some((index, Uneven::Long)), _) => {
                format!(
                    "row {} goes on: a row has more values than rows have, {}",
                    row(index).saturating_sub(1),
                    self.dim
                )
            }
            (None, Some(missing)) => format!("row {} lacks a value", row(missing)),
            (None, None) => return Ok(Ok(())),
        };
        Ok(Err(FileError::new(FileErrorKind::Unsupported, path, what, "leave out or fill in such rows")))
    }

    /// The first value that is not there.
    fn missing(&self, levels: &[u8], count: usize) -> Result<Option<usize>, CutOff> {
        if self.present == 0 {
            return Ok(None);
        }
        let mut levels = Hybrid::new(levels, u32::BITS - self.present.leading_zeros(), count);
        let mut at = 0;
        while let Some(run) = levels.next()? {
            let (other, count) = match run {
                Run::Same(level, count) => ((level != self.present).then_some(0), count),
                Run::Packed(packed, count) => {
                    (packed.numbers().take(count).position(|level| level != self.present), count)
                }
            };
            if let Some(other) = other {
                return Ok(Some(at + other));
            }
            at += count;
        }
        Ok(None)
    }

    /// The first place at which a row begins too early, or should have ended.
    fn uneven(&self, levels: &[u8], count: usize, first: u64) -> Result<Option<(usize, Uneven)>, CutOff> {
        let mut levels = Hybrid::new(levels, 1, count);
        let mut at = 0;
        let mut within = first % self.dim;
        while let Some(run) = levels.next()? {
            let (odd, count) = match run {
                Run::Same(level, count) => (self.steps(level, count as u64, &mut within), count),
                Run::Packed(packed, count) => {
                    // Eight at a time, as long as there is nothing odd about them.
                    let done = self.even_groups(&packed, count, &mut within);
                    let rest = packed.skip_groups(done / 8);
                    let mut numbers = rest.numbers().take(count - done).zip(done..).map(|(level, at)| (at, level));
                    let step = |(index, level)| self.steps(level, 1, &mut within).map(|(_, uneven)| (index, uneven));
                    (numbers.find_map(step), count)
                }
            };
            if let Some((index, uneven)) = odd {
                return Ok(Some((at + index, uneven)));
            }
            at += count;
        }
        Ok(None)
    }

    /// How many of `count` levels, in groups of eight, are as they should be from value `within` of a row on, which is then the one behind them.
    fn even_groups(&self, packed: &Packed<'_>, count: usize, within: &mut u64) -> usize {
        // Of shorter rows several begin in a group.
        if self.dim < 8 {
            return 0;
        }
        let begins = |within: u64| match (self.dim - within) % self.dim {
            bit @ 0..8 => !(1 << bit),
            _ => u8::MAX,
        };
        let groups = packed.bytes().iter().take(count / 8);
        let even = groups.take_while(|group| {
            let even = **group == begins(*within);
            *within = if even { (*within + 8) % self.dim } else { *within };
            even
        });
        even.count() * 8
    }

    /// Steps over so many levels alike, from value `within` of a row: 0 is where a row begins, others go on with it.
    fn steps(&self, level: u32, count: u64, within: &mut u64) -> Option<(usize, Uneven)> {
        match (level, *within) {
            (0, 1..) => return Some((0, Uneven::Short)),
            (0, _) if count > 1 && self.dim > 1 => return Some((1, Uneven::Short)),
            (0, _) => *within = 1,
            (_, 0) => return Some((0, Uneven::Long)),
            (_, before) if count > self.dim - before => return Some(((self.dim - before) as usize, Uneven::Long)),
            (_, before) => *within = before + count,
        }
        if *within == self.dim {
            *within = 0;
        }
        None
    }

    /// The bytes of `count` values, one after another.
    fn decoded<'a>(
        &self,
        bytes: &'a [u8],
        count: usize,
        encoding: Encoding,
        dictionary: Option<&Bytes>,
    ) -> Result<Decoded<'a>, Undecoded> {
        let short = Undecoded::Damaged("a page ends before its values do");
        let len = count * self.size;
        match encoding {
            Encoding::PLAIN => bytes.get(..len).map(Decoded::There).ok_or(short),
            Encoding::BYTE_STREAM_SPLIT => {
                let bytes = bytes.get(..len).ok_or(short)?;
                let mut made = vec![0; len];
                for (byte, stream) in bytes.chunks_exact(count.max(1)).enumerate() {
                    made.iter_mut().skip(byte).step_by(self.size).zip(stream).for_each(|(to, from)| *to = *from);
                }
                Ok(Decoded::Made(made))
            }
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                let dictionary =
                    dictionary.ok_or(Undecoded::Damaged("a page needs a dictionary, and there is none"))?;
                let (&width, indices) = bytes.split_first().ok_or(short)?;
                if width > 32 {
                    return Err(Undecoded::Damaged("an index into its dictionary has more than 32 bits"));
                }
                let made = match self.size {
                    4 => looked_up::<4>(dictionary, indices, width.into(), count),
                    _ => looked_up::<2>(dictionary, indices, width.into(), count),
                };
                Ok(Decoded::Made(made?))
            }
            _ => Err(Undecoded::Unknown),
        }
    }
}

/// How a row differs in length from the others.
enum Uneven {
    Short,
    Long,
}

/// The bytes of values: some of the page's, or others.
enum Decoded<'a> {
    There(&'a [u8]),
    Made(Vec<u8>),
}

enum Undecoded {
    Damaged(&'static str),
    Unknown,
}

impl From<CutOff> for Undecoded {
    fn from(_: CutOff) -> Self {
        Self::Damaged("a page ends before its values do")
    }
}

/// What the indices stand for.
fn looked_up<const N: usize>(
    dictionary: &[u8],
    indices: &[u8],
    width: u32,
    count: usize,
) -> Result<Vec<u8>, Undecoded> {
    let (values, _) = dictionary.as_chunks::<N>();
    let past = || Undecoded::Damaged("an index lies past the end of its dictionary");
    let mut made = vec![0; count * N];
    let (mut slots, _) = made.as_chunks_mut::<N>();
    let mut indices = Hybrid::new(indices, width, count);
    while let Some(run) = indices.next()? {
        match run {
            Run::Same(index, count) => {
                let value = values.get(index as usize).ok_or_else(past)?;
                slots.split_off_mut(..count).unwrap_or_default().fill(*value);
            }
            Run::Packed(packed, count) => {
                let slots = slots.split_off_mut(..count).unwrap_or_default();
                for (slot, index) in slots.iter_mut().zip(packed.numbers()) {
                    *slot = *values.get(index as usize).ok_or_else(past)?;
                }
            }
        }
    }
    Ok(made)
}

fn unknown(path: &Path, what: &str, encoding: Encoding) -> FileError {
    let what = format!("its vectors' {what} are encoded as {encoding}, which is not read");
    FileError::new(FileErrorKind::Unsupported, path, what, "write it again with a newer writer, as PLAIN")
}
