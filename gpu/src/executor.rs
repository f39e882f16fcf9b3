//! The GPU executor on a store: its tables in GPU memory and DRAM.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use warprow_gpu_queues::{DeviceMemory, Gpu, QueuePlacements};
use warprow_kernels::abi::{KEY_ALIGN, element};
use warprow_kernels::{Kernels, crc};
use warprow_layout::{DType, Drive, Table};

use crate::GpuError;
use crate::adopt::Attempt;
use crate::drive_waker::DriveWaker;
use crate::launch::Stream;
use crate::overlay::GpuOverlay;
use crate::plan::{GpuPlan, Prepared};
use crate::view::View;
use warprow_lookup::{Feature, PlanOptions};
use warprow_store::view::lock;
use warprow_store::view::{StoreView, TableVersion, UpdatesRefused};

use warprow_lookup::Merging;
use warprow_store::{ReadCurve, Store};

/// Far more than a GPU runs at once.
const MOST_GATHERERS: u32 = 65_535;

/// Rows in pinned DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DramRows {
    /// The first, for the GPU.
    pub on_gpu: u64,
    /// The first, for this process.
    pub here: *const u8,
    /// Bytes from one to the next, a multiple of 16.
    pub stride: u32,
}

/// How look-ups run on a GPU.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Bytes of rows to keep in GPU memory: the hottest of all. Rows are padded to 16 B there and in DRAM, or to lines of 128 B if
    /// that costs at most a third more, and count as that.
    pub hbm_bytes: u64,
    /// Bytes of rows to keep in pinned DRAM: the next hottest.
    pub dram_bytes: u64,
    /// How many rows of tables, by name, to keep in GPU memory, cut in proportion where `hbm_bytes` hold fewer. Tables that are not named
    /// share what is left, in proportion to what their hints ask for.
    pub hbm_rows: BTreeMap<String, u64>,
    /// Queue pairs that a slot drives on every drive, each by a thread block of its own. Where one takes no more commands, until the
    /// next look-up that can start it anew, the others serve its rows.
    pub queue_sets: u32,
    /// Commands in flight on each of them, at most; rounded down to batches of 256, and at least one.
    pub depth: u32,
    /// Which rows on drives share a read command: usually those of one LBA, and no others. Others take landing memory for the longest command in each
    /// place, up to 16 MiB a queue.
    pub merging: Merging,
    /// Thread blocks that gather rows from DRAM; 0: as many as serve the bus best.
    pub gatherers: u32,
    /// Of plans without rows on drives, look-ups of up to so many ids read rows in DRAM where they lie; larger ones are
    /// deduplicated and put in the order of addresses first. `None`: what is never slower than a plain gather, on an H200. Where
    /// ids are uniform, a tenth of that is faster. Less than 8,192 are as many.
    pub direct_ids: Option<u64>,
    /// The longest wait for a read; `None`: as the store was opened.
    pub timeout: Option<Duration>,
    /// Ids of tables of sparse keys are compared with the keys stored beside the rows, which lie in GPU memory then, 8 B each. Without,
    /// one id in 2⁸, 2¹⁶ or 2³² that a table lacks gets the row of another, by the table's fingerprints.
    pub check_keys: bool,
    /// Rows are compared with the checksums stored beside them, of tables that have them: those for GPU memory and DRAM as they are
    /// read when the executor is attached, those on drives as they arrive, for which 4 B of GPU memory a row are taken. Without, only
    /// the drive says whether a row is what was written.
    pub check_rows: bool,
    /// Plans go over to other tables when [`GpuExecutor::adopt`] says so, captured look-ups too. That costs look-ups of rows that all lie in
    /// memory about a microsecond, and GPU memory a description for each slot and ticket.
    pub following: bool,
    /// Bytes of GPU memory for rows that are updated while the executor is attached, or were before and are not yet compacted:
    /// [`Store::update`] puts them there, with rows of keys that it creates, and captured look-ups see them too. Half of them are for rows, each with 80 to 100 bytes beside; the other
    /// half is for the copy without rows that were updated again, when the first is full. 0: the store takes no updates while the
    /// executor lives. It costs look-ups of rows that all lie in memory about two microseconds, and every look-up a load for each id once a
    /// row was updated, and another for each sparse id that was not compared and found once a key was created; and its plans take the kernels that know every type of elements.
    pub overlay_bytes: u64,
    /// A host thread rings all doorbells for the GPU, also those that the GPU could reach itself.
    pub host_doorbells: bool,
}

