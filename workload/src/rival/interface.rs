//! What every rival does.

use std::time::Duration;

use super::error::RivalError;

/// Someone else who looks rows up.
pub trait Rival {
    /// What it is called: `pread`, `io_uring, equal means`.
    fn name(&self) -> String;

    /// Writes the row of `ids[i]` to `rows` at `i` rows, the default row for those that are missing, and to `mask` 1 or 0. `rows`
    /// has as many bytes as rows for all ids take, and `mask` as many as there are ids.
    fn lookup(&mut self, ids: &[i64], rows: &mut [u8], mask: &mut [u8]) -> Result<(), RivalError>;

    /// How long the last answer took, if the rival knows that better than the caller's clock: one in another process does not
    /// count the way there and back.
    fn took(&self) -> Option<Duration> {
        None
    }
}
