//! Commands that are lost, late, or answered wrongly: the look-up ends in time and names them, all other rows are
//! right, and the next look-up is right altogether.

use std::time::Instant;

use warprow_gpu::GpuExecutor;
use warprow_gpu::{GpuError, GpuOptions};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{NvmOpcode, StatusCode};
use warprow_store::StoreError;

use crate::fixture::{Fixture, Flat, Stream, failed, gpu, patient, short, wait};

#[test]
fn faults_are_bounded_named_and_mended() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.plan(&gpu, GpuOptions::default().with_timeout(short()), 1);
    let slot = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(1);
    let late = short() * 3;
    let rules = [
        ("lost", Rule::new(Fault::Drop)),
        ("never carried out", Rule::new(Fault::Swallow)),
        ("late", Rule::new(Fault::Delay(late))),
        ("a bad status", Rule::new(Fault::Status(StatusCode::UnrecoveredReadError.into())).times(3)),
        ("another's identifier", Rule::new(Fault::WrongCid(0x7777))),
        ("doubled", Rule::new(Fault::Duplicate)),
    ];
    for (what, rule) in rules {
        let id = fixture.drives[0].faults().inject(rule.io(NvmOpcode::READ).nth(20));
        let flat = Flat::new(&gpu, Fixture::ids(900, &mut random));
        let began = Instant::now();
        let ticket = flat.launch(&slot, &stream).unwrap();
        let result = wait(&ticket);
        assert!(began.elapsed() < short() * 20, "{what}: {:?}", began.elapsed());
        let lost = flat.check(&fixture, &what);
        if what == "doubled" {
            let report = result.unwrap();
            assert!(report.anomalies > 0 && lost.is_empty());
        } else {
            let it = failed(result, &what);
            assert!(it.ids > 0 && it.ids == lost.len() as u64, "{what}: {} failed, {} lost", it.ids, lost.len());
            let text = it.first.to_string();
            assert!(it.first.drive == "drive0" && it.first.queue > 0, "{text}");
            // The command that it names is one of those that failed.
            let (cid, lba) = it.first.command;
            assert!(lost.iter().any(|&id| fixture.home(id as u64) == (0, lba)), "{what}: {text}");
            assert!(text.contains(&format!("CID {cid:#06x}, LBA {lba}")), "{what}: {text}");
            let by_status = text.contains("Unrecovered Read Error");
            let timed_out = text.contains("no answer within");
            assert_eq!((by_status, timed_out), (what == "a bad status", what != "a bad status"), "{what}: {text}");
            assert!(!by_status || it.ids == 3, "{what}: {} failed", it.ids);
        }
        drop(ticket);
        fixture.drives[0].faults().remove(id);
        if what == "late" {
            // Half of the time the data has landed before the queue is started anew.
            std::thread::sleep(late);
        }
        for _ in 0..3 {
            flat.assert_found(&fixture, &slot, &stream, &(what, "afterwards"));
        }
    }
}

/// With the time-out of one launch and the status of another in the same queue, each ticket tells its own.
#[test]
fn tickets_tell_their_own_failures() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.plan(&gpu, GpuOptions::default().with_timeout(short()), 1);
    let slot = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(6);
    let flats: Vec<Flat> = (0..4).map(|_| Flat::new(&gpu, Fixture::ids(300, &mut random))).collect();
    let status = Fault::Status(StatusCode::UnrecoveredReadError.into());
    let at = |flat: &Flat, fault| {
        let lba = fixture.home(flat.ids[150] as u64).1;
        fixture.drives[0].faults().inject(Rule::new(fault).io(NvmOpcode::READ).lbas(lba..lba + 1));
        lba
    };
    // Rows of their own, so that each meets its own fault.
    let all: std::collections::HashSet<i64> = flats.iter().map(|flat| flat.ids[150]).collect();
    assert_eq!(all.len(), 4);
    let by_status = at(&flats[0], status);
    let shared = flats[1..].iter().filter(|flat| flat.ids.contains(&flats[0].ids[150])).count();
    let lost = at(&flats[2], Fault::Swallow);
    assert!(
        !flats[1].ids.contains(&flats[2].ids[150]) && !flats[0].ids.contains(&flats[2].ids[150]),
        "choose another seed"
    );
    eprintln!("{shared} other look-ups have the row of the bad status");
    // One after another, without waiting: nothing is started anew in between.
    let tickets: Vec<_> = flats.iter().map(|flat| flat.launch(&slot, &stream).unwrap()).collect();
    let results: Vec<_> = tickets.iter().map(wait).collect();
    let [first, second, third, fourth] = <[_; 4]>::try_from(results).unwrap_or_else(|_| panic!("there are four"));
    let first = failed(first, &"the first");
    assert!(first.ids == 1 && first.first.command.1 == by_status, "{}", first.first);
    assert!(first.first.what.starts_with("a command failed"), "{}", first.first);
    assert!(second.is_ok() && flats[1].check(&fixture, &"the second").is_empty());
    let third = failed(third, &"the third");
    assert!(third.first.what.contains("no answer") && third.first.command.1 == lost, "{}", third.first);
    // The last finds the queue out of use, because of what the third met.
    let fourth = failed(fourth, &"the fourth");
    assert!(fourth.ids == 300 && fourth.first.command.1 == lost, "{}", fourth.first);
    drop(tickets);
    flats[3].assert_found(&fixture, &slot, &stream, &"afterwards");
}

