//! The controller as its registers and admin queue see it: bring-up, reset, the admin queue, what is under way.

use std::sync::atomic::Ordering;
use std::time::Duration;

use warprow_dma::{DmaMemory, PAGE};
use warprow_spec::async_event::{AsyncEventKind, ErrorEvent};
use warprow_spec::log::LogPageId;
use warprow_spec::{Sqe, Status};

use crate::admin::Reply;
use crate::config::Config;
use crate::core::Core;
use crate::error_log::{ERRORS_KEPT, ErrorRecord};
use crate::events::Events;
use crate::failure::Failure;
use crate::fault::Fault;
use crate::features::Features;
use crate::format_job::FormatJob;
use crate::iommu::{Dma, Iommu, Region, Segment};
use crate::namespace::Namespace;
use crate::offload::{MappedPlace, Mapping};
use crate::progress::{StepProgress, earlier};
use crate::queue::{Completion, Cq, Sq};
use crate::registers::{Effect, Registers};
use crate::smart_history::SmartHistory;

/// How soon a full admin completion queue is looked at again.
const RETRY: Duration = Duration::from_millis(1);

/// The admin queue pair.
#[derive(Debug)]
struct AdminQueue {
    sq: Sq,
    cq: Cq,
}

/// An admin command that a fault delays.
#[derive(Debug)]
struct Delayed {
    due: Duration,
    sqe: [u64; 8],
}

/// Everything behind the control lock.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) iommu: Iommu,
    pub(crate) bus_master: bool,
    pub(crate) regs: Registers,
    pub(crate) dma: Dma,
    pub(crate) segments: Vec<Segment>,
    /// By NSID - 1.
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) features: Features,
    /// Pages of host memory that it was lent.
    pub(crate) borrowed: Vec<u64>,
    pub(crate) events: Events,
    pub(crate) formats: Vec<FormatJob>,
    /// Namespaces whose attributes changed since the log page of that name was read.
    pub(crate) changed_namespaces: Vec<u32>,
    pub(crate) history: SmartHistory,
    /// Failed admin commands.
    pub(crate) errors: Vec<ErrorRecord>,
    /// Which doorbells have a queue, by their place: submission and completion queues in turn.
    pub(crate) queues: Vec<bool>,
    admin: Option<AdminQueue>,
    delayed: Vec<Delayed>,
    /// Faults in the completions of commands that end later, by CID.
    struck: Vec<(u16, Fault)>,
}

impl Control {
    pub(crate) fn new(config: &Config, namespaces: Vec<Namespace>) -> Self {
        let volatile = namespaces.iter().any(|namespace| namespace.backing.is_volatile());
        Self {
            iommu: Iommu::new(),
            bus_master: false,
            regs: Registers::new(config),
            dma: Dma::default(),
            segments: Vec::new(),
            namespaces,
            features: Features::new(config, volatile),
            borrowed: Vec::new(),
            events: Events::default(),
            formats: Vec::new(),
            changed_namespaces: Vec::new(),
            history: SmartHistory::new(),
            errors: Vec::new(),
            queues: vec![false; usize::from(config.queue_pairs) * 2 + 2],
            admin: None,
            delayed: Vec::new(),
            struck: Vec::new(),
        }
    }

    /// Gives the workers the current state of things: mappings, namespaces, page size, whether to run.
    pub(crate) fn publish(&mut self, core: &Core) {
        let regions = self.iommu.snapshot();
        self.dma.replace(regions.clone());
        if let Some(admin) = &mut self.admin {
            admin.sq.resolve(&mut self.dma);
            admin.cq.resolve(&mut self.dma);
        }
        let running = self.bus_master && self.is_ready();
        let views: Vec<_> = (0..self.namespaces.len())
            .map(|i| Some(self.namespaces[i].view(self.is_formatting(i), self.features.write_cache())))
            .collect();
        for mut shard in core.lock_shards() {
            // Engines may still use what was mapped.
            shard.io.settle();
            shard.io.dma.replace(regions.clone());
            shard.io.page = self.regs.cc.page_bytes();
            shard.io.namespaces.clone_from(&views);
            shard.burst = self.features.burst();
            shard.prefetch = shard.io.prefetches();
            shard.depth = shard.io.depth();
            shard.direct = !core.config.holds_commands() && !shard.io.has_engines();
            shard.running = running;
            shard.resolve();
            if let Some(offload) = &mut shard.offload {
                let plain = regions.iter().filter(|region| region.remote.is_none() || region.peer.is_some());
                let mapping = |region: &Region| Mapping {
                    iova: region.iova,
                    len: region.memory.len() as u64,
                    place: match region.peer {
                        None => MappedPlace::Host(region.memory.clone()),
                        Some(address) => MappedPlace::Peer { address },
                    },
                    writable: region.writable,
                };
                offload.remap(&plain.map(mapping).collect::<Vec<_>>());
            }
        }
        // What the admin queue could not do before, it may be able to do now.
        core.control_due.store(0, Ordering::Relaxed);
    }

