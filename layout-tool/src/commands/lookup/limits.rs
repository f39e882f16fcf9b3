//! How much is looked up at once, and shown.

/// Ids of one look-up, at most; more are looked up one after another.
pub(super) const CHUNK: usize = 1 << 16;
/// Bytes that the rows of one look-up take, about, at most: wide rows are looked up in smaller numbers.
pub(super) const CHUNK_BYTES: u64 = 64 << 20;
/// Numbers that `--json` prints, at most: they are in memory, at about 90 bytes each.
pub(super) const JSON_NUMBERS: u64 = 1 << 20;
/// Rows and elements that are shown to people.
pub(super) const SHOWN: (usize, usize) = (20, 8);
