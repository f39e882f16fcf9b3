//! Look-ups whose rows are fetched ahead, on a stream of the slot's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::CUstream;
use warprow_kernels::abi::{self, TICKETS};
use warprow_kernels::{LookupKind, PrefetchKind};

use crate::batch::{GpuBatch, GpuOutput};
use crate::capture::Capture;
use crate::error::GpuError;
use crate::launch;
use crate::slot::{GpuSlot, Inner, Recorded, Resting, State, TakenPlace, check_batch, check_output, describe};
use crate::ticket::{Ticket, TicketPlace};
use warprow_gpu_queues::Gpu;
use warprow_store::view::lock;

/// A batch whose rows are fetched ahead of its look-up, for [`GpuSlot::lookup_prefetched`]. Its slot does nothing else
/// meanwhile. Dropped, it is forgotten: reads that are under way end first, on the GPU, for which nobody waits but the
/// slot's next launch.
#[derive(Debug)]
#[must_use = "rows are fetched for a look-up, and a slot holds them until then"]
pub struct PrefetchedBatch {
    slot: Arc<Inner>,
    /// The ticket's, with which the look-up ends.
    taken: Option<TakenPlace>,
    /// Which capture it was recorded in; 0: none.
    capture: u64,
    lookup: abi::Lookup,
    batch: GpuBatch,
    /// The most ids that it may find.
    ids: u64,
    ahead: PrefetchKind,
}

