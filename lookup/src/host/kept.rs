//! Room for a batch whose rows are fetched ahead.

/// Copies of a batch's mask and weights, from the batch's prefetch to its look-up. The caller's memory is not borrowed
/// that long.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(super) mask: Vec<u8>,
    pub(super) weights: Vec<f32>,
}

impl Kept {
    pub(crate) fn new(ids: usize, weighted: bool) -> Self {
        Self { mask: vec![0; ids], weights: vec![0.0; if weighted { ids } else { 0 }] }
    }
}
