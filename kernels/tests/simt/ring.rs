//! Rows on drives: `fetch` against the software controller, by content.

use std::time::{Duration, Instant};

use fastrand::Rng;
use warprow_driver::Submitter;
use warprow_gpu_queues::abi::{FAULT_CLOSED, FAULT_TIMED_OUT, LANES};
use warprow_kernels::abi::{Lookup, ablated};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{NvmOpcode, StatusCode};

use crate::batch::{Batch, Varied};
use crate::oracle::{Expected, Place};
use crate::queues::{Drives, Queue, describe};
use crate::rig::{Rig, Told, expect};
use crate::shim::{Shim, seeds};
use crate::world::{Home, Shape, World};

pub(crate) const TIMEOUT: Duration = Duration::from_millis(4);
/// Where time is real: longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the status of a unique row says: it is in staging, or in the output. `cuda/common.cuh` has the others.
pub(crate) const READ: u8 = 0;
pub(crate) const WRITTEN: u8 = 4;

pub(crate) struct Scene {
    pub(crate) drives: Drives,
    pub(crate) world: World,
    pub(crate) rng: Rng,
    /// Blocks of `fetch` or `few` that run at once; 0: all.
    pub(crate) resident: u32,
    /// One kernel does all of a look-up.
    pub(crate) few: bool,
}

/// One table on one drive, one row to an LBA, with enough of them for several batches a launch.
pub(crate) fn rows_of_an_lba() -> Shape {
    Shape {
        drives: 1,
        tables: 1..2,
        rows: 4000..4001,
        row_bytes: 300..=500,
        lba_shift: Some(9),
        cold: true,
        ..Shape::without_drives(2000)
    }
}

/// One launch, and what should have come of it.
pub(crate) struct Launched {
    pub(crate) batch: Batch,
    pub(crate) lookup: Lookup,
    pub(crate) expected: Expected,
    /// Keys whose rows were not read, by what the kernel says.
    pub(crate) lost: Vec<u64>,
}

impl Scene {
    pub(crate) fn new(mut rng: Rng, shape: Shape, stepped: bool, timeout: Duration) -> Self {
        let world = World::new(&mut rng, &shape);
        let most = (8 << 20) / (LANES as usize * world.landing_stride());
        let batches = rng.u32(1..=4).min(most.max(1) as u32);
        let drives = Drives::new(&mut rng, &world, batches, stepped, timeout);
        Self { drives, world, rng, resident: 0, few: false }
    }

