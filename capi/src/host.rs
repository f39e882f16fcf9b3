//! Look-ups on the host.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use warprow_lookup::{
    HostExecutor, HostOptions, LookupError, LookupReport, Plan, PrepareOptions, PreparedTables, Slot,
};

use crate::arguments::{check_place, millis, store as put};
use crate::batch::{Shape, warprow_batch, warprow_output};
use crate::cache_shares::{cache_shares, warprow_cache_share};
use crate::error::{Failure, warprow_error};
use crate::guard;
use crate::handle::{self, Object};
use crate::plan::{features as read_features, no_scales, plan_options, warprow_feature, warprow_plan_options};
use crate::report::{warprow_metrics, warprow_report};
use crate::sized::{check, fill, options, versioned};
use crate::status::warprow_status;
use crate::store::{close, reserved, store_of, warprow_store};
use crate::touches::epoch_in;
use crate::types::merging;

/// Looks rows of a store up on the host: the hottest rows lie in DRAM, the others are read from drives. It keeps its store open. Any
/// thread may use it, several at once.
pub struct warprow_host_executor {
    _opaque: [u8; 0],
}

/// Look-ups of a list of features on the host, with all that they need. It keeps its executor. Any thread may use it, several at once.
pub struct warprow_host_plan {
    _opaque: [u8; 0],
}

/// The right to one look-up at a time on the host. It keeps its plan. Any thread may use it, but one at a time: another one's call is
/// refused with WARPROW_STATUS_BUSY.
pub struct warprow_host_slot {
    _opaque: [u8; 0],
}

/// Tables that a host executor prepared, and has not adopted yet.
pub struct warprow_host_prepared {
    _opaque: [u8; 0],
}

/// Options of warprow_host_executor_attach. Zeros, or NULL for all, mean the usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_host_options {
    /// sizeof(warprow_host_options).
    pub struct_size: usize,
    /// Bytes of rows to keep in DRAM, the hottest ones.
    pub dram_bytes: u64,
    /// The longest wait for a read, in milliseconds; 0: that of the store.
    pub timeout_ms: u64,
    /// Queue pairs that each slot has on every drive; 0: 1.
    pub queue_pairs: u32,
    /// Most commands in flight on each queue pair; 0: 1,023.
    pub depth: u32,
    /// Which rows on drives share a read command: a WARPROW_MERGING_ constant.
    pub merging: i32,
    /// Not 0: rows that are read from drives are compared with their checksums, where there are any.
    pub check_rows: i32,
    /// Not 0: each key is compared with the stored one, so that one which the table does not have is missing for certain.
    pub check_keys: i32,
    /// 0.
    pub reserved: u32,
    /// Bytes of memory for a cache: rows that look-ups have read from drives, which later ones then find there; 0: no row is cached.
    pub cache_bytes: u64,
    /// Look-ups note this epoch, from 1 to 65,535, as that of the last touch of each key that they find, for warprow_store_expire: 2 bytes
    /// for each row of tables whose keys are stored. 0: nothing is noted. Since 1.6.
    pub touch_epoch: u32,
    /// 0.
    pub touch_reserved: u32,
    /// Tables that have so many bytes of the cache each to themselves; the others share the rest. The array and its texts stay the
    /// caller's. Since 1.8.
    pub cache_shares: *const warprow_cache_share,
    /// How many these are.
    pub cache_share_count: usize,
}

/// Options of preparing tables, for either executor. Zeros, or NULL for all, mean the usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct warprow_prepare_options {
    /// sizeof(warprow_prepare_options).
    pub struct_size: usize,
    /// Prepare for warprow_store_switch to this generation, if `has_generation` is set.
    pub generation: u64,
    /// Bytes a second that may be read from drives for it; 0: as fast as they are.
    pub bytes_per_second: u64,
    /// Not 0: `generation` says which generation; 0: the tables that the store shows now.
    pub has_generation: i32,
    /// 0.
    pub reserved: u32,
}

versioned! {
    warprow_host_options: 48 => 80,
    warprow_prepare_options: 32,
}

pub(crate) struct Executor(pub(crate) HostExecutor);

struct Planned(Plan);

struct Taken {
    slot: Mutex<Slot>,
    shape: Shape,
}

struct Prepared(Mutex<Option<PreparedTables>>);

