//! Look-ups on a GPU: launches on the caller's streams, captured or not, and their tickets.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use warprow_gpu::{GpuError, GpuReport, PrefetchedBatch, Ticket};

use crate::arguments::{check_place, store as put};
use crate::batch::{warprow_batch, warprow_output};
use crate::error::{Failure, warprow_error};
use crate::gpu::{Taken, warprow_gpu_slot};
use crate::guard;
use crate::handle::{self, Object};
use crate::report::warprow_gpu_report;
use crate::sized::{check, fill};
use crate::status::warprow_status;
use crate::store::close;

/// What CUDA's stream handles point to: cudaStream_t and CUstream are CUstream_st *.
pub struct CUstream_st {
    _opaque: [u8; 0],
}

/// A look-up that was launched, or captured in a graph. It keeps its slot. Any thread may use it, several at once.
pub struct warprow_gpu_ticket {
    _opaque: [u8; 0],
}

/// A batch whose rows are fetched ahead on a GPU. It keeps its slot.
pub struct warprow_gpu_prefetched {
    _opaque: [u8; 0],
}

struct Launched(Ticket);

struct Fetching {
    /// The batch, until it is looked up, with its numbers of ids and bags.
    batch: Mutex<Option<PrefetchedBatch>>,
    counts: (usize, usize),
}

impl Object for Launched {
    type Tag = warprow_gpu_ticket;
    const KIND: u8 = 24;
    const NAME: &'static str = "warprow_gpu_ticket";
}

impl Object for Fetching {
    type Tag = warprow_gpu_prefetched;
    const KIND: u8 = 25;
    const NAME: &'static str = "warprow_gpu_prefetched";
}

/// How many ids and bags an output must have room for; none are known where a GPU counts them.
fn counts_of(batch: &warprow_batch) -> (usize, usize) {
    if batch.counts.is_null() { (batch.id_count, batch.batch) } else { (0, 0) }
}

/// Launches a look-up on `stream` (a cudaStream_t or CUstream; NULL: the default stream), or captures it, if the stream is being captured
/// in a CUDA graph: whenever that graph runs, it looks up the ids that then lie where the batch says.
///
/// `batch` and `output` stay the caller's, and are not needed after the call. What they point to lies in GPU memory, or in host memory
/// that CUDA has pinned. Until the look-up has ended it stays valid, and nobody else writes to it; for a captured look-up, whenever its
/// graph runs. A graph, with all its copies, runs once at a time; until it is destroyed, it keeps the slot. The ticket in `*ticket` is the caller's, who closes it with warprow_gpu_ticket_close.
///
/// Any thread may call it. It waits for nothing, unless a drive did not answer an earlier look-up: then queues are started anew first.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_slot_lookup(
    slot: *const warprow_gpu_slot,
    stream: *mut CUstream_st,
    batch: *const warprow_batch,
    output: *const warprow_output,
    ticket: *mut *mut warprow_gpu_ticket,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("ticket", ticket)?;
            ticket.write(std::ptr::null_mut());
            let taken = handle::get::<Taken>(slot)?;
            let (batch, output) = (warprow_batch::read(batch)?, warprow_output::read(output)?);
            output.check_apart(Some(&batch), &taken.shape)?;
            let out = output.on_gpu(&taken.shape, counts_of(&batch))?;
            let launched = taken.slot.lookup(stream.cast(), &batch.on_gpu(taken.features)?, &out)?;
            put(ticket, handle::open(Launched(launched))?);
            Ok(())
        })
    }
}

/// # Safety
/// The pointers are NULL, or valid.
unsafe fn tell(
    outcome: Option<Result<GpuReport, GpuError>>,
    ended: *mut i32,
    report: *mut warprow_gpu_report,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        put(ended, outcome.is_some().into());
        let counts = match &outcome {
            None => return Ok(()),
            Some(Ok(counts)) => Some(counts),
            Some(Err(GpuError::RowsFailed { report, .. } | GpuError::MissingIds { report, .. })) => Some(&**report),
            Some(Err(_)) => None,
        };
        if let Some(counts) = counts {
            fill(report, &counts.into())?;
        }
        outcome.map_or(Ok(()), |outcome| outcome.map(drop).map_err(Failure::from))
    }
}

