//! Rows whose scales stand in other tensors than their codes: where their parts are, and putting them together.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};
use warprow_layout::DType;

use crate::error::FileError;
use crate::extent::{Extent, behind, cut, extents_of, read_extents};
use crate::input::{Input, room};

/// Bytes of scales that are read into memory before the system is told to forget their pages, which takes a while each time.
const PIECE: u64 = 256 << 20;

/// Where the parts of rows are: codes first, then scales.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scaled {
    pub(crate) codes: Vec<Extent>,
    pub(crate) code_bytes: usize,
    pub(crate) scales: Vec<Part>,
}

/// Scales of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Bytes for each row, which stand as they are.
    Bytes { from: Source, bytes: usize },
    /// A number for each row, which becomes an `f32`.
    Number { from: Source, dtype: DType, round: DType },
    /// An `f32` for all rows from the one on, to the next that is named. Ascending; the first is row 0.
    Constant(Vec<(u64, [u8; 4])>),
}

/// Where scales are read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
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

    /// The extents of the part in files, with the bytes of a row there; `None`: the part is in no file.
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
pub(crate) fn number(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN,
    }
}

/// A number as the nearest of a type.
pub(crate) fn rounded(number: f32, to: DType) -> f32 {
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
    pub(crate) fn resident(&self, path: &Path, inputs: &[Arc<Input>], rows: u64) -> Result<Self, FileError> {
        let mut resident = self.clone();
        for part in &mut resident.scales {
            let Some((extents, bytes)) = part.in_file() else { continue };
            let mut memory: Vec<u8> = room(path, rows.saturating_mul(bytes as u64))?;
            let at_once = (PIECE / bytes.max(1) as u64).max(1);
            let pieces = memory.chunks_mut(at_once as usize * bytes);
            for (first, piece) in (0..rows).step_by(at_once as usize).zip(pieces) {
                read_extents(inputs, extents, first, bytes, piece)?;
                // They are in memory once, not once more as pages of the file.
                for (input, at, count) in extents_of(inputs, extents, first, piece.len() as u64 / bytes as u64, bytes) {
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
