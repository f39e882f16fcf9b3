//! The eight-bit floats of the Open Compute Project: E4M3, which has no infinities, and E5M2.
//!
//! The conversions are written by hand. The crate `half` has none, and that of `float8` 0.7 differs from the one of
//! PyTorch and the kernels: it turns a finite number that is too large into the largest finite one, instead of infinity
//! (E5M2) or NaN (E4M3). That concerns 44 % and 47 % of all `f32`; the other finite numbers are rounded alike. It also
//! widens the codes of NaN, two and six of the 256, to other bits.

use crate::dtype::DType;

/// Bits of the mantissa, bias of the exponent, largest finite magnitude, what overflows, what is not a number.
struct Shape {
    mantissa: u32,
    bias: i32,
    largest: u8,
    overflow: u8,
    nan: u8,
}

const E4M3: Shape = Shape { mantissa: 3, bias: 7, largest: 0x7e, overflow: 0x7f, nan: 0x7f };
const E5M2: Shape = Shape { mantissa: 2, bias: 15, largest: 0x7b, overflow: 0x7c, nan: 0x7f };

/// The values of all 256 codes of E4M3.
pub static E4M3_VALUES: [f32; 256] = values(&E4M3);
/// The values of all 256 codes of E5M2.
pub static E5M2_VALUES: [f32; 256] = values(&E5M2);

/// The values of the codes of `dtype`, if it is an eight-bit float.
pub const fn values_of(dtype: DType) -> Option<&'static [f32; 256]> {
    match dtype {
        DType::F8E4M3 => Some(&E4M3_VALUES),
        DType::F8E5M2 => Some(&E5M2_VALUES),
        _ => None,
    }
}

const fn values(shape: &Shape) -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = value(shape, code as u32);
        code += 1;
    }
    values
}

const fn value(shape: &Shape, code: u32) -> f32 {
    let sign = (code & 0x80) << 24;
    let magnitude = code & 0x7f;
    let exponent = (magnitude >> shape.mantissa) as i32;
    let mantissa = magnitude & ((1 << shape.mantissa) - 1);
    let bits = if magnitude > shape.largest as u32 {
        if magnitude == shape.overflow as u32 && shape.overflow != shape.nan { 0x7f80_0000 } else { 0x7fc0_0000 }
    } else if exponent > 0 {
        (((exponent - shape.bias + 127) as u32) << 23) | (mantissa << (23 - shape.mantissa))
    } else if mantissa == 0 {
        0
    } else {
        // A subnormal: its leading one becomes the implicit one.
        let shift = shape.mantissa + mantissa.leading_zeros() - 31;
        let exponent = 1 - shape.bias - shift as i32;
        (((exponent + 127) as u32) << 23)
            | (((mantissa << shift) & ((1 << shape.mantissa) - 1)) << (23 - shape.mantissa))
    };
    f32::from_bits(sign | bits)
}

/// `value` as E4M3: rounded to nearest, ties to even; a number that is too large becomes NaN.
pub fn to_e4m3(value: f32) -> u8 {
    narrow(&E4M3, value)
}

/// `value` as E5M2: rounded to nearest, ties to even; a number that is too large becomes infinite.
pub fn to_e5m2(value: f32) -> u8 {
    narrow(&E5M2, value)
}

fn narrow(shape: &Shape, value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let bits = value.to_bits() & 0x7fff_ffff;
    if value.is_nan() {
        return sign | shape.nan;
    }
    let exponent = (bits >> 23) as i32 - 127;
    let (units, dropped) = if exponent < 1 - shape.bias {
        // Becomes subnormal: in units of the smallest one. What f32 itself has subnormal is far below half of that.
        let shift = 23 - shape.mantissa + (1 - shape.bias - exponent) as u32;
        if shift > 25 { (0, 32) } else { ((bits & 0x007f_ffff) | 0x0080_0000, shift) }
    } else {
        (bits - (((127 - shape.bias) as u32) << 23), 23 - shape.mantissa)
    };
    if dropped == 32 {
        return sign;
    }
    let rest = units & ((1 << dropped) - 1);
    let half = 1 << (dropped - 1);
    // Counting up in the last place carries into the exponent as it should.
    let code = (units >> dropped) + u32::from(rest > half || (rest == half && (units >> dropped) & 1 == 1));
    sign | if code > u32::from(shape.largest) { shape.overflow } else { code as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_those_of_the_specification() {
        for (code, e4m3, e5m2) in [
            (0x00, 0.0, 0.0),
            (0x01, 2f32.powi(-9), 2f32.powi(-16)),
            (0x03, 3.0 * 2f32.powi(-9), 3.0 * 2f32.powi(-16)),
            (0x38, 1.0, 0.5),
            (0x3c, 1.5, 1.0),
            (0xbc, -1.5, -1.0),
            (0x7b, 352.0, 57344.0),
            (0x7c, 384.0, f32::INFINITY),
            (0x7e, 448.0, f32::NAN),
            (0x7f, f32::NAN, f32::NAN),
        ] {
            for (values, want) in [(&E4M3_VALUES, e4m3), (&E5M2_VALUES, e5m2)] {
                let got = values[code];
                assert!(got == want || got.is_nan() && want.is_nan(), "{code:#x}: {got}, not {want}");
            }
        }
        assert!(E4M3_VALUES[0x80] == 0.0 && E4M3_VALUES[0x80].is_sign_negative());
    }

    #[test]
    fn every_code_comes_back() {
        for code in 0..=255u8 {
            for (values, narrow) in [(&E4M3_VALUES, to_e4m3 as fn(f32) -> u8), (&E5M2_VALUES, to_e5m2)] {
                let value = values[usize::from(code)];
                let back = narrow(value);
                assert!(back == code || value.is_nan() && values[usize::from(back)].is_nan(), "{code:#x}: {back:#x}");
            }
        }
    }

    /// The code whose value is nearest, by looking at all; of two, the even one.
    fn naive(values: &[f32; 256], value: f32) -> u8 {
        let finite = (0..128u8).filter(|&code| values[usize::from(code)].is_finite());
        let distance = |code: u8| (f64::from(values[usize::from(code)]) - f64::from(value.abs())).abs();
        let best = finite.min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap();
        best | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    proptest! {
        #[test]
        fn rounds_to_the_nearest(bits: u32, scale in -20i32..10, near in any::<bool>(), code: u8, nudge in -2i32..=2) {
            let halfway = |values: &[f32; 256]| {
                let a = values[usize::from(code & 0x7f)];
                let b = values[usize::from((code & 0x7f).saturating_add(1) & 0x7f)];
                f32::from_bits((((a + b) / 2.0).to_bits() as i32).wrapping_add(nudge) as u32)
            };
            for (values, narrow) in [(&E4M3_VALUES, to_e4m3 as fn(f32) -> u8), (&E5M2_VALUES, to_e5m2)] {
                let value = if near { halfway(values) } else { (bits as f32 / u32::MAX as f32 - 0.5) * 2f32.powi(scale) };
                let largest = values.iter().copied().filter(|value| value.is_finite()).fold(0.0, f32::max);
                if value.is_finite() && value.abs() <= largest {
                    prop_assert_eq!(narrow(value), naive(values, value), "{}", value);
                }
            }
        }
    }

    #[test]
    fn what_is_too_large_is_no_number() {
        assert_eq!((to_e4m3(464.0), to_e4m3(464.1), to_e4m3(-1e9)), (0x7e, 0x7f, 0xff));
        assert_eq!((to_e5m2(61439.9), to_e5m2(61440.0), to_e5m2(f32::NEG_INFINITY)), (0x7b, 0x7c, 0xfc));
    }
}
