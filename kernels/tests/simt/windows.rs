//! Rows of neighbouring LBAs that share commands: by content, and each command as a naive grouping has it.

use fastrand::Rng;
use warprow_gpu_queues::abi::{LANES, ReadWindow};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{NvmOpcode, Status, StatusCode};

use crate::batch::Batch;
use crate::oracle::Expected;
use crate::ring::{Scene, TIMEOUT};
use crate::shim::{Shim, seeds};
use crate::world::{Home, Shape};

/// Windows of 1 to 16 LBAs of either size, rows of a fraction of an LBA or several, dense or not, on one drive or two.
fn scene(seed: u64) -> Scene {
    let mut rng = Rng::with_seed(seed);
    let lba_shift = [9, 12][rng.usize(0..2)];
    let lba = 1 << lba_shift;
    let row_bytes = [4..=lba / 4, lba / 2 + 1..=lba, lba + 1..=8192.min(6 * lba)][rng.usize(0..3)].clone();
    let rows = [400, 3000, 9000][rng.usize(0..3)].min(if lba_shift == 12 { 1000 } else { 9000 });
    let shift = rng.u32(0..=12).div_ceil(3);
    let shape = Shape {
        drives: [1, 1, 2][rng.usize(0..3)],
        tables: 1..3,
        rows: rows..rows + 50,
        row_bytes,
        lba_shift: Some(lba_shift),
        sets: [1, 1, 2][rng.usize(0..3)],
        cold: rng.u32(0..4) != 0,
        window: ReadWindow { shift, gap: rng.u32(0..1 << shift) },
        ..Shape::without_drives([300, 2000, 2000][rng.usize(0..3)])
    };
    let resident = rng.u32(0..4);
    Scene { resident, ..Scene::new(rng, shape, true, TIMEOUT) }
}

/// A scene without windows: rows of a fraction of an LBA, and mostly more of them than a batch takes, so that teams
/// walk the share.
fn walked(seed: u64) -> Scene {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape {
        drives: [1, 1, 2][rng.usize(0..3)],
        tables: 1..3,
        rows: 3000..3050,
        row_bytes: 64..=256,
        lba_shift: Some(9),
        sets: [1, 1, 2][rng.usize(0..3)],
        cold: rng.u32(0..4) != 0,
        ..Shape::without_drives([500, 2000, 3000][rng.usize(0..3)])
    };
    Scene::new(rng, shape, true, TIMEOUT)
}

/// A command: the rows that it is for, and the LBAs that it reads.
struct Command {
    keys: Vec<u64>,
    first: Home,
    end: u64,
    /// Rows of several LBAs.
    joined: bool,
}

impl Command {
    /// Whether it, or one of its rows, reads LBAs that `is_bad` tells.
    fn touches(&self, is_bad: impl Fn(u64) -> bool) -> bool {
        (self.first.lba..self.end).any(is_bad)
    }
}

/// The commands for the uniques, in order: each set by itself.
fn commands(scene: &Scene, expected: &Expected) -> Vec<Command> {
    let (world, ReadWindow { shift, gap }) = (&scene.world, scene.world.window);
    let cold: Vec<u64> = expected.uniques.iter().copied().filter(|&key| key >= world.ssd_key).collect();
    let sets = world.sets as usize;
    let mut commands = Vec::<Command>::new();
    for set in 0..sets {
        let share = &cold[cold.len() * set / sets..cold.len() * (set + 1) / sets];
        for tile in share.chunks(LANES as usize) {
            for (index, &key) in tile.iter().enumerate() {
                let home = scene.home(key);
                let follows = std::ptr::from_ref(&tile[index]) != share.as_ptr();
                let end = home.lba + u64::from(home.lbas);
                let before = match commands.last_mut() {
                    Some(command) if follows && command.first.drive == home.drive => command,
                    _ => {
                        commands.push(Command { keys: vec![key], first: home, end, joined: false });
                        continue;
                    }
                };
                let last = scene.home(*before.keys.last().unwrap());
                let window = 1 << shift;
                let is_near = shift != 0
                    && home.lba >= before.end
                    && home.lba - before.end <= gap.into()
                    && before.first.lba / window == (end - 1) / window
                    // All of it is of this tile.
                    && tile.contains(&before.keys[0]);
                if last.lba == home.lba || is_near {
                    before.joined |= last.lba != home.lba;
                    before.end = end;
                    before.keys.push(key);
                } else {
                    commands.push(Command { keys: vec![key], first: home, end, joined: false });
                }
            }
        }
    }
    commands
}