impl GpuSlot {
    /// Begins to fetch rows that are not in GPU memory, for [`lookup_prefetched`](Self::lookup_prefetched): from
    /// drives, and from DRAM where the plan has rows there. That happens on a stream of the slot's own, behind all that
    /// `stream` has been given so far and behind the latest look-up of what this slot fetched ahead; `stream` goes on.
    /// It launches 1 kernel where a look-up of as many ids is one, or 3 if the batch has at most 8,192 ids, if the plan
    /// has no rows in DRAM; else 6 or more. It waits for nothing but, as [`lookup`](Self::lookup) does, a drive whose queue has to be started anew. As many batches can
    /// be fetched ahead as a plan has slots. The plan is made with
    /// [`PlanOptions::with_prefetch`](warprow_lookup::PlanOptions::with_prefetch).
    ///
    /// On a stream that is being captured, the prefetch is recorded, on a branch that leaves `stream` here and comes
    /// back to a stream of the capture with the look-up, which has to be recorded in the same capture. A slot can fetch
    /// ahead and look up again and again in one capture, and several slots can. If a batch that was recorded is not
    /// looked up, CUDA refuses to end the capture (`CUDA_ERROR_STREAM_CAPTURE_UNJOINED`): the graph would run its first
    /// half again before anybody gave the slot back.
    ///
    /// The batch is looked up as the tables are when it begins: other tables are adopted, and rows updated, for what
    /// begins later. [`GpuExecutor::adopt`](crate::GpuExecutor::adopt) waits for the look-up, as for any that is under
    /// way.
    ///
    /// # Safety
    /// The ids, and counts in device memory, stay valid and as they are until the rows are there
    /// ([`PrefetchedBatch::is_fetched`], [`PrefetchedBatch::hold`]); offsets and weights until the look-up has ended,
    /// or the rows are there if it is forgotten; of one that is recorded, whenever its graph runs, which is once at a
    /// time.
    ///
    /// # Errors
    /// As of [`lookup`](Self::lookup), for what does not fit; [`GpuError::Invalid`] for a plan without room;
    /// [`GpuError::SlotHoldsBatch`] if the slot holds a batch, or one of this capture waits for its look-up;
    /// [`GpuError::Busy`] if a batch of this capture was dropped without its look-up, or the slot's own stream is part
    /// of another capture that has not ended. What happens on the GPU is an error of the look-up's ticket.
    #[allow(unsafe_code, reason = "it takes addresses from its caller")]
    pub unsafe fn prefetch(&self, stream: CUstream, batch: &GpuBatch) -> Result<PrefetchedBatch, GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.begin_prefetch(stream, batch, None) }
    }

    /// As [`prefetch`](Self::prefetch), but the rows are fetched behind those of `before`, which another slot fetches
    /// ahead: for what is needed later, so that its commands do not delay those that are needed first. Both are part of
    /// one capture, or of none.
    ///
    /// # Safety
    /// As of [`prefetch`](Self::prefetch).
    ///
    /// # Errors
    /// As of [`prefetch`](Self::prefetch); [`GpuError::Invalid`] if the two are not part of one capture, or of none.
    #[allow(unsafe_code, reason = "it takes addresses from its caller")]
    pub unsafe fn prefetch_behind(
        &self,
        stream: CUstream,
        batch: &GpuBatch,
        before: &PrefetchedBatch,
    ) -> Result<PrefetchedBatch, GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.begin_prefetch(stream, batch, Some(before)) }
    }

    #[allow(unsafe_code, reason = "it takes addresses from its caller")]
    unsafe fn begin_prefetch(
        &self,
        stream: CUstream,
        batch: &GpuBatch,
        before: Option<&PrefetchedBatch>,
    ) -> Result<PrefetchedBatch, GpuError> {
        let plan = &*self.inner.plan;
        let invalid = |what, why: &str| Err(GpuError::Invalid { what, why: why.to_owned() });
        if !plan.options.prefetch {
            return invalid("the plan", "it has no room for prefetched batches: plan with PlanOptions::with_prefetch");
        }
        if self.inner.broken.load(Ordering::Relaxed) {
            return Err(GpuError::Broken);
        }
        let ids = check_batch(plan, batch)?;
        let gpu = &plan.attached.gpu;
        let _current = gpu.enter()?;
        let capture = Capture::of_stream(gpu, stream)?;
        launch::check_batch_addresses(&plan.dimensions(), batch, ids)?;
        let mut held = lock(&self.inner.state);
        let state = held.as_mut().ok_or(GpuError::Broken)?;
        let id = capture.map_or(0, |capture| capture.id);
        if before.is_some_and(|before| Arc::ptr_eq(&before.slot, &self.inner)) {
            return Err(GpuError::SlotHoldsBatch);
        }
        if before.is_some_and(|before| before.capture != id) {
            return invalid("the batch before", "both prefetches belong into one capture, or both into none");
        }
        check_own_stream(gpu, state, id)?;
        let recorded = state.recorded.of(id);
        if recorded.spoilt {
            return Err(GpuError::Busy(
                "a batch that the slot prefetched in this capture was dropped: end the capture",
            ));
        }
        if state.resting == Resting::Yes || recorded.rests {
            return Err(GpuError::SlotHoldsBatch);
        }
        let taken = match &capture {
            Some(capture) => self.inner.captured_place(state, capture)?,
            None => {
                state.recover_idle(plan)?;
                state.place(0..TICKETS / 2)?
            }
        };
        let (ahead, shape) = (plan.ahead(ids), plan.shape_ahead(ids));
        // Where rows go is said later; the mask is kept until then.
        let nowhere = GpuOutput::new(0, 0).with_mask(state.kept());
        let lookup = describe(plan, state, batch, &nowhere, (ids, &taken.place));
        let sets = plan.sets_ahead(lookup.queues.sets, lookup.queues.drives);
        let lookup = abi::Lookup { queues: abi::DriveQueues { sets, ..lookup.queues }, ..lookup };
        plan.attached.wake_drives();
        let State { graphs, side: Some(side), .. } = state else { return Err(GpuError::Broken) };
        let events = side.events(capture.is_some());
        side.follow(stream, events, capture.is_none() || recorded.used)?;
        if let Some(before) = before {
            // Nobody there waits for this slot: it holds no batch.
            let held = lock(&before.slot.state);
            let other = held.as_ref().and_then(|state| state.side.as_ref()).ok_or(GpuError::Broken)?;
            other.events(capture.is_some()).fetched.hold(side.stream())?;
        }
        let (kind, own) = (LookupKind::Ahead(ahead), side.stream());
        let graph = match &taken.place {
            TicketPlace::Own(index) => graphs.of(kind, *index),
            TicketPlace::Captured(_) => None,
        };
        // SAFETY: the caller's promise for its addresses; all others belong to the plan and the slot, which is held.
        let launched = unsafe { launch::launch(&plan.attached.kernels, graph, own, (kind, &lookup, &shape)) };
        if capture.is_some() {
            // What has begun to be recorded is not joined without its look-up, whatever follows.
            state.recorded = Recorded { rests: true, spoilt: launched.is_err(), ..recorded };
        }
        launched?;
        let ended = events.fetched.record(own);
        if let TicketPlace::Own(index) = taken.place {
            state.resting = Resting::Yes;
            state.count_launch(index);
        }
        // From here on it is forgotten if it is not returned.
        drop(held);
        let (slot, taken) = (self.inner.clone(), Some(taken));
        let prefetched = PrefetchedBatch { slot, taken, capture: id, lookup, batch: *batch, ids, ahead };
        ended.map(|()| prefetched)
    }

    /// Looks up a batch whose rows were fetched ahead, on `stream`, which waits for them: what [`lookup`](Self::lookup)
    /// would have given. Rows are expanded from GPU memory, by 1 or 2 kernels, and one more if a mask is wanted. The
    /// report counts what both did; its times are those of either, without what passed between them.
    ///
    /// # Safety
    /// The addresses of `out` stay valid until the look-up has ended, and nothing else writes to them meanwhile; nor to
    /// the batch's offsets and weights.
    ///
    /// # Errors
    /// [`GpuError::Invalid`] for what does not fit, another slot's batch, and a stream that is not part of the capture
    /// in which the batch was prefetched, or is part of one if it was prefetched in none, what CUDA says; the batch is
    /// forgotten then. What befell drives is the ticket's to tell: [`GpuError::RowsFailed`].
    #[allow(unsafe_code, reason = "it takes addresses from its caller")]
    pub unsafe fn lookup_prefetched(
        &self,
        mut prefetched: PrefetchedBatch,
        stream: CUstream,
        out: &GpuOutput,
    ) -> Result<Ticket, GpuError> {
        let plan = &*self.inner.plan;
        let invalid = |what, why: &str| Err(GpuError::Invalid { what, why: why.to_owned() });
        if !Arc::ptr_eq(&self.inner, &prefetched.slot) {
            return invalid("the batch", "it was prefetched by another slot: look it up there");
        }
        let (ids, batch) = (prefetched.ids, prefetched.batch);
        check_output(plan, out)?;
        let gpu = &plan.attached.gpu;
        let _current = gpu.enter()?;
        if Capture::of_stream(gpu, stream)?.map_or(0, |capture| capture.id) != prefetched.capture {
            return invalid("the stream", "prefetch and look-up belong into one capture, or both into none");
        }
        launch::check_output_addresses(&plan.dimensions(), &batch, out, ids)?;
        let mut held = lock(&self.inner.state);
        let state = held.as_mut().ok_or(GpuError::Broken)?;
        let kept = state.kept();
        let Some(side) = &state.side else { return Err(GpuError::Broken) };
        let events = side.events(prefetched.capture != 0);
        events.fetched.hold(stream)?;
        let lookup = abi::Lookup {
            // The ids are the caller's again.
            batch: abi::BatchIds { ids: 0, ..prefetched.lookup.batch },
            output: abi::OutputRows {
                rows: out.rows,
                row_stride: out.row_stride as u64,
                mask: out.mask.unwrap_or(0),
                kept_mask: kept,
                ..prefetched.lookup.output
            },
            ..prefetched.lookup
        };
        let rows =
            if plan.description.pooled { u64::from(batch.batch) * u64::from(plan.description.features) } else { ids };
        let shape = plan.shape(ids, rows);
        let kinds = [LookupKind::Mask, LookupKind::Rest(prefetched.ahead)];
        let taken = prefetched.taken.take().ok_or(GpuError::Broken)?;
        let launched =
            kinds.into_iter().filter(|&kind| kind != LookupKind::Mask || out.mask.is_some()).try_for_each(|kind| {
                // SAFETY: as in `prefetch`.
                unsafe { launch::launch(&plan.attached.kernels, None, stream, (kind, &lookup, &shape)) }
            });
        let launched = launched.map_err(GpuError::from).and_then(|()| events.used.record(stream));
        if prefetched.capture != 0 {
            if launched.is_err() {
                self.inner.recorded_in_part(stream);
            }
            state.recorded = Recorded { rests: false, used: true, ..state.recorded.of(prefetched.capture) };
        } else if launched.is_err() {
            // Whether the slot's lease is given back is not known.
            self.inner.broken.store(true, Ordering::Relaxed);
        }
        launched?;
        if prefetched.capture == 0 {
            state.resting = Resting::No;
        }
        drop(held);
        Ok(Ticket::new(self.inner.clone(), taken.place, taken.before, batch.id_type.is_signed()))
    }
}