    /// Ready to process commands: enabled, RDY, not shut down.
    fn is_ready(&self) -> bool {
        self.regs.cc.en() && self.regs.csts.rdy() && self.regs.csts.shst().0 == 0
    }

    pub(crate) fn read(&mut self, core: &Core, at: u64) -> u32 {
        self.advance(core);
        self.regs.read(at, core.is_fatal())
    }

    pub(crate) fn write(&mut self, core: &Core, at: u64, value: u32) {
        self.advance(core);
        match self.regs.write(at, value, core.now(), &core.config) {
            Effect::None => {}
            Effect::Enable => self.enable(core),
            Effect::Disable => self.controller_reset(core),
            Effect::Shutdown => {
                let flushed = self.namespaces.iter().try_for_each(|namespace| namespace.backing.flush());
                if flushed.is_err() {
                    core.fatal(StepProgress::default());
                }
                self.history.shut_down = true;
                self.publish(core);
            }
            Effect::SubsystemReset => {
                self.controller_reset(core);
                self.regs.reset(true);
            }
        }
        self.schedule(core, None);
    }

    fn enable(&mut self, core: &Core) {
        self.history.shut_down = false;
        if !self.regs.are_valid() {
            self.regs.cancel_turn();
            core.fatal(StepProgress::default());
            return;
        }
        reset_doorbells(core);
        let regs = &self.regs;
        let mut admin = AdminQueue {
            sq: Sq::new(0, regs.asq, u32::from(regs.aqa.asqs_z()) + 1, core.sq_doorbell(0), 0),
            cq: Cq::new(0, regs.acq, u32::from(regs.aqa.acqs_z()) + 1, core.cq_doorbell(0), Some(0)),
        };
        admin.sq.resolve(&mut self.dma);
        admin.cq.resolve(&mut self.dma);
        self.admin = Some(admin);
        self.advance(core);
    }

    /// What CC.EN = 0 does at once: all queues and commands are forgotten. Data that has reached the write cache stays.
    pub(crate) fn controller_reset(&mut self, core: &Core) {
        core.lock_shards().iter_mut().for_each(|shard| shard.reset());
        self.admin = None;
        self.queues.fill(false);
        self.delayed.clear();
        self.struck.clear();
        self.events.reset();
        self.formats.iter_mut().for_each(|job| job.sqe = None);
        self.features.reset();
        self.borrowed.clear();
        core.recover();
        reset_doorbells(core);
        self.advance(core);
        self.publish(core);
    }

    /// The state after power-on. A format that was under way has not happened.
    pub(crate) fn power_cycle(&mut self, core: &Core) {
        self.history.power_cycles += 1;
        self.history.unsafe_shutdowns += u64::from(!self.history.shut_down);
        self.history.powered_on = core.now();
        self.history.shut_down = true;
        self.bus_master = false;
        self.formats.clear();
        self.changed_namespaces.clear();
        self.regs.reset(false);
        self.controller_reset(core);
        core.revive();
    }

    fn advance(&mut self, core: &Core) {
        let was_ready = self.is_ready();
        self.regs.advance(core.now());
        if self.is_ready() != was_ready {
            self.publish(core);
        }
    }

    /// One round of the admin queue and of whatever is due.
    pub(crate) fn step(&mut self, core: &Core) -> StepProgress {
        let mut progress = StepProgress::default();
        self.collect_events(core);
        if core.is_gone() {
            core.control_due.store(u64::MAX, Ordering::Relaxed);
            core.admin_seen.store(u32::from_le(core.doorbells.load_u32(0)), Ordering::Relaxed);
            return progress;
        }
        self.advance(core);
        self.finish_formats(core, &mut progress);
        let tail = u32::from_le(core.doorbells.load_u32(0));
        let mut blocked = false;
        if self.bus_master && self.is_ready() && !core.is_in_trouble() {
            blocked = self.run(core, &mut progress);
        }
        if let Some(vector) = self.admin.as_mut().and_then(|admin| admin.cq.take_interrupt()) {
            core.interrupts.raise(vector);
        }
        core.admin_seen.store(tail, Ordering::Relaxed);
        self.schedule(core, blocked.then(|| core.now() + RETRY));
        progress
    }

