//! Converts one row to the output's type, or adds it to a bag's sum: one function for each pair of types.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use warprow_layout::{DType, block_scales, float8};
use zerocopy::{FromBytes, Immutable, IntoBytes};

// Rows lie on the drives as little-endian; they are copied and widened as they are.
const _: () = assert!(cfg!(target_endian = "little"), "Warprow needs a little-endian host");

/// How many elements are widened at once, in a block on the stack.
const BLOCK: usize = 64;

/// An element type of a table.
pub trait Element {
    /// The type, as a value.
    const DTYPE: DType;

    /// Calls `take` with `row`'s elements as `f32`, block by block, and with the index of each block's first element.
    /// The conversion is exact, except that each step of scales and bias is rounded.
    fn widen(row: &[u8], take: impl FnMut(usize, &[f32]));
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn widen(row: &[u8], mut take: impl FnMut(usize, &[f32])) {
        // Rows in memory of our own are aligned, and are taken as they lie there.
        if let Ok(elements) = <[f32]>::ref_from_bytes(row) {
            return take(0, elements);
        }
        let (elements, _) = row.as_chunks::<4>();
        let mut block = [0.0; BLOCK];
        for (i, elements) in elements.chunks(BLOCK).enumerate() {
            let block = &mut block[..elements.len()];
            block.iter_mut().zip(elements).for_each(|(wide, &bytes)| *wide = f32::from_le_bytes(bytes));
            take(i * BLOCK, block);
        }
    }
}

macro_rules! half_element {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            #[inline(always)]
            fn widen(row: &[u8], mut take: impl FnMut(usize, &[f32])) {
                let (elements, _) = row.as_chunks::<2>();
                let mut bits = [0u16; BLOCK];
                let mut block = [0.0; BLOCK];
                for (i, elements) in elements.chunks(BLOCK).enumerate() {
                    let bits = &mut bits[..elements.len()];
                    let block = &mut block[..elements.len()];
                    bits.iter_mut().zip(elements).for_each(|(bits, &bytes)| *bits = u16::from_le_bytes(bytes));
                    bits.reinterpret_cast::<$type>().convert_to_f32_slice(block);
                    take(i * BLOCK, block);
                }
            }
        }
    };
}
half_element!(f16, F16);
half_element!(bf16, BF16);

macro_rules! integer_element {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            #[inline(always)]
            fn widen(row: &[u8], mut take: impl FnMut(usize, &[f32])) {
                let mut block = [0.0; BLOCK];
                for (i, elements) in row.chunks(BLOCK).enumerate() {
                    let block = &mut block[..elements.len()];
                    block.iter_mut().zip(elements).for_each(|(wide, &byte)| *wide = f32::from(byte as $type));
                    take(i * BLOCK, block);
                }
            }
        }
    };
}
integer_element!(i8, I8);
integer_element!(u8, U8);

/// An eight-bit float of four exponent bits.
pub enum E4M3 {}
/// An eight-bit float of five exponent bits.
pub enum E5M2 {}

macro_rules! float8_element {
    ($type:ty, $dtype:ident, $values:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            #[inline(always)]
            fn widen(row: &[u8], mut take: impl FnMut(usize, &[f32])) {
                let mut block = [0.0; BLOCK];
                for (i, elements) in row.chunks(BLOCK).enumerate() {
                    let block = &mut block[..elements.len()];
                    block.iter_mut().zip(elements).for_each(|(wide, &code)| *wide = float8::$values[usize::from(code)]);
                    take(i * BLOCK, block);
                }
            }
        }
    };
}
float8_element!(E4M3, F8E4M3, E4M3_VALUES);
float8_element!(E5M2, F8E5M2, E5M2_VALUES);

/// Elements of one byte; the row's scale and bias (`f32`) stand behind them.
pub enum Q8 {}
/// Elements of half a byte; the row's scale and bias (`f16`) stand behind them.
pub enum Q4 {}

impl Element for Q8 {
    const DTYPE: DType = DType::Q8;

    #[inline(always)]
    fn widen(row: &[u8], mut take: impl FnMut(usize, &[f32])) {
        let Some((numbers, &[a, b, c, d, e, f, g, h])) = row.split_last_chunk() else { return };
        let scale = f32::from_le_bytes([a, b, c, d]);
        let bias = f32::from_le_bytes([e, f, g, h]);
        let mut block = [0.0; BLOCK];
        for (i, numbers) in numbers.chunks(BLOCK).enumerate() {
            let block = &mut block[..numbers.len()];
            block.iter_mut().zip(numbers).for_each(|(wide, &number)| {
                let scaled = f32::from(number) * scale;
                *wide = scaled + bias;
            });
            take(i * BLOCK, block);
        }
    }
}

impl Element for Q4 {
    const DTYPE: DType = DType::Q4;

