//! A queue set: one queue pair on every drive, for thread blocks to drive.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use warprow_driver::{
    Blame, Controller, DriverError, ExternalQueue, IssuedCommand, Namespace, ResetKind, RingSizes, Submitter,
};
use warprow_spec::NvmOpcode;

use crate::abi::{
    DOORBELL_MEMORY, DamagedRow, FAULT_CLOSED, FAULT_GIVEN_UP, FAULT_TIMED_OUT, FailedCommand, Fault, LANES,
    MAX_BATCHES, QueueDescriptor, QueueState, ReadWindow,
};
use crate::address_space::{AddressSpace, SharedMemory, StateMemory};
use crate::doorbell_access::{DoorbellAccess, ReachedDoorbells};
use crate::doorbell_proxy::{DoorbellProxy, ForwardedGate, SHADOW_BYTES};
use crate::gate::DRAIN;
use crate::memory_placement::{MemoryPlacement, PlacedMemory};
use crate::queue_memory::{DriveWritable, QueueBytes, QueueMemory};
use crate::{Gate, Gpu, GpuQueueError};

/// Bytes that a command may read at most.
pub const MAX_LANDING_BYTES: u32 = 65_536;
/// Bytes of a page of the controller's, and PRPs of a command without a list.
const PAGE: usize = 4096;
const PRPS: u32 = 2;

/// How to make a queue set.
#[derive(Clone, Debug)]
pub struct QueueSetOptions {
    /// The most batches of commands in flight on each queue (K), 1 to 8; fewer where a controller's queues are too
    /// short.
    pub batches: u32,
    /// Bytes that a command for rows of one LBA may read: a power of two from the LBA size to [`MAX_LANDING_BYTES`].
    pub landing_stride: u32,
    /// For each drive in turn, which rows of different LBAs share a command; on drives beyond the end of the list, none
    /// do. Commands of a drive with a window may read the whole window, if that is more than `landing_stride`.
    pub windows: Vec<ReadWindow>,
    /// The longest time from the doorbell of a batch to the batch's last completion.
    pub timeout: Duration,
    /// Who stores to the drives' doorbells.
    pub doorbells: DoorbellAccess,
    /// Which memory rings and landing areas lie in.
    pub memory: MemoryPlacement,
    /// For each drive in turn, whether a host thread stores to its doorbell registers though `doorbells` wants the GPU
    /// to, because a ring test of the drive failed. For drives beyond the end of the list `doorbells` decides.
    pub host_doorbells: Vec<bool>,
    /// Memory of a GPU that the host has mapped, for drives that reach memory by the host's mapping of it. If it is
    /// given, completion queues and landing areas lie there, and submission queues and PRP lists in pinned host memory,
    /// whatever `memory` says (placement A⁻), on all drives but those of `host_doorbells`. [`QueueSet::new`] takes only
    /// memory that a keeper keeps ([`KeptGpuMemory`](crate::KeptGpuMemory)): otherwise it fails with
    /// [`KeptMemoryError::Unkept`](crate::KeptMemoryError::Unkept). `None`: `memory` decides.
    pub writable: Option<Arc<dyn DriveWritable>>,
}

/// One queue pair on every drive of a list, each with its landing area, its [`QueueState`] and its [`Fault`]. A slot
/// has one queue set or several, all behind one [`Gate`].
///
/// Dropping a set closes the gate and never opens it again for this set, waits until launches have left (for at most
/// the driver's `leave_timeout`), deletes the queues and gives all memory back. Where the launches or a device do not
/// let go of the queues, the memory is leaked rather than reused.
#[derive(Debug)]
pub struct QueueSet {
    queues: Vec<ExternalQueue>,
    descriptors: Vec<QueueDescriptor>,
    submitter: Arc<dyn Submitter>,
    proxy: Option<DoorbellProxy>,
    memory: ManuallyDrop<Memory>,
    /// Which queues launches do without, because their drives were given up.
    abandoned: Vec<bool>,
}

/// The function that recreates one queue.
type Recreate<'a> = dyn FnMut() -> Result<(), DriverError> + 'a;
/// The function that brings a queue back: see [`QueueSet::recover_with`].
type Revive<'a> = dyn FnMut(usize, Option<Blame>, &mut Recreate<'_>) -> Result<(), DriverError> + 'a;

