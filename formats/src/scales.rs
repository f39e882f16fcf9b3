//! Rows whose scales stand in other tensors than their codes: where their parts are, and putting them together.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use warprow_layout::DType;

use crate::error::FileError;
use crate::extent::{Extent, extents_of, read_extents};
use crate::file_table::FileTable;
use crate::input::{Input, room};
use crate::joined::{behind, cut};
use crate::place::Place;
use crate::safetensors::Tensor;
use crate::table_file::TableFile;

/// Bytes of scales that are read into memory at once.
const PIECE: u64 = 8 << 20;

/// Where the parts of rows are: codes first, then scales.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scaled {
    codes: Vec<Extent>,
    code_bytes: usize,
    scales: Vec<Part>,
}

/// Scales of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Bytes for each row, which stand as they are.
    Bytes { from: Source, bytes: usize },
    /// A number for each row, which becomes an `f32`.
    Number { from: Source, dtype: DType, round: DType },
    /// An `f32` for all rows from the one on, to the next that is named. Ascending; the first is row 0.
    Constant(Vec<(u64, [u8; 4])>),
}

/// Where scales are read from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    File(Vec<Extent>),
    Memory(Arc<Vec<u8>>),
}

impl Part {
    /// Bytes of a row where they stand, and which bytes these are.
    fn stored(&self) -> Option<(&Source, usize)> {
        match self {
            Self::Bytes { from, bytes } => Some((from, *bytes)),
            Self::Number { from, dtype, .. } => Some((from, dtype.size() as usize)),
            Self::Constant(_) => None,
        }
    }

    fn source_mut(&mut self) -> Option<&mut Source> {
        match self {
            Self::Bytes { from, .. } | Self::Number { from, .. } => Some(from),
            Self::Constant(_) => None,
        }
    }

    /// Its extents in files, with the bytes of a row there; `None`: it stands in none.
    fn in_file(&self) -> Option<(&[Extent], usize)> {
        match self.stored()? {
            (Source::File(extents), bytes) => Some((extents, bytes)),
            (Source::Memory(_), _) => None,
        }
    }

    /// Bytes that a row gets of it.
    fn given(&self) -> usize {
        match self {
            Self::Bytes { bytes, .. } => *bytes,
            Self::Number { .. } | Self::Constant(_) => 4,
        }
    }
}

/// The number of type `dtype` that `bytes` are.
fn number(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN,
    }
}

/// A number as the nearest of a type.
fn rounded(number: f32, to: DType) -> f32 {
    match to {
        DType::BF16 => bf16::from_f32(number).to_f32(),
        DType::F16 => f16::from_f32(number).to_f32(),
        _ => number,
    }
}

