//! The stage *read*: commands to the drives, in batches, and what comes back; other work is done meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use warprow_dma::{Clock, DmaBuffer, DmaMemory, Mapped, PAGE};
use warprow_driver::prp::{Data, Stretch};
use warprow_driver::{Blame, Completion, DriverError, Ended, PushError};

use crate::stage::Command;
use warprow_store::NamespaceChanged;
use warprow_store::view::{MemberDrive, SharedPair, lock};

/// Turns of the waiting loop between two looks at the clock.
const TURNS: u32 = 64;
/// How long a wait spins and yields before it sleeps between looks.
const SPIN: Duration = Duration::from_millis(20);
/// Time between two looks at a controller that does not answer.
const HEALTH: Duration = Duration::from_millis(100);

/// One queue pair of a slot, with the memory that its reads land in.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Index of the drive.
    drive: u16,
    pair: SharedPair,
    member: Arc<MemberDrive>,
    landing: Landing,
    /// An output buffer that commands were sent for, for as long as one may write to it.
    lent: Option<Arc<Mapped>>,
    /// Where the drive sees the output of the look-up under way, if rows can land in it.
    output: Option<u64>,
    /// The queue failed; it must be brought back before it is used.
    broken: bool,
    /// What the drive is to blame for, if that is why.
    blame: Option<Blame>,
    /// Why it could not be brought back for this look-up.
    unusable: Option<DriverError>,
    /// Commands of this look-up that were sent, and the end of those that are to be.
    sent: Range<usize>,
    end: usize,
    outstanding: u32,
}

/// Why a lane cannot be used.
enum NotReady {
    Drive(DriverError),
    Changed(NamespaceChanged),
}

impl From<DriverError> for NotReady {
    fn from(error: DriverError) -> Self {
        Self::Drive(error)
    }
}

impl From<NamespaceChanged> for NotReady {
    fn from(changed: NamespaceChanged) -> Self {
        Self::Changed(changed)
    }
}

/// Memory for the data of reads that are under way. Two halves take turns: each is filled from its beginning, once nothing
/// is outstanding in it.
#[derive(Debug)]
struct Landing {
    memory: Arc<Mapped>,
    half: usize,
    /// Which half is being filled, and up to where.
    current: usize,
    filled: usize,
    outstanding: [u32; 2],
}

impl Landing {
    /// Room for `bytes`: its first byte. `None`: wait.
    #[inline]
    fn take(&mut self, bytes: usize) -> Option<usize> {
        // No page is crossed that need not be.
        let fits = |at: usize| if at % PAGE + bytes > PAGE { at.next_multiple_of(PAGE) } else { at };
        let mut at = fits(self.filled);
        if at + bytes > self.half {
            let other = 1 - self.current;
            match self.outstanding {
                [0, 0] => {}
                outstanding if outstanding[other] == 0 => self.current = other,
                _ => return None,
            }
            at = 0;
        }
        if at + bytes > self.half {
            return None;
        }
        self.filled = at + bytes;
        self.outstanding[self.current] += 1;
        Some(self.current * self.half + at)
    }

    #[inline]
    fn give_back(&mut self, place: usize) {
        let half = usize::from(place >= self.half);
        self.outstanding[half] = self.outstanding[half].saturating_sub(1);
    }

    fn reset(&mut self) {
        (self.current, self.filled, self.outstanding) = (0, 0, [0; 2]);
    }
}

/// What else there is to do while drives read, and what to do with what they bring.
pub(crate) trait Meanwhile {
    /// Does a little; `false` when nothing is left.
    fn step(&mut self) -> bool;

    /// The data of a command lies in `memory` from `place` on.
    fn land(&mut self, command: &Command, memory: &DmaMemory, place: usize);

    /// Where in the output the data of a command belongs, if it can land there: `iova` is the byte in its buffer. `stretches` are
    /// [as PRPs have them](Data::Scattered).
    fn output(&self, _command: &Command, _stretches: &mut Vec<Stretch>) -> bool {
        false
    }

    /// The data of a command has landed where [`output`](Self::output) said.
    fn landed(&mut self, _command: &Command) {}

    /// The rows of a command could not be read.
    fn fail(&mut self, command: &Command);

    /// The [parts](crate::stage::split()) of a command.
    fn parts(&self, command: &Command) -> Vec<Command>;
}