    /// Sets when the workers have to call [`step`](Self::step) without being asked.
    fn schedule(&mut self, core: &Core, retry: Option<Duration>) {
        let delayed = self.delayed.iter().map(|delayed| delayed.due).min();
        let formats = self.formats.iter().map(|job| job.due).min();
        let due = [self.regs.next_due(), delayed, formats, retry].into_iter().fold(None, earlier);
        let due = due.map_or(u64::MAX, |due| u64::try_from(due.as_nanos()).unwrap_or(u64::MAX));
        core.control_due.store(due, Ordering::Relaxed);
    }

    fn collect_events(&mut self, core: &Core) {
        // Before looking: a shard that has some later says so again.
        core.events_wait.store(false, Ordering::Relaxed);
        for mut shard in core.lock_shards() {
            for event in shard.events.drain(..) {
                self.events.raise(AsyncEventKind::Error(event), LogPageId::ERROR);
            }
        }
    }

    /// Serves the admin queue; true if it has to be looked at again though the host does nothing.
    fn run(&mut self, core: &Core, progress: &mut StepProgress) -> bool {
        let now = core.now();
        let (due, rest) = self.delayed.drain(..).partition(|delayed| delayed.due <= now);
        self.delayed = rest;
        let due: Vec<Delayed> = due;
        for delayed in due {
            self.execute(core, delayed.sqe, None, progress);
        }
        loop {
            let Some(admin) = &mut self.admin else { return false };
            if admin.cq.update_head(&core.doorbells).is_err() {
                self.events.raise(AsyncEventKind::Error(ErrorEvent::INVALID_DOORBELL_VALUE), LogPageId::ERROR);
            }
            if !admin.cq.drain() {
                core.fatal(*progress);
                return false;
            }
            let waiting = match admin.sq.waiting(&core.doorbells) {
                Ok(waiting) => waiting,
                Err(_) => {
                    self.events.raise(AsyncEventKind::Error(ErrorEvent::INVALID_DOORBELL_VALUE), LogPageId::ERROR);
                    0
                }
            };
            // Completions of event requests come when they come, and overflow to a list of their own.
            if waiting == 0 || admin.cq.room() == 0 {
                let blocked = waiting > 0 || admin.cq.has_overflow();
                self.deliver_events(core, progress);
                return blocked;
            }
            let Some(sqe) = admin.sq.fetch() else {
                core.fatal(*progress);
                return false;
            };
            progress.fetched += 1;
            let fault = core.faults.strike(0, &Sqe::from_words(sqe));
            match fault {
                Some(Fault::Fatal) => {
                    core.fatal(*progress);
                    return false;
                }
                Some(Fault::Disappear) => {
                    core.disappear();
                    return false;
                }
                Some(Fault::Delay(by)) => self.delayed.push(Delayed { due: now + by, sqe }),
                fault => self.execute(core, sqe, fault, progress),
            }
            if core.is_in_trouble() {
                return false;
            }
        }
    }

    fn execute(&mut self, core: &Core, words: [u64; 8], fault: Option<Fault>, progress: &mut StepProgress) {
        let sqe = Sqe::from_words(words);
        let result = match fault {
            Some(Fault::Status(status)) => Err(Failure { status, parameter: u16::MAX }),
            Some(Fault::Swallow) => return,
            _ => self.admin(core, &sqe),
        };
        if fault == Some(Fault::Corrupt) {
            self.corrupt();
        }
        let (dw0, status) = match result {
            Ok(Reply::Done(dw0)) => (dw0, Status::SUCCESS),
            Ok(Reply::Later) => {
                self.struck.extend(fault.map(|fault| (sqe.cid(), fault)));
                return;
            }
            Err(failure) => (0, self.record(core, &sqe, failure)),
        };
        self.complete_struck(core, sqe.cid(), fault, (dw0, status), progress);
    }

