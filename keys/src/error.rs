//! What can be wrong with keys, and with the bytes of an index.

use crate::format::{FORMAT_VERSION, MAX_KEYS};
use crate::key_kind::KeyKind;

/// An index was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexBuildError {
    /// Two keys are the same.
    #[error("key {} stands at positions {first} and {second}: each key has one row; remove one of them", kind.show(*key))]
    Duplicate {
        /// The key, of an `i64` its bits.
        key: u64,
        /// Which numbers the bits stand for.
        kind: KeyKind,
        /// Where the key stands in the source, counted from 0.
        first: u64,
        /// Where the key stands again.
        second: u64,
    },
    /// The source has no keys, or too many.
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
        /// The first key that was asked for, counted from 0.
        first: u64,
        /// Why.
        source: std::io::Error,
    },
    /// Memory was refused.
    #[error("{bytes} bytes for {what} cannot be had: give less memory to the build, or more to the machine")]
    Memory {
        /// What the bytes are for.
        what: &'static str,
        /// How many.
        bytes: u64,
    },
    /// No seed that was tried gives a function. Unless keys were chosen to bring this about, not one set of keys in
    /// 10¹⁵ does.
    #[error("no function was found for these keys with {tried} seeds from {seed} on: give another seed")]
    Unlucky {
        /// Seeds tried.
        tried: u32,
        /// The first.
        seed: u64,
    },
    /// The caller stopped the build.
    #[error("interrupted")]
    Interrupted,
}

/// Why bytes are no index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The bytes do not begin with the magic.
    #[error("these bytes are no key index: the magic is not there")]
    Magic,
    /// The index is of another version.
    #[error("the key index has format version {found}, this program knows {}", FORMAT_VERSION)]
    Version {
        /// The version that it says.
        found: u32,
    },
    /// The bytes end too soon or too late.
    #[error("the key index has {given} bytes, its header says {expected}")]
    Length {
        /// Bytes that it must have by its header; `u64::MAX` if the header gives no number of bytes.
        expected: u64,
        /// Bytes that there are.
        given: u64,
    },
    /// A checksum does not match.
    #[error("the key index is damaged: CRC32C of its {part} is {found:08x}, not {expected:08x}")]
    Damaged {
        /// Which part of the index does not match.
        part: &'static str,
        /// The checksum that is stored.
        expected: u32,
        /// The checksum of the bytes as they are.
        found: u32,
    },
    /// A field of the header has a value that no index has.
    #[error("the key index cannot be: {what}")]
    Field {
        /// Which field, and why no index has that value.
        what: &'static str,
    },
}

/// Why n-grams cannot be hashed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NgramError {
    /// The rules are those of no table.
    #[error("these rules of n-grams cannot be: {0}")]
    Rules(&'static str),
    /// A token's word is not one of the model's.
    #[error("the word of token {token} is not below {limit}: these words are of another tokenizer")]
    Words {
        /// The first such token.
        token: usize,
        /// Words are below this.
        limit: u32,
    },
    /// A token that has no word.
    #[error(
        "{token} is no token, or has no word: give tokens of the model's own tokenizer, and the words of all of them"
    )]
    NoWord {
        /// The token.
        token: i64,
    },
    /// A model whose rules are not known.
    #[error("no such model is known here: there are {names}")]
    Model {
        /// The names of those that are.
        names: String,
    },
    /// Tokens, sequences, history or ids do not fit each other.
    #[error("the tokens cannot be hashed: {0}")]
    Batch(&'static str),
}
