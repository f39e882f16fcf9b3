//! A model of the commit protocol and of updates' logs, checked exhaustively: every order of steps, every power cut with every
//! part of the caches kept, lost or torn, kills, drives that fail a step. `docs/layout.md`, "The model", says which step of it is which
//! function.
//!
//! A store of two drives, with one table of one row. A drive is its superblocks, catalogue extents, and three chunks of three units. The
//! row's value is the number of the update that it had last. What was asked for and not acknowledged may come about or not; what was
//! acknowledged, or shown after opening, stays.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Checker, Model, Property};

const DRIVES: u8 = 2;
const CHUNKS: u8 = 3;
/// Units of a chunk: the log has one update in each but the last, which is for the end unit; rows take the first.
const UNITS: u8 = 3;

/// Where a block lies on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
    Superblock { slot: u8, tail: bool },
    Catalogue { extent: u8 },
    Unit { chunk: u8, unit: u8 },
}

/// What lies there. (A checksum tells `Torn`.)
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Block {
    Empty,
    Torn,
    Superblock {
        epoch: u8,
        commit: u8,
    },
    Catalogue {
        epoch: u8,
        commit: u8,
        catalogue: Catalogue,
    },
    /// The row of a generation, with updates up to this number, and its value.
    Row {
        generation: u8,
        upto: u8,
        value: u8,
    },
    /// An update, in the chunk that this commit allotted, of which so many units were durable.
    Update {
        allotted: u8,
        durable: u8,
        sequence: u8,
        value: u8,
    },
    /// The end of a log: all units before it are durable.
    End {
        allotted: u8,
        durable: u8,
    },
}

impl Block {
    /// Of a log's unit: the commit that allotted its chunk, and how many units were durable.
    fn logged(&self) -> Option<(u8, u8)> {
        match self {
            Self::Update { allotted, durable, .. } | Self::End { allotted, durable } => Some((*allotted, *durable)),
            _ => None,
        }
    }
}

type At = (u8, u8);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Catalogue {
    generations: Vec<Generation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Generation {
    id: u8,
    /// Shown since this epoch; 0: standby.
    shown: u8,
    /// Drive and chunk of its row.
    chunk: At,
    base: u8,
    log: Vec<LogChunk>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LogChunk {
    chunk: At,
    units: Option<u8>,
    commit: u8,
    first: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Drive {
    durable: BTreeMap<Place, Block>,
    /// Written, and not flushed since: each may reach the medium or not, in any order.
    cache: Vec<(Place, Block)>,
}

impl Drive {
    fn read(&self, place: Place) -> &Block {
        let cached = self.cache.iter().rev().find(|(at, _)| *at == place).map(|(_, block)| block);
        cached.or_else(|| self.durable.get(&place)).unwrap_or(&Block::Empty)
    }

    fn flush(&mut self) {
        self.durable.extend(self.cache.drain(..));
    }
}

/// One operation of a drive, or the end of what was to be done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Op {
    Write(u8, Place, Block),
    Flush(u8),
    /// Superblocks come next: what fails from here on may have come about.
    Superblocks,
    /// The chunk for the update is allotted: from here on a failure leaves that.
    Allotted(Process),
    Done(Process),
}

/// What a process that has the store open knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    epoch: u8,
    commit: u8,
    catalogue: Catalogue,
    /// Of the log of generation 0: units that count in its last chunk, whether that may be appended to, and the last number.
    units: u8,
    fresh: bool,
    /// The last unit that a torn batch left behind them, to be cleared before anything is appended.
    behind: Option<u8>,
    doubt: bool,
    sequence: u8,
    value: u8,
}

/// What somebody sees who opens the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Seen {
    shown: u8,
    second: bool,
    value: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Task {
    Open,
    /// So many at once: one unit each.
    Update(u8),
    Compact,
    LoadBeside,
    Switch,
    Drop,
}

/// What is seen once something is done, of what was seen before.
type Change = Box<dyn Fn(Seen) -> Seen>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    drives: Vec<Drive>,
    process: Option<Process>,
    /// What is being done, and what of it is left, the next last.
    task: Option<Task>,
    left: Vec<Op>,
    /// Acknowledged, or shown; and what else may be there after a crash.
    sure: Seen,
    maybe: BTreeSet<Seen>,
    /// `maybe` as it was before the task.
    before: BTreeSet<Seen>,
    broken: Option<&'static str>,
    commits: u8,
    values: u8,
    tasks: u8,
    crashes: u8,
    failures: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Begin(Task),
    Step,
    /// The drive fails the next operation; a write is in its cache, or not.
    Fail {
        lands: bool,
    },
    /// Power is cut: digits in base three say of each write in a cache whether it is lost, kept or torn.
    Cut(u32),
    /// The process is killed; the drives have power.
    Kill,
}

