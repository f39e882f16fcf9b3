//! A pass as a file: rows are staged to it for a trainer in any language, and brought back from one.

mod begin;
mod commit;
mod origin;
mod rows_file;

use std::ops::ControlFlow;

pub use begin::{BeginReport, begin};
pub use commit::{CommitOptions, CommitReport, commit};
pub use origin::StagedOrigin;

/// Bytes of rows that are in memory at once.
const WINDOW: usize = 64 << 20;

/// How far a pass is being staged, or brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassProgress {
    /// What is being done.
    pub what: &'static str,
    /// Rows of which it is done.
    pub done: u64,
    /// All rows.
    pub total: u64,
}

/// Called with the progress, and says whether to go on.
pub type PassWatch<'a> = dyn FnMut(PassProgress) -> ControlFlow<()> + 'a;
