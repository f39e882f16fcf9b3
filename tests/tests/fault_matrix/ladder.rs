//! The ladder of recovery, rung by rung: 64 commands are in flight when the fault happens, a canary stands on either side
//! of every buffer, and nothing may land late, whether the drive comes back or is given up.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use warprow_dma::{Clock, MappedMemory};
use warprow_driver::prp::Data;
use warprow_driver::{
    CommandEnd, Completion, Controller, ControllerOptions, DriverError, Namespace, QueueOptions, QueuePair,
    RecoveryStep,
};
use warprow_soft_controller::{
    Fault, Namespace as Space, PowerCut, QueueMatch, RamBacking, Rule, SoftController, StopSwitch,
};
use warprow_spec::{AdminOpcode, NvmOpcode, Status, StatusCode};
use warprow_tests::VirtualClock;

use crate::fixture::{BLOCK, LATE, PATIENCE, pattern};

/// Commands in flight: as many reads as writes.
const COMMANDS: usize = 64;
/// Blocks that are read, and behind them those that are written.
const READ: usize = 0;
const WRITTEN: usize = COMMANDS;
const CANARY: u8 = 0xc5;
const UNTOUCHED: u8 = 0x3c;

/// What comes on top of the commands that are not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    Nothing,
    AbortRefused,
    AbortLost,
    DeletionRefused,
    DeletionLost,
    CreationLost,
    StaysEnabled,
    StartsAtTheSecondReset,
    Fatal,
    /// Recovery goes well each time, and no command is ever answered.
    NeverAnswers,
    /// Neither CC.EN nor a reset of the function is obeyed.
    ObeysNothing,
    /// The controller answers no admin command, after whatever reset.
    Mute,
    Gone,
}

/// What brought it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Queue,
    ControllerReset,
    FunctionReset,
    /// Nothing: the steps that the error names, in their order.
    GivenUp(&'static [RecoveryStep]),
}

pub(crate) const LADDER: [(Obstacle, By); 13] = [
    (Obstacle::Nothing, By::Queue),
    (Obstacle::AbortRefused, By::Queue),
    (Obstacle::AbortLost, By::ControllerReset),
    (Obstacle::DeletionRefused, By::ControllerReset),
    (Obstacle::DeletionLost, By::ControllerReset),
    (Obstacle::CreationLost, By::ControllerReset),
    (Obstacle::StaysEnabled, By::ControllerReset),
    (Obstacle::StartsAtTheSecondReset, By::FunctionReset),
    (Obstacle::Fatal, By::ControllerReset),
    (Obstacle::NeverAnswers, By::GivenUp(&[RecoveryStep::Command; 4])),
    (
        Obstacle::ObeysNothing,
        By::GivenUp(&[
            RecoveryStep::Command,
            RecoveryStep::Queue,
            RecoveryStep::ControllerReset,
            RecoveryStep::FunctionReset,
        ]),
    ),
    (
        Obstacle::Mute,
        By::GivenUp(&[
            RecoveryStep::Command,
            RecoveryStep::Queue,
            RecoveryStep::ControllerReset,
            RecoveryStep::FunctionReset,
        ]),
    ),
    (Obstacle::Gone, By::GivenUp(&[RecoveryStep::Command, RecoveryStep::Registers])),
];

impl Obstacle {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing else",
            Self::AbortRefused => "Abort is refused",
            Self::AbortLost => "Abort is not answered",
            Self::DeletionRefused => "Delete I/O Submission Queue is refused",
            Self::DeletionLost => "Delete I/O Submission Queue is not answered",
            Self::CreationLost => "Create I/O Completion Queue is not answered",
            Self::StaysEnabled => "CC.EN is not obeyed, and the queue not deleted",
            Self::StartsAtTheSecondReset => "the queue is not deleted, and Identify not answered after the first reset",
            Self::Fatal => "CSTS.CFS",
            Self::NeverAnswers => "all that recovery does goes well, and no command is ever answered",
            Self::ObeysNothing => "neither CC.EN nor a reset of the function is obeyed, and no queue deleted",
            Self::Mute => "no admin command is answered, after whatever reset",
            Self::Gone => "the drive is gone",
        }
    }
}

struct Fixture {
    // In the order in which they go.
    pair: QueuePair,
    namespace: Namespace,
    memory: Arc<MappedMemory>,
    controller: Arc<Controller>,
    drive: Arc<SoftController>,
    clock: Arc<VirtualClock>,
    /// What each block may hold.
    may_hold: Vec<Vec<u64>>,
}