/// Whether the slot's own stream is free for what belongs to capture `id`, or to none if that is 0.
fn check_own_stream(gpu: &Gpu, state: &State, id: u64) -> Result<(), GpuError> {
    let Some(side) = &state.side else { return Err(GpuError::Broken) };
    match Capture::of_stream(gpu, side.stream()) {
        Ok(None) => Ok(()),
        Ok(Some(capture)) if capture.id == id => Ok(()),
        Ok(Some(_)) | Err(GpuError::Invalid { .. }) => Err(GpuError::Busy(
            "the slot has prefetched in another capture, which has not ended: end that capture, or take another slot",
        )),
        Err(error) => Err(error),
    }
}

impl PrefetchedBatch {
    /// Whether the rows are there, or have failed. From then on ids and counts are the caller's again.
    ///
    /// # Errors
    /// What CUDA says of what ran on the GPU; [`GpuError::Invalid`] for a batch that was recorded.
    pub fn is_fetched(&self) -> Result<bool, GpuError> {
        self.check_not_recorded()?;
        let _current = self.slot.plan.attached.gpu.enter()?;
        let held = lock(&self.slot.state);
        match held.as_ref().and_then(|state| state.side.as_ref()) {
            Some(side) => side.is_fetched(),
            None => Err(GpuError::Broken),
        }
    }

