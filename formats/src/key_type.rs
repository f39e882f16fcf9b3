//! The types that keys have.

/// The type of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// Four bytes without a sign.
    U32,
    /// Four bytes with a sign.
    I32,
    /// Eight bytes with a sign.
    I64,
    /// Eight bytes without a sign.
    U64,
}

impl KeyType {
    /// Bytes of a key.
    pub const fn size(self) -> u64 {
        match self {
            Self::U32 | Self::I32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether keys below zero are as such, rather than very large.
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I32 | Self::I64)
    }

    /// A key as a number, from the 64 bits that stand for it.
    pub fn show(self, bits: u64) -> String {
        if self.is_signed() { (bits as i64).to_string() } else { bits.to_string() }
    }
}
