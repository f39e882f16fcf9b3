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
    /// The type of the keys; `None`: there are no keys, and row i is that of id i.
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

    /// Whether rows can only be read from the first to the last, because they are compressed, or stand in pages that
    /// have to be unpacked. Rows may be asked for in another order too, but each step back reads from the beginning.
    /// The first call for a Parquet file whose footer names neither compression nor another encoding than plain reads
    /// the headers of all pages.
    pub fn is_sequential(&self) -> bool {
        match &self.place {
            Place::Flat(_) | Place::Scaled(_) | Place::Stored(..) => false,
            Place::Deflated(_) => true,
            #[cfg(feature = "parquet")]
            Place::Parquet(columns) => !columns.are_plain(),
        }
    }

    /// Whether rows stand in pages, with headers between them. The pages have to be found before rows can be read from
    /// where they stand.
    pub fn is_in_pages(&self) -> bool {
        #[cfg(feature = "parquet")]
        return matches!(self.place, Place::Parquet(_));
        #[cfg(not(feature = "parquet"))]
        false
    }

    /// A table whose rows are one array, which begins at byte `at` of the only input.
    pub(crate) fn flat(name: impl Into<String>, rows: u64, dim: u32, dtype: DType, at: u64) -> Self {
        let place = Place::Flat(vec![Extent { input: 0, at, first: 0, rows }]);
        Self { name: name.into(), rows, dim, dtype, keys: None, place, key_place: KeyPlace::Nowhere }
    }
}

/// The name of a file that is one table: without its ending.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
