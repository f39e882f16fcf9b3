//! Look-ups on a GPU.

use std::ffi::c_char;
use std::time::Duration;

use warprow_gpu::{CacheAdmission, Gpu, GpuExecutor, GpuOptions, GpuPlan, GpuPreparedTables, GpuSlot};
use warprow_lookup::Pooling;

use crate::arguments::{check_place, millis, store as put};
use crate::batch::Shape;
use crate::cache_shares::{cache_shares, warprow_cache_share};
use crate::error::{Failure, c_text, warprow_error};
use crate::guard;
use crate::handle::{self, Object};
use crate::host::{prepare_options, warprow_prepare_options};
use crate::plan::{features as read_features, plan_options, resident_scales, warprow_feature, warprow_plan_options};
use crate::sized::{options, versioned};
use crate::status::warprow_status;
use crate::store::{close, reserved, store_of, warprow_store};
use crate::touches::epoch_in;
use crate::types::merging;

/// Looks rows of a store up on a GPU: CUDA kernels read the hottest rows from GPU memory and DRAM, and the others from drives, to which
/// they write commands themselves. It keeps its store open. Any thread may use it, several at once.
pub struct warprow_gpu_executor {
    _opaque: [u8; 0],
}

/// Look-ups of a list of features on a GPU, with all that they need. It keeps its executor. Any thread may use it, several at once.
pub struct warprow_gpu_plan {
    _opaque: [u8; 0],
}

/// The right to one look-up at a time on a GPU. It keeps its plan. Any thread may use it, several at once; look-ups that are under way
/// at once are not possible: the later one's ticket says WARPROW_STATUS_BUSY.
pub struct warprow_gpu_slot {
    _opaque: [u8; 0],
}

/// Tables that a GPU executor prepared.
pub struct warprow_gpu_prepared {
    _opaque: [u8; 0],
}

/// Options of warprow_gpu_executor_attach. Zeros, or NULL for all, mean the usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_gpu_options {
    /// sizeof(warprow_gpu_options).
    pub struct_size: usize,
    /// Bytes of rows to keep in GPU memory, the hottest ones.
    pub hbm_bytes: u64,
    /// Bytes of rows to keep in pinned DRAM, the hottest ones that are not in GPU memory.
    pub dram_bytes: u64,
    /// Bytes of GPU memory for updated rows; 0: the store takes no updates while the executor lives.
    pub overlay_bytes: u64,
    /// The longest wait for a read, in milliseconds; 0: that of the store.
    pub timeout_ms: u64,
    /// Queue pairs that each slot has on every drive; 0: as many as suit the drives.
    pub queue_sets: u32,
    /// Not 0: rows are compared with their checksums, where there are any.
    pub check_rows: i32,
    /// Not 0: each key is compared with the stored one, so that one which the table does not have is missing for certain.
    pub check_keys: i32,
    /// Not 0: plans can adopt other tables.
    pub adopting: i32,
    /// Which rows on drives share a read command: a WARPROW_MERGING_ constant.
    pub merging: i32,
    /// 0.
    pub reserved: u32,
    /// Bytes of GPU memory for a cache: rows that look-ups have read from drives, which later ones then find there; 0: no row is
    /// cached.
    pub cache_bytes: u64,
    /// How many different rows on drives a usual batch has, by which the cache holds lines that were used lately; 0: 262,144.
    pub cache_batch_rows: u64,
    /// With which probability a row that was read from a drive is cached, up to 1; 0: each row is, or as `cache_sketch` says.
    pub cache_chance: f64,
    /// Not 0: a row is cached if it was asked for more often lately than the row whose place it would take. `cache_chance` is 0 then.
    pub cache_sketch: i32,
    /// 0.
    pub cache_reserved: u32,
    /// Look-ups note this epoch, from 1 to 65,535, as that of the last touch of each key that they find, for warprow_store_expire: 2 bytes
    /// of GPU memory, and 2 of the host's, for each row of tables whose keys are stored. 0: nothing is noted. Since 1.6.
    pub touch_epoch: u32,
    /// 0.
    pub touch_reserved: u32,
    /// Not 0: rows of `dram_bytes` are cached as those read from drives are. Since 1.7.
    pub cache_dram: i32,
    /// 0.
    pub dram_reserved: u32,
    /// Tables that have so many bytes of the cache each to themselves; the others share the rest. The array and its texts stay the
    /// caller's. Since 1.8.
    pub cache_shares: *const warprow_cache_share,
    /// How many these are.
    pub cache_share_count: usize,
}

versioned! {
    warprow_gpu_options: 64 => 128,
}

pub(crate) struct Executor(pub(crate) GpuExecutor);

struct Planned {
    plan: GpuPlan,
    shape: Shape,
    features: usize,
}

/// A slot, with what its plan's outputs are like.
pub(crate) struct Taken {
    pub(crate) slot: GpuSlot,
    pub(crate) shape: Shape,
    pub(crate) features: usize,
}

struct Prepared(GpuPreparedTables);

