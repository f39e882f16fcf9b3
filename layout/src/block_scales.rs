//! Numbers of rows that have scales behind their elements: MXFP8, E4M3 with one scale a row, NVFP4. Every product is of `f32`, rounded
//! to nearest, ties to even.

use crate::float8::E4M3_VALUES;

/// Elements that share a scale in MXFP8.
const MX: usize = 32;
/// Elements that share a scale in NVFP4.
const NV: usize = 16;

/// The values of the 16 codes of E2M1.
pub static E2M1_VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The power of two that a byte of E8M0 stands for; 0 for 0, whose power would be subnormal, and no number for 255.
#[inline]
pub const fn e8m0(byte: u8) -> f32 {
    if byte == u8::MAX { f32::NAN } else { f32::from_bits((byte as u32) << 23) }
}

/// Calls `take` with a row's elements as numbers, block by block, and with the index of each block's first element.
#[inline(always)]
pub fn widen_mxfp8(row: &[u8], mut take: impl FnMut(usize, &[f32])) {
    let (codes, scales) = row.split_at(row.len() / (MX + 1) * MX);
    let mut wide = [0.0; MX];
    for (block, (codes, &scale)) in codes.as_chunks::<MX>().0.iter().zip(scales).enumerate() {
        let scale = e8m0(scale);
        wide.iter_mut().zip(codes).for_each(|(wide, &code)| *wide = E4M3_VALUES[usize::from(code)] * scale);
        take(block * MX, &wide);
    }
}

/// See [`widen_mxfp8`].
#[inline(always)]
pub fn widen_f8e4m3s(row: &[u8], mut take: impl FnMut(usize, &[f32])) {
    let Some((codes, &scale)) = row.split_last_chunk() else { return };
    let scale = f32::from_le_bytes(scale);
    let mut wide = [0.0; MX];
    for (block, codes) in codes.chunks(MX).enumerate() {
        let wide = &mut wide[..codes.len()];
        wide.iter_mut().zip(codes).for_each(|(wide, &code)| *wide = E4M3_VALUES[usize::from(code)] * scale);
        take(block * MX, wide);
    }
}

