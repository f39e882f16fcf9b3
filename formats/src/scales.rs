//! Which tensors have the scales of a table, and whether they can.

use warprow_layout::DType;

use crate::error::FileError;
use crate::extent::Extent;
use crate::file_table::FileTable;
use crate::place::Place;
use crate::safetensors::Tensor;
use crate::scaled_place::{Part, Scaled, Source, number, rounded};
use crate::table_file::TableFile;

/// Which tensors have the scales of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleTensors<'a> {
    /// A scale for each row, for each part of a row, or for all rows.
    pub scales: &'a str,
    /// A number for all rows beside scales for parts of rows, if rows of the type have one.
    pub global: Option<&'a str>,
    /// Whether the global number divides, rather than multiplies.
    pub divides: bool,
    /// The type to which a scale for a whole row is rounded first: f32, f16 or bf16.
    pub round: DType,
}

/// Why a tensor cannot be the scales of a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// There is no such tensor.
    #[error("there is no tensor {tensor:?}: fetch the file that has it, or name another")]
    Missing {
        /// The tensor.
        tensor: String,
    },
    /// Several tensors have a name like that.
    #[error("tensors {one:?} and {other:?} match {pattern:?}: say more of the name")]
    Several {
        /// What was given.
        pattern: String,
        /// A tensor.
        one: String,
        /// Another.
        other: String,
    },
    /// No rule takes codes and scales of these types and shapes.
    #[error("its scales {scales:?} are {scale_dtype} {scale_shape:?}; {wanted}")]
    Unfit {
        /// The tensor of scales.
        scales: String,
        /// The type of the tensor of scales, as safetensors calls it.
        scale_dtype: String,
        /// The shape of the tensor of scales.
        scale_shape: Vec<u64>,
        /// What its rows would need.
        wanted: String,
    },
    /// Rows of 4-bit floats need a global scale as well.
    #[error("its scales {scales:?} are those of 4-bit floats, which have a global scale too: name its tensor")]
    NoGlobal {
        /// The tensor of scales.
        scales: String,
    },
    /// Nobody says which way a global scale works.
    #[error(
        "its global scale {global:?} multiplies in some files and divides in others: say which, global={global} or global=1/{global}"
    )]
    Direction {
        /// The tensor of the global scale.
        global: String,
    },
    /// There are tensors that seem to be its scales, and no rule says how they are.
    #[error(
        "{near:?} beside it seems to have scales: name it (scales=), or say that there are none (scales= and nothing)"
    )]
    Unknown {
        /// The tensor.
        near: String,
    },
    /// A global scale is given, and its rows have no use for one.
    #[error("a global scale {global:?} is given, and scales {scales:?} are whole without one: leave it out")]
    UselessGlobal {
        /// The tensor of the global scale.
        global: String,
        /// The tensor of scales.
        scales: String,
    },
    /// Rows of that type have no scales in another tensor.
    #[error(
        "its rows are of type {dtype}: rows of F8_E4M3 and of U8 (pairs of 4-bit floats) can have scales in another tensor"
    )]
    Codes {
        /// The type of the rows.
        dtype: DType,
    },
    /// The number of a scale for all rows is none to multiply by.
    #[error("its scale {tensor:?} is {value}: fetch the file again")]
    Value {
        /// The tensor.
        tensor: String,
        /// The number.
        value: String,
    },
    /// The file cannot be read.
    #[error("{0}")]
    Read(String),
}

impl From<FileError> for ScaleError {
    fn from(error: FileError) -> Self {
        Self::Read(error.to_string())
    }
}

/// What safetensors calls a number's type, if scales are of it.
fn number_type(dtype: &str) -> Option<DType> {
    match dtype {
        "F32" => Some(DType::F32),
        "F16" => Some(DType::F16),
        "BF16" => Some(DType::BF16),
        _ => None,
    }
}

/// Whether a tensor is one number.
fn is_one(tensor: &Tensor) -> bool {
    tensor.shape.iter().all(|&dim| dim == 1)
}

