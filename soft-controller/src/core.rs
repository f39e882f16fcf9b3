//! What the registers, the admin queue and the workers share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warprow_dma::{DmaMemory, Wake, order};
use warprow_spec::registers::{cq_head_doorbell, offset, sq_tail_doorbell};

use crate::config::Config;
use crate::control::Control;
use crate::fault::FaultRules;
use crate::interrupt::Interrupts;
use crate::offload::OffloadFailure;
use crate::parker::Parker;
use crate::progress::{StepProgress, earlier};
use crate::shard::Shard;
use crate::timing::Model;
use crate::turn_gate::TurnGate;

/// The longest that a worker sleeps when submitters cannot wake it.
const NAP: Duration = Duration::from_millis(1);
/// The longest such sleep for a while after work: graphs that read rows run again after a step of some milliseconds.
const SHORT_NAP: Duration = Duration::from_micros(50);
const WHILE_AFTER_WORK: Duration = Duration::from_millis(50);
/// The longest that a worker sleeps otherwise, in case that a wake-up was missed.
const SLEEP: Duration = Duration::from_millis(50);

/// Where the controller's time comes from.
#[derive(Debug)]
enum Time {
    /// The system's monotonic clock, with worker threads.
    Real(Instant),
    /// The caller of `step`, which gives the time: nanoseconds.
    Stepped(AtomicU64),
}

/// The controller goes on as normal.
const WELL: u8 = 0;
/// CSTS.CFS is set.
const FATAL: u8 = 1;
/// The controller does not answer at all.
const GONE: u8 = 2;

/// How long a worker looks for work before it sleeps: a few NVMe latencies.
const SPIN: Duration = Duration::from_micros(50);
/// How long a worker looks for work where submitters cannot wake it: from one look-up of a busy pipeline to the next.
const SILENT_SPIN: Duration = Duration::from_millis(5);

/// A worker's place.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) shard: Mutex<Shard>,
    pub(crate) parker: Arc<Parker>,
    /// Work is about to come from a submitter that cannot wake the worker.
    roused: AtomicBool,
    /// When the worker last stopped looking for work, in nanoseconds.
    quiet_since: AtomicU64,
}

impl Seat {
    fn new(shard: Shard) -> Self {
        let (roused, quiet_since) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { shard: Mutex::new(shard), parker: Arc::default(), roused, quiet_since }
    }
}

/// The state of a controller. Locks are taken in this order: `control`, then the shards by index.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) doorbells: DmaMemory,
    pub(crate) faults: FaultRules,
    /// How long commands take, where that is modelled.
    pub(crate) timing: Option<Mutex<Model>>,
    pub(crate) control: Mutex<Control>,
    pub(crate) seats: Box<[Seat]>,
    /// How many threads want to lock all shards; workers begin no round meanwhile.
    attention: AtomicU32,
    trouble: AtomicU8,
    time: Time,
    errors: AtomicU64,
    /// The admin queue's tail doorbell as last seen; anything else there is work.
    pub(crate) admin_seen: AtomicU32,
    /// When `Control` has something to do by itself, in nanoseconds; `u64::MAX` for never.
    pub(crate) control_due: AtomicU64,
    /// Some shard has events for the admin queue. Apart from `control_due`, which `Control` sets anew at the end of a step.
    pub(crate) events_wait: AtomicBool,
    /// The doorbells again, for submitters that do not wake the workers after ringing: while one of them holds a clone, the
    /// workers look by themselves.
    pub(crate) silent_doorbells: DmaMemory,
    pub(crate) interrupts: Interrupts,
    pub(crate) stop: AtomicBool,
    /// Of a controller with an offload, or with one that has failed.
    pub(crate) gate: Option<Arc<TurnGate>>,
    /// Why an offload failed.
    offload_failure: Mutex<Option<OffloadFailure>>,
}

