//! The I/O queues of one worker, and what became of their commands.

use std::sync::PoisonError;
use std::time::Duration;

use warprow_spec::async_event::ErrorEvent;
use warprow_spec::{DataTransfer, NvmOpcode, Sqe, Status, StatusCode};

use crate::backing::MediaError;
use crate::cold::Cold;
use crate::core::Core;
use crate::error_log::{ERRORS_KEPT, ErrorRecord};
use crate::failure::Failure;
use crate::fault::Fault;
use crate::nvm::{Begun, Io};
use crate::offload::{LINGER, Offload, OffloadQueue, SeenDoorbell};
use crate::plan::Plan;
use crate::progress::StepProgress;
use crate::queue::{Completion, Cq, Sq};
use crate::waiting::{Waiting, WaitingCommand};
use crate::watch::CommandTimes;
use crate::write_cache;

/// Commands whose data is fetched ahead together.
const AHEAD: usize = 16;

/// Some of the I/O queues, with everything that a worker needs to serve them.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) io: Io,
    pub(crate) sqs: Vec<Sq>,
    pub(crate) cqs: Vec<Cq>,
    /// Commands are processed: the controller is ready and may use the bus.
    pub(crate) running: bool,
    /// Most commands taken from one queue before the next has its turn.
    pub(crate) burst: u32,
    /// Commands are executed as they are fetched, unless faults are about.
    pub(crate) direct: bool,
    /// Some completion queue was too full for a completion.
    overflows: bool,
    /// Data is fetched ahead of the commands' execution.
    pub(crate) prefetch: bool,
    /// Reads that backings are told of ahead, while they wait for disks; 0 if that helps none.
    pub(crate) depth: u32,
    cold: Cold,
    held: Waiting,
    /// Commands that engines work on, by token.
    engaged: Vec<Option<WaitingCommand>>,
    /// Tokens that no command has.
    idle_tokens: Vec<u32>,
    /// An engine had too much to do, and nothing has ended since.
    full: bool,
    ended: Vec<(u32, Result<(), MediaError>)>,
    order: u64,
    /// Which queue comes first in the next round.
    turn: usize,
    rng: fastrand::Rng,
    pub(crate) errors: Vec<ErrorRecord>,
    /// Error events for the admin queue to report.
    pub(crate) events: Vec<ErrorEvent>,
    /// Times of commands, if somebody wants to know them.
    pub(crate) watched: Option<CommandTimes>,
    /// Who executes plain reads instead, and the queues as it is told of them.
    pub(crate) offload: Option<Box<dyn Offload>>,
    /// How long it looks for commands behind the latest, and until when, if that is longer than usual.
    pub(crate) linger: Duration,
    pub(crate) lingers_until: Duration,
    pub(crate) offloaded: Vec<OffloadQueue>,
    /// Doorbells of the worker's own queues that end a turn.
    pub(crate) beside: Vec<SeenDoorbell>,
    /// What becomes of each queue in this round; empty: the worker serves them all.
    pub(crate) plans: Vec<Plan>,
    /// The offload had a turn in the latest round, and answered nothing.
    pub(crate) in_vain: bool,
    /// When the latest round ended, while submitters wake nobody.
    pub(crate) looked: Option<Duration>,
}

impl Shard {
    pub(crate) fn new(io: Io, seed: u64) -> Self {
        Self {
            io,
            sqs: Vec::new(),
            cqs: Vec::new(),
            running: false,
            burst: 1,
            direct: false,
            overflows: false,
            prefetch: false,
            depth: 0,
            cold: Cold::default(),
            held: Waiting::default(),
            engaged: Vec::new(),
            idle_tokens: Vec::new(),
            full: false,
            ended: Vec::new(),
            order: 0,
            turn: 0,
            rng: fastrand::Rng::with_seed(seed),
            errors: Vec::new(),
            events: Vec::new(),
            watched: None,
            offload: None,
            linger: LINGER,
            lingers_until: Duration::ZERO,
            offloaded: Vec::new(),
            beside: Vec::new(),
            plans: Vec::new(),
            in_vain: false,
            looked: None,
        }
    }

    /// Forgets all queues and commands, as a controller reset does.
    pub(crate) fn reset(&mut self) {
        self.forget_engaged();
        self.sqs.clear();
        self.cqs.clear();
        self.held.clear();
        self.events.clear();
        self.running = false;
    }