impl TableFile {
    /// The tensor of that name in a safetensors file, table or not.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.placed(name).map(|(_, tensor)| tensor)
    }

    /// The names of all tensors of a safetensors file, tables or not.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.values().map(|(_, tensor)| &*tensor.name)
    }

    fn placed(&self, name: &str) -> Option<(usize, &Tensor)> {
        self.tensors.get(name).map(|(input, tensor)| (*input, tensor))
    }

    /// The rows of `codes`, a table of this file, with their scales behind each. By their types and shapes they are
    /// [`DType::Mxfp8`], [`DType::F8E4M3S`] or [`DType::Nvfp4`].
    pub fn scaled(&self, codes: &FileTable, tensors: &ScaleTensors<'_>) -> Result<FileTable, ScaleError> {
        let &ScaleTensors { scales, global, divides, round } = tensors;
        let missing = |name: &str| ScaleError::Missing { tensor: name.to_owned() };
        let (input, tensor) = self.placed(scales).ok_or_else(|| missing(scales))?;
        let Place::Flat(extents) = &codes.place else { return Err(ScaleError::Codes { dtype: codes.dtype }) };
        let (rows, code_bytes) = (codes.rows, codes.row_bytes());
        let unfit = |wanted: String| ScaleError::Unfit {
            scales: scales.to_owned(),
            scale_dtype: tensor.dtype.clone(),
            scale_shape: tensor.shape.clone(),
            wanted,
        };
        let from = || Source::File(vec![Extent { input, at: tensor.at, first: 0, rows }]);
        let is_rows_of = |bytes: u64| *tensor.shape == [rows, bytes];
        let (dtype, dim, parts) = match (codes.dtype, &*tensor.dtype) {
            (DType::F8E4M3, "F8_E8M0" | "U8") => {
                let blocks = u64::from(codes.dim / 32);
                if !codes.dim.is_multiple_of(32) || !is_rows_of(blocks) {
                    return Err(unfit(format!(
                        "rows of {} F8_E4M3 need a power of two for each 32 of them: F8_E8M0 [{rows}, {}]",
                        codes.dim,
                        codes.dim.div_ceil(32)
                    )));
                }
                (DType::Mxfp8, codes.dim, vec![Part::Bytes { from: from(), bytes: blocks as usize }])
            }
            (DType::F8E4M3, kind) => {
                let numbers = number_type(kind).filter(|_| is_one(tensor) || *tensor.shape == [rows] || is_rows_of(1));
                let numbers = numbers.ok_or_else(|| {
                    unfit(format!(
                        "rows of {} F8_E4M3 have F8_E8M0 [{rows}, {}], or a number of F32, F16 or BF16: one for all, or [{rows}, 1]",
                        codes.dim,
                        codes.dim.div_ceil(32)
                    ))
                })?;
                let part = match is_one(tensor) && rows != 1 || tensor.shape.is_empty() {
                    true => Part::Constant(vec![(0, rounded(self.number(scales)?, round).to_le_bytes())]),
                    false => Part::Number { from: from(), dtype: numbers, round },
                };
                (DType::F8E4M3S, codes.dim, vec![part])
            }
            (DType::U8, "F8_E4M3") => {
                let blocks = u64::from(codes.dim / 8);
                let dim = codes.dim.checked_mul(2).filter(|_| codes.dim.is_multiple_of(8) && is_rows_of(blocks));
                let dim = dim.ok_or_else(|| {
                    unfit(format!(
                        "rows of {} pairs of 4-bit floats need a scale for each 8 of them: F8_E4M3 [{rows}, {}]",
                        codes.dim,
                        codes.dim.div_ceil(8)
                    ))
                })?;
                let global = global.ok_or_else(|| ScaleError::NoGlobal { scales: scales.to_owned() })?;
                let bytes = blocks as usize;
                let number = self.number(global)?;
                let number = if divides { number.recip() } else { number };
                if !number.is_finite() {
                    return Err(ScaleError::Value { tensor: global.to_owned(), value: "0".to_owned() });
                }
                let constant = Part::Constant(vec![(0, number.to_le_bytes())]);
                let parts = vec![Part::Bytes { from: from(), bytes }, constant];
                (DType::Nvfp4, dim, parts)
            }
            (DType::U8, _) => {
                return Err(unfit("rows of U8 are pairs of 4-bit floats if their scales are F8_E4M3".to_owned()));
            }
            (dtype, _) => return Err(ScaleError::Codes { dtype }),
        };
        if let (Some(global), false) = (global, dtype == DType::Nvfp4) {
            return Err(ScaleError::UselessGlobal { global: global.to_owned(), scales: scales.to_owned() });
        }
        if dtype.row_bytes(dim).is_none() {
            return Err(unfit("with its scales, a row would pass 4 GiB".to_owned()));
        }
        let place = Place::Scaled(Scaled { codes: extents.clone(), code_bytes, scales: parts });
        Ok(FileTable { dim, dtype, place, ..codes.clone() })
    }

    /// The only number of a tensor, as an `f32`.
    fn number(&self, name: &str) -> Result<f32, ScaleError> {
        let missing = || ScaleError::Missing { tensor: name.to_owned() };
        let (input, tensor) = self.placed(name).ok_or_else(missing)?;
        let dtype = number_type(&tensor.dtype).filter(|_| is_one(tensor)).ok_or_else(|| ScaleError::Unfit {
            scales: name.to_owned(),
            scale_dtype: tensor.dtype.clone(),
            scale_shape: tensor.shape.clone(),
            wanted: "a scale for all rows is one number of F32, F16 or BF16".to_owned(),
        })?;
        let mut bytes = [0; 4];
        let bytes = bytes.get_mut(..dtype.size() as usize).unwrap_or_default();
        self.inputs.get(input).ok_or_else(missing)?.read(tensor.at, bytes)?;
        let value = number(dtype, bytes);
        if !value.is_finite() {
            return Err(ScaleError::Value { tensor: name.to_owned(), value: value.to_string() });
        }
        Ok(value)
    }

    /// The table with its scales in memory; any table without scales in files as it is.
    pub fn with_resident_scales(&self, table: &FileTable) -> Result<FileTable, FileError> {
        let place = match &table.place {
            Place::Scaled(scaled) => Place::Scaled(scaled.resident(&self.path, &self.inputs, table.rows)?),
            other => other.clone(),
        };
        Ok(FileTable { place, ..table.clone() })
    }
}
