//! The columns of a table in a Parquet file.

use parquet::data_type::{Int32Type, Int64Type};
use warprow_layout::DType;

use super::plain::{Plain, PlainPages};
use super::source::Source;
use super::values::{Numbers, Values};
use super::vectors::VectorColumn;
use crate::key_type::KeyType;
use crate::streams::{KeyStream, RowStream};

/// Where a table stands in a file.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    /// The file, whose footer was read once for all tables.
    pub(super) source: Source,
    /// The leaf column of its vectors.
    pub(super) vectors: usize,
    /// The leaf column of its ids.
    pub(super) keys: Option<usize>,
    /// Whether its vectors stand in their pages as they are.
    pub(super) plain: Plain,
}

/// Columns of one file are those of one footer.
impl PartialEq for Columns {
    fn eq(&self, other: &Self) -> bool {
        (self.vectors, self.keys, &self.plain) == (other.vectors, other.keys, &other.plain)
    }
}

impl Eq for Columns {}

/// Bytes of an element: floats or halves.
fn size_of(dtype: DType) -> usize {
    if dtype == DType::F16 { 2 } else { 4 }
}

impl Columns {
    /// The rows, from the first to the last, as vectors of `dim` elements of `dtype`.
    pub(crate) fn reader(&self, dim: u32, dtype: DType) -> Box<dyn RowStream> {
        Box::new(VectorColumn::new(self.source.clone(), self.vectors, dim.into(), size_of(dtype)))
    }

    /// Whether its rows can be read in any order: who asks first waits while the headers of all pages are read.
    pub(crate) fn are_plain(&self) -> bool {
        self.plain.is_so()
    }

    /// Where the rows stand, as vectors of `dim` elements of `dtype`, if they stand in their pages as they are.
    pub(crate) fn plain_pages(&self, dim: u32, dtype: DType) -> PlainPages {
        PlainPages::new(self.source.clone(), self.vectors, dim.into(), size_of(dtype))
    }

    /// The ids, which are of the type `width`, from the first to the last; `None` if there is no column of them.
    pub(crate) fn key_reader(&self, width: KeyType) -> Option<Box<dyn KeyStream>> {
        let column = self.keys?;
        let source = self.source.clone();
        Some(match width {
            KeyType::I64 | KeyType::U64 => {
                Box::new(Numbers { values: Values::<Int64Type>::new(source, column), to_bits: |key| *key as u64 })
            }
            KeyType::U32 => {
                let to_bits = |key: &i32| u64::from(*key as u32);
                Box::new(Numbers { values: Values::<Int32Type>::new(source, column), to_bits })
            }
            KeyType::I32 => {
                let to_bits = |key: &i32| i64::from(*key) as u64;
                Box::new(Numbers { values: Values::<Int32Type>::new(source, column), to_bits })
            }
        })
    }
}
