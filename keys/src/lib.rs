//! Sparse 64-bit keys, and n-grams of tokens, to row numbers.
//!
//! A [`KeyIndex`] maps n different keys, any `u64` or `i64`, to their *positions*: 0 to n − 1, each once. It takes
//! about 3.3 bits a key, and a fingerprint of 8, 16 or 32 bits a key. By the fingerprint it tells *foreign* keys, which
//! it was not built from: all but one in 2⁸, 2¹⁶ or 2³² of them have no position. Inside the crate, a *slot* is a place
//! of the hash function's table, of which there are a few more than keys; keys whose slot is n or above are led to a
//! slot below n.
//!
//! ```
//! use warprow_keys::{FingerprintWidth, KeyIndex, KeyKind, IndexOptions};
//!
//! let keys = [-5i64, 7, i64::MAX, 1 << 40];
//! let index = KeyIndex::build(&keys[..], &IndexOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()))?;
//! let mut slots: Vec<u64> = keys.iter().filter_map(|&key| index.position(key as u64)).collect();
//! slots.sort();
//! assert_eq!(slots, [0, 1, 2, 3]);
//! assert_eq!((index.kind(), index.fingerprint()), (KeyKind::I64, FingerprintWidth::Bits16));
//! # Ok::<(), warprow_keys::IndexBuildError>(())
//! ```
//!
//! An index is a string of bytes, the same on every machine ([`KeyIndex::as_bytes`]); a GPU evaluates it where it lies. The bytes,
//! the function and why it is this one: `docs/keys.md`.
//!
//! An [`NgramHash`] gives the rows that the tokens of a text ask a language model's n-gram table for: `docs/ngram.md`.

#![forbid(unsafe_code)]

mod build;
mod bytes;
mod error;
mod fingerprint;
mod format;
mod hash;
mod index;
mod key_kind;
mod ngram;
mod ngram_model;
mod primes;
mod shape;
mod source;
mod text_hash;
mod token_batch;

pub use build::{IndexOptions, KeyPosition};
pub use error::{IndexBuildError, IndexError, NgramError};
pub use fingerprint::FingerprintWidth;
pub use format::{FORMAT_VERSION, HEADER_BYTES, MAX_KEYS};
pub use index::{IndexParts, KeyIndex};
pub use key_kind::KeyKind;
pub use ngram::{DEAD_TOKEN, MAX_ORDER, NgramHash, NgramHead, NgramRules};
pub use ngram_model::NgramModel;
pub use source::{KeyList, KeySource};
pub use text_hash::TextHash;
pub use token_batch::TokenBatch;
