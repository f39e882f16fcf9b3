//! The right to one look-up at a time on the GPU, and its launches.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstream;
use warprow_driver::Submitter;
use warprow_gpu_queues::abi::{FAULT_CLOSED, LANES, MAX_BATCHES};
use warprow_gpu_queues::{DeviceMemory, Gate, PinnedMemory, QueueSet, QueueSetOptions};
use warprow_kernels::abi::{self, TICKETS};
use warprow_kernels::dedupe::{DedupePlaces, slots_log2, sweeps};
use warprow_kernels::{LookupGraph, LookupKind, PrefetchKind, SMALL_IDS};

use crate::batch::{BatchLen, GpuBatch, GpuOutput};
use crate::capture::Capture;
use crate::captured_tickets::CapturedTickets;
use crate::dedupe::DedupeWay;
use crate::error::GpuError;
use crate::error::QueueFault;
use crate::launch::{self, PrefetchStream};
use crate::merging::windows;
use crate::plan::Prepared;
use crate::row_cache::CacheSlot;
use crate::table_abi::element_of;
use crate::ticket::{Ticket, TicketPlace, Told};
use warprow_layout::Drive;
use warprow_lookup::{FailedRows, MaskMeaning};

use warprow_store::view::lock;

/// What a slot owns: memory on the GPU, tickets, queues.
#[derive(Debug)]
pub(crate) struct State {
    /// Among the plan's.
    number: u32,
    memory: DeviceMemory,
    places: DedupePlaces,
    /// Where masks of prefetched batches begin.
    kept: u64,
    /// Where [`abi::TicketState`]s of tickets that are not captured begin in `memory`.
    counts: u64,
    tickets: Arc<PinnedMemory>,
    captured: CapturedTickets,
    gate: Arc<Gate>,
    sets: Vec<QueueSet>,
    descriptors: DeviceMemory,
    issued: [Issued; TICKETS],
    /// [`QueueSet::answered`] of each queue, drives of set 0 first, when it was last told.
    answered: Vec<u64>,
    /// The slot's word among the horizons that a cache looks at, if look-ups ask one.
    cache_slot: Option<CacheSlot>,
    pub(crate) graphs: Graphs,
    /// Of a plan whose batches may be prefetched.
    pub(crate) side: Option<PrefetchStream>,
    pub(crate) resting: Resting,
    pub(crate) recorded: Recorded,
}

/// Whether a slot holds a batch that was prefetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Resting {
    #[default]
    No,
    Yes,
    /// The slot held a batch that was forgotten; what gives the slot back was launched on the slot's own stream.
    Forgotten,
}

/// Batches that are prefetched and looked up in a capture: the slot's latest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recorded {
    /// Which capture; 0: none.
    pub capture: u64,
    /// A batch was prefetched, and not looked up yet.
    pub rests: bool,
    /// A batch that was prefetched has been looked up.
    pub used: bool,
    /// A batch that was prefetched will not be looked up: the capture cannot be ended well.
    pub spoilt: bool,
}

impl Recorded {
    /// What a capture has recorded so far.
    pub(crate) fn of(self, capture: u64) -> Self {
        if self.capture == capture { self } else { Self { capture, ..Self::default() } }
    }
}

/// One graph for each ticket that launches of a kind may have.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    direct: Vec<LookupGraph>,
    few: Vec<LookupGraph>,
    small: Vec<LookupGraph>,
    large: Vec<LookupGraph>,
    ahead_few: Vec<LookupGraph>,
    ahead_small: Vec<LookupGraph>,
    ahead_large: Vec<LookupGraph>,
}