impl Default for GpuOptions {
    /// All rows on drives, one queue set a slot, 768 commands in flight, rows of one LBA in one command, the store's time-out.
    fn default() -> Self {
        Self {
            hbm_bytes: 0,
            dram_bytes: 0,
            hbm_rows: BTreeMap::new(),
            queue_sets: 1,
            depth: 768,
            merging: Merging::Separate,
            gatherers: 0,
            direct_ids: None,
            timeout: None,
            check_keys: false,
            check_rows: false,
            following: false,
            overlay_bytes: 0,
            host_doorbells: false,
        }
    }
}

impl GpuOptions {
    /// With so many bytes of rows in GPU memory.
    #[must_use]
    pub fn with_hbm_bytes(self, hbm_bytes: u64) -> Self {
        Self { hbm_bytes, ..self }
    }

    /// With so many bytes of rows in DRAM.
    #[must_use]
    pub fn with_dram_bytes(self, dram_bytes: u64) -> Self {
        Self { dram_bytes, ..self }
    }

    /// With so many rows of a table in GPU memory, if `hbm_bytes` hold them.
    #[must_use]
    pub fn with_hbm_rows(mut self, table: impl Into<String>, rows: u64) -> Self {
        self.hbm_rows.insert(table.into(), rows);
        self
    }

    /// With so many queue sets a slot.
    #[must_use]
    pub fn with_queue_sets(self, queue_sets: u32) -> Self {
        Self { queue_sets, ..self }
    }

    /// With rows sharing commands like that.
    #[must_use]
    pub fn with_merging(self, merging: Merging) -> Self {
        Self { merging, ..self }
    }

    /// With so many thread blocks that gather rows from DRAM.
    #[must_use]
    pub fn with_gatherers(self, gatherers: u32) -> Self {
        Self { gatherers, ..self }
    }

    /// With rows in DRAM read where they lie up to so many ids.
    #[must_use]
    pub fn with_direct_ids(self, ids: u64) -> Self {
        Self { direct_ids: Some(ids), ..self }
    }

    /// With that limit for a read.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// With sparse keys compared with the stored ones.
    #[must_use]
    pub fn with_checked_keys(self) -> Self {
        Self { check_keys: true, ..self }
    }

    /// With every row checked.
    #[must_use]
    pub fn with_checked_rows(self) -> Self {
        Self { check_rows: true, ..self }
    }

    /// With plans that other tables can be given to.
    #[must_use]
    pub fn with_following(self) -> Self {
        Self { following: true, ..self }
    }

    /// With so many bytes of GPU memory for rows that are updated.
    #[must_use]
    pub fn with_overlay_bytes(self, overlay_bytes: u64) -> Self {
        Self { overlay_bytes, ..self }
    }

    /// Whether what look-ups read may change between them.
    pub(crate) fn replaces(&self) -> bool {
        self.following || self.overlay_bytes > 0
    }

    /// With all doorbells rung by a host thread (queue placement B′), or not.
    #[must_use]
    pub fn with_host_doorbells(self, host_doorbells: bool) -> Self {
        Self { host_doorbells, ..self }
    }
}

/// The GPU executor on a store, as its tables were when it was attached, but for updated rows. It pins them.
///
/// ```no_run
/// # use warprow_gpu::*;
/// # use warprow_lookup::*;
/// # use warprow_store::Store;
/// # fn example(store: &Store) -> Result<(), Box<dyn std::error::Error>> {
/// let executor = GpuExecutor::attach(store, Gpu::open(0)?, GpuOptions::default().with_hbm_bytes(1 << 30))?;
/// let plan = executor.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
/// let mut rows = vec![0.0f32; 2 * plan.width()];
/// // Ids and rows in this process; `GpuSlot::lookup` takes addresses on the GPU.
/// let mut slot = plan.slot()?.copied()?;
/// slot.lookup(&Batch::new(&[1i64, 999], 2), &mut Output::new(Rows::F32(&mut rows), plan.width()))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GpuExecutor {
    pub(crate) inner: Arc<Attached>,
}

