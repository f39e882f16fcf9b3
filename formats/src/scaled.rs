//! Rows of small integers with a scale and a bias of their own: the fused rows of FBGEMM, bit for bit
//! (`FloatToFused8BitRowwiseQuantized`, `FloatToFused4BitRowwiseQuantized`).

use half::f16;

/// So much is added to a row's range before it divides.
const EPSILON: f32 = 1e-8;

/// Added to a number up to 2²² and taken away again, it leaves the nearest whole one, of two the even one, as `round_ties_even` does, which calls
/// a function on processors without SSE 4.1.
const TO_WHOLE: f32 = (3 << 22) as f32;

/// The least and the largest of finite numbers.
fn range(wide: &[f32]) -> (f32, f32) {
    const LANES: usize = 8;
    let mut min = [f32::INFINITY; LANES];
    let mut max = [f32::NEG_INFINITY; LANES];
    for values in wide.chunks(LANES) {
        for ((min, max), &value) in min.iter_mut().zip(&mut max).zip(values) {
            *min = if value < *min { value } else { *min };
            *max = if value > *max { value } else { *max };
        }
    }
    (min.into_iter().fold(f32::INFINITY, f32::min), max.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

/// A row of finite numbers as bytes, scale and bias. Where its range is not finite, it is lost.
pub(crate) fn narrow8(wide: &[f32], bytes: &mut [u8]) {
    let (min, max) = range(wide);
    let scale = (max - min) / 255.0;
    let inverse = 255.0 / (max - min + EPSILON);
    let Some((numbers, tail)) = bytes.split_last_chunk_mut::<8>() else { return };
    for (number, &value) in numbers.iter_mut().zip(wide) {
        *number = ((value - min) * inverse + TO_WHOLE - TO_WHOLE) as u8;
    }
    let (scale_bytes, bias_bytes) = tail.split_at_mut(4);
    scale_bytes.copy_from_slice(&scale.to_le_bytes());
    bias_bytes.copy_from_slice(&min.to_le_bytes());
}

/// The numbers of such a row.
pub(crate) fn widen8(bytes: &[u8], wide: &mut [f32]) {
    let Some((numbers, &[a, b, c, d, e, f, g, h])) = bytes.split_last_chunk() else { return };
    let scale = f32::from_le_bytes([a, b, c, d]);
    let bias = f32::from_le_bytes([e, f, g, h]);
    wide.iter_mut().zip(numbers).for_each(|(wide, &number)| {
        let scaled = f32::from(number) * scale;
        *wide = scaled + bias;
    });
}

/// A row of finite numbers, an even number of them, as halves of bytes, scale and bias. Numbers beyond what an `f16` holds become
/// infinite.
pub(crate) fn narrow4(wide: &[f32], bytes: &mut [u8]) {
    let (min, max) = range(wide);
    let bias = f16::from_f32(min);
    let min = bias.to_f32();
    let spread = max - min;
    let scale = f16::from_f32(if spread == 0.0 { 1.0 } else { spread / 15.0 }).to_f32();
    let scale = if scale == 0.0 || (1.0 / scale).is_infinite() { 1.0 } else { scale };
    let inverse = 1.0 / scale;
    let number = |value: f32| ((value - min) * inverse + TO_WHOLE - TO_WHOLE).clamp(0.0, 15.0) as u8;
    let Some((pairs, tail)) = bytes.split_last_chunk_mut::<4>() else { return };
    for (pair, &[first, second]) in pairs.iter_mut().zip(wide.as_chunks::<2>().0) {
        *pair = number(first) | number(second) << 4;
    }
    let (scale_bytes, bias_bytes) = tail.split_at_mut(2);
    scale_bytes.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    bias_bytes.copy_from_slice(&bias.to_le_bytes());
}

/// The numbers of such a row.
pub(crate) fn widen4(bytes: &[u8], wide: &mut [f32]) {
    let Some((pairs, &[a, b, c, d])) = bytes.split_last_chunk() else { return };
    let scale = f16::from_le_bytes([a, b]).to_f32();
    let bias = f16::from_le_bytes([c, d]).to_f32();
    for (wide, &pair) in wide.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
        *wide = [pair & 15, pair >> 4].map(|number| {
            let scaled = f32::from(number) * scale;
            scaled + bias
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rows_are_laid_out_as_fbgemm_does() {
        let mut row = [0; 12];
        narrow8(&[-1.0, 0.0, 1.0, 4.1], &mut row);
        // Steps of 5.1 / 255 = 0.02 from -1.
        assert_eq!(row[..4], [0, 50, 100, 255]);
        assert_eq!(row[4..8], (5.1f32 / 255.0).to_le_bytes());
        assert_eq!(row[8..], (-1.0f32).to_le_bytes());
        let mut row = [0; 6];
        narrow4(&[-1.0, 0.0, 2.0, 6.5], &mut row);
        // Steps of 0.5 from -1, the first number in the lower half.
        assert_eq!(row[..2], [0x20, 0xf6]);
        assert_eq!(
            (row[2..4].to_vec(), row[4..].to_vec()),
            (0x3800u16.to_le_bytes().to_vec(), 0xbc00u16.to_le_bytes().to_vec())
        );
    }

    #[test]
    fn numbers_are_rounded_to_nearest_and_ties_to_even() {
        for quarter in -64..=1200 {
            let value = quarter as f32 / 4.0;
            assert_eq!((value + TO_WHOLE - TO_WHOLE) as u8, value.round_ties_even() as u8, "{value}");
        }
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30, -1e30, 255.49998, 0.49999997, 254.50002] {
            assert_eq!((value + TO_WHOLE - TO_WHOLE) as u8, value.round_ties_even() as u8, "{value}");
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back_within_half_a_step(values in prop::collection::vec(-100f32..100.0, 1..50), constant in any::<bool>()) {
            let mut values = values;
            if values.len() % 2 == 1 {
                values.push(0.0);
            }
            if constant {
                let first = values[0];
                values.fill(first);
            }
            let (min, max) = range(&values);
            let mut back = vec![0.0; values.len()];
            let mut row = vec![0; values.len() + 8];
            narrow8(&values, &mut row);
            widen8(&row, &mut back);
            let step = (max - min) / 255.0;
            prop_assert!(values.iter().zip(&back).all(|(a, b)| (a - b).abs() <= step * 0.501 + 1e-4), "{:?}", back);
            let mut row = vec![0; values.len() / 2 + 4];
            narrow4(&values, &mut row);
            widen4(&row, &mut back);
            // Scale and bias are rounded to f16: at most 2⁻¹¹ of the largest number, over fifteen steps.
            let step = (max - min) / 15.0;
            let rounding = (max.abs().max(min.abs()) + (max - min)) / 1024.0;
            prop_assert!(values.iter().zip(&back).all(|(a, b)| (a - b).abs() <= step * 0.501 + rounding + 1e-4), "{:?}", back);
        }
    }
}
