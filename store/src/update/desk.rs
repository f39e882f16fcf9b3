//! Where updates and the thread that compacts meet.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use warprow_layout::{LogUsage, VolumeError};

use crate::StoreError;
use crate::drive_access::lock;

/// How long a thread sleeps before it looks again, though nobody has woken it.
const NAP: Duration = Duration::from_secs(1);
/// How long it waits before it looks again whether another's compaction has ended.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// How many times as long as what overlays may take a log may be: all of it is read when the store is opened.
pub(crate) const LOG_OF_MEMORY: u64 = 4;

/// Where updates and the compactor meet.
#[derive(Debug)]
pub(crate) struct Desk {
    state: Mutex<Queue>,
    changed: Condvar,
    /// Bytes from which on a generation is compacted, and how much it has to grow after that failed.
    at: u64,
    step: u64,
    /// The share of a log's chunks from which on it is compacted, and the bytes that overlays may take.
    at_percent: u32,
    bound: u64,
    pub(crate) patience: Duration,
}

#[derive(Debug, Default)]
struct Queue {
    wanted: BTreeSet<u64>,
    running: Option<u64>,
    /// For each generation: how many compactions have ended, and whether the last one succeeded.
    ended: HashMap<u64, (u64, bool)>,
    /// Bytes that generations took when they were last noted; and when their compaction failed, if nothing was compacted since.
    bytes: HashMap<u64, u64>,
    failed: HashMap<u64, u64>,
    stops: bool,
}

impl Desk {
    /// Where overlays of a generation may take `bound` bytes, it is compacted from `at_percent` of that on, and updates wait for that
    /// for `patience`.
    pub(crate) fn new(bound: u64, at_percent: u32, patience: Duration) -> Self {
        let at = (u128::from(bound) * u128::from(at_percent) / 100) as u64;
        Self { state: Mutex::default(), changed: Condvar::new(), at, step: bound / 8, at_percent, bound, patience }
    }

    /// After an update: the latest rows of that generation take so many bytes of memory, and its log so much of its chunks.
    pub(crate) fn note(&self, generation: u64, bytes: u64, log: Option<LogUsage>) {
        let mut state = lock(&self.state);
        state.bytes.insert(generation, bytes);
        let failed = state.failed.get(&generation).map_or(0, |failed| failed.saturating_add(self.step));
        let is_log_full = log.is_some_and(|log| self.is_log_full(&log)) && !state.failed.contains_key(&generation);
        if (is_log_full || bytes >= self.at.max(failed)) && state.wanted.insert(generation) {
            self.changed.notify_all();
        }
    }

    /// Whether a log has so much of what it could have, or is so much longer than what is in memory, that it is worth a compaction. One
    /// chunk is not: an update that comes would take another.
    fn is_log_full(&self, log: &LogUsage) -> bool {
        let share = u128::from(log.capacity) * u128::from(self.at_percent) / 100;
        log.chunks > 1 && (u128::from(log.bytes) >= share || log.bytes >= self.bound.saturating_mul(LOG_OF_MEMORY))
    }

    /// Waits for a compaction of that generation: one that runs, or else one that is made for this. Whether it came about.
    pub(crate) fn compacted(&self, generation: u64, until: Instant) -> bool {
        let mut state = lock(&self.state);
        let ended = |state: &Queue| state.ended.get(&generation).copied().unwrap_or_default();
        let before = ended(&state).0;
        if state.running != Some(generation) {
            state.wanted.insert(generation);
            self.changed.notify_all();
        }
        loop {
            let (count, came_about) = ended(&state);
            if count > before {
                return came_about;
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.stops || left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left.min(NAP));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The generation that is to be compacted next, `last` only if no other is; `None`: none ever.
    pub(crate) fn next(&self, last: Option<u64>) -> Option<u64> {
        let mut state = lock(&self.state);
        loop {
            if state.stops {
                return None;
            }
            let first = state.wanted.iter().copied().find(|&number| Some(number) != last);
            if let Some(generation) = first.or(last.filter(|number| state.wanted.contains(number))) {
                state.wanted.remove(&generation);
                state.running = Some(generation);
                return Some(generation);
            }
            state = self.changed.wait_timeout(state, NAP).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn end(&self, generation: u64, came_about: bool) {
        let mut state = lock(&self.state);
        state.running = None;
        let count = state.ended.get(&generation).map_or(0, |ended| ended.0) + 1;
        state.ended.insert(generation, (count, came_about));
        // Updates that came meanwhile noted what was before.
        state.wanted.remove(&generation);
        match came_about {
            true => state.failed.remove(&generation),
            false => {
                let bytes = state.bytes.get(&generation).copied().unwrap_or_default();
                state.failed.insert(generation, bytes)
            }
        };
        self.changed.notify_all();
    }

    /// Puts back a generation whose compaction is still wanted, after a moment in which somebody else's compaction may
    /// end.
    pub(crate) fn put_back(&self, generation: u64) {
        let mut state = lock(&self.state);
        state.running = None;
        state.wanted.insert(generation);
        let (_state, _) = self.changed.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner);
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stops = true;
        self.changed.notify_all();
    }
}

/// Nobody waits for a thread that is gone, whyever it is.
pub(crate) struct Stops<'a>(pub(crate) &'a Desk);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Whether somebody else copies chunks of the generation.
pub(crate) fn is_rewriting(error: &StoreError) -> bool {
    matches!(error, StoreError::Volume(VolumeError::Rewriting { .. }))
}

/// Where a store's updates find its compactor, if there is one.
pub(crate) type DeskPlace = Mutex<Weak<Desk>>;