    /// What comes on `stream` next waits until the rows are there: it may write to the ids.
    ///
    /// # Safety
    /// `stream` is null or a stream of CUDA's.
    ///
    /// # Errors
    /// [`GpuError::Invalid`] for a stream of another context, or that is being captured, and for a batch that was
    /// recorded; what CUDA says.
    #[allow(unsafe_code, reason = "it takes a stream from its caller")]
    pub unsafe fn hold(&self, stream: CUstream) -> Result<(), GpuError> {
        self.check_not_recorded()?;
        let gpu = &self.slot.plan.attached.gpu;
        let _current = gpu.enter()?;
        if Capture::of_stream(gpu, stream)?.is_some() {
            let why = "it is being captured, and would wait for what is not".to_owned();
            return Err(GpuError::Invalid { what: "the stream", why });
        }
        let held = lock(&self.slot.state);
        match held.as_ref().and_then(|state| state.side.as_ref()) {
            Some(side) => side.join(stream),
            None => Err(GpuError::Broken),
        }
    }

    fn check_not_recorded(&self) -> Result<(), GpuError> {
        match self.capture {
            0 => Ok(()),
            _ => {
                let why = "it was recorded in a capture: its rows are fetched when the graph runs".to_owned();
                Err(GpuError::Invalid { what: "the batch", why })
            }
        }
    }

    /// Ends the launch on the slot's own stream.
    #[allow(unsafe_code, reason = "it launches a kernel")]
    fn forget(&self) -> Result<(), GpuError> {
        let plan = &self.slot.plan;
        let _current = plan.attached.gpu.enter()?;
        let mut held = lock(&self.slot.state);
        let state = held.as_mut().ok_or(GpuError::Broken)?;
        let lookup = abi::Lookup {
            batch: abi::BatchIds { ids: 0, ..self.lookup.batch },
            output: abi::OutputRows { mask: 0, kept_mask: state.kept(), ..self.lookup.output },
            ..self.lookup
        };
        let side = state.side.as_ref().ok_or(GpuError::Broken)?;
        let shape = plan.shape(self.ids, self.ids);
        // SAFETY: the kernel reads and writes what belongs to the slot, which is held.
        unsafe {
            launch::launch(&plan.attached.kernels, None, side.stream(), (LookupKind::Forget, &lookup, &shape))?;
        }
        side.events(false).fetched.record(side.stream())?;
        state.resting = Resting::Forgotten;
        Ok(())
    }
}

impl Drop for PrefetchedBatch {
    fn drop(&mut self) {
        let Some(taken) = self.taken.take() else { return };
        let TicketPlace::Own(index) = taken.place else {
            if let Some(state) = lock(&self.slot.state).as_mut()
                && state.recorded.capture == self.capture
            {
                // The branch of such a prefetch is never joined, so that the capture cannot be ended well.
                state.recorded.spoilt = true;
            }
            return;
        };
        if let Err(error) = self.forget() {
            tracing::warn!(%error, "a slot cannot be used any more: what it fetched ahead could not be forgotten");
            self.slot.broken.store(true, Ordering::Relaxed);
        }
        self.slot.forget_ticket(index, taken.before.launches + 1);
    }
}
