//! How batches are made.

/// The most samples of a batch.
pub const MAX_BATCH: usize = 1 << 24;
/// The most batches that are made ahead.
pub const MAX_AHEAD: usize = 1 << 10;

/// How batches are made of a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataOptions {
    /// Samples of a batch, from 1 to [`MAX_BATCH`].
    pub batch: usize,
    /// Batches that a thread makes while those before them are used, from 1 to [`MAX_AHEAD`]. So many, one that is being made and one that is
    /// being used are in memory.
    pub ahead: usize,
    /// Whether the last samples, if they are fewer than a batch has, are left out.
    pub drop_last: bool,
}

impl Default for DataOptions {
    /// 4,096 samples, two batches ahead, and all samples.
    fn default() -> Self {
        Self { batch: 4096, ahead: 2, drop_last: false }
    }
}
