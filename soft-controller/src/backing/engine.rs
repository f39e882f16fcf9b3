use std::fmt;
use std::time::Duration;

use warprow_dma::DmaMemory;

use super::media_error::MediaError;

/// What a [`BackingEngine`] is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackingOperation {
    /// Read into the pieces.
    Read,
    /// Write the pieces; durably, if so asked.
    Write {
        /// Completion means that the data is durable.
        durable: bool,
    },
    /// Make durable what was completed before.
    Flush,
}

/// A part of host memory: memory, offset and length in bytes.
pub type Piece = (DmaMemory, usize, usize);

/// A backing at work on several commands at once, for one worker.
pub trait BackingEngine: Send + fmt::Debug {
    /// Begins an operation on the bytes from `offset` on, as many as the pieces have. False if there is too much under
    /// way: then it is tried again later. `token` comes back with the result.
    fn begin(&mut self, token: u32, operation: BackingOperation, offset: u64, pieces: &[Piece]) -> bool;

    /// Hands begun operations on, and reports those that have ended.
    fn poll(&mut self, done: &mut Vec<(u32, Result<(), MediaError>)>);

    /// Operations begun and not reported.
    fn in_flight(&self) -> usize;

    /// Waits until an operation ends, or for about `limit`.
    fn wait(&mut self, limit: Duration);

    /// Waits until all operations have ended; none touches host memory afterwards. They are still reported by
    /// [`poll`](Self::poll).
    fn settle(&mut self);
}
