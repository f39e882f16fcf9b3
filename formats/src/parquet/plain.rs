//! Vectors that stand in their pages as they are: they are read from there, in any order, by whoever asks.
//!
//! Whether they do, the headers of all pages say, which are read when somebody asks for it first: a single page that is otherwise would send
//! whoever reads in any order back to the first row again and again. Where pages and their values begin is found as far as rows are asked for; levels are
//! compared on the way, and say that no row differs.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::header::Header;
use super::hybrid::CutOff;
use super::page::Vectors;
use super::source::{MAX_PAGE_BYTES, MAX_PAGE_VALUES, Source, guarded};
use crate::error::{FileError, FileErrorKind};
use crate::input::{Input, no_memory};

/// Bytes that are read at once where pages are looked for: a header, and the levels of a usual page.
const WINDOW: usize = 16 << 10;
/// Bytes that are kept of what was read at once.
const WINDOW_KEPT: usize = 1 << 20;
/// The longest header that is read here, with statistics of two numbers.
const HEADER: usize = 512;
/// Pages that may be small; behind them all have so many values on average: else looking for them, and keeping where they begin, costs as
/// much as unpacking them.
const SMALL_PAGES: u64 = 1 << 12;
const PAGE_VALUES: u64 = 1 << 10;

/// Whether the vectors of a column stand in their pages as they are.
#[derive(Clone)]
pub(super) struct Plain(Option<Arc<Walk>>);

/// A column of which the footer says so; whether its pages do too, once somebody has asked.
struct Walk {
    source: Source,
    column: usize,
    pages_say_so: OnceLock<bool>,
}

/// What the file says of the same column is the same.
impl PartialEq for Plain {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_some() == other.0.is_some()
    }
}

impl Eq for Plain {}

impl std::fmt::Debug for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Plain").field(&self.0.as_ref().map(|walk| walk.pages_say_so.get())).finish()
    }
}

impl Plain {
    /// What the footer says of a column. No page is looked at.
    pub(super) fn of(source: &Source, column: usize) -> Self {
        let walk = || Arc::new(Walk { source: source.clone(), column, pages_say_so: OnceLock::new() });
        Self(footer_says_so(&source.metadata, column).then(walk))
    }

    /// Whether all of its pages are plain; the first who asks waits while their headers are read.
    pub(super) fn is_so(&self) -> bool {
        self.0.as_ref().is_some_and(|walk| *walk.pages_say_so.get_or_init(|| all_plain(&walk.source, walk.column)))
    }
}

/// Whether all pages of a column are plain, and not too many. What cannot be read is left to those who unpack pages: they say why.
fn all_plain(source: &Source, column: usize) -> bool {
    let mut cursor = Cursor::default();
    let mut window = Window::default();
    let mut pages = 0;
    let mut values = 0u64;
    let present = Vectors::of(source, column, 1, 1).present;
    loop {
        match cursor.next(source, (column, present), &mut window) {
            Ok(Some(page)) => (pages, values) = (pages + 1, values.saturating_add(page.header.values)),
            Ok(None) => return true,
            Err(_) => return false,
        }
        if pages > SMALL_PAGES && values / PAGE_VALUES < pages {
            return false;
        }
    }
}

/// The pages of a column, as far as they were found.
pub(crate) struct PlainPages {
    source: Source,
    column: usize,
    vectors: Vectors,
    window: Window,
    cursor: Cursor,
    /// For each page: the number of its first value, and the byte at which that begins.
    pages: Vec<(u64, u64)>,
    /// Values of all of them.
    values: u64,
}

