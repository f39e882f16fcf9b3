//! Which controller described a namespace, and before or after which format. The *format epoch* counts formats; it has
//! nothing to do with the epoch of a catalogue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The format epoch of a namespace that was described while a format was under way. No controller's format epoch ever
/// equals it, so commands refuse the namespace.
pub(crate) const NO_EPOCH: u64 = u64::MAX;

/// The identity of a controller, which its namespaces and queue pairs carry. Each open controller has one of its own.
#[derive(Debug)]
pub(crate) struct Identity {
    name: Arc<str>,
    /// The format epoch: raised before a Format NVM is sent and after it has ended, well or not, because what was
    /// described before may no longer be so. There is one for all namespaces, as a format may reach them all (FNA).
    epoch: AtomicU64,
    /// Formats that may still change a namespace, each by the format epoch that began with it.
    under_way: Mutex<Vec<u64>>,
}

/// A format that is under way, by the format epoch that began with it.
#[derive(Debug)]
pub(crate) struct Began(u64);

impl Identity {
    pub(crate) fn new(name: Arc<str>) -> Self {
        Self { name, epoch: AtomicU64::new(0), under_way: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The controller's format epoch, to compare with that of a namespace. The caller first checks that this controller
    /// described the namespace.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The format epoch for a namespace that the device describes from now on: [`NO_EPOCH`] while a format is under
    /// way.
    pub(crate) fn describing(&self) -> u64 {
        self.under_way(|formats| if formats.is_empty() { self.epoch() } else { NO_EPOCH })
    }

    /// Notes that a format is about to be sent.
    pub(crate) fn begin_format(&self) -> Began {
        self.under_way(|formats| {
            let epoch = self.raise();
            formats.push(epoch);
            Began(epoch)
        })
    }

    /// Notes that `format` has ended: it was answered, lost to a reset, or never sent.
    pub(crate) fn end_format(&self, format: &Began) {
        self.under_way(|formats| {
            formats.retain(|&epoch| epoch != format.0);
            self.raise();
        });
    }

    /// Notes that RDY = 0 has followed CC.EN = 0: a format that timed out and had not begun will not begin any more. A
    /// format that had begun may go on, and Identify says so (FPI).
    pub(crate) fn end_formats(&self) {
        self.under_way(|formats| {
            if !formats.is_empty() {
                formats.clear();
                self.raise();
            }
        });
    }

    /// Raises the format epoch and returns it. The caller has `under_way` locked.
    fn raise(&self) -> u64 {
        let next = self.epoch.load(Ordering::Relaxed) + 1;
        self.epoch.store(next, Ordering::SeqCst);
        next
    }

    fn under_way<T>(&self, with: impl FnOnce(&mut Vec<u64>) -> T) -> T {
        with(&mut self.under_way.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
