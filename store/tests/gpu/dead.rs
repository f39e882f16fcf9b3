//! Controllers that die in the middle of a look-up: it ends in time with a typed error for exactly the rows concerned; what can be
//! brought back is, by the next look-up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_gpu_queues::Gpu;
use warprow_soft_controller::{Cut, Fault, Rule};
use warprow_spec::NvmOpcode;
use warprow_store::{GpuOptions, GpuSlot};

use crate::rig::{Flat, ROW, Stream, World, failed, gpu, scaled, short, wait};

/// A drive that is gone is given up: its rows fail at once, and no others, and the look-up says why. Then its power returns, and
/// somebody has it tried again.
fn does_without_until_power_returns(world: &World, drive: usize, due: &[i64], on: (&GpuSlot, &Stream), flat: &Flat) {
    let (slot, stream) = on;
    for round in 0..3 {
        flat.reset();
        let began = Instant::now();
        let ticket = flat.launch(slot, stream).unwrap();
        let it = failed(wait(&ticket), &("given up", round));
        assert!(began.elapsed() < scaled(Duration::from_secs(10)), "{:?}", began.elapsed());
        assert!(it.report.fetch < short(), "round {round}: {:?}", it.report.fetch);
        assert_eq!(flat.check(world, &("given up", round)), due, "round {round}");
        let text = it.first.to_string();
        assert!(it.first.drive == format!("drive{drive}") && text.contains("given up"), "round {round}: {text}");
    }
    assert!(world.store.drive_states().iter().any(|it| it.failure.is_some()), "{:?}", world.store.drive_states());
    let given_up = || world.store.retry_drives().iter().filter(|it| it.failure.is_some()).count();
    assert_eq!(given_up(), 1, "it is gone still");
    flat.reset();
    let ticket = flat.launch(slot, stream).unwrap();
    let it = failed(wait(&ticket), &"after a retry that failed");
    assert_eq!(flat.check(world, &"after a retry that failed"), due, "{}", it.first);
    drop(ticket);
    world.drives[drive].power_cut(Cut::KeepAll).unwrap();
    assert_eq!(given_up(), 0, "it is back");
}

/// Many commands are in flight when the only drive dies.
fn dies(gpu: &Arc<Gpu>, fault: Fault) {
    let world = World::new(1);
    let plan = world.plan(gpu, GpuOptions::default().with_timeout(short()), 1);
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(gpu));
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..3 {
        let flat = Flat::new(gpu, World::ids(1000, &mut random));
        flat.assert_found(&world, &slot, &stream, &(fault, round));
        let nth = [1, 300, 700][round];
        let strikes = Rule::new(fault).io(NvmOpcode::READ).nth(nth);
        let rule = world.drives[0].faults().inject(if fault == Fault::Swallow { strikes.always() } else { strikes });
        flat.reset();
        let began = Instant::now();
        let ticket = flat.launch(&slot, &stream).unwrap();
        let it = failed(wait(&ticket), &(fault, round));
        assert!(began.elapsed() < short() * 20, "{fault:?}: {:?}", began.elapsed());
        let lost = flat.check(&world, &(fault, round));
        assert!(it.ids == lost.len() as u64 && it.ids > 1000 - nth, "{fault:?}: {} of {nth}", it.ids);
        let text = it.first.to_string();
        assert!(it.first.drive == "drive0" && it.first.queue > 0 && text.contains("no answer within"), "{text}");
        let lba = it.first.command.1;
        assert!(lost.iter().any(|&id| world.home(id as u64).1 == lba), "{text}");
        drop(ticket);
        world.drives[0].faults().remove(rule);
        if fault == Fault::Disappear {
            does_without_until_power_returns(&world, 0, &flat.ids, (&slot, &stream), &flat);
        }
        for _ in 0..3 {
            flat.assert_found(&world, &slot, &stream, &(fault, "afterwards"));
        }
    }
}

#[test]
fn a_controller_that_fails_is_reset_by_the_next_look_up() {
    let Some(gpu) = gpu() else { return };
    dies(&gpu, Fault::Fatal);
}

#[test]
fn a_controller_that_falls_silent_gets_new_queues() {
    let Some(gpu) = gpu() else { return };
    dies(&gpu, Fault::Swallow);
}

#[test]
fn a_controller_that_is_gone_is_named_until_its_power_returns() {
    let Some(gpu) = gpu() else { return };
    dies(&gpu, Fault::Disappear);
}

/// One of two drives dies at its first command: its rows fail, and no others, in whatever tier they are.
fn one_of_two_dies(gpu: &Arc<Gpu>, fault: Fault, sets: u32) {
    let world = World::new(2);
    let (hbm, dram) = (500, 1000);
    let options = GpuOptions::default()
        .with_timeout(short())
        .with_queue_sets(sets)
        .with_hbm_bytes(hbm * ROW as u64)
        .with_dram_bytes(dram * ROW as u64);
    let executor = world.attach(gpu, options);
    assert_eq!(executor.tiers("t"), Some((hbm, dram)));
    let plan = executor.plan(&World::features(), World::options(1)).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(gpu));
    let flat = Flat::new(gpu, World::ids(1000, &mut fastrand::Rng::with_seed(8)));
    let (graph, captured) = flat.capture(gpu, &slot, &stream);
    flat.assert_found(&world, &slot, &stream, &fault);
    let is_dead = |&id: &i64| id as u64 >= hbm + dram && world.home(id as u64).0 == 1;
    let due: Vec<i64> = flat.ids.iter().copied().filter(is_dead).collect();
    assert!(due.len() > 100 && due.len() < 600, "{}", due.len());
    world.drives[1].faults().inject(Rule::new(fault).io(NvmOpcode::READ));
    // The first waits for the drive; those after it know.
    for round in 0..3 {
        flat.reset();
        let began = Instant::now();
        stream.launch(gpu, &graph);
        stream.wait(gpu);
        assert!(began.elapsed() < short() * 20, "{fault:?}, replay {round}: {:?}", began.elapsed());
        let it = failed(captured.poll().expect("it has ended"), &(fault, round));
        assert_eq!(it.report.fetch < short(), round > 0, "{fault:?}, replay {round}: {:?}", it.report.fetch);
        assert_eq!(flat.check(&world, &(fault, round)), due, "{fault:?}, replay {round}");
        assert!(it.ids == due.len() as u64 && it.first.drive == "drive1", "{}", it.first);
        assert_eq!(world.home(due[0] as u64).0, 1);
    }
    if fault == Fault::Disappear {
        does_without_until_power_returns(&world, 1, &due, (&slot, &stream), &flat);
    }
    let report = flat.assert_found(&world, &slot, &stream, &(fault, "afterwards"));
    assert!(report.ids_hbm > 50 && report.ids_dram > 100 && report.ids_ssd > 500, "{report:?}");
    flat.reset();
    stream.launch(gpu, &graph);
    stream.wait(gpu);
    captured.poll().expect("it has ended").unwrap();
    assert!(flat.check(&world, &"the graph afterwards").is_empty());
}

#[test]
fn one_of_two_drives_fails_its_rows_alone() {
    let Some(gpu) = gpu() else { return };
    for fault in [Fault::Fatal, Fault::Disappear] {
        for sets in [1, 2] {
            one_of_two_dies(&gpu, fault, sets);
        }
    }
}
