//! The pages of a column, found by their headers alone, and cut into pieces of work.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::serialized_reader::SerializedPageReader;

use super::source::{Headers, MAX_PAGE_BYTES, MAX_PAGE_VALUES, Source, guarded};
use crate::error::FileError;

/// Bytes that pages which are unpacked together unpack to, or their values take, about; and how many there are at most.
const PIECE: u64 = 1 << 20;
const PAGES: usize = 1 << 10;

/// Pages one after another, of one chunk.
pub(super) struct Piece {
    group: usize,
    pages: Vec<PageLocation>,
    /// Values of all pages together.
    pub(super) values: u64,
    /// The number of the first of them in the column.
    pub(super) first: u64,
    pub(super) dictionary: Option<Bytes>,
    /// Bytes that they unpack to.
    pub(super) unpacked: u64,
    /// Bytes that they are packed in.
    packed: u64,
}

impl Piece {
    /// Bytes of memory that it takes while it is unpacked into values of `size` bytes. A dictionary is counted for each piece that has it: chunks of which
    /// each has a large one and a few values are many at a time.
    pub(super) fn cost(&self, size: u64) -> u64 {
        let dictionary = self.dictionary.as_ref().map_or(0, |bytes| bytes.len() as u64);
        self.packed + self.unpacked + self.values * size + dictionary
    }

    /// The pages, unpacked.
    pub(super) fn unpack(
        &self,
        source: &Source,
        column: usize,
    ) -> Result<impl Iterator<Item = Result<Page, ParquetError>> + use<>, ParquetError> {
        let gone = || ParquetError::General("a column chunk is gone".into());
        let chunk = source.chunk(self.group, column).ok_or_else(gone)?;
        let file = Arc::new(source.file.clone());
        let mut reader = SerializedPageReader::new(file, chunk, 0, Some(self.pages.clone()))?;
        if self.pages.first().is_some_and(|page| page.offset as u64 != chunk.byte_range().0) {
            // What stands before the first page that is asked for is taken for a dictionary.
            reader.skip_next_page()?;
        }
        Ok(reader)
    }
}

/// A page, by its header.
struct Header {
    at: PageLocation,
    metadata: PageMetadata,
    unpacked: u64,
}

/// The chunk in which the next page stands.
struct Chunk {
    reader: SerializedPageReader<Headers>,
    headers: Arc<Headers>,
    /// Where the chunk ends.
    end: u64,
    /// Values that are still to come, by its metadata.
    left: u64,
    dictionary: Option<Bytes>,
    /// A page that was found and not given.
    found: Option<Header>,
}

impl Chunk {
    fn next(&mut self) -> Result<Option<Header>, ParquetError> {
        if let Some(found) = self.found.take() {
            return Ok(Some(found));
        }
        let Some(metadata) = self.reader.peek_next_page()? else { return Ok(None) };
        let (at, unpacked) = self.headers.last();
        self.reader.skip_next_page()?;
        // Where the next one begins, this one ends.
        let end = if self.reader.peek_next_page()?.is_some() { self.headers.last().0 } else { self.end };
        let len = i32::try_from(end.saturating_sub(at)).ok().filter(|&len| len as u64 <= MAX_PAGE_BYTES);
        let len = len.ok_or_else(|| {
            let what = format!("the page at byte {at} has more than {MAX_PAGE_BYTES} bytes: write smaller pages");
            ParquetError::General(what)
        })?;
        let at = PageLocation { offset: at as i64, compressed_page_size: len, first_row_index: 0 };
        Ok(Some(Header { at, metadata, unpacked }))
    }
}

/// The pieces of a column, from the first row to the last.
pub(super) struct Pieces {
    source: Arc<Source>,
    column: usize,
    /// Values of a row, and bytes of a value.
    dim: u64,
    size: u64,
    group: usize,
    chunk: Option<Chunk>,
    /// Values in the pages before.
    first: u64,
}

