//! Compactions while updates go on: `--compact auto`.

use std::sync::{Arc, Mutex, PoisonError};

use warprow_store::{Compactor, CompactorOptions, Store};

use crate::failure::Failure;
use crate::store_failure::{ROOM_TO_COMPACT, lacks_chunks};

/// What was compacted beside the updates.
#[derive(Debug, Default)]
pub(super) struct Beside {
    pub(super) compactions: u64,
    /// Why the last that did not come about did not, if none has since.
    pub(super) failed: Option<String>,
    /// Whether that was for lack of free chunks.
    lacks_chunks: bool,
}

/// Compacts while the updates go on, and keeps account of it.
pub(super) fn compactor(store: &Store, beside: &Arc<Mutex<Beside>>) -> Result<Compactor, Failure> {
    let beside = beside.clone();
    let compactor = store.start_compactor(&CompactorOptions::default(), move |_, done| {
        let mut beside = beside.lock().unwrap_or_else(PoisonError::into_inner);
        match done.chunks {
            Ok(_) => (beside.compactions, beside.failed) = (beside.compactions + 1, None),
            Err(error) => (beside.failed, beside.lacks_chunks) = (Some(error.to_string()), lacks_chunks(&error)),
        }
    });
    Ok(compactor?)
}

impl Beside {
    /// `failure` of an update, with why no compaction has made room for it, if one was to.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        let Some(why) = &self.failed else { return failure };
        let failure = failure.detail("compaction_failed", why.clone());
        match self.lacks_chunks {
            true => failure.remedy(ROOM_TO_COMPACT),
            false => failure.remedy(format!("mend what kept a compaction from making room: {why}")),
        }
    }
}
