//! Which controller described a namespace, and before or after which format.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What is the epoch of a namespace that was described while a format was under way: never that of its controller.
pub(crate) const NO_EPOCH: u64 = u64::MAX;

/// A controller as its namespaces and queue pairs know it: there is one for each that is driven.
#[derive(Debug)]
pub(crate) struct Identity {
    name: Arc<str>,
    /// Raised before a Format NVM is sent and after it has ended, whatever became of it: what was described before is no longer
    /// known. Of all namespaces at once, as a format may reach them all (FNA).
    epoch: AtomicU64,
    /// Formats that may change a namespace yet, by the epochs that they began.
    under_way: Mutex<Vec<u64>>,
}

/// A format that is under way.
#[derive(Debug)]
pub(crate) struct Began(u64);

impl Identity {
    pub(crate) fn new(name: Arc<str>) -> Self {
        Self { name, epoch: AtomicU64::new(0), under_way: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The epoch to compare with that of a namespace. Whether that is of *this* controller is to be asked first.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The epoch of a namespace that is described by what is asked of the device from now on.
    pub(crate) fn describing(&self) -> u64 {
        self.under_way(|formats| if formats.is_empty() { self.epoch() } else { NO_EPOCH })
    }

    /// A format is about to be sent.
    pub(crate) fn begin_format(&self) -> Began {
        self.under_way(|formats| {
            let epoch = self.raise();
            formats.push(epoch);
            Began(epoch)
        })
    }

    /// It has ended: answered, lost to a reset, or never sent.
    pub(crate) fn end_format(&self, format: &Began) {
        self.under_way(|formats| {
            formats.retain(|&epoch| epoch != format.0);
            self.raise();
        });
    }

    /// CC.EN = 0 has reached RDY = 0: no format that nobody waits for any more begins. One that has begun may go on, and Identify
    /// says so (FPI).
    pub(crate) fn end_formats(&self) {
        self.under_way(|formats| {
            if !formats.is_empty() {
                formats.clear();
                self.raise();
            }
        });
    }

    /// The next epoch, from now on. Changes with `under_way` locked.
    fn raise(&self) -> u64 {
        let next = self.epoch.load(Ordering::Relaxed) + 1;
        self.epoch.store(next, Ordering::SeqCst);
        next
    }

    fn under_way<T>(&self, with: impl FnOnce(&mut Vec<u64>) -> T) -> T {
        with(&mut self.under_way.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