/// Look-ups one after another: every row, by the commands that are due. How many were for rows of several LBAs.
fn joining(shim: &mut Shim, mut scene: Scene) -> Result<usize, String> {
    let mut joined = 0;
    for _ in 0..2 {
        let batch = Batch::of(&mut scene.rng, &scene.world, scene.world.max_ids);
        let launched = scene.run(shim, batch, |_, _| ())?;
        if !launched.lost.is_empty() {
            return Err(format!("{} rows were not read", launched.lost.len()));
        }
        let told = scene.check(shim, &launched)?;
        let due = commands(&scene, &launched.expected);
        joined += due.iter().filter(|command| command.joined).count();
        let lbas: u64 = due.iter().map(|command| command.end - command.first.lba).sum();
        let counted = (told.counters.commands, told.counters.bytes, told.counters.split, told.counters.anomalies);
        let wanted = (due.len() as u64, lbas << scene.world.geometry.lba_shift, 0, 0);
        if counted != wanted || told.faults != 0 {
            return Err(format!("{counted:?}, where {wanted:?} are due"));
        }
    }
    Ok(joined)
}

pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    joining(shim, scene(seed)).map(drop)
}

pub(crate) fn teams(shim: &mut Shim, seed: u64) -> Result<(), String> {
    joining(shim, walked(seed)).map(drop)
}

/// No LBA from here on is bad.
const LAST: u64 = 20_000;

/// One LBA in so many is bad: rows that lie in one fail, and no others, whatever else their commands read; and of other errors, all of a
/// command. How many commands were read again.
fn failing(shim: &mut Shim, seed: u64) -> Result<u64, String> {
    let mut scene = scene(seed);
    let every = scene.rng.u64(3..40);
    let of_media = scene.rng.u32(0..4) != 0;
    strike(shim, scene, (every, seed % every), of_media)
}

/// Every LBA is refused, though its medium is well: all commands fail at once, and none is read again.
pub(crate) fn refused(shim: &mut Shim, seed: u64) -> Result<(), String> {
    strike(shim, scene(seed), (1, 0), false).map(drop)
}

/// LBAs whose number leaves `rest` when it is divided by `every` are bad: their medium, or they are refused.
fn strike(shim: &mut Shim, mut scene: Scene, (every, rest): (u64, u64), of_media: bool) -> Result<u64, String> {
    let is_bad = move |lba: u64| lba < LAST && lba % every == rest;
    let code = if of_media { StatusCode::UnrecoveredReadError } else { StatusCode::InternalError };
    let inject = |lbas| {
        let rule = Rule::new(Fault::Status(Status::from(code))).io(NvmOpcode::READ).lbas(lbas);
        scene.drives.faults.inject(rule.always());
    };
    match every {
        1 => inject(0..LAST),
        _ => (rest..LAST).step_by(every as usize).for_each(|lba| inject(lba..lba + 1)),
    }
    let mut split = 0;
    for _ in 0..2 {
        let batch = Batch::of(&mut scene.rng, &scene.world, scene.world.max_ids);
        let launched = scene.run(shim, batch, |_, _| ())?;
        let told = scene.check(shim, &launched)?;
        let commands = commands(&scene, &launched.expected);
        let struck: Vec<&Command> = commands.iter().filter(|command| command.touches(is_bad)).collect();
        let lies_in_bad = |key: u64| {
            let home = scene.home(key);
            (home.lba..home.lba + u64::from(home.lbas)).any(is_bad)
        };
        let mut due: Vec<u64> = struck.iter().flat_map(|command| command.keys.clone()).collect();
        if of_media {
            due.retain(|&key| lies_in_bad(key));
        }
        if launched.lost != due {
            return Err(format!("{} rows were lost, where {} are due", launched.lost.len(), due.len()));
        }
        let again = struck.iter().filter(|command| of_media && command.joined).count() as u64;
        let counted = (told.counters.commands, told.counters.split, told.faults);
        if counted != (commands.len() as u64, again, 0) {
            return Err(format!("{counted:?}, where {} and {again} are due", commands.len()));
        }
        // What is told is of a command whose rows are lost, not of one that was read again.
        for fault in scene.drives.queues.iter().map(|queue| queue.fault()) {
            let named = |key: &u64| scene.home(*key).lba == fault.failed_lba;
            if fault.failed_launch == told.launch && !due.iter().any(named) {
                return Err(format!("{fault:?}, where no row is lost at that LBA"));
            }
        }
        split += again;
    }
    Ok(split)
}

