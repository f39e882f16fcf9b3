//! What a step has done, and when the next is due.

use std::time::Duration;

/// What one step has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepProgress {
    /// Commands fetched from submission queues.
    pub fetched: u32,
    /// Commands brought to their end, most by posting a completion.
    pub posted: u32,
    /// When something will happen by itself: a command is due, the controller becomes ready. `None` if only the host
    /// can make something happen.
    pub next: Option<Duration>,
}

impl StepProgress {
    /// Whether nothing happened.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.fetched == 0 && self.posted == 0
    }

    #[inline]
    pub(crate) fn merge(&mut self, other: Self) {
        self.fetched += other.fetched;
        self.posted += other.posted;
        self.next = earlier(self.next, other.next);
    }
}

/// The earlier of two moments, where there are any.
#[inline]
pub(crate) fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