impl Scaled {
    /// Bytes of each row that stand in files: those of `stretches`.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.code_bytes + self.scales.iter().filter_map(Part::in_file).map(|(_, bytes)| bytes).sum::<usize>()
    }

    /// Calls `each` with the extents of each part that stands in files, in their order, and the bytes of a row there.
    fn parts(&self) -> impl Iterator<Item = (&[Extent], usize)> {
        std::iter::once((&self.codes[..], self.code_bytes)).chain(self.scales.iter().filter_map(Part::in_file))
    }

    /// Where what [`assemble`](Self::assemble) takes stands in files.
    pub(crate) fn stretches(
        &self,
        inputs: &[Arc<Input>],
        first: u64,
        count: u64,
        each: &mut dyn FnMut(&File, u64, u64),
    ) {
        for (extents, bytes) in self.parts() {
            for (input, at, rows) in extents_of(inputs, extents, first, count, bytes) {
                each(&input.file, at, rows * bytes as u64);
            }
        }
    }

    /// Reads rows.
    pub(crate) fn fill(&self, inputs: &[Arc<Input>], first: u64, rows: &mut [u8]) -> Result<(), FileError> {
        let row_bytes = self.row_bytes().max(1);
        let count = rows.len() / row_bytes;
        let mut stored = vec![0; count * self.stored_bytes()];
        let mut rest = &mut stored[..];
        for (extents, bytes) in self.parts() {
            let (part, others) = rest.split_at_mut((count * bytes).min(rest.len()));
            read_extents(inputs, extents, first, bytes, part)?;
            rest = others;
        }
        self.assemble(first, &stored, rows);
        Ok(())
    }

    fn row_bytes(&self) -> usize {
        self.code_bytes + self.scales.iter().map(Part::given).sum::<usize>()
    }

    /// Makes the rows from `first` on of what stands in files of them: all codes, then all of each part.
    pub(crate) fn assemble(&self, first: u64, stored: &[u8], rows: &mut [u8]) {
        let row_bytes = self.row_bytes().max(1);
        let count = rows.len() / row_bytes;
        let (codes, mut stored) = stored.split_at((count * self.code_bytes).min(stored.len()));
        for (row, codes) in rows.chunks_exact_mut(row_bytes).zip(codes.chunks_exact(self.code_bytes)) {
            row.iter_mut().zip(codes).for_each(|(byte, &code)| *byte = code);
        }
        let mut at = self.code_bytes;
        for part in &self.scales {
            let places = rows.chunks_exact_mut(row_bytes).map(|row| row.get_mut(at..).unwrap_or_default());
            match part.stored() {
                None => {
                    let Part::Constant(constants) = part else { continue };
                    for (row, place) in (first..).zip(places) {
                        let index = constants.partition_point(|(begin, _)| *begin <= row);
                        let value = index.checked_sub(1).and_then(|index| constants.get(index));
                        let value = value.map_or([0; 4], |(_, value)| *value);
                        place.iter_mut().zip(value).for_each(|(byte, value)| *byte = value);
                    }
                }
                Some((source, bytes)) => {
                    let theirs = match source {
                        Source::File(_) => {
                            let (theirs, others) = stored.split_at((count * bytes).min(stored.len()));
                            stored = others;
                            theirs
                        }
                        Source::Memory(memory) => memory.get(first as usize * bytes..).unwrap_or_default(),
                    };
                    for (place, scales) in places.zip(theirs.chunks_exact(bytes.max(1))) {
                        match part {
                            Part::Number { dtype, round, .. } => {
                                let value = rounded(number(*dtype, scales), *round).to_le_bytes();
                                place.iter_mut().zip(value).for_each(|(byte, value)| *byte = value);
                            }
                            _ => place.iter_mut().zip(scales).for_each(|(byte, &scale)| *byte = scale),
                        }
                    }
                }
            }
            at += part.given();
        }
    }

    /// With the rows of `other` behind `rows` of its own; `None`: their parts are of other kinds.
    pub(crate) fn append(&mut self, other: &Self, rows: u64) -> Option<()> {
        if self.code_bytes != other.code_bytes || self.scales.len() != other.scales.len() {
            return None;
        }
        self.codes.extend(behind(&other.codes, rows));
        for (own, theirs) in self.scales.iter_mut().zip(&other.scales) {
            match (own, theirs) {
                (Part::Constant(own), Part::Constant(theirs)) => {
                    own.extend(theirs.iter().map(|(first, value)| (first + rows, *value)));
                }
                (
                    Part::Bytes { from: Source::File(own), bytes },
                    Part::Bytes { from: Source::File(theirs), bytes: their_bytes },
                ) if bytes == their_bytes => own.extend(behind(theirs, rows)),
                (
                    Part::Number { from: Source::File(own), dtype, round },
                    Part::Number { from: Source::File(theirs), dtype: their_dtype, round: their_round },
                ) if *dtype == *their_dtype && *round == *their_round => own.extend(behind(theirs, rows)),
                _ => return None,
            }
        }
        Some(())
    }

    /// Of the rows `rows` alone; `None`: some of it is in memory.
    pub(crate) fn cut(&self, rows: &Range<u64>) -> Option<Self> {
        let scales = self.scales.iter().map(|part| {
            Some(match part {
                Part::Constant(constants) => {
                    let begin = constants.partition_point(|(first, _)| *first <= rows.start).saturating_sub(1);
                    let kept = constants.get(begin..).unwrap_or_default().iter();
                    let kept = kept.filter(|(first, _)| *first < rows.end);
                    Part::Constant(kept.map(|(first, value)| (first.saturating_sub(rows.start), *value)).collect())
                }
                Part::Bytes { from: Source::File(extents), bytes } => {
                    Part::Bytes { from: Source::File(cut(extents, rows, *bytes)), bytes: *bytes }
                }
                Part::Number { from: Source::File(extents), dtype, round } => {
                    let from = Source::File(cut(extents, rows, dtype.size() as usize));
                    Part::Number { from, dtype: *dtype, round: *round }
                }
                Part::Bytes { .. } | Part::Number { .. } => return None,
            })
        });
        let codes = cut(&self.codes, rows, self.code_bytes);
        Some(Self { codes, code_bytes: self.code_bytes, scales: scales.collect::<Option<_>>()? })
    }

    /// With all scales that stand in files read into memory.
    fn resident(&self, file: &TableFile, rows: u64) -> Result<Self, FileError> {
        let mut resident = self.clone();
        for part in &mut resident.scales {
            let Some((extents, bytes)) = part.in_file() else { continue };
            let mut memory: Vec<u8> = room(&file.path, rows.saturating_mul(bytes as u64))?;
            let at_once = (PIECE / bytes.max(1) as u64).max(1);
            let pieces = memory.chunks_mut(at_once as usize * bytes);
            for (first, piece) in (0..rows).step_by(at_once as usize).zip(pieces) {
                read_extents(&file.inputs, extents, first, bytes, piece)?;
                // They are in memory once, not once more as pages of the file.
                for (input, at, count) in
                    extents_of(&file.inputs, extents, first, piece.len() as u64 / bytes as u64, bytes)
                {
                    input.forget_pages(at, count * bytes as u64);
                }
            }
            if let Some(source) = part.source_mut() {
                *source = Source::Memory(Arc::new(memory));
            }
        }
        Ok(resident)
    }
}

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
        /// Its type, as safetensors calls it.
        scale_dtype: String,
        /// Its shape.
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
            Place::Scaled(scaled) => Place::Scaled(scaled.resident(self, table.rows)?),
            other => other.clone(),
        };
        Ok(FileTable { place, ..table.clone() })
    }
}

/// What a row source that puts rows together is asked for.
pub(crate) fn assembled(
    scaled: &Scaled,
    first: u64,
    row_bytes: usize,
    stored: &[u8],
    rows: &mut [u8],
) -> io::Result<()> {
    if row_bytes != scaled.row_bytes() || stored.len() / scaled.stored_bytes().max(1) != rows.len() / row_bytes.max(1) {
        return Err(io::Error::other("rows of another size were asked for"));
    }
    scaled.assemble(first, stored, rows);
    Ok(())
}