/// The memory that launches may touch. It is freed when no launch can come any more.
#[derive(Debug)]
struct Memory {
    /// A [`QueueState`] for each queue.
    states: StateMemory,
    /// A [`Fault`] for each queue.
    faults: SharedMemory,
    _shadows: SharedMemory,
    bells: Vec<ReachedDoorbells>,
    /// Rings and landing areas.
    queues: Vec<QueueMemory>,
    gate: Arc<Gate>,
}

/// The sizes of a queue of the set on one drive.
#[derive(Clone, Copy, Debug)]
struct Shape {
    sizes: RingSizes,
    batches: u32,
    cid_shift: u32,
    generations: u32,
    window: ReadWindow,
    landing_stride: u32,
    landing_bytes: usize,
}

impl Shape {
    fn of(
        (controller, namespace): &(Arc<Controller>, Namespace),
        options: &QueueSetOptions,
        window: ReadWindow,
    ) -> Result<Self, GpuQueueError> {
        let refuse = |why: String| Err(GpuQueueError::Unsupported(format!("{}: {why}", controller.name())));
        if let Err(why) = namespace.check_of(controller) {
            return refuse(why.to_string());
        }
        if window.shift > 16 || window.gap >= 1 << 24 {
            return refuse(format!("rows cannot share commands by {window:?}"));
        }
        let window_bytes = u64::from(namespace.lba_bytes()) << window.shift;
        let stride = match window.shift {
            0 => options.landing_stride,
            _ => options.landing_stride.max(u32::try_from(window_bytes).unwrap_or(u32::MAX)),
        };
        if !stride.is_power_of_two() || !(namespace.lba_bytes()..=MAX_LANDING_BYTES).contains(&stride) {
            return refuse(format!(
                "a command cannot read {stride} B for the GPU: a power of two from the LBA ({} B) to {MAX_LANDING_BYTES} B is needed",
                namespace.lba_bytes()
            ));
        }
        if controller.max_transfer_bytes().is_some_and(|most| most < stride.into()) {
            return refuse(format!("the drive does not read {stride} B at once (MDTS)"));
        }
        if !(1..=MAX_BATCHES as u32).contains(&options.batches) {
            return refuse(format!("{} batches in flight are not possible, 1 to {MAX_BATCHES} are", options.batches));
        }
        let max = controller.cap().max_queue_entries();
        let batches = options.batches.min((max - 1) / LANES);
        if batches == 0 {
            return refuse(format!("its queues have at most {max} entries, and a thread block needs {}", LANES + 1));
        }
        let commands = LANES * batches;
        let entries = (commands + 1).next_power_of_two().min(max);
        let cid_shift = commands.next_power_of_two().ilog2();
        // CID FFFFh is left out: where the index can be all ones, the generation never is.
        let generations = (1 << (16 - cid_shift)) - u32::from(commands == 1 << cid_shift);
        Ok(Self {
            sizes: RingSizes { entries, completion_entries: entries },
            batches,
            cid_shift,
            generations,
            window,
            landing_stride: stride,
            landing_bytes: commands as usize * stride as usize,
        })
    }

    fn bytes(&self) -> QueueBytes {
        QueueBytes { sizes: self.sizes, landing: self.landing_bytes, list_entries: self.list_entries() }
    }

    /// How many pages the PRP list names: all of the landing area, or none if no command needs a list.
    fn list_entries(&self) -> usize {
        if self.landing_stride > PRPS * PAGE as u32 { self.landing_bytes / PAGE } else { 0 }
    }
}

/// Allocates the memory of a queue where the options want it. With [`MemoryPlacement::Best`], pinned memory takes the
/// place of GPU memory that cannot be had.
fn queue_memory(
    controller: &Arc<Controller>,
    bytes: QueueBytes,
    side: &AddressSpace,
    options: &QueueSetOptions,
    host_doorbells: bool,
) -> Result<QueueMemory, GpuQueueError> {
    let writable = options.writable.as_deref().filter(|_| !host_doorbells);
    let placed = options.memory.on(&**controller.function(), options.doorbells);
    let made = QueueMemory::new(controller, bytes, side, placed, writable);
    match made {
        Err(error)
            if writable.is_none() && options.memory == MemoryPlacement::Best && placed != PlacedMemory::Pinned =>
        {
            tracing::warn!(function = %controller.name(), %error, "queues lie in pinned memory instead of GPU memory");
            QueueMemory::new(controller, bytes, side, PlacedMemory::Pinned, None)
        }
        made => made.map_err(|error| placed.refused(&**controller.function(), error)),
    }
}

