//! The calls into CUDA: the only part of the store that is not safe code.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUpointer_attribute_enum, CUresult, CUstream};
use warprow_gpu_queues::{Gpu, RelaxedCapture, ends_context};
use warprow_kernels::abi::{Adoption, CachePin, CacheSweep, Lookup, NgramTokens, Update};
use warprow_kernels::{KernelError, Kernels, LaunchShape, LookupGraph, LookupKind};

use crate::batch::{BatchLen, GpuBatch, GpuOutput};
use crate::error::GpuError;
use crate::options::PrefetchPriority;

/// Graphs of that kind, one for each of `count` tickets.
pub(crate) fn graphs(
    gpu: &Arc<Gpu>,
    kernels: &Kernels,
    (kind, like): (LookupKind, &Lookup),
    shape: &LaunchShape,
    count: usize,
) -> Result<Vec<LookupGraph>, GpuError> {
    let _current = gpu.enter()?;
    // SAFETY: the context is current; the executor holds the kernels, and its slots hold the executor.
    (0..count).map(|_| Ok(unsafe { LookupGraph::new(gpu, kernels, kind, like, shape) }?)).collect()
}

/// Launches a look-up: through `graph`, or kernel by kernel where the stream is being captured.
///
/// # Safety
/// As [`Kernels::launch`].
pub(crate) unsafe fn launch(
    kernels: &Kernels,
    graph: Option<&mut LookupGraph>,
    stream: CUstream,
    (kind, lookup, shape): (LookupKind, &Lookup, &LaunchShape),
) -> Result<(), KernelError> {
    match graph {
        // SAFETY: the caller's promise.
        Some(graph) => unsafe { graph.launch(stream, kernels, lookup, shape) },
        // SAFETY: the caller's promise.
        None => unsafe { kernels.launch(stream, kind, lookup, shape) },
    }
}

/// Launches the hash of tokens.
///
/// # Safety
/// As [`Kernels::hash_ngrams`].
pub(crate) unsafe fn hash_ngrams(
    kernels: &Kernels,
    stream: CUstream,
    batch: &NgramTokens,
    sms: u32,
) -> Result<(), GpuError> {
    // SAFETY: the caller's promise.
    Ok(unsafe { kernels.hash_ngrams(stream, batch, sms) }?)
}

/// A stream that waits for no other.
#[derive(Debug)]
pub(crate) struct Stream {
    gpu: Arc<Gpu>,
    stream: CUstream,
}

// SAFETY: CUDA's handle of a stream may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        Self::with_priority(gpu, 0)
    }

    /// A stream whose blocks begin before those of other streams that wait as well. Kernels that are captured on it keep
    /// that priority, in graphs that are instantiated to use the priorities of their nodes.
    fn urgent(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let _current = gpu.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: a context is current; two numbers are stored.
        let asked = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        cuda("the priorities of streams", asked)?;
        Self::with_priority(gpu, greatest)
    }

    fn with_priority(gpu: &Arc<Gpu>, priority: i32) -> Result<Self, GpuError> {
        let _current = gpu.enter()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current; it stores a handle.
        cuda("a stream", unsafe { sys::cuStreamCreateWithPriority(&mut stream, flags, priority) })?;
        Ok(Self { gpu: gpu.clone(), stream })
    }

    /// Fails if the context is lost.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the stream is this one's.
        match relaxed(|| unsafe { sys::cuStreamQuery(self.stream) }) {
            CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            code => cuda("the stream on which tables are replaced", code),
        }
    }

    /// Launches the replacement of descriptions.
    ///
    /// # Safety
    /// As [`Kernels::adopt`], but for the context, which is the stream's.
    pub(crate) unsafe fn adopt(&self, kernels: &Kernels, adoption: &Adoption, states: u32) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { kernels.adopt(self.stream, adoption, states) }?)
    }

    /// Launches a sweep of a cache.
    ///
    /// # Safety
    /// As [`Kernels::sweep_cache`], but for the context, which is the stream's.
    pub(crate) unsafe fn sweep_cache(&self, kernels: &Kernels, sweep: &CacheSweep) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { kernels.sweep_cache(self.stream, sweep) }?)
    }

    /// Launches what has rows stay in a cache, or lets them go.
    ///
    /// # Safety
    /// As [`Kernels::pin_cache`], but for the context, which is the stream's.
    pub(crate) unsafe fn pin_cache(&self, kernels: &Kernels, pin: &CachePin) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { kernels.pin_cache(self.stream, pin) }?)
    }

    /// The GPU that it is on.
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// CUDA's handle.
    pub(crate) fn handle(&self) -> CUstream {
        self.stream
    }

    /// Whether all that was launched on it has ended.
    pub(crate) fn is_done(&self) -> Result<bool, GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the stream is this one's.
        match relaxed(|| unsafe { sys::cuStreamQuery(self.stream) }) {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => cuda("a stream", code).map(|()| true),
        }
    }

    /// Waits for all that was launched on it.
    pub(crate) fn wait(&self) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the stream is this one's.
        cuda("the wait for a stream", relaxed(|| unsafe { sys::cuStreamSynchronize(self.stream) }))
    }

    /// Launches an update of rows.
    ///
    /// # Safety
    /// As [`Kernels::update`], but for the context, which is the stream's.
    pub(crate) unsafe fn update(&self, kernels: &Kernels, update: &Update) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { kernels.update(self.stream, update) }?)
    }
}