impl Object for Executor {
    type Tag = warprow_host_executor;
    const KIND: u8 = 10;
    const NAME: &'static str = "warprow_host_executor";
}

impl Object for Planned {
    type Tag = warprow_host_plan;
    const KIND: u8 = 11;
    const NAME: &'static str = "warprow_host_plan";
}

impl Object for Taken {
    type Tag = warprow_host_slot;
    const KIND: u8 = 12;
    const NAME: &'static str = "warprow_host_slot";
}

impl Object for Prepared {
    type Tag = warprow_host_prepared;
    const KIND: u8 = 13;
    const NAME: &'static str = "warprow_host_prepared";
}

impl Taken {
    /// The slot, for this thread alone.
    fn lock(&self) -> Result<MutexGuard<'_, Slot>, Failure> {
        self.slot.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let what =
                    "another thread is using the slot: a slot is for one call at a time, take one for each thread";
                Failure::new(warprow_status::Busy, what)
            }
            TryLockError::Poisoned(_) => {
                Failure::new(warprow_status::Bug, "an earlier call with this slot met a fault of the library: close it")
            }
        })
    }
}

/// Attaches an executor to a store: fills DRAM with the hottest rows. It reads the tables as they are now, with all updates that come,
/// until it adopts others.
///
/// All arguments stay the caller's. The executor in `*executor` is the caller's, who closes it with warprow_host_executor_close.
///
/// Any thread may call it. It blocks until DRAM is filled.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_attach(
    store: *const warprow_store,
    host: *const warprow_host_options,
    executor: *mut *mut warprow_host_executor,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("executor", executor)?;
            executor.write(std::ptr::null_mut());
            let (store, given) = (store_of(store)?, options(host)?);
            reserved("warprow_host_options", given.reserved)?;
            reserved("warprow_host_options", given.touch_reserved)?;
            let mut chosen = HostOptions::default();
            chosen.touch_epoch = epoch_in("touch_epoch", given.touch_epoch)?;
            (chosen.dram_bytes, chosen.cache_bytes) = (given.dram_bytes, given.cache_bytes);
            chosen.cache_shares = cache_shares(given.cache_shares, given.cache_share_count)?;
            if given.queue_pairs != 0 {
                chosen = chosen.with_queue_pairs(given.queue_pairs);
            }
            if given.depth != 0 {
                chosen = chosen.with_depth(given.depth);
            }
            if let Some(timeout) = millis(given.timeout_ms) {
                chosen = chosen.with_timeout(timeout);
            }
            if let Some(rule) = merging(given.merging)? {
                chosen = chosen.with_merging(rule);
            }
            if given.check_rows != 0 {
                chosen = chosen.with_checked_rows();
            }
            if given.check_keys != 0 {
                chosen = chosen.with_checked_keys();
            }
            put(executor, handle::open(Executor(HostExecutor::attach(&store, chosen)?))?);
            Ok(())
        })
    }
}

/// Closes an executor. Its plans and slots go on until they are closed too. NULL is left alone.
///
/// Any thread may call it, also while others use the executor: their calls end first.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_close(
    executor: *mut warprow_host_executor,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Executor>(executor)) }
}

/// Tells the totals of all look-ups since the executor was attached, in `*metrics`, whose struct_size the caller has set.
///
/// Any thread may call it. It reads memory only.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_metrics(
    executor: *const warprow_host_executor,
    metrics: *mut warprow_metrics,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("metrics", metrics)?;
            check(metrics)?;
            fill(metrics, &(&handle::get::<Executor>(executor)?.0.metrics()).into())
        })
    }
}

/// # Safety
/// `at` is NULL, or points to options.
pub(crate) unsafe fn prepare_options(at: *const warprow_prepare_options) -> Result<PrepareOptions, Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { options(at) }?;
    reserved("warprow_prepare_options", given.reserved)?;
    let mut chosen = PrepareOptions::default();
    if given.has_generation != 0 {
        chosen = chosen.with_generation(given.generation);
    }
    if given.bytes_per_second != 0 {
        chosen = chosen.with_rate(given.bytes_per_second);
    }
    Ok(chosen)
}