/// Where the buffer of a command lies: between two canaries.
fn place(index: usize) -> usize {
    index * 2 * BLOCK + BLOCK / 2
}

impl Fixture {
    fn new() -> Result<Self> {
        let builder = SoftController::builder().stepped().queue_pairs(2).name("drive");
        let drive = builder.namespace(Space::new(RamBacking::new(1 << 20)?).lba(BLOCK as u32)).build()?;
        let clock = VirtualClock::new();
        clock.step_too(drive.clone());
        let options = ControllerOptions { admin_timeout: PATIENCE, ..ControllerOptions::default() };
        let controller = Controller::open(drive.clone(), clock.clone(), options)?;
        let namespace = controller.namespace(1)?;
        let queue = QueueOptions { timeout: PATIENCE, ..QueueOptions::default() };
        let mut pair = controller.queue_pair(&queue)?;
        let memory = controller.allocate(COMMANDS * 2 * BLOCK)?;
        pair.keep(memory.clone());
        let may_hold = vec![vec![0]; 2 * COMMANDS];
        let mut fixture = Self { pair, namespace, memory, controller, drive, clock, may_hold };
        for first in [READ, WRITTEN] {
            fixture.write_all(first, 1)?;
        }
        Ok(fixture)
    }

    fn data(&self, index: usize) -> Data<'static> {
        Data::Contiguous { iova: self.memory.iova() + place(index) as u64, len: BLOCK as u64 }
    }

    /// Waits until everything has ended; the first that ended badly.
    fn finish(&mut self) -> Result<(), DriverError> {
        let mut failed: Option<Completion> = None;
        self.pair.ring()?;
        while self.pair.outstanding() != 0 {
            self.pair.wait(|completion| {
                if !completion.is_success() {
                    failed.get_or_insert(completion);
                }
            })?;
        }
        failed.and_then(|completion| self.pair.error(&completion)).map_or(Ok(()), Err)
    }

    /// Writes `COMMANDS` blocks from `first` on.
    fn write_all(&mut self, first: usize, seed: u64) -> Result<()> {
        for index in 0..COMMANDS {
            self.memory.memory().write(place(index), &pattern(seed, first + index));
            let data = self.data(index);
            self.pair.write(&self.namespace, (first + index) as u64, 1, data, false, 0)?;
            self.may_hold[first + index] = vec![seed];
        }
        Ok(self.finish()?)
    }

    /// Reads all blocks and compares them.
    fn verify(&mut self) -> Result<()> {
        for first in [READ, WRITTEN] {
            for index in 0..COMMANDS {
                let data = self.data(index);
                self.pair.read(&self.namespace, (first + index) as u64, 1, data, 0)?;
            }
            self.finish()?;
            for index in 0..COMMANDS {
                let block = first + index;
                let mut found = vec![0; BLOCK];
                self.memory.memory().read(place(index), &mut found);
                let model = &mut self.may_hold[block];
                model.retain(|&seed| pattern(seed, block) == found);
                ensure!(!model.is_empty(), "block {block} holds what nobody wrote there");
            }
        }
        self.canaries()
    }

    /// Puts canaries between buffers, and content that no block has into those of reads.
    fn set(&self) {
        let memory = self.memory.memory();
        memory.fill(0, memory.len(), CANARY);
        (0..COMMANDS / 2).for_each(|index| memory.fill(place(index), BLOCK, UNTOUCHED));
    }

    fn canaries(&self) -> Result<()> {
        let mut bytes = vec![0; self.memory.memory().len()];
        self.memory.memory().read(0, &mut bytes);
        (0..COMMANDS).for_each(|index| bytes[place(index)..][..BLOCK].fill(CANARY));
        ensure!(bytes.iter().all(|&byte| byte == CANARY), "a canary is dead");
        Ok(())
    }

    /// Fills the buffers of reads anew; nothing may land in them however long one waits, nor the writes on the media.
    fn nothing_lands(&self) -> Result<()> {
        self.set();
        self.clock.sleep(2 * LATE);
        let mut buffer = vec![0; BLOCK];
        for index in 0..COMMANDS / 2 {
            self.memory.memory().read(place(index), &mut buffer);
            ensure!(buffer.iter().all(|&byte| byte == UNTOUCHED), "something landed late in buffer {index}");
        }
        self.canaries()
    }

    /// 32 reads and 32 writes, in flight at once.
    fn submit(&mut self, seed: u64) -> Result<()> {
        self.set();
        for index in 0..COMMANDS {
            let data = self.data(index);
            if index < COMMANDS / 2 {
                self.pair.read(&self.namespace, (READ + index) as u64, 1, data, index as u64)?;
            } else {
                self.memory.memory().write(place(index), &pattern(seed, WRITTEN + index));
                self.pair.write(&self.namespace, (WRITTEN + index) as u64, 1, data, false, index as u64)?;
                self.may_hold[WRITTEN + index].push(seed);
            }
        }
        self.pair.ring()?;
        ensure!(self.pair.outstanding() as usize == COMMANDS);
        Ok(())
    }

    /// Arms the faults: commands are late, and what comes on top.
    fn hinder(&self, obstacle: Obstacle) {
        let faults = self.drive.faults();
        // The first rule that fits counts.
        match obstacle {
            Obstacle::Fatal => drop(faults.inject(Rule::new(Fault::Fatal).io(NvmOpcode::READ).nth(20))),
            Obstacle::Gone => drop(faults.inject(Rule::new(Fault::Disappear).io(NvmOpcode::READ).nth(20))),
            _ => {}
        }
        // Carried out and answered long after their time limit.
        faults.inject(Rule::new(Fault::Delay(LATE)).on(QueueMatch::Io).always());
        let refused = Fault::Status(Status::from_code(StatusCode::InternalError));
        let admin = |fault, opcode| Rule::new(fault).admin(opcode);
        let undeleted = || faults.inject(admin(refused, AdminOpcode::DELETE_IO_SQ));
        match obstacle {
            Obstacle::Nothing | Obstacle::NeverAnswers | Obstacle::Fatal | Obstacle::Gone => {}
            Obstacle::AbortRefused => drop(faults.inject(admin(refused, AdminOpcode::ABORT).always())),
            Obstacle::AbortLost => drop(faults.inject(admin(Fault::Swallow, AdminOpcode::ABORT))),
            Obstacle::DeletionRefused => drop(undeleted()),
            Obstacle::DeletionLost => drop(faults.inject(admin(Fault::Swallow, AdminOpcode::DELETE_IO_SQ))),
            Obstacle::CreationLost => drop(faults.inject(admin(Fault::Swallow, AdminOpcode::CREATE_IO_CQ))),
            Obstacle::StaysEnabled => {
                undeleted();
                faults.disobey(StopSwitch::Enable);
            }
            Obstacle::StartsAtTheSecondReset => {
                undeleted();
                faults.inject(admin(Fault::Swallow, AdminOpcode::IDENTIFY));
            }
            Obstacle::ObeysNothing => {
                undeleted();
                faults.disobey(StopSwitch::Enable);
                faults.disobey(StopSwitch::Reset);
            }
            Obstacle::Mute => drop(faults.inject(Rule::new(Fault::Swallow).on(QueueMatch::Admin).always())),
        }
    }

    /// Everything works as it should again.
    fn repair(&self, obstacle: Obstacle) -> Result<()> {
        self.drive.faults().clear();
        if obstacle == Obstacle::Gone {
            self.drive.power_cut(PowerCut::KeepAll)?;
        }
        Ok(())
    }

    /// Recovers from `error`. How each command ended.
    fn recover(&mut self, error: DriverError) -> (Result<(), DriverError>, Vec<Completion>) {
        let mut ended = Vec::new();
        let blame = self.pair.blame(error);
        self.pair.leave();
        let pair = &mut self.pair;
        let recovered =
            self.controller.recover(Some(blame), || pair.recreate(|completion| ended.push(completion)), || {});
        (recovered, ended)
    }

    fn is_given_up(&mut self) -> Result<()> {
        let began = self.clock.now();
        let (again, _) = self.recover(DriverError::Stale { function: self.controller.name().clone(), queue: 1 });
        let is = |error: &DriverError| matches!(error, DriverError::GivenUp { .. });
        ensure!(is(&again.err().context("it was brought back")?));
        ensure!(is(&self.controller.active_namespaces().err().context("it answers")?));
        ensure!(is(&self.controller.check_health().err().context("it is healthy")?));
        ensure!(matches!(self.pair.ring(), Err(DriverError::Stale { .. })));
        ensure!(self.clock.now() == began, "it took time to say so");
        Ok(())
    }
}