/// A line of the code left out, or in another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    NoFlushOfData,
    NoFlushOfCatalogues,
    NoFlushOfSuperblocks,
    NoFlushOfTails,
    NoFlushOfBatch,
    NoFlushWhenOpened,
    SuperblockBeforeCatalogue,
    CommitBeforeData,
    CompactInPlace,
    NoClearing,
    NoFlushOfClearing,
    AppendAfterFailure,
    AllotmentsAlike,
    GiveStandbyAway,
}

#[derive(Debug, Clone)]
struct Protocol {
    flaw: Flaw,
    tasks: u8,
    crashes: u8,
    failures: u8,
}

fn all() -> impl Iterator<Item = u8> {
    0..DRIVES
}

fn flush(flawed: bool, ops: &mut Vec<Op>) {
    if !flawed {
        ops.extend(all().map(Op::Flush));
    }
}

impl Protocol {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// A chunk that nobody has, of the drive with most of them.
    fn free(&self, catalogue: &Catalogue, also: Option<At>) -> Option<At> {
        let has = |generation: &Generation| {
            let own = (!self.is(Flaw::GiveStandbyAway) || generation.shown != 0).then_some(generation.chunk);
            own.into_iter().chain(generation.log.iter().map(|log| log.chunk)).collect::<Vec<_>>()
        };
        let used: Vec<At> = catalogue.generations.iter().flat_map(has).chain(also).collect();
        let of =
            |drive| (0..CHUNKS).map(move |chunk| (drive, chunk)).filter(|at| !used.contains(at)).collect::<Vec<_>>();
        all().map(of).max_by_key(|free| free.len())?.first().copied()
    }

    /// `Writing::commit`: data that was written before is made durable first.
    fn commit(
        &self,
        state: &mut State,
        from: &Process,
        data: Vec<Op>,
        change: impl FnOnce(&mut Catalogue, u8, u8),
    ) -> (Vec<Op>, Process) {
        let mut to = from.clone();
        to.epoch += 1;
        state.commits += 1;
        to.commit = state.commits;
        let allotted = if self.is(Flaw::AllotmentsAlike) { 0 } else { to.commit };
        change(&mut to.catalogue, to.epoch, allotted);
        let epoch = to.epoch;
        let commit = to.commit;
        let slot = to.epoch % 2;
        let block = Block::Catalogue { epoch, commit, catalogue: to.catalogue.clone() };
        let mut ops = Vec::new();
        let (late, data) = if self.is(Flaw::CommitBeforeData) { (data, Vec::new()) } else { (Vec::new(), data) };
        if !data.is_empty() {
            ops.extend(data);
            flush(self.is(Flaw::NoFlushOfData), &mut ops);
        }
        let catalogues: Vec<Op> =
            all().map(|drive| Op::Write(drive, Place::Catalogue { extent: slot }, block.clone())).collect();
        let superblocks = |tail| {
            let block = Block::Superblock { epoch, commit };
            all().map(move |drive| Op::Write(drive, Place::Superblock { slot, tail }, block.clone()))
        };
        if self.is(Flaw::SuperblockBeforeCatalogue) {
            ops.push(Op::Superblocks);
            ops.extend(superblocks(false));
            flush(false, &mut ops);
            ops.extend(catalogues);
            flush(false, &mut ops);
        } else {
            ops.extend(catalogues);
            flush(self.is(Flaw::NoFlushOfCatalogues), &mut ops);
            ops.push(Op::Superblocks);
            ops.extend(superblocks(false));
            flush(self.is(Flaw::NoFlushOfSuperblocks), &mut ops);
        }
        ops.extend(superblocks(true));
        flush(self.is(Flaw::NoFlushOfTails), &mut ops);
        if !late.is_empty() {
            ops.extend(late);
            flush(false, &mut ops);
        }
        (ops, to)
    }

