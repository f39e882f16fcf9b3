//! Prefetches inside graphs: both halves captured, on a branch of their own.

use cudarc::driver::sys::{CUresult, CUstreamCaptureMode_enum as Mode};
use warprow_gpu::{GpuError, GpuOptions, GpuSlot, Ticket};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::NvmOpcode;

use crate::captures::{destroy, record};
use crate::fixture::{Fixture, Flat, Stream, failed, gpu, millis, patient, short, soon, wait};

const MODE: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;

/// A step of a model with three layers: rows of two layers are fetched by a slot each from the step's beginning on, and
/// those of the third by the first slot, when it is free again; beside them one look-up at once. The graph runs with
/// other ids each time.
#[test]
fn a_step_fetches_for_its_layers() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    for dram in [0, 500_000] {
        let executor = fixture.attach(&gpu, patient().with_dram_bytes(dram));
        let plan = executor.plan(&Fixture::features(), Fixture::options(3).with_prefetch()).unwrap();
        let slots: Vec<GpuSlot> = (0..3).map(|_| plan.slot().unwrap()).collect();
        let stream = Stream::new(&gpu);
        let mut random = fastrand::Rng::with_seed(1);
        let counts = [900, 24, 700, 300];
        let mut flats = counts.map(|count| Flat::new(&gpu, Fixture::ids(count, &mut random)));
        let mut tickets: Vec<Ticket> = Vec::new();
        let graph = stream.capture(&gpu, || {
            let first = flats[0].prefetch(&slots[0], &stream).unwrap();
            let second = flats[1].prefetch(&slots[1], &stream).unwrap();
            assert!(matches!(first.is_fetched(), Err(GpuError::Invalid { .. })));
            tickets.push(flats[0].launch_prefetched(&slots[0], first, &stream).unwrap());
            let third = flats[2].prefetch(&slots[0], &stream).unwrap();
            tickets.push(flats[1].launch_prefetched(&slots[1], second, &stream).unwrap());
            let at_once = flats[3].launch(&slots[2], &stream).unwrap();
            tickets.push(flats[2].launch_prefetched(&slots[0], third, &stream).unwrap());
            tickets.push(at_once);
        });
        for run in 1..=20 {
            for (flat, count) in flats.iter_mut().zip(counts) {
                flat.set_ids(Fixture::ids(count, &mut random));
                flat.reset();
            }
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            for ((flat, ticket), count) in flats.iter().zip(&tickets).zip(counts) {
                let report = ticket.poll().expect("it has ended").unwrap();
                ticket.check().unwrap();
                assert_eq!(flat.check(&fixture, &(run, count)), [0i64; 0]);
                assert_eq!((report.runs, report.ids, report.failed), (run, count as u64, 0));
            }
        }
        // The slots are as they were, for whatever comes.
        let prefetched = flats[0].prefetch(&slots[0], &stream).unwrap();
        flats[0].reset();
        wait(&flats[0].launch_prefetched(&slots[0], prefetched, &stream).unwrap()).unwrap();
        assert_eq!(flats[0].check(&fixture, &"launched"), [0i64; 0]);
        drop((graph, tickets));
        soon("the graph is gone", || slots.iter().all(|slot| slot.captured_places().0 == 0));
    }
}

/// The branch runs beside what lies between: a command of a fetch that takes long holds up its look-up and nothing
/// before it.
#[test]
fn the_branch_runs_beside_the_step() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.attach(&gpu, patient()).plan(&Fixture::features(), Fixture::options(2).with_prefetch()).unwrap();
    let (slot, other, stream) = (plan.slot().unwrap(), plan.slot().unwrap(), Stream::new(&gpu));
    let (slow, quick) = (Flat::new(&gpu, (0..500).collect()), Flat::new(&gpu, (1000..1500).collect()));
    let mut tickets = Vec::new();
    let graph = stream.capture(&gpu, || {
        let prefetched = slow.prefetch(&slot, &stream).unwrap();
        tickets.push(quick.launch(&other, &stream).unwrap());
        tickets.push(slow.launch_prefetched(&slot, prefetched, &stream).unwrap());
    });
    let lba = fixture.home(250).1;
    let late = Rule::new(Fault::Delay(millis(1500))).io(NvmOpcode::READ).lbas(lba..lba + 1);
    fixture.drives[0].faults().inject(late);
    stream.launch(&gpu, &graph);
    wait(&tickets[0]).unwrap();
    assert!(tickets[1].poll().is_none(), "one command takes a second and a half");
    wait(&tickets[1]).unwrap();
    stream.wait(&gpu);
    assert!(quick.check(&fixture, &"quick").is_empty() && slow.check(&fixture, &"slow").is_empty());
}