    /// Waits for what engines do, and forgets it.
    fn forget_engaged(&mut self) {
        self.io.settle();
        self.io.poll(&mut self.ended);
        self.ended.clear();
        self.engaged.clear();
        self.idle_tokens.clear();
        self.full = false;
    }

    /// Looks all rings up again after the mappings have changed.
    pub(crate) fn resolve(&mut self) {
        self.sqs.iter_mut().for_each(|sq| sq.resolve(&mut self.io.dma));
        self.cqs.iter_mut().for_each(|cq| cq.resolve(&mut self.io.dma));
    }

    /// Recomputes where each submission queue's completion queue stands.
    pub(crate) fn link(&mut self) {
        for cq in &mut self.cqs {
            cq.users = 0;
        }
        for sq in &mut self.sqs {
            if let Some(index) = self.cqs.iter().position(|cq| cq.id == sq.cqid) {
                sq.cq = index;
                self.cqs[index].users += 1;
            }
        }
    }

    /// Whether a doorbell tells of commands that were not fetched.
    pub(crate) fn has_work(&self, core: &Core) -> bool {
        self.running
            && (self.sqs.iter().any(|sq| sq.has_work(&core.doorbells))
                || self.cqs.iter().any(Cq::has_overflow)
                || self.is_to_announce(core))
    }

    /// When the next held command is due.
    pub(crate) fn next_due(&self, core: &Core) -> Option<Duration> {
        match self.held.next_due() {
            _ if !self.running => None,
            // Very soon, or when the host has moved a head.
            _ if self.is_to_announce(core) => Some(Duration::ZERO),
            // Whatever engines do may be done at any time.
            _ if self.io.in_flight() > 0 => Some(Duration::ZERO),
            due => due,
        }
    }

    /// Looks at every queue once.
    #[inline]
    pub(crate) fn step(&mut self, core: &Core) -> StepProgress {
        let progress = self.look(core);
        // Also for what others posted: completions of aborted commands.
        if core.interrupts.are_wanted() {
            self.announce(core);
        }
        progress
    }

    fn announce(&mut self, core: &Core) {
        for cq in self.cqs.iter_mut().filter(|cq| cq.is_to_announce()) {
            let (vector, doorbell) = cq.announce(&core.doorbells, core.now());
            if doorbell.is_err() {
                self.events.push(ErrorEvent::INVALID_DOORBELL_VALUE);
            }
            if let Some(vector) = vector {
                core.interrupts.raise(vector);
            }
        }
    }

    /// Whether an interrupt waits for its time.
    pub(crate) fn is_to_announce(&self, core: &Core) -> bool {
        core.interrupts.are_wanted() && self.cqs.iter().any(Cq::is_to_announce)
    }

    #[inline]
    fn look(&mut self, core: &Core) -> StepProgress {
        if !self.running || core.is_in_trouble() {
            self.looked = None;
            return StepProgress::default();
        }
        match &core.gate {
            None => self.look_at_all(core),
            Some(gate) => self.look_beside_offload(core, gate),
        }
    }

    /// The worker's part of a round.
    #[inline]
    pub(crate) fn look_at_all(&mut self, core: &Core) -> StepProgress {
        let mut progress = StepProgress::default();
        let direct = self.direct && !core.faults.is_active();
        if self.overflows && self.drain(core).is_err() {
            return core.fatal(progress);
        }
        match self.serve_queues(core, direct, &mut progress) {
            Ok(true) => {}
            Ok(false) => return progress,
            Err(RingFault) => return core.fatal(progress),
        }
        if !self.engaged.is_empty() && self.collect(core, &mut progress).is_err() {
            return core.fatal(progress);
        }
        if !self.held.is_empty() && !self.full && self.release(core, &mut progress).is_err() {
            return core.fatal(progress);
        }
        if let Some(watched) = self.watched.as_mut().filter(|_| progress.posted > 0) {
            watched.last_completion = Some(core.now());
            watched.completions += u64::from(progress.posted);
        }
        progress
    }

    /// Serves every queue once; `direct`: executes commands as they are fetched. False if the controller has disappeared.
    #[inline]
    fn serve_queues(&mut self, core: &Core, direct: bool, progress: &mut StepProgress) -> Result<bool, RingFault> {
        let count = self.sqs.len();
        if self.turn >= count {
            // Queues were deleted since the last round.
            self.turn = 0;
        }
        for i in 0..count {
            let index = if i + self.turn < count { i + self.turn } else { i + self.turn - count };
            match self.plans.get(index) {
                None | Some(Plan::Worker) if direct => self.serve(core, index, progress)?,
                None | Some(Plan::Worker) => self.admit(core, index, progress)?,
                Some(&plan) => self.execute_left(core, index, plan, progress)?,
            }
            // What has disappeared answers nothing more, on no queue.
            if core.is_gone() {
                return Ok(false);
            }
        }
        self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
        Ok(true)
    }

