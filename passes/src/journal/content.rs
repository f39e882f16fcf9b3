//! What the bytes of a journal can say, and how damage is told.

use super::record::Record;

/// What to do about a journal of which something was lost.
pub(super) const EXPORT: &str = "export the whole table, remove the journal, and begin another";

/// What the bytes of a journal say.
#[derive(Debug)]
pub(super) struct Content {
    /// The records that count.
    pub(super) records: Vec<Record>,
    /// Where the first record begins.
    pub(super) begin: u64,
    /// Where the last record that counts ends.
    pub(super) end: u64,
    /// Keys of passes up to this one were forgotten.
    pub(super) mark: u64,
    /// The last number that was given to a pass.
    pub(super) last: u64,
    /// The seal that counts; `None`: the journal is of the version that had no seals.
    pub(super) seal: Option<Current>,
    /// Whether the seal that counts says something else than this, because the other one is damaged.
    pub(super) reseal: bool,
}

/// The seal that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Current {
    /// Which of the two it is.
    pub(super) slot: usize,
    /// The highest number that a seal was written with.
    pub(super) sequence: u64,
}

/// Says that the file is shorter than the head of a journal.
pub(super) fn cut_off(bytes: &[u8], head: usize) -> String {
    format!("it is cut off: it has {} bytes, the head of a journal alone {head}: {EXPORT}", bytes.len())
}

/// Says that a record that is wanted is damaged.
pub(super) fn damaged() -> String {
    format!("a record in its middle is damaged: {EXPORT}")
}