/// A slot's own stream, on which rows are fetched ahead, and how others follow it and it follows others.
#[derive(Debug)]
pub(crate) struct PrefetchStream {
    // Goes last but for the context.
    launched: PrefetchEvents,
    /// Of captures: what was recorded in one cannot be waited for outside, nor the other way round.
    captured: PrefetchEvents,
    stream: Stream,
}

/// How a prefetch stream and its callers' streams follow each other.
#[derive(Debug)]
pub(crate) struct PrefetchEvents {
    given: Event,
    /// All that fetches is before it.
    pub fetched: Event,
    /// All that uses what was fetched is before it.
    pub used: Event,
}

impl PrefetchEvents {
    fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        Ok(Self { given: Event::new(gpu)?, fetched: Event::new(gpu)?, used: Event::new(gpu)? })
    }
}

impl PrefetchStream {
    pub(crate) fn new(gpu: &Arc<Gpu>, priority: PrefetchPriority) -> Result<Self, GpuError> {
        let events = || PrefetchEvents::new(gpu);
        let stream = match priority {
            PrefetchPriority::High => Stream::urgent(gpu)?,
            PrefetchPriority::Normal => Stream::new(gpu)?,
        };
        Ok(Self { launched: events()?, captured: events()?, stream })
    }

    pub(crate) fn stream(&self) -> CUstream {
        self.stream.stream
    }

    /// The events of captures, or of all else.
    pub(crate) fn events(&self, captured: bool) -> &PrefetchEvents {
        if captured { &self.captured } else { &self.launched }
    }

    /// What comes on it next waits for what `stream` has been given, and, if there was one in its reach, for the last
    /// look-up of what was fetched.
    pub(crate) fn follow(&self, stream: CUstream, events: &PrefetchEvents, was_used: bool) -> Result<(), GpuError> {
        events.given.record(stream)?;
        events.given.hold(self.stream())?;
        if was_used { events.used.hold(self.stream()) } else { Ok(()) }
    }

    /// What comes on `stream` next waits for what was fetched, or forgotten.
    pub(crate) fn join(&self, stream: CUstream) -> Result<(), GpuError> {
        self.launched.fetched.hold(stream)
    }

    /// Whether all that fetches has ended.
    pub(crate) fn is_fetched(&self) -> Result<bool, GpuError> {
        // SAFETY: the event is one; a context is current.
        match relaxed(|| unsafe { sys::cuEventQuery(self.launched.fetched.event) }) {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => cuda("rows that are fetched ahead", code).map(|()| true),
        }
    }
}

/// A place in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    event: CUevent,
}

