//! What keeps the turns of an offload apart from fault rules, and who has executed how many commands.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::offload::Leave;

thread_local! {
    /// This thread gives an offload a turn.
    static IN_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Who executed the I/O commands of a controller with an offload, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadCounts {
    /// Commands that the offload has answered.
    pub offload_commands: u64,
    /// Bytes that these have read.
    pub offload_bytes: u64,
    /// Commands that the worker has brought to their end.
    pub worker_commands: u64,
    /// Bytes that these have read and written.
    pub worker_bytes: u64,
    /// Turns that the offload was given.
    pub turns: u64,
    /// The longest time between two looks at the doorbells, while there were submitters that wake nobody. A turn is a look from its
    /// beginning to its end.
    pub longest_gap: Duration,
}

/// Held by the worker while it decides about a turn, and during that turn.
#[derive(Debug)]
pub(crate) struct TurnGate {
    turn: Mutex<()>,
    leave: Mutex<Option<Arc<dyn Leave>>>,
    /// Commands are about to come.
    expected: AtomicBool,
    offload_commands: AtomicU64,
    offload_bytes: AtomicU64,
    worker_commands: AtomicU64,
    worker_bytes: AtomicU64,
    turns: AtomicU64,
    longest_gap: AtomicU64,
}

/// A turn under way.
pub(crate) struct Entered<'a> {
    _held: MutexGuard<'a, ()>,
    before: bool,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        IN_TURN.set(self.before);
    }
}

impl TurnGate {
    pub(crate) fn new(leave: Arc<dyn Leave>) -> Self {
        Self {
            turn: Mutex::default(),
            leave: Mutex::new(Some(leave)),
            expected: AtomicBool::default(),
            offload_commands: AtomicU64::default(),
            offload_bytes: AtomicU64::default(),
            worker_commands: AtomicU64::default(),
            worker_bytes: AtomicU64::default(),
            turns: AtomicU64::default(),
            longest_gap: AtomicU64::default(),
        }
    }

    /// Whatever decides whether the offload may have a turn is looked at after this.
    pub(crate) fn enter(&self) -> Entered<'_> {
        let held = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        Entered { _held: held, before: IN_TURN.replace(true) }
    }

    fn leave(&self) -> Option<Arc<dyn Leave>> {
        self.leave.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there is an offload: none has failed.
    pub(crate) fn has_offload(&self) -> bool {
        self.leave.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// What a turn that begins now is given.
    pub(crate) fn leave_count(&self) -> u32 {
        self.leave().map_or(0, |leave| leave.count())
    }

    /// Asks the turn under way to end.
    pub(crate) fn end_turn(&self) {
        self.leave().iter().for_each(|leave| leave.leave());
    }

    /// Ends the turn under way and waits for its end: later turns find what was stored before. A thread that is in a turn itself, of
    /// this controller or of another, asks and does not wait: two that waited for each other would do so forever.
    pub(crate) fn end_and_wait(&self) {
        self.end_turn();
        if !IN_TURN.get() {
            drop(self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// The offload has failed.
    pub(crate) fn retire(&self) {
        *self.leave.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Commands are about to come of which no doorbell tells yet.
    pub(crate) fn expect(&self) {
        self.expected.store(true, Ordering::Release);
    }

    pub(crate) fn is_expecting(&self) -> bool {
        self.expected.load(Ordering::Acquire)
    }

    pub(crate) fn expect_no_more(&self) {
        self.expected.store(false, Ordering::Release);
    }

    pub(crate) fn count_turn(&self, commands: u64, bytes: u64) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.offload_commands.fetch_add(commands, Ordering::Relaxed);
        self.offload_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_worker(&self, commands: u64, bytes: u64) {
        if commands > 0 {
            self.worker_commands.fetch_add(commands, Ordering::Relaxed);
            self.worker_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn note_gap(&self, gap: Duration) {
        self.longest_gap.fetch_max(u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> OffloadCounts {
        OffloadCounts {
            offload_commands: self.offload_commands.load(Ordering::Relaxed),
            offload_bytes: self.offload_bytes.load(Ordering::Relaxed),
            worker_commands: self.worker_commands.load(Ordering::Relaxed),
            worker_bytes: self.worker_bytes.load(Ordering::Relaxed),
            turns: self.turns.load(Ordering::Relaxed),
            longest_gap: Duration::from_nanos(self.longest_gap.load(Ordering::Relaxed)),
        }
    }
}
