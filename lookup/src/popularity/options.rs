//! How rows are counted.

use warprow_cache::FrequentKeys;
use warprow_store::StoreError;

/// How an executor counts which rows are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterOptions {
    /// Bytes of memory for counts, which the tables share equally: 12 to 32 B for each row that is counted. While a table's counts are
    /// sorted anew, they take twice their share.
    pub bytes: u64,
    /// One id in so many is counted, at random: at least 1, which counts all.
    pub every: u32,
    /// All counts of a table are halved when so many of its ids were counted since; 0: never. `None`: eight times as many as rows fit.
    pub halved_after: Option<u64>,
}

impl CounterOptions {
    /// Counts in `bytes` bytes, of 64 ids one.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, every: 64, halved_after: None }
    }

    /// Counts one id in `every`.
    #[must_use]
    pub fn with_every(self, every: u32) -> Self {
        Self { every, ..self }
    }

    /// Halves the counts of a table when so many of its ids were counted since; 0: never.
    #[must_use]
    pub fn with_halved_after(self, counted: u64) -> Self {
        Self { halved_after: Some(counted), ..self }
    }

    /// The bytes of each of `tables` tables.
    pub(super) fn share(&self, tables: usize) -> Result<u64, StoreError> {
        let refused = |reason: String| Err(StoreError::ExecutorOptions { reason });
        let tables = tables.max(1) as u64;
        let least = FrequentKeys::LEAST_BYTES.saturating_mul(tables);
        if self.every == 0 {
            return refused("counters count one id in 1 or more: CounterOptions::every is 0".to_owned());
        }
        if self.bytes < least {
            let of = self.bytes;
            return refused(format!(
                "counters of {tables} tables take {least} bytes at least, and have {of}: give them more"
            ));
        }
        Ok(self.bytes / tables)
    }
}
