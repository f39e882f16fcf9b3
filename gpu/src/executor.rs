//! The GPU executor: a store's tables, with rows in GPU memory and DRAM, and the plans that are made on them.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::CUstream;
use warprow_gpu_queues::{DeviceMemory, Gpu, QueuePlacements};
use warprow_kernels::{Kernels, crc};
use warprow_layout::Drive;
use warprow_lookup::executors::ReadPacer;
use warprow_lookup::{Feature, PlanOptions, PopularRow, ReadMerging};
use warprow_store::view::{MemberDrive, StoreView};
use warprow_store::{ReadCurve, Store};

use crate::attached::{Attached, check_updates, drive_waker_of};
use crate::capture::Capture;
use crate::error::GpuError;
use crate::options::GpuOptions;
use crate::overlay::GpuOverlay;
use crate::plan::GpuPlan;
use crate::reading_plan::ReadingPlans;
use crate::ring_refusals::ring_refusals;
use crate::row_cache::GpuCacheStatistics;
use crate::sampling::Sampling;
use crate::scales::ResidentScales;
use crate::touches::GpuTouches;
use crate::view::{Shared, View};

/// Far more thread blocks than a GPU runs at once.
const MOST_GATHERERS: u32 = 65_535;
/// Drives grant fewer queues than so many sets take.
const MOST_QUEUE_SETS: u32 = 128;

/// How many queue sets a slot has unless it is told. A queue carries 11 to 16 million commands a second, and drives that
/// a GPU plays answer them as fast; with two sets they are busy while one set's block writes commands or takes rows. On
/// one GPU with more than eight such drives more sets cost more than they gain. Other drives are busy with one set, and
/// may grant few queues. docs/gpu-drive.md has the measurements.
fn suitable_queue_sets(store: &StoreView) -> u32 {
    let is_played = |drive: &Option<Arc<MemberDrive>>| {
        drive.as_ref().is_some_and(|drive| drive.controller().function().favours_peer_memory())
    };
    if store.drives().iter().all(is_played) { 2 } else { 1 }
}

/// Where the rows of one table lie in pinned DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DramRows {
    /// Address of the first row on the GPU.
    pub on_gpu: u64,
    /// Address of the first row in this process.
    pub here: *const u8,
    /// Bytes from one row to the next, a multiple of 16.
    pub stride: u32,
}

/// The GPU executor on a store. Look-ups read the tables as they were when the executor was attached, except for
/// updated rows, or the tables that it adopted since. The executor pins the generations that its look-ups read.
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
/// slot.lookup(&Batch::new(&[1i64, 999], 2), &mut Output::new(OutputRows::F32(&mut rows), plan.width()))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GpuExecutor {
    pub(crate) inner: Arc<Attached>,
}

