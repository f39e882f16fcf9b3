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
    /// Unsigned bytes, after which each row has its own scale and bias, an `f32` each: a number is `byte · scale + bias`. FBGEMM's
    /// fused 8-bit rows.
    Q8 = 7,
    /// Unsigned halves of bytes, the lower first, after which each row has its own scale and bias, an `f16` each. FBGEMM's fused
    /// 4-bit rows.
    Q4 = 8,
    /// E4M3 bytes, after which each row has a power of two for each 32 of them, as a byte of OCP E8M0: MXFP8.
    Mxfp8 = 9,
    /// E4M3 bytes, after which each row has a scale, an `f32`.
    F8E4M3S = 10,
    /// Halves of bytes of OCP E2M1, the lower first, after which each row has a scale for each 16 of them, an E4M3 byte, and one for
    /// all of these, an `f32`: NVFP4.
    Nvfp4 = 11,
}

impl DType {
    /// Every type, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I8,
        Self::U8,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::Q8,
        Self::Q4,
        Self::Mxfp8,
        Self::F8E4M3S,
        Self::Nvfp4,
    ];

    /// Bytes of one element, a whole one for halves of bytes. Rows that have a scale are longer: [`row_bytes`](Self::row_bytes).
    pub const fn size(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            _ => 1,
        }
    }

    /// Whether each row has scales behind its elements.
    pub const fn is_scaled(self) -> bool {
        matches!(self, Self::Q8 | Self::Q4 | Self::Mxfp8 | Self::F8E4M3S | Self::Nvfp4)
    }

    /// How many elements share a scale of their own, where a row has several.
    pub const fn scale_block(self) -> Option<u32> {
        match self {
            Self::Mxfp8 => Some(32),
            Self::Nvfp4 => Some(16),
            _ => None,
        }
    }

    /// Whether rows of other types can become rows of this one.
    pub const fn is_made(self) -> bool {
        !matches!(self, Self::I8 | Self::U8 | Self::Mxfp8 | Self::F8E4M3S | Self::Nvfp4)
    }

    /// Bytes of a row of `dim` elements, if they are fewer than 4 GiB, and whole bytes.
    pub const fn row_bytes(self, dim: u32) -> Option<u32> {
        match self {
            Self::Q8 => dim.checked_add(8),
            Self::Q4 if dim.is_multiple_of(2) => (dim / 2).checked_add(4),
            Self::Q4 => None,
            Self::Mxfp8 if dim.is_multiple_of(32) => dim.checked_add(dim / 32),
            Self::F8E4M3S => dim.checked_add(4),
            Self::Nvfp4 if dim.is_multiple_of(16) => (dim / 2 + dim / 16).checked_add(4),
            Self::Mxfp8 | Self::Nvfp4 => None,
            _ => dim.checked_mul(self.size()),
        }
    }

    /// The type of that number on the drive.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&dtype| dtype as u8 == code)
    }

    /// The lower-case name: `f32`, `f16`, `bf16`, `i8`, `u8`, `f8e4m3`, `f8e5m2`, `q8`, `q4`, `mxfp8`, `f8e4m3s`, `nvfp4`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
            Self::Mxfp8 => "mxfp8",
            Self::F8E4M3S => "f8e4m3s",
            Self::Nvfp4 => "nvfp4",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