impl Graphs {
    fn new(plan: &Prepared) -> Result<Self, GpuError> {
        let (gpu, most) = (&plan.attached.gpu, plan.options.max_ids as u64);
        let like = abi::Lookup {
            plan: abi::PlanTables {
                overlay: plan.attached.overlay_at(),
                cache: plan.cache_at(),
                feature_count: plan.description.features,
                pooled: plan.description.pooled.into(),
                rich: plan.description.rich.into(),
                follows: plan.attached.options.replaces().into(),
                scaled: plan.description.scaled.into(),
                ..abi::PlanTables::default()
            },
            keys: abi::KeySpace { dedupe: plan.many.code(), ..abi::KeySpace::default() },
            sort: abi::KeySort { sweeps: sweeps(plan.description.keys.all()), ..abi::KeySort::default() },
            slot: abi::SlotPlaces {
                sampling: plan.sampled.map_or(0, |(address, _)| address),
                ..abi::SlotPlaces::default()
            },
            ..abi::Lookup::default()
        };
        let of = |kind, needed: bool| {
            let count = if needed { TICKETS / 2 } else { 0 };
            let shape = if let LookupKind::Ahead(_) = kind { plan.shape_ahead(most) } else { plan.shape(most, most) };
            launch::graphs(gpu, &plan.attached.kernels, (kind, &like), &shape, count)
        };
        Ok(Self {
            direct: of(LookupKind::Direct, plan.reads_directly())?,
            few: of(LookupKind::Few, plan.kind(0) == LookupKind::Few)?,
            small: of(LookupKind::Small, plan.kind(most.min(SMALL_IDS)) == LookupKind::Small)?,
            large: of(LookupKind::Large, plan.kind(most) == LookupKind::Large)?,
            ahead_few: of(
                LookupKind::Ahead(PrefetchKind::Few),
                plan.options.prefetch && plan.ahead(0) == PrefetchKind::Few,
            )?,
            ahead_small: of(
                LookupKind::Ahead(PrefetchKind::Small),
                plan.options.prefetch && plan.ahead(most.min(SMALL_IDS)) == PrefetchKind::Small,
            )?,
            ahead_large: of(
                LookupKind::Ahead(PrefetchKind::Large),
                plan.options.prefetch && plan.ahead(most) == PrefetchKind::Large,
            )?,
        })
    }

    pub(crate) fn of(&mut self, kind: LookupKind, ticket: usize) -> Option<&mut LookupGraph> {
        let graphs = match kind {
            LookupKind::Direct => &mut self.direct,
            LookupKind::Few => &mut self.few,
            LookupKind::Small => &mut self.small,
            LookupKind::Large => &mut self.large,
            LookupKind::Ahead(PrefetchKind::Few) => &mut self.ahead_few,
            LookupKind::Ahead(PrefetchKind::Small) => &mut self.ahead_small,
            LookupKind::Ahead(PrefetchKind::Large) => &mut self.ahead_large,
            // One or two kernels.
            LookupKind::Mask | LookupKind::Rest(_) | LookupKind::Forget => return None,
        };
        graphs.get_mut(ticket % (TICKETS / 2))
    }
}

/// The use of a ticket's place.
#[derive(Clone, Copy, Debug, Default)]
struct Issued {
    /// Launches that had the place.
    launches: u64,
    /// Whether somebody holds the ticket of the latest launch.
    held: bool,
}

/// A ticket's place, taken for a launch.
#[derive(Debug)]
pub(crate) struct TakenPlace {
    pub place: TicketPlace,
    /// The ticket's words before the launch.
    pub before: Told,
}

/// A slot, taken: shared with its tickets.
#[derive(Debug)]
pub(crate) struct Inner {
    pub plan: Arc<Prepared>,
    pub tickets: Arc<PinnedMemory>,
    pub(crate) state: Mutex<Option<State>>,
    pub(crate) broken: AtomicBool,
}

/// The right to one look-up at a time: queue sets, and buffers in GPU memory. Dropping it, and all its tickets, gives
/// it back to its plan, when the graphs are destroyed, too, that hold look-ups of it: graphs keep the slot, its plan
/// and its executor.
#[derive(Debug)]
pub struct GpuSlot {
    pub(crate) inner: Arc<Inner>,
}

impl State {
    /// Allocates the buffers of a slot, and takes its queues.
    pub(crate) fn new(plan: &Prepared, number: u32) -> Result<Self, GpuError> {
        let (gpu, options) = (&plan.attached.gpu, &plan.attached.options);
        let mut bytes = 0u64;
        let mut room = |len: u64| {
            let begin = bytes.next_multiple_of(256);
            bytes = begin + len;
            begin
        };
        let needs = plan.needs();
        let places = DedupePlaces::new(&needs, &mut room);
        let kept = room(if plan.options.prefetch { needs.ids } else { 0 });
        let counts = room((TICKETS * size_of::<abi::TicketState>()) as u64);
        let memory = DeviceMemory::new(gpu, bytes.max(1))?;
        let tickets = PinnedMemory::allocate(gpu, (TICKETS * size_of::<abi::Ticket>()) as u64)?;
        let gate = Arc::new(Gate::new(gpu)?);
        let mut sets = Vec::new();
        if plan.is_cold {
            let members = plan.attached.store.drives().iter().flatten();
            let drives: Vec<_> = members.map(|it| (it.controller().clone(), it.namespace().clone())).collect();
            let batches = (options.depth / LANES).clamp(1, MAX_BATCHES as u32);
            let options = QueueSetOptions {
                batches,
                landing_stride: plan.description.landing,
                windows: windows(&plan.attached, plan.description.row_lbas, LANES * batches),
                timeout: options.timeout.unwrap_or(plan.attached.store.timeout()),
                doorbells: plan.attached.options.doorbells,
                memory: plan.attached.options.queue_memory,
                host_doorbells: plan.attached.ring_refusals.iter().map(Option::is_some).collect(),
                writable: plan.attached.options.drive_memory.clone(),
            };
            for _ in 0..plan.attached.options.queue_sets {
                sets.push(QueueSet::new(gpu, &drives, &options, gate.clone())?);
            }
        }
        let all: Vec<u8> =
            sets.iter().flat_map(|set| set.descriptors()).flat_map(|it| it.as_bytes().to_vec()).collect();
        let descriptors = DeviceMemory::new(gpu, all.len().max(1) as u64)?;
        descriptors.write(0, &all)?;
        let graphs = Graphs::new(plan)?;
        let cache = plan.attached.cache.get().filter(|_| plan.description.is_cached);
        let cache_slot = cache.map(|cache| cache.take_slot()).transpose()?;
        let side = if plan.options.prefetch {
            Some(PrefetchStream::new(gpu, plan.attached.options.prefetch_priority)?)
        } else {
            None
        };
        let resting = Resting::No;
        let (tickets, issued) = (Arc::new(tickets), Default::default());
        let answered = vec![0; sets.iter().map(|set| set.descriptors().len()).sum()];
        Ok(Self {
            number,
            memory,
            places,
            kept,
            counts,
            tickets,
            captured: CapturedTickets::default(),
            gate,
            sets,
            descriptors,
            issued,
            answered,
            cache_slot,
            graphs,
            side,
            resting,
            recorded: Recorded::default(),
        })
    }

