//! How far a load is, and what it did.

use std::time::Duration;

/// How far a load is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadProgress {
    /// Which of the tables is being loaded.
    pub table: usize,
    /// Bytes of rows put in order in memory, of all tables: those that are permuted, before they are written.
    pub gathered: u64,
    /// Bytes written to drives, of all tables.
    pub written: u64,
    /// Bytes to be written.
    pub total: u64,
    /// Bytes of sources read for their checksums alone, of all tables: those of rows that an earlier attempt had written.
    pub compared: u64,
}

/// What a load did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The new generation.
    pub generation: u64,
    /// Bytes written to drives, without metadata.
    pub bytes: u64,
    /// Bytes that an earlier attempt had written, and that were found intact.
    pub resumed: u64,
    /// Whether there was a journal of another load, or one whose content was lost, and this load began anew.
    pub begun_anew: bool,
    /// Generations that gave way: all of their tables were replaced.
    pub superseded: Vec<u64>,
    /// Time from the first write to the end of the commit.
    pub elapsed: Duration,
}
