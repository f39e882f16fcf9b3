use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use warprow_dma::{DmaMemory, Doorbell, Function, FunctionError, MemoryKind, PeerMemory, Wake};
use warprow_spec::async_event::AsyncEventKind;
use warprow_spec::log::LogPageId;
use warprow_spec::registers::Cc;
use warprow_spec::registers::offset::{CC, DOORBELLS};

use crate::backing::MediaError;
use crate::builder::{ControllerBuildError, ControllerBuilder};
use crate::control::doorbell_bytes;
use crate::core::Core;
use crate::fault::{FaultRules, StopSwitch};
use crate::interrupt::InterruptSink;
use crate::iommu::RemoteMemory;
use crate::offload::OffloadFailure;
use crate::parker::Parkers;
use crate::progress::{StepProgress, earlier};
use crate::turn_gate::OffloadCounts;
use crate::watch::CommandTimes;
use crate::workers;
use crate::write_cache::PowerCut;

/// An NVMe controller in this process.
///
/// ```
/// use warprow_dma::Function;
/// use warprow_soft_controller::{Namespace, RamBacking, SoftController};
///
/// // Two namespaces, of which the second has LBAs of 4096 bytes.
/// let drive = SoftController::builder()
///     .name("example")
///     .namespace(Namespace::new(RamBacking::new(16 << 20)?))
///     .namespace(Namespace::new(RamBacking::new(16 << 20)?).lba(4096))
///     .build()?;
/// assert_eq!(drive.name(), "example");
/// // CSTS.RDY: nobody has enabled it yet.
/// assert_eq!(drive.read_u32(0x1c)? & 1, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SoftController {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for SoftController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftController").field("name", &self.core.config.name).finish_non_exhaustive()
    }
}

impl Drop for SoftController {
    fn drop(&mut self) {
        self.core.stop.store(true, Ordering::SeqCst);
        self.core.leave_turn();
        self.core.wake_all();
        for thread in self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A worker that panicked has said so; nothing is left to do about it.
            let _ = thread.join();
        }
    }
}

impl SoftController {
    /// Begins a controller with one worker and no namespace.
    pub fn builder() -> ControllerBuilder {
        ControllerBuilder::default()
    }

    pub(crate) fn start(core: Arc<Core>) -> Result<Arc<Self>, ControllerBuildError> {
        let controller = Arc::new(Self { core, threads: Mutex::new(Vec::new()) });
        let threads = workers::start(&controller.core)?;
        *controller.threads.lock().unwrap_or_else(PoisonError::into_inner) = threads;
        Ok(controller)
    }

    /// The faults of this controller, to inject some at any time.
    pub fn faults(&self) -> &FaultRules {
        &self.core.faults
    }

    /// Why the [offload](ControllerBuilder::offload) failed, if it did: the controller set CSTS.CFS then, once, and its worker executes
    /// all commands from then on.
    pub fn offload_failure(&self) -> Option<OffloadFailure> {
        self.core.offload_failure()
    }

    /// Who executed the I/O commands since the start: the offload or the worker. `None` without an
    /// [offload](ControllerBuilder::offload).
    pub fn offload_counts(&self) -> Option<OffloadCounts> {
        self.core.gate.as_ref().map(|gate| gate.counts())
    }

    /// Does everything that can be done at `now`, without waiting: looks at every doorbell once, executes, completes.
    /// `now` counts from the controller's birth and never goes back. For controllers built with
    /// [`stepped`](ControllerBuilder::stepped); of others the workers do this, and `now` is ignored.
    pub fn step(&self, now: Duration) -> StepProgress {
        let core = &*self.core;
        core.set_now(now);
        let mut progress = StepProgress::default();
        for worker in 0..core.seats.len() {
            progress.merge(core.step(worker, 1));
        }
        if progress.is_idle() {
            core.lock_control().check_stray_doorbells(core);
        }
        progress.next = (0..core.seats.len()).map(|worker| core.next_due(worker)).fold(None, earlier);
        progress
    }

