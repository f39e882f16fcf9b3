//! Controllers that die in the middle of a look-up: it ends in time with a typed error for exactly the rows concerned;
//! what can be brought back is, by the next look-up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_gpu::{GpuError, GpuOptions, GpuSlot};
use warprow_gpu_queues::Gpu;
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, HostOptions, Output, OutputRows};
use warprow_soft_controller::{Fault, PowerCut, Rule};
use warprow_spec::NvmOpcode;
use warprow_store::DType;

use crate::common;
use crate::fixture::{DIM, Fixture, Flat, ROW, Stream, failed, gpu, patient, scaled, short, trap, wait};

/// A drive that is gone is given up: its rows fail at once, and no others, and the look-up says why. Then its power
/// returns, and somebody has it tried again.
fn does_without_until_power_returns(
    fixture: &Fixture,
    drive: usize,
    due: &[i64],
    on: (&GpuSlot, &Stream),
    flat: &Flat,
) {
    let (slot, stream) = on;
    for round in 0..3 {
        flat.reset();
        let began = Instant::now();
        let ticket = flat.launch(slot, stream).unwrap();
        let it = failed(wait(&ticket), &("given up", round));
        assert!(began.elapsed() < scaled(Duration::from_secs(10)), "{:?}", began.elapsed());
        assert!(it.report.fetch < short(), "round {round}: {:?}", it.report.fetch);
        assert_eq!(flat.check(fixture, &("given up", round)), due, "round {round}");
        let text = it.first.to_string();
        assert!(it.first.drive == format!("drive{drive}") && text.contains("given up"), "round {round}: {text}");
    }
    assert!(
        fixture.store.drive_states().iter().any(|drive_state| drive_state.failure.is_some()),
        "{:?}",
        fixture.store.drive_states()
    );
    let given_up = || fixture.store.retry_drives().iter().filter(|retry_drive| retry_drive.failure.is_some()).count();
    assert_eq!(given_up(), 1, "it is gone still");
    flat.reset();
    let ticket = flat.launch(slot, stream).unwrap();
    let it = failed(wait(&ticket), &"after a retry that failed");
    assert_eq!(flat.check(fixture, &"after a retry that failed"), due, "{}", it.first);
    drop(ticket);
    fixture.drives[drive].power_cut(PowerCut::KeepAll).unwrap();
    assert_eq!(given_up(), 0, "it is back");
}