impl QueueSet {
    /// Makes queues on `drives` for kernels on `gpu`.
    ///
    /// Fails with [`GpuQueueError::Unsupported`] if the options do not fit a drive, with
    /// [`GpuQueueError::DoorbellRegisters`], with [`GpuQueueError::KeptMemory`], as [`Controller::external_queue`] does,
    /// or for want of memory. The gate may be left closed then, because a slot cannot be used without one of its sets.
    pub fn new(
        gpu: &Arc<Gpu>,
        drives: &[(Arc<Controller>, Namespace)],
        options: &QueueSetOptions,
        gate: Arc<Gate>,
    ) -> Result<Self, GpuQueueError> {
        Self::build(&AddressSpace::Gpu(gpu.clone()), drives, options, gate)
    }

    /// Makes queues for a thread of this process that stands in for the kernels: the descriptors hold addresses of this
    /// process. Fails as [`new`](Self::new) does.
    pub fn on_host(
        drives: &[(Arc<Controller>, Namespace)],
        options: &QueueSetOptions,
        gate: Arc<Gate>,
    ) -> Result<Self, GpuQueueError> {
        Self::build(&AddressSpace::Host, drives, options, gate)
    }

    /// Fills the landing areas with `byte`. Only while nothing is outstanding.
    pub(crate) fn scribble(&self, byte: u8) -> Result<(), GpuQueueError> {
        self.memory.queues.iter().try_for_each(|queue| queue.scribble(byte))
    }