/// Rows that are needed later are fetched behind those that are needed first: no command of theirs is sent before.
#[test]
fn rows_are_fetched_in_the_order_of_need() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.attach(&gpu, patient()).plan(&Fixture::features(), Fixture::options(3).with_prefetch()).unwrap();
    let (slots, stream) = ([0, 1, 2].map(|_| plan.slot().unwrap()), Stream::new(&gpu));
    let flats = [0, 1000, 2000].map(|from| Flat::new(&gpu, (from..from + 400).collect()));
    let mut tickets = Vec::new();
    let graph = stream.capture(&gpu, || {
        let first = flats[0].prefetch(&slots[0], &stream).unwrap();
        assert!(matches!(flats[1].prefetch_behind(&slots[0], &stream, &first), Err(GpuError::SlotHoldsBatch)));
        let second = flats[1].prefetch_behind(&slots[1], &stream, &first).unwrap();
        let third = flats[2].prefetch_behind(&slots[2], &stream, &second).unwrap();
        for ((flat, slot), batch) in flats.iter().zip(&slots).zip([first, second, third]) {
            tickets.push(flat.launch_prefetched(slot, batch, &stream).unwrap());
        }
    });
    // The first command of the first layer takes long; the others are not sent before it has ended.
    let lba = fixture.home(200).1;
    let late = Rule::new(Fault::Delay(millis(300))).io(NvmOpcode::READ).lbas(lba..lba + 1);
    fixture.drives[0].faults().inject(late);
    stream.launch(&gpu, &graph);
    stream.wait(&gpu);
    let reports: Vec<_> = tickets.iter().map(|ticket| ticket.poll().expect("it has ended").unwrap()).collect();
    assert!(reports[0].fetch >= millis(300), "{reports:?}");
    // Had their commands been sent with the first's, these would have waited on the drive.
    assert!(reports[1].fetch < millis(200) && reports[2].fetch < millis(200), "{reports:?}");
    for (flat, which) in flats.iter().zip(["first", "second", "third"]) {
        assert_eq!(flat.check(&fixture, &which), [0i64; 0]);
    }
    // A batch of no capture is none to wait for in one, and the other way round.
    let outside = flats[0].prefetch(&slots[0], &stream).unwrap();
    let ended = record(&gpu, &stream, MODE, || {
        let refused = flats[1].prefetch_behind(&slots[1], &stream, &outside);
        assert!(matches!(refused, Err(GpuError::Invalid { .. })), "{refused:?}");
    });
    destroy(&gpu, ended.unwrap());
    wait(&flats[0].launch_prefetched(&slots[0], outside, &stream).unwrap()).unwrap();
}

/// Rows that few threads fetch are the same rows: by one kernel, by several, with rows in DRAM, in a graph and outside.
#[test]
fn a_budget_of_multiprocessors_fetches_the_same_rows() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let stream = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(6);
    for (one_kernel, dram) in [(128, 0), (0, 0), (0, 500_000)] {
        let options = patient().with_one_kernel_ids(one_kernel).with_dram_bytes(dram).with_queue_sets(2);
        let executor = fixture.attach(&gpu, options.clone().with_prefetch_multiprocessors(1));
        let plan = executor.plan(&Fixture::features(), Fixture::options(1).with_prefetch()).unwrap();
        let slot = plan.slot().unwrap();
        for count in [100, 1000] {
            let mut flat = Flat::new(&gpu, Fixture::ids(count, &mut random));
            let prefetched = flat.prefetch(&slot, &stream).unwrap();
            wait(&flat.launch_prefetched(&slot, prefetched, &stream).unwrap()).unwrap();
            assert_eq!(flat.check(&fixture, &(one_kernel, dram, count)), [0i64; 0]);
            let mut ticket = None;
            let graph = stream.capture(&gpu, || {
                let prefetched = flat.prefetch(&slot, &stream).unwrap();
                ticket = Some(flat.launch_prefetched(&slot, prefetched, &stream).unwrap());
            });
            flat.set_ids(Fixture::ids(count, &mut random));
            flat.reset();
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            wait(ticket.as_ref().unwrap()).unwrap();
            assert_eq!(flat.check(&fixture, &(one_kernel, dram, count, "captured")), [0i64; 0]);
        }
        let none = fixture.attach(&gpu, options.with_prefetch_multiprocessors(0));
        let refused = none.plan(&Fixture::features(), Fixture::options(1).with_prefetch());
        assert!(matches!(refused, Err(GpuError::Unsupported(_))), "{refused:?}");
        none.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    }
}