    #[inline(always)]
    fn widen(row: &[u8], mut take: impl FnMut(usize, &[f32])) {
        let Some((pairs, &[a, b, c, d])) = row.split_last_chunk() else { return };
        let scale = f16::from_le_bytes([a, b]).to_f32();
        let bias = f16::from_le_bytes([c, d]).to_f32();
        let mut block = [0.0; BLOCK];
        for (i, pairs) in pairs.chunks(BLOCK / 2).enumerate() {
            let block = &mut block[..pairs.len() * 2];
            for (wide, &pair) in block.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
                *wide = [pair & 15, pair >> 4].map(|number| {
                    let scaled = f32::from(number) * scale;
                    scaled + bias
                });
            }
            take(i * BLOCK, block);
        }
    }
}

/// E4M3 bytes; a power of two for each 32 stands behind them.
pub enum Mxfp8 {}
/// E4M3 bytes; the row's scale stands behind them.
pub enum ScaledE4M3 {}
/// E2M1 halves of bytes; a scale for each 16 stands behind them, and one for all of these.
pub enum Nvfp4 {}

macro_rules! block_scaled_element {
    ($type:ty, $dtype:ident, $widen:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            #[inline(always)]
            fn widen(row: &[u8], take: impl FnMut(usize, &[f32])) {
                block_scales::$widen(row, take);
            }
        }
    };
}
block_scaled_element!(Mxfp8, Mxfp8, widen_mxfp8);
block_scaled_element!(ScaledE4M3, F8E4M3S, widen_f8e4m3s);
block_scaled_element!(Nvfp4, Nvfp4, widen_nvfp4);

/// An element type of an output.
pub trait OutputElement: Copy + Default + FromBytes + IntoBytes + Immutable {
    /// The type, as a value.
    const DTYPE: DType;

    /// Rounds `wide` to nearest, ties to even; a number that is too large becomes infinite, subnormal results are kept.
    /// It is never called for integers, because plans refuse to convert to them.
    fn narrow(wide: &[f32], out: &mut [Self]);
}

impl OutputElement for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn narrow(wide: &[f32], out: &mut [Self]) {
        out.copy_from_slice(wide);
    }
}

macro_rules! half_out {
    ($type:ty, $dtype:ident) => {
        impl OutputElement for $type {
            const DTYPE: DType = DType::$dtype;

            #[inline(always)]
            fn narrow(wide: &[f32], out: &mut [Self]) {
                out.convert_from_f32_slice(wide);
            }
        }
    };
}

half_out!(f16, F16);
half_out!(bf16, BF16);

macro_rules! integer_out {
    ($type:ty, $dtype:ident) => {
        impl OutputElement for $type {
            const DTYPE: DType = DType::$dtype;

            fn narrow(wide: &[f32], out: &mut [Self]) {
                out.iter_mut().zip(wide).for_each(|(out, &wide)| *out = wide as Self);
            }
        }
    };
}

integer_out!(i8, I8);
integer_out!(u8, U8);

/// Writes `row`, which has elements of type `E`, to `out` as elements of type `O`. If the types are the same, the row
/// is copied bit by bit.
#[inline]
pub fn convert<E: Element, O: OutputElement>(row: &[u8], out: &mut [O]) {
    if E::DTYPE == O::DTYPE {
        return out.as_mut_bytes().copy_from_slice(row);
    }
    E::widen(row, |first, wide| {
        if let Some(out) = out.get_mut(first..first + wide.len()) {
            O::narrow(wide, out);
        }
    });
}

/// The type in which a bag's rows are summed: `f32`. Sums begin at +0, and rows are added in the order of the bag.
pub type Accumulator = f32;

