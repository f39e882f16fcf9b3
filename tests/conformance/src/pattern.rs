//! Content that tells where it belongs.

/// Fills whole blocks of `block` bytes, the first of which is `lba`: every 8 bytes depend on the seed, their block and
/// their place in it, so that data that is stale, shifted or of another block never matches.
pub fn fill(seed: u64, lba: u64, block: usize, bytes: &mut [u8]) {
    for (i, bytes) in bytes.chunks_mut(block).enumerate() {
        let base = mix(seed ^ mix(lba.wrapping_add(i as u64)));
        for (j, word) in bytes.chunks_mut(8).enumerate() {
            let value = mix(base.wrapping_add(j as u64)).to_le_bytes();
            word.copy_from_slice(&value[..word.len()]);
        }
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64-bit words.
pub(crate) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Numbers that look random and are the same in every run.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % end
    }
}
