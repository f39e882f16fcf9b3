//! What `bench-passes` found.

use serde::{Deserialize, Serialize};

use crate::passes::PassResult;

/// Training passes in every way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrainingPasses {
    /// Rows of the table.
    pub rows: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// `direct` or `cached`, a file; or the timing of a drive in memory.
    pub drive: String,
    /// Seed of keys and contents.
    pub seed: u64,
    /// What came of it.
    pub result: PassResult,
}
