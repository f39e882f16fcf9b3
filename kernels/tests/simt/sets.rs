//! Several queue sets: those whose queue on a drive takes commands share its rows.

use fastrand::Rng;
use warprow_soft_controller::{Fault, QueueMatch, Rule};
use warprow_spec::NvmOpcode;

use crate::batch::Batch;
use crate::rig::Told;
use crate::ring::{Launched, Scene, TIMEOUT, rows_of_an_lba};
use crate::shim::{Shim, seeds};
use crate::world::Shape;

/// Two or three sets on one to three drives; a few blocks at a time, from any one on.
fn scene(seed: u64) -> Scene {
    let mut rng = Rng::with_seed(seed);
    let shape = Shape { drives: rng.u32(1..=3), sets: rng.u32(2..=3), ..rows_of_an_lba() };
    let resident = rng.u32(0..4);
    Scene { resident, ..Scene::new(rng, shape, true, TIMEOUT) }
}

/// See [`scene`], by one kernel.
pub(crate) fn by_one_kernel(shim: &mut Shim, seed: u64) -> Result<(), String> {
    breaking(shim, Scene { few: true, ..scene(seed) })
}

fn launch(scene: &mut Scene, shim: &mut Shim) -> Result<(Launched, Told), String> {
    let batch = Batch::of(&mut scene.rng, &scene.world, 2000);
    let launched = scene.run(shim, batch, |_, _| ())?;
    let told = scene.check(shim, &launched)?;
    Ok((launched, told))
}

fn is_healthy(scene: &Scene, set: u32, drive: u32) -> bool {
    scene.drives.queues[(set * scene.world.geometry.drives + drive) as usize].poison() == 0
}

/// How many sets serve each drive.
fn healthy(scene: &Scene) -> Vec<usize> {
    let of = |drive| (0..scene.world.sets).filter(|&set| is_healthy(scene, set, drive)).count();
    (0..scene.world.geometry.drives).map(of).collect()
}

/// One command of a queue of this set is never answered: what it leaves fails, and nothing else does, whoever looks when.
fn break_one(scene: &mut Scene, shim: &mut Shim, set: u32) -> Result<(), String> {
    let before = healthy(scene);
    let id = scene.drives.queues[(set * scene.world.geometry.drives) as usize].id() as u16;
    let nth = scene.rng.u64(1..100);
    let rule = Rule::new(Fault::Swallow).on(QueueMatch::Id(id)).io(NvmOpcode::READ).nth(nth);
    let rule = scene.drives.faults.inject(rule);
    let were: Vec<bool> = scene.drives.queues.iter().map(|queue| queue.poison() == 0).collect();
    let (launched, told) = launch(scene, shim)?;
    scene.drives.faults.remove(rule);
    let drives = scene.world.geometry.drives;
    let broken: Vec<usize> = (0..were.len()).filter(|&i| were[i] && scene.drives.queues[i].poison() != 0).collect();
    let [broken] = broken[..] else { return Err(format!("{broken:?} broke")) };
    let set = broken as u32 / drives;
    let drive = broken as u32 % drives;
    // The share of the set that broke, among those that were healthy before.
    let sharing: Vec<u32> = (0..scene.world.sets).filter(|set| were[(set * drives + drive) as usize]).collect();
    let place = sharing.iter().position(|&other| other == set).unwrap();
    let share = scene.part(&launched.expected, drive, place, sharing.len());
    if launched.lost.is_empty() || launched.lost.iter().any(|key| share.binary_search(key).is_err()) {
        let lost = launched.lost.len();
        let share = share.len();
        return Err(format!("{lost} rows were lost, and not only those of a share of {share}"));
    }
    let most: u64 =
        (0..drives).map(|number| scene.commands_of(&launched.expected, number, before[number as usize]).0).sum();
    let dead = were.iter().filter(|&&flag| !flag).count() as u32;
    if told.counters.commands > most || told.faults != dead + 1 {
        return Err(format!("{told:?}, where {most} commands are due, and {} queues poisoned", dead + 1));
    }
    Ok(())
}

/// Every row is read, by the healthy queues alone, each LBA once by a set.
fn serve(scene: &mut Scene, shim: &mut Shim) -> Result<(), String> {
    let sets = healthy(scene);
    let (launched, told) = launch(scene, shim)?;
    if !launched.lost.is_empty() {
        return Err(format!("{} rows were lost, {sets:?} sets being healthy", launched.lost.len()));
    }
    let due: u64 = (0..).zip(&sets).map(|(drive, &sets)| scene.commands_of(&launched.expected, drive, sets).0).sum();
    let dead = scene.drives.queues.iter().filter(|queue| queue.poison() != 0).count() as u32;
    if (told.counters.commands, told.faults) == (due, dead) {
        return Ok(());
    }
    Err(format!("{told:?}, where {due} commands are due, and {dead} queues poisoned"))
}

/// Queues break one after the other; the others serve their rows, until a drive has none.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    breaking(shim, scene(seed))
}

fn breaking(shim: &mut Shim, mut scene: Scene) -> Result<(), String> {
    serve(&mut scene, shim)?;
    let last = scene.rng.u32(0..scene.world.sets);
    let mut breaking: Vec<u32> = (0..scene.world.sets).filter(|&set| set != last).collect();
    scene.rng.shuffle(&mut breaking);
    for set in breaking {
        break_one(&mut scene, shim, set)?;
        serve(&mut scene, shim)?;
    }
    // One of the last set's too: whatever else serves that drive, if anything, still does.
    break_one(&mut scene, shim, last)?;
    let left = healthy(&scene);
    let (launched, _) = launch(&mut scene, shim)?;
    let cold = launched.expected.uniques.iter().copied().filter(|&key| key >= scene.world.ssd_key);
    let due: Vec<u64> = cold.filter(|&key| left[scene.home(key).drive as usize] == 0).collect();
    if launched.lost != due {
        return Err(format!("{} rows were lost, where {} are due", launched.lost.len(), due.len()));
    }
    scene.drives.recover();
    serve(&mut scene, shim)
}

#[test]
fn healthy_sets_serve_the_rows_of_a_poisoned_one() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(12) {
        case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}