    /// How many writes a power cut may lose now: those in volatile caches, not yet flushed.
    pub fn volatile_writes(&self) -> usize {
        let control = self.core.lock_control();
        control.namespaces.iter().filter_map(|namespace| namespace.cache.as_ref()).map(|c| c.commands().len()).sum()
    }

    /// Writes the sidecar of a drive in a file that has none, with what its URI says (`lba=`, `serial=`). Opening a
    /// drive does not write it, because what the URI says may be wrong. To be called before something is written to the
    /// drive that relies on it. With `always`, the sidecar is also written if there is one, to find out before a Format
    /// NVM whether it can be written.
    pub fn record(&self, always: bool) -> std::io::Result<()> {
        self.core.lock_control().namespaces.iter_mut().try_for_each(|namespace| namespace.record(always))
    }

    /// Cuts the power and brings it back: the controller is then as after power-on, with the writes that were durable,
    /// and with those of the others that `cut` lets survive. The host keeps its power, so mappings stay; bus master is
    /// off. Returns how many writes were volatile. Fails if the backing fails, as files may.
    pub fn power_cut(&self, cut: PowerCut) -> Result<usize, MediaError> {
        let core = &*self.core;
        let mut control = core.lock_control();
        let mut rng = fastrand::Rng::with_seed(if let PowerCut::Random(seed) = cut { seed } else { 0 });
        let in_flight = match cut {
            PowerCut::KeepAll => 1.0,
            PowerCut::Random(_) => rng.f64(),
            _ => 0.0,
        };
        core.lock_shards().iter_mut().for_each(|shard| shard.cut(|| rng.f64() < in_flight));
        let mut commands = Vec::new();
        let caches: Vec<_> = control.namespaces.iter().filter_map(|namespace| namespace.cache.clone()).collect();
        caches.iter().for_each(|cache| commands.append(&mut cache.commands()));
        commands.sort_unstable();
        let choice = cut.choose(&commands, &mut rng);
        let result = caches.iter().try_for_each(|cache| cache.cut(&choice, &mut rng));
        control.power_cycle(core);
        result.map(|()| commands.len())
    }

    /// Accesses of the controller to addresses that the host had not mapped. On hardware each is a fault of the IOMMU;
    /// here the command ends with Data Transfer Error, or, if a queue was meant, CSTS.CFS is set.
    pub fn dma_faults(&self) -> u64 {
        let control = self.core.lock_control();
        let shards = self.core.lock_shards();
        control.dma.faults + shards.iter().map(|shard| shard.io.dma.faults).sum::<u64>()
    }

    /// Starts to record when I/O commands come and end, and forgets what was recorded before. Costs one reading of the
    /// clock for each round that completes commands.
    pub fn watch(&self) {
        let _control = self.core.lock_control();
        self.core.lock_shards().iter_mut().for_each(|shard| shard.watched = Some(CommandTimes::default()));
    }

    /// What was recorded since [`watch`](Self::watch), which covers all completions that the host can have seen;
    /// without a call of `watch`, nothing.
    pub fn watched(&self) -> CommandTimes {
        let _control = self.core.lock_control();
        let shards = self.core.lock_shards();
        shards.iter().filter_map(|shard| shard.watched).fold(CommandTimes::default(), CommandTimes::merge)
    }

    /// When the clock of [`CommandTimes`] began. `None`: the controller is stepped, and its clock is the caller's.
    pub fn clock_began(&self) -> Option<Instant> {
        self.core.began()
    }

    /// Reports an event to the host, as soon as there is an Asynchronous Event Request for it.
    pub fn raise_event(&self, kind: AsyncEventKind, page: LogPageId) {
        self.core.lock_control().events.raise(kind, page);
        self.core.control_due.store(0, Ordering::Relaxed);
        self.core.wake_all();
    }

    /// The doorbells as memory, for submitters that store to them by other means than [`Doorbell::ring`], such as a
    /// GPU. They begin at offset 1000h of BAR0, and of their file if they [have
    /// one](ControllerBuilder::shared_doorbells). While the result or a clone of it lives, the workers look at the
    /// doorbells without being woken: continuously for 5 ms after the last command, then for 50 ms about every 50 to
    /// 100 µs, and then once a millisecond.
    pub fn doorbell_memory(&self) -> DmaMemory {
        let memory = self.core.silent_doorbells.clone();
        self.core.wake_all();
        memory
    }