    pub(crate) fn build(
        side: &AddressSpace,
        drives: &[(Arc<Controller>, Namespace)],
        options: &QueueSetOptions,
        gate: Arc<Gate>,
    ) -> Result<Self, GpuQueueError> {
        let windows = options.windows.iter().copied().chain(std::iter::repeat(ReadWindow::default()));
        let shapes = drives.iter().zip(windows).map(|(drive, window)| Shape::of(drive, options, window));
        let shapes = shapes.collect::<Result<Vec<_>, _>>()?;
        if options.doorbells == DoorbellAccess::HostThread
            && matches!(options.memory, MemoryPlacement::A | MemoryPlacement::AMinus)
        {
            let why = "a host thread rings doorbells for queues in pinned memory alone: ask for MemoryPlacement::Best, or for DoorbellAccess::Memory";
            return Err(GpuQueueError::Unsupported(why.to_owned()));
        }
        let mut bells = Vec::new();
        let host_doorbells = || options.host_doorbells.iter().copied().chain(std::iter::repeat(false));
        for ((controller, _), host_doorbells) in drives.iter().zip(host_doorbells()) {
            bells.push(ReachedDoorbells::of(options.doorbells, host_doorbells, controller, side)?);
        }
        if bells.iter().flatten().any(ReachedDoorbells::are_registers) {
            let impatient = drives.iter().find(|(controller, _)| controller.options().leave_timeout < 2 * DRAIN);
            if let Some((controller, _)) = impatient {
                return Err(GpuQueueError::Unsupported(format!(
                    "{}: a leave_timeout of {:?} is too short for doorbells that the GPU stores to: {:?} at least",
                    controller.name(),
                    controller.options().leave_timeout,
                    2 * DRAIN
                )));
            }
            gate.drain_registers();
        }
        let shadows = side.shared(drives.len() * SHADOW_BYTES)?;
        let states = side.own(drives.len() * size_of::<QueueState>())?;
        let faults = side.shared(drives.len() * size_of::<Fault>())?;

        // Which doorbells a queue has is known when it exists, so the thread that rings them comes after.
        let relay = bells.iter().any(Option::is_none).then(|| Arc::new(ForwardedGate::new(gate.clone())));
        let submitter: Arc<dyn Submitter> = match &relay {
            Some(relay) => relay.clone(),
            None => gate.clone(),
        };
        // Queues go before what holds their memory, also where this fails halfway.
        let mut memories = Vec::new();
        let mut queues = Vec::new();
        for (((controller, _), shape), host_doorbells) in drives.iter().zip(&shapes).zip(host_doorbells()) {
            let memory = queue_memory(controller, shape.bytes(), side, options, host_doorbells)?;
            // SAFETY: the rings are reached through `descriptors`, by kernels that their launches (unsafe themselves)
            // let in and by whoever stands in for them with the addresses there, which takes `unsafe` as well; their
            // commands land in the landing areas behind the rings (docs/gpu-rings.md), in memory that this set hands to
            // nobody else. Doorbells are stored by them and, for them, by the doorbell proxy; both are out when the
            // gates that the submitter closes say so.
            queues.push(unsafe { controller.external_queue(memory.external.clone(), shape.sizes, submitter.clone()) }?);
            memories.push(memory);
        }
        let bells_of = |queue: &ExternalQueue| (queue.tail().clone(), queue.head().clone());
        let proxy = relay
            .map(|relay| DoorbellProxy::start(relay, shadows.memory().clone(), queues.iter().map(bells_of).collect()))
            .transpose()?;

        let mut descriptors = Vec::new();
        for (index, ((queue, shape), bell)) in queues.iter().zip(&shapes).zip(&bells).enumerate() {
            let (tail, head, kind) = match bell {
                Some(bell) => {
                    let (tail, head) = queue.doorbell_offsets();
                    let missing = || GpuQueueError::Unsupported("the doorbells of a drive are too short".to_owned());
                    (bell.address(tail).ok_or_else(missing)?, bell.address(head).ok_or_else(missing)?, bell.kind())
                }
                None => {
                    let (tail, head) = DoorbellProxy::offsets(index);
                    (shadows.address() + tail as u64, shadows.address() + head as u64, DOORBELL_MEMORY)
                }
            };
            let Some(((_, namespace), memory)) = drives.get(index).zip(memories.get(index)) else { continue };
            descriptors.push(QueueDescriptor {
                sq: memory.sq,
                cq: memory.cq,
                landing: memory.landing,
                landing_iova: memory.landing_iova,
                sq_tail: tail,
                cq_head: head,
                state: states.address() + (index * size_of::<QueueState>()) as u64,
                fault: faults.address() + (index * size_of::<Fault>()) as u64,
                timeout_ns: u64::try_from(options.timeout.as_nanos()).unwrap_or(u64::MAX / 2),
                landing_stride: shape.landing_stride,
                sq_size: shape.sizes.entries,
                cq_size: shape.sizes.completion_entries,
                doorbell_kind: kind,
                queue_id: queue.id().into(),
                drive: index as u32,
                nsid: namespace.nsid(),
                lba_shift: namespace.lba_shift().into(),
                batches: shape.batches,
                cid_shift: shape.cid_shift,
                generations: shape.generations,
                window: shape.window.word(),
                prp_list: memory.list_iova,
            });
        }
        let memory = Memory {
            states,
            faults,
            _shadows: shadows,
            bells: bells.into_iter().flatten().collect(),
            queues: memories,
            gate,
        };
        let abandoned = vec![false; queues.len()];
        Ok(Self { queues, descriptors, submitter, proxy, memory: ManuallyDrop::new(memory), abandoned })
    }

    /// The queues as kernels see them, one for each drive.
    pub fn descriptors(&self) -> &[QueueDescriptor] {
        &self.descriptors
    }

    /// The faults of the queues that have one. A queue's fault goes when the queue has been [recovered](Self::recover).
    pub fn faults(&self) -> Vec<Fault> {
        (0..self.queues.len()).filter_map(|index| self.fault(index)).collect()
    }

    /// The first command that ended with an error status in the latest launch in which one did, on queues where there
    /// was one since they were created. Such a queue goes on.
    pub fn errors(&self) -> impl Iterator<Item = (&QueueDescriptor, FailedCommand)> {
        let failed = |index| Fault::load_failed(self.memory.faults.memory(), index * size_of::<Fault>());
        self.descriptors.iter().enumerate().filter_map(move |(index, queue)| Some((queue, failed(index)?)))
    }

