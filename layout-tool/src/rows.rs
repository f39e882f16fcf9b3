//! Rows of any type, as a look-up fills them and as bytes.

use half::{bf16, f16};
use warprow_layout::DType;
use warprow_lookup::OutputRows;
use zerocopy::IntoBytes;

/// Room for rows.
#[derive(Debug, Clone)]
pub enum RowBuffer {
    /// IEEE 754 binary32.
    F32(Vec<f32>),
    /// IEEE 754 binary16.
    F16(Vec<f16>),
    /// The upper half of a binary32.
    Bf16(Vec<bf16>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// Unsigned bytes.
    U8(Vec<u8>),
}

impl RowBuffer {
    /// Zeros.
    pub fn new(dtype: DType, elements: usize) -> Self {
        match dtype {
            DType::F32 => Self::F32(vec![0.0; elements]),
            DType::F16 => Self::F16(vec![f16::ZERO; elements]),
            DType::BF16 => Self::Bf16(vec![bf16::ZERO; elements]),
            DType::I8 => Self::I8(vec![0; elements]),
            _ => Self::U8(vec![0; elements]),
        }
    }

    /// The ids, as a look-up takes them.
    pub fn rows(&mut self) -> OutputRows<'_> {
        match self {
            Self::F32(rows) => OutputRows::F32(rows),
            Self::F16(rows) => OutputRows::F16(rows),
            Self::Bf16(rows) => OutputRows::Bf16(rows),
            Self::I8(rows) => OutputRows::I8(rows),
            Self::U8(rows) => OutputRows::U8(rows),
        }
    }

    /// The rows, as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(rows) => rows.as_bytes(),
            Self::F16(rows) => rows.as_bytes(),
            Self::Bf16(rows) => rows.as_bytes(),
            Self::I8(rows) => rows.as_bytes(),
            Self::U8(rows) => rows,
        }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(rows) => rows.as_mut_bytes(),
            Self::F16(rows) => rows.as_mut_bytes(),
            Self::Bf16(rows) => rows.as_mut_bytes(),
            Self::I8(rows) => rows.as_mut_bytes(),
            Self::U8(rows) => rows,
        }
    }

    /// By value.
    pub fn values(&self) -> Vec<f32> {
        match self {
            Self::F32(rows) => rows.clone(),
            Self::F16(rows) => rows.iter().map(|v| v.to_f32()).collect(),
            Self::Bf16(rows) => rows.iter().map(|v| v.to_f32()).collect(),
            Self::I8(rows) => rows.iter().map(|&v| v.into()).collect(),
            Self::U8(rows) => rows.iter().map(|&v| v.into()).collect(),
        }
    }
}