/// Prepares other tables than those that look-ups read, while look-ups go on: those of a generation to switch to, or the present ones
/// after a compaction. Then follow warprow_store_switch, if it is another generation, and warprow_host_executor_adopt.
///
/// The prepared tables in `*prepared` are the caller's, who gives them to warprow_host_executor_adopt, or closes them with
/// warprow_host_prepared_close.
///
/// Any thread may call it. It blocks until another DRAM tier is filled.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_prepare(
    executor: *const warprow_host_executor,
    prepare: *const warprow_prepare_options,
    prepared: *mut *mut warprow_host_prepared,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("prepared", prepared)?;
            prepared.write(std::ptr::null_mut());
            let executor = handle::get::<Executor>(executor)?;
            let tables = executor.0.prepare(&prepare_options(prepare)?)?;
            put(prepared, handle::open(Prepared(Mutex::new(Some(tables))))?);
            Ok(())
        })
    }
}

/// Has all plans of an executor read the prepared tables, from their next look-ups on. It waits up to `patience_ms` milliseconds for the
/// look-ups that still read the tables before; if `freed` is not NULL, it gets 1 if all of these have ended, so that their memory is
/// free, else 0.
///
/// The prepared tables are closed, whether the call succeeds or not, unless their handle is invalid.
///
/// Any thread may call it. It blocks for as long as said; no look-up waits.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_adopt(
    executor: *const warprow_host_executor,
    prepared: *mut warprow_host_prepared,
    patience_ms: u64,
    freed: *mut i32,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let executor = handle::get::<Executor>(executor)?;
            let prepared = handle::close::<Prepared>(prepared)?;
            let tables = prepared.0.lock().ok().and_then(|mut tables| tables.take());
            let tables = tables.ok_or_else(|| Failure::bug("prepared tables are gone"))?;
            let all = executor.0.adopt(tables, Duration::from_millis(patience_ms))?;
            put(freed, all.into());
            Ok(())
        })
    }
}

/// Closes prepared tables that are not adopted. NULL is left alone. Any thread may call it.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_prepared_close(
    prepared: *mut warprow_host_prepared,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Prepared>(prepared)) }
}

/// Plans look-ups of features: takes queue pairs and allocates all that look-ups will need.
///
/// `features` has `feature_count` features. All arguments stay the caller's. The plan in `*plan` is the caller's, who closes it with
/// warprow_host_plan_close.
///
/// Any thread may call it. It blocks while orders and keys of tables are read.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_executor_plan(
    executor: *const warprow_host_executor,
    features: *const warprow_feature,
    feature_count: usize,
    how: *const warprow_plan_options,
    plan: *mut *mut warprow_host_plan,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("plan", plan)?;
            plan.write(std::ptr::null_mut());
            let executor = handle::get::<Executor>(executor)?;
            let features = read_features(features, feature_count)?;
            no_scales(how)?;
            put(plan, handle::open(Planned(executor.0.plan(&features, plan_options(how)?)?))?);
            Ok(())
        })
    }
}

/// Closes a plan. Its slots go on until they are closed too. NULL is left alone. Any thread may call it.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_plan_close(
    plan: *mut warprow_host_plan,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Planned>(plan)) }
}

/// Elements of an output row: all features side by side if they are pooled, else the widest; 0 if the plan was closed.
///
/// Any thread may call it. It never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn warprow_host_plan_width(plan: *const warprow_host_plan) -> usize {
    handle::get::<Planned>(plan).map_or(0, |plan| plan.0.width())
}

/// Takes a slot of a plan, which is one look-up that can be under way. WARPROW_STATUS_BUSY if all are taken.
///
/// The slot in `*slot` is the caller's, who closes it with warprow_host_slot_close, which gives it back to the plan.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_plan_slot(
    plan: *const warprow_host_plan,
    slot: *mut *mut warprow_host_slot,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("slot", slot)?;
            slot.write(std::ptr::null_mut());
            let plan = handle::get::<Planned>(plan)?;
            let shape = Shape { width: plan.0.width(), out: plan.0.options().out, pooled: plan.0.is_pooled() };
            put(slot, handle::open(Taken { slot: Mutex::new(plan.0.slot()?), shape })?);
            Ok(())
        })
    }
}

/// Gives a slot back to its plan. NULL is left alone.
///
/// Any thread may call it. It blocks until rows that are fetched ahead have come.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_slot_close(
    slot: *mut warprow_host_slot,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Taken>(slot)) }
}