impl GpuExecutor {
    /// Prepares look-ups of `store` on `gpu`: compiles the kernels (or takes them from a cache), and fills GPU memory
    /// and DRAM. A table whose permutation (the list of its rows' ranks) is damaged gets no place in either memory;
    /// only a plan over that table fails.
    ///
    /// Where the GPU is to store to doorbell registers of drives, a [ring test](warprow_gpu_queues::RingTest) of each
    /// such drive comes first. With [`DoorbellAccess::Registers`](crate::DoorbellAccess::Registers) a test that fails
    /// is an error ([`GpuError::RingTest`]); with [`DoorbellAccess::Best`](crate::DoorbellAccess::Best) a host thread
    /// rings for that drive, and [`queue_placements`](Self::queue_placements) says why.
    pub fn attach(store: &Store, gpu: Arc<Gpu>, options: GpuOptions) -> Result<Self, GpuError> {
        let store = store.view();
        if options.queue_sets > MOST_QUEUE_SETS {
            return Err(GpuError::Unsupported(format!("a slot has at most {MOST_QUEUE_SETS} queue sets")));
        }
        if options.cache_bytes > 0 && options.one_kernel_ids.is_some_and(|ids| ids > 0) {
            return Err(GpuError::Unsupported(
                "look-ups by one kernel (GpuOptions::one_kernel_ids) do not ask a cache: attach without one_kernel_ids, or without \
                 cache_bytes"
                    .to_owned(),
            ));
        }
        if options.cached_dram && options.cache_bytes == 0 {
            return Err(GpuError::Unsupported(
                "rows in DRAM cannot be cached without a cache: attach with GpuOptions::cache_bytes, or without cached_dram".to_owned(),
            ));
        }
        if options.gatherers > MOST_GATHERERS {
            return Err(GpuError::Unsupported(format!("at most {MOST_GATHERERS} thread blocks gather rows")));
        }
        if store.drives().iter().any(Option::is_none) {
            return Err(GpuError::Unsupported("members are missing: the GPU reads only from whole stores".to_owned()));
        }
        let mut curves = options.merging.given(store.drives().len())?;
        // From here on no row is updated that the executor would not see.
        let unfollowing = (options.overlay_bytes == 0).then(|| store.refuse_updates());
        let located = store.tables();
        let kernels = Arc::new(Kernels::load(&gpu)?);
        let ring_refusals = ring_refusals(&kernels, &store, &options)?;
        if options.merging == ReadMerging::Measured {
            store.watch()?;
            let timeout = options.timeout.unwrap_or(store.timeout());
            store.measure_reads(&located, options.depth.max(1), timeout, &mut curves);
        }
        let options = match options.queue_sets {
            0 => options.with_queue_sets(suitable_queue_sets(&store)),
            _ => options,
        };
        let names = || located.iter().map(|version| version.table().name.clone()).collect();
        let sampling = options.counters.map(|counters| Sampling::new(&gpu, counters, names())).transpose()?;
        let plans = Arc::<ReadingPlans>::default();
        let overlay = match options.overlay_bytes {
            0 => {
                check_updates(&located)?;
                None
            }
            bytes => {
                let least = located.iter().map(|version| version.table().row_bytes()).min().unwrap_or(16);
                Some(Arc::new(GpuOverlay::new(&gpu, kernels.clone(), bytes, least, plans.clone())?))
            }
        };
        let touches = options.touch_epoch.map(|epoch| GpuTouches::new(&gpu, epoch)).transpose()?;
        let cache = OnceLock::new();
        let shared = Shared { kernels: &kernels, cache: &cache, touches: touches.as_ref(), before: None };
        let view = View::new(&store, located, &gpu, &options, overlay.as_ref(), shared, &mut ReadPacer::unpaced())?;
        let view = Mutex::new(Arc::new(view));
        let slices = options.check_rows.then(|| {
            let bytes = crc::slices();
            let memory = DeviceMemory::new(&gpu, bytes.len() as u64)?;
            memory.write(0, &bytes).map(|()| memory)
        });
        let slices = slices.transpose()?;
        let waker = drive_waker_of(&store);
        let (unended, stream) = Default::default();
        let attached = Attached {
            kernels,
            store,
            options,
            gpu,
            curves,
            slices,
            ring_refusals,
            view,
            plans,
            unended,
            stream,
            waker,
            cache,
            sampling,
            touches,
            overlay,
            _unfollowing: unfollowing,
        };
        let inner = Arc::new(attached);
        Ok(Self { inner })
    }
}

impl GpuExecutor {
    /// The store whose rows this executor looks up.
    pub fn store(&self) -> Store {
        self.inner.store.store()
    }

    /// Prepares look-ups of `features`: takes queue pairs and allocates everything that look-ups of its slots will
    /// need.
    pub fn plan(&self, features: &[Feature], options: PlanOptions) -> Result<GpuPlan, GpuError> {
        GpuPlan::new(self.inner.clone(), features, options)
    }

    /// Prepares look-ups as [`plan`](Self::plan) does, of tables of which some have their scales in memory: each row that
    /// is read from a drive gets its scales from there, by the kernels that read it. Rows of such a table have the type
    /// `mxfp8`, as if drives had the scales too, so the output may be of floats, or of type `mxfp8` for rows as they are.
    /// Bags may have such rows; the cache takes none of them.
    ///
    /// # Safety
    /// The scales stay where they are for as long as the plan, its slots, and graphs with look-ups of these live. Whoever
    /// changes them meanwhile decides what a look-up under way finds.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for a table that is not of type `f8e4m3` or has rows in memory, for rows that are not in
    /// the order of ids, for an executor whose rows are updated or replaced, and for features that want a default row;
    /// [`GpuError::Invalid`] for another number of bytes, or an address that the GPU does not reach.
    #[allow(unsafe_code, reason = "it takes addresses from its caller")]
    pub unsafe fn plan_with_scales(
        &self,
        features: &[Feature],
        options: PlanOptions,
        scales: &[ResidentScales],
    ) -> Result<GpuPlan, GpuError> {
        GpuPlan::with(self.inner.clone(), features, options, false, scales)
    }

