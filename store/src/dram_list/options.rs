//! What is listed, and what came of it.

/// Which rows of a table executors are to keep in DRAM.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RerankOptions<'a> {
    /// The table.
    pub table: String,
    /// The rows, the hottest first; `None`: the table has no list any more, and its first ranks are kept.
    pub rows: Option<ListedRows<'a>>,
    /// Bytes a second at which the lists of a store are written, at most; `None`: as fast as the drives are. Of attached tables
    /// a list is one small file.
    pub bytes_per_second: Option<u64>,
}

/// Rows of a table, the hottest first.
#[derive(Debug, Clone, Copy)]
pub enum ListedRows<'a> {
    /// By ids or, where the table has keys, by keys, an `i64` by its bits. Those that the table does not have are counted and left
    /// out.
    Ids(&'a [u64]),
    /// By ranks, all below the number of rows.
    Ranks(&'a [u64]),
}

impl<'a> RerankOptions<'a> {
    /// No list for that table.
    pub fn new(table: impl Into<String>) -> Self {
        Self { table: table.into(), rows: None, bytes_per_second: None }
    }

    /// The rows of these ids, or keys (an `i64` by its bits), the hottest first.
    #[must_use]
    pub fn with_ids(self, ids: &'a [u64]) -> Self {
        Self { rows: Some(ListedRows::Ids(ids)), ..self }
    }

    /// Writes at most so many bytes a second.
    #[must_use]
    pub fn with_rate(self, bytes_per_second: u64) -> Self {
        Self { bytes_per_second: Some(bytes_per_second), ..self }
    }

    /// The rows of these ranks, the hottest first.
    #[must_use]
    pub fn with_ranks(self, ranks: &'a [u64]) -> Self {
        Self { rows: Some(ListedRows::Ranks(ranks)), ..self }
    }
}

/// What [`Store::rerank`](crate::Store::rerank) did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RerankReport {
    /// Rows that are listed now.
    pub listed: u64,
    /// Rows that were listed before; `None`: there was no list, or none that counts.
    pub before: Option<u64>,
    /// Rows that are listed now and were not before.
    pub added: u64,
    /// Ids that were given and that the table does not have.
    pub missing: u64,
    /// Ids or ranks that were given again.
    pub repeated: u64,
}
