//! Compaction by a thread of its own, beside updates and look-ups, before memory for updated rows is full.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use warprow_layout::{LogUsage, VolumeError};

use crate::member::lock;
use crate::{Store, StoreError};

/// How long a thread sleeps before it looks again, though nobody has woken it.
const NAP: Duration = Duration::from_secs(1);
/// How long it waits before it looks again whether another's compaction has ended.
pub(super) const PAUSE: Duration = Duration::from_millis(10);
/// What an update that has no room waits for, at most: one that runs, which may have begun before, and one for itself.
const COMPACTIONS: usize = 2;

/// How many times as long as what overlays may take a log may be: all of it is read when the store is opened.
pub(super) const LOG_OF_MEMORY: u64 = 4;

/// When a [`Compactor`] compacts.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompactorOptions {
    /// Percent of [`overlay_bytes`](crate::OpenOptions::overlay_bytes), 1 to 100: a generation is compacted when the latest of its updated rows take that;
    /// and percent of the chunks that its log could have, when the log has used that of them.
    pub at_percent: u32,
    /// How long an update that has no room waits for a compaction; then it is refused as it would be at once without a compactor.
    pub patience: Duration,
}

impl Default for CompactorOptions {
    /// At half of the memory; updates wait for up to ten minutes.
    fn default() -> Self {
        Self { at_percent: 50, patience: Duration::from_secs(600) }
    }
}

impl CompactorOptions {
    /// At that share.
    #[must_use]
    pub fn with_at_percent(self, at_percent: u32) -> Self {
        Self { at_percent, ..self }
    }

