//! The sizes of the two rings of a queue pair.

use warprow_dma::PAGE;
use warprow_spec::{Cqe, Sqe};

/// Entries of the two rings of a queue pair, each from 2 to what the controller can have (CAP.MQES, at most 65,536), and
/// where they lie in its memory: the submission queue at 0, the completion queue at the next page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Entries of the submission queue.
    pub entries: u32,
    /// Entries of the completion queue.
    pub completion_entries: u32,
}

impl RingSizes {
    /// Where the completion queue begins, bytes.
    pub fn cq_offset(&self) -> usize {
        (self.entries as usize * size_of::<Sqe>()).next_multiple_of(PAGE)
    }

    /// Bytes of both rings, in whole pages.
    pub fn bytes(&self) -> usize {
        self.cq_offset() + (self.completion_entries as usize * size_of::<Cqe>()).next_multiple_of(PAGE)
    }
}