fn cell(obstacle: Obstacle, by: By) -> Result<()> {
    let mut fixture = Fixture::new()?;
    fixture.hinder(obstacle);
    fixture.submit(2)?;
    let mut rounds = 1;
    let recovered = loop {
        let error = fixture.finish().err().context("the commands were answered")?;
        let due = match obstacle {
            Obstacle::Fatal => matches!(error, DriverError::Fatal { .. }),
            Obstacle::Gone => matches!(error, DriverError::Gone { .. }),
            _ => matches!(error, DriverError::TimedOut { .. }),
        };
        ensure!(due, "{error}");
        let unended = fixture.pair.outstanding() + fixture.pair.quarantined();
        ensure!(unended as usize == COMMANDS, "{unended} commands are not ended");
        let (recovered, ended) = fixture.recover(error);
        if recovered.is_ok() {
            // Each is ended exactly once: released from quarantine, lost, or aborted in time.
            let of =
                |wanted: fn(&CommandEnd) -> bool| ended.iter().filter(|completion| wanted(&completion.ended)).count();
            let lost = of(|end| matches!(end, CommandEnd::Released | CommandEnd::Lost));
            ensure!(lost == COMMANDS && ended.len() == lost, "{ended:?}");
        }
        if recovered.is_err() || obstacle != Obstacle::NeverAnswers {
            break recovered;
        }
        ensure!(rounds < 10, "recovery goes on for ever");
        rounds += 1;
        fixture.nothing_lands()?;
        fixture.submit(2)?;
    };
    fixture.nothing_lands()?;
    match by {
        By::Queue | By::ControllerReset | By::FunctionReset => {
            recovered?;
            let resets = [By::Queue, By::ControllerReset, By::FunctionReset].iter().position(|&other| other == by);
            ensure!(Some(fixture.controller.resets() as usize) == resets, "{} resets", fixture.controller.resets());
            fixture.drive.faults().clear();
        }
        By::GivenUp(steps) => {
            let Err(DriverError::GivenUp { failure, .. }) = recovered else { anyhow::bail!("{recovered:?}") };
            let taken: Vec<RecoveryStep> = failure.steps.iter().map(|step| step.step).collect();
            ensure!(taken == steps, "{taken:?}: {failure}");
            let words = failure.to_string();
            ensure!(failure.steps.iter().all(|step| words.contains(&step.error.to_string())), "{words}");
            fixture.is_given_up()?;
            if obstacle != Obstacle::NeverAnswers {
                // Too early: it says so, and what was tried first is not forgotten.
                let early = fixture.controller.retry().err().context("it is back before its time")?;
                let DriverError::GivenUp { failure, .. } = early else { anyhow::bail!("{early}") };
                let taken: Vec<RecoveryStep> = failure.steps.iter().map(|step| step.step).collect();
                ensure!(taken == [steps, &[RecoveryStep::Retry]].concat(), "{taken:?}");
                fixture.is_given_up()?;
            }
            fixture.nothing_lands()?;
            fixture.repair(obstacle)?;
            fixture.is_given_up().context("nobody has retried it")?;
            fixture.controller.retry()?;
            fixture.pair.recreate(|_| {})?;
        }
    }
    fixture.verify().context("what lies on the drive")?;
    fixture.write_all(WRITTEN, 3)?;
    fixture.nothing_lands()?;
    fixture.verify().context("after new writes")?;
    // From the foot of the ladder again, after a success.
    fixture.controller.note_success();
    let resets = fixture.controller.resets();
    fixture.hinder(Obstacle::Nothing);
    fixture.submit(4)?;
    let error = fixture.finish().err().context("the commands were answered")?;
    fixture.recover(error).0?;
    fixture.drive.faults().clear();
    ensure!(fixture.controller.resets() == resets, "a reset, though commands had succeeded");
    fixture.nothing_lands()?;
    fixture.verify().context("at the end")
}

#[test]
fn every_rung_holds() {
    let mut wrong = Vec::new();
    for (obstacle, by) in LADDER {
        if let Err(error) = cell(obstacle, by) {
            wrong.push(format!("{}: {error:#}", obstacle.words()));
        }
    }
    assert!(wrong.is_empty(), "{} rungs:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_drive_that_obeys_nothing_keeps_what_it_may_reach() -> Result<()> {
    let mut fixture = Fixture::new()?;
    fixture.hinder(Obstacle::ObeysNothing);
    fixture.submit(2)?;
    let error = fixture.finish().err().context("the commands were answered")?;
    fixture.recover(error).0.err().context("it was brought back")?;
    let data = fixture.memory.memory().downgrade();
    let drive = fixture.drive.clone();
    let clock = fixture.clock.clone();
    let Fixture { pair, memory, controller, .. } = fixture;
    drop((pair, memory));
    clock.sleep(2 * LATE);
    ensure!(!data.is_gone(), "nothing proves that the drive has let go of it");
    drive.faults().clear();
    controller.retry()?;
    ensure!(data.is_gone(), "it is kept for ever");
    Ok(())
}
