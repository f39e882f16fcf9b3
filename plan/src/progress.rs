//! How far planning is.

use std::ops::ControlFlow;

use crate::error::ProposalError;

/// How far planning has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProposalProgress {
    /// What is being done.
    pub what: &'static str,
    /// Queries read in this pass.
    pub done: u64,
    /// Queries of this pass.
    pub total: u64,
}

/// Called with the progress, and says whether to go on.
pub type ProposalWatch<'a> = dyn FnMut(ProposalProgress) -> ControlFlow<()> + 'a;

/// Tells of progress in queries `range`.
pub(crate) struct Told<'a, 'w> {
    what: &'static str,
    range: std::ops::Range<u64>,
    watch: &'a mut ProposalWatch<'w>,
}

impl<'a, 'w> Told<'a, 'w> {
    pub(crate) fn new(what: &'static str, range: std::ops::Range<u64>, watch: &'a mut ProposalWatch<'w>) -> Self {
        Self { what, range, watch }
    }

    pub(crate) fn at(&mut self, query: u64) -> Result<(), ProposalError> {
        let begin = self.range.start;
        let end = self.range.end;
        let progress = ProposalProgress { what: self.what, done: query.saturating_sub(begin), total: end - begin };
        match (self.watch)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ProposalError::Stopped),
        }
    }
}