/// See [`widen_mxfp8`].
#[inline(always)]
pub fn widen_nvfp4(row: &[u8], mut take: impl FnMut(usize, &[f32])) {
    let Some((rest, &global)) = row.split_last_chunk() else { return };
    let global = f32::from_le_bytes(global);
    let (pairs, scales) = rest.split_at(rest.len() / (NV / 2 + 1) * (NV / 2));
    let mut wide = [0.0; NV];
    for (block, (pairs, &scale)) in pairs.as_chunks::<{ NV / 2 }>().0.iter().zip(scales).enumerate() {
        let scale = E4M3_VALUES[usize::from(scale)] * global;
        for (wide, &pair) in wide.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
            *wide = [pair & 15, pair >> 4].map(|code| E2M1_VALUES[usize::from(code)] * scale);
        }
        take(block * NV, &wide);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    /// A number as a sign, an integer and a power of two.
    #[derive(Clone, Copy)]
    struct Exact {
        negative: bool,
        integer: u64,
        power: i32,
    }

    impl Exact {
        fn times(self, other: Self) -> Self {
            let negative = self.negative != other.negative;
            Self { negative, integer: self.integer * other.integer, power: self.power + other.power }
        }

        /// The nearest `f32`, by the definition: the multiple of its unit that is nearest, of two the even one.
        fn rounded(self) -> f32 {
            let bits = 64 - self.integer.leading_zeros() as i32;
            // The unit of the result: 24 bits of the integer, or the smallest subnormal.
            let unit = (self.power + bits - 24).max(-149);
            let drop = unit - self.power;
            let units = match drop {
                ..=0 => self.integer << -drop,
                64.. => 0,
                _ => {
                    let (whole, rest) = (self.integer >> drop, self.integer & ((1 << drop) - 1));
                    let half = 1 << (drop - 1);
                    whole + u64::from(rest > half || (rest == half && whole & 1 == 1))
                }
            };
            let value = units as f64 * 2f64.powi(unit);
            let value = if value > f64::from(f32::MAX) { f32::INFINITY } else { value as f32 };
            if self.negative { -value } else { value }
        }
    }

    fn of_f32(value: f32) -> Exact {
        let bits = value.to_bits();
        let exponent = (bits >> 23 & 255) as i32;
        let mantissa = u64::from(bits & 0x7f_ffff);
        let (integer, power) = if exponent == 0 { (mantissa, -149) } else { (mantissa | 1 << 23, exponent - 150) };
        Exact { negative: bits >> 31 == 1, integer, power }
    }

    /// E4M3 by its definition; `None`: no number.
    fn e4m3(code: u8) -> Option<Exact> {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), u64::from(code & 7));
        let negative = code >> 7 == 1;
        match (exponent, mantissa) {
            (15, 7) => None,
            (0, _) => Some(Exact { negative, integer: mantissa, power: -9 }),
            _ => Some(Exact { negative, integer: 8 + mantissa, power: exponent - 10 }),
        }
    }

    /// E2M1 by its definition.
    fn e2m1(code: u8) -> Exact {
        let (exponent, mantissa) = (i32::from(code >> 1 & 3), u64::from(code & 1));
        let negative = code >> 3 == 1;
        match exponent {
            0 => Exact { negative, integer: mantissa, power: -1 },
            _ => Exact { negative, integer: 2 + mantissa, power: exponent - 2 },
        }
    }

    fn agree(got: f32, wanted: Option<f32>, what: &str) {
        match wanted {
            None => assert!(got.is_nan(), "{what}: {got}"),
            Some(wanted) => assert_eq!(got.to_bits(), wanted.to_bits(), "{what}: {got}, not {wanted}"),
        }
    }

    #[test]
    fn mxfp8_is_code_times_a_power_of_two() {
        // Every code with every scale.
        for scale in 0..=255u8 {
            for first in (0..=255u8).step_by(MX) {
                let mut row: Vec<u8> = (0..MX as u8).map(|i| first + i).collect();
                row.push(scale);
                let mut seen = 0;
                widen_mxfp8(&row, |at, wide| {
                    assert_eq!((at, wide.len()), (0, MX));
                    for (&code, &got) in row.iter().zip(wide) {
                        let scale = match scale {
                            0 => Some(Exact { negative: false, integer: 0, power: 0 }),
                            255 => None,
                            _ => Some(Exact { negative: false, integer: 1, power: i32::from(scale) - 127 }),
                        };
                        let wanted = e4m3(code).zip(scale).map(|(code, scale)| code.times(scale).rounded());
                        agree(got, wanted, &format!("code {code:#x}, scale {:?}", row[MX]));
                        seen += 1;
                    }
                });
                assert_eq!(seen, MX);
            }
        }
    }

    #[test]
    fn one_scale_a_row_multiplies_all_codes() {
        for scale in [0.000_199_317_93f32, 1.0, 3.14e-38, 1e-44, 2.9e38, -0.3] {
            let mut row: Vec<u8> = (0..=255).collect();
            row.extend(scale.to_le_bytes());
            let mut at = 0;
            widen_f8e4m3s(&row, |first, wide| {
                assert_eq!(first, at);
                for &got in wide {
                    let wanted = e4m3(at as u8).map(|code| code.times(of_f32(scale)).rounded());
                    agree(got, wanted, &format!("code {at:#x} times {scale}"));
                    at += 1;
                }
            });
            assert_eq!(at, 256);
        }
    }

    #[test]
    fn nvfp4_is_code_times_the_product_of_its_scales() {
        let mut random = fastrand::Rng::with_seed(5);
        for round in 0..4000 {
            let pairs: Vec<u8> = (0..16).map(|_| random.u8(..)).collect();
            let scales = [round as u8, random.u8(..)];
            let global = if round % 3 == 0 { random.f32() * 1e-40 } else { random.f32() * 1e-3 };
            let row = [&pairs[..], &scales, &global.to_le_bytes()].concat();
            assert_eq!(DType::Nvfp4.row_bytes(32), Some(row.len() as u32));
            let mut at = 0;
            widen_nvfp4(&row, |first, wide| {
                assert_eq!((first, wide.len()), (at, NV));
                let scale = e4m3(scales[at / NV]).map(|scale| of_f32(scale.times(of_f32(global)).rounded()));
                for &got in wide {
                    let code = pairs[at / 2] >> (at % 2 * 4) & 15;
                    let wanted = scale.map(|scale| e2m1(code).times(scale).rounded());
                    agree(got, wanted, &format!("round {round}, code {code:#x}, scales {scales:?} and {global}"));
                    at += 1;
                }
            });
            assert_eq!(at, 32);
        }
    }

    #[test]
    fn rows_that_are_cut_off_give_what_there_is() {
        for len in 0..80 {
            let row = vec![0x38; len];
            let mut most = 0;
            widen_mxfp8(&row, |first, wide| most = most.max(first + wide.len()));
            widen_f8e4m3s(&row, |first, wide| most = most.max(first + wide.len()));
            widen_nvfp4(&row, |first, wide| most = most.max(first + wide.len()));
            assert!(most <= 2 * len, "{len}: {most}");
        }
    }
}