    /// Launches that were given out and have ended.
    fn ended(&self, index: usize) -> u64 {
        self.tickets.memory().load_u64(index * size_of::<abi::Ticket>())
    }

    /// Starts every queue anew that takes no commands, by as little as does it: a drive may be reset, with everybody
    /// else's queues on it. One that is given up is done without.
    fn recover(&mut self, plan: &Prepared) -> Result<(), GpuError> {
        // Closed for all sets at once: a look-up that came in between two would be cut off by the second.
        self.gate.close();
        let recovered = self.recover_sets(plan);
        self.gate.open();
        recovered
    }

    fn recover_sets(&mut self, plan: &Prepared) -> Result<(), GpuError> {
        let members: Vec<_> = plan.attached.store.drives().iter().flatten().collect();
        let mut lost = Ok(());
        for set in &mut self.sets {
            let recovered = set.recover_with(|drive, blame, recreate| match members.get(drive) {
                Some(member) => member.revive(blame, recreate),
                None => recreate(),
            });
            match recovered {
                // That is no reason to leave drives as they are.
                Err(error @ warprow_gpu_queues::GpuQueueError::ContextLost { .. }) => lost = Err(error.into()),
                recovered => recovered?,
            }
        }
        lost
    }

    /// Starts queues anew that take no commands, if no launch is under way.
    pub(crate) fn recover_idle(&mut self, plan: &Prepared) -> Result<(), GpuError> {
        match self.sets.iter().any(QueueSet::is_poisoned) && self.is_idle() {
            true => self.recover(plan),
            false => Ok(()),
        }
    }

    /// A ticket among these that nobody holds or launches.
    pub(crate) fn free_ticket(&self, among: Range<usize>) -> Result<usize, GpuError> {
        let is_free = |&index: &usize| {
            let free = |it: &Issued| !it.held && it.launches <= self.ended(index);
            self.issued.get(index).is_some_and(free)
        };
        let why =
            "8 look-ups of the slot have not ended, or their tickets are held: drop tickets, or take another slot";
        among.into_iter().find(is_free).ok_or(GpuError::Busy(why))
    }

    /// The mask of a batch that was prefetched.
    pub(crate) fn kept(&self) -> u64 {
        self.memory.address() + self.kept
    }

    /// Counts a launch of a ticket's.
    pub(crate) fn count_launch(&mut self, index: usize) {
        if let Some(issued) = self.issued.get_mut(index) {
            *issued = Issued { launches: issued.launches + 1, held: true };
        }
    }

    /// A ticket's place for a launch that is not captured.
    pub(crate) fn place(&self, among: Range<usize>) -> Result<TakenPlace, GpuError> {
        let index = self.free_ticket(among)?;
        Ok(TakenPlace { before: Told::of(self.tickets.memory(), index), place: TicketPlace::Own(index) })
    }

    /// The address of the tickets of a place, and that of what GPU memory has of them; the ticket's index among both.
    fn addresses(&self, place: &TicketPlace) -> (u64, u64, u32) {
        match place {
            TicketPlace::Own(index) => (self.tickets.address(), self.memory.address() + self.counts, *index as u32),
            TicketPlace::Captured(it) => (it.tickets.address(), it.counts, it.index as u32),
        }
    }

