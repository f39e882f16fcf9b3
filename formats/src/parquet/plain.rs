//! Vectors that stand in their pages as they are: they are read from there, in any order, by whoever asks. Where pages and their
//! values begin is found as far as rows are asked for; levels are compared on the way, and say that no row differs.
//!
//! What is otherwise than it should be is not told here, but by those who unpack pages one by one: they are asked instead.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::MAX_PAGE_VALUES;
use super::header::Header;
use super::page::Vectors;
use super::source::{MAX_PAGE_BYTES, Positioned, Source, guarded};
use crate::error::FormatError;
use crate::input::Input;

/// Bytes that are read at once where pages are looked for: a header, and the levels of a usual page.
const WINDOW: usize = 16 << 10;
/// The longest header that is read here, with statistics of two numbers.
const HEADER: usize = 512;

/// The pages of a column, as far as they were found.
pub(crate) struct PlainPages {
    source: Source,
    column: usize,
    vectors: Vectors,
    window: Window,
    group: usize,
    chunk: Option<Chunk>,
    /// Of each page the number of its first value, and the byte at which that begins.
    pages: Vec<(u64, u64)>,
    /// Values of all of them.
    values: u64,
}

/// A chunk some pages of which were found.
#[derive(Clone, Copy)]
struct Chunk {
    /// Where the next page begins, and the chunk ends.
    at: u64,
    end: u64,
    /// Values that are still to come.
    left: u64,
}

/// Why a page is not read from where it stands.
enum Otherwise {
    /// It is not as pages are which can be.
    Other,
    /// A row of it differs.
    Row(FormatError),
}

/// Bytes of the file that were read last.
#[derive(Default)]
struct Window {
    at: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// The bytes from `at` on: `len` at least, and more if there are.
    fn get(&mut self, file: &Positioned, at: u64, len: usize) -> Option<&[u8]> {
        let within = at.checked_sub(self.at).and_then(|begin| usize::try_from(begin).ok());
        let there = within.filter(|begin| self.bytes.len().checked_sub(*begin).is_some_and(|there| there >= len));
        let begin = match there {
            Some(begin) => begin,
            None => {
                let len = usize::try_from(file.left(at)).unwrap_or(usize::MAX).min(len.max(WINDOW));
                self.bytes.clear();
                self.bytes.try_reserve(len).ok()?;
                self.bytes.resize(len, 0);
                file.fill(at, &mut self.bytes).ok()?;
                self.at = at;
                0
            }
        };
        self.bytes.get(begin..).filter(|bytes| bytes.len() >= len)
    }
}

impl PlainPages {
    /// Those of a column of vectors of `dim` values of `size` bytes.
    pub(super) fn new(source: Source, column: usize, dim: u64, size: usize) -> Self {
        let vectors = Vectors::of(&source, column, dim, size);
        let window = Window::default();
        Self { source, column, vectors, window, group: 0, chunk: None, pages: Vec::new(), values: 0 }
    }

    /// Whether a column's vectors seem to stand as they are: what the footer says of all of it, and its first page.
    pub(super) fn seem_plain(source: Source, column: usize, dim: u64, size: usize) -> bool {
        footer_says_so(&source.metadata, column) && Self::new(source, column, dim, size).find_next().is_ok()
    }

    /// Where the rows from `first` on stand that have `bytes` bytes: places and lengths. `None` if they, or some before, stand otherwise.
    pub(crate) fn places(&mut self, first: u64, bytes: usize) -> Result<Option<Vec<(u64, usize)>>, FormatError> {
        let size = self.vectors.size as u64;
        let Some(begin) = first.checked_mul(self.vectors.dim) else { return Ok(None) };
        let Some(end) = begin.checked_add(bytes as u64 / size) else { return Ok(None) };
        while self.values < end {
            match self.find_next() {
                Ok(()) => {}
                Err(Otherwise::Other) => return Ok(None),
                Err(Otherwise::Row(error)) => return Err(error),
            }
        }
        let page = self.pages.partition_point(|page| page.0 <= begin).saturating_sub(1);
        let pages = self.pages.get(page..).unwrap_or_default();
        let ends = pages.iter().skip(1).map(|page| page.0).chain([self.values]);
        let (mut at, mut places) = (begin, Vec::new());
        for (&(first, place), page_end) in pages.iter().zip(ends) {
            let till = page_end.min(end);
            if at >= till {
                break;
            }
            places.push((place + (at - first) * size, ((till - at) * size) as usize));
            at = till;
        }
        Ok(Some(places))
    }

    /// Finds the next page, or changes nothing.
    fn find_next(&mut self) -> Result<(), Otherwise> {
        let (mut group, mut chunk) = (self.group, self.chunk);
        let chunk = loop {
            match chunk {
                Some(it) if it.left > 0 => break it,
                // More pages, with values that should not be.
                Some(it) if it.at != it.end => return Err(Otherwise::Other),
                Some(_) => (group, chunk) = (group + 1, None),
                None => {
                    let metadata = self.source.chunk(group, self.column).ok_or(Otherwise::Other)?;
                    let range = guarded(&self.source.path, || Ok(metadata.byte_range()));
                    let (at, len) = range.map_err(|_| Otherwise::Other)?;
                    let end = at.checked_add(len).ok_or(Otherwise::Other)?;
                    let left = u64::try_from(metadata.num_values()).map_err(|_| Otherwise::Other)?;
                    chunk = Some(Chunk { at, end, left });
                }
            }
        };
        let (place, next) = self.look_at(chunk)?;
        self.pages.try_reserve(1).map_err(|_| Otherwise::Other)?;
        self.pages.push((self.values, place));
        self.values += chunk.left - next.left;
        (self.group, self.chunk) = (group, Some(next));
        Ok(())
    }