    /// Posts what found its queue full.
    #[cold]
    fn drain(&mut self, core: &Core) -> Result<(), RingFault> {
        self.overflows = false;
        for cq in self.cqs.iter_mut().filter(|cq| cq.has_overflow()) {
            if cq.update_head(&core.doorbells).is_err() {
                self.events.push(ErrorEvent::INVALID_DOORBELL_VALUE);
            }
            if !cq.drain() {
                return Err(RingFault);
            }
            self.overflows |= cq.has_overflow();
        }
        Ok(())
    }

    /// How many commands of a queue may be begun now.
    #[inline]
    fn ready(&mut self, core: &Core, index: usize) -> u32 {
        let sq = &mut self.sqs[index];
        let Ok(waiting) = sq.waiting(&core.doorbells) else {
            self.events.push(ErrorEvent::INVALID_DOORBELL_VALUE);
            return 0;
        };
        if waiting == 0 {
            return 0;
        }
        if let Some(watched) = &mut self.watched {
            watched.first_doorbell.get_or_insert_with(|| core.now());
        }
        let cq = &mut self.cqs[sq.cq];
        if cq.update_head(&core.doorbells).is_err() {
            self.events.push(ErrorEvent::INVALID_DOORBELL_VALUE);
        }
        waiting.min(cq.room()).min(self.burst)
    }

    /// Executes commands as they are fetched.
    #[inline]
    pub(crate) fn serve(&mut self, core: &Core, index: usize, progress: &mut StepProgress) -> Result<(), RingFault> {
        let ready = self.ready(core, index);
        // Looked at after the doorbells: a rule that was added before a command was submitted holds for it.
        if core.faults.is_active() {
            return self.admit(core, index, progress);
        }
        // Before any of them is executed: of commands submitted together none has completed for another.
        let fetched = write_cache::now();
        progress.fetched += ready;
        progress.posted += ready;
        let Self { io, sqs, cqs, errors, prefetch, depth, cold, .. } = self;
        let sq = &mut sqs[index];
        let cq = &mut cqs[sq.cq];
        let mut left = ready as usize;
        let mut begun = if left > 0 && *depth > 0 { core.now() } else { Duration::ZERO };
        while left > 0 {
            if *depth > 0 && cold.is_cold() {
                sq.announce(&core.doorbells, *depth, |sqe| io.will_need(sqe));
            }
            // Their data is on its way to the cache while their predecessors are executed.
            let batch = left.min(AHEAD);
            if *prefetch {
                (0..batch).filter_map(|i| sq.peek(i as u32)).for_each(|sqe| io.prefetch(&sqe));
            }
            let mut reads = 0;
            for _ in 0..batch {
                let sqe = sq.fetch().ok_or(RingFault)?;
                reads += u32::from(is_read(&sqe));
                let (dw0, status) = match io.execute(&sqe, fetched, None) {
                    Ok(dw0) => (dw0, Status::SUCCESS),
                    Err(failure) => (0, record(errors, core, sq.id, &sqe, failure)),
                };
                let cid = (sqe[0] >> 16) as u16;
                if !cq.post(Completion { dw0, sqhd: sq.head(), sqid: sq.id, cid, status }) {
                    return Err(RingFault);
                }
            }
            if *depth > 0 {
                sq.fetched(batch as u32);
                let now = core.now();
                cold.executed(reads, now.saturating_sub(begun));
                begun = now;
            }
            left -= batch;
        }
        Ok(())
    }