// SAFETY: CUDA's handle of an event may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let _current = gpu.enter()?;
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
        // SAFETY: a context is current; it stores a handle.
        cuda("an event", unsafe { sys::cuEventCreate(&mut event, flags as u32) })?;
        Ok(Self { gpu: gpu.clone(), event })
    }

    pub(crate) fn record(&self, stream: CUstream) -> Result<(), GpuError> {
        // SAFETY: both are of this context, which is current: the stream was checked, or is the slot's.
        cuda("an event", unsafe { sys::cuEventRecord(self.event, stream) })
    }

    pub(crate) fn hold(&self, stream: CUstream) -> Result<(), GpuError> {
        // SAFETY: as above. Of an event that was never recorded it waits for nothing.
        cuda("the wait for an event", unsafe { sys::cuStreamWaitEvent(stream, self.event, 0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: made once, destroyed once; who waits for it goes on waiting.
        unsafe { sys::cuEventDestroy_v2(self.event) };
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // What its kernels use may go next, and be used again.
        if let Err(error) = self.wait() {
            tracing::warn!(%error, "a stream that is given up");
        }
        // SAFETY: made once, destroyed once.
        unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}

/// Asks CUDA what would end the captures of other threads, in the mode of capture that allows it.
fn relaxed(ask: impl FnOnce() -> CUresult) -> CUresult {
    let _relaxed = RelaxedCapture::new();
    ask()
}

pub(crate) fn cuda(what: &'static str, code: CUresult) -> Result<(), GpuError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code if ends_context(code) => Err(warprow_gpu_queues::GpuQueueError::ContextLost { what, code }.into()),
        code => Err(KernelError::Cuda { what, code }.into()),
    }
}

/// The dimensions of a plan's batches and outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dimensions {
    /// Features.
    pub features: u32,
    /// Whether an output row is a bag, not an id.
    pub pooled: bool,
    /// Elements of an output row.
    pub width: usize,
    /// Bytes of an element.
    pub element_bytes: u64,
}

/// Whether every address is one that the GPU reaches, aligned, and with room for what lies there.
pub(crate) fn check_addresses(plan: &Dimensions, batch: &GpuBatch, out: &GpuOutput, ids: u64) -> Result<(), GpuError> {
    check_batch_addresses(plan, batch, ids)?;
    check_output_addresses(plan, batch, out, ids)
}

/// Whether every address of the batch is one that the GPU reaches, aligned, and with room for what lies there.
pub(crate) fn check_batch_addresses(plan: &Dimensions, batch: &GpuBatch, ids: u64) -> Result<(), GpuError> {
    let features = u64::from(plan.features);
    // Graphs and streams may look up less than the most: what they will find cannot be known here.
    let is_known = matches!(batch.len, BatchLen::Host(_));
    let least = |bytes: u64| if is_known { bytes } else { 0 };
    let none = is_known && ids == 0;
    check_address("the ids", batch.ids, least(ids * batch.id_type.size()), batch.id_type.size(), none)?;
    if let Some(offsets) = batch.offsets {
        let size = batch.offset_type.size();
        check_address(
            "the offsets",
            offsets,
            least((features * u64::from(batch.batch) + u64::from(batch.has_end)) * size),
            size,
            false,
        )?;
    }
    if let Some(weights) = batch.weights {
        check_address("the weights", weights, least(ids * 4), 4, none)?;
    }
    if let BatchLen::Device(counts) = batch.len {
        check_address("the counts", counts, 16, 8, false)?;
    }
    Ok(())
}

/// Whether every address of the output is one that the GPU reaches, aligned, and with room for the rows of `batch`.
pub(crate) fn check_output_addresses(
    plan: &Dimensions,
    batch: &GpuBatch,
    out: &GpuOutput,
    ids: u64,
) -> Result<(), GpuError> {
    let element = plan.element_bytes;
    let rows = if plan.pooled { u64::from(batch.batch) } else { ids };
    let rows = match rows.checked_sub(1) {
        Some(before) => (before.saturating_mul(out.row_stride as u64)).saturating_add(plan.width as u64),
        None => 0,
    };
    let is_known = matches!(batch.len, BatchLen::Host(_));
    let least = |bytes: u64| if is_known { bytes } else { 0 };
    if let Some(mask) = out.mask {
        check_address("the mask", mask, least(ids), 1, is_known && ids == 0)?;
    }
    check_address("the output", out.rows, least(rows.saturating_mul(element)), element.max(1), is_known && rows == 0)
}

/// `nothing`: nothing lies there, so that there need be no address.
pub(crate) fn check_address(
    what: &'static str,
    address: CUdeviceptr,
    bytes: u64,
    align: u64,
    nothing: bool,
) -> Result<(), GpuError> {
    let invalid = |why: String| Err(GpuError::Invalid { what, why });
    if address == 0 {
        return if nothing { Ok(()) } else { invalid("it is the null address".to_owned()) };
    }
    if !address.is_multiple_of(align) {
        return invalid(format!("{address:#x} is not a multiple of {align}"));
    }
    let mut begin: CUdeviceptr = 0;
    let mut len: usize = 0;
    let mut attributes = [
        CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ];
    let mut values = [std::ptr::from_mut(&mut begin).cast(), std::ptr::from_mut(&mut len).cast()];
    // SAFETY: two attributes with a place of the right size for each; CUDA answers zeros for addresses that are not
    // its.
    let asked = unsafe {
        sys::cuPointerGetAttributes(attributes.len() as u32, attributes.as_mut_ptr(), values.as_mut_ptr(), address)
    };
    cuda(what, asked)?;
    if begin == 0 || len == 0 {
        return invalid(format!("{address:#x} is no memory of CUDA's: allocate it with CUDA, or register it"));
    }
    match (begin + len as u64).checked_sub(address) {
        Some(room) if room >= bytes => Ok(()),
        room => invalid(format!("{} bytes are there, {bytes} are needed", room.unwrap_or(0))),
    }
}