    /// What a task does, and what may be seen of it; last, what is seen when it is done.
    fn begin(&self, state: &mut State, task: Task) -> Option<(Vec<Op>, Vec<Change>)> {
        let Some(process) = state.process.clone() else {
            return match self.open(&state.drives) {
                Ok(ops) => Some((ops, Vec::new())),
                Err(what) => {
                    state.broken = Some(what);
                    None
                }
            };
        };
        let generations = &process.catalogue.generations;
        let first = generations.first()?.clone();
        let second = generations.get(1).cloned();
        match task {
            Task::Open => None,
            Task::Update(count) => {
                let values = state.values + 1..=state.values + count;
                state.values += count;
                let mut ops = Vec::new();
                let mut now = process.clone();
                if let (Some(behind), Some(entry)) = (now.behind.take(), first.log.last()) {
                    if !self.is(Flaw::NoClearing) {
                        let clear =
                            |unit| Op::Write(entry.chunk.0, Place::Unit { chunk: entry.chunk.1, unit }, Block::Empty);
                        ops.extend((now.units..=behind).map(clear));
                        ops.extend((!self.is(Flaw::NoFlushOfClearing)).then_some(Op::Flush(entry.chunk.0)));
                    }
                    now.fresh = true;
                }
                if !now.fresh || now.units + count >= UNITS {
                    let chunk = self.free(&now.catalogue, None)?;
                    let last = now.units;
                    let sequence = now.sequence;
                    let (commit, allotted) = self.commit(state, &now, Vec::new(), |catalogue, _, commit| {
                        let log = &mut catalogue.generations[0].log;
                        if let Some(entry) = log.last_mut() {
                            entry.units = Some(last);
                        }
                        log.retain(|entry| entry.units != Some(0));
                        log.push(LogChunk { chunk, units: None, commit, first: sequence + 1 });
                    });
                    now = Process { units: 0, fresh: true, doubt: false, ..allotted };
                    ops.extend(commit);
                    ops.push(Op::Allotted(now.clone()));
                }
                let entry = now.catalogue.generations[0].log.last()?.clone();
                let allotted = entry.commit;
                let durable = now.units;
                for value in values.clone() {
                    now.sequence += 1;
                    let block = Block::Update { allotted, durable, sequence: now.sequence, value };
                    let place = Place::Unit { chunk: entry.chunk.1, unit: now.units };
                    ops.push(Op::Write(entry.chunk.0, place, block));
                    (now.units, now.value) = (now.units + 1, value);
                }
                if !self.is(Flaw::NoFlushOfBatch) {
                    ops.push(Op::Flush(entry.chunk.0));
                }
                let end = Block::End { allotted, durable: now.units };
                ops.push(Op::Write(entry.chunk.0, Place::Unit { chunk: entry.chunk.1, unit: now.units }, end));
                ops.push(Op::Done(now));
                // A crash may bring the first of them.
                let change = |value| -> Change { Box::new(move |seen| Seen { value, ..seen }) };
                Some((ops, values.map(change).collect()))
            }
            Task::Compact => {
                if first.base == process.sequence {
                    return None;
                }
                let chunk =
                    if self.is(Flaw::CompactInPlace) { first.chunk } else { self.free(&process.catalogue, None)? };
                let upto = process.sequence;
                let value = process.value;
                let row = Op::Write(
                    chunk.0,
                    Place::Unit { chunk: chunk.1, unit: 0 },
                    Block::Row { generation: 0, upto, value },
                );
                let (mut ops, to) = self.commit(state, &process, vec![row], |catalogue, _, _| {
                    let generation = &mut catalogue.generations[0];
                    (generation.chunk, generation.base) = (chunk, upto);
                    generation.log.clear();
                });
                ops.push(Op::Done(Process { units: 0, fresh: false, behind: None, doubt: false, ..to }));
                // It ends what was in doubt.
                Some((ops, vec![Box::new(move |seen| Seen { value, ..seen })]))
            }
            Task::LoadBeside => {
                if second.is_some() {
                    return None;
                }
                let chunk = self.free(&process.catalogue, None)?;
                let block = Block::Row { generation: 1, upto: 0, value: 0 };
                let row = Op::Write(chunk.0, Place::Unit { chunk: chunk.1, unit: 0 }, block);
                let (mut ops, to) = self.commit(state, &process, vec![row], |catalogue, _, _| {
                    catalogue.generations.push(Generation { id: 1, shown: 0, chunk, base: 0, log: Vec::new() });
                });
                ops.push(Op::Done(to));
                Some((ops, vec![Box::new(|seen| Seen { second: true, ..seen })]))
            }
            Task::Switch => {
                let second = second?;
                let shown = if second.shown == 0 { 1 } else { 0 };
                let (mut ops, to) = self.commit(state, &process, Vec::new(), |catalogue, epoch, _| {
                    for it in &mut catalogue.generations {
                        it.shown = if it.id == shown { epoch } else { 0 };
                    }
                });
                ops.push(Op::Done(to));
                Some((ops, vec![Box::new(move |seen| Seen { shown, ..seen })]))
            }
            Task::Drop => {
                if second?.shown != 0 {
                    return None;
                }
                let (mut ops, to) =
                    self.commit(state, &process, Vec::new(), |catalogue, _, _| catalogue.generations.truncate(1));
                ops.push(Op::Done(to));
                Some((ops, vec![Box::new(|seen| Seen { second: false, ..seen })]))
            }
        }
    }

