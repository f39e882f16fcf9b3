//! What the reader of a format gives: slots, and samples one block after another.

use warprow_formats::{FileError, KeyType};

use crate::block::TraceBlock;
use crate::slot::TraceSlot;
use crate::stream::numbers;

/// Where the parts of samples stand that are all alike.
#[derive(Debug, Clone)]
pub(crate) struct AlikeSamples {
    /// Bytes from one sample to the next.
    pub(crate) stride: usize,
    /// Where labels and dense features begin in a sample, and how many bytes they have.
    pub(crate) floats: (usize, usize),
    /// For each slot where its keys begin in a sample, and how many keys it has.
    pub(crate) lists: Vec<(usize, usize)>,
    pub(crate) width: KeyType,
}

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

    /// How many samples still go in, for who has many at once; one at least.
    fn room(&self) -> usize;

    /// Adds whole samples that are all alike, sound and at most [`room`](Self::room): `bytes` are theirs.
    fn alike(&mut self, bytes: &[u8], samples: &AlikeSamples) {
        let size = samples.width.size() as usize;
        for sample in bytes.chunks_exact(samples.stride) {
            let part = |(at, len): (usize, usize)| sample.get(at..at + len).unwrap_or_default();
            self.begin(part(samples.floats));
            samples.lists.iter().for_each(|&(at, keys)| self.list(part((at, keys * size)), samples.width));
            self.end();
        }
    }
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

    fn room(&self) -> usize {
        // So many lists go in, which are no fewer than samples.
        (Self::room(self) / self.slots().max(1)).max(1)
    }
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