    /// Posts what a fault makes of a completion.
    fn complete_struck(
        &mut self,
        core: &Core,
        cid: u16,
        fault: Option<Fault>,
        (dw0, status): (u32, Status),
        progress: &mut StepProgress,
    ) {
        let (cid, times) = match fault {
            Some(Fault::Drop) => {
                progress.posted += 1;
                return;
            }
            Some(Fault::WrongCid(cid)) => (cid, 1),
            Some(Fault::Duplicate) => (cid, 2),
            _ => (cid, 1),
        };
        for _ in 0..times {
            self.post(core, cid, dw0, status, progress);
        }
    }

    /// Damages a bit of what the last command moved.
    fn corrupt(&mut self) {
        if let Some(&segment) = self.segments.last() {
            let memory = self.dma.memory(segment);
            let at = segment.offset + segment.len / 2;
            memory.store_u8(at, memory.load_u8(at) ^ 0x10);
            // Whoever does not take it has ended the session.
            let _ = self.dma.push(&[segment]);
        }
    }

    /// Completes an admin command that was to end later.
    pub(crate) fn complete(&mut self, core: &Core, cid: u16, dw0: u32, status: Status, progress: &mut StepProgress) {
        let at = self.struck.iter().position(|struck| struck.0 == cid);
        let fault = at.map(|at| self.struck.swap_remove(at).1);
        self.complete_struck(core, cid, fault, (dw0, status), progress);
    }

    /// Posts a completion of the admin queue, or keeps it until there is room.
    fn post(&mut self, core: &Core, cid: u16, dw0: u32, status: Status, progress: &mut StepProgress) {
        let Some(admin) = &mut self.admin else { return };
        let completion = Completion { dw0, sqhd: admin.sq.head(), sqid: 0, cid, status };
        if !admin.cq.post_extra(completion) {
            core.fatal(*progress);
        }
        progress.posted += 1;
    }

    /// Notes a failed admin command in the error log.
    pub(crate) fn record(&mut self, core: &Core, sqe: &Sqe, failure: Failure) -> Status {
        if self.errors.len() >= ERRORS_KEPT {
            self.errors.remove(0);
        }
        let count = core.count_error();
        self.errors.push(ErrorRecord { count, sqid: 0, cid: sqe.cid(), failure, nsid: sqe.nsid, lba: 0 });
        failure.status.with_more(true)
    }

    /// Looks for stores to doorbells of queues that do not exist.
    pub(crate) fn check_stray_doorbells(&mut self, core: &Core) {
        if !self.is_ready() {
            return;
        }
        let stride = 4 << core.config.dstrd;
        for (i, _) in self.queues.iter().enumerate().skip(2).filter(|(_, exists)| !**exists) {
            if core.doorbells.load_u32(i * stride) != NO_QUEUE {
                core.doorbells.store_u32(i * stride, NO_QUEUE);
                self.events.raise(AsyncEventKind::Error(ErrorEvent::INVALID_DOORBELL), LogPageId::ERROR);
                core.control_due.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// What the doorbell of a queue that does not exist holds until somebody writes it.
pub(crate) const NO_QUEUE: u32 = u32::MAX;

fn reset_doorbells(core: &Core) {
    let stride = 4 << core.config.dstrd;
    for i in 0..usize::from(core.config.queue_pairs) * 2 + 2 {
        core.doorbells.store_u32(i * stride, if i < 2 { 0 } else { NO_QUEUE });
    }
    core.admin_seen.store(0, Ordering::Relaxed);
}

/// Memory for the doorbells of `queue_pairs` I/O queue pairs and the admin queue, bytes.
pub(crate) fn doorbell_bytes(queue_pairs: u16, dstrd: u8) -> usize {
    (usize::from(queue_pairs) * 2 + 2) * (4 << dstrd)
}

/// Allocates the doorbells.
pub(crate) fn allocate_doorbells(config: &Config) -> Result<DmaMemory, warprow_dma::AllocateError> {
    let bytes = doorbell_bytes(config.queue_pairs, config.dstrd);
    if !config.shared_doorbells {
        return DmaMemory::allocate(bytes, warprow_dma::MemoryKind::Anonymous);
    }
    // The file is laid out as BAR0 is, so that offsets are the same in both.
    let whole = DmaMemory::allocate(PAGE + bytes, warprow_dma::MemoryKind::Memfd)?;
    Ok(whole.part(PAGE, whole.len() - PAGE))
}