impl Object for Executor {
    type Tag = warprow_gpu_executor;
    const KIND: u8 = 20;
    const NAME: &'static str = "warprow_gpu_executor";
}

impl Object for Planned {
    type Tag = warprow_gpu_plan;
    const KIND: u8 = 21;
    const NAME: &'static str = "warprow_gpu_plan";
}

impl Object for Taken {
    type Tag = warprow_gpu_slot;
    const KIND: u8 = 22;
    const NAME: &'static str = "warprow_gpu_slot";
}

impl Object for Prepared {
    type Tag = warprow_gpu_prepared;
    const KIND: u8 = 23;
    const NAME: &'static str = "warprow_gpu_prepared";
}

/// Options with the cache that a caller's ask for.
fn cached(mut options: GpuOptions, given: &warprow_gpu_options) -> Result<GpuOptions, Failure> {
    let chance = given.cache_chance;
    if !(0.0..=1.0).contains(&chance) {
        return Err(Failure::invalid(format!(
            "cache_chance is {chance}: give a probability up to 1, or 0 for each row"
        )));
    }
    options = options.with_cache_bytes(given.cache_bytes);
    if given.cache_batch_rows != 0 {
        options = options.with_cache_batch_rows(given.cache_batch_rows);
    }
    reserved("warprow_gpu_options", given.cache_reserved)?;
    reserved("warprow_gpu_options", given.dram_reserved)?;
    options.cached_dram = given.cache_dram != 0;
    if given.cache_sketch != 0 {
        if chance > 0.0 {
            return Err(Failure::invalid("cache_chance and cache_sketch exclude each other: set one of them"));
        }
        options = options.with_cache_admission(CacheAdmission::Sketch);
    }
    if chance > 0.0 {
        options = options.with_cache_admission(CacheAdmission::Probability(chance));
    }
    Ok(options)
}

/// How many GPUs CUDA sees; 0 also if there is no CUDA driver.
///
/// Any thread may call it. The first call in a process loads the CUDA driver.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_gpu_count() -> u32 {
    guard::run(|| Ok(Gpu::count())).unwrap_or(0)
}

/// Writes the name of a GPU to `name`, which has room for `name_bytes` bytes, with a NUL at its end; what is too long is cut off.
///
/// Any thread may call it. It makes the GPU's primary context, if it is not there.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_name(
    device: u32,
    name: *mut c_char,
    name_bytes: usize,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("name", name)?;
            if name_bytes == 0 {
                return Err(Failure::invalid("name_bytes is 0: there is no room for a NUL"));
            }
            let text = c_text(Gpu::open(device)?.name());
            let bytes = text.as_bytes().get(..name_bytes - 1).unwrap_or(text.as_bytes());
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), name, bytes.len());
            name.add(bytes.len()).write(0);
            Ok(())
        })
    }
}

/// Attaches an executor on GPU number `device`, as CUDA counts, to a store: compiles the kernels, or takes them from a cache, and fills
/// GPU memory and DRAM. It works in the GPU's primary context, which is the one of the CUDA runtime. It reads the tables as they are
/// now, until it adopts others.
///
/// All arguments stay the caller's. The executor in `*executor` is the caller's, who closes it with warprow_gpu_executor_close.
///
/// Any thread may call it. It blocks until the memories are filled. No stream may be being captured meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_attach(
    store: *const warprow_store,
    device: u32,
    gpu: *const warprow_gpu_options,
    executor: *mut *mut warprow_gpu_executor,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("executor", executor)?;
            executor.write(std::ptr::null_mut());
            let (store, given) = (store_of(store)?, options(gpu)?);
            reserved("warprow_gpu_options", given.reserved)?;
            let mut chosen = GpuOptions::default()
                .with_hbm_bytes(given.hbm_bytes)
                .with_dram_bytes(given.dram_bytes)
                .with_overlay_bytes(given.overlay_bytes);
            if given.queue_sets != 0 {
                chosen = chosen.with_queue_sets(given.queue_sets);
            }
            if let Some(timeout) = millis(given.timeout_ms) {
                chosen = chosen.with_timeout(timeout);
            }
            if let Some(rule) = merging(given.merging)? {
                chosen = chosen.with_merging(rule);
            }
            chosen = cached(chosen, &given)?;
            chosen.cache_shares = cache_shares(given.cache_shares, given.cache_share_count)?;
            reserved("warprow_gpu_options", given.touch_reserved)?;
            chosen.touch_epoch = epoch_in("touch_epoch", given.touch_epoch)?;
            if given.check_rows != 0 {
                chosen = chosen.with_checked_rows();
            }
            if given.check_keys != 0 {
                chosen = chosen.with_checked_keys();
            }
            if given.adopting != 0 {
                chosen = chosen.with_adopting();
            }
            let attached = GpuExecutor::attach(&store, Gpu::open(device)?, chosen)?;
            put(executor, handle::open(Executor(attached))?);
            Ok(())
        })
    }
}

/// Closes an executor. Its plans, slots and tickets go on until they are closed too. NULL is left alone.
///
/// Any thread may call it, also while others use the executor: their calls end first.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_close(
    executor: *mut warprow_gpu_executor,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Executor>(executor)) }
}

