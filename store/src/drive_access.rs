//! How a store's drives are accessed: by which clock, for how long, and through queue pairs that others can reach.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warprow_dma::Clock;
use warprow_driver::QueuePair;

/// By which clock drives are used, and how long their commands may take.
#[derive(Clone)]
pub(crate) struct DriveAccess {
    pub clock: Arc<dyn Clock>,
    /// The longest wait for an I/O command.
    pub timeout: Duration,
    pub admin_timeout: Duration,
}

/// A queue pair that the look-ups of one slot use, shared with whoever resets the controller and has to take the queue away first.
pub type SharedPair = Arc<Mutex<QueuePair>>;

/// Locks a mutex, even if a thread panicked while it held the lock: the data that such a mutex guards is valid between any two
/// statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
