//! What a table that is to be created is declared with, if it has keys.

use warprow_keys::{FingerprintWidth, KeyIndex, KeyKind};

/// The keys of a table to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySpec {
    /// Bytes of the keys' index.
    pub index_bytes: u64,
    /// Which numbers the keys are.
    pub kind: KeyKind,
    /// How the index tells foreign keys, which are not the table's.
    pub fingerprint: FingerprintWidth,
    /// Whether the keys themselves are stored, 8 bytes each: for export, for checking, and for look-ups that compare them.
    pub stored: bool,
}

impl KeySpec {
    pub(crate) fn new(index: &KeyIndex, stored: bool) -> Self {
        let kind = index.kind();
        let fingerprint = index.fingerprint();
        Self { index_bytes: index.as_bytes().len() as u64, kind, fingerprint, stored }
    }
}