    /// The first row that did not match its checksum in the latest launch in which one did not, on queues where there
    /// was one since they were created.
    pub fn damaged(&self) -> impl Iterator<Item = (&QueueDescriptor, DamagedRow)> {
        let damaged = |index| Fault::load_damaged(self.memory.faults.memory(), index * size_of::<Fault>());
        self.descriptors.iter().enumerate().filter_map(move |(index, queue)| Some((queue, damaged(index)?)))
    }

    /// Number of the latest launch in which a command of the queue on drive number `drive` succeeded; 0 if none has
    /// since the queue was created, if the drive was reset since (whatever it answered before tells nothing of what it
    /// does now), or if there is no such drive.
    pub fn answered(&self, drive: usize) -> u64 {
        if self.queues.get(drive).is_none_or(|queue| queue.is_stale()) {
            return 0;
        }
        Fault::load_answered(self.memory.faults.memory(), drive * size_of::<Fault>())
    }

    fn fault(&self, index: usize) -> Option<Fault> {
        Fault::load(self.memory.faults.memory(), index * size_of::<Fault>())
    }

    /// The state that the block of each queue keeps. For reports and tests: the values fit together only while no
    /// launch is under way.
    pub fn states(&self) -> Result<Vec<QueueState>, GpuQueueError> {
        let state = |index| {
            let mut bytes = [0; size_of::<QueueState>()];
            self.memory.states.read(index * bytes.len(), &mut bytes)?;
            Ok(QueueState::from_bytes(bytes))
        };
        (0..self.queues.len()).map(state).collect()
    }

    /// Makes queues that no launch has driven look as after a long life: all counters are about to wrap, at 16 or 32
    /// bits. For tests.
    #[doc(hidden)]
    pub fn age(&self) -> Result<(), GpuQueueError> {
        if self.states()?.iter().any(|state| *state != QueueState::default()) {
            return Err(GpuQueueError::Unsupported("queues that were driven cannot be aged".to_owned()));
        }
        for (index, queue) in self.descriptors.iter().enumerate() {
            let aged = QueueState {
                // Even, so that the phase is that of a queue just created.
                turn: u32::MAX - 1,
                generation: [queue.generations - 1; MAX_BATCHES],
                anomalies: u32::MAX - 1,
                commands: (1 << 32) - 300,
                doorbells: (1 << 32) - 5,
                ..QueueState::default()
            };
            self.memory.states.write(index * size_of::<QueueState>(), aged.as_bytes())?;
        }
        Ok(())
    }

    /// Whether a queue takes no commands until the set has been [recovered](Self::recover): a launch gave up on it, or
    /// its controller was reset. Queues whose drives are given up do not count. Cheap; waits for nothing.
    pub fn is_poisoned(&self) -> bool {
        (0..self.queues.len()).any(|index| self.is_lost(index) && !self.is_done_without(index))
    }

    fn is_done_without(&self, index: usize) -> bool {
        // If a retry of the drive has failed, the gate is closed again.
        let is_out = |queue: &ExternalQueue| queue.controller().failure().is_some() && !queue.keeps_submitter_out();
        self.abandoned.get(index) == Some(&true) && self.queues.get(index).is_some_and(is_out)
    }

    fn is_lost(&self, index: usize) -> bool {
        self.queues.get(index).is_some_and(ExternalQueue::is_stale) || self.fault(index).is_some()
    }

