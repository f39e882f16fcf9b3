//! What `cuda/crc.cuh` needs to check rows: constants of CRC32C, as bytes for GPU memory.

/// The polynomial, reflected: bit 31 is the coefficient of 1.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Lanes of a warp, and bytes that each takes at a time.
const LANES: u32 = 32;
const QUAD: u32 = 16;

/// Bytes of [`row_constants`].
pub const ROW_CONSTANTS: usize = 16 * (LANES as usize + 1);

/// `value` · x.
const fn step(value: u32) -> u32 {
    (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// `value` · x⁸ⁿ for n bytes.
fn followed_by(value: u32, bytes: u32) -> u32 {
    (0..u64::from(bytes) * 8).fold(value, |value, _| step(value))
}

/// What [`PlanTables::crc_slices`](crate::abi::PlanTables::crc_slices) points to: by a byte's value its checksum's register (from zero), alone and with one, two and three zeros
/// behind it, 256 u32 each.
pub fn slices() -> Vec<u8> {
    (0..4).flat_map(|zeros| (0..256).flat_map(move |byte| followed_by(byte, 1 + zeros).to_le_bytes())).collect()
}

/// What lies before the checksums of a table whose rows have so many bytes (`RowCrcs`): for each lane what follows its last quad, and
/// what lies between two quads of a lane, as powers of x, each also times x⁸, x¹⁶ and x²⁴. 128-bit aligned where it lies.
pub fn row_constants(row_bytes: u32) -> Vec<u8> {
    let quads = row_bytes.div_ceil(QUAD);
    let after = (0..LANES).map(|lane| {
        let last = (quads.saturating_sub(1)).saturating_sub(lane) / LANES * LANES + lane;
        row_bytes.saturating_sub((last + 1).saturating_mul(QUAD))
    });
    let four = |bytes: u32| {
        let power = followed_by(1 << 31, bytes);
        (0..4).flat_map(move |more| followed_by(power, more).to_le_bytes())
    };
    after.chain([(LANES - 1) * QUAD]).flat_map(four).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_those_of_the_castagnoli_polynomial() {
        let words: Vec<u32> = slices().as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
        let mut crc = !0u32;
        for byte in b"123456789" {
            crc = (crc >> 8) ^ words[usize::from(crc as u8 ^ byte)];
        }
        assert_eq!(!crc, 0xe306_9283);
        let by_four = |word: u32| {
            [768, 512, 256, 0]
                .iter()
                .zip(word.to_le_bytes())
                .fold(0, |crc, (slice, byte)| crc ^ words[slice + usize::from(byte)])
        };
        let by_one = |word: u32| {
            word.to_le_bytes().iter().fold(0u32, |crc, byte| (crc >> 8) ^ words[usize::from(crc as u8 ^ byte)])
        };
        assert!([1, 0x8000_0000, 0x1234_5678, !0].iter().all(|&word| by_four(word) == by_one(word)));
    }

    #[test]
    fn constants_fill_their_place() {
        for bytes in [1, 16, 17, 512, 513, 8192] {
            assert_eq!(row_constants(bytes).len(), ROW_CONSTANTS);
        }
        // Behind the only quad of a row there is nothing: 1, x⁸, x¹⁶, x²⁴.
        assert_eq!(row_constants(16)[..16], [0, 0, 0, 0x80, 0, 0, 0x80, 0, 0, 0x80, 0, 0, 0x80, 0, 0, 0]);
    }
}
