//! Things that calls take for a while, and wait for where all are taken.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Things that are lent, one to each call.
pub(crate) struct Pool<T> {
    idle: Mutex<Vec<T>>,
    given_back: Condvar,
}

impl<T> Pool<T> {
    pub(crate) fn new(things: Vec<T>) -> Self {
        Self { idle: Mutex::new(things), given_back: Condvar::new() }
    }

    /// Takes one, and waits no longer than `patience` for one; `None`: that was too short.
    pub(crate) fn take(&self, patience: Duration) -> Option<T> {
        let end = Instant::now() + patience;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(thing) = idle.pop() {
                return Some(thing);
            }
            let left = end.checked_duration_since(Instant::now())?;
            idle = self.given_back.wait_timeout(idle, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives one back.
    pub(crate) fn give(&self, thing: T) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(thing);
        self.given_back.notify_one();
    }
}