    /// Whether no launch of this slot is under way, of those that are not in graphs.
    fn is_idle(&self) -> bool {
        self.issued.iter().enumerate().all(|(index, it)| it.launches <= self.ended(index))
    }
}

impl GpuSlot {
    pub(crate) fn new(plan: Arc<Prepared>, state: State) -> Self {
        let inner = Inner {
            plan,
            tickets: state.tickets.clone(),
            state: Mutex::new(Some(state)),
            broken: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn plan(&self) -> &Arc<Prepared> {
        &self.inner.plan
    }

    /// Launches a look-up on `stream`, or captures it if the stream is being captured: 3 kernels if the batch has at
    /// most 8,192 ids (with [`BatchLen::Device`]: if the plan has), else 7 to 11, by the plan's
    /// [`DedupeMethod`](warprow_lookup::DedupeMethod); 1 if the ids are as few as
    /// [`GpuOptions::one_kernel_ids`](crate::GpuOptions::one_kernel_ids) says, or if no row lies on a drive and
    /// deduplication would not pay.
    /// What is not captured is one launch of a CUDA graph. It waits for nothing, and allocates nothing. Launches of one
    /// slot follow each other if their stream makes them; one that begins while another is under way does nothing, and
    /// its ticket says [`GpuError::Busy`].
    ///
    /// If an earlier look-up met a drive that did not answer, its queues are started anew first, which does wait; not
    /// so where the look-up is captured ([`recover`](Self::recover)). As many look-ups of a slot can be captured as are
    /// wanted, in any mode of capture. The graph, each copy of it, and what was instantiated of them keep the slot, and
    /// a place for the ticket, until they are destroyed.
    ///
    /// # Safety
    /// The addresses of `batch` and `out` stay valid until the look-up has ended, and nothing else writes to them
    /// meanwhile; for a captured one, whenever its graph runs. A graph that holds it runs once at a time, and so do all
    /// copies of that graph together. The kernels of a captured look-up are not put into other graphs one by one, which
    /// would keep nothing.
    ///
    /// # Errors
    /// Before anything is launched: [`GpuError::Invalid`] for what does not fit the plan or is no address of the GPU's,
    /// [`GpuError::SlotHoldsBatch`] for a slot with a prefetched batch, [`GpuError::Busy`] if 8 tickets are held, what
    /// CUDA says.
    #[allow(unsafe_code, reason = "it takes addresses from its caller")]
    pub unsafe fn lookup(&self, stream: CUstream, batch: &GpuBatch, out: &GpuOutput) -> Result<Ticket, GpuError> {
        let plan = &*self.inner.plan;
        if self.inner.broken.load(Ordering::Relaxed) {
            return Err(GpuError::Broken);
        }
        let ids = check(plan, batch, out)?;
        let gpu = &plan.attached.gpu;
        let _current = gpu.enter()?;
        let capture = Capture::of_stream(gpu, stream)?;
        launch::check_addresses(&plan.dimensions(), batch, out, ids)?;
        let mut held = lock(&self.inner.state);
        let state = held.as_mut().ok_or(GpuError::Broken)?;
        let kind = plan.kind(ids);
        let leased = kind != LookupKind::Direct;
        if leased
            && let Some(capture) = &capture
            && state.recorded.of(capture.id).rests
        {
            return Err(GpuError::SlotHoldsBatch);
        }
        if leased && capture.is_none() {
            match (state.resting, &state.side) {
                (Resting::Yes, _) => return Err(GpuError::SlotHoldsBatch),
                (Resting::Forgotten, Some(side)) => {
                    side.join(stream)?;
                    state.resting = Resting::No;
                }
                _ => {}
            }
        }
        let TakenPlace { place, before } = match &capture {
            Some(capture) => self.inner.captured_place(state, capture)?,
            None => {
                state.recover_idle(plan)?;
                // Each kind of launch counts its own tickets.
                state.place(if leased { 0..TICKETS / 2 } else { TICKETS / 2..TICKETS })?
            }
        };
        let mut lookup = describe(plan, state, batch, out, (ids, &place));
        lookup.queues.writes_output = (kind == LookupKind::Large && plan.writes_output(out)).into();
        let rows =
            if plan.description.pooled { u64::from(batch.batch) * u64::from(plan.description.features) } else { ids };
        let shape = plan.shape(ids, rows);
        match &place {
            _ if leased => plan.attached.wake_drives(),
            TicketPlace::Own(index) => lookup = at_state(plan, lookup, plan.state(state.number, Some(*index))),
            TicketPlace::Captured(it) => lookup = at_state(plan, lookup, it.state.ok_or(GpuError::Broken)?),
        }
        let graph = match &place {
            TicketPlace::Own(index) => state.graphs.of(kind, *index),
            TicketPlace::Captured(_) => None,
        };
        // SAFETY: the caller's promise for its addresses; all others belong to the plan and the slot, which the ticket
        // holds.
        let launched = unsafe { launch::launch(&plan.attached.kernels, graph, stream, (kind, &lookup, &shape)) };
        if launched.is_err() && leased && capture.is_some() {
            self.inner.recorded_in_part(stream);
        }
        launched?;
        if let TicketPlace::Own(index) = place {
            state.count_launch(index);
        }
        Ok(Ticket::new(self.inner.clone(), place, before, batch.id_type.is_signed()))
    }

    /// Places of tickets of captured look-ups: how many are taken, and how many were allocated. For tests.
    #[doc(hidden)]
    pub fn captured_places(&self) -> (usize, usize) {
        lock(&self.inner.state).as_ref().map_or((0, 0), |state| (state.captured.taken(), state.captured.places()))
    }

    /// Makes a slot that has launched nothing look as after a long life: what counts is about to wrap, at 16 or 32
    /// bits. For tests.
    #[doc(hidden)]
    pub fn age(&self) -> Result<(), GpuError> {
        let mut held = lock(&self.inner.state);
        let state = held.as_mut().ok_or(GpuError::Broken)?;
        if state.issued.iter().any(|it| it.launches != 0) {
            return Err(GpuError::Unsupported("a slot that has launched cannot be aged".to_owned()));
        }
        state.sets.iter().try_for_each(QueueSet::age)?;
        let launches = (1 << 32) - 50;
        let generation = self.inner.plan.description.generation;
        let aged = abi::SlotState { launch: launches, generation, ..Default::default() };
        for ticket in std::iter::once(None).chain((0..TICKETS).map(Some)) {
            let to = self.inner.plan.state(state.number, ticket) - self.inner.plan.states.address();
            self.inner.plan.states.write(to, aged.as_bytes())?;
        }
        let counted = abi::TicketState { launches, ..Default::default() };
        for (index, issued) in state.issued.iter_mut().enumerate() {
            issued.launches = launches;
            state.tickets.memory().store_u64(index * size_of::<abi::Ticket>(), launches);
            state.memory.write(state.counts + (index * size_of_val(&counted)) as u64, counted.as_bytes())?;
        }
        Ok(())
    }

    /// Starts every queue anew that takes no commands, as [`lookup`](Self::lookup) does by itself: for slots whose
    /// look-ups are all in graphs, whose rows on such a queue's drive fail until then (or, with several queue sets,
    /// come by the others'). Whether there was anything to do. If not, it took about a microsecond, and synchronised
    /// with nothing: engines call it between two steps, before they launch the next graph, and behind
    /// [`Ticket::check`]. Streams may be being captured meanwhile. Threads of emulated drives and of attached files that
    /// sleep are woken for that graph.
    ///
    /// Look-ups that are under way are cut off from their drives, and those that begin meanwhile get none of their rows
    /// ([`GpuError::RowsFailed`]). It waits: for those to leave, and for drives, which it may reset.
    ///
    /// # Errors
    /// As [`QueueSet::recover_with`]: [`DriverError::QueuesInUse`](warprow_driver::DriverError::QueuesInUse) if a
    /// look-up does not leave; [`ContextLost`](warprow_gpu_queues::GpuQueueError::ContextLost) if none ever will (the
    /// drives are brought back all the same, for look-ups of the host). A drive that is given up is none: its rows fail
    /// until [`Store::retry_drives`](warprow_store::Store::retry_drives) finds it well, and this was called again.
    pub fn recover(&self) -> Result<bool, GpuError> {
        let mut held = lock(&self.inner.state);
        let state = held.as_mut().ok_or(GpuError::Broken)?;
        let needed = state.sets.iter().any(QueueSet::is_poisoned);
        if needed {
            state.recover(&self.inner.plan)?;
        }
        state.gate.check_context()?;
        // The step that comes next may be a graph, whose look-ups wake nobody.
        self.inner.plan.attached.wake_drives();
        Ok(needed)
    }
}

impl Inner {
    /// Takes a ticket's place back; its launch may still be under way.
    pub(crate) fn forget_ticket(&self, index: usize, ends: u64) {
        if let Some(state) = lock(&self.state).as_mut()
            && let Some(issued) = state.issued.get_mut(index)
            && issued.launches == ends
        {
            issued.held = false;
        }
    }

    /// A place for the ticket of a look-up that is captured, which the graph keeps, with the slot.
    pub(crate) fn captured_place(
        self: &Arc<Self>,
        state: &mut State,
        capture: &Capture,
    ) -> Result<TakenPlace, GpuError> {
        let ticket = state.captured.take(|count| self.plan.ticket_chunk(count))?;
        let (kept, slot) = (ticket.clone(), self.clone());
        capture.keep(Box::new(move || {
            drop(kept);
            // What ends a slot calls CUDA.
            if let Some(last) = Arc::into_inner(slot) {
                apart(move || drop(last));
            }
        }))?;
        Ok(TakenPlace { before: Told::of(ticket.memory(), ticket.index), place: TicketPlace::Captured(ticket) })
    }

    /// Recording a look-up has failed. Of its kernels some may be in the graph, without the one that gives the lease
    /// back, if the capture can still be ended well.
    pub(crate) fn recorded_in_part(&self, stream: CUstream) {
        if matches!(Capture::of_stream(&self.plan.attached.gpu, stream), Ok(Some(_))) {
            self.broken.store(true, Ordering::Relaxed);
        }
    }

    /// Tells the drives that have answered look-ups since this was asked last that they have; whether it could.
    pub(crate) fn tell_answers(&self) -> bool {
        // Whoever recovers holds it for long; then it is told by another poll.
        let Ok(mut held) = self.state.try_lock() else { return false };
        let Some(state) = held.as_mut() else { return true };
        let members: Vec<_> = self.plan.attached.store.drives().iter().flatten().collect();
        let queues = state.sets.iter().flat_map(|set| (0..set.descriptors().len()).map(move |drive| (set, drive)));
        for ((set, drive), known) in queues.zip(&mut state.answered) {
            let answered = set.answered(drive);
            // One that was made anew has answered nobody yet.
            if std::mem::replace(known, answered) != answered
                && answered != 0
                && let Some(member) = members.get(drive)
            {
                member.controller().note_success();
            }
        }
        true
    }

    /// Why rows of launch number `launch` failed: what it met on a queue itself, or else what an earlier one met on a
    /// queue that has taken no commands since. A queue keeps the failed command of the latest launch that had one: it
    /// may be a later one's.
    pub(crate) fn first_fault(&self, launch: u64) -> Option<QueueFault> {
        let held = lock(&self.state);
        let state = held.as_ref()?;
        let name = |drive: u32| {
            let member = self.plan.attached.store.drives().iter().flatten().nth(drive as usize);
            member.map_or_else(|| drive.to_string(), |member| member.name().to_owned())
        };
        let given_up = |drive: u32| {
            let member = self.plan.attached.store.drives().iter().flatten().nth(drive as usize)?;
            Some(format!("the drive is given up: {}", member.controller().failure()?))
        };
        let faults = state.sets.iter().flat_map(QueueSet::faults).map(|fault| {
            let what = given_up(fault.drive).unwrap_or_else(|| fault.to_string());
            let command = (fault.cid as u16, fault.lba);
            let queue = fault.queue as u16;
            let is_effect = fault.kind == FAULT_CLOSED && given_up(fault.drive).is_none();
            ((fault.launch != launch, is_effect), QueueFault { drive: name(fault.drive), queue, command, what })
        });
        let errors = state.sets.iter().flat_map(QueueSet::errors).map(|(queue, failed)| {
            let what =
                if failed.launch == launch { failed.to_string() } else { format!("in another look-up, {failed}") };
            let (queue, drive) = (queue.queue_id as u16, name(queue.drive));
            ((failed.launch != launch, false), QueueFault { drive, queue, command: (failed.cid, failed.lba), what })
        });
        let damaged = state.sets.iter().flat_map(QueueSet::damaged).map(|(queue, row)| {
            let table = self.plan.description.table_name(row.table);
            let what = format!("table {table:?}, rank {}: the row does not match its checksum", row.rank);
            let what = if row.launch == launch { what } else { format!("in another look-up, {what}") };
            let (queue, drive) = (queue.queue_id as u16, name(queue.drive));
            ((row.launch != launch, false), QueueFault { drive, queue, command: (row.cid, row.lba), what })
        });
        nearest(faults.chain(errors).chain(damaged))
    }
}

/// The fault to blame. Each fault comes with two answers: whether it happened in another look-up, and whether it is the
/// effect of another fault (a reset of one drive closes the queues of the others too). Faults of this look-up come
/// first, and among these the faults that are no effect; of several alike, the first is taken.
fn nearest(faults: impl Iterator<Item = ((bool, bool), QueueFault)>) -> Option<QueueFault> {
    faults.min_by_key(|(distance, _)| *distance).map(|(_, fault)| fault)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(state) = lock(&self.state).take() else { return };
        let broken = self.broken.load(Ordering::Relaxed);
        let mut ending = Ending { state: Some(state), plan: self.plan.clone(), broken };
        if !ending.end(IN_PLACE) {
            apart(move || {
                ending.end(APART);
            });
        }
    }
}

/// How long dropping a slot waits for the slot's launches to end, and how long a thread waits after that.
const IN_PLACE: Duration = Duration::from_secs(10);
const APART: Duration = Duration::from_secs(600);

/// Does something on a thread of its own, for threads that may not call CUDA, or may not wait.
fn apart(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name("warprow-slot".to_owned()).spawn(work) {
        tracing::warn!(%error, "no thread to end a slot with");
    }
}

/// A slot that nobody has any more, on its way back to the plan.
struct Ending {
    state: Option<State>,
    plan: Arc<Prepared>,
    broken: bool,
}

impl Ending {
    /// Gives the slot back if its launches end in time, or abandons it if they cannot. Whether either is done.
    /// (Captured look-ups have ended: graphs keep the slot.) It does not synchronise, which captures of other streams
    /// would forbid.
    fn end(&mut self, patience: Duration) -> bool {
        let began = Instant::now();
        loop {
            let Some(state) = &self.state else { return true };
            if self.broken || state.gate.check_context().is_err() {
                self.abandon();
                return true;
            }
            if state.is_idle() {
                break;
            }
            if began.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        fence(Ordering::Acquire);
        if let Some(mut state) = self.state.take() {
            state.issued.iter_mut().for_each(|issued| issued.held = false);
            self.plan.give_back(state);
        }
        true
    }

    /// What the GPU may still touch is never given back.
    fn abandon(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        let lost = state.gate.check_context();
        if lost.is_ok() && (!self.broken || self.plan.attached.gpu.synchronize().is_err()) {
            // Kernels that still run use the plan's memory too.
            std::mem::forget(self.plan.clone());
        }
        let why = if self.broken { "a launch failed half-way" } else { "its launches do not end" };
        let why = lost.as_ref().err().map_or(why.to_owned(), ToString::to_string);
        tracing::warn!("a slot is abandoned with its memory: {why}");
        let sets = std::mem::take(&mut state.sets);
        // Drives of a context that is lost give their queues back: nobody is at them. (The sets keep the memory.)
        if lost.is_ok() {
            std::mem::forget(sets);
        }
        std::mem::forget(state);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Whether batch and output fit the plan; the most ids that the launch may find.
fn check(plan: &Prepared, batch: &GpuBatch, out: &GpuOutput) -> Result<u64, GpuError> {
    let ids = check_batch(plan, batch)?;
    check_output(plan, out)?;
    Ok(ids)
}

/// Whether the batch fits the plan; the most ids that the launch may find.
pub(crate) fn check_batch(plan: &Prepared, batch: &GpuBatch) -> Result<u64, GpuError> {
    let invalid = |what, why: String| Err(GpuError::Invalid { what, why });
    let max_ids = plan.options.max_ids as u64;
    if batch.batch as usize > plan.options.max_batch {
        return invalid(
            "the batch",
            format!("{} bags a feature, {} were planned", batch.batch, plan.options.max_batch),
        );
    }
    let bags = u64::from(batch.batch) * u64::from(plan.description.features);
    let ids = match batch.len {
        BatchLen::Device(_) => max_ids,
        BatchLen::Host(ids) if ids as u64 > max_ids => {
            return invalid("the batch", format!("{ids} ids, {max_ids} were planned"));
        }
        BatchLen::Host(ids) => {
            let even = if bags == 0 { ids == 0 } else { (ids as u64).is_multiple_of(bags) };
            if batch.offsets.is_none() && !even {
                return invalid("the batch", format!("{ids} ids are not {bags} bags of one length: give offsets"));
            }
            ids as u64
        }
    };
    match (plan.description.weighted, batch.weights) {
        (true, None) => return invalid("the weights", "a feature of the plan is weighted: give them".to_owned()),
        (false, Some(_)) => return invalid("the weights", "no feature of the plan is weighted: leave them".to_owned()),
        _ => {}
    }
    Ok(ids)
}

/// Whether the output fits the plan.
pub(crate) fn check_output(plan: &Prepared, out: &GpuOutput) -> Result<(), GpuError> {
    if out.row_stride < plan.description.width {
        let why = format!("a stride of {} elements, rows have {}", out.row_stride, plan.description.width);
        return Err(GpuError::Invalid { what: "the output", why });
    }
    Ok(())
}

/// `ids`: the most that it may find.
pub(crate) fn describe(
    plan: &Prepared,
    state: &State,
    batch: &GpuBatch,
    out: &GpuOutput,
    (ids, place): (u64, &TicketPlace),
) -> abi::Lookup {
    let (tickets, ticket_counts, ticket) = state.addresses(place);
    let sharing = plan.sharing(ids);
    let (counts, id_count) = match batch.len {
        BatchLen::Host(ids) => (0, ids as u64),
        BatchLen::Device(counts) => (counts, 0),
    };
    let description = &plan.description;
    let lookup = abi::Lookup {
        batch: abi::BatchIds {
            ids: batch.ids,
            offsets: batch.offsets.unwrap_or(0),
            weights: batch.weights.unwrap_or(0),
            counts,
            id_count,
            bag_count: batch.batch.into(),
            max_ids: plan.options.max_ids as u64,
            max_bags: plan.options.max_batch as u64,
            id_type: batch.id_type.code(),
            offset_type: batch.offset_type.code(),
            has_end: batch.has_end.into(),
            unused: 0,
        },
        output: abi::OutputRows {
            rows: out.rows,
            row_stride: out.row_stride as u64,
            mask: out.mask.unwrap_or(0),
            kept_mask: 0,
            element: element_of(plan.options.out),
            width: description.width as u32,
        },
        plan: abi::PlanTables {
            overlay: plan.attached.overlay_at(),
            cache: plan.cache_at(),
            admits: plan.admits.into(),
            crc_slices: plan.attached.slices.as_ref().map_or(0, DeviceMemory::address),
            feature_count: description.features,
            segment_count: description.segments,
            pooled: description.pooled.into(),
            rich: description.rich.into(),
            follows: plan.attached.options.replaces().into(),
            scaled: plan.description.scaled.into(),
            lost: match plan.options.failed_rows {
                FailedRows::Zeros => 0,
                FailedRows::Nan => abi::lost::NAN,
            } | match plan.options.mask {
                MaskMeaning::Found => 0,
                MaskMeaning::Failed => abi::lost::MASK,
            },
            first_feature: description.first,
            ..abi::PlanTables::default()
        },
        lanes: abi::RowLanes {
            group_log2: sharing.lanes,
            parts_of_row: sharing.parts_of_row,
            row_lanes: sharing.row_lanes,
            by_lines: sharing.by_lines.into(),
            lines_of_row: plan.lines_of_row,
            long_bags: plan.long_bags,
        },
        slot: abi::SlotPlaces {
            tickets,
            counts: ticket_counts,
            gate: state.gate.address(),
            ticket,
            cache_slot: state.cache_slot.as_ref().map_or(0, |slot| slot.index),
            sampling: plan.sampled.map_or(0, |(address, _)| address),
            plan_number: plan.sampled.map_or(0, |(_, number)| number),
            ..abi::SlotPlaces::default()
        },
        queues: abi::DriveQueues {
            descriptors: state.descriptors.address(),
            sets: state.sets.len() as u32,
            drives: state.sets.first().map_or(0, |set| set.descriptors().len() as u32),
            ablated: plan.attached.options.ablations.of_reading(),
            writes_output: 0,
        },
        keys: abi::KeySpace {
            count: description.keys.all(),
            first_ssd_key: description.keys.dram,
            dedupe: plan.many.code(),
            repeats: plan.attached.options.ablations.deduplication.into(),
        },
        sort: abi::KeySort {
            slots_log2: slots_log2(plan.sizes().uniques),
            sweeps: sweeps(description.keys.all()),
            ..abi::KeySort::default()
        },
        unique: abi::UniqueRows { staging_stride: u64::from(description.stride), ..abi::UniqueRows::default() },
        ..abi::Lookup::default()
    };
    let lookup = state.places.of(state.memory.address(), lookup);
    at_state(plan, lookup, plan.state(state.number, None))
}

/// A look-up by the state at `state`, with the description behind that.
fn at_state(plan: &Prepared, lookup: abi::Lookup, state: u64) -> abi::Lookup {
    let description = &plan.description;
    let features = state + plan.strides().1;
    abi::Lookup {
        slot: abi::SlotPlaces { state, ..lookup.slot },
        plan: abi::PlanTables {
            features,
            tables: features + description.tables_at,
            segments: features + description.segments_at,
            ..lookup.plan
        },
        ..lookup
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_goes_before_its_effects_and_a_look_up_s_own_before_others() {
        let fault =
            |drive: &str| QueueFault { drive: drive.to_owned(), queue: 1, command: (0, 0), what: String::new() };
        let first = |faults: &[((bool, bool), &str)]| {
            nearest(faults.iter().map(|&(distance, drive)| (distance, fault(drive)))).map(|it| it.drive)
        };
        let (own, others, cause, effect) = (false, true, false, true);
        // The reset of drive 1 cut drive 0 off.
        assert_eq!(first(&[((own, effect), "0"), ((own, cause), "1")]).as_deref(), Some("1"));
        assert_eq!(first(&[((others, cause), "0"), ((own, effect), "1")]).as_deref(), Some("1"));
        assert_eq!(
            first(&[((others, effect), "0"), ((others, cause), "1"), ((others, cause), "2")]).as_deref(),
            Some("1")
        );
        assert_eq!(first(&[]), None);
    }
}