/// Asks whether a look-up has ended. If it has, `*ended` is 1, the code says how, and `report`, whose struct_size the caller has set, is
/// filled, unless it is NULL; else `*ended` is 0, and the code WARPROW_STATUS_OK.
///
/// WARPROW_STATUS_ROWS_FAILED: drives failed; the mask tells for which ids, all other rows are valid. WARPROW_STATUS_BUSY: another look-up of
/// the slot was under way, and this one did nothing. WARPROW_STATUS_INVALID_ARGUMENT: the GPU found more ids or bags than planned, or
/// offsets that descend. WARPROW_STATUS_MISSING_IDS: ids are missing of features with WARPROW_MISSING_ERROR, and got zeros. Of a captured look-up it is the outcome of the latest run of its graph that has ended.
///
/// Any thread may call it. It reads memory only.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_ticket_poll(
    ticket: *const warprow_gpu_ticket,
    ended: *mut i32,
    report: *mut warprow_gpu_report,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("ended", ended)?;
            ended.write(0);
            check(report)?;
            tell(handle::get::<Launched>(ticket)?.0.poll(), ended, report)
        })
    }
}

/// As warprow_gpu_ticket_poll, but waits up to `timeout_ms` milliseconds for the end. (Who waits for the stream anyway has no need of it.)
///
/// Any thread may call it. It blocks for as long as said.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_ticket_wait(
    ticket: *const warprow_gpu_ticket,
    timeout_ms: u64,
    ended: *mut i32,
    report: *mut warprow_gpu_report,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("ended", ended)?;
            ended.write(0);
            check(report)?;
            let launched = handle::get::<Launched>(ticket)?;
            let (began, patience) = (Instant::now(), Duration::from_millis(timeout_ms));
            let outcome = loop {
                match launched.0.poll() {
                    None if began.elapsed() < patience => match began.elapsed() < Duration::from_micros(200) {
                        true => std::hint::spin_loop(),
                        false => std::thread::sleep(Duration::from_micros(20)),
                    },
                    outcome => break outcome,
                }
            };
            tell(outcome, ended, report)
        })
    }
}

/// Tells what went wrong with the look-up's runs that have ended by now, and that no call of this function before was told of:
/// WARPROW_STATUS_OK if nothing did, or if none has ended; else the code of the latest run, as of warprow_gpu_ticket_poll, or
/// WARPROW_STATUS_ROWS_FAILED if the latest run was right, and runs of the graph before it failed. Each failure is told of once.
///
/// Any thread may call it. It reads memory only.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_ticket_check(
    ticket: *const warprow_gpu_ticket,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || Ok(handle::get::<Launched>(ticket)?.0.check()?)) }
}

/// Closes a ticket. The look-up goes on, and so does a graph that holds it. NULL is left alone.
///
/// Any thread may call it. It may block until the GPU has ended what it was given, if the slot was closed before.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_ticket_close(
    ticket: *mut warprow_gpu_ticket,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Launched>(ticket)) }
}

/// Begins to fetch the rows of a batch that are not in GPU memory, for warprow_gpu_slot_lookup_prefetched, on a stream of the slot's, behind
/// what `stream` has been given so far. The plan was made with `prefetch`. Until that look-up the slot does nothing else.
///
/// The ids stay valid and as they are until the rows are there (warprow_gpu_prefetched_is_fetched, warprow_gpu_prefetched_hold); offsets and
/// weights until the look-up has ended. The batch in `*prefetched` is the caller's, who gives it to warprow_gpu_slot_lookup_prefetched, or
/// closes it with warprow_gpu_prefetched_close.
///
/// If `stream` is being captured, the prefetch is recorded, and its look-up has to be recorded in the same capture: else CUDA refuses to
/// end that.
///
/// Any thread may call it. It waits for nothing, unless a drive did not answer an earlier look-up.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_slot_prefetch(
    slot: *const warprow_gpu_slot,
    stream: *mut CUstream_st,
    batch: *const warprow_batch,
    prefetched: *mut *mut warprow_gpu_prefetched,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("prefetched", prefetched)?;
            prefetched.write(std::ptr::null_mut());
            let taken = handle::get::<Taken>(slot)?;
            let batch = warprow_batch::read(batch)?;
            let fetching = taken.slot.prefetch(stream.cast(), &batch.on_gpu(taken.features)?)?;
            let (batch, counts) = (Mutex::new(Some(fetching)), counts_of(&batch));
            put(prefetched, handle::open(Fetching { batch, counts })?);
            Ok(())
        })
    }
}