    /// With updates that wait for so long.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

/// A compaction that a [`Compactor`] made, or tried to.
#[derive(Debug)]
#[non_exhaustive]
pub struct Compacted {
    /// The generation.
    pub generation: u64,
    /// How many chunks were copied; else why it was not compacted. Then all is as it was before, updates and look-ups too.
    pub chunks: Result<usize, StoreError>,
}

/// A thread that compacts generations of a store, one at a time, before their updated rows take all of their memory. When it is dropped, the
/// compaction that runs is ended, and the thread; until then it keeps the store open.
#[derive(Debug)]
pub struct Compactor {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

/// Where updates and the compactor meet.
#[derive(Debug)]
pub(super) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes from which on a generation is compacted, and how much it has to grow after that failed.
    at: u64,
    step: u64,
    /// The share of a log's chunks from which on it is compacted, and the bytes that overlays may take.
    at_percent: u32,
    bound: u64,
    patience: Duration,
}

#[derive(Debug, Default)]
struct State {
    wanted: BTreeSet<u64>,
    running: Option<u64>,
    /// Of each generation: compactions that have ended, and whether the last came about.
    ended: HashMap<u64, (u64, bool)>,
    /// Bytes that generations took when they were last noted; and when their compaction failed, if nothing was compacted since.
    bytes: HashMap<u64, u64>,
    failed: HashMap<u64, u64>,
    stops: bool,
}

impl Desk {
    /// After an update: the latest rows of that generation take so many bytes of memory, and its log so much of its chunks.
    pub(super) fn note(&self, generation: u64, bytes: u64, log: Option<LogUsage>) {
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
    fn compacted(&self, generation: u64, until: Instant) -> bool {
        let mut state = lock(&self.state);
        let ended = |state: &State| state.ended.get(&generation).copied().unwrap_or_default();
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
    fn next(&self, last: Option<u64>) -> Option<u64> {
        let mut state = lock(&self.state);
        loop {
            if state.stops {
                return None;
            }
            let first = state.wanted.iter().copied().find(|&it| Some(it) != last);
            if let Some(generation) = first.or(last.filter(|it| state.wanted.contains(it))) {
                state.wanted.remove(&generation);
                state.running = Some(generation);
                return Some(generation);
            }
            state = self.changed.wait_timeout(state, NAP).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn end(&self, generation: u64, came_about: bool) {
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

    /// That generation is still wanted, after a moment in which somebody else's compaction may end.
    fn put_back(&self, generation: u64) {
        let mut state = lock(&self.state);
        state.running = None;
        state.wanted.insert(generation);
        let (_state, _) = self.changed.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner);
    }

    fn stop(&self) {
        lock(&self.state).stops = true;
        self.changed.notify_all();
    }
}

/// Nobody waits for a thread that is gone, whyever it is.
struct Stops<'a>(&'a Desk);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Store {
    /// Has a thread compact generations when their updated rows take a share of the memory that they may take, beside updates and look-ups, one
    /// generation at a time. `report` is called on that thread after each, before updates that wait for it go on: it is told of what failed, and can have hosts
    /// and executors `Host::prepare` and `Host::adopt`, without which they keep the memory of what they read before; it must not
    /// update. A compaction that failed is tried again when the generation has grown by an eighth of the memory more, or an update has no room.
    ///
    /// While the compactor lives, an update that finds no room in memory or in the log waits until there is some, and is refused only if a compaction
    /// fails or does not make any, or takes longer than [`patience`](CompactorOptions::patience).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
    /// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let options = CompactorOptions::default();
    /// let compactor = store.keep_compacted(&options, |_store, compacted| println!("{compacted:?}"))?;
    /// for id in 0..1000 {
    ///     store.update("user", &[id], &[1; 16])?;              // waits for a compaction where it has no room
    /// }
    /// drop(compactor);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Compactor`] if the store has one, if the share is none, or if no thread can be had.
    pub fn keep_compacted(
        &self,
        options: &CompactorOptions,
        mut report: impl FnMut(&Self, Compacted) + Send + 'static,
    ) -> Result<Compactor, StoreError> {
        let refused = |why: String| StoreError::Compactor { why };
        if !(1..=100).contains(&options.at_percent) {
            return Err(refused(format!("at_percent is {}, and has to be 1 to 100", options.at_percent)));
        }
        let updates = &self.shared.updates;
        let desk = Arc::new(Desk {
            state: Mutex::default(),
            changed: Condvar::new(),
            at: (u128::from(updates.bound) * u128::from(options.at_percent) / 100) as u64,
            step: updates.bound / 8,
            at_percent: options.at_percent,
            bound: updates.bound,
            patience: options.patience,
        });
        let mut place = lock(&updates.desk);
        if place.strong_count() > 0 {
            return Err(refused("the store has one: drop it first".to_owned()));
        }
        let (store, on) = (self.clone(), desk.clone());
        let serve = move || {
            let _stops = Stops(&on);
            let mut busy = None;
            while let Some(generation) = on.next(busy.take()) {
                let chunks = store.compact(generation);
                if chunks.as_ref().is_err_and(is_rewriting) {
                    // Somebody else does: that makes room too, and ends. Others come first meanwhile.
                    busy = Some(generation);
                    on.put_back(generation);
                    continue;
                }
                let came_about = chunks.is_ok();
                // One that was dropped meanwhile needs none.
                let is_gone = matches!(chunks, Err(StoreError::Volume(VolumeError::NoSuchGeneration { .. })));
                if let Err(error) = &chunks
                    && !is_gone
                {
                    tracing::warn!(generation, %error, "a generation was not compacted");
                }
                if !is_gone {
                    report(&store, Compacted { generation, chunks });
                }
                on.end(generation, came_about);
            }
        };
        let thread = std::thread::Builder::new().name("warprow-compact".to_owned()).spawn(serve);
        let thread = thread.map_err(|error| refused(format!("its thread does not start: {error}")))?;
        *place = Arc::downgrade(&desk);
        Ok(Compactor { desk, thread: Some(thread) })
    }

    /// Does what has no room after a compaction once more, if the store has a compactor.
    pub(super) fn with_room<T>(
        &self,
        generation: u64,
        mut attempt: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut done = attempt();
        let Some(desk) = lock(&self.shared.updates.desk).upgrade() else { return done };
        let until = Instant::now() + desk.patience;
        for _ in 0..COMPACTIONS {
            if !done.as_ref().is_err_and(is_full) || !desk.compacted(generation, until) {
                break;
            }
            done = attempt();
        }
        done
    }
}

/// Whether somebody else copies chunks of the generation.
pub(super) fn is_rewriting(error: &StoreError) -> bool {
    matches!(error, StoreError::Volume(VolumeError::Rewriting { .. }))
}

/// Whether a compaction would help.
fn is_full(error: &StoreError) -> bool {
    use StoreError::{GpuOverlayFull, OverlayFull, Volume};
    matches!(
        error,
        OverlayFull { .. }
            | GpuOverlayFull { .. }
            | Volume(VolumeError::LogFull { .. } | VolumeError::NoLogSpace { .. })
    )
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.desk.stop();
        let Some(thread) = self.thread.take() else { return };
        // Dropped by what it calls itself, it ends when that returns.
        if thread.thread().id() != std::thread::current().id() {
            // What it panicked with was told where it did.
            let _ = thread.join();
        }
    }
}

/// Where a store's updates find its compactor, if there is one.
pub(super) type DeskPlace = Mutex<Weak<Desk>>;