    /// Starts every queue anew that takes no commands: closes the gate, waits until launches have left, recreates the
    /// queues, and opens the gate. Where a device does not delete a queue its controller is reset; other users of that
    /// controller then find their queues lost.
    ///
    /// Fails with [`DriverError::QueuesInUse`] if a launch, or another owner of a queue of that controller, does not
    /// leave, or as [`ExternalQueue::recreate`] and [`Controller::reset`] do. The gate then stays closed before queues
    /// that do not exist: look-ups fail fast, and this may be tried again. [`GpuQueueError::ContextLost`] if the CUDA
    /// context is lost, so that no launch can come any more: the queues have been recreated all the same, and the
    /// drives serve others.
    pub fn recover(&mut self) -> Result<(), GpuQueueError> {
        let controllers: Vec<_> = self.queues.iter().map(|queue| queue.controller().clone()).collect();
        self.recover_with(|drive, _, recreate| {
            let failed = match recreate() {
                Err(DriverError::NoQueueLeft { function, granted }) => {
                    return Err(DriverError::NoQueueLeft { function, granted });
                }
                Err(error) => error,
                Ok(()) => return Ok(()),
            };
            let Some(controller) = controllers.get(drive) else { return Err(failed) };
            tracing::warn!(function = %controller.name(), %failed, "resetting the controller");
            controller.reset(ResetKind::Controller)?;
            recreate()
        })
    }