/// Looks up a batch whose rows were fetched ahead, on `stream`, which waits for them.
///
/// `output` and `ticket` are as of warprow_gpu_slot_lookup. The prefetched batch is closed, whether the call succeeds or not, unless a
/// handle is invalid, or the output is not one.
///
/// `stream` is part of the capture that the batch was prefetched in, or, if that was none, of none.
///
/// Any thread may call it. It waits for nothing.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_slot_lookup_prefetched(
    slot: *const warprow_gpu_slot,
    prefetched: *mut warprow_gpu_prefetched,
    stream: *mut CUstream_st,
    output: *const warprow_output,
    ticket: *mut *mut warprow_gpu_ticket,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("ticket", ticket)?;
            ticket.write(std::ptr::null_mut());
            let taken = handle::get::<Taken>(slot)?;
            let output = warprow_output::read(output)?;
            output.check_apart(None, &taken.shape)?;
            let counts = handle::get::<Fetching>(prefetched)?.counts;
            let out = output.on_gpu(&taken.shape, counts)?;
            let fetching = handle::close::<Fetching>(prefetched)?;
            let batch = fetching.batch.lock().ok().and_then(|mut batch| batch.take());
            let batch = batch.ok_or_else(|| Failure::bug("a prefetched batch is gone"))?;
            let launched = taken.slot.lookup_prefetched(batch, stream.cast(), &out)?;
            put(ticket, handle::open(Launched(launched))?);
            Ok(())
        })
    }
}

/// Does something with a batch that was prefetched.
fn with_batch<T>(
    prefetched: *const warprow_gpu_prefetched,
    work: impl FnOnce(&PrefetchedBatch) -> Result<T, GpuError>,
) -> Result<T, Failure> {
    let fetching = handle::get::<Fetching>(prefetched)?;
    let held = fetching.batch.lock().map_err(|_| Failure::bug("an earlier call met a fault"))?;
    let batch = held.as_ref().ok_or_else(|| Failure::invalid("the prefetched batch was looked up"))?;
    Ok(work(batch)?)
}

/// Stores 1 in `*fetched` if the rows of a batch are there, or have failed, else 0. From then on the ids are the caller's again.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// Pointers are valid as said; see docs/capi.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_prefetched_is_fetched(
    prefetched: *const warprow_gpu_prefetched,
    fetched: *mut i32,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe {
        guard::call(error, || {
            check_place("fetched", fetched)?;
            put(fetched, with_batch(prefetched, PrefetchedBatch::is_fetched)?.into());
            Ok(())
        })
    }
}

/// What comes on `stream` next waits until the rows of a batch are there: it may write to the ids. `stream` must not be being captured.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// `stream` is NULL or a stream of CUDA's; `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_prefetched_hold(
    prefetched: *const warprow_gpu_prefetched,
    stream: *mut CUstream_st,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise, for each pointer.
    unsafe { guard::call(error, || with_batch(prefetched, |batch| batch.hold(stream.cast()))) }
}

/// Gives up a batch that was prefetched. Its reads end on the GPU; the ids stay valid until then. NULL is left alone.
///
/// Any thread may call it. It never blocks.
///
/// # Safety
/// `error` is NULL, or points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn warprow_gpu_prefetched_close(
    prefetched: *mut warprow_gpu_prefetched,
    error: *mut *mut warprow_error,
) -> warprow_status {
    // SAFETY: the caller's promise.
    unsafe { guard::call(error, || close::<Fetching>(prefetched)) }
}
