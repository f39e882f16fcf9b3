//! A table in a file: name, shape, types, and where its rows and keys stand.

use std::path::Path;

use warprow_layout::DType;

use crate::extent::Extent;
use crate::key_type::KeyType;
use crate::place::{KeyPlace, Place};

/// A table in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTable {
    /// The table's name in the file; where a file is one table, the file's name without the ending.
    pub name: String,
    /// Rows; at least one.
    pub rows: u64,
    /// Elements in a row; at least one.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// The type of the keys that say which row is whose; `None`: row i is that of id i.
    pub keys: Option<KeyType>,
    /// Where the rows stand.
    pub(crate) place: Place,
    /// Where the keys stand.
    pub(crate) key_place: KeyPlace,
}

impl FileTable {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.dim).unwrap_or(0) as usize
    }

    /// Whether its rows can only be read from the first to the last: they are compressed, or stand in pages that have to be unpacked. What asks
    /// for others gets them too, at the cost of reading from the beginning. Of a Parquet file that is neither compressed nor in another encoding by its
    /// footer, the first call reads the headers of all pages.
    pub fn is_sequential(&self) -> bool {
        match &self.place {
            Place::Flat(_) | Place::Stored(..) => false,
            Place::Deflated(_) => true,
            #[cfg(feature = "parquet")]
            Place::Parquet(columns) => !columns.are_plain(),
        }
    }

    /// Whether its rows stand in pages, between which there is something else: where they do is to be found first.
    pub fn is_in_pages(&self) -> bool {
        #[cfg(feature = "parquet")]
        return matches!(self.place, Place::Parquet(_));
        #[cfg(not(feature = "parquet"))]
        false
    }

    /// A table of an array that stands at `at` of the only input.
    pub(crate) fn flat(name: impl Into<String>, rows: u64, dim: u32, dtype: DType, at: u64) -> Self {
        let place = Place::Flat(vec![Extent { input: 0, at, first: 0, rows }]);
        Self { name: name.into(), rows, dim, dtype, keys: None, place, key_place: KeyPlace::Nowhere }
    }
}

/// The name of a file that is one table: without its ending.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
