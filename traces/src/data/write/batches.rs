//! What the writer of a format does.

use warprow_formats::FileError;

use crate::data::batch::DataBatch;

/// What writes the batches of a format.
pub(super) trait WriteBatches: Send {
    /// Adds all samples of a batch, of which the first is sample `first` of what is written.
    fn write(&mut self, batch: &DataBatch, first: u64) -> Result<(), FileError>;

    /// Makes the file appear.
    fn finish(self: Box<Self>) -> Result<(), FileError>;
}

/// The row of `sample` in an array that has `all` numbers of `samples` samples.
pub(super) fn row(all: &[f32], samples: usize, sample: usize) -> &[f32] {
    let width = all.len().checked_div(samples).unwrap_or(0);
    all.get(sample * width..(sample + 1) * width).unwrap_or_default()
}
