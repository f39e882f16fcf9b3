//! How a thread that rests between its rounds is told to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use warprow_store::view::lock;

/// Tells a thread to end.
#[derive(Debug, Default)]
pub(super) struct Ending {
    pub over: Arc<AtomicBool>,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Ending {
    /// Whether it is not over after `time`.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let guard = lock(&self.lock);
        let goes_on = |(): &mut ()| !self.over.load(Ordering::Relaxed);
        let rested = self.changed.wait_timeout_while(guard, time, goes_on);
        drop(rested.unwrap_or_else(PoisonError::into_inner));
        !self.over.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        let guard = lock(&self.lock);
        self.over.store(true, Ordering::Relaxed);
        drop(guard);
        self.changed.notify_all();
    }
}