/// What reading took.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub sq_doorbells: u64,
    pub cq_doorbells: u64,
    pub bytes: u64,
    /// Commands that were read again in parts.
    pub split: u64,
    /// Rows that landed in the output.
    pub landed: u64,
    /// Time spent on submitting, and on waiting with nothing else to do.
    pub time: Duration,
    /// The first failure.
    pub failure: Option<DriverError>,
}

/// Where the data of each command lands, and which have arrived. As long as there can be commands.
#[derive(Debug)]
pub(crate) struct Landings {
    places: Vec<u32>,
    arrived: Vec<u32>,
    /// Of one command that lands in the output.
    stretches: Vec<Stretch>,
    /// Parts of commands that failed, to be read by themselves. Unallocated as long as none does.
    again: Vec<Command>,
}

/// A command that has not been sent.
const UNSENT: u32 = u32::MAX;
/// A command that has ended.
const ENDED: u32 = u32::MAX - 1;
/// A command whose data lands in the output.
const OUTPUT: u32 = u32::MAX - 2;

impl Landings {
    /// For that many commands, of so many bytes at most.
    pub(crate) fn new(commands: usize, transfer: usize) -> Self {
        Self {
            places: vec![UNSENT; commands],
            arrived: Vec::with_capacity(commands),
            // All but the first and the last are whole pages.
            stretches: Vec::with_capacity(transfer / PAGE + 2),
            again: Vec::new(),
        }
    }
}

impl Lane {
    /// Takes a queue pair of `depth` on `member`, drive number `drive`, with landing memory for two times `half` bytes.
    pub(crate) fn new(
        drive: u16,
        member: &Arc<MemberDrive>,
        depth: u32,
        timeout: Duration,
        half: usize,
    ) -> Result<Self, DriverError> {
        let half = half.max(member.transfer_limit() as usize).next_multiple_of(PAGE);
        let pair = member.shared_pair(depth, timeout)?;
        let memory = member.controller().allocate(half * 2)?;
        lock(&pair).keep(memory.clone());
        let landing = Landing { memory, half, current: 0, filled: 0, outstanding: [0; 2] };
        Ok(Self {
            drive,
            pair,
            member: member.clone(),
            landing,
            lent: None,
            output: None,
            broken: false,
            blame: None,
            unusable: None,
            sent: 0..0,
            end: 0,
            outstanding: 0,
        })
    }

    /// Makes sure that the queue can be used, and that it leads to what it did: brings it back if it failed, or if the
    /// controller was reset meanwhile. Whether that was needed. A drive that does not come back leaves the lane unusable
    /// for this look-up, at once if it was given up.
    pub(crate) fn ready(&mut self, now: Duration) -> Result<bool, NamespaceChanged> {
        self.unusable = None;
        match self.bring_back(now) {
            Ok(revived) => Ok(revived),
            Err(NotReady::Changed(changed)) => Err(changed),
            Err(NotReady::Drive(error)) => {
                self.broken = true;
                self.unusable = Some(error);
                Ok(false)
            }
        }
    }

    fn bring_back(&mut self, now: Duration) -> Result<bool, NotReady> {
        let controller = self.member.controller();
        if let Some(failure) = controller.failure() {
            self.blame = None;
            return Err(DriverError::GivenUp { function: controller.name().clone(), failure }.into());
        }
        let pair = &self.pair;
        let revive = self.broken || lock(pair).poll(|_| {}).is_err();
        if revive {
            self.broken = true;
            lock(pair).leave();
            self.member.revive(self.blame.take(), || lock(pair).recreate(|_| {}))?;
            self.landing.reset();
            self.broken = false;
            self.take_back();
        }
        match self.member.watch::<NotReady>(now) {
            Ok(()) => Ok(revive),
            Err(NotReady::Drive(error)) => {
                // It does not even say what it is.
                self.accuse(&error);
                Err(error.into())
            }
            Err(changed) => Err(changed),
        }
    }

    /// Lets commands of a look-up land in `output`, if the drive reaches it.
    fn lend(&mut self, output: &mut DmaBuffer) {
        self.take_back();
        if self.lent.is_some() || !self.is_usable() {
            return;
        }
        if let Some(mapped) = output.lend(self.member.controller().function()) {
            lock(&self.pair).keep(mapped.clone());
            self.output = Some(mapped.iova());
            self.lent = Some(mapped);
        }
    }