#[test]
fn damaged_rows_are_noticed_where_they_are_checked() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let plan = fixture.plan(&gpu, patient().with_checked_rows(), 1);
    let slot = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..4 {
        // With more ids than one block prepares, too.
        let flat = Flat::new(&gpu, Fixture::ids(1000, &mut random));
        let report = flat.assert_found(&fixture, &slot, &stream, &round);
        assert_eq!(report.damaged, 0);
        let spoilt = &fixture.drives[round % 2];
        let rule = spoilt.faults().inject(Rule::new(Fault::Corrupt).io(NvmOpcode::READ).nth(20).times(3));
        flat.reset();
        let it = failed(wait(&flat.launch(&slot, &stream).unwrap()), &round);
        let lost = flat.check(&fixture, &round);
        assert_eq!((it.ids, it.report.damaged, lost.len()), (3, 3, 3), "round {round}");
        let named = lost.iter().any(|&id| {
            let what = format!("table \"t\", rank {id}: the row does not match its checksum");
            it.first.what == what && (round as u16 % 2, it.first.command.1) == fixture.home(id as u64)
        });
        assert!(named && it.first.drive == format!("drive{}", round % 2), "{}, of {lost:?}", it.first);
        spoilt.faults().remove(rule);
        // The queue goes on.
        flat.assert_found(&fixture, &slot, &stream, &round);
    }
    // Without, nobody notices: what the drive says is believed.
    let slot = fixture.plan(&gpu, patient(), 1).slot().unwrap();
    let flat = Flat::new(&gpu, Fixture::ids(100, &mut random));
    fixture.drives[0].faults().inject(Rule::new(Fault::Corrupt).io(NvmOpcode::READ).nth(3));
    assert_eq!(wait(&flat.launch(&slot, &stream).unwrap()).unwrap().failed, 0);
}

#[test]
fn rows_for_memory_are_checked_when_they_are_read() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let (_, lba) = fixture.home(40);
    for (hbm, dram) in [(1 << 20, 0), (0, 1 << 20), (20 * 512, 1 << 20)] {
        let options = patient().with_hbm_bytes(hbm).with_dram_bytes(dram);
        let spoilt = Rule::new(Fault::Corrupt).io(NvmOpcode::READ).lbas(lba..lba + 1).always();
        let rule = fixture.drives[0].faults().inject(spoilt);
        let error = GpuExecutor::attach(&fixture.store, gpu.clone(), options.clone().with_checked_rows());
        let error = error.expect_err("a row is not what was written");
        assert!(matches!(&error, GpuError::Store(StoreError::RowDamaged { table, .. }) if table == "t"), "{error:?}");
        fixture.drives[0].faults().remove(rule);
        let slot = fixture.plan(&gpu, options.with_checked_rows(), 1).slot().unwrap();
        let flat = Flat::new(&gpu, Fixture::ids(1000, &mut fastrand::Rng::with_seed(hbm)));
        flat.assert_found(&fixture, &slot, &Stream::new(&gpu), &(hbm, dram));
    }
}

/// One queue of a drive takes no more commands, and a graph goes on: the other queue sets serve its rows.
#[test]
fn healthy_sets_serve_the_rows_of_a_poisoned_one() {
    let Some(gpu) = gpu() else { return };
    for sets in [2, 3] {
        let fixture = Fixture::new(2);
        let options = GpuOptions::default().with_timeout(short()).with_queue_sets(sets);
        let plan = fixture.plan(&gpu, options, 1);
        let slot = plan.slot().unwrap();
        let stream = Stream::new(&gpu);
        let flat = Flat::new(&gpu, Fixture::ids(1000, &mut fastrand::Rng::with_seed(sets.into())));
        let (graph, captured) = flat.capture(&gpu, &slot, &stream);
        let replay = || {
            flat.reset();
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            captured.poll().expect("it has ended")
        };
        replay().unwrap();
        fixture.drives[1].faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).nth(30));
        let lost = failed(replay(), &"one is lost");
        let missing = flat.check(&fixture, &"one is lost");
        assert!(lost.ids == missing.len() as u64 && lost.first.drive == "drive1", "{}", lost.first);
        // No more than the share of one set on that drive.
        let of_drive = flat.ids.iter().filter(|&&id| fixture.home(id as u64).0 == 1).count();
        assert!(
            missing.iter().all(|&id| fixture.home(id as u64).0 == 1) && missing.len() < of_drive,
            "{}",
            missing.len()
        );
        for round in 0..5 {
            let report = replay().unwrap_or_else(|error| panic!("{sets} sets, replay {round}: {error}"));
            assert_eq!((report.failed, report.commands), (0, 1000), "{sets} sets, replay {round}");
            assert!(flat.check(&fixture, &(sets, round)).is_empty());
        }
        // A look-up outside graphs starts it anew, and graphs find it.
        flat.assert_found(&fixture, &slot, &stream, &"anew");
        assert_eq!(replay().unwrap().failed, 0);
    }
}
