//! How a key is told from one that the index was not built from.

/// Bits by which a key is told from one that the index was not built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FingerprintWidth {
    /// One foreign key in 256 passes.
    Bits8,
    /// One in 65,536.
    #[default]
    Bits16,
    /// One in 4.3·10⁹.
    Bits32,
}

impl FingerprintWidth {
    /// 8, 16 or 32.
    pub const fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }

    /// The fingerprint of so many bits, if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            8 => Some(Self::Bits8),
            16 => Some(Self::Bits16),
            32 => Some(Self::Bits32),
            _ => None,
        }
    }

    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Bits8 => 1,
            Self::Bits16 => 2,
            Self::Bits32 => 4,
        }
    }

    /// The share of foreign keys that pass.
    pub fn false_positives(self) -> f64 {
        f64::from(self.bits()).exp2().recip()
    }
}