pub(crate) fn parts(shim: &mut Shim, seed: u64) -> Result<(), String> {
    failing(shim, seed).map(drop)
}

/// A part that is never answered: bounded, told, and nothing is lost but rows of the command that was read again.
pub(crate) fn lost_parts(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape {
        drives: 1,
        tables: 1..2,
        rows: 2000..2001,
        row_bytes: 300..=512,
        lba_shift: Some(9),
        cold: true,
        window: ReadWindow { shift: rng.u32(2..=4), gap: 4 },
        ..Shape::without_drives(1500)
    };
    let mut scene = Scene::new(rng, shape, true, TIMEOUT);
    let batch = Batch::of(&mut scene.rng, &scene.world, 1500);
    let commands = commands(&scene, &crate::rig::expect(&scene.world, &batch));
    let joined = commands.iter().filter(|command| command.joined).nth(7).ok_or("no command is joined")?;
    let home = scene.home(*joined.keys.last().unwrap());
    let bad = Rule::new(Fault::Status(StatusCode::UnrecoveredReadError.into())).io(NvmOpcode::READ);
    scene.drives.faults.inject(bad.lbas(joined.first.lba..joined.first.lba + 1).times(1));
    // The joined command meets the first of them, which is spent then.
    let swallowed = Rule::new(Fault::Swallow).io(NvmOpcode::READ).lbas(home.lba..home.lba + 1);
    scene.drives.faults.inject(swallowed);
    // The other parts have landed, and what has landed is taken.
    let due: Vec<_> = joined.keys.iter().copied().filter(|&key| scene.home(key).lba == home.lba).collect();
    let launched = scene.run(shim, batch, |_, _| ())?;
    let told = scene.check(shim, &launched)?;
    let fault = scene.drives.queues[0].fault();
    if (launched.lost == due, told.faults, told.counters.split, fault.lba) != (true, 1, 1, home.lba) {
        return Err(format!("{:?} were lost, where {due:?} are due: {told:?}, {fault:?}", launched.lost));
    }
    scene.drives.recover();
    let again = Batch::of(&mut scene.rng, &scene.world, 1500);
    let launched = scene.run(shim, again, |_, _| ())?;
    scene.check(shim, &launched)?;
    if launched.lost.is_empty() { Ok(()) } else { Err(format!("{:?} are lost afterwards", launched.lost)) }
}

#[test]
fn rows_of_a_window_share_commands() {
    let Some(mut shim) = Shim::new() else { return };
    let mut joined = 0;
    for seed in seeds(12) {
        joined += joining(&mut shim, scene(seed)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(joined > 500, "{joined} commands were for several LBAs");
}

#[test]
fn teams_find_rows_of_one_lba() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(12) {
        teams(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn a_bad_block_fails_the_rows_in_it_alone() {
    let Some(mut shim) = Shim::new() else { return };
    let mut split = 0;
    for seed in seeds(12) {
        split += failing(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(split > 100, "{split} commands were read again");
}

#[test]
fn what_is_refused_is_not_read_again() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(4) {
        refused(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn a_part_that_is_lost_ends_in_time() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(4) {
        lost_parts(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}