    /// Ends what [`lend`](Self::lend) began, unless a command may still write there.
    fn take_back(&mut self) {
        self.output = None;
        if let Some(mapped) = &self.lent
            && !self.broken
            && lock(&self.pair).release(mapped)
        {
            self.lent = None;
        }
    }

    /// Notes what the drive is to blame for.
    fn accuse(&mut self, error: &DriverError) {
        let blames = matches!(
            error,
            DriverError::TimedOut { .. }
                | DriverError::Fatal { .. }
                | DriverError::Gone { .. }
                | DriverError::Stuck { .. }
        );
        if blames && self.blame.is_none() {
            self.blame = Some(lock(&self.pair).blame(error.clone()));
        }
    }

    /// Whether commands can be sent: it was brought back, and has not failed since.
    fn is_usable(&self) -> bool {
        self.unusable.is_none() && !self.broken
    }

    fn is_done(&self) -> bool {
        self.outstanding == 0 && self.sent.end == self.end
    }

    /// Sends as many commands as there is room for, with one doorbell.
    fn submit(
        &mut self,
        commands: &[Command],
        landings: &mut Landings,
        reading: &mut Reading,
        meanwhile: &impl Meanwhile,
    ) -> Result<(), DriverError> {
        let Some(unsent) = commands.get(self.sent.end..self.end).filter(|unsent| !unsent.is_empty()) else {
            return Ok(());
        };
        let mut pair = lock(&self.pair);
        let (ns, iova, before) = (self.member.namespace(), self.landing.memory.iova(), self.sent.end);
        for (command, place) in unsent.iter().zip(&mut landings.places[before..]) {
            let bytes = (command.lbas as usize) << ns.lba_shift();
            if !pair.has_room() {
                break;
            }
            let output = self.output.filter(|_| meanwhile.output(command, &mut landings.stretches));
            let (at, data) = match (output, &mut landings.stretches[..]) {
                (Some(begin), [stretch]) => (OUTPUT, Data::Contiguous { iova: begin + stretch.iova, len: stretch.len }),
                (Some(begin), stretches) => {
                    stretches.iter_mut().for_each(|stretch| stretch.iova += begin);
                    (OUTPUT, Data::Scattered(stretches))
                }
                (None, _) => {
                    let Some(at) = self.landing.take(bytes) else { break };
                    (at as u32, Data::Contiguous { iova: iova + at as u64, len: bytes as u64 })
                }
            };
            if let Err(refusal) = pair.read(ns, command.lba, command.lbas, data, self.sent.end as u64) {
                return Err(pair.refused(refusal));
            }
            *place = at;
            reading.bytes += bytes as u64;
            self.outstanding += 1;
            self.sent.end += 1;
        }
        if self.sent.end != before {
            pair.ring()?;
            reading.sq_doorbells += 1;
        } else if self.outstanding == 0 {
            // Nothing is under way that could make room.
            return Err(pair.refused(PushError::Full));
        }
        Ok(())
    }

    /// Notes what has come, and with `expire` what should have.
    fn poll(
        &mut self,
        expire: bool,
        commands: &[Command],
        landings: &mut Landings,
        reading: &mut Reading,
        meanwhile: &mut impl Meanwhile,
    ) -> Result<(), DriverError> {
        if self.outstanding == 0 {
            return Ok(());
        }
        let mut failed = None;
        let mut pair = lock(&self.pair);
        let on = |completion: Completion| {
            self.outstanding -= 1;
            if completion.is_success() {
                landings.arrived.push(completion.tag as u32);
                return;
            }
            let index = completion.tag as usize;
            if let Some(place) = landings.places.get_mut(index) {
                // Memory of a command that timed out is not used before the queue was made anew.
                match completion.ended {
                    Ended::Answered(_) if *place == OUTPUT => {}
                    Ended::Answered(_) => self.landing.give_back(*place as usize),
                    _ => self.broken = true,
                }
                *place = ENDED;
            }
            let Some(command) = commands.get(index) else { return };
            // Some of its blocks are bad; the rows of the others can be had. DNR is about this command, not about its parts.
            if matches!(completion.ended, Ended::Answered(status) if status.is_media_error()) {
                let parts = meanwhile.parts(command);
                if parts.len() > 1 {
                    reading.split += 1;
                    landings.again.extend(parts);
                    return;
                }
            }
            meanwhile.fail(command);
            failed.get_or_insert(completion);
        };
        let polled = if expire { pair.expire(on) } else { pair.poll(on) };
        if let Some(completion) = failed
            && (self.broken || reading.failure.is_none())
        {
            let error = pair.error(&completion);
            drop(pair);
            if let Some(error) = error {
                self.accuse(&error);
                reading.failure.get_or_insert(error);
            }
        }
        polled.map(drop)
    }

