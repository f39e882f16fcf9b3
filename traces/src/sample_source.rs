//! What the reader of a format gives: slots, and samples one block after another.

use warprow_formats::{FileError, KeyType};

use crate::block::TraceBlock;
use crate::slot::TraceSlot;
use crate::stream::numbers;

/// What takes samples whose bytes a reader has found, sample by sample and slot by slot.
pub(crate) trait SampleSink {
    /// Whether no further sample goes in.
    fn is_full(&self) -> bool;

    /// Begins a sample, with the bytes of its labels and dense features. A file that contradicts itself may have fewer of them than its
    /// header says; the reader then fails.
    fn begin(&mut self, before: &[u8]);

    /// Adds the keys of the next slot.
    fn list(&mut self, keys: &[u8], width: KeyType);

    /// Ends a sample that was sound.
    fn end(&mut self);
}

impl SampleSink for TraceBlock {
    fn is_full(&self) -> bool {
        Self::is_full(self)
    }

    fn begin(&mut self, _before: &[u8]) {}

    fn list(&mut self, keys: &[u8], width: KeyType) {
        self.push(numbers(keys, width));
    }

    fn end(&mut self) {}
}

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
