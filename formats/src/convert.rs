//! Rows of another type than they stand in the file, and what that loses.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::scaled;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use warprow_layout::{DType, RowSource, Table, VolumeError, block_scales, float8};

/// Rows converted on the way. Narrowing rounds to nearest, ties to even; what is too large becomes infinite, in E4M3 no number.
/// Types whose rows have a scale take it from the smallest and the largest number of the row, as FBGEMM does.
pub struct ConvertedRows<'a> {
    rows: &'a dyn RowSource,
    from: DType,
    to: DType,
    dim: u32,
    lost: Mutex<ConversionLoss>,
}

/// What conversion has lost, of all elements that were read so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ConversionLoss {
    /// Elements that were converted.
    pub elements: u64,
    /// How many of these are numbers: neither infinite nor NaN.
    pub numbers: u64,
    /// Numbers that became infinite or NaN: too large for the type.
    pub overflowed: u64,
    /// Infinite elements that became something else: the type has no infinity.
    pub infinities_lost: u64,
    /// The largest difference.
    pub max_abs: f64,
    /// The sum of all differences.
    pub sum_abs: f64,
    /// The sum of all squared differences.
    pub sum_squares: f64,
    /// The sum of the squares of all numbers as they were.
    pub sum_squares_before: f64,
}

impl ConversionLoss {
    /// The mean difference of a number.
    pub fn mean_abs(&self) -> f64 {
        self.sum_abs / (self.numbers.saturating_sub(self.overflowed)).max(1) as f64
    }

    /// The root of the mean squared difference over that of the numbers: 0 if nothing is lost.
    pub fn relative(&self) -> f64 {
        if self.sum_squares == 0.0 { 0.0 } else { (self.sum_squares / self.sum_squares_before).sqrt() }
    }

    fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.numbers += other.numbers;
        self.overflowed += other.overflowed;
        self.infinities_lost += other.infinities_lost;
        self.max_abs = self.max_abs.max(other.max_abs);
        self.sum_abs += other.sum_abs;
        self.sum_squares += other.sum_squares;
        self.sum_squares_before += other.sum_squares_before;
    }

    fn count(&mut self, before: &[f32], after: &[f32]) {
        self.elements += before.len() as u64;
        // Sums of their own for each of a few neighbours: a processor adds them at once.
        let mut numbers = [0u32; LANES];
        let mut kept = [0u32; LANES];
        let mut infinite = [0u32; LANES];
        let mut max_abs = [0f64; LANES];
        let mut sum_abs = [0f64; LANES];
        let mut squares = [0f64; LANES];
        let mut squares_before = [0f64; LANES];
        for (before, after) in before.chunks(LANES).zip(after.chunks(LANES)) {
            for (lane, (&before, &after)) in before.iter().zip(after).enumerate() {
                let is_kept = before.is_finite() & after.is_finite();
                numbers[lane] += u32::from(before.is_finite());
                kept[lane] += u32::from(is_kept);
                infinite[lane] += u32::from(before.is_infinite() & (before != after));
                let (before, after) = if is_kept { (f64::from(before), f64::from(after)) } else { (0.0, 0.0) };
                let difference = (before - after).abs();
                max_abs[lane] = if difference > max_abs[lane] { difference } else { max_abs[lane] };
                sum_abs[lane] += difference;
                squares[lane] += difference * difference;
                squares_before[lane] += before * before;
            }
        }
        let all = |counts: [u32; LANES]| counts.into_iter().map(u64::from).sum::<u64>();
        self.numbers += all(numbers);
        self.overflowed += all(numbers) - all(kept);
        self.infinities_lost += all(infinite);
        self.max_abs = max_abs.into_iter().fold(self.max_abs, f64::max);
        self.sum_abs += sum_abs.into_iter().sum::<f64>();
        self.sum_squares += squares.into_iter().sum::<f64>();
        self.sum_squares_before += squares_before.into_iter().sum::<f64>();
    }
}

impl std::fmt::Debug for ConvertedRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConvertedRows").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}

impl<'a> ConvertedRows<'a> {
    /// The rows of `rows`, `dim` elements of type `from` each, as elements of type `to`. `None` if that cannot be: integers are
    /// not made, nor is what [`DType::is_made`] says is only read.
    pub fn new(rows: &'a dyn RowSource, dim: u32, from: DType, to: DType) -> Option<Self> {
        let possible = from == to || to.is_made();
        possible.then(|| Self { rows, from, to, dim, lost: Mutex::default() })
    }