/// Many commands are in flight when the only drive dies.
fn dies(gpu: &Arc<Gpu>, fault: Fault) {
    let fixture = Fixture::new(1);
    let plan = fixture.plan(gpu, GpuOptions::default().with_timeout(short()), 1);
    let slot = plan.slot().unwrap();
    let stream = Stream::new(gpu);
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..3 {
        let flat = Flat::new(gpu, Fixture::ids(1000, &mut random));
        flat.assert_found(&fixture, &slot, &stream, &(fault, round));
        let nth = [1, 300, 700][round];
        let strikes = Rule::new(fault).io(NvmOpcode::READ).nth(nth);
        let rule = fixture.drives[0].faults().inject(if fault == Fault::Swallow { strikes.always() } else { strikes });
        flat.reset();
        let began = Instant::now();
        let ticket = flat.launch(&slot, &stream).unwrap();
        let it = failed(wait(&ticket), &(fault, round));
        assert!(began.elapsed() < short() * 20, "{fault:?}: {:?}", began.elapsed());
        let lost = flat.check(&fixture, &(fault, round));
        assert!(it.ids == lost.len() as u64 && it.ids > 1000 - nth, "{fault:?}: {} of {nth}", it.ids);
        let text = it.first.to_string();
        assert!(it.first.drive == "drive0" && it.first.queue > 0 && text.contains("no answer within"), "{text}");
        let lba = it.first.command.1;
        assert!(lost.iter().any(|&id| fixture.home(id as u64).1 == lba), "{text}");
        drop(ticket);
        fixture.drives[0].faults().remove(rule);
        if fault == Fault::Disappear {
            does_without_until_power_returns(&fixture, 0, &flat.ids, (&slot, &stream), &flat);
        }
        for _ in 0..3 {
            flat.assert_found(&fixture, &slot, &stream, &(fault, "afterwards"));
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
    let fixture = Fixture::new(2);
    let hbm = 500;
    let dram = 1000;
    let options = GpuOptions::default()
        .with_timeout(short())
        .with_queue_sets(sets)
        .with_hbm_bytes(hbm * ROW as u64)
        .with_dram_bytes(dram * ROW as u64);
    let executor = fixture.attach(gpu, options);
    assert_eq!(executor.tiers("t"), Some((hbm, dram)));
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let slot = plan.slot().unwrap();
    let stream = Stream::new(gpu);
    let flat = Flat::new(gpu, Fixture::ids(1000, &mut fastrand::Rng::with_seed(8)));
    let (graph, captured) = flat.capture(gpu, &slot, &stream);
    flat.assert_found(&fixture, &slot, &stream, &fault);
    let is_dead = |&id: &i64| id as u64 >= hbm + dram && fixture.home(id as u64).0 == 1;
    let due: Vec<i64> = flat.ids.iter().copied().filter(is_dead).collect();
    assert!(due.len() > 100 && due.len() < 600, "{}", due.len());
    fixture.drives[1].faults().inject(Rule::new(fault).io(NvmOpcode::READ));
    // The first waits for the drive; those after it know.
    for round in 0..3 {
        flat.reset();
        let began = Instant::now();
        stream.launch(gpu, &graph);
        stream.wait(gpu);
        assert!(began.elapsed() < short() * 20, "{fault:?}, replay {round}: {:?}", began.elapsed());
        let it = failed(captured.poll().expect("it has ended"), &(fault, round));
        assert_eq!(it.report.fetch < short(), round > 0, "{fault:?}, replay {round}: {:?}", it.report.fetch);
        assert_eq!(flat.check(&fixture, &(fault, round)), due, "{fault:?}, replay {round}");
        assert!(it.ids == due.len() as u64 && it.first.drive == "drive1", "{}", it.first);
        assert_eq!(fixture.home(due[0] as u64).0, 1);
    }
    if fault == Fault::Disappear {
        does_without_until_power_returns(&fixture, 1, &due, (&slot, &stream), &flat);
    }
    let report = flat.assert_found(&fixture, &slot, &stream, &(fault, "afterwards"));
    assert!(report.ids_hbm > 50 && report.ids_dram > 100 && report.ids_ssd > 500, "{report:?}");
    flat.reset();
    stream.launch(gpu, &graph);
    stream.wait(gpu);
    captured.poll().expect("it has ended").unwrap();
    assert!(flat.check(&fixture, &"the graph afterwards").is_empty());
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

#[test]
fn a_slot_of_graphs_alone_is_recovered_when_asked_to() {
    let Some(gpu) = gpu() else { return };
    for fault in [Fault::Swallow, Fault::Fatal, Fault::Disappear] {
        let fixture = Fixture::new(2);
        let plan = fixture.plan(&gpu, GpuOptions::default().with_timeout(short()), 1);
        let slot = plan.slot().unwrap();
        let stream = Stream::new(&gpu);
        let flat = Flat::new(&gpu, Fixture::ids(1000, &mut fastrand::Rng::with_seed(12)));
        let (graph, captured) = flat.capture(&gpu, &slot, &stream);
        let replay = || {
            flat.reset();
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            captured.poll().expect("it has ended")
        };
        replay().unwrap();
        assert!(!slot.recover().unwrap(), "there is nothing to recover");
        fixture.drives[1].faults().inject(Rule::new(fault).io(NvmOpcode::READ).nth(10));
        failed(replay(), &fault);
        let due: Vec<i64> = flat.ids.iter().copied().filter(|&id| fixture.home(id as u64).0 == 1).collect();
        for round in 0..2 {
            assert_eq!(failed(replay(), &(fault, round)).first.drive, "drive1");
            assert_eq!(flat.check(&fixture, &(fault, round)), due, "it takes nothing until it was recovered");
        }
        assert!(slot.recover().unwrap());
        if fault == Fault::Disappear {
            failed(replay(), &"given up");
            assert_eq!(flat.check(&fixture, &"given up"), due);
            assert!(!slot.recover().unwrap(), "it is done without");
            fixture.drives[1].power_cut(PowerCut::KeepAll).unwrap();
            assert!(fixture.store.retry_drives().iter().all(|retry_drive| retry_drive.failure.is_none()));
            assert!(slot.recover().unwrap());
        }
        for round in 0..3 {
            replay().unwrap_or_else(|error| panic!("{fault:?}, replay {round}: {error}"));
            assert!(flat.check(&fixture, &(fault, round)).is_empty());
        }
    }
}

/// What the child below says when all went well.
const OUTLIVED: &str = "drives have outlived the context";

/// Ends its context, and with it all other tests of its process: run by the test below, in a process of its own.
#[test]
#[ignore = "run by the test below, in a process of its own"]
fn context_is_lost() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let plan = fixture.plan(&gpu, patient(), 2);
    let slot = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let flat = Flat::new(&gpu, Fixture::ids(1000, &mut fastrand::Rng::with_seed(13)));
    flat.assert_found(&fixture, &slot, &stream, &"before");
    // A look-up waits for its drive, inside the gate.
    fixture.drives[1].faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).nth(100).always());
    let ticket = flat.launch(&slot, &stream).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(ticket.poll().is_none());
    trap(&gpu);
    fixture.drives[1].faults().clear();
    let names_it = |error: GpuError| {
        let text = error.to_string();
        assert!(text.contains("the CUDA context is lost"), "{text}");
    };
    names_it(flat.launch(&slot, &stream).expect_err("there is no context"));
    // One drive needs a reset, for which everybody has to let go.
    fixture.drives[1].faults().inject(Rule::new(Fault::Fatal).io(NvmOpcode::READ));
    let host = HostExecutor::attach(&fixture.store, HostOptions::default()).unwrap();
    let plan_of_host = host.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let mut slot_of_host = plan_of_host.slot().unwrap();
    let ids = Fixture::ids(600, &mut fastrand::Rng::with_seed(14));
    let mut look = || {
        let mut rows = vec![0.0; ids.len() * DIM as usize];
        let mut out = Output::new(OutputRows::F32(&mut rows), DIM as usize);
        let looked = slot_of_host.lookup(&Batch::new(&ids, ids.len()), &mut out);
        if looked.is_ok() {
            for (row, &id) in rows.chunks(DIM as usize).zip(&ids) {
                // NaNs among them.
                let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(row), bits(&common::widen(DType::F32, fixture.table.row(id as u64))), "id {id}");
            }
        }
        looked.is_ok()
    };
    assert!(!look(), "the drive has failed");
    assert!(look() || look(), "the drive was reset");
    names_it(slot.recover().expect_err("there is no context"));
    assert!(look());
    drop((slot, ticket, plan));
    assert!(look() && look());
    println!("{OUTLIVED}");
}

#[test]
fn a_lost_context_is_named_and_its_drives_serve_others() {
    let Some(gpu) = gpu() else { return };
    let program = std::env::current_exe().unwrap();
    let child = std::process::Command::new(program)
        .args(["--exact", "dead::context_is_lost", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    drop(gpu);
    let text = format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && text.contains(OUTLIVED), "{text}");
}