    /// Sets where interrupts for new completions go; `None` for no interrupts, which hosts that poll need not have.
    pub fn set_interrupts(&self, sink: Option<Arc<dyn InterruptSink>>) {
        self.core.interrupts.set(sink);
        self.core.wake_all();
    }

    /// Interrupt vectors: one for the admin queue and one for each I/O queue pair.
    pub fn interrupt_vectors(&self) -> u16 {
        self.core.config.queue_pairs + 1
    }

    /// Maps `memory` at an I/O virtual address that the host has chosen; the controller writes there only if `writable`. False if
    /// some of the addresses are taken or do not exist.
    pub fn map_at(&self, iova: u64, memory: &DmaMemory, writable: bool) -> bool {
        self.map_region(iova, memory, writable, None)
    }

    /// As [`map_at`](Self::map_at), for host memory that the controller cannot reach itself. The controller works on
    /// `copy`, which is as long as that memory, and `remote` brings the copy or the host up to date. A Host Memory
    /// Buffer in such memory is refused.
    pub fn map_remote_at(&self, iova: u64, copy: &DmaMemory, writable: bool, remote: Arc<dyn RemoteMemory>) -> bool {
        self.map_region(iova, copy, writable, Some(remote))
    }

    fn map_region(&self, iova: u64, memory: &DmaMemory, writable: bool, remote: Option<Arc<dyn RemoteMemory>>) -> bool {
        let mut control = self.core.lock_control();
        let mapped = control.iommu.map_at(iova, memory, writable, remote);
        if mapped {
            control.publish(&self.core);
        }
        mapped
    }

    /// To be called when the host has gone: DMA and all mappings end, no interrupt is raised any more, and the
    /// controller is as after a function reset. Returns when nothing reaches the host's memory any more.
    pub fn abandon(&self) {
        self.core.interrupts.set(None);
        let mut control = self.core.lock_control();
        control.bus_master = false;
        control.iommu.clear();
        control.regs.reset(false);
        control.controller_reset(&self.core);
    }

    fn check(&self, what: &'static str, at: u64, width: u64) -> Result<u64, FunctionError> {
        if self.core.is_gone() {
            return Err(FunctionError::Gone { function: self.core.config.name.clone() });
        }
        let config = &self.core.config;
        let len = DOORBELLS + doorbell_bytes(config.queue_pairs, config.dstrd) as u64;
        if !at.is_multiple_of(width) || at >= len || len - at < width {
            return Err(FunctionError::OutsideBar { function: config.name.clone(), what, offset: at });
        }
        Ok(at)
    }

    fn write(&self, at: u64, value: u32) {
        let core = &*self.core;
        if at == CC && !Cc::from_bits(value).en() && core.faults.disobeys(StopSwitch::Enable) {
            return;
        }
        if at < DOORBELLS {
            core.lock_control().write(core, at, value);
        } else if (at - DOORBELLS).is_multiple_of(4 << core.config.dstrd) {
            warprow_dma::order::before_doorbell();
            core.doorbells.store_u32((at - DOORBELLS) as usize, value.to_le());
        }
        core.wake_all();
    }
}