/// Where the next page is.
#[derive(Clone, Copy, Default)]
struct Cursor {
    group: usize,
    chunk: Option<Chunk>,
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

/// A page whose header was read.
struct Page {
    header: Header,
    /// Where what is behind its header begins, and ends.
    at: u64,
    end: u64,
}

/// Why there is no page that can be read from where it stands.
enum Otherwise {
    /// The page is not encoded as plain pages are.
    NotPlain,
    /// The page cannot be read.
    Failed(FileError),
}

impl Cursor {
    /// The next page of a column whose values have the definition level `present`; `None` behind the last.
    fn next(
        &mut self,
        source: &Source,
        (column, present): (usize, u32),
        window: &mut Window,
    ) -> Result<Option<Page>, Otherwise> {
        let other = || Otherwise::NotPlain;
        let chunk = loop {
            match self.chunk {
                Some(it) if it.left > 0 => break it,
                // More pages, with values that should not be.
                Some(it) if it.at != it.end => return Err(Otherwise::NotPlain),
                Some(_) => *self = Self { group: self.group + 1, chunk: None },
                None => {
                    let Some(metadata) = source.chunk(self.group, column) else { return Ok(None) };
                    let range = guarded(&source.path, || Ok(metadata.byte_range()));
                    let (at, len) = range.map_err(|_| Otherwise::NotPlain)?;
                    let end = at.checked_add(len).ok_or_else(other)?;
                    let left = u64::try_from(metadata.num_values()).map_err(|_| Otherwise::NotPlain)?;
                    self.chunk = Some(Chunk { at, end, left });
                }
            }
        };
        let most = source.file.left(chunk.at).min(HEADER as u64) as usize;
        let start = window.get(source, chunk.at, most.max(1)).map_err(Otherwise::Failed)?;
        let header = start.get(..most).and_then(Header::read).filter(|header| header.is_plain).ok_or_else(other)?;
        let values = header.values;
        // Of newer pages the length of definition levels is told also where there are none.
        let other_levels = present == 0 && header.levels.is_some_and(|level| level.1 > 0);
        if values == 0
            || values > chunk.left.min(MAX_PAGE_VALUES.into())
            || header.page > MAX_PAGE_BYTES
            || other_levels
        {
            return Err(Otherwise::NotPlain);
        }
        let at = chunk.at + header.len as u64;
        let end = at.checked_add(header.page).filter(|end| *end <= chunk.end).ok_or_else(other)?;
        self.chunk = Some(Chunk { at: end, left: chunk.left - values, ..chunk });
        Ok(Some(Page { header, at, end }))
    }
}

/// Bytes of the file that were read last.
#[derive(Default)]
struct Window {
    at: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// The bytes from `at` on: `len` at least, and more if there are.
    fn get(&mut self, source: &Source, at: u64, len: usize) -> Result<&[u8], FileError> {
        let damaged = |what: &str| FileError::damaged(&source.path, what).at(at);
        let within = at.checked_sub(self.at).and_then(|begin| usize::try_from(begin).ok());
        let there = within.filter(|begin| self.bytes.len().checked_sub(*begin).is_some_and(|there| there >= len));
        let begin = match there {
            Some(begin) => begin,
            None => {
                let left = usize::try_from(source.file.left(at)).unwrap_or(usize::MAX);
                if left < len {
                    return Err(damaged("it is cut off"));
                }
                self.bytes.clear();
                let len = left.min(len.max(WINDOW));
                self.bytes.try_reserve_exact(len).map_err(|_| no_memory(&source.path))?;
                self.bytes.resize(len, 0);
                if let Err(error) = source.file.fill(at, &mut self.bytes) {
                    self.bytes.clear();
                    return Err(match error.kind() {
                        io::ErrorKind::UnexpectedEof => damaged("the file became shorter while it was read"),
                        _ => FileError::io(&source.path, "cannot be read", error).at(at),
                    });
                }
                self.at = at;
                0
            }
        };
        Ok(self.bytes.get(begin..).unwrap_or_default())
    }

    /// Lets go of what a page of unusual size made it read at once.
    fn shrink(&mut self) {
        if self.bytes.capacity() > WINDOW_KEPT {
            self.bytes = Vec::new();
        }
    }
}

impl PlainPages {
    /// The pages of a column of vectors of `dim` values of `size` bytes, which is plain.
    pub(super) fn new(source: Source, column: usize, dim: u64, size: usize) -> Self {
        let vectors = Vectors::of(&source, column, dim, size);
        let window = Window::default();
        let cursor = Cursor::default();
        Self { source, column, vectors, window, cursor, pages: Vec::new(), values: 0 }
    }