    /// All tiers, random rows.
    pub(crate) fn random(seed: u64, stepped: bool, timeout: Duration) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (row_bytes, rows) = [(16, 20_000), (300, 3000), (600, 2000), (8192, 200)][rng.usize(0..4)];
        let shape = Shape {
            drives: rng.u32(1..=3),
            rows: 1..rows,
            row_bytes: 1..=row_bytes,
            sets: rng.u32(1..=2),
            cold: rng.bool(),
            // Several batches, begun in the middle of a tile.
            ..Shape::without_drives(if rng.u32(0..3) == 0 { 4000 } else { rng.u64(1..1500) })
        };
        Self::new(rng, shape, stepped, timeout)
    }

    /// See [`rows_of_an_lba`].
    pub(crate) fn simple(seed: u64) -> Self {
        Self::new(Rng::with_seed(seed), rows_of_an_lba(), true, TIMEOUT)
    }

    /// Runs the three stages; `at_turn` is called with the number of each turn of the drives.
    pub(crate) fn run(
        &mut self,
        shim: &mut Shim,
        batch: Batch,
        mut at_turn: impl FnMut(u64, &Drives),
    ) -> Result<Launched, String> {
        let Self { drives, world, rng, resident, few } = self;
        // One block deduplicates always.
        let small = *few || (rng.bool() && !world.repeats && !world.writes_output(&batch.lookup()));
        let descriptors = describe(&drives.queues);
        let mut lookup = batch.lookup().with_queues(descriptors.address()).with_ticket(rng.u32(0..16));
        lookup.queues.writes_output = (!small && world.writes_output(&lookup)).into();
        let expected = expect(world, &batch).by_one_block(world, small);
        let mut turns = 0;
        let mut dice = rng.fork();
        let mut rig = Rig { shim, rng: rng.fork(), world };
        if !*few {
            rig.prepare(&lookup, small)?;
        }
        let steps = drives.steps.clone();
        let mut beside = |idle: bool| {
            turns += 1;
            at_turn(turns, drives);
            let steps = steps.as_ref().unwrap();
            if idle {
                steps.turn(3000)
            } else if dice.u32(0..4) == 0 {
                steps.turn(150)
            } else {
                steps.pass(150)
            }
        };
        if *few {
            rig.few(&lookup, false, *resident, Some(&mut beside))?;
            let lost = self.lost_by_one_kernel(&expected);
            return Ok(Launched { batch, lookup, expected, lost });
        }
        rig.fetch_by(&lookup, *resident, if drives.steps.is_some() { Some(&mut beside) } else { None })?;
        let keys = expected.uniques.iter().zip(world.slot.status.bytes());
        let is_lost = |status| ![READ, WRITTEN].contains(&status);
        let lost =
            keys.filter(|&(&key, status)| key >= world.ssd_key && is_lost(status)).map(|(&key, _)| key).collect();
        rig.expand(&lookup, small)?;
        Ok(Launched { batch, lookup, expected, lost })
    }

    /// The keys whose rows one kernel did not read: it numbers those of a drive behind all positions with rows of the drives before.
    pub(crate) fn lost_by_one_kernel(&self, expected: &Expected) -> Vec<u64> {
        let statuses = self.world.slot.status.bytes();
        let mut lost = Vec::new();
        let mut base = 0;
        for drive in 0..self.world.geometry.drives {
            let here = |key: u64| key >= self.world.ssd_key && self.home(key).drive == drive;
            let keys = expected.uniques.iter().copied().filter(|&key| here(key));
            lost.extend(keys.zip(&statuses[base..]).filter(|&(_, &status)| status != 0).map(|(key, _)| key));
            base += expected.places.iter().filter(|place| matches!(place, Place::Key(key) if here(*key))).count();
        }
        lost.sort_unstable();
        lost
    }

    /// The keys on a drive that are the part of one of so many sets.
    pub(crate) fn part(&self, expected: &Expected, drive: u32, set: usize, sets: usize) -> Vec<u64> {
        let cold = expected.uniques.iter().copied().filter(|&key| key >= self.world.ssd_key);
        // Parts of all drives' keys together; by one kernel, of each drive's.
        let here = |key: &u64| self.home(*key).drive == drive;
        let all: Vec<u64> = cold.filter(|key| !self.few || here(key)).collect();
        all[all.len() * set / sets..all.len() * (set + 1) / sets].iter().copied().filter(here).collect()
    }

    /// Whether output, mask and ticket say of each row that it was read, or lost, as the status does.
    pub(crate) fn check(&mut self, shim: &mut Shim, launched: &Launched) -> Result<Told, String> {
        let Launched { batch, lookup, expected, lost } = launched;
        let rig = Rig { shim, rng: self.rng.fork(), world: &self.world };
        rig.check_ended(batch, lookup, expected, |key| lost.binary_search(&key).is_ok())
    }

    /// A launch after which every row is there.
    fn good(&mut self, shim: &mut Shim) -> Result<Told, String> {
        let batch = Batch::new(&mut self.rng, &self.world);
        self.complete(shim, batch)
    }

    fn complete(&mut self, shim: &mut Shim, batch: Batch) -> Result<Told, String> {
        let launched = self.run(shim, batch, |_, _| ())?;
        if !launched.lost.is_empty() {
            return Err(format!("{} rows were not read: {:?}", launched.lost.len(), self.drives.queues[0].fault()));
        }
        self.check(shim, &launched)
    }

    /// Commands and bytes that the uniques need: one for each LBA, in each set.
    pub(crate) fn commands(&self, expected: &Expected) -> (u64, u64) {
        (0..self.world.geometry.drives).fold((0, 0), |sum, drive| {
            let (commands, bytes) = self.commands_of(expected, drive, self.world.sets as usize);
            (sum.0 + commands, sum.1 + bytes)
        })
    }

    /// Commands and bytes that the uniques of one drive need, whose rows so many sets share.
    pub(crate) fn commands_of(&self, expected: &Expected, drive: u32, sets: usize) -> (u64, u64) {
        let mut commands = 0;
        let mut bytes = 0;
        for set in 0..sets {
            let mut before = None;
            for key in self.part(expected, drive, set, sets) {
                let home = self.home(key);
                let shares = before == Some(home.lba) && self.world.ablated & ablated::SHARED_COMMANDS == 0;
                if !shares {
                    commands += 1;
                    bytes += u64::from(home.lbas) << self.world.geometry.lba_shift;
                }
                before = Some(home.lba);
            }
        }
        (commands, bytes)
    }

    /// Where a row lies.
    pub(crate) fn home(&self, key: u64) -> Home {
        let (table, rank) = self.world.row_of(key);
        self.world.home(table, rank)
    }

    /// The keys whose rows lie at this LBA.
    fn at_lba(&self, keys: &[u64], lba: u64) -> Vec<u64> {
        let lies_there = |key: &u64| {
            let home = self.home(*key);
            (home.lba..home.lba + u64::from(home.lbas)).contains(&lba)
        };
        keys.iter().copied().filter(lies_there).collect()
    }
}

