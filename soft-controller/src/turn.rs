//! Turns of an offload, as the worker's shard gives them: which queues it serves, and what is left to the worker.

use std::sync::atomic::Ordering;
use std::time::Duration;

use warprow_spec::NvmOpcode;

use crate::core::Core;
use crate::offload::{LINGER, Offload, OffloadFailure, OffloadQueue, SeenDoorbell, Turn};
use crate::plan::Plan;
use crate::progress::StepProgress;
use crate::shard::{RingFault, Shard};
use crate::turn_gate::TurnGate;

/// Commands that the worker executes of one queue before the others have their turn again.
const LEFT_TO_WORKER: u32 = 64;
/// How long a turn waits for the first command at least, after somebody said that commands are about to come.
const EXPECTANT_LINGER: Duration = Duration::from_millis(1);
/// How long a turn lasts at most, and how long where queues of the worker's own hold commands already.
const LIMIT: Duration = Duration::from_millis(5);
const SHARED_LIMIT: Duration = Duration::from_micros(250);

impl Shard {
    /// Looks at every queue once: the offload has a turn if there is something for it, then the worker serves what is left.
    pub(crate) fn look_beside_offload(&mut self, core: &Core, gate: &TurnGate) -> StepProgress {
        let silent = core.has_silent_submitters();
        if let (true, Some(looked)) = (silent, self.looked) {
            gate.note_gap(core.now().saturating_sub(looked));
        }
        self.plans.clear();
        self.in_vain = false;
        let mut answered = 0;
        if let Some(mut offload) = self.offload.take() {
            // What decides whether there may be a turn is looked at with the gate held: see `TurnGate::end_and_wait`.
            let entered = gate.enter();
            let turn = self.turn_of(core, gate, &mut *offload);
            drop(entered);
            match turn {
                Ok(Some(commands)) => (answered, self.in_vain) = (commands, commands == 0),
                Ok(None) => {}
                Err(failure) => {
                    gate.retire();
                    core.note_offload_failure(failure);
                    return core.fatal(StepProgress::default());
                }
            }
            self.offload = Some(offload);
        }
        let burst = self.burst;
        let bytes = self.io.counters.bytes();
        if answered > 0 || self.in_vain {
            // They have waited for the end of the turn.
            self.burst = burst.max(LEFT_TO_WORKER);
        }
        let mut progress = self.look_at_all(core);
        self.burst = burst;
        gate.count_worker(u64::from(progress.posted), self.io.counters.bytes() - bytes);
        progress.merge(StepProgress { fetched: answered, posted: answered, next: None });
        self.looked = silent.then(|| core.now());
        progress
    }

    /// The result is how many commands the offload has answered, if it had a turn.
    fn turn_of(
        &mut self,
        core: &Core,
        gate: &TurnGate,
        offload: &mut dyn Offload,
    ) -> Result<Option<u32>, OffloadFailure> {
        let leave_count = gate.leave_count();
        let Some((lba_shift, lbas)) = self.offloaded_namespace(core) else { return Ok(None) };
        for index in 0..self.sqs.len() {
            let plan = if self.is_for_offload(core, index) { self.next(core, index) } else { Plan::Worker };
            self.plans.push(plan);
        }
        let stays = self.lingers_until.saturating_sub(core.now());
        let announced = gate.is_expecting();
        let expected = announced || !stays.is_zero();
        if !expected && !self.plans.contains(&Plan::Read) {
            return Ok(None);
        }
        gate.expect_no_more();
        let mut queues = std::mem::take(&mut self.offloaded);
        queues.clear();
        let offered = self.sqs.iter().zip(&self.plans).filter(|(_, plan)| **plan != Plan::Worker);
        queues.extend(offered.map(|(sq, _)| {
            let mut queue = OffloadQueue::default();
            sq.describe(&mut queue);
            self.cqs[sq.cq].describe(&mut queue);
            queue
        }));
        let mut beside = std::mem::take(&mut self.beside);
        beside.clear();
        let mut turn = Turn {
            beside: &[],
            doorbells: &core.doorbells,
            leave_count,
            admin_seen: core.admin_seen.load(Ordering::Relaxed).to_le(),
            nsid: 1,
            lba_shift,
            lbas,
            page: self.io.page,
            linger: match stays {
                _ if announced => EXPECTANT_LINGER.max(self.linger),
                Duration::ZERO => self.linger,
                left => left,
            },
            linger_after: self.linger,
            limit: LIMIT,
            now: core.now(),
        };
        if queues.is_empty() || !offload.reaches(&turn, &mut queues) {
            queues.iter_mut().for_each(|queue| queue.reached = false);
        }
        let mut wanted = false;
        for (plan, queue) in self.plans.iter_mut().filter(|plan| **plan != Plan::Worker).zip(&queues) {
            wanted |= queue.reached && (expected || *plan == Plan::Read);
            if !queue.reached {
                *plan = Plan::Worker;
            }
        }
        let mut answered = None;
        if wanted {
            if !self.find_empty(core, &mut beside) {
                turn.limit = SHARED_LIMIT;
            }
            turn.beside = &beside;
            offload.serve(&turn, &mut queues)?;
            answered = Some(self.take_over(core, gate, turn.now, &queues)?);
        }
        (self.offloaded, self.beside) = (queues, beside);
        Ok(answered)
    }

