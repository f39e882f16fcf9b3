//! The stage *read*: sends commands to the drives, many with one doorbell, and takes what comes back. Other work is
//! done while drives read.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use warprow_dma::{Clock, DmaBuffer, DmaMemory, MappedMemory, PAGE};
use warprow_driver::prp::{Data, IovaRange};
use warprow_driver::{Blame, CommandEnd, Completion, DriverError, PushError};

use crate::stage::ReadCommand;
use warprow_store::NamespaceChanged;
use warprow_store::view::{MemberDrive, SharedPair, lock};

/// Turns of the waiting loop between two looks at the clock.
const TURNS: u32 = 64;
/// How long a wait spins and yields before it sleeps between looks.
const SPIN: Duration = Duration::from_millis(20);
/// Where nothing has come in so many turns, although so many commands are under way, the drives decide how long it takes: the core is left
/// to others for a while.
const POLLS: u32 = 128;
const MANY: u32 = 64;
const NAP: Duration = Duration::from_micros(50);
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
    lent: Option<Arc<MappedMemory>>,
    /// Where the drive sees the output of the look-up under way, if rows can land in it.
    output: Option<u64>,
    /// Whether the queue failed, and must be brought back before it is used.
    broken: bool,
    /// If the queue failed through a fault of the drive: which one.
    blame: Option<Blame>,
    /// If the queue could not be brought back for this look-up: why.
    unusable: Option<DriverError>,
    /// Commands of this look-up that were sent.
    sent: Range<usize>,
    /// The end of the commands of this look-up that this lane is to send.
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

/// Memory for the data of reads that are under way. Its two halves take turns. A half is filled from its beginning,
/// once no command is outstanding whose data lands in it.
#[derive(Debug)]
struct Landing {
    memory: Arc<MappedMemory>,
    half: usize,
    /// The half that is being filled: 0 or 1.
    current: usize,
    /// The byte of that half up to which it is filled.
    filled: usize,
    outstanding: [u32; 2],
}