    /// Polls, lands what has come, and sends more. Returns how many commands arrived.
    fn serve(
        &mut self,
        expire: bool,
        commands: &[Command],
        landings: &mut Landings,
        reading: &mut Reading,
        meanwhile: &mut impl Meanwhile,
    ) -> usize {
        let polled = self.poll(expire, commands, landings, reading, meanwhile);
        let count = landings.arrived.len();
        if count != 0 {
            self.member.controller().proven();
        }
        for index in landings.arrived.drain(..) {
            if let Some(place) = landings.places.get_mut(index as usize) {
                let command = &commands[index as usize];
                match std::mem::replace(place, ENDED) {
                    OUTPUT => {
                        reading.landed += u64::from(command.rows);
                        meanwhile.landed(command);
                    }
                    at => {
                        meanwhile.land(command, self.landing.memory.memory(), at as usize);
                        self.landing.give_back(at as usize);
                    }
                }
            }
        }
        let sent = match polled {
            Ok(()) if !self.broken => self.submit(commands, landings, reading, meanwhile),
            Ok(()) => Ok(()),
            Err(error) => Err(error),
        };
        match sent {
            Err(error) => self.give_up(error, commands, landings, reading, meanwhile),
            // What is under way may still come; nothing more is sent after a time-out.
            Ok(()) if self.broken => self.fail_rest(commands, landings, meanwhile),
            Ok(()) => {}
        }
        count
    }

    fn fail_rest(&mut self, commands: &[Command], landings: &mut Landings, meanwhile: &mut impl Meanwhile) {
        let rest = self.sent.end..self.end;
        landings.places[rest.clone()].fill(ENDED);
        commands[rest].iter().for_each(|command| meanwhile.fail(command));
        self.end = self.sent.end;
    }

    /// The queue is of no use any more: everything that has not ended fails.
    fn give_up(
        &mut self,
        error: DriverError,
        commands: &[Command],
        landings: &mut Landings,
        reading: &mut Reading,
        meanwhile: &mut impl Meanwhile,
    ) {
        self.broken = true;
        self.accuse(&error);
        lock(&self.pair).leave();
        if matches!(error, DriverError::Gone { .. }) {
            self.member.controller().give_up_if_gone();
        }
        let mine = self.sent.start..self.end;
        for (command, place) in commands[mine.clone()].iter().zip(&mut landings.places[mine]) {
            if std::mem::replace(place, ENDED) != ENDED {
                meanwhile.fail(command);
            }
        }
        (self.outstanding, self.end) = (0, self.sent.end);
        reading.failure.get_or_insert(error);
    }
}

/// Brings queues back that failed. That may reset the controller under others.
pub(crate) fn ready(lanes: &mut [Lane], now: Duration) -> Result<(), NamespaceChanged> {
    for _ in 0..=lanes.len() {
        let mut revived = false;
        for lane in &mut *lanes {
            revived |= lane.ready(now)?;
        }
        if !revived {
            break;
        }
    }
    Ok(())
}

/// Lets commands of the next [`read`] land in `output`, from drives that reach it.
pub(crate) fn lend(lanes: &mut [Lane], output: &mut DmaBuffer) {
    lanes.iter_mut().for_each(|lane| lane.lend(output));
}

/// Ends what [`lend`] began. Queues with commands that may still write to the output are brought back: when this returns, nothing does but through
/// those for which that failed, which keep it until then.
pub(crate) fn take_back(lanes: &mut [Lane], now: Duration) {
    let mut left = false;
    for lane in &mut *lanes {
        let lent = lane.output.is_some();
        lane.take_back();
        left |= lent && lane.lent.is_some();
    }
    if left {
        // What becomes of the drives is for the next look-up to say.
        let _ = ready(lanes, now);
    }
}