impl Function for SoftController {
    fn name(&self) -> &str {
        &self.core.config.name
    }

    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        let at = self.check("a register of 4 bytes", offset, 4)?;
        // Doorbells are write-only and read as zero.
        Ok(if at < DOORBELLS { self.core.lock_control().read(&self.core, at) } else { 0 })
    }

    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        let at = self.check("a register of 8 bytes", offset, 8)?;
        if at >= DOORBELLS {
            return Ok(0);
        }
        let mut control = self.core.lock_control();
        let low = control.read(&self.core, at);
        Ok(u64::from(low) | u64::from(control.read(&self.core, at + 4)) << 32)
    }

    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        let at = self.check("a register of 4 bytes", offset, 4)?;
        self.write(at, value);
        Ok(())
    }

    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        let at = self.check("a register of 8 bytes", offset, 8)?;
        self.write(at, value as u32);
        self.write(at + 4, (value >> 32) as u32);
        Ok(())
    }

    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError> {
        let core = &*self.core;
        let outside = || FunctionError::OutsideBar { function: core.config.name.clone(), what: "a doorbell", offset };
        let at = self.check("a doorbell", offset, 4)?.checked_sub(DOORBELLS).ok_or_else(outside)? as usize;
        let stride = 4 << core.config.dstrd;
        if !at.is_multiple_of(stride) {
            return Err(outside());
        }
        // Which worker will look at a tail is settled when the queue is created, by its completion queue. Heads wake
        // nobody: a worker that waits for room in a completion queue does not sleep.
        let reader: Option<Arc<dyn Wake>> = match &*core.seats {
            _ if at / stride % 2 == 1 => None,
            [only] => Some(only.parker.clone()),
            seats => Some(Arc::new(Parkers(seats.iter().map(|seat| seat.parker.clone()).collect()))),
        };
        Doorbell::memory(core.doorbells.clone(), at, reader).ok_or_else(outside)
    }

    fn doorbell_memory(&self) -> Option<DmaMemory> {
        Some(Self::doorbell_memory(self))
    }

    fn wake(&self) {
        self.core.rouse();
    }

    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
        let core = &*self.core;
        let mut control = core.lock_control();
        let iova = control.iommu.map(memory).ok_or_else(|| FunctionError::Map {
            function: core.config.name.clone(),
            len: memory.len(),
            why: "no gap of I/O virtual addresses is large enough; unmap memory that is no longer used".to_owned(),
        })?;
        control.publish(core);
        Ok(iova)
    }

    fn favours_peer_memory(&self) -> bool {
        self.core.gate.as_ref().is_some_and(|gate| gate.has_offload())
    }

    /// An offload reaches the memory itself; the worker goes by copies.
    fn map_peer(&self, memory: &Arc<dyn PeerMemory>) -> Result<u64, FunctionError> {
        let core = &*self.core;
        let refused = |why: String| FunctionError::Map { function: core.config.name.clone(), len: memory.bytes(), why };
        let copy =
            DmaMemory::allocate(memory.bytes(), MemoryKind::Anonymous).map_err(|error| refused(error.to_string()))?;
        let mut control = core.lock_control();
        for mut shard in core.lock_shards() {
            shard.offload.as_mut().map_or(Ok(()), |offload| offload.admit(&**memory)).map_err(refused)?;
        }
        let full = "no gap of I/O virtual addresses is large enough; unmap memory that is no longer used";
        let iova = control.iommu.map_peer(memory, &copy).ok_or_else(|| refused(full.to_owned()))?;
        control.publish(core);
        Ok(iova)
    }

    fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
        let core = &*self.core;
        let mut control = core.lock_control();
        if !control.iommu.unmap(iova) {
            return Err(FunctionError::Map {
                function: core.config.name.clone(),
                len: 0,
                why: format!("nothing is mapped at {iova:#x}"),
            });
        }
        control.publish(core);
        Ok(())
    }

    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
        let core = &*self.core;
        if core.faults.disobeys(StopSwitch::BusMaster) {
            return Ok(());
        }
        let mut control = core.lock_control();
        control.bus_master = enabled;
        control.publish(core);
        drop(control);
        core.wake_all();
        Ok(())
    }

    fn reset(&self) -> Result<(), FunctionError> {
        let core = &*self.core;
        if core.is_gone() {
            return Err(FunctionError::Gone { function: core.config.name.clone() });
        }
        if core.faults.disobeys(StopSwitch::Reset) {
            let function = core.config.name.clone();
            return Err(FunctionError::Unsupported { function, what: "resetting the function" });
        }
        core.faults.obey(StopSwitch::Enable);
        let mut control = core.lock_control();
        control.bus_master = false;
        control.regs.reset(false);
        control.controller_reset(core);
        Ok(())
    }
}