    /// Where the values of the next page of a chunk begin, and what of the chunk is behind them.
    fn look_at(&mut self, chunk: Chunk) -> Result<(u64, Chunk), Otherwise> {
        let (file, other) = (&self.source.file, || Otherwise::Other);
        let most = file.left(chunk.at).min(HEADER as u64) as usize;
        let start = self.window.get(file, chunk.at, most.max(1)).ok_or_else(other)?;
        let header = Header::read(start).filter(|header| header.is_plain).ok_or_else(other)?;
        let values = header.values;
        if values == 0 || values > chunk.left.min(MAX_PAGE_VALUES.into()) || header.page > MAX_PAGE_BYTES {
            return Err(Otherwise::Other);
        }
        let mut at = chunk.at + header.len as u64;
        let end = at.checked_add(header.page).filter(|end| *end <= chunk.end).ok_or_else(other)?;
        // Where the levels stand that are next.
        let mut next = |window: &mut Window, len: Option<u64>| {
            let len = match len {
                Some(len) => len,
                None => {
                    let len = window.get(file, at, 4).and_then(|bytes| bytes.first_chunk().copied())?;
                    at += 4;
                    u32::from_le_bytes(len).into()
                }
            };
            let begin = at;
            at = at.checked_add(len).filter(|at| *at <= end)?;
            Some((begin, usize::try_from(len).ok()?))
        };
        let repetition = next(&mut self.window, header.levels.map(|it| it.0)).ok_or_else(other)?;
        let definition = match (self.vectors.present, header.levels) {
            // Of newer pages the length is told also where there are none.
            (0, None | Some((_, 0))) => (at, 0),
            (0, Some(_)) => return Err(Otherwise::Other),
            (_, levels) => next(&mut self.window, levels.map(|it| it.1)).ok_or_else(other)?,
        };
        // Both at once: they are neighbours.
        let (begin, len) = (repetition.0, (definition.0 - repetition.0) as usize + definition.1);
        let levels = self.window.get(file, begin, len).ok_or_else(other)?;
        let (repetition, definition) = (levels.get(..repetition.1), levels.get(len - definition.1..len));
        let (repetition, definition) = repetition.zip(definition).ok_or_else(other)?;
        let checked = self.vectors.check(&self.source.path, (repetition, definition), values as usize, self.values);
        match checked {
            Ok(Ok(())) => {}
            Ok(Err(row)) => return Err(Otherwise::Row(row)),
            Err(_) => return Err(Otherwise::Other),
        }
        if values * self.vectors.size as u64 > end - at {
            return Err(Otherwise::Other);
        }
        Ok((at, Chunk { at: end, left: chunk.left - values, ..chunk }))
    }
}

/// Fills `rows` with what stands at `places`.
pub(crate) fn fill(inputs: &[Arc<Input>], places: &[(u64, usize)], mut rows: &mut [u8]) -> Result<(), FormatError> {
    let input = inputs.first().ok_or_else(|| FormatError::damaged(Path::new(""), "no file is open"))?;
    for &(at, len) in places {
        let here = rows.split_off_mut(..len.min(rows.len())).unwrap_or_default();
        input.read(at, here)?;
    }
    Ok(())
}

fn footer_says_so(metadata: &ParquetMetaData, column: usize) -> bool {
    let plain = |chunk: &ColumnChunkMetaData| {
        let known = |encoding| matches!(encoding, Encoding::PLAIN | Encoding::RLE);
        chunk.compression() == Compression::UNCOMPRESSED
            && chunk.dictionary_page_offset().is_none()
            && chunk.encodings().all(known)
    };
    metadata.row_groups().iter().all(|group| group.columns().get(column).is_some_and(plain))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::TableFile;
    use crate::table::Place;

    /// Files that pyarrow wrote: what is plain in them is found as such to the last row, over the ends of groups and pages.
    #[test]
    fn plain_columns_are_read_from_where_they_stand() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        for (name, is_plain) in
            [("plain2", true), ("plain216", true), ("words2", false), ("split", false), ("flipped_crc", false)]
        {
            let file = TableFile::open(&golden.join(name).with_extension("parquet")).unwrap();
            let table = &file.tables[0];
            assert_eq!(table.is_sequential(), !is_plain, "{name}");
            let Place::Parquet(columns) = &table.place else { panic!("{:?}", table.place) };
            let mut pages = columns.plain(&file.inputs, table).unwrap();
            let bytes = table.rows as usize * table.row_bytes();
            let places = pages.places(0, bytes).unwrap();
            assert_eq!(places.as_ref().map(|it| it.iter().map(|it| it.1).sum()), is_plain.then_some(bytes), "{name}");
            assert_eq!(pages.places(table.rows, table.row_bytes()).unwrap(), None, "{name}: behind the last");
        }
    }
}