/// Reads `commands`, which are in order of address, through `lanes`: those of a drive are spread evenly over its lanes.
/// While drives work, `meanwhile` does. Every wait is bounded by the queues' time-outs. A command that fails for a bad block is read again in
/// its parts, each once, when all others have ended.
pub(crate) fn read(
    lanes: &mut [Lane],
    commands: &[Command],
    landings: &mut Landings,
    clock: &dyn Clock,
    meanwhile: &mut impl Meanwhile,
) -> Reading {
    let mut reading = Reading::default();
    let doorbells = |lanes: &[Lane]| lanes.iter().map(|lane| lock(&lane.pair).doorbells()).sum::<u64>();
    let doorbells_before = doorbells(lanes);
    round(lanes, commands, landings, clock, meanwhile, &mut reading);
    // A part has no parts: there is a second round and no third.
    while !landings.again.is_empty() {
        let mut parts = std::mem::take(&mut landings.again);
        parts.sort_unstable_by_key(|part| (part.drive, part.lba));
        round(lanes, &parts, landings, clock, meanwhile, &mut reading);
    }
    reading.cq_doorbells = (doorbells(lanes) - doorbells_before).saturating_sub(reading.sq_doorbells);
    reading
}

/// Reads commands until each has ended, or is to be read again.
fn round(
    lanes: &mut [Lane],
    commands: &[Command],
    landings: &mut Landings,
    clock: &dyn Clock,
    meanwhile: &mut impl Meanwhile,
    reading: &mut Reading,
) {
    let began = clock.now();
    landings.places[..commands.len()].fill(UNSENT);
    assign(lanes, commands, reading, meanwhile);
    for lane in lanes.iter_mut() {
        if let Err(error) = lane.submit(commands, landings, reading, meanwhile) {
            lane.give_up(error, commands, landings, reading, meanwhile);
        }
    }
    reading.time += clock.now().saturating_sub(began);

    while meanwhile.step() {
        for lane in lanes.iter_mut() {
            lane.serve(false, commands, landings, reading, meanwhile);
        }
    }
    let (mut turn, mut idle) = (0u32, None);
    while lanes.iter().any(|lane| !lane.is_done()) {
        let looked = turn % TURNS == TURNS - 1;
        let mut arrived = 0;
        for lane in lanes.iter_mut() {
            arrived += lane.serve(looked, commands, landings, reading, meanwhile);
        }
        if arrived != 0 {
            if let Some((since, _)) = idle.take() {
                reading.time += clock.now().saturating_sub(since);
            }
            turn = 0;
            continue;
        }
        if idle.is_none() || looked {
            let now = clock.now();
            let (since, checked) = idle.get_or_insert((now, now));
            if now.saturating_sub(*checked) >= HEALTH {
                *checked = now;
                for lane in lanes.iter_mut().filter(|lane| !lane.is_done()) {
                    if let Err(error) = lane.member.controller().check_health() {
                        lane.give_up(error, commands, landings, reading, meanwhile);
                    }
                }
            }
            if now.saturating_sub(*since) >= SPIN {
                clock.sleep(Duration::from_micros(100));
            }
        }
        clock.relax(turn);
        turn = turn.wrapping_add(1);
    }
    if let Some((since, _)) = idle {
        reading.time += clock.now().saturating_sub(since);
    }
}

/// Gives every lane its part of the commands.
fn assign(lanes: &mut [Lane], commands: &[Command], reading: &mut Reading, meanwhile: &mut impl Meanwhile) {
    lanes.iter_mut().for_each(|lane| (lane.sent, lane.end) = (0..0, 0));
    let mut first = 0;
    while let Some(drive) = commands.get(first).map(|command| command.drive) {
        let count = commands[first..].partition_point(|command| command.drive == drive);
        let mine = || lanes.iter().filter(|lane| lane.drive == drive);
        let usable = mine().filter(|lane| lane.is_usable()).count();
        if usable == 0 && reading.failure.is_none() {
            reading.failure = mine().find_map(|lane| lane.unusable.clone());
        }
        let share = count.div_ceil(usable.max(1));
        let mut next = first;
        for lane in lanes.iter_mut().filter(|lane| lane.drive == drive && lane.is_usable()) {
            let end = (next + share).min(first + count);
            (lane.sent, lane.end) = (next..next, end);
            next = end;
        }
        // Nobody serves a drive that is missing, or does not come back.
        commands[next..first + count].iter().for_each(|command| meanwhile.fail(command));
        first += count;
    }
}