    /// Recovers as [`recover`](Self::recover) does, but `revive` decides what is done with a device that does not let a
    /// queue go. `revive` gets the index of a drive, what the drive's commands died of if no answer came, and a
    /// function that recreates the queue; it may reset the controller and call that function again. A drive that is or
    /// was [given up](DriverError::GivenUp) is no failure: launches do without it, and its rows fail at once, until it
    /// is found well again.
    pub fn recover_with(
        &mut self,
        mut revive: impl FnMut(usize, Option<Blame>, &mut Recreate<'_>) -> Result<(), DriverError>,
    ) -> Result<(), GpuQueueError> {
        self.submitter.close();
        let recovered = self.recover_closed(&mut revive);
        self.submitter.open();
        recovered
    }

    fn recover_closed(&mut self, revive: &mut Revive<'_>) -> Result<(), GpuQueueError> {
        self.await_leaving()?;
        let mut lost = Ok(());
        for index in 0..self.queues.len() {
            if !self.is_lost(index) || self.is_done_without(index) {
                continue;
            }
            let is_given_up = |queue: &ExternalQueue| queue.controller().failure().is_some();
            if self.queues.get(index).is_some_and(is_given_up) {
                keep(&mut lost, self.let_submitter_in(index))?;
                continue;
            }
            let fault = self.fault(index);
            let timed_out = fault.filter(|fault| fault.kind == FAULT_TIMED_OUT);
            // Until `revive` has ended, which may fail at any point, the device may still have the old queue. So no
            // launch may use it.
            keep(&mut lost, self.poison(index, fault.map_or(FAULT_CLOSED, |fault| fault.kind)))?;
            if let Some(queue) = self.queues.get_mut(index) {
                let nsid = self.descriptors.get(index).map_or(0, |it| it.nsid);
                let blame = timed_out.map(|it| {
                    let issued = IssuedCommand { opcode: NvmOpcode::READ.0, cid: it.cid as u16, nsid, lba: it.lba };
                    queue.blame_time_out(issued, Duration::from_nanos(it.waited_ns))
                });
                // With the context the memory of queues on the GPU is lost. Such a queue stays deleted, and its drive
                // serves others.
                let is_gone = lost.is_err() && self.memory.queues.get(index).is_some_and(|memory| memory.is_on_gpu);
                match revive(index, blame, &mut || if is_gone { queue.delete() } else { queue.recreate() }) {
                    Ok(()) if is_gone => continue,
                    Ok(()) => {}
                    Err(error @ DriverError::GivenUp { .. }) => {
                        tracing::error!(%error, "look-ups do without the drive");
                        keep(&mut lost, self.let_submitter_in(index))?;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if let Some(abandoned) = self.abandoned.get_mut(index) {
                *abandoned = false;
            }
            // The queue begins anew, and so do its shadows, state and fault. The gate is still closed.
            if let Some(proxy) = &self.proxy {
                proxy.restart(index);
            }
            let cleared = self.memory.states.clear(index * size_of::<QueueState>(), size_of::<QueueState>());
            keep(&mut lost, cleared)?;
            self.memory.faults.memory().fill(index * size_of::<Fault>(), size_of::<Fault>(), 0);
        }
        lost
    }

    /// Poisons a queue, so that no launch sends it anything.
    fn poison(&self, index: usize, poison: u32) -> Result<(), GpuQueueError> {
        let state = QueueState { poison, ..QueueState::default() };
        self.memory.states.write(index * size_of::<QueueState>(), state.as_bytes())
    }

    /// Leaves the queue of a drive that is given up as it is, so that the other queues go on. Only with the gate closed
    /// and no launch inside.
    fn let_submitter_in(&mut self, index: usize) -> Result<(), GpuQueueError> {
        let poisoned = self.poison(index, FAULT_GIVEN_UP);
        if let (Some(queue), Some(descriptor)) = (self.queues.get(index), self.descriptors.get(index)) {
            Fault::give_up(self.memory.faults.memory(), index * size_of::<Fault>(), descriptor);
            queue.let_submitter_in();
        }
        if let Some(abandoned) = self.abandoned.get_mut(index) {
            *abandoned = true;
        }
        poisoned
    }

    fn await_leaving(&self) -> Result<(), DriverError> {
        let Some(controller) = self.queues.first().map(ExternalQueue::controller) else { return Ok(()) };
        let (clock, limit) = (controller.clock(), controller.options().leave_timeout);
        let began = clock.now();
        while !self.submitter.has_left() {
            if clock.now().saturating_sub(began) >= limit && !self.submitter.has_left() {
                let queues = self.queues.iter().map(ExternalQueue::id).collect();
                return Err(DriverError::QueuesInUse { function: controller.name().clone(), queues });
            }
            clock.sleep(Duration::from_micros(20));
        }
        Ok(())
    }
}

/// Keeps the error that the context is lost in `lost`, because that concerns the GPU alone; passes other errors on.
fn keep(lost: &mut Result<(), GpuQueueError>, done: Result<(), GpuQueueError>) -> Result<(), GpuQueueError> {
    match done {
        Err(error @ GpuQueueError::ContextLost { .. }) => {
            *lost = Err(error);
            Ok(())
        }
        other => other,
    }
}

impl Drop for QueueSet {
    fn drop(&mut self) {
        // All queues are deleted, also if one cannot be.
        let failed = self.queues.iter_mut().filter_map(|queue| queue.delete().err()).last();
        if let Some(error) = failed {
            tracing::error!(%error, "leaking the memory of GPU queues that are still in use");
            return;
        }
        if self.memory.gate.is_lost() {
            // CUDA does not unpin memory of a lost context. Registers are no memory: nobody stores to them any more,
            // and as long as they are held nobody else can open their device.
            self.memory.bells.retain(|bell| !bell.are_registers());
            return;
        }
        // What drives could write to is unmapped before its owners let go of it.
        self.queues.clear();
        // SAFETY: it is dropped here alone, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use warprow_soft_controller::{Namespace as Space, RamBacking, SoftController};

    fn drive(entries: u32) -> (Arc<Controller>, Namespace) {
        let builder = SoftController::builder().queue_entries(entries).max_transfer(8192);
        let function = builder.namespace(Space::new(RamBacking::new(1 << 20).unwrap())).build().unwrap();
        let clock = Arc::new(warprow_dma::SystemClock::new());
        let controller = Controller::open(function, clock, Default::default()).unwrap();
        let namespace = controller.namespace(1).unwrap();
        (controller, namespace)
    }

    fn options(batches: u32, landing_stride: u32) -> QueueSetOptions {
        QueueSetOptions {
            batches,
            landing_stride,
            windows: Vec::new(),
            timeout: Duration::from_secs(1),
            doorbells: DoorbellAccess::default(),
            memory: MemoryPlacement::default(),
            host_doorbells: Vec::new(),
            writable: None,
        }
    }

    fn shape_of(drive: &(Arc<Controller>, Namespace), options: &QueueSetOptions) -> Result<Shape, GpuQueueError> {
        Shape::of(drive, options, options.windows.first().copied().unwrap_or_default())
    }

    #[test]
    fn a_place_holds_a_window_and_the_list_names_its_pages() {
        let drive = |most: usize, lba: u32| {
            let builder = SoftController::builder().max_transfer(most);
            let function = builder.namespace(Space::new(RamBacking::new(1 << 20).unwrap()).lba(lba)).build().unwrap();
            let controller = Controller::open(function, Arc::new(warprow_dma::SystemClock::new()), Default::default());
            let controller = controller.unwrap();
            let namespace = controller.namespace(1).unwrap();
            (controller, namespace)
        };
        let by = |shift, stride| QueueSetOptions { windows: vec![ReadWindow { shift, gap: 3 }], ..options(2, stride) };
        let (small, large) = (drive(1 << 20, 512), drive(1 << 20, 4096));
        // Two pages need no list.
        for (drive, shift, stride, entries) in
            [(&small, 0, 4096, 0), (&small, 4, 8192, 0), (&small, 5, 16384, 2048), (&large, 4, 65536, 8192)]
        {
            let shape = shape_of(drive, &by(shift, 4096)).unwrap();
            assert_eq!((shape.landing_stride, shape.list_entries()), (stride, entries), "{shift}");
        }
        assert_eq!(shape_of(&small, &by(2, 8192)).unwrap().landing_stride, 8192, "rows are longer than a window");
        for (drive, shift) in [(&large, 5), (&small, 17), (&self::drive(4096), 5)] {
            shape_of(drive, &by(shift, 4096)).expect_err("too long");
        }
        let set = QueueSet::on_host(&[large], &by(2, 4096), Arc::new(Gate::on_host().unwrap())).unwrap();
        let (queue, descriptor) = (&set.queues[0], set.descriptors[0]);
        let warprow_driver::QueuePairMemory::Host(host) = &queue.memory().sq.memory else { panic!("pinned memory") };
        let list = (descriptor.prp_list - host.iova()) as usize;
        assert_eq!((descriptor.window, descriptor.landing_stride), (3 << 8 | 2, 16384));
        for page in 0..2 * LANES as usize * 4 {
            let address = host.memory().load_u64(list + page * 8);
            assert_eq!(address, descriptor.landing_iova + page as u64 * 4096);
        }
    }

    #[test]
    fn command_identifiers_are_distinct_and_never_all_ones() {
        let drive = drive(4096);
        for batches in 1..=MAX_BATCHES as u32 {
            let shape = shape_of(&drive, &options(batches, 512)).unwrap();
            let commands = LANES * batches;
            assert_eq!(shape.batches, batches);
            assert!(commands < shape.sizes.entries && commands < shape.sizes.completion_entries);
            assert!(shape.generations > 1);
            let cid = |generation: u32, index| u16::try_from(generation << shape.cid_shift | index).unwrap();
            let cids =
                (0..shape.generations).flat_map(|generation| (0..commands).map(move |index| cid(generation, index)));
            let distinct: HashSet<u16> = cids.collect();
            assert_eq!(distinct.len() as u32, shape.generations * commands, "{batches} batches");
            assert!(!distinct.contains(&0xffff), "{batches} batches");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let wide = drive(4096);
        for (batches, stride, word) in
            [(1, 256, "256 B"), (1, 768, "768 B"), (1, 16384, "16384 B"), (0, 512, "0 batches"), (9, 512, "9 batches")]
        {
            let error = shape_of(&wide, &options(batches, stride)).expect_err("it should not fit").to_string();
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(shape_of(&wide, &options(8, 8192)).unwrap().landing_bytes, 16 << 20);
        // Shorter queues carry fewer batches, and as short as a batch they carry none.
        assert_eq!(shape_of(&drive(600), &options(8, 512)).unwrap().batches, 2);
        assert_eq!(shape_of(&drive(257), &options(8, 512)).unwrap().batches, 1);
        let error = shape_of(&drive(256), &options(1, 512)).expect_err("too short").to_string();
        assert!(error.contains("256 entries") && error.contains("257"), "{error}");
        // How much a command reads hangs on the namespace.
        let error = shape_of(&(wide.0, drive(4096).1), &options(1, 512)).expect_err("another drive's").to_string();
        assert!(error.contains("not described by this queue's controller"), "{error}");
        let (controller, before) = drive(4096);
        let after = controller.format(&warprow_driver::FormatRequest::new(1, 4096), |_| {}).unwrap();
        let error =
            shape_of(&(controller.clone(), before), &options(1, 4096)).expect_err("as it was before").to_string();
        assert!(error.contains("described before a format"), "{error}");
        shape_of(&(controller, after), &options(1, 4096)).unwrap();
    }
}
