//! A pass as a file: rows are staged to it for a trainer in any language, and brought back from one.

mod begin;
mod commit;
mod origin;
mod rows_file;

use std::ops::ControlFlow;

pub use begin::{Begun, begin};
pub use commit::{CommitOptions, Committed, commit};
pub use origin::Origin;

/// Bytes of rows that are in memory at once.
const WINDOW: usize = 64 << 20;

/// How far a pass is being staged, or brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub what: &'static str,
    /// Rows of which it is done.
    pub done: u64,
    /// All rows.
    pub total: u64,
}

/// Called with the progress, and says whether to go on.
pub type Watch<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;