impl Core {
    pub(crate) fn new(config: Config, doorbells: DmaMemory, control: Control, shards: Vec<Shard>) -> Self {
        let leave = shards.iter().find_map(|shard| Some(shard.offload.as_ref()?.leave()));
        let gate = leave.map(|leave| Arc::new(TurnGate::new(leave)));
        gate.iter().for_each(|gate| config.faults.end_turns_of(gate));
        let time = if config.workers == 0 { Time::Stepped(AtomicU64::new(0)) } else { Time::Real(Instant::now()) };
        Self {
            faults: config.faults.clone(),
            timing: config
                .timing
                .clone()
                .map(|timing| Mutex::new(Model::new(timing, config.seed).shared_by(config.sharers))),
            config,
            silent_doorbells: doorbells.alias(),
            doorbells,
            control: Mutex::new(control),
            seats: shards.into_iter().map(Seat::new).collect(),
            attention: AtomicU32::new(0),
            trouble: AtomicU8::new(WELL),
            time,
            errors: AtomicU64::new(0),
            admin_seen: AtomicU32::new(0),
            control_due: AtomicU64::new(u64::MAX),
            events_wait: AtomicBool::new(false),
            interrupts: Interrupts::default(),
            stop: AtomicBool::new(false),
            gate,
            offload_failure: Mutex::new(None),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        match &self.time {
            Time::Real(start) => start.elapsed(),
            Time::Stepped(now) => Duration::from_nanos(now.load(Ordering::Relaxed)),
        }
    }

    /// When the controller's clock began; `None` for a stepped controller, whose clock is the caller's.
    pub(crate) fn began(&self) -> Option<Instant> {
        match &self.time {
            Time::Real(start) => Some(*start),
            Time::Stepped(_) => None,
        }
    }

    /// Turns a stepped controller's clock; it never goes back.
    pub(crate) fn set_now(&self, to: Duration) {
        if let Time::Stepped(now) = &self.time {
            now.fetch_max(u64::try_from(to.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Offset in the doorbells' memory of a submission queue's tail.
    pub(crate) fn sq_doorbell(&self, qid: u16) -> usize {
        (sq_tail_doorbell(qid, self.config.dstrd) - offset::DOORBELLS) as usize
    }

    /// Offset in the doorbells' memory of a completion queue's head.
    pub(crate) fn cq_doorbell(&self, qid: u16) -> usize {
        (cq_head_doorbell(qid, self.config.dstrd) - offset::DOORBELLS) as usize
    }

    /// Which worker serves a completion queue and all the submission queues that complete there.
    pub(crate) fn seat_of(&self, cqid: u16) -> usize {
        usize::from(cqid.saturating_sub(1)) % self.seats.len()
    }

    pub(crate) fn lock_control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops all workers between two commands for as long as the result lives. The caller holds `control`.
    pub(crate) fn lock_shards(&self) -> Vec<MutexGuard<'_, Shard>> {
        self.attention.fetch_add(1, Ordering::SeqCst);
        self.leave_turn();
        let guards = self.seats.iter().map(|seat| seat.shard.lock().unwrap_or_else(PoisonError::into_inner)).collect();
        self.attention.fetch_sub(1, Ordering::Relaxed);
        guards
    }

    /// Whether somebody wants all shards.
    pub(crate) fn is_wanted(&self) -> bool {
        self.attention.load(Ordering::SeqCst) != 0
    }

    /// Ends the turn of an offload, if there is one.
    pub(crate) fn leave_turn(&self) {
        self.gate.iter().for_each(|gate| gate.end_turn());
    }

    /// Whether somebody rings doorbells without waking a worker.
    pub(crate) fn has_silent_submitters(&self) -> bool {
        self.silent_doorbells.is_shared()
    }

    pub(crate) fn note_offload_failure(&self, failure: OffloadFailure) {
        self.offload_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    }

    pub(crate) fn offload_failure(&self) -> Option<OffloadFailure> {
        self.offload_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Rounds of one worker: at most so many, one after another, until somebody wants the queues. The first worker also
    /// serves the admin queue.
    #[inline]
    pub(crate) fn step(&self, worker: usize, rounds: u32) -> StepProgress {
        let mut progress = StepProgress::default();
        if worker == 0 && self.control_wants() {
            let mut control = self.lock_control();
            progress.merge(control.step(self));
        }
        while self.attention.load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
        }
        let mut shard = self.seats[worker].shard.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..rounds {
            let done = shard.step(self);
            progress.merge(done);
            if self.attention.load(Ordering::Relaxed) != 0 || worker == 0 && self.control_wants() || shard.in_vain {
                break;
            }
            if done.is_idle() {
                std::hint::spin_loop();
            }
        }
        if !shard.events.is_empty() {
            drop(shard);
            self.events_wait.store(true, Ordering::Relaxed);
            if worker != 0 {
                self.wake(&self.seats[..1]);
            }
        }
        progress
    }

    /// Lets others run until something may have happened: an engine has ended something, or a little time has passed.
    pub(crate) fn relax(&self, worker: usize, limit: Duration) {
        let mut shard = self.seats[worker].shard.lock().unwrap_or_else(PoisonError::into_inner);
        if !shard.io.wait(limit) {
            drop(shard);
            std::thread::yield_now();
        }
    }

    /// Whether the admin queue or the registers have something to do.
    #[inline]
    fn control_wants(&self) -> bool {
        if self.doorbells.load_u32(0) != self.admin_seen.load(Ordering::Relaxed).to_le() {
            return true;
        }
        let due = self.control_due();
        due != u64::MAX && Duration::from_nanos(due) <= self.now()
    }

    #[inline]
    fn control_due(&self) -> u64 {
        if self.events_wait.load(Ordering::Relaxed) { 0 } else { self.control_due.load(Ordering::Relaxed) }
    }

    /// When something will happen by itself in this worker's share.
    pub(crate) fn next_due(&self, worker: usize) -> Option<Duration> {
        let due = self.control_due();
        let control = (worker == 0 && due != u64::MAX).then(|| Duration::from_nanos(due));
        let shard = self.seats[worker].shard.lock().unwrap_or_else(PoisonError::into_inner);
        earlier(control, shard.next_due(self))
    }

    /// Whether a doorbell of this worker's share has work.
    pub(crate) fn has_work(&self, worker: usize) -> bool {
        if self.stop.load(Ordering::Relaxed) || worker == 0 && self.control_wants() {
            return true;
        }
        !self.is_in_trouble() && self.seats[worker].shard.lock().unwrap_or_else(PoisonError::into_inner).has_work(self)
    }

    /// Wakes all workers for something that was just stored.
    pub(crate) fn wake_all(&self) {
        self.wake(&self.seats);
    }

    fn wake(&self, seats: &[Seat]) {
        order::between_doorbell_and_sleep();
        seats.iter().for_each(|seat| seat.parker.wake());
    }

    /// Has all workers look for work for a while.
    pub(crate) fn rouse(&self) {
        self.gate.iter().for_each(|gate| gate.expect());
        self.seats.iter().for_each(|seat| seat.roused.store(true, Ordering::Relaxed));
        self.wake_all();
    }

    /// How long a worker that begins to look for work goes on without any.
    pub(crate) fn vigil(&self, worker: usize) -> Duration {
        self.seats[worker].roused.store(false, Ordering::Relaxed);
        if self.has_silent_submitters() { SILENT_SPIN } else { SPIN }
    }

    /// How long a worker may sleep if nobody wakes it; zero if it has something to do.
    pub(crate) fn rest(&self, worker: usize) -> Duration {
        if self.has_work(worker) || self.seats[worker].roused.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let limit = match self.has_silent_submitters() {
            // A sleep would be longer than the 20 us that may pass between two looks at the doorbells.
            true if self.has_running_offload(worker) => return Duration::ZERO,
            true if self.is_quiet_for_long(worker) => NAP,
            true => SHORT_NAP,
            false => SLEEP,
        };
        self.next_due(worker).map_or(limit, |due| due.saturating_sub(self.now()).min(limit))
    }

    /// The worker stops looking for work.
    pub(crate) fn note_quiet(&self, worker: usize) {
        let now = u64::try_from(self.now().as_nanos()).unwrap_or(u64::MAX);
        self.seats[worker].quiet_since.store(now, Ordering::Relaxed);
    }

    fn is_quiet_for_long(&self, worker: usize) -> bool {
        let since = Duration::from_nanos(self.seats[worker].quiet_since.load(Ordering::Relaxed));
        self.now().saturating_sub(since) > WHILE_AFTER_WORK
    }

    /// Whether there are queues that an offload may have to serve.
    fn has_running_offload(&self, worker: usize) -> bool {
        let has_offload = self.gate.as_ref().is_some_and(|gate| gate.has_offload());
        has_offload && !self.is_in_trouble() && {
            let shard = self.seats[worker].shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.running && !shard.sqs.is_empty()
        }
    }

    pub(crate) fn count_error(&self) -> u64 {
        self.errors.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn errors_counted(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_in_trouble(&self) -> bool {
        self.trouble.load(Ordering::Relaxed) != WELL
    }

    pub(crate) fn is_fatal(&self) -> bool {
        self.trouble.load(Ordering::Relaxed) == FATAL
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.trouble.load(Ordering::Relaxed) == GONE
    }

    /// Sets CSTS.CFS: a queue's memory faulted, or a fault was asked for.
    #[cold]
    pub(crate) fn fatal(&self, progress: StepProgress) -> StepProgress {
        let _ = self.trouble.compare_exchange(WELL, FATAL, Ordering::Relaxed, Ordering::Relaxed);
        progress
    }

    /// The device is pulled out.
    #[cold]
    pub(crate) fn disappear(&self) {
        self.trouble.store(GONE, Ordering::Relaxed);
    }

    /// A controller reset clears CSTS.CFS; a device that is gone stays so.
    pub(crate) fn recover(&self) {
        let _ = self.trouble.compare_exchange(FATAL, WELL, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Power comes back.
    pub(crate) fn revive(&self) {
        self.trouble.store(WELL, Ordering::Relaxed);
    }
}