#[derive(Debug)]
pub(crate) struct Attached {
    pub kernels: Arc<Kernels>,
    pub store: StoreView,
    pub options: GpuOptions,
    pub gpu: Arc<Gpu>,
    /// Read curves by member, as far as they are known and used.
    pub curves: Vec<Option<ReadCurve>>,
    /// What checksums are computed with; `None`: none is.
    pub slices: Option<DeviceMemory>,
    /// What plans begin with.
    view: Mutex<Arc<View>>,
    /// Held while tables are replaced.
    pub plans: Mutex<Vec<Weak<Prepared>>>,
    /// Replacements of which the GPU has not said that they have ended.
    pub unended: Mutex<Vec<Arc<Attempt>>>,
    /// On which tables are replaced, if ever.
    stream: OnceLock<Stream>,
    /// Wakes the drives' threads, where there are several drives and they have threads.
    waker: Option<DriveWaker>,
    /// Rows that are updated meanwhile.
    pub overlay: Option<Arc<GpuOverlay>>,
    /// None is, where there is no overlay.
    _unfollowing: Option<UpdatesRefused>,
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
fn drive_waker_of(store: &StoreView) -> Option<DriveWaker> {
    let functions = store.drives().iter().flatten().map(|member| member.controller().function());
    if functions.filter(|it| it.doorbell_memory().is_some()).count() < 2 {
        return None;
    }
    let store = store.clone();
    DriveWaker::new("warprow-waker", LULL, move || wake(&store))
        .inspect_err(|error| tracing::warn!(%error, "callers of look-ups wake drives themselves"))
        .ok()
}

impl GpuExecutor {
    /// Prepares look-ups of `store` on `gpu`: compiles the kernels (or takes them from a cache), and fills GPU memory and DRAM. A table whose
    /// permutation is damaged gets no place in either; only a plan over it fails.
    pub fn attach(store: &Store, gpu: Arc<Gpu>, options: GpuOptions) -> Result<Self, GpuError> {
        let store = store.view();
        if options.queue_sets == 0 || options.queue_sets > 128 {
            return Err(GpuError::Unsupported("a slot has 1 to 128 queue sets".to_owned()));
        }
        if options.gatherers > MOST_GATHERERS {
            return Err(GpuError::Unsupported(format!("at most {MOST_GATHERERS} thread blocks gather rows")));
        }
        if store.drives().iter().any(Option::is_none) {
            return Err(GpuError::Unsupported("members are missing: the GPU reads only from whole stores".to_owned()));
        }
        let mut curves = options.merging.given(store.drives().len())?;
        // From here on there are none that it would not see.
        let unfollowing = (options.overlay_bytes == 0).then(|| store.refuse_updates());
        let located = store.tables();
        let kernels = Arc::new(Kernels::load(&gpu)?);
        if options.merging == Merging::Measured {
            store.watch()?;
            let timeout = options.timeout.unwrap_or(store.timeout());
            store.measure_reads(&located, options.depth.max(1), timeout, &mut curves);
        }
        let overlay = match options.overlay_bytes {
            0 => {
                check_updates(&located)?;
                None
            }
            bytes => {
                let least = located.iter().map(|it| it.table().row_bytes()).min().unwrap_or(16);
                Some(Arc::new(GpuOverlay::new(&gpu, kernels.clone(), bytes, least)?))
            }
        };
        let view = View::new(&store, located, &gpu, &options, overlay.as_ref(), &mut |_| {})?;
        let view = Mutex::new(Arc::new(view));
        let slices = options.check_rows.then(|| {
            let bytes = crc::slices();
            let memory = DeviceMemory::new(&gpu, bytes.len() as u64)?;
            memory.write(0, &bytes).map(|()| memory)
        });
        let slices = slices.transpose()?;
        let waker = drive_waker_of(&store);
        let (plans, unended, stream) = Default::default();
        let attached = Attached {
            kernels,
            store,
            options,
            gpu,
            curves,
            slices,
            view,
            plans,
            unended,
            stream,
            waker,
            overlay,
            _unfollowing: unfollowing,
        };
        let inner = Arc::new(attached);
        if let Some(overlay) = &inner.overlay {
            overlay.belongs_to(&inner);
        }
        Ok(Self { inner })
    }
}

impl GpuExecutor {
    /// Prepares look-ups of `features`: takes queue pairs and allocates everything that look-ups of its slots will need.
    pub fn plan(&self, features: &[Feature], options: PlanOptions) -> Result<GpuPlan, GpuError> {
        GpuPlan::new(self.inner.clone(), features, options)
    }