    /// Whether `stream` is being captured in a CUDA graph.
    ///
    /// # Errors
    /// [`GpuError::Invalid`] if it belongs to another context, or its capture has become invalid.
    pub fn is_captured(&self, stream: CUstream) -> Result<bool, GpuError> {
        let gpu = &self.inner.gpu;
        let _current = gpu.enter()?;
        Ok(Capture::of_stream(gpu, stream)?.is_some())
    }

    /// Where the rows of `table` that are in DRAM lie; `None` if none are, or if they lie in another GPU's memory. For measuring against programs that read the
    /// rows in other ways. Valid while this executor lives, and until it adopts other tables.
    pub fn dram_rows(&self, table: &str) -> Option<DramRows> {
        let view = self.inner.view();
        let table = view.tables.iter().find(|other| other.located.table().name == table && other.dram_rows() > 0)?;
        let dram = view.dram.as_ref()?;
        Some(DramRows {
            on_gpu: dram.address() + table.dram,
            here: dram.here()?.as_ptr().cast_const().wrapping_add(table.dram as usize),
            stride: table.row_stride,
        })
    }

    /// For each drive its name, and the read curve by which rows share commands there; `None`: the drive has no read
    /// curve.
    pub fn read_curves(&self) -> Vec<(String, Option<ReadCurve>)> {
        let members = self.inner.store.drives().iter().zip(&self.inner.curves);
        members.filter_map(|(member, curve)| Some((member.as_ref()?.name().to_owned(), curve.clone()))).collect()
    }

    /// Where rings, doorbells and landing areas of this executor's plans live, for each drive, and why in no better
    /// place.
    pub fn queue_placements(&self) -> QueuePlacements {
        let members = self.inner.store.drives().iter().flatten();
        let functions = members.map(|member| &**member.controller().function());
        let options = &self.inner.options;
        let chosen = QueuePlacements::choose(Ok(&self.inner.gpu), functions, options.doorbells, options.queue_memory);
        let chosen = if options.drive_memory.is_some() { chosen.with_drive_memory() } else { chosen };
        chosen.after_tests(&self.inner.ring_refusals)
    }

    /// What the cache has done so far; `None`: there is no cache. It copies from GPU memory, which waits for what was
    /// launched before on CUDA's default stream.
    pub fn cache_statistics(&self) -> Result<Option<GpuCacheStatistics>, GpuError> {
        self.inner.cache.get().map(|cache| cache.statistics()).transpose()
    }

    /// Empties the cache, in which nobody then finds a row until look-ups have read it anew. Look-ups go on meanwhile
    /// without the cache; this waits for those that began before, up to `patience`.
    ///
    /// # Errors
    /// [`GpuError::NoCache`] without one; [`GpuError::CacheBusy`] if a look-up did not end in time, such as one whose
    /// rows were fetched ahead: the cache is as it was; what CUDA says.
    pub fn clear_cache(&self, patience: Duration) -> Result<(), GpuError> {
        self.inner.cache.get().ok_or(GpuError::NoCache)?.clear(patience)
    }

    /// The ids of `table` that were looked up most, as far as they were counted, the most popular first, at most `most` of them: as
    /// callers gave them, padding ids and ids that the table lacks among them, which
    /// [`Store::rerank`] leaves out. Rows of all tiers, cached and updated ones are counted. `None`: no such table is counted
    /// ([`GpuOptions::counters`](crate::GpuOptions::counters)).
    pub fn popular(&self, table: &str, most: usize) -> Option<Vec<PopularRow>> {
        self.inner.sampling.as_ref()?.popular(table, most)
    }

    /// How many rows of `table`, the hottest, are in GPU memory, and how many of the next hottest in DRAM. `None`:
    /// there is no such table.
    pub fn tiers(&self, table: &str) -> Option<(u64, u64)> {
        let view = self.inner.view();
        let table = view.tables.iter().find(|other| other.located.table().name == table)?;
        Some((table.hbm_rows, table.dram_rows()))
    }
}