    /// Where the rows from `first` on stand that have `bytes` bytes: places and lengths.
    pub(crate) fn places(&mut self, first: u64, bytes: usize) -> Result<Vec<(u64, usize)>, FileError> {
        let size = self.vectors.size as u64;
        let begin = first.checked_mul(self.vectors.dim);
        let end = begin.and_then(|begin| begin.checked_add(bytes as u64 / size));
        let past = || FileError::damaged(&self.source.path, "a row past the last was asked for");
        let (begin, end) = begin.zip(end).ok_or_else(past)?;
        while self.values < end {
            let found = self.find_next();
            self.window.shrink();
            found?;
        }
        let page = self.pages.partition_point(|page| page.0 <= begin).saturating_sub(1);
        let pages = self.pages.get(page..).unwrap_or_default();
        let ends = pages.iter().skip(1).map(|page| page.0).chain([self.values]);
        let mut at = begin;
        let mut places = Vec::new();
        for (&(first, place), page_end) in pages.iter().zip(ends) {
            let till = page_end.min(end);
            if at >= till {
                break;
            }
            places.push((place + (at - first) * size, ((till - at) * size) as usize));
            at = till;
        }
        Ok(places)
    }

    /// Finds the next page, or changes nothing.
    fn find_next(&mut self) -> Result<(), FileError> {
        let mut cursor = self.cursor;
        let page = match cursor.next(&self.source, (self.column, self.vectors.present), &mut self.window) {
            Ok(Some(page)) => page,
            Err(Otherwise::Failed(error)) => return Err(error),
            // It was plain when all headers were read.
            Ok(None) | Err(Otherwise::NotPlain) => {
                let what = format!("was changed while it was read: page {} is another", self.pages.len());
                let remedy = "let nobody write to it meanwhile, and try again";
                let error = FileError::new(FileErrorKind::Changed, &self.source.path, what, remedy);
                return Err(match self.cursor.chunk {
                    Some(chunk) => error.at(chunk.at),
                    None => error,
                });
            }
        };
        let place = self.values_of(&page)?;
        self.pages.try_reserve(1).map_err(|_| no_memory(&self.source.path))?;
        self.pages.push((self.values, place));
        self.values += page.header.values;
        self.cursor = cursor;
        Ok(())
    }

    /// Where the values of the next page begin, whose levels are compared.
    fn values_of(&mut self, page: &Page) -> Result<u64, FileError> {
        let Self { source, window, vectors, .. } = self;
        let damaged = |what: &str| FileError::damaged(&source.path, what);
        let cut_off = || damaged("a page ends before its levels do");
        let Page { header, mut at, end } = *page;
        // Where the levels stand that are next.
        let mut next = |len: Option<u64>| {
            let len = match len {
                Some(len) => len,
                // Of older pages, the length stands in front.
                None if end - at < 4 => return Err(cut_off()),
                None => {
                    let len = window.get(source, at, 4)?.first_chunk().copied().ok_or_else(cut_off)?;
                    at += 4;
                    u32::from_le_bytes(len).into()
                }
            };
            let begin = at;
            at = at.checked_add(len).filter(|at| *at <= end).ok_or_else(cut_off)?;
            Ok((begin, len as usize))
        };
        let repetition = next(header.levels.map(|level| level.0))?;
        let definition = match vectors.present {
            0 => (repetition.0 + repetition.1 as u64, 0),
            _ => next(header.levels.map(|level| level.1))?,
        };
        // Both at once: they are neighbours.
        let begin = repetition.0;
        let len = (definition.0 - repetition.0) as usize + definition.1;
        let levels = window.get(source, begin, len)?;
        let repetition = levels.get(..repetition.1);
        let definition = levels.get(len - definition.1..len);
        let levels = repetition.zip(definition).ok_or_else(cut_off)?;
        let values = header.values;
        vectors.check(&source.path, levels, values as usize, self.values).map_err(|CutOff| cut_off())??;
        if values * vectors.size as u64 > end - at {
            return Err(damaged("a page ends before its values do"));
        }
        Ok(at)
    }
}

/// Fills `rows` with what stands at `places`.
pub(crate) fn fill(inputs: &[Arc<Input>], places: &[(u64, usize)], mut rows: &mut [u8]) -> Result<(), FileError> {
    let input = inputs.first().ok_or_else(|| FileError::damaged(Path::new(""), "no file is open"))?;
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
    use crate::place::Place;

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
            if !is_plain {
                continue;
            }
            let Place::Parquet(columns) = &table.place else { panic!("{:?}", table.place) };
            let mut pages = columns.plain_pages(table.dim, table.dtype);
            let bytes = table.rows as usize * table.row_bytes();
            let places = pages.places(0, bytes).unwrap();
            assert_eq!(places.iter().map(|place| place.1).sum::<usize>(), bytes, "{name}");
            assert!(pages.places(table.rows, table.row_bytes()).is_err(), "{name}: behind the last");
        }
    }
}