    /// `open`, and the replay of the log: what is to be written, and what is known then.
    fn open(&self, drives: &[Drive]) -> Result<Vec<Op>, &'static str> {
        let slots =
            |drive: &Drive, slot| [false, true].map(|tail| drive.read(Place::Superblock { slot, tail }).clone());
        let newest = |drive: &Drive| {
            let blocks = [slots(drive, 0), slots(drive, 1)].concat();
            let valid = blocks.into_iter().filter_map(|block| match block {
                Block::Superblock { epoch, commit } => Some((epoch, commit)),
                _ => None,
            });
            valid.max().ok_or("TornSuperblock")
        };
        let all_newest = drives.iter().map(newest).collect::<Result<Vec<_>, _>>()?;
        let (epoch, commit) = *all_newest.iter().max().ok_or("NoDrives")?;
        if all_newest.iter().any(|pair| pair.0 == epoch && pair.1 != commit) {
            return Err("Disagreement");
        }
        // A slot of the next epoch of which both copies are bad, on all of them.
        if drives.iter().all(|drive| slots(drive, (epoch + 1) % 2) == [Block::Torn, Block::Torn]) {
            return Err("LostSuperblock");
        }
        let place = Place::Catalogue { extent: epoch % 2 };
        let read = |drive: &Drive| match drive.read(place) {
            Block::Catalogue { epoch: its, commit: of, catalogue } if (*its, *of) == (epoch, commit) => {
                Some(catalogue.clone())
            }
            _ => None,
        };
        let catalogues: Vec<Option<Catalogue>> = drives.iter().map(read).collect();
        for (its, catalogue) in all_newest.iter().zip(&catalogues) {
            if its.0 < epoch && (catalogue.is_none() || its.0 + 1 < epoch) {
                return Err("StaleMember");
            }
        }
        let catalogue = catalogues.iter().flatten().next().cloned().ok_or("CatalogueDamaged")?;
        let mut ops = Vec::new();
        flush(self.is(Flaw::NoFlushWhenOpened), &mut ops);
        let mut phase = |writes: Vec<(u8, Place, Block)>| {
            let drives: BTreeSet<u8> = writes.iter().map(|write| write.0).collect();
            ops.extend(writes.into_iter().map(|(drive, place, block)| Op::Write(drive, place, block)));
            ops.extend(drives.into_iter().map(Op::Flush));
        };
        let block = Block::Catalogue { epoch, commit, catalogue: catalogue.clone() };
        phase(
            all()
                .zip(&catalogues)
                .filter(|(_, it)| it.is_none())
                .map(|(drive, _)| (drive, place, block.clone()))
                .collect(),
        );
        for tail in [false, true] {
            let mut writes = Vec::new();
            for (number, drive) in all().zip(drives) {
                let wanted = Block::Superblock { epoch, commit };
                let own = Place::Superblock { slot: epoch % 2, tail };
                if *drive.read(own) != wanted {
                    writes.push((number, own, wanted));
                }
                let [start, end] = slots(drive, (epoch + 1) % 2);
                if tail && matches!(start, Block::Superblock { .. }) && start != end {
                    writes.push((number, Place::Superblock { slot: (epoch + 1) % 2, tail }, start));
                }
            }
            phase(writes);
        }
        let first = catalogue.generations.first().ok_or("no generation")?;
        let (sequence, value, units, behind) = self.replay(drives, first)?;
        let last = first.log.last();
        if let Some(open) = last.filter(|last| last.units.is_none() && units > 0 && !self.is(Flaw::NoFlushWhenOpened)) {
            ops.push(Op::Flush(open.chunk.0));
        }
        for generation in &catalogue.generations {
            let row = drives[usize::from(generation.chunk.0)].read(Place::Unit { chunk: generation.chunk.1, unit: 0 });
            match row {
                Block::Row { generation: of, upto, .. } if (*of, *upto) == (generation.id, generation.base) => {}
                _ => return Err("a row is not what was written"),
            }
        }
        let is_open = last.is_some_and(|last| last.units.is_none());
        let fresh = is_open && behind.is_none();
        let behind = behind.filter(|_| is_open);
        ops.push(Op::Done(Process { epoch, commit, catalogue, units, fresh, behind, doubt: false, sequence, value }));
        Ok(ops)
    }

    /// `Volume::replay`: the last number, the row's value, the units that count in the last chunk, and the last one behind them that
    /// its allotment wrote.
    fn replay(&self, drives: &[Drive], generation: &Generation) -> Result<(u8, u8, u8, Option<u8>), &'static str> {
        let mut value =
            match drives[usize::from(generation.chunk.0)].read(Place::Unit { chunk: generation.chunk.1, unit: 0 }) {
                Block::Row { value, .. } => *value,
                _ => return Err("a row is not what was written"),
            };
        let mut sequence = generation.base;
        let mut counting = 0;
        let mut behind = None;
        for log in &generation.log {
            if log.first != sequence + 1 {
                return Err("LogDamaged: a gap");
            }
            (counting, behind) = (0, None);
            let mut torn = false;
            for unit in 0..log.units.unwrap_or(UNITS) {
                let block = drives[usize::from(log.chunk.0)].read(Place::Unit { chunk: log.chunk.1, unit });
                let logged = block.logged().filter(|logged| logged.0 == log.commit);
                match block {
                    Block::Update { sequence: number, value: new, .. } if logged.is_some() && !torn => {
                        if *number != sequence + 1 {
                            return Err("LogDamaged: out of sequence");
                        }
                        (sequence, value, counting) = (*number, *new, unit + 1);
                    }
                    _ if log.units.is_some() => return Err("LogDamaged: a unit that counts is not intact"),
                    Block::End { .. } if logged.is_some() && !torn => torn = true,
                    _ => {
                        if logged.is_some_and(|(_, durable)| durable > counting) {
                            return Err("LogDamaged: later ones are intact");
                        }
                        torn = true;
                        behind = logged.map(|_| unit).or(behind);
                    }
                }
            }
        }
        Ok((sequence, value, counting, behind))
    }

    fn cut(drive: &mut Drive, code: &mut u32) {
        for (place, block) in std::mem::take(&mut drive.cache) {
            match *code % 3 {
                0 => {}
                1 => drop(drive.durable.insert(place, block)),
                _ => drop(drive.durable.insert(place, Block::Torn)),
            }
            *code /= 3;
        }
    }
}

