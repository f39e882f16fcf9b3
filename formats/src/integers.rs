//! Columns of whole numbers in Parquet files, or of lists of them: what traces of look-ups are made of.

use std::path::Path;

use parquet::basic::Repetition;
use parquet::data_type::{DataType, Int32Type, Int64Type};

use crate::error::{FileError, FileErrorKind};
use crate::floats::{FloatColumn, FloatReader};
use crate::input::Input;
use crate::key_type::KeyType;
use crate::parquet::{Source, Values, whole};

/// A Parquet file, for its columns of whole numbers.
#[derive(Debug)]
pub struct IntegerFile {
    input: Input,
    source: Source,
    rows: u64,
    columns: Vec<IntegerColumn>,
    floats: Vec<FloatColumn>,
    others: Vec<String>,
}

/// A column of whole numbers, or of lists of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntegerColumn {
    /// The name of the column.
    pub name: String,
    /// The type of the numbers.
    pub keys: KeyType,
    /// Whether rows have lists, rather than one number each.
    pub is_list: bool,
    leaf: usize,
    /// The definition levels of an empty list and of a number.
    empty: i16,
    present: i16,
}

/// The numbers of a column, row by row.
pub struct IntegerReader {
    rows: Box<dyn Lists>,
}

/// Numbers that the rows read at once may have.
const MOST: usize = 1 << 24;

impl IntegerFile {
    /// Opens it and reads its footer.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let input = Input::open(path)?;
        let source = Source::open(&input)?;
        let of_file = source.metadata.clone();
        let metadata = of_file.file_metadata();
        let rows = u64::try_from(metadata.num_rows()).map_err(|_| input.damaged("it has a negative number of rows"))?;
        let mut columns = Vec::new();
        let mut floats = Vec::new();
        let mut others = Vec::new();
        for (leaf, column) in metadata.schema_descr().columns().iter().enumerate() {
            let name = column.path().parts().first().cloned().unwrap_or_default();
            let (Some(keys), depth @ 0..=1) = (whole(column), column.max_rep_level()) else {
                floats.extend(FloatColumn::of(leaf, column));
                others.push(name);
                continue;
            };
            let info = column.self_type().get_basic_info();
            let optional = i16::from(info.has_repetition() && info.repetition() == Repetition::OPTIONAL);
            let present = column.max_def_level();
            columns.push(IntegerColumn {
                name,
                keys,
                is_list: depth == 1,
                leaf,
                empty: present - optional - 1,
                present,
            });
        }
        Ok(Self { input, source, rows, columns, floats, others })
    }

    /// Rows of the file.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The columns of whole numbers.
    pub fn columns(&self) -> &[IntegerColumn] {
        &self.columns
    }

    /// The columns of floating-point numbers.
    pub fn floats(&self) -> &[FloatColumn] {
        &self.floats
    }

    /// The names of all columns that have no whole numbers.
    pub fn others(&self) -> &[String] {
        &self.others
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.input.len
    }

    /// The numbers of `column`, one of this file's columns of floating-point numbers.
    pub fn read_floats(&self, column: &FloatColumn) -> Result<FloatReader, FileError> {
        Ok(column.reader(self.source.clone()))
    }

    /// The numbers of `column`, one of this file's.
    pub fn read(&self, column: &IntegerColumn) -> Result<IntegerReader, FileError> {
        let source = self.source.clone();
        let leaf = column.leaf;
        let column = column.clone();
        Ok(IntegerReader {
            rows: match column.keys {
                KeyType::I64 | KeyType::U64 => Box::new(Column {
                    values: Values::<Int64Type>::new(source, leaf),
                    column,
                    to_bits: |key| *key as u64,
                }),
                KeyType::U32 => {
                    let to_bits = |key: &i32| u64::from(*key as u32);
                    Box::new(Column { values: Values::<Int32Type>::new(source, leaf), column, to_bits })
                }
                KeyType::I32 => {
                    let to_bits = |key: &i32| i64::from(*key) as u64;
                    Box::new(Column { values: Values::<Int32Type>::new(source, leaf), column, to_bits })
                }
            },
        })
    }
}

impl IntegerReader {
    /// Appends the numbers of the next rows, at least one row and at most `most`, to `keys`, and to `lengths` how many each row
    /// has. Returns how many rows; 0 behind the last.
    pub fn next(&mut self, most: usize, keys: &mut Vec<u64>, lengths: &mut Vec<u32>) -> Result<usize, FileError> {
        self.rows.next(most, keys, lengths)
    }
}

impl std::fmt::Debug for IntegerReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IntegerReader").finish_non_exhaustive()
    }
}

trait Lists: Send {
    fn next(&mut self, most: usize, keys: &mut Vec<u64>, lengths: &mut Vec<u32>) -> Result<usize, FileError>;
}

struct Column<T: DataType> {
    values: Values<T>,
    column: IntegerColumn,
    to_bits: fn(&T::T) -> u64,
}

impl<T: DataType> Lists for Column<T>
where
    parquet::column::reader::ColumnReaderImpl<T>: Send,
{
    fn next(&mut self, most: usize, keys: &mut Vec<u64>, lengths: &mut Vec<u32>) -> Result<usize, FileError> {
        let Some((rows, present, levels)) = self.values.read(most, MOST)? else { return Ok(0) };
        let path = self.values.path().to_owned();
        let Values { values, repetition, definition, row, .. } = &mut self.values;
        let IntegerColumn { name, is_list, empty, present: whole, .. } = &self.column;
        let refuse = |row: u64, what: &str| {
            let what = format!("column {name}: row {row} {what}");
            FileError::new(FileErrorKind::Unsupported, &path, what, "leave out or fill in such rows")
        };
        let first = lengths.len();
        // The usual column: a number in each row.
        if !is_list && present == rows && values.len() == rows {
            lengths.resize(first + rows, 1);
            keys.extend(values.iter().map(self.to_bits));
            *row += rows as u64;
            return Ok(rows);
        }
        for level in 0..levels {
            let definition = definition.get(level).copied().unwrap_or(*whole);
            let begins = repetition.get(level).is_none_or(|&level| level == 0);
            let at = *row + (lengths.len() - first) as u64;
            if begins {
                lengths.push(0);
            } else if definition < *whole {
                return Err(refuse(at.saturating_sub(1), "lacks a value in its list"));
            }
            if definition == *whole {
                let length = lengths.last_mut().ok_or_else(|| refuse(at, "goes on before it begins"))?;
                *length += 1;
            } else if !*is_list || definition != *empty {
                return Err(refuse(at, "lacks a value"));
            }
        }
        if lengths.len() - first != rows || values.len() != present {
            return Err(refuse(*row, "has not as many values as it says"));
        }
        *row += rows as u64;
        keys.extend(values.iter().map(self.to_bits));
        Ok(rows)
    }
}
