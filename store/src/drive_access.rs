//! How a store's drives are accessed: by which clock, for how long, and through queue pairs that others can reach.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warprow_dma::Clock;
use warprow_driver::QueuePair;

/// How drives are driven.
#[derive(Clone)]
pub(crate) struct DriveAccess {
    pub clock: Arc<dyn Clock>,
    /// The longest wait for an I/O command.
    pub timeout: Duration,
    pub admin_timeout: Duration,
}

/// A queue pair that one slot's look-ups use, within reach of a reset that needs it to be let go.
pub type SharedPair = Arc<Mutex<QueuePair>>;

/// Locks a mutex, also where a thread that held it has panicked: what it guards is in order between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