impl Landing {
    /// Takes room for `bytes` bytes. Returns its first byte; `None`: there is no room until commands have ended.
    #[inline]
    fn take(&mut self, bytes: usize) -> Option<usize> {
        // Data crosses no page boundary that it need not cross.
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

/// The work beside reading: what is done while drives read, and what is done with the rows that they bring.
pub(crate) trait Meanwhile {
    /// Does a small part of the work that needs no drive; `false` when nothing of it is left.
    fn step(&mut self) -> bool;

    /// Takes the data of a command, which has arrived and lies in `memory` from byte `place` on.
    fn land(&mut self, command: &ReadCommand, memory: &DmaMemory, place: usize);

    /// Whether the data of a command can land in the output. If so, `stretches` says where: `iova` of a stretch is a
    /// byte of the output buffer, and the stretches meet at pages, [as PRPs demand](Data::Scattered).
    fn output(&self, _command: &ReadCommand, _stretches: &mut Vec<IovaRange>) -> bool {
        false
    }

    /// Takes note that the data of a command has landed where [`output`](Self::output) said.
    fn landed(&mut self, _command: &ReadCommand) {}

    /// Takes note that the rows of a command could not be read.
    fn fail(&mut self, command: &ReadCommand);

    /// The [parts](crate::stage::split()) of a command.
    fn parts(&self, command: &ReadCommand) -> Vec<ReadCommand>;
}

/// What reading did, and what it took.
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

/// Where the data of each command lands, and which commands have arrived. The lists have room for as many commands as
/// there can be.
#[derive(Debug)]
pub(crate) struct Landings {
    places: Vec<u32>,
    arrived: Vec<u32>,
    /// The stretches of the output of one command that lands there.
    stretches: Vec<IovaRange>,
    /// Parts of commands that failed, to be read by themselves. It is unallocated as long as no command fails.
    again: Vec<ReadCommand>,
}

/// A command that has not been sent.
const UNSENT: u32 = u32::MAX;
/// A command that has ended.
const ENDED: u32 = u32::MAX - 1;
/// A command whose data lands in the output.
const OUTPUT: u32 = u32::MAX - 2;

impl Landings {
    /// Lists for `commands` commands, of at most `transfer` bytes each.
    pub(crate) fn new(commands: usize, transfer: usize) -> Self {
        Self {
            places: vec![UNSENT; commands],
            arrived: Vec::with_capacity(commands),
            // All stretches but the first and the last are whole pages.
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

    /// Makes sure that the queue can be used, and that its namespace is what it was: brings the queue back if it
    /// failed, or if the controller was reset meanwhile. Returns whether that was needed. If the drive does not come
    /// back, the lane cannot be used for this look-up; for a drive that was given up, no step is tried.
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
                // The drive does not even answer Identify.
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

    /// Notes `error` as the drive's fault, if it is one.
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

    /// Whether commands can be sent: the queue works, or was brought back, and has not failed since.
    fn is_usable(&self) -> bool {
        self.unusable.is_none() && !self.broken
    }

    fn is_done(&self) -> bool {
        self.outstanding == 0 && self.sent.end == self.end
    }

    /// Sends as many commands as there is room for, with one doorbell.
    fn submit(
        &mut self,
        commands: &[ReadCommand],
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

    /// Takes completions that have come, and with `expire` also the commands whose time is up.
    fn poll(
        &mut self,
        expire: bool,
        commands: &[ReadCommand],
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
                // The landing memory of a command that timed out is not used again before the queue was made anew.
                match completion.ended {
                    CommandEnd::Answered(_) if *place == OUTPUT => {}
                    CommandEnd::Answered(_) => self.landing.give_back(*place as usize),
                    _ => self.broken = true,
                }
                *place = ENDED;
            }
            let Some(command) = commands.get(index) else { return };
            // Some of the command's blocks are bad, and the rows in its other blocks can be read. The status bit DNR
            // (do not retry) is about this command, not about its parts.
            if matches!(completion.ended, CommandEnd::Answered(status) if status.is_media_error()) {
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

    /// Takes completions, hands over the data that has come, and sends more commands. Returns how many commands
    /// arrived.
    fn serve(
        &mut self,
        expire: bool,
        commands: &[ReadCommand],
        landings: &mut Landings,
        reading: &mut Reading,
        meanwhile: &mut impl Meanwhile,
    ) -> usize {
        let polled = self.poll(expire, commands, landings, reading, meanwhile);
        let count = landings.arrived.len();
        if count != 0 {
            self.member.controller().note_success();
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
            // After a time-out, commands that are under way may still arrive, and no more are sent.
            Ok(()) if self.broken => self.fail_rest(commands, landings, meanwhile),
            Ok(()) => {}
        }
        count
    }

    fn fail_rest(&mut self, commands: &[ReadCommand], landings: &mut Landings, meanwhile: &mut impl Meanwhile) {
        let rest = self.sent.end..self.end;
        landings.places[rest.clone()].fill(ENDED);
        commands[rest].iter().for_each(|command| meanwhile.fail(command));
        self.end = self.sent.end;
    }

    /// Gives the queue up for this look-up: all its commands that have not ended fail.
    fn give_up(
        &mut self,
        error: DriverError,
        commands: &[ReadCommand],
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

/// Brings back queues that failed. That may reset a controller whose other queues are in use, also by other lanes; so
/// all lanes are looked at again until none had to be brought back.
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

/// Ends what [`lend`] began. Queues with commands that may still write to the output are brought back. When this
/// returns, no drive writes to the output, except through queues that could not be brought back; these keep the
/// output's memory until they are.
pub(crate) fn take_back(lanes: &mut [Lane], now: Duration) {
    let mut left = false;
    for lane in &mut *lanes {
        let lent = lane.output.is_some();
        lane.take_back();
        left |= lent && lane.lent.is_some();
    }
    if left {
        // An error of a drive is not returned here: the next look-up finds it again.
        let _ = ready(lanes, now);
    }
}

/// Reads `commands`, which are in order of address, through `lanes`: the commands of a drive are spread evenly over its
/// lanes. While drives work, the steps of `meanwhile` are done. Every wait is bounded by the queues' time-outs. A
/// command that fails for a bad block is read again in its parts, each once, when all other commands have ended.
pub(crate) fn read(
    lanes: &mut [Lane],
    commands: &[ReadCommand],
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

/// Reads commands until each has ended, or has been noted to be read again in parts.
fn round(
    lanes: &mut [Lane],
    commands: &[ReadCommand],
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
        let under_way: u32 = lanes.iter().map(|lane| lane.outstanding).sum();
        if turn >= POLLS && under_way >= MANY && clock.is_concurrent() {
            clock.sleep(NAP);
        } else {
            clock.relax(turn);
        }
        turn = turn.wrapping_add(1);
    }
    if let Some((since, _)) = idle {
        reading.time += clock.now().saturating_sub(since);
    }
}

/// Gives each lane its share of its drive's commands.
fn assign(lanes: &mut [Lane], commands: &[ReadCommand], reading: &mut Reading, meanwhile: &mut impl Meanwhile) {
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
        // Commands for a drive without a usable lane fail: the drive is missing, or did not come back.
        commands[next..first + count].iter().for_each(|command| meanwhile.fail(command));
        first += count;
    }
}