/// Look-ups one after the other on drives that permute and delay completions, all right.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    right(shim, Scene::random(seed, true, TIMEOUT))
}

pub(crate) fn right(shim: &mut Shim, mut scene: Scene) -> Result<(), String> {
    for _ in 0..3 {
        let batch = Batch::new(&mut scene.rng, &scene.world);
        let launched = scene.run(shim, batch, |_, _| ())?;
        if !launched.lost.is_empty() {
            return Err(format!("{} rows were not read", launched.lost.len()));
        }
        let told = scene.check(shim, &launched)?;
        let counted = (told.counters.commands, told.counters.bytes);
        if counted != scene.commands(&launched.expected) || told.counters.anomalies != 0 || told.faults != 0 {
            return Err(format!("{told:?}, where {:?} are due", scene.commands(&launched.expected)));
        }
    }
    Ok(())
}

/// Launches that fill the rings, until they have wrapped thrice: from the last but one of all turns.
pub(crate) fn steady(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut scene = Scene::simple(seed);
    for launch in 0..20 {
        let told = scene.complete_of(shim, 2000).map_err(|wrong| format!("launch {launch}: {wrong}"))?;
        if told.counters.anomalies != 0 {
            return Err(format!("launch {launch}: {told:?}"));
        }
        if (1..1000).contains(&scene.drives.queues[0].turn()) {
            return Ok(());
        }
    }
    Err("the rings do not wrap".to_owned())
}

/// Batches that end in the middle of a tile of uniques: two drives, several rows to an LBA.
pub(crate) fn tiles(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let shape = Shape { drives: 2, row_bytes: 60..=200, rows: 8000..8001, ..rows_of_an_lba() };
    let shape = Shape { max_ids: 4000, ..shape };
    let mut scene = Scene::new(Rng::with_seed(seed), shape, true, TIMEOUT);
    let told = scene.complete_of(shim, 4000)?;
    if told.counters.commands > 512 { Ok(()) } else { Err(format!("too few: {told:?}")) }
}