/// Without its look-up a prefetch cannot end a capture well, whatever becomes of the batch; afterwards the slot is as
/// it was.
#[test]
fn a_prefetch_without_its_look_up_is_refused_when_the_capture_ends() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.attach(&gpu, patient()).plan(&Fixture::features(), Fixture::options(2).with_prefetch()).unwrap();
    let (slot, other, stream) = (plan.slot().unwrap(), plan.slot().unwrap(), Stream::new(&gpu));
    let second = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(2);
    let [flat, more] = [0, 1].map(|_| Flat::new(&gpu, Fixture::ids(400, &mut random)));
    let unjoined = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // Held beyond the end.
    let mut held = None;
    assert_eq!(record(&gpu, &stream, MODE, || held = Some(flat.prefetch(&slot, &stream).unwrap())), unjoined);
    flat.reset();
    // It belongs to a capture that has ended.
    let late = flat.launch_prefetched(&slot, held.take().unwrap(), &stream);
    assert!(matches!(late, Err(GpuError::Invalid { .. })), "{late:?}");
    flat.assert_untouched(&"refused");
    flat.assert_found(&fixture, &slot, &stream, &"after one that was held");
    // Dropped; and nothing that is recorded later makes up for it.
    let ended = record(&gpu, &stream, MODE, || {
        drop(flat.prefetch(&slot, &stream).unwrap());
        assert!(matches!(more.prefetch(&slot, &stream), Err(GpuError::Busy(_))));
        // Another slot's is no concern of that.
        let prefetched = more.prefetch(&other, &stream).unwrap();
        drop(more.launch_prefetched(&other, prefetched, &stream).unwrap());
    });
    assert_eq!(ended, unjoined);
    // Joined by its caller, who cannot.
    let ended = record(&gpu, &stream, MODE, || {
        let prefetched = flat.prefetch(&slot, &stream).unwrap();
        // SAFETY: the stream is one.
        assert!(matches!(unsafe { prefetched.hold(stream.0) }, Err(GpuError::Invalid { .. })));
    });
    assert_eq!(ended, unjoined);
    // Two at a time, a look-up at once meanwhile, and halves in two captures, or one of them in none: each is refused
    // before anything is recorded.
    let ended = record(&gpu, &stream, MODE, || {
        let prefetched = flat.prefetch(&slot, &stream).unwrap();
        assert!(matches!(more.prefetch(&slot, &stream), Err(GpuError::SlotHoldsBatch)));
        assert!(matches!(more.launch(&slot, &stream), Err(GpuError::SlotHoldsBatch)));
        // Beside the capture.
        assert!(matches!(more.prefetch(&slot, &second), Err(GpuError::Busy(_))));
        let launched = flat.launch_prefetched(&slot, prefetched, &second);
        assert!(matches!(launched, Err(GpuError::Invalid { .. })), "{launched:?}");
    });
    assert_eq!(ended, unjoined);
    let prefetched = flat.prefetch(&slot, &stream).unwrap();
    let mut launched = None;
    let graph = record(&gpu, &second, MODE, || {
        assert!(matches!(more.prefetch(&slot, &second), Err(GpuError::SlotHoldsBatch)), "it holds a batch");
        launched = Some(flat.launch_prefetched(&slot, prefetched, &second));
    });
    assert!(graph.is_ok() && matches!(launched, Some(Err(GpuError::Invalid { .. }))), "{launched:?}");
    soon("all that was recorded is gone", || slot.captured_places().0 + other.captured_places().0 == 0);
    for slot in [&slot, &other] {
        flat.assert_found(&fixture, slot, &stream, &"afterwards");
        flat.reset();
        let (mut ticket, mut recorded) = (None, None);
        let graph = stream.capture(&gpu, || {
            recorded = Some(flat.prefetch(slot, &stream).unwrap());
            ticket = Some(flat.launch_prefetched(slot, recorded.take().unwrap(), &stream).unwrap());
        });
        stream.launch(&gpu, &graph);
        wait(ticket.as_ref().unwrap()).unwrap();
        stream.wait(&gpu);
        assert_eq!(flat.check(&fixture, &"recorded afterwards"), [0i64; 0]);
    }
}

/// A drive that fails in a run is told by the look-up's ticket, and mended between two runs.
#[test]
fn a_drive_that_fails_in_a_run_is_mended_between_runs() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, GpuOptions::default().with_timeout(short()));
    let plan = executor.plan(&Fixture::features(), Fixture::options(1).with_prefetch()).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let flat = Flat::new(&gpu, Fixture::ids(500, &mut fastrand::Rng::with_seed(3)));
    let mut ticket = None;
    let graph = stream.capture(&gpu, || {
        let prefetched = flat.prefetch(&slot, &stream).unwrap();
        ticket = Some(flat.launch_prefetched(&slot, prefetched, &stream).unwrap());
    });
    let ticket = ticket.unwrap();
    for round in 0..3 {
        fixture.drives[0].faults().inject(Rule::new(Fault::Drop).io(NvmOpcode::READ).nth(20));
        flat.reset();
        stream.launch(&gpu, &graph);
        stream.wait(&gpu);
        let it = failed(ticket.poll().unwrap(), &round);
        assert_eq!(it.ids, flat.check(&fixture, &round).len() as u64);
        assert!(ticket.check().is_err() && ticket.check().is_ok());
        assert!(slot.recover().unwrap());
        flat.reset();
        stream.launch(&gpu, &graph);
        stream.wait(&gpu);
        ticket.check().unwrap();
        assert_eq!(flat.check(&fixture, &round), [0i64; 0]);
    }
}
