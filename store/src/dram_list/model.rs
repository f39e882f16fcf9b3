//! The model that has the lists of a store.

use warprow_layout::{Generation, VolumeError};

use crate::StoreError;

/// The name of the model that has the lists of rows in DRAM ([`Store::rerank`](crate::Store::rerank)). No other model may have it.
pub const DRAM_LISTS: &str = ".dram-lists";

/// Whether a generation has the lists of tables rather than tables.
pub(crate) fn is_lists(generation: &Generation) -> bool {
    generation.name == DRAM_LISTS
}

/// Refuses the name of the lists for a model.
pub(crate) fn refuse_name(model: &str) -> Result<(), StoreError> {
    match model == DRAM_LISTS {
        false => Ok(()),
        true => {
            let reason = "that name is for lists of rows in DRAM: choose another".to_owned();
            Err(VolumeError::InvalidGeneration { name: model.to_owned(), reason }.into())
        }
    }
}