    /// Fetches commands and decides when each is due.
    fn admit(&mut self, core: &Core, index: usize, progress: &mut StepProgress) -> Result<(), RingFault> {
        // What engines have no room for stays in its queue, unless its time begins when it is fetched.
        let waits = core.timing.is_none() && core.config.disorder.is_none();
        if waits && self.full {
            return Ok(());
        }
        let mut ready = self.ready(core, index);
        if ready == 0 {
            return Ok(());
        }
        let now = core.now();
        let fetched = write_cache::now();
        if self.depth > 0 && self.cold.is_cold() {
            // Before they are held back: for disks it is as if there were no faults, no timing and no disorder.
            let Self { io, sqs, depth, .. } = self;
            sqs[index].announce(&core.doorbells, *depth, |sqe| io.will_need(sqe));
        }
        if let Some(disorder) = &core.config.disorder
            && disorder.partial_fetch
        {
            ready = self.rng.u32(0..=ready);
        }
        for _ in 0..ready {
            let sq = &mut self.sqs[index];
            let sqe = sq.fetch().ok_or(RingFault)?;
            if self.prefetch {
                self.io.prefetch(&sqe);
            }
            let sqid = sq.id;
            sq.fetched(1);
            sq.inflight += 1;
            self.cqs[sq.cq].reserved += 1;
            progress.fetched += 1;
            let mut due = now;
            self.order += 1;
            let mut order = self.order;
            if let Some(disorder) = &core.config.disorder {
                order = self.rng.u64(..);
                if !disorder.within.is_zero() {
                    due += disorder.within.mul_f64(self.rng.f64());
                }
                if let Some((one_in, by)) = disorder.delay_one_in
                    && self.rng.u32(0..one_in.max(1)) == 0
                {
                    due += by;
                }
            }
            let fault = core.faults.strike(sqid, &Sqe::from_words(sqe));
            match fault {
                Some(Fault::Fatal) => return Err(RingFault),
                Some(Fault::Disappear) => {
                    core.disappear();
                    return Ok(());
                }
                Some(Fault::Delay(by)) => due += by,
                _ => {}
            }
            if let Some(timing) = &core.timing
                && let Some(extent) = self.io.extent(&sqe)
            {
                due += timing.lock().unwrap_or_else(PoisonError::into_inner).due(now, &extent) - now;
            }
            let held = WaitingCommand { due, order, sqid, sqe, fetched, fault };
            // What is due goes to engines in the order in which it came, without a place among what waits.
            let at_once = waits && due <= now && self.held.is_empty() && self.io.has_engines();
            let later = if at_once { self.execute_held(core, held, progress)? } else { Some(held) };
            later.into_iter().for_each(|held| self.held.push(held));
            if waits && self.full {
                break;
            }
        }
        Ok(())
    }

    /// Executes and completes what is due, or hands it to engines.
    fn release(&mut self, core: &Core, progress: &mut StepProgress) -> Result<(), RingFault> {
        let now = core.now();
        let mut reads = 0;
        while let Some(held) = self.held.pop_due(now) {
            let (posted, read) = (progress.posted, is_read(&held.sqe));
            if let Some(later) = self.execute_held(core, held, progress)? {
                self.held.push(later);
                break;
            }
            reads += u32::from(read && progress.posted > posted);
        }
        if self.depth > 0 {
            self.cold.executed(reads, core.now().saturating_sub(now));
        }
        Ok(())
    }

    /// Executes and completes a command, or hands it to an engine; the result is the command, if the engine has too much to do.
    fn execute_held(
        &mut self,
        core: &Core,
        held: WaitingCommand,
        progress: &mut StepProgress,
    ) -> Result<Option<WaitingCommand>, RingFault> {
        let result = match held.fault {
            Some(Fault::Status(status)) => Err(Failure { status, parameter: u16::MAX }),
            Some(Fault::Swallow) => Ok(0),
            Some(Fault::Corrupt) => self.io.execute(&held.sqe, held.fetched, held.fault),
            _ if self.io.has_engines() => {
                let token = self.idle_tokens.last().copied().unwrap_or(self.engaged.len() as u32);
                match self.io.begin(&held.sqe, token) {
                    Err(failure) => Err(failure),
                    Ok(Begun::NotHere) => self.io.execute(&held.sqe, held.fetched, held.fault),
                    Ok(Begun::Later) => {
                        // What is under way there ends some time.
                        self.full = self.io.in_flight() > 0;
                        return Ok(Some(held));
                    }
                    Ok(Begun::Yes) => {
                        if self.idle_tokens.pop().is_none() {
                            self.engaged.push(None);
                        }
                        self.engaged[token as usize] = Some(held);
                        return Ok(None);
                    }
                }
            }
            _ => self.io.execute(&held.sqe, held.fetched, held.fault),
        };
        self.finish(core, &held, result)?;
        progress.posted += 1;
        Ok(None)
    }