/// Many queues of which each has a few commands, so that they end together: what they count adds up, whether all is well, completions
/// come twice, or none comes.
pub(crate) fn crowd(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape { drives: 3, sets: 3, rows: 200..400, row_bytes: 200..=500, ..rows_of_an_lba() };
    let scene = Scene::new(rng.fork(), Shape { max_ids: 200, ..shape }, true, TIMEOUT);
    crowded(shim, scene, seed)
}

pub(crate) fn crowded(shim: &mut Shim, mut scene: Scene, seed: u64) -> Result<(), String> {
    let fault = match seed % 4 {
        0 | 1 => None,
        2 => Some(Fault::Duplicate),
        _ => Some(Fault::Swallow),
    };
    if let Some(fault) = fault {
        scene.drives.faults.inject(Rule::new(fault).io(NvmOpcode::READ).always());
    }
    let same =
        |what: &str, got: u64, want: u64| if got == want { Ok(()) } else { Err(format!("{what}: {got}, not {want}")) };
    let sum = |scene: &Scene, of: fn(&Queue) -> u32| {
        scene.drives.queues.iter().fold(0, |sum: u32, it| sum.wrapping_add(of(it)))
    };
    for _ in 0..3 {
        let before = (sum(&scene, Queue::doorbells), sum(&scene, Queue::anomalies));
        let batch = Batch::of(&mut scene.rng, &scene.world, 200);
        let launched = scene.run(shim, batch, |_, _| ())?;
        let told = scene.check(shim, &launched)?;
        let counted = told.counters;
        same("doorbells", counted.doorbells, sum(&scene, Queue::doorbells).wrapping_sub(before.0).into())?;
        same("anomalies", counted.anomalies, sum(&scene, Queue::anomalies).wrapping_sub(before.1).into())?;
        let poisoned = scene.drives.queues.iter().filter(|queue| queue.poison() != 0).count();
        same("queues that are out of use", told.faults.into(), poisoned as u64)?;
        if matches!(fault, Some(Fault::Swallow)) {
            same("rows that were read", launched.lost.len() as u64, launched.expected.uniques.len() as u64)?;
        } else {
            let due = scene.commands(&launched.expected);
            same("commands", counted.commands, due.0)?;
            same("bytes", counted.bytes, due.1)?;
        }
    }
    Ok(())
}