impl Pieces {
    pub(super) fn new(source: Arc<Source>, column: usize, (dim, size): (u64, u64)) -> Self {
        Self { source, column, dim, size, group: 0, chunk: None, first: 0 }
    }

    /// The next piece; `None` behind the last.
    pub(super) fn next(&mut self) -> Result<Option<Piece>, FileError> {
        let source = self.source.clone();
        let damaged = |what: String| FileError::damaged(&source.path, what);
        loop {
            let chunk = match &mut self.chunk {
                Some(chunk) => chunk,
                None => match guarded(&source.path, || open(&source, self.group, self.column))? {
                    Some(chunk) => self.chunk.insert(chunk),
                    None => return Ok(None),
                },
            };
            let group = self.group;
            let mut piece = Piece {
                group,
                pages: Vec::new(),
                values: 0,
                first: self.first,
                dictionary: None,
                unpacked: 0,
                packed: 0,
            };
            while piece.unpacked.max(piece.values * self.size) < PIECE && piece.pages.len() < PAGES {
                let Some(found) = guarded(&source.path, || chunk.next())? else { break };
                if found.metadata.is_dict {
                    if !piece.pages.is_empty() {
                        chunk.found = Some(found);
                        break;
                    }
                    let pages = vec![found.at];
                    let unpacked = found.unpacked;
                    let alone = Piece { group, pages, values: 0, first: 0, dictionary: None, unpacked, packed: 0 };
                    chunk.dictionary = Some(guarded(&source.path, || dictionary(&source, self.column, &alone))?);
                    continue;
                }
                let values = found.metadata.num_levels.unwrap_or(0) as u64;
                chunk.left = chunk
                    .left
                    .checked_sub(values)
                    .ok_or_else(|| damaged("its pages have more values than their column chunk".into()))?;
                if values > MAX_PAGE_VALUES.into() {
                    let most = MAX_PAGE_VALUES;
                    let what = format!("a page has {values} values; at most {most} are read: write smaller pages");
                    return Err(damaged(what));
                }
                piece.packed += found.at.compressed_page_size as u64;
                piece.pages.push(found.at);
                piece.values += values;
                piece.unpacked += found.unpacked;
            }
            if piece.pages.is_empty() {
                if !self.first.is_multiple_of(self.dim) {
                    let row = self.first / self.dim;
                    let length = self.first % self.dim;
                    return Err(damaged(format!("row {row} has {length} values, others {}", self.dim)));
                }
                // Else the rows of the groups behind would come in their place.
                if chunk.left != 0 {
                    return Err(damaged(format!("group {group} of its rows ends {} values early", chunk.left)));
                }
                (self.chunk, self.group) = (None, self.group + 1);
                continue;
            }
            piece.dictionary = chunk.dictionary.clone();
            self.first += piece.values;
            return Ok(Some(piece));
        }
    }
}

fn open(source: &Source, group: usize, column: usize) -> Result<Option<Chunk>, ParquetError> {
    let Some(metadata) = source.chunk(group, column) else { return Ok(None) };
    let headers = Arc::new(Headers::new(source.file.clone()));
    let (begin, len) = metadata.byte_range();
    let end = begin.saturating_add(len);
    let left = u64::try_from(metadata.num_values())?;
    let reader = SerializedPageReader::new(headers.clone(), metadata, 0, None)?;
    Ok(Some(Chunk { reader, headers, end, left, dictionary: None, found: None }))
}

/// The values of a dictionary, one after another.
fn dictionary(source: &Source, column: usize, piece: &Piece) -> Result<Bytes, ParquetError> {
    match piece.unpack(source, column)?.next().transpose()? {
        Some(Page::DictionaryPage { buf, encoding: Encoding::PLAIN | Encoding::PLAIN_DICTIONARY, .. }) => Ok(buf),
        Some(page) => Err(ParquetError::General(format!("a dictionary is encoded as {}", page.encoding()))),
        None => Err(ParquetError::General("a dictionary is not there".into())),
    }
}
