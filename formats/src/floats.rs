//! Columns of floating-point numbers in Parquet files: labels and dense features of data sets.

use parquet::basic::Type;
use parquet::data_type::{DataType, DoubleType, FloatType};
use parquet::schema::types::ColumnDescriptor;

use crate::error::{FileError, FileErrorKind};
use crate::parquet::{Source, Values};

/// A column that has a floating-point number in each row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FloatColumn {
    /// The name of the column.
    pub name: String,
    leaf: usize,
    is_double: bool,
    /// The definition level of a number.
    present: i16,
}

impl FloatColumn {
    /// Column number `leaf`, if it is one of floating-point numbers.
    pub(crate) fn of(leaf: usize, column: &ColumnDescriptor) -> Option<Self> {
        let is_double = match (column.physical_type(), column.max_rep_level()) {
            (Type::FLOAT, 0) => false,
            (Type::DOUBLE, 0) => true,
            _ => return None,
        };
        let name = column.path().parts().first().cloned().unwrap_or_default();
        Some(Self { name, leaf, is_double, present: column.max_def_level() })
    }

    pub(crate) fn reader(&self, source: Source) -> FloatReader {
        let column = self.clone();
        FloatReader {
            rows: match self.is_double {
                false => Box::new(Column { values: Values::<FloatType>::new(source, self.leaf), column, to: |it| *it }),
                true => {
                    let to = |it: &f64| *it as f32;
                    Box::new(Column { values: Values::<DoubleType>::new(source, self.leaf), column, to })
                }
            },
        }
    }
}

/// The numbers of a column, row by row, as `f32`.
pub struct FloatReader {
    rows: Box<dyn Floats>,
}

impl FloatReader {
    /// Appends the numbers of the next rows, at least one row and at most `most`, to `floats`. Returns how many rows; 0 behind the last.
    pub fn next(&mut self, most: usize, floats: &mut Vec<f32>) -> Result<usize, FileError> {
        self.rows.next(most, floats)
    }
}

impl std::fmt::Debug for FloatReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FloatReader").finish_non_exhaustive()
    }
}

trait Floats: Send {
    fn next(&mut self, most: usize, floats: &mut Vec<f32>) -> Result<usize, FileError>;
}

struct Column<T: DataType> {
    values: Values<T>,
    column: FloatColumn,
    to: fn(&T::T) -> f32,
}

impl<T: DataType> Floats for Column<T>
where
    parquet::column::reader::ColumnReaderImpl<T>: Send,
{
    fn next(&mut self, most: usize, floats: &mut Vec<f32>) -> Result<usize, FileError> {
        let Some((rows, present, _)) = self.values.read(most, most)? else { return Ok(0) };
        let Values { values, definition, row, .. } = &mut self.values;
        let FloatColumn { name, present: whole, .. } = &self.column;
        if present != rows || values.len() != rows {
            let missing = definition.iter().position(|level| level != whole).unwrap_or(0) as u64;
            let what = format!("column {name}: row {} lacks a value", *row + missing);
            let remedy = "leave out or fill in such rows";
            return Err(FileError::new(FileErrorKind::Unsupported, self.values.path(), what, remedy));
        }
        *row += rows as u64;
        floats.extend(values.iter().map(self.to));
        Ok(rows)
    }
}
