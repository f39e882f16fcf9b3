//! What the reader of a format gives: slots, and samples one block after another.

use warprow_formats::FileError;

use crate::block::TraceBlock;
use crate::slot::TraceSlot;

/// What fills blocks.
pub(crate) trait SampleSource: Send {
    /// Adds samples until `block` is full or there are no more.
    fn fill(&mut self, block: &mut TraceBlock) -> Result<(), FileError>;

    /// For each slot, whether a key has shown that keys are signed, where the format does not tell.
    fn signed(&self) -> Vec<bool> {
        Vec::new()
    }

    /// Bytes read so far, of how many.
    fn progress(&self) -> (u64, u64);
}

/// What a format's reader is at its beginning.
pub(crate) struct Opened {
    pub(crate) slots: Vec<TraceSlot>,
    pub(crate) source: Box<dyn SampleSource>,
}
