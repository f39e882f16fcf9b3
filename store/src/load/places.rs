//! How rows that are read from the first to the last come to their places.

use std::borrow::Cow;

use warprow_layout::{Placement, Ranks, Table};

use super::buckets::Buckets;

/// How rows that are read from the first to the last come to their places.
pub(super) enum Places<'a> {
    /// Put in order: the rank of each.
    Ranks(Cow<'a, Ranks>),
    /// Rows are written in the order in which they come.
    InTurn,
}

/// Bytes of rows that come in turn which are read while as many are written: some extents for each of many drives.
const IN_TURN: u64 = 16 << 20;

impl Places<'_> {
    /// The rows in parts that are put in order at once.
    pub(super) fn buckets<'b>(&'b self, table: &'b Table, placement: &'b Placement, memory: u64) -> Buckets<'b> {
        match self {
            Self::Ranks(ranks) => Buckets::new(table, placement, Some(ranks), memory),
            Self::InTurn => Buckets::new(table, placement, None, IN_TURN.min(memory / 2)),
        }
    }
}
