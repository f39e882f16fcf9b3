//! What can be wrong with keys, and with the bytes of an index.

use crate::format::{FORMAT_VERSION, MAX_KEYS};
use crate::key_kind::KeyKind;

/// An index was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two keys are the same.
    #[error("key {} stands at positions {first} and {second}: each key has one row; remove one of them", kind.show(*key))]
    Duplicate {
        /// The key, of an `i64` its bits.
        key: u64,
        /// Which numbers the bits stand for.
        kind: KeyKind,
        /// Where it stands, counted from 0.
        first: u64,
        /// Where it stands again.
        second: u64,
    },
    /// There are none, or too many.
    #[error("{keys} keys; an index has 1 to {MAX_KEYS}")]
    Count {
        /// How many there are.
        keys: u64,
    },
    /// The source did not give the same keys when it was asked again.
    #[error("the keys changed while they were read: leave the file alone until it is loaded")]
    Changed,
    /// The source failed.
    #[error("keys from position {first} on cannot be read")]
    Source {
        /// The first that was asked for.
        first: u64,
        /// Why.
        source: std::io::Error,
    },
    /// Memory was refused.
    #[error("{bytes} bytes for {what} cannot be had: give less memory to the build, or more to the machine")]
    Memory {
        /// What they are for.
        what: &'static str,
        /// How many.
        bytes: u64,
    },
    /// No seed that was tried gives a function. Of keys that were not chosen for it, not one set in 10¹⁵ has this.
    #[error("no function was found for these keys with {tried} seeds from {seed} on: give another seed")]
    Unlucky {
        /// Seeds tried.
        tried: u32,
        /// The first.
        seed: u64,
    },
    /// The caller stopped it.
    #[error("interrupted")]
    Interrupted,
}

/// Bytes are no index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// Not the magic.
    #[error("these bytes are no key index: the magic is not there")]
    Magic,
    /// Of another version.
    #[error("the key index has format version {found}, this program knows {}", FORMAT_VERSION)]
    Version {
        /// What it says.
        found: u32,
    },
    /// The bytes end too soon or too late.
    #[error("the key index has {given} bytes, its header says {expected}")]
    Length {
        /// By the header; `u64::MAX` if that is no number of bytes.
        expected: u64,
        /// There are.
        given: u64,
    },
    /// A checksum does not match.
    #[error("the key index is damaged: CRC32C of its {part} is {found:08x}, not {expected:08x}")]
    Damaged {
        /// Of what.
        part: &'static str,
        /// Stored.
        expected: u32,
        /// Computed.
        found: u32,
    },
    /// A field cannot be so.
    #[error("the key index cannot be: {what}")]
    Field {
        /// Which, and why.
        what: &'static str,
    },
}
