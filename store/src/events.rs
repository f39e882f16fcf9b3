//! What drives report by themselves. Whoever uses a drive looks now and then, by a clock that it reads anyway.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use warprow_driver::{Controller, ControllerEvent, EventDetails, Namespace};

/// Time between two looks, and while a log page is being read.
const EVERY: Duration = Duration::from_millis(10);
const SOON: Duration = Duration::from_micros(100);

/// What a drive has reported by itself since the store was opened. Members that are namespaces of one controller have the
/// same events.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DriveEvents {
    /// The drive.
    pub drive: String,
    /// Events since the store was opened.
    pub total: u64,
    /// The latest of them, at most [`KEPT`](Self::KEPT), oldest first.
    pub latest: Vec<ControllerEvent>,
}

impl DriveEvents {
    /// Events of a drive that are kept.
    pub const KEPT: usize = 32;
}

/// A drive's namespace is no longer what it was when the store was opened: another format, another size, another namespace, or
/// none. Its rows must not be read by addresses that were meant for the old one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "drive {drive}: its namespace was changed under the store, from {was} to {is}; close the store and open it again; if the \
     drive was formatted, format the store and load its tables again"
)]
#[non_exhaustive]
pub struct NamespaceChanged {
    /// The drive.
    pub drive: String,
    /// What the namespace was.
    pub was: String,
    /// What it is.
    pub is: String,
}

/// A namespace, by what must not change.
pub(crate) fn describe(namespace: &Namespace) -> String {
    let lbas = namespace.lba_count();
    let bytes = namespace.lba_bytes();
    let metadata = namespace.metadata_bytes();
    let nguid = u128::from_be_bytes(namespace.nguid());
    let eui64 = u64::from_be_bytes(namespace.eui64());
    format!("{lbas} LBAs of {bytes} + {metadata} B (NGUID {nguid:032x}, EUI-64 {eui64:016x})")
}

/// Looks for a controller's events.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// When to look again: nanoseconds of the clock.
    next: AtomicU64,
    /// Events that concern namespaces.
    namespace_notices: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    total: u64,
    latest: VecDeque<ControllerEvent>,
}

impl Watch {
    /// Looks, if it is time and nobody else does. Waits for nothing, and allocates only for events.
    #[inline]
    pub(crate) fn look(&self, controller: &Controller, now: Duration) {
        if nanos(now) >= self.next.load(Ordering::Relaxed) {
            self.look_now(controller, now);
        }
    }

    /// Whether a log page is being read, or somebody else looks.
    #[cold]
    fn look_now(&self, controller: &Controller, now: Duration) -> bool {
        let mut seen = match self.seen.try_lock() {
            Ok(seen) => seen,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        let Some(polled) = controller.poll_events(|event| seen.add(controller, event)) else { return true };
        self.namespace_notices.store(polled.namespace_notices, Ordering::Relaxed);
        let next = now.saturating_add(if polled.reading { SOON } else { EVERY });
        self.next.store(nanos(next), Ordering::Relaxed);
        polled.reading
    }

    /// Looks, and waits for the log pages of what has been reported, as long as an admin command may take.
    pub(crate) fn look_well(&self, controller: &Controller) {
        let clock = controller.clock();
        let began = clock.now();
        let mut turn = 0;
        let limit = controller.options().admin_timeout;
        while self.look_now(controller, clock.now()) && clock.now().saturating_sub(began) < limit {
            clock.relax(turn);
            turn = turn.saturating_add(1);
        }
    }

    pub(crate) fn namespace_notices(&self) -> u64 {
        self.namespace_notices.load(Ordering::Relaxed)
    }

    /// What was seen so far, for the member `drive`.
    pub(crate) fn events(&self, drive: String) -> DriveEvents {
        let seen: MutexGuard<'_, Seen> = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        DriveEvents { drive, total: seen.total, latest: seen.latest.iter().cloned().collect() }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Seen {
    fn add(&mut self, controller: &Controller, event: ControllerEvent) {
        let function = controller.name();
        match &event.details {
            EventDetails::Health(smart) => tracing::warn!(
                %function, event = %event.event, warnings = ?smart.critical_warning,
                kelvins = smart.composite_temperature.get(), spare_percent = smart.available_spare,
                used_percent = smart.percentage_used, media_errors = smart.media_errors.get(),
                "the drive reports on its health"
            ),
            EventDetails::Errors(errors) => {
                tracing::warn!(%function, event = %event.event, latest = ?errors.first(), "the drive reports errors");
            }
            EventDetails::Other(_) => tracing::warn!(%function, event = %event.event, "the drive reports an event"),
            details => tracing::warn!(%function, event = %event.event, ?details, "the drive reports an event"),
        }
        self.total += 1;
        if self.latest.len() == DriveEvents::KEPT {
            self.latest.pop_front();
        }
        self.latest.push_back(event);
    }
}