    /// Finds the doorbells of the worker's own queues that are empty; whether all of them are, and nothing else waits for the worker.
    fn find_empty(&self, core: &Core, empty: &mut Vec<SeenDoorbell>) -> bool {
        let own = self.sqs.iter().zip(&self.plans).filter(|(_, plan)| **plan == Plan::Worker);
        let mut all = !self.is_to_announce(core);
        for (sq, _) in own {
            let posted = self.cqs.get(sq.cq).is_some_and(|cq| !cq.has_overflow());
            match sq.empty(&core.doorbells) {
                Some(doorbell) if posted => empty.push(doorbell),
                _ => all = false,
            }
        }
        all
    }

    /// Logarithm of the LBA size and number of LBAs of the first namespace, if an offload may execute its reads now.
    fn offloaded_namespace(&self, core: &Core) -> Option<(u32, u64)> {
        // All of these are stored before the turn is asked to end, and the count of that was taken before.
        let ends = core.is_wanted() || core.stop.load(Ordering::SeqCst) || core.faults.is_active();
        if ends || core.config.holds_commands() {
            return None;
        }
        let view = self.io.namespaces.first()?.as_ref()?;
        let plain = !view.formatting && !view.half_formatted && view.cache.is_none();
        plain.then_some((view.lba_shift, view.blocks))
    }

    /// Whether an offload may serve a queue, if it reaches it.
    fn is_for_offload(&self, core: &Core, index: usize) -> bool {
        let sq = &self.sqs[index];
        let cq = self.cqs.get(sq.cq).filter(|cq| cq.id == sq.cqid);
        sq.inflight == 0
            && sq.is_at_hand()
            && cq.is_some_and(|cq| {
                cq.users == 1 && cq.is_at_hand() && !(cq.vector.is_some() && core.interrupts.are_wanted())
            })
    }

    /// Takes over what a turn that began at `began` has made of the queues; the result is how many commands it has answered.
    fn take_over(
        &mut self,
        core: &Core,
        gate: &TurnGate,
        began: Duration,
        queues: &[OffloadQueue],
    ) -> Result<u32, OffloadFailure> {
        let ended = core.now();
        let mut commands = 0;
        let mut bytes = 0;
        for queue in queues.iter().filter(|queue| queue.reached) {
            let Some(index) = self.sqs.iter().position(|sq| sq.id == queue.id) else { continue };
            let sq = &mut self.sqs[index];
            let cq = &mut self.cqs[sq.cq];
            if !sq.fetched_to(queue) || !cq.posted_to(queue) {
                return Err(OffloadFailure(format!(
                    "what it says of queue {} does not fit: {} commands, head {}, completions up to {}",
                    sq.id, queue.reads, queue.sq_head, queue.cq_tail
                )));
            }
            self.plans[index] = if queue.stopped { Plan::Stopped } else { Plan::Left };
            if queue.reads > 0 && self.linger > LINGER {
                let last = queue.last_completion.unwrap_or(ended);
                self.lingers_until = self.lingers_until.max(last + self.linger);
            }
            commands += queue.reads;
            bytes += queue.bytes;
            if let Some(watched) = self.watched.as_mut().filter(|_| queue.reads > 0) {
                let first = queue.first_doorbell.unwrap_or(began);
                let last = queue.last_completion.unwrap_or(ended);
                watched.note(first, last, queue.reads);
            }
        }
        self.io.count_reads(commands, bytes);
        gate.count_turn(commands, bytes);
        Ok(u32::try_from(commands).unwrap_or(u32::MAX))
    }

    /// Executes the commands of a queue of the offload's up to the next read; of one that has stopped also whatever is next.
    pub(crate) fn execute_left(
        &mut self,
        core: &Core,
        index: usize,
        plan: Plan,
        progress: &mut StepProgress,
    ) -> Result<(), RingFault> {
        let mut first = plan == Plan::Stopped;
        if !first && plan != Plan::Left {
            return Ok(());
        }
        let burst = std::mem::replace(&mut self.burst, 1);
        let mut done = Ok(());
        for _ in 0..LEFT_TO_WORKER {
            let left = self.next(core, index) == Plan::Left;
            if !std::mem::take(&mut first) && !left {
                break;
            }
            let before = progress.fetched;
            done = self.serve(core, index, progress);
            if done.is_err() || progress.fetched == before {
                break;
            }
        }
        self.burst = burst;
        done
    }

    /// What waits in a queue of the offload's.
    fn next(&mut self, core: &Core, index: usize) -> Plan {
        let sq = &mut self.sqs[index];
        if !sq.is_doorbell_valid(&core.doorbells) {
            return Plan::Left;
        }
        match sq.waiting(&core.doorbells) {
            // The offload looks, and stops where it is no read.
            Ok(waiting) if waiting > 0 && sq.is_in_peer_memory() => Plan::Read,
            Ok(waiting) if waiting > 0 => match sq.peek(0) {
                Some(sqe) if NvmOpcode(sqe[0] as u8) == NvmOpcode::READ => Plan::Read,
                _ => Plan::Left,
            },
            _ => Plan::Nothing,
        }
    }
}
