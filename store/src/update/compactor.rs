//! Compaction by a thread of its own, beside updates and look-ups, before memory for updated rows is full.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use warprow_layout::VolumeError;

use super::desk::{Desk, Stops, is_rewriting};

use crate::drive_access::lock;
use crate::{Store, StoreError};

/// What an update that has no room waits for, at most: one that runs, which may have begun before, and one for itself.
const COMPACTIONS: usize = 2;

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
    /// Compacts a generation when its updated rows, or its log, take that percentage of what they may take.
    #[must_use]
    pub fn with_at_percent(self, at_percent: u32) -> Self {
        Self { at_percent, ..self }
    }

    /// Has updates wait up to `patience` for a compaction that makes room.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

/// A compaction that a [`Compactor`] made, or tried to.
#[derive(Debug)]
#[non_exhaustive]
pub struct CompactionReport {
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

impl Store {
    /// Has a thread compact generations when their updated rows take a share of the memory that they may take, beside updates and look-ups, one
    /// generation at a time. `report` is called on that thread after each, before updates that wait for it go on: it is told of what failed, and can have hosts
    /// and executors `HostExecutor::prepare` and `HostExecutor::adopt`, without which they keep the memory of what they read before; it must not
    /// update. A compaction that failed is tried again when the generation has grown by an eighth of the memory more, or an update has no room.
    ///
    /// While the compactor lives, an update that finds no room in memory or in the log waits until there is some, and is refused only if a compaction
    /// fails or does not make any, or takes longer than [`patience`](CompactorOptions::patience).
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// let options = CompactorOptions::default();
    /// let compactor = store.start_compactor(&options, |_store, compacted| println!("{compacted:?}"))?;
    /// for id in 0..1000 {
    ///     store.update("user", &[id], &[1; 16])?;              // waits for a compaction where it has no room
    /// }
    /// drop(compactor);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Compactor`] if the store has one, if the share is none, or if no thread can be had.
    pub fn start_compactor(
        &self,
        options: &CompactorOptions,
        mut report: impl FnMut(&Self, CompactionReport) + Send + 'static,
    ) -> Result<Compactor, StoreError> {
        let refused = |why: String| StoreError::Compactor { why };
        if !(1..=100).contains(&options.at_percent) {
            return Err(refused(format!("at_percent is {}, and has to be 1 to 100", options.at_percent)));
        }
        let updates = &self.shared.updates;
        let desk = Arc::new(Desk::new(updates.bound, options.at_percent, options.patience));
        let mut place = lock(&updates.desk);
        if place.strong_count() > 0 {
            return Err(refused("the store has one: drop it first".to_owned()));
        }
        let store = self.clone();
        let on = desk.clone();
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
                    report(&store, CompactionReport { generation, chunks });
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