/// Fills the report of a look-up that was carried out, as far as it was.
///
/// # Safety
/// `report` is NULL, or points to a report.
unsafe fn tell(report: *mut warprow_report, done: Result<LookupReport, LookupError>) -> Result<(), Failure> {
    let counts = match &done {
        Ok(counts) => Some(counts),
        Err(LookupError::MissingIds { report, .. } | LookupError::RowsFailed { report, .. }) => Some(&**report),
        Err(_) => None,
    };
    if let Some(counts) = counts {
        // SAFETY: the caller's promise.
        unsafe { fill(report, &counts.into()) }?;
    }
    done.map(drop).map_err(Failure::from)
}

/// Looks a batch up, and fills `output`.
///
/// `batch` and `output` stay the caller's. `report`, whose struct_size the caller has set, is filled, unless it is NULL, also if rows
/// failed. WARPROW_STATUS_ROWS_FAILED: drives failed, and warprow_error_positions tells for which ids; all other rows are valid, those
/// of these ids are zeros, and pooled bags with one of them are zeros. WARPROW_STATUS_INVALID_ARGUMENT and
/// WARPROW_STATUS_MISSING_IDS leave the output untouched.
///
/// Any thread may call it, one at a time with a slot. It blocks until the rows are there, or their time-out has passed.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_slot_lookup(
    slot: *const warprow_host_slot,
    batch: *const warprow_batch,
    output: *const warprow_output,
    report: *mut warprow_report,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let taken = handle::get::<Taken>(slot)?;
            check(report)?;
            let (batch, output) = (warprow_batch::read(batch)?, warprow_output::read(output)?);
            output.check_apart(Some(&batch), &taken.shape)?;
            let (batch, mut output) = (batch.on_host()?, output.on_host(&taken.shape)?);
            tell(report, taken.lock()?.lookup(&batch, &mut output))
        })
    }
}

/// Begins to fetch the rows of a batch from drives, for warprow_host_slot_lookup_prefetched: a thread of the slot's reads them. The plan
/// was made with `prefetch`. The batch is the caller's again when the call returns. Until that look-up, or
/// warprow_host_slot_forget_prefetched, the slot does nothing else.
///
/// Any thread may call it, one at a time with a slot. It does not wait for drives.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_slot_prefetch(
    slot: *const warprow_host_slot,
    batch: *const warprow_batch,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let taken = handle::get::<Taken>(slot)?;
            let batch = warprow_batch::read(batch)?.on_host()?;
            Ok(taken.lock()?.prefetch(&batch)?)
        })
    }
}

/// Looks up the batch that was prefetched, and fills `output`: what warprow_host_slot_lookup would have given when the batch was
/// prefetched. If the output does not fit, the slot keeps the batch.
///
/// `output` and `report` are as of warprow_host_slot_lookup.
///
/// Any thread may call it, one at a time with a slot. It blocks until the rows are there, or their time-out has passed.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_slot_lookup_prefetched(
    slot: *const warprow_host_slot,
    output: *const warprow_output,
    report: *mut warprow_report,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            let taken = handle::get::<Taken>(slot)?;
            check(report)?;
            let output = warprow_output::read(output)?;
            output.check_apart(None, &taken.shape)?;
            let mut output = output.on_host(&taken.shape)?;
            tell(report, taken.lock()?.lookup_prefetched(&mut output))
        })
    }
}

/// Stores 1 in `*fetched` if warprow_host_slot_lookup_prefetched would not wait, else 0, also if the slot holds no batch.
///
/// Any thread may call it, one at a time with a slot. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_slot_is_fetched(
    slot: *const warprow_host_slot,
    fetched: *mut i32,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("fetched", fetched)?;
            let taken = handle::get::<Taken>(slot)?;
            put(fetched, taken.lock()?.is_fetched().into());
            Ok(())
        })
    }
}

/// Gives up the batch that was prefetched, if there is one.
///
/// Any thread may call it, one at a time with a slot. It blocks until the batch's reads have ended.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_host_slot_forget_prefetched(
    slot: *const warprow_host_slot,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe {
        guard::call(error, || {
            handle::get::<Taken>(slot)?.lock()?.forget_prefetched();
            Ok(())
        })
    }
}