    /// Completes what engines have ended.
    fn collect(&mut self, core: &Core, progress: &mut StepProgress) -> Result<(), RingFault> {
        let mut ended = std::mem::take(&mut self.ended);
        self.io.poll(&mut ended);
        self.full &= ended.is_empty();
        for (token, result) in ended.drain(..) {
            let Some(held) = self.engaged.get_mut(token as usize).and_then(Option::take) else { continue };
            self.idle_tokens.push(token);
            let result = result.map(|()| 0).map_err(|error| {
                self.io.counters.media_errors += 1;
                error.into()
            });
            self.finish(core, &held, result)?;
            progress.posted += 1;
        }
        self.ended = ended;
        Ok(())
    }

    /// Posts what a held command's fault makes of its completion.
    fn finish(&mut self, core: &Core, held: &WaitingCommand, result: Result<u32, Failure>) -> Result<(), RingFault> {
        let (dw0, status) = match result {
            Ok(dw0) => (dw0, Status::SUCCESS),
            Err(failure) => (0, record(&mut self.errors, core, held.sqid, &held.sqe, failure)),
        };
        let Some(sq) = self.sqs.iter_mut().find(|sq| sq.id == held.sqid) else { return Ok(()) };
        sq.inflight -= 1;
        let sqhd = sq.head();
        let cq = &mut self.cqs[sq.cq];
        cq.reserved -= 1;
        let mut completion = Completion { dw0, sqhd, sqid: held.sqid, cid: (held.sqe[0] >> 16) as u16, status };
        let posted = match held.fault {
            Some(Fault::Drop | Fault::Swallow) => true,
            Some(Fault::WrongCid(cid)) => {
                completion.cid = cid;
                cq.post(completion)
            }
            Some(Fault::Duplicate) => {
                self.overflows = true;
                cq.post(completion) && cq.post_extra(completion)
            }
            _ => cq.post(completion),
        };
        if posted { Ok(()) } else { Err(RingFault) }
    }

    /// The power fails: some commands in flight are still executed, without becoming durable for that, and all are
    /// forgotten.
    pub(crate) fn cut(&mut self, mut survives: impl FnMut() -> bool) {
        self.running = false;
        self.forget_engaged();
        self.io.power_fails = true;
        // Sorted, so that the same seed executes the same commands.
        for held in &self.held.take_where(|_| true) {
            let lost = matches!(held.fault, Some(Fault::Status(_) | Fault::Swallow));
            if !lost && survives() && DataTransfer::of_opcode(held.sqe[0] as u8) != DataTransfer::ControllerToHost {
                // Nobody waits for the command's status any more.
                let _ = self.io.execute(&held.sqe, held.fetched, None);
            }
        }
        self.io.power_fails = false;
    }

    /// Aborts a command that is held; false if it is not, because it has completed, or was never sent.
    pub(crate) fn abort(&mut self, core: &Core, sqid: u16, cid: u16) -> bool {
        self.abort_where(core, StatusCode::AbortRequested, |held| {
            held.sqid == sqid && (held.sqe[0] >> 16) as u16 == cid
        }) > 0
    }

    /// Aborts everything that a queue has in flight.
    pub(crate) fn abort_queue(&mut self, core: &Core, sqid: u16) {
        // What engines have begun is brought to its end.
        self.io.settle();
        let _ = self.collect(core, &mut StepProgress::default());
        self.abort_where(core, StatusCode::AbortedSqDeletion, |held| held.sqid == sqid);
    }

    fn abort_where(&mut self, core: &Core, code: StatusCode, matches: impl Fn(&WaitingCommand) -> bool) -> usize {
        let hit = self.held.take_where(matches);
        for held in &hit {
            // A ring that is not mapped shows at the next fetch; there is nobody to tell here.
            let _ = self.finish(core, held, Err(code.into()));
        }
        hit.len()
    }
}

/// Whether a command reads blocks.
fn is_read(sqe: &[u64; 8]) -> bool {
    sqe[0] as u8 == NvmOpcode::READ.0
}

/// Notes a failed command in the error log; the result is its status, with More set as the log has it.
#[cold]
fn record(errors: &mut Vec<ErrorRecord>, core: &Core, sqid: u16, sqe: &[u64; 8], failure: Failure) -> Status {
    if errors.len() >= ERRORS_KEPT {
        errors.remove(0);
    }
    errors.push(ErrorRecord {
        count: core.count_error(),
        sqid,
        cid: (sqe[0] >> 16) as u16,
        failure,
        nsid: (sqe[0] >> 32) as u32,
        lba: sqe[5],
    });
    failure.status.with_more(true)
}

/// A queue's memory is not mapped: the controller cannot go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingFault;
