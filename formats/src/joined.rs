//! Tables that are parts of tensors, or several of them: joined, seen as shorter rows, cut.

use std::ops::Range;

use crate::extent::Extent;
use crate::file_table::FileTable;
use crate::place::Place;

/// Why tables cannot become one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// There are none.
    #[error("there is no part")]
    Nothing,
    /// A part has rows of another type, or of other elements, than the first.
    #[error("tensor {part:?} has rows of {dim} × {dtype}, and {first:?} has {wanted_dim} × {wanted_dtype}")]
    Rows {
        /// The part.
        part: String,
        /// Elements of its rows.
        dim: u32,
        /// Their type.
        dtype: warprow_layout::DType,
        /// The first part.
        first: String,
        /// Elements of the first part's rows.
        wanted_dim: u32,
        /// Their type.
        wanted_dtype: warprow_layout::DType,
    },
    /// A part has more rows than the first, or fewer and is not the last.
    #[error("tensor {part:?} has {rows} rows, and {first:?} has {wanted}: only the last part may have fewer")]
    Count {
        /// The part.
        part: String,
        /// Rows of the part.
        rows: u64,
        /// The first part.
        first: String,
        /// The first part's rows.
        wanted: u64,
    },
    /// A part's rows do not stand one after another.
    #[error("the rows of tensor {part:?} do not stand one after another")]
    Place {
        /// The part.
        part: String,
    },
    /// Together they have more rows than there are numbers for.
    #[error("together they have more than 2⁶⁴ rows")]
    TooMany,
}

impl FileTable {
    /// One table, called `name`, of the rows of `parts`, tables of one file in their order: row r is row r mod n of part r / n,
    /// where n is the number of rows of each part but the last, which may have fewer.
    pub fn joined(name: &str, parts: &[&Self]) -> Result<Self, JoinError> {
        let [first, ..] = parts else { return Err(JoinError::Nothing) };
        let mut joined = Self { name: name.to_owned(), ..(*first).clone() };
        let mut rows = 0u64;
        for (index, part) in parts.iter().enumerate() {
            if (part.dtype, part.dim) != (first.dtype, first.dim) {
                return Err(JoinError::Rows {
                    part: part.name.clone(),
                    dim: part.dim,
                    dtype: part.dtype,
                    first: first.name.clone(),
                    wanted_dim: first.dim,
                    wanted_dtype: first.dtype,
                });
            }
            if part.rows > first.rows || (part.rows < first.rows && index + 1 < parts.len()) {
                let (part, first) = (*part, *first);
                let (part_name, first_name) = (part.name.clone(), first.name.clone());
                return Err(JoinError::Count {
                    part: part_name,
                    rows: part.rows,
                    first: first_name,
                    wanted: first.rows,
                });
            }
            if index > 0 {
                let appended = joined.place.append(&part.place, rows);
                appended.ok_or_else(|| JoinError::Place { part: part.name.clone() })?;
            } else if !part.place.is_flat() {
                return Err(JoinError::Place { part: part.name.clone() });
            }
            rows = rows.checked_add(part.rows).ok_or(JoinError::TooMany)?;
        }
        joined.rows = rows;
        Ok(joined)
    }

    /// A view of the bytes as rows of `dim` elements: each row becomes several. `None`: rows of the table are no whole number of those, or do
    /// not stand one after another, or have scales.
    pub fn viewed(&self, dim: u32) -> Option<Self> {
        let times = self.dim.checked_div(dim).filter(|times| times * dim == self.dim)?;
        let Place::Flat(extents) = &self.place else { return None };
        if self.dtype.is_scaled() || self.keys.is_some() {
            return None;
        }
        let times = u64::from(times);
        let rows = self.rows.checked_mul(times)?;
        let view = |extent: &Extent| Extent { first: extent.first * times, rows: extent.rows * times, ..*extent };
        let place = Place::Flat(extents.iter().map(view).collect());
        Some(Self { rows, dim, place, ..self.clone() })
    }

    /// The rows `rows` alone, which are then numbered from 0. `None`: it has not all of them, or they do not stand one after another.
    pub fn cut(&self, rows: Range<u64>) -> Option<Self> {
        if rows.start >= rows.end || rows.end > self.rows || self.keys.is_some() {
            return None;
        }
        let place = self.place.cut(&rows, self.row_bytes())?;
        Some(Self { rows: rows.end - rows.start, place, ..self.clone() })
    }
}