    /// The rows of `table` that are in DRAM. `None`: there is none. For measuring against what reads them in other ways; valid
    /// while this lives, and until it adopts other tables.
    pub fn dram_rows(&self, table: &str) -> Option<DramRows> {
        let view = self.inner.view();
        let table = view.tables.iter().find(|it| it.located.table().name == table && it.dram_rows() > 0)?;
        let dram = view.dram.as_ref()?;
        Some(DramRows {
            on_gpu: dram.address() + table.dram,
            here: dram.memory().as_ptr().cast_const().wrapping_add(table.dram as usize),
            stride: table.row_stride,
        })
    }

    /// The read curve by which each drive's rows share commands, with the drive's name; `None`: it has none.
    pub fn read_curves(&self) -> Vec<(String, Option<ReadCurve>)> {
        let members = self.inner.store.drives().iter().zip(&self.inner.curves);
        members.filter_map(|(member, curve)| Some((member.as_ref()?.name().to_owned(), curve.clone()))).collect()
    }

    /// Where rings, doorbells and rows of its plans live, for each drive, and why nowhere better.
    pub fn queue_placements(&self) -> QueuePlacements {
        let members = self.inner.store.drives().iter().flatten();
        let functions = members.map(|member| &**member.controller().function());
        match self.inner.options.host_doorbells {
            true => QueuePlacements::with_host_doorbells(Ok(&self.inner.gpu), functions),
            false => QueuePlacements::choose(Ok(&self.inner.gpu), functions),
        }
    }

    /// Rows of `table` in GPU memory and in DRAM: its hottest. `None`: there is no such table.
    pub fn tiers(&self, table: &str) -> Option<(u64, u64)> {
        let view = self.inner.view();
        let table = view.tables.iter().find(|it| it.located.table().name == table)?;
        Some((table.hbm_rows, table.dram_rows()))
    }
}

/// Fails if rows were updated, which the GPU does not see.
pub(crate) fn check_updates(located: &[TableVersion]) -> Result<(), GpuError> {
    match located.iter().find(|it| StoreView::is_updated(&it.generation)) {
        None => Ok(()),
        Some(updated) => Err(GpuError::Unsupported(format!(
            "rows of generation {} were updated since it was loaded, which an executor on a GPU without GpuOptions::overlay_bytes does not see: compact it first, or attach with them",
            updated.generation.id
        ))),
    }
}

/// Keys that a range of rows takes.
pub(crate) fn keys_of(rows: u64) -> u64 {
    rows.next_multiple_of(KEY_ALIGN)
}

pub(crate) fn element_of(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => element::F32,
        DType::F16 => element::F16,
        DType::BF16 => element::BF16,
        DType::I8 => element::I8,
        DType::U8 => element::U8,
        DType::F8E4M3 => element::F8E4M3,
        DType::F8E5M2 => element::F8E5M2,
        DType::Q8 => element::Q8,
        DType::Q4 => element::Q4,
    }
}

/// Whether the GPU can read rows of `table` from drives with the two pages that a command has.
pub(crate) fn landing_stride(table: &Table, lba: u32) -> Result<u32, String> {
    let bytes = table.packing.row_lbas() * lba;
    match bytes.next_power_of_two() {
        stride if stride <= 8192 => Ok(stride.max(lba)),
        _ => Err(format!(
            "rows of {} B of table {:?} are too long for the GPU: 8 KiB at most",
            table.row_bytes(),
            table.name
        )),
    }
}
