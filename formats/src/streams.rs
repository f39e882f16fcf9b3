//! Rows and keys that can only be read in their order.

use crate::error::FileError;

/// Rows that come in their order.
pub(crate) trait RowStream: Send {
    /// Fills `rows` with the next ones.
    fn next(&mut self, rows: &mut [u8]) -> Result<(), FileError>;
}

/// Keys that come in their order, many at a time.
pub(crate) trait KeyStream {
    /// The next ones, at least one and at most `most`.
    fn next(&mut self, most: usize) -> Result<Vec<u64>, FileError>;
}