#[test]
fn what_many_queues_count_adds_up() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(16) {
        crowd(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Every command completes twice: that is an anomaly, and no completion of the next that has its place.
pub(crate) fn twice(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut scene = Scene::simple(seed);
    scene.drives.faults.inject(Rule::new(Fault::Duplicate).io(NvmOpcode::READ).always());
    for _ in 0..2 {
        let batch = Batch::of(&mut scene.rng, &scene.world, 2000);
        scene.complete(shim, batch)?;
    }
    if scene.drives.queues[0].anomalies() == 0 { Err("nobody noticed".to_owned()) } else { Ok(()) }
}

#[test]
fn rows_come_by_commands() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(16) {
        case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn rings_wrap() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(4) {
        steady(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn batches_end_within_tiles() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(4) {
        tiles(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn rows_come_from_controllers_with_threads() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(3) {
        let mut scene = Scene::random(seed, false, PATIENCE);
        for _ in 0..3 {
            let told = scene.good(&mut shim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            assert_eq!((told.counters.anomalies, told.faults), (0, 0), "seed {seed}");
            let answered = scene.drives.queues.iter().map(|queue| queue.fault().answered == told.launch);
            assert_eq!(answered.filter(|&flag| flag).count() > 0, told.counters.commands > 0, "seed {seed}");
        }
    }
}

#[test]
fn duplicates_are_anomalies() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(3) {
        twice(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

impl Scene {
    fn complete_of(&mut self, shim: &mut Shim, ids: u64) -> Result<Told, String> {
        let batch = Batch::of(&mut self.rng, &self.world, ids);
        self.complete(shim, batch)
    }

    /// A batch, with the key and LBA of a row on a drive in the middle of it.
    fn victim(&mut self) -> (Batch, u64) {
        let batch = Batch::of(&mut self.rng, &self.world, 2000);
        let expected = expect(&self.world, &batch);
        let key = expected.uniques[expected.uniques.len() / 2];
        (batch, self.home(key).lba)
    }

    /// Injects `fault` into the read of one LBA, which then times out: bounded, told, and the queue is out of use until it has
    /// been recovered.
    fn times_out(&mut self, shim: &mut Shim, fault: Fault) -> Told {
        let (batch, lba) = self.victim();
        let began = self.drives.steps.as_ref().unwrap().pass(0);
        self.drives.faults.inject(Rule::new(fault).io(NvmOpcode::READ).lbas(lba..lba + 1));
        let launched = self.run(shim, batch, |_, _| ()).unwrap();
        let took = self.drives.steps.as_ref().unwrap().pass(0) - began;
        assert!(took < 40 * TIMEOUT.as_nanos() as u64, "{took}");
        let told = self.check(shim, &launched).unwrap();
        let struck = self.at_lba(&launched.expected.uniques, lba);
        assert!(struck.iter().all(|key| launched.lost.contains(key)), "{struck:?} {:?}", launched.lost);
        let queue = &self.drives.queues[0];
        let keys = &launched.expected.uniques;
        assert_eq!((queue.poison(), told.faults), (FAULT_TIMED_OUT, 1));
        let fault = queue.fault();
        assert_eq!((fault.kind, fault.drive, fault.queue), (FAULT_TIMED_OUT, 0, queue.id()));
        assert_eq!((fault.launch, fault.status), (told.launch, 0));
        assert!(fault.answered <= told.launch, "{fault:?}");
        assert!(fault.outstanding >= 1 && fault.waited_ns > TIMEOUT.as_nanos() as u64, "{fault:?}");
        // It names a command that was lost.
        let named = self.at_lba(keys, fault.lba);
        assert!(!named.is_empty() && named.iter().all(|key| launched.lost.contains(key)), "{fault:?}");
        // No command until it is recovered.
        let batch = Batch::of(&mut self.rng, &self.world, 900);
        let again = self.run(shim, batch, |_, _| ()).unwrap();
        let later = self.check(shim, &again).unwrap();
        let cold = again.expected.uniques.iter().filter(|&&key| key >= self.world.ssd_key).count();
        assert_eq!((again.lost.len(), later.counters.commands, later.faults), (cold, 0, 1));
        assert!(self.drives.queues[0].fault().answered < later.launch, "it answered nothing");
        told
    }
}

#[test]
fn a_lost_completion_fails_its_rows() {
    let Some(mut shim) = Shim::new() else { return };
    for (seed, fault) in [(0, Fault::Drop), (1, Fault::Swallow), (2, Fault::Drop)] {
        let mut scene = Scene::simple(seed);
        let told = scene.times_out(&mut shim, fault);
        assert_eq!(told.counters.anomalies, 0);
        scene.drives.recover();
        for _ in 0..2 {
            scene.complete_of(&mut shim, 1000).unwrap();
        }
    }
}

#[test]
fn late_data_lands_nowhere() {
    let Some(mut shim) = Shim::new() else { return };
    let late = 10 * TIMEOUT;
    for seed in seeds(4) {
        let mut scene = Scene::simple(seed);
        scene.times_out(&mut shim, Fault::Delay(late));
        // It lands before, or after, the queue has been deleted and made anew.
        if seed % 2 == 0 {
            scene.drives.steps.as_ref().unwrap().turn(2 * late.as_nanos() as u64);
        }
        scene.drives.recover();
        let steps = scene.drives.steps.clone().unwrap();
        let batch = Batch::of(&mut scene.rng, &scene.world, 1000);
        let late_in_it = |turn, _: &Drives| {
            if turn == 40 {
                steps.pass(1_000_000);
            }
        };
        let launched = scene.run(&mut shim, batch, late_in_it).unwrap();
        assert!(launched.lost.is_empty());
        assert_eq!(scene.check(&mut shim, &launched).unwrap().counters.anomalies, 0);
    }
}

#[test]
fn an_unknown_cid_is_no_completion() {
    let Some(mut shim) = Shim::new() else { return };
    for (seed, cid) in [(0, 0xffff), (1, 0x7fff), (2, 0)] {
        let mut scene = Scene::simple(seed);
        let told = scene.times_out(&mut shim, Fault::WrongCid(cid));
        assert!(told.counters.anomalies >= 1, "{cid:#x}: {told:?}");
        scene.drives.recover();
        scene.complete_of(&mut shim, 1000).unwrap();
    }
}

/// One command in eight fails: its rows do, and no others.
pub(crate) fn statuses(shim: &mut Shim, seed: u64) -> Result<(), String> {
    failing(shim, Scene::simple(seed), seed)
}

pub(crate) fn failing(shim: &mut Shim, mut scene: Scene, seed: u64) -> Result<(), String> {
    let status = warprow_spec::Status::from(StatusCode::UnrecoveredReadError);
    let fails = |lba: u64| lba % 8 == seed % 8;
    let lbas = 0..20_000;
    for lba in lbas.filter(|&lba| fails(lba)) {
        let rule = Rule::new(Fault::Status(status)).io(NvmOpcode::READ).lbas(lba..lba + 1);
        scene.drives.faults.inject(rule.always());
    }
    for _ in 0..2 {
        let batch = Batch::of(&mut scene.rng, &scene.world, 2000);
        let launched = scene.run(shim, batch, |_, _| ())?;
        let told = scene.check(shim, &launched)?;
        let due: Vec<u64> =
            launched.expected.uniques.iter().copied().filter(|&key| fails(scene.home(key).lba)).collect();
        let queue = &scene.drives.queues[0];
        let fault = scene.drives.queues[0].fault();
        // Media error, unrecovered read error; and the queue goes on.
        let status = (launched.lost == due, queue.poison(), told.faults, fault.kind, fault.status & 0x7ff);
        if status != (true, 0, 0, 0, 0x281) {
            return Err(format!("{status:?}, {} rows lost, where {} are due", launched.lost.len(), due.len()));
        }
        // It names one of this launch's, by an identifier that it can have.
        let named = scene.at_lba(&due, fault.failed_lba);
        if named.is_empty() || fault.failed_launch != told.launch || !queue.has_cid(fault.failed_cid) {
            return Err(format!("{fault:?} in launch {}", told.launch));
        }
    }
    Ok(())
}

#[test]
fn a_drive_that_only_fails_commands_has_answered_none() {
    let Some(mut shim) = Shim::new() else { return };
    let mut scene = Scene::simple(5);
    let status = warprow_spec::Status::from(StatusCode::UnrecoveredReadError);
    let rule = scene.drives.faults.inject(Rule::new(Fault::Status(status)).io(NvmOpcode::READ).always());
    let batch = Batch::of(&mut scene.rng, &scene.world, 2000);
    let launched = scene.run(&mut shim, batch, |_, _| ()).unwrap();
    let told = scene.check(&mut shim, &launched).unwrap();
    assert!(told.counters.commands > 0 && scene.drives.queues[0].fault().answered == 0);
    scene.drives.faults.remove(rule);
    let told = scene.complete_of(&mut shim, 2000).unwrap();
    assert_eq!(scene.drives.queues[0].fault().answered, told.launch);
}

#[test]
fn a_bad_status_fails_its_rows_alone() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(3) {
        statuses(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn a_dead_controller_fails_its_rows() {
    let Some(mut shim) = Shim::new() else { return };
    for fault in [Fault::Fatal, Fault::Disappear] {
        let mut scene = Scene::simple(3);
        scene.times_out(&mut shim, fault);
        assert!(scene.drives.queues[0].fault().outstanding > 1);
    }
}

#[test]
fn a_gate_that_closes_lets_blocks_leave() {
    let Some(mut shim) = Shim::new() else { return };
    let mut closed = 0;
    for seed in seeds(8) {
        let mut scene = Scene::random(seed, true, PATIENCE);
        // A drive that does not answer, so that there is something to be left.
        let rule =
            scene.drives.faults.inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).nth(1 + seed * 40).always());
        let batch = Batch::of(&mut scene.rng, &scene.world, scene.world.max_ids);
        let launched = scene.run(&mut shim, batch, |turn, drives| {
            if turn == 200 + seed * 20 {
                drives.door.close();
            }
        });
        let launched = launched.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let told = scene.check(&mut shim, &launched).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let poisoned: Vec<_> = scene.drives.queues.iter().filter(|queue| queue.poison() != 0).collect();
        assert_eq!(told.faults as usize, poisoned.len());
        assert!(poisoned.iter().all(|queue| (queue.poison(), queue.fault().kind) == (FAULT_CLOSED, FAULT_CLOSED)));
        assert_eq!(poisoned.is_empty(), launched.lost.is_empty(), "seed {seed}");
        closed += poisoned.len();
        scene.drives.faults.remove(rule);
        if !launched.lost.is_empty() {
            scene.drives.door.open();
        }
        scene.drives.recover();
        if !launched.lost.is_empty() {
            scene.good(&mut shim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        }
    }
    assert!(closed > 3, "{closed}");
}

/// A completion that is lost, with a controller's own threads in real time: nothing hangs, nothing is garbage, and
/// recovery helps.
#[test]
fn a_lost_completion_of_a_controller_with_threads() {
    let Some(mut shim) = Shim::new() else { return };
    let mut scene = Scene::new(Rng::with_seed(1), rows_of_an_lba(), false, Duration::from_millis(100));
    let (batch, lba) = scene.victim();
    scene.drives.faults.inject(Rule::new(Fault::Drop).io(NvmOpcode::READ).lbas(lba..lba + 1));
    let launched = scene.run(&mut shim, batch, |_, _| ()).unwrap();
    let told = scene.check(&mut shim, &launched).unwrap();
    let struck = scene.at_lba(&launched.expected.uniques, lba);
    assert!(struck.iter().all(|key| launched.lost.contains(key)));
    assert_eq!((told.faults, scene.drives.queues[0].fault().kind), (1, FAULT_TIMED_OUT));
    scene.drives.recover();
    // On a busy machine another command may take longer than its time; what was read is right in any case.
    let batch = Batch::of(&mut scene.rng, &scene.world, 2000);
    let launched = scene.run(&mut shim, batch, |_, _| ()).unwrap();
    let told = scene.check(&mut shim, &launched).unwrap();
    assert_eq!(launched.lost.is_empty(), told.faults == 0);
}

#[test]
fn another_thread_closes_the_gate() {
    let Some(mut shim) = Shim::new() else { return };
    let mut scene = Scene::new(Rng::with_seed(2), rows_of_an_lba(), false, PATIENCE);
    scene.drives.faults.inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).nth(100).always());
    let door = scene.drives.door.clone();
    let closer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        door.close();
        let began = Instant::now();
        while !door.has_left() {
            assert!(began.elapsed() < PATIENCE / 2, "the kernel does not leave");
            std::thread::yield_now();
        }
    });
    let batch = Batch::of(&mut scene.rng, &scene.world, 2000);
    let launched = scene.run(&mut shim, batch, |_, _| ()).unwrap();
    let told = scene.check(&mut shim, &launched).unwrap();
    closer.join().unwrap();
    assert!(!launched.lost.is_empty());
    // Closed before the launch began, on a busy machine; else it was on the way.
    let expected = if told.gate_was_closed != 0 { (0, 0) } else { (1, FAULT_CLOSED) };
    assert_eq!((told.faults, scene.drives.queues[0].poison()), expected);
}