    /// What was lost so far.
    pub fn lost(&self) -> ConversionLoss {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One row, converted; nothing of it is counted as lost.
    pub fn row(&self, row: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = vec![0; self.to.row_bytes(self.dim).unwrap_or(0) as usize];
        let mut wide = vec![0.0; self.dim as usize];
        if self.from == self.to {
            return Ok(row.to_vec());
        }
        widen(self.from, row, &mut wide);
        narrow(self.to, &wide, &mut out)?;
        Ok(out)
    }
}

/// Elements that are compared at once.
const LANES: usize = 8;
/// Elements that are converted at once.
const BLOCK: usize = 1 << 12;
/// Bytes of rows that are worth a thread.
const SHARE: usize = 128 << 10;
/// Threads, at most: memory is busy with fewer.
const THREADS: usize = 8;

/// To be asked for once: the system reads files to tell.
static PROCESSORS: OnceLock<usize> = OnceLock::new();

/// The elements of type `dtype` in `bytes`, exactly. Where rows have a scale, `bytes` are one row.
pub fn widen(dtype: DType, bytes: &[u8], wide: &mut [f32]) {
    let halves = |bits: &mut [u16]| {
        bits.iter_mut().zip(bytes.as_chunks().0).for_each(|(bits, &bytes)| *bits = u16::from_le_bytes(bytes));
    };
    match dtype {
        DType::F32 => {
            wide.iter_mut().zip(bytes.as_chunks().0).for_each(|(wide, &bytes)| *wide = f32::from_le_bytes(bytes));
        }
        DType::F16 | DType::BF16 => {
            let mut bits = vec![0; wide.len()];
            halves(&mut bits);
            match dtype {
                DType::F16 => bits.reinterpret_cast::<f16>().convert_to_f32_slice(wide),
                _ => bits.reinterpret_cast::<bf16>().convert_to_f32_slice(wide),
            }
        }
        DType::I8 => wide.iter_mut().zip(bytes).for_each(|(wide, &byte)| *wide = f32::from(byte as i8)),
        DType::U8 => wide.iter_mut().zip(bytes).for_each(|(wide, &byte)| *wide = f32::from(byte)),
        DType::F8E4M3 | DType::F8E5M2 => {
            if let Some(values) = float8::values_of(dtype) {
                wide.iter_mut().zip(bytes).for_each(|(wide, &code)| *wide = values[usize::from(code)]);
            }
        }
        DType::Q8 => scaled::widen8(bytes, wide),
        DType::Q4 => scaled::widen4(bytes, wide),
        DType::Mxfp8 => block_scales::widen_mxfp8(bytes, put(wide)),
        DType::F8E4M3S => block_scales::widen_f8e4m3s(bytes, put(wide)),
        DType::Nvfp4 => block_scales::widen_nvfp4(bytes, put(wide)),
    }
}

/// Puts blocks of numbers where they belong in `wide`.
fn put(wide: &mut [f32]) -> impl FnMut(usize, &[f32]) {
    |first, block| {
        wide.get_mut(first..).unwrap_or_default().iter_mut().zip(block).for_each(|(wide, &number)| *wide = number);
    }
}

/// `wide` as elements of type `dtype`; one row where rows have a scale.
fn narrow(dtype: DType, wide: &[f32], bytes: &mut [u8]) -> io::Result<()> {
    match dtype {
        DType::F32 => {
            bytes.as_chunks_mut().0.iter_mut().zip(wide).for_each(|(bytes, wide)| *bytes = wide.to_le_bytes());
        }
        DType::F16 => {
            let mut out = vec![f16::ZERO; wide.len()];
            out.convert_from_f32_slice(wide);
            bytes.as_chunks_mut().0.iter_mut().zip(out).for_each(|(bytes, out)| *bytes = out.to_le_bytes());
        }
        DType::BF16 => {
            let mut out = vec![bf16::ZERO; wide.len()];
            out.convert_from_f32_slice(wide);
            bytes.as_chunks_mut().0.iter_mut().zip(out).for_each(|(bytes, out)| *bytes = out.to_le_bytes());
        }
        DType::I8 => bytes.iter_mut().zip(wide).for_each(|(byte, &wide)| *byte = wide as i8 as u8),
        DType::U8 => bytes.iter_mut().zip(wide).for_each(|(byte, &wide)| *byte = wide as u8),
        DType::F8E4M3 => bytes.iter_mut().zip(wide).for_each(|(byte, &wide)| *byte = float8::to_e4m3(wide)),
        DType::F8E5M2 => bytes.iter_mut().zip(wide).for_each(|(byte, &wide)| *byte = float8::to_e5m2(wide)),
        DType::Q8 | DType::Q4 => {
            if let Some(odd) = wide.iter().find(|value| !value.is_finite()) {
                return Err(io::Error::other(format!(
                    "it holds {odd}, which no scale and bias can give: choose a float type"
                )));
            }
            match dtype {
                DType::Q8 => scaled::narrow8(wide, bytes),
                _ => scaled::narrow4(wide, bytes),
            }
        }
        DType::Mxfp8 | DType::F8E4M3S | DType::Nvfp4 => {
            return Err(io::Error::other(format!("rows of type {dtype} are read and never made")));
        }
    }
    Ok(())
}

impl RowSource for ConvertedRows<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        let sizes = (self.from.row_bytes(self.dim), self.to.row_bytes(self.dim));
        let (Some(from_row), Some(to_row)) = sizes else { return Err(io::Error::other("its rows pass 4 GiB")) };
        if self.from == self.to {
            return self.rows.read(first, row_bytes, rows);
        }
        let from_row = from_row as usize;
        let to_row = to_row as usize;
        let count = rows.len() / to_row.max(1);
        let mut before = vec![0; count * from_row];
        self.rows.read(first, from_row, &mut before)?;
        let useful = *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
        let useful = useful.min(THREADS);
        let threads = useful.min(before.len() / SHARE).max(1);
        if threads == 1 {
            return self.convert(first, &before, rows);
        }
        let each = count.div_ceil(threads);
        let mut parts = (first..).step_by(each).zip(before.chunks(each * from_row).zip(rows.chunks_mut(each * to_row)));
        let mine = parts.next();
        std::thread::scope(|scope| {
            let others: Vec<_> = parts
                .map(|(first, (before, after))| {
                    std::thread::Builder::new().spawn_scoped(scope, move || self.convert(first, before, after))
                })
                .collect();
            let mine = mine.map_or(Ok(()), |(first, (before, after))| self.convert(first, before, after));
            others.into_iter().fold(mine, |all, thread| match thread?.join() {
                Ok(theirs) => all.and(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    fn is_computed(&self) -> bool {
        self.from != self.to
    }

    fn unchanged(&self, read: &mut dyn FnMut(u64) -> ControlFlow<()>) -> io::Result<()> {
        self.rows.unchanged(read)
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        let expected = u64::from(table.row_bytes());
        let given = self.to.row_bytes(self.dim).map_or(0, u64::from);
        if expected != given {
            return Err(VolumeError::Length { what: "a converted row", expected, given });
        }
        Ok(())
    }
}

impl ConvertedRows<'_> {
    /// Converts rows, of which the first has the number `first`.
    fn convert(&self, first: u64, before: &[u8], rows: &mut [u8]) -> io::Result<()> {
        let sizes = (self.from.row_bytes(self.dim), self.to.row_bytes(self.dim));
        let (Some(from_row), Some(to_row)) = sizes else { return Err(io::Error::other("its rows pass 4 GiB")) };
        let from_row = from_row as usize;
        let to_row = to_row as usize;
        // Whole rows at once; one where each has its own scale.
        let scaled = self.from.is_scaled() || self.to.is_scaled();
        let dim = self.dim as usize;
        let at_once = if scaled { 1 } else { (BLOCK / dim.max(1)).max(1) };
        let mut wide = vec![0.0; at_once * dim];
        let mut back = vec![0.0; at_once * dim];
        let mut lost = ConversionLoss::default();
        let pieces = before.chunks(at_once * from_row).zip(rows.chunks_mut(at_once * to_row));
        for (row, (before, after)) in (first..).step_by(at_once).zip(pieces) {
            let elements = before.len() / from_row * dim;
            let wide = &mut wide[..elements];
            let back = &mut back[..elements];
            widen(self.from, before, wide);
            narrow(self.to, wide, after).map_err(|error| io::Error::other(format!("row {row}: {error}")))?;
            widen(self.to, after, back);
            lost.count(wide, back);
        }
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).add(&lost);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn error_is_that_of_an_independent_sum(values in proptest::collection::vec(-1e3f32..1e3, 6..60), to in 1usize..7) {
            let to = DType::ALL[to];
            prop_assume!(!matches!(to, DType::I8 | DType::U8));
            let rows = values.len() / 3;
            let bytes: Vec<u8> = values[..rows * 3].iter().flat_map(|value| value.to_le_bytes()).collect();
            let source = &bytes[..];
            let converted = ConvertedRows::new(&source, 3, DType::F32, to).unwrap();
            let mut out = vec![0; rows * 3 * to.size() as usize];
            let row_bytes = 3 * to.size() as usize;
            for row in 0..rows {
                converted.read(row as u64, row_bytes, &mut out[row * row_bytes..][..row_bytes]).unwrap();
            }
            let back: Vec<f32> = out.chunks(to.size() as usize).map(|bytes| match (to, bytes) {
                (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
                (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
                (DType::F8E4M3, &[code]) => float8::E4M3_VALUES[usize::from(code)],
                (DType::F8E5M2, &[code]) => float8::E5M2_VALUES[usize::from(code)],
                _ => panic!("{to}"),
            }).collect();
            let differences: Vec<f64> = values.iter().zip(&back).filter(|(_, back)| back.is_finite())
                .map(|(value, back)| (f64::from(*value) - f64::from(*back)).abs()).collect();
            let lost = converted.lost();
            prop_assert_eq!((lost.elements, lost.numbers), (rows as u64 * 3, rows as u64 * 3));
            prop_assert_eq!(lost.overflowed as usize, back.len() - differences.len());
            prop_assert_eq!(lost.max_abs, differences.iter().copied().fold(0.0, f64::max));
            let mean = differences.iter().sum::<f64>() / differences.len().max(1) as f64;
            prop_assert!((lost.mean_abs() - mean).abs() <= mean * 1e-12);
            for (row, before) in bytes.chunks(12).enumerate() {
                prop_assert_eq!(&converted.row(before).unwrap(), &out[row * row_bytes..][..row_bytes]);
            }
        }
    }

    #[test]
    fn many_rows_are_converted_as_few_are() {
        let rows = 40_000usize;
        let dim = 9u32;
        let bytes: Vec<u8> =
            (0..rows * dim as usize).flat_map(|index| ((index as f32 * 0.7).sin() * 300.0).to_le_bytes()).collect();
        let source = &bytes[..];
        for to in [DType::F16, DType::F8E4M3, DType::Q8] {
            let (many, few) = [0; 2].map(|_| ConvertedRows::new(&source, dim, DType::F32, to).unwrap()).into();
            let row_bytes = to.row_bytes(dim).unwrap() as usize;
            let mut all = vec![0; rows * row_bytes];
            many.read(0, row_bytes, &mut all).unwrap();
            let mut one = vec![0; row_bytes];
            for row in 0..rows {
                few.read(row as u64, row_bytes, &mut one).unwrap();
                assert_eq!(one, all[row * row_bytes..][..row_bytes], "{to} {row}");
            }
            let many = many.lost();
            let few = few.lost();
            assert_eq!((many.elements, many.numbers, many.max_abs), (few.elements, few.numbers, few.max_abs));
            assert!((many.sum_squares / few.sum_squares - 1.0).abs() < 1e-9);
        }
        // The error names the row, wherever it lies.
        let mut odd = bytes.clone();
        odd[39_000 * 36..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        let source = &odd[..];
        let converted = ConvertedRows::new(&source, dim, DType::F32, DType::Q8).unwrap();
        let error = converted.read(0, 17, &mut vec![0; rows * 17]).unwrap_err();
        assert!(error.to_string().contains("row 39000"), "{error}");
    }

    #[test]
    fn integers_are_not_made() {
        let source = &[0u8; 8][..];
        assert!(ConvertedRows::new(&source, 2, DType::F32, DType::I8).is_none());
        assert!(ConvertedRows::new(&source, 2, DType::I8, DType::I8).is_some());
        assert!(ConvertedRows::new(&source, 2, DType::I8, DType::F16).is_some());
    }
}