fn seen(process: &Process) -> Seen {
    let generations = &process.catalogue.generations;
    let shown = generations.iter().max_by_key(|generation| generation.shown).map_or(9, |generation| generation.id);
    Seen { shown, second: generations.len() > 1, value: process.value }
}

/// Where a failure leaves the process; `None`: a commit is in doubt, it has to open the store again.
fn after_failure(flaw: Flaw, state: &State) -> Option<Process> {
    let process = state.process.clone()?;
    if state.left.contains(&Op::Superblocks) {
        return Some(process);
    }
    if !matches!(state.task, Some(Task::Update(_))) || state.left.iter().any(|op| matches!(op, Op::Allotted(_))) {
        return None;
    }
    // A batch: nothing is appended behind it.
    Some(Process { fresh: flaw == Flaw::AppendAfterFailure, behind: None, doubt: true, ..process })
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let generation = Generation { id: 0, shown: 1, chunk: (0, 0), base: 0, log: Vec::new() };
        let catalogue = Catalogue { generations: vec![generation] };
        let mut drives = vec![Drive::default(); usize::from(DRIVES)];
        for drive in &mut drives {
            for tail in [false, true] {
                drive.durable.insert(Place::Superblock { slot: 1, tail }, Block::Superblock { epoch: 1, commit: 0 });
            }
            let block = Block::Catalogue { epoch: 1, commit: 0, catalogue: catalogue.clone() };
            drive.durable.insert(Place::Catalogue { extent: 1 }, block);
        }
        drives[0].durable.insert(Place::Unit { chunk: 0, unit: 0 }, Block::Row { generation: 0, upto: 0, value: 0 });
        let process = Process {
            epoch: 1,
            commit: 0,
            catalogue,
            units: 0,
            fresh: false,
            behind: None,
            doubt: false,
            sequence: 0,
            value: 0,
        };
        vec![State {
            drives,
            sure: seen(&process),
            process: Some(process),
            task: None,
            left: Vec::new(),
            maybe: BTreeSet::new(),
            before: BTreeSet::new(),
            broken: None,
            commits: 0,
            values: 0,
            tasks: 0,
            crashes: 0,
            failures: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        match (&state.task, &state.process) {
            (Some(_), _) => actions.push(Action::Step),
            (None, None) => actions.push(Action::Begin(Task::Open)),
            (None, Some(_)) if state.tasks < self.tasks => {
                let tasks =
                    [Task::Update(1), Task::Update(2), Task::Compact, Task::LoadBeside, Task::Switch, Task::Drop];
                actions.extend(tasks.map(Action::Begin));
            }
            (None, Some(_)) => {}
        }
        let fails = matches!(state.left.last(), Some(Op::Write(..) | Op::Flush(_)));
        if fails && state.failures < self.failures && state.task != Some(Task::Open) {
            actions.push(Action::Fail { lands: false });
            if matches!(state.left.last(), Some(Op::Write(..))) {
                actions.push(Action::Fail { lands: true });
            }
        }
        if state.crashes < self.crashes && (state.process.is_some() || state.task.is_some()) {
            let cached: u32 = state.drives.iter().map(|drive| drive.cache.len() as u32).sum();
            actions.extend((0..3u32.pow(cached)).map(Action::Cut));
            if cached > 0 {
                actions.push(Action::Kill);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(task) => {
                state.before = state.maybe.clone();
                match self.begin(&mut state, task) {
                    Some((ops, changes)) => {
                        state.left = ops.into_iter().rev().collect();
                        state.task = Some(task);
                        state.tasks += u8::from(task != Task::Open);
                        let known: Vec<Seen> = state.before.iter().copied().chain([state.sure]).collect();
                        state
                            .maybe
                            .extend(known.iter().flat_map(|&seen| changes.iter().map(move |change| change(seen))));
                    }
                    None if state.broken.is_some() => {}
                    None => return None,
                }
            }
            Action::Step => match state.left.pop()? {
                Op::Write(drive, place, block) => state.drives[usize::from(drive)].cache.push((place, block)),
                Op::Flush(drive) => state.drives[usize::from(drive)].flush(),
                Op::Superblocks => {}
                Op::Allotted(process) => {
                    // What was in doubt has ended.
                    state.before.clear();
                    let is_update = |op: &&Op| matches!(op, Op::Write(_, _, Block::Update { .. }));
                    let count = state.left.iter().filter(is_update).count() as u8;
                    let values = state.values + 1 - count..=state.values;
                    state.maybe = values.map(|value| Seen { value, ..state.sure }).collect();
                    state.process = Some(process);
                }
                Op::Done(process) => {
                    let now = seen(&process);
                    let sure = state.sure;
                    let task = state.task.take();
                    if task == Some(Task::Open) && now != sure && !state.maybe.contains(&now) {
                        state.broken = Some("neither what was acknowledged nor what was asked for");
                    }
                    state.maybe = match task {
                        // An update in doubt stays so, beside what was done.
                        Some(Task::LoadBeside | Task::Switch | Task::Drop) => {
                            let change = |seen: &Seen| Seen { value: seen.value, ..now };
                            state.before.iter().map(change).collect()
                        }
                        _ => BTreeSet::new(),
                    };
                    state.before = BTreeSet::new();
                    (state.sure, state.process) = (now, Some(process));
                }
            },
            Action::Fail { lands } => {
                state.failures += 1;
                let process = after_failure(self.flaw, &state);
                if let (true, Some(Op::Write(drive, place, block))) = (lands, state.left.last().cloned()) {
                    state.drives[usize::from(drive)].cache.push((place, block));
                }
                // Undone, nothing of it may ever be seen; a batch, or a commit that is in doubt, may be.
                if state.left.contains(&Op::Superblocks) {
                    state.maybe = state.before.clone();
                }
                state.process = process;
                (state.task, state.left, state.before) = (None, Vec::new(), BTreeSet::new());
            }
            Action::Cut(code) => {
                let mut code = code;
                state.drives.iter_mut().for_each(|drive| Self::cut(drive, &mut code));
                state.crashes += 1;
                (state.process, state.task, state.left) = (None, None, Vec::new());
            }
            Action::Kill => {
                state.crashes += 1;
                (state.process, state.task, state.left) = (None, None, Vec::new());
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "opening shows all of the old or all of the new, and every acknowledged update",
                |_, state: &State| state.broken.is_none(),
            ),
            Property::always("what is acknowledged lies on every drive, twice", |_, state: &State| {
                let Some(process) = state.process.as_ref().filter(|_| state.task.is_none()) else { return true };
                let own = Block::Superblock { epoch: process.epoch, commit: process.commit };
                let slot = process.epoch % 2;
                let has = |drive: &Drive| {
                    [false, true].iter().all(|&tail| drive.durable.get(&Place::Superblock { slot, tail }) == Some(&own))
                };
                state.drives.iter().all(has)
            }),
            Property::always("a catalogue of the next epoch speaks of data that is durable", |_, state: &State| {
                // Not one of an attempt that came to nothing: its chunks may have been given to others.
                let Some(process) = state.process.as_ref().filter(|_| state.task.is_some()) else { return true };
                let extent = (process.epoch + 1) % 2;
                let durable = |at: At| {
                    let found = state.drives[usize::from(at.0)].durable.get(&Place::Unit { chunk: at.1, unit: 0 });
                    matches!(found, Some(Block::Row { .. }))
                };
                state.drives.iter().all(|drive| match drive.durable.get(&Place::Catalogue { extent }) {
                    Some(Block::Catalogue { epoch, commit, catalogue })
                        if (*epoch, *commit) == (process.epoch + 1, state.commits) =>
                    {
                        catalogue.generations.iter().all(|generation| durable(generation.chunk))
                    }
                    _ => true,
                })
            }),
            Property::sometimes("everything is done", |_, state: &State| {
                let Some(process) = state.process.as_ref().filter(|_| state.task.is_none()) else { return false };
                process.value > 0 && process.catalogue.generations.len() > 1
            }),
            Property::sometimes("a half-done commit is rolled forward", |_, state: &State| {
                state.task == Some(Task::Open) && state.left.iter().any(|op| matches!(op, Op::Write(..)))
            }),
        ]
    }
}

fn check(flaw: Flaw, tasks: u8, crashes: u8, failures: u8) -> (usize, Vec<&'static str>) {
    let checker = Protocol { flaw, tasks, crashes, failures }.checker().threads(2).spawn_bfs().join();
    let wrong =
        checker.discoveries().into_keys().filter(|name| !name.starts_with("everything") && !name.starts_with("a half"));
    let wrong: Vec<&'static str> = wrong.collect();
    if flaw == Flaw::None {
        for (name, path) in checker.discoveries() {
            assert!(!wrong.contains(&name), "{name}: {:#?}", path.into_actions());
        }
        checker.assert_properties();
    }
    (checker.unique_state_count(), wrong)
}

#[test]
fn every_order_of_steps_and_every_cut_leaves_old_or_new() {
    let mut states = 0;
    for (tasks, crashes, failures) in [(5, 1, 0), (3, 2, 0), (4, 1, 1), (4, 0, 3), (2, 2, 1)] {
        let (count, _) = check(Flaw::None, tasks, crashes, failures);
        println!("{tasks} tasks, {crashes} crashes, {failures} failures: {count} states");
        states += count;
    }
    assert!(states > 10_000, "{states}");
}

/// Each flaw is found, and by what it breaks.
#[test]
fn every_flaw_is_found() {
    let shown = "opening shows all of the old or all of the new, and every acknowledged update";
    let twice = "what is acknowledged lies on every drive, twice";
    let data = "a catalogue of the next epoch speaks of data that is durable";
    for (flaw, breaks, (tasks, crashes, failures)) in [
        (Flaw::NoFlushOfData, data, (1, 0, 0)),
        (Flaw::NoFlushOfCatalogues, shown, (1, 1, 0)),
        (Flaw::NoFlushOfSuperblocks, shown, (1, 1, 0)),
        (Flaw::NoFlushOfTails, twice, (1, 0, 0)),
        (Flaw::NoFlushOfBatch, shown, (1, 1, 0)),
        (Flaw::NoFlushWhenOpened, shown, (2, 2, 0)),
        (Flaw::SuperblockBeforeCatalogue, shown, (1, 1, 0)),
        (Flaw::CommitBeforeData, shown, (2, 1, 0)),
        (Flaw::CompactInPlace, shown, (2, 1, 0)),
        (Flaw::NoClearing, shown, (2, 2, 0)),
        (Flaw::NoFlushOfClearing, shown, (2, 2, 0)),
        (Flaw::AppendAfterFailure, shown, (3, 1, 1)),
        (Flaw::AllotmentsAlike, shown, (4, 1, 0)),
        (Flaw::GiveStandbyAway, shown, (3, 1, 0)),
    ] {
        let (count, wrong) = check(flaw, tasks, crashes, failures);
        println!("{flaw:?}: {count} states, {wrong:?}");
        assert!(wrong.contains(&breaks), "{flaw:?} is not found in {count} states: {wrong:?}");
    }
}
