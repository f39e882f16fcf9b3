//! Bare little-endian integers.

use std::io::Read;

use super::error::TraceProblem;
use super::rest::read_rest;
use crate::keys::Keys;

/// Type of the integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    U32,
    U64,
    I32,
    I64,
}

impl Type {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "u32" => Self::U32,
            "u64" => Self::U64,
            "i32" => Self::I32,
            "i64" => Self::I64,
            _ => return None,
        })
    }

    pub(super) fn width(self) -> usize {
        match self {
            Self::U32 | Self::I32 => 4,
            Self::U64 | Self::I64 => 8,
        }
    }

    /// `bytes` as keys; what is left over after whole integers is not looked at.
    pub(super) fn decode(self, bytes: &[u8]) -> Keys {
        let (fours, eights) = (bytes.as_chunks::<4>().0.iter(), bytes.as_chunks::<8>().0.iter());
        match self {
            Self::U32 => Keys::Unsigned(fours.map(|&b| u32::from_le_bytes(b).into()).collect()),
            Self::I32 => Keys::Signed(fours.map(|&b| i32::from_le_bytes(b).into()).collect()),
            Self::U64 => Keys::Unsigned(eights.map(|&b| u64::from_le_bytes(b)).collect()),
            Self::I64 => Keys::Signed(eights.map(|&b| i64::from_le_bytes(b)).collect()),
        }
    }
}

pub(super) fn read(reader: &mut impl Read, len: u64, of: Type) -> Result<Keys, TraceProblem> {
    if !len.is_multiple_of(of.width() as u64) {
        return Err(TraceProblem::NotWhole { bytes: len, width: of.width() });
    }
    Ok(of.decode(&read_rest(reader)?))
}