/// Adds `row` to `sum`: first each element is multiplied by `weight`, if there is one, and rounded; then it is added,
/// and rounded.
#[inline]
pub fn pool<E: Element>(row: &[u8], weight: Option<f32>, sum: &mut [Accumulator]) {
    E::widen(row, |first, wide| {
        let sums = sum.get_mut(first..).unwrap_or_default().iter_mut().zip(wide);
        match weight {
            None => sums.for_each(|(sum, &wide)| *sum += wide),
            Some(weight) => sums.for_each(|(sum, &wide)| {
                let product = weight * wide;
                *sum += product;
            }),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    /// Rounds to nearest, ties to even, in exact arithmetic on the bits: `exponent_bits` and `mantissa_bits` of the
    /// narrow type.
    fn naive_narrow(value: f32, exponent_bits: u32, mantissa_bits: u32) -> u16 {
        let sign = u16::from(value.is_sign_negative()) << (exponent_bits + mantissa_bits);
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let infinity = ((1u16 << exponent_bits) - 1) << mantissa_bits;
        let magnitude = f64::from(value).abs();
        if magnitude == 0.0 || magnitude.is_infinite() {
            return sign | if magnitude == 0.0 { 0 } else { infinity };
        }
        // Units of the last place, of subnormals at least: exact in f64.
        let exponent = (magnitude.log2().floor() as i32).max(1 - bias);
        let exponent = if 2f64.powi(exponent) > magnitude && exponent > 1 - bias { exponent - 1 } else { exponent };
        let units = magnitude / 2f64.powi(exponent - mantissa_bits as i32);
        let rounded = units.round_ties_even() as u64;
        // Counting up in the last place carries into the exponent as it should.
        let normal = u64::from(rounded >= 1 << mantissa_bits);
        let biased = (exponent + bias) as u64;
        let bits = if normal == 0 { rounded } else { (biased << mantissa_bits) + rounded - (1 << mantissa_bits) };
        sign | if bits >= u64::from(infinity) { infinity } else { bits as u16 }
    }

    fn any_f32() -> impl Strategy<Value = f32> {
        prop_oneof![
            any::<u32>().prop_map(f32::from_bits),
            (any::<u16>(), -1i32..=1, any::<bool>()).prop_map(|(bits, nudge, half)| {
                // Halfway between two narrow numbers, and just beside.
                let base = if half { f16::from_bits(bits).to_f32() } else { bf16::from_bits(bits).to_f32() };
                let between = if half { base.to_bits() | 0x1000 } else { base.to_bits() | 0x8000 };
                f32::from_bits(between.wrapping_add_signed(nudge))
            }),
        ]
    }

    fn bytes_of(dtype: DType, len: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), len * dtype.size() as usize)
    }

    fn naive_widen(dtype: DType, row: &[u8]) -> Vec<f32> {
        row.chunks(dtype.size() as usize)
            .map(|bytes| match (dtype, bytes) {
                (DType::F32, &[a, b, c, d]) => f32::from_bits(u32::from_le_bytes([a, b, c, d])),
                (DType::BF16, &[a, b]) => f32::from_bits(u32::from_le_bytes([0, 0, a, b])),
                (DType::F16, &[a, b]) => {
                    let bits = u16::from_le_bytes([a, b]);
                    let exponent = i32::from(bits >> 10 & 31);
                    let mantissa = f32::from(bits & 1023);
                    let magnitude = match exponent {
                        0 => mantissa * 2f32.powi(-24),
                        31 if mantissa == 0.0 => f32::INFINITY,
                        31 => f32::NAN,
                        _ => (1024.0 + mantissa) * 2f32.powi(exponent - 25),
                    };
                    if bits >> 15 == 1 { -magnitude } else { magnitude }
                }
                (DType::I8, &[a]) => f32::from(a as i8),
                (DType::U8, &[a]) => f32::from(a),
                _ => unreachable!(),
            })
            .collect()
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    fn check_row<E: Element>(row: &[u8], weight: f32) {
        let wide = naive_widen(E::DTYPE, row);
        let mut out = vec![7.0f32; wide.len()];
        convert::<E, f32>(row, &mut out);
        assert!(out.iter().zip(&wide).all(|(&got, &want)| same(got, want)), "{:?}: {out:?} {wide:?}", E::DTYPE);
        if E::DTYPE == DType::F32 {
            assert_eq!(out.as_bytes(), row, "bits are kept, NaN included");
        }
        let mut sum = vec![0.5; wide.len()];
        pool::<E>(row, None, &mut sum);
        assert!(sum.iter().zip(&wide).all(|(&got, &x)| same(got, 0.5 + x)));
        let mut sum = vec![0.5; wide.len()];
        pool::<E>(row, Some(weight), &mut sum);
        for (&got, &x) in sum.iter().zip(&wide) {
            // A fused multiply-add would round once, in f64 as good as never.
            let product = weight * x;
            assert!(same(got, 0.5 + product), "{got} {weight} {x}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn every_type_is_widened_exactly(
            f32s in bytes_of(DType::F32, 131), halves in bytes_of(DType::F16, 70), bytes in bytes_of(DType::U8, 65),
            weight in any_f32(),
        ) {
            check_row::<f32>(&f32s, weight);
            check_row::<f16>(&halves, weight);
            check_row::<bf16>(&halves, weight);
            check_row::<i8>(&bytes, weight);
            check_row::<u8>(&bytes, weight);
            let mut out = vec![f16::ZERO; 70];
            convert::<f16, f16>(&halves, &mut out);
            prop_assert_eq!(out.as_bytes(), &halves[..]);
            let mut out = vec![bf16::ZERO; 70];
            convert::<bf16, bf16>(&halves, &mut out);
            prop_assert_eq!(out.as_bytes(), &halves[..]);
            let mut out = vec![0i8; 65];
            convert::<i8, i8>(&bytes, &mut out);
            prop_assert_eq!(out.as_bytes(), &bytes[..]);
        }

        #[test]
        fn narrowing_rounds_to_nearest_even(values in proptest::collection::vec(any_f32(), 1..40)) {
            let mut halves = vec![f16::ZERO; values.len()];
            let mut brains = vec![bf16::ZERO; values.len()];
            f16::narrow(&values, &mut halves);
            bf16::narrow(&values, &mut brains);
            for ((&value, half), brain) in values.iter().zip(halves).zip(brains) {
                if value.is_nan() {
                    prop_assert!(half.is_nan() && brain.is_nan());
                } else {
                    prop_assert_eq!(half.to_bits(), naive_narrow(value, 5, 10), "{:e} to f16", value);
                    prop_assert_eq!(brain.to_bits(), naive_narrow(value, 8, 7), "{:e} to bf16", value);
                }
            }
        }
    }
}
