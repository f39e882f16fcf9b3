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
    /// Eight-bit float of four exponent and three mantissa bits, without infinities: OCP E4M3, `torch.float8_e4m3fn`.
    F8E4M3 = 5,
    /// Eight-bit float of five exponent and two mantissa bits: OCP E5M2, `torch.float8_e5m2`.
    F8E5M2 = 6,
}

impl DType {
    /// Every type, in the order of their numbers.
    pub const ALL: [Self; 7] = [Self::F32, Self::F16, Self::BF16, Self::I8, Self::U8, Self::F8E4M3, Self::F8E5M2];

    /// Bytes of one element.
    pub const fn size(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
        }
    }

    /// Bytes of a row of `dim` elements, if they are fewer than 4 GiB.
    pub const fn row_bytes(self, dim: u32) -> Option<u32> {
        dim.checked_mul(self.size())
    }

    /// The type of that number on the drive.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&dtype| dtype as u8 == code)
    }

    /// The lower-case name: `f32`, `f16`, `bf16`, `i8`, `u8`, `f8e4m3`, `f8e5m2`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
