//! A store's tables on a GPU, and who reads them.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_kernels::Kernels;
use warprow_store::ReadCurve;
use warprow_store::view::{StoreView, TableVersion, UpdatesRefused, lock};

use crate::attempt::Attempt;
use crate::drive_waker::DriveWaker;
use crate::error::GpuError;
use crate::launch::Stream;
use crate::options::GpuOptions;
use crate::overlay::GpuOverlay;
use crate::reading_plan::ReadingPlans;
use crate::row_cache::GpuCache;
use crate::sampling::Sampling;
use crate::touches::GpuTouches;
use crate::view::View;

/// Tables, with everything that look-ups of all plans share.
#[derive(Debug)]
pub(crate) struct Attached {
    // Dropped first: it waits for kernels, which use what follows.
    /// On which tables are replaced, if ever.
    pub(crate) stream: OnceLock<Stream>,
    pub kernels: Arc<Kernels>,
    pub store: StoreView,
    pub options: GpuOptions,
    pub gpu: Arc<Gpu>,
    /// Read curves by member, as far as they are known and used.
    pub curves: Vec<Option<ReadCurve>>,
    /// What checksums are computed with; `None`: none is.
    pub slices: Option<DeviceMemory>,
    /// For each drive, why a host thread stores to its doorbell registers though the options prefer the GPU; `None`:
    /// nothing speaks against the GPU, or it was not to store to registers.
    pub ring_refusals: Vec<Option<String>>,
    /// What plans begin with.
    pub(crate) view: Mutex<Arc<View>>,
    /// Held while tables are replaced.
    pub plans: Arc<ReadingPlans>,
    /// Replacements of which the GPU has not said that they have ended.
    pub unended: Mutex<Vec<Arc<Attempt>>>,
    /// Wakes the drives' threads, where there are several drives and they have threads.
    pub(crate) waker: Option<DriveWaker>,
    /// Rows that look-ups have brought in, if they are kept.
    pub cache: OnceLock<Arc<GpuCache>>,
    /// Counts of what is looked up, if the options ask for them.
    pub sampling: Option<Sampling>,
    /// When keys were last touched, if the options ask for it.
    pub touches: Option<GpuTouches>,
    /// Rows that are updated meanwhile.
    pub overlay: Option<Arc<GpuOverlay>>,
    /// None is, where there is no overlay.
    pub(crate) _unfollowing: Option<UpdatesRefused>,
}

impl Attached {
    pub(crate) fn view(&self) -> Arc<View> {
        lock(&self.view).clone()
    }

    pub(crate) fn stream(&self) -> Result<&Stream, GpuError> {
        match self.stream.get() {
            Some(stream) => Ok(stream),
            None => {
                let stream = Stream::new(&self.gpu)?;
                Ok(self.stream.get_or_init(|| stream))
            }
        }
    }

    /// Where look-ups find updated rows; 0: nowhere.
    pub(crate) fn overlay_at(&self) -> u64 {
        self.overlay.as_ref().map_or(0, |overlay| overlay.address())
    }

    /// Plans that are made from now on begin with `view`.
    pub(crate) fn begin_with(&self, view: Arc<View>) {
        *lock(&self.view) = view;
    }

    /// Doorbells will be stored soon. Drives that are no software do not need to know.
    pub(crate) fn wake_drives(&self) {
        match &self.waker {
            Some(waker) => waker.call(),
            None => wake(&self.store),
        }
    }
}

fn wake(store: &StoreView) {
    store.drives().iter().flatten().for_each(|member| member.controller().function().wake());
}

/// Emulated drives look for work for 5 ms after they were woken.
const LULL: Duration = Duration::from_millis(2);

/// Several drives' threads are woken by another thread than the caller's.
pub(crate) fn drive_waker_of(store: &StoreView) -> Option<DriveWaker> {
    let functions = store.drives().iter().flatten().map(|member| member.controller().function());
    if functions.filter(|function| function.doorbell_memory().is_some()).count() < 2 {
        return None;
    }
    let store = store.clone();
    DriveWaker::new("warprow-waker", LULL, move || wake(&store))
        .inspect_err(|error| tracing::warn!(%error, "callers of look-ups wake drives themselves"))
        .ok()
}

/// Fails if rows were updated, which the GPU does not see.
pub(crate) fn check_updates(located: &[TableVersion]) -> Result<(), GpuError> {
    match located.iter().find(|version| StoreView::is_updated(&version.generation)) {
        None => Ok(()),
        Some(updated) => Err(GpuError::Unsupported(format!(
            "rows of generation {} were updated since it was loaded, which an executor on a GPU without GpuOptions::overlay_bytes does not see: compact it first, or attach with them",
            updated.generation.id
        ))),
    }
}
