//! Element types of a table.

use serde::{Deserialize, Serialize};

/// The type of a row's elements. The number is the one on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary16.
    F16 = 1,
    /// The upper half of a binary32.
    BF16 = 2,
    /// Signed byte.
    I8 = 3,
    /// Unsigned byte.
    U8 = 4,
}

impl DType {
    /// Every type, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::BF16, Self::I8, Self::U8];

    /// Bytes of one element.
    pub const fn size(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }

    /// The type of that number on the drive.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&dtype| dtype as u8 == code)
    }

    /// The lower-case name: `f32`, `f16`, `bf16`, `i8`, `u8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I8 => "i8",
            Self::U8 => "u8",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
