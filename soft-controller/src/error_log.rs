//! The entries of the error log.

use crate::failure::Failure;

/// A failed command, for the error log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorRecord {
    pub(crate) count: u64,
    pub(crate) sqid: u16,
    pub(crate) cid: u16,
    pub(crate) failure: Failure,
    pub(crate) nsid: u32,
    pub(crate) lba: u64,
}

/// Entries of the error log that a worker, and the admin queue, keep.
pub(crate) const ERRORS_KEPT: usize = 64;