/// Prepares other tables than those that look-ups read, while look-ups go on. The executor was attached with `adopting`. Then follow
/// warprow_store_switch, if it is another generation, and warprow_gpu_executor_adopt.
///
/// The prepared tables in `*prepared` are the caller's, who closes them with warprow_gpu_prepared_close.
///
/// Any thread may call it. It blocks until other GPU memory and DRAM are filled.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_prepare(
    executor: *const warprow_gpu_executor,
    prepare: *const warprow_prepare_options,
    prepared: *mut *mut warprow_gpu_prepared,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("prepared", prepared)?;
            prepared.write(std::ptr::null_mut());
            let executor = handle::get::<Executor>(executor)?;
            let tables = executor.0.prepare(&prepare_options(prepare)?)?;
            put(prepared, handle::open(Prepared(tables))?);
            Ok(())
        })
    }
}

/// Has all plans of an executor read the prepared tables, captured look-ups too: those that begin after the call has returned. It waits up
/// to `patience_ms` milliseconds for look-ups that are under way. WARPROW_STATUS_BUSY: some did not end; call it again.
///
/// The prepared tables stay the caller's.
///
/// Any thread may call it. It blocks for as long as said.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_adopt(
    executor: *const warprow_gpu_executor,
    prepared: *const warprow_gpu_prepared,
    patience_ms: u64,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<Executor>(executor)?;
            let prepared = handle::get::<Prepared>(prepared)?;
            Ok(executor.0.adopt(&prepared.0, Duration::from_millis(patience_ms))?)
        })
    }
}

/// Closes prepared tables. Executors that adopted them go on reading them. NULL is left alone. Any thread may call it.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_prepared_close(
    prepared: *mut warprow_gpu_prepared,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Prepared>(prepared)) }
}

/// Plans look-ups of features: takes queue pairs and allocates all that look-ups will need.
///
/// `features` has `feature_count` features. All arguments stay the caller's. The plan in `*plan` is the caller's, who closes it with
/// warprow_gpu_plan_close.
///
/// Any thread may call it. It blocks while memory and queues are made. No stream may be being captured meanwhile.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_executor_plan(
    executor: *const warprow_gpu_executor,
    features: *const warprow_feature,
    feature_count: usize,
    how: *const warprow_plan_options,
    plan: *mut *mut warprow_gpu_plan,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("plan", plan)?;
            plan.write(std::ptr::null_mut());
            let executor = handle::get::<Executor>(executor)?;
            let scales = resident_scales(how)?;
            let (features, how) = (read_features(features, feature_count)?, plan_options(how)?);
            let pooled = features.iter().any(|feature| feature.pooling != Pooling::None);
            let planned = executor.0.plan_with_scales(&features, how.clone(), &scales)?;
            let shape = Shape { width: planned.width(), out: how.out, pooled };
            put(plan, handle::open(Planned { plan: planned, shape, features: features.len() })?);
            Ok(())
        })
    }
}

/// Closes a plan. Its slots and tickets go on until they are closed too. NULL is left alone. Any thread may call it.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_plan_close(
    plan: *mut warprow_gpu_plan,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Planned>(plan)) }
}

/// Elements of an output row: all features side by side if they are pooled, else the widest; 0 if the plan was closed.
///
/// Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_gpu_plan_width(plan: *const warprow_gpu_plan) -> usize {
    handle::get::<Planned>(plan).map_or(0, |plan| plan.shape.width)
}

/// Takes a slot of a plan, which is one look-up that can be under way. WARPROW_STATUS_BUSY if all are taken.
///
/// The slot in `*slot` is the caller's, who closes it with warprow_gpu_slot_close. It goes back to the plan when all its tickets are
/// closed too, and all graphs that hold look-ups of it are destroyed.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_plan_slot(
    plan: *const warprow_gpu_plan,
    slot: *mut *mut warprow_gpu_slot,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("slot", slot)?;
            slot.write(std::ptr::null_mut());
            let plan = handle::get::<Planned>(plan)?;
            let taken = Taken { slot: plan.plan.slot()?, shape: plan.shape, features: plan.features };
            put(slot, handle::open(taken)?);
            Ok(())
        })
    }
}

/// Closes a slot. Graphs that hold look-ups of it keep it until they are destroyed. NULL is left alone.
///
/// Any thread may call it. It may block until the GPU has ended what it was given.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_slot_close(
    slot: *mut warprow_gpu_slot,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Taken>(slot)) }
}

/// Starts the slot's queues anew that take no commands, since a drive did not answer. warprow_gpu_slot_lookup does so by itself; this is
/// for slots whose look-ups are all in graphs: call it between replays. If `recovered` is not NULL, it gets 1 if there was anything to
/// do, else 0.
///
/// Any thread may call it. It blocks while drives are reset, if there is anything to do.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_slot_recover(
    slot: *const warprow_gpu_slot,
    recovered: *mut i32,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let done = handle::get::<Taken>(slot)?.slot.recover()?;
            put(recovered, done.into());
            Ok(())
        })
    }
}
