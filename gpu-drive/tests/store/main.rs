//! A store on drives that a GPU plays: written, read, updated, and looked up by a kernel. Without a GPU the tests are skipped.
#![allow(unsafe_code, reason = "look-ups on a GPU take addresses")]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cudarc::driver::DevicePtr;
use cudarc::driver::sys::{CUgraphInstantiate_flags_enum, CUstreamCaptureMode_enum};
use warprow_gpu::{BatchLen, GpuBatch, GpuError, GpuOptions, GpuOutput, MemoryPlacement, QueuePlacement};
use warprow_lookup::{Feature, PlanOptions};
use warprow_soft_controller::{Fault, NvmOpcode, Rule, StatusCode};
use warprow_store::{DType, LoadOptions, TableLoad, TableSpec};

mod beside;
mod fixture;

use fixture::{DIM, Fixture, PLACES, ROWS, ids, plan_of, row};

#[test]
fn the_gpu_answers_and_every_row_is_right() {
    answers(0);
}

#[test]
fn another_gpu_answers_and_every_row_is_right() {
    answers(1);
}

fn answers(gpu: usize) {
    for (drives, properties) in [(1, ""), (3, ",profile=gen6"), (2, ",iops=1e6,latency=20us")] {
        let Some(fixture) = Fixture::played_by(gpu, drives, properties) else { return };
        for (memory, placement) in PLACES {
            let executor = fixture.executor(memory);
            assert_eq!(executor.queue_placements().placement, placement, "{}", executor.queue_placements());
            let plan = plan_of(&executor, 10_000);
            let before = fixture.counts();
            let mut looked_up = 0;
            for (count, seed) in [(1, 1), (10, 2), (1_000, 3), (10_000, 4), (10_000, 5)] {
                let report = fixture.look_up(&plan, &ids(count, seed), 0);
                assert_eq!(report.anomalies, 0, "{properties}");
                looked_up += report.commands;
            }
            let (by_gpu, by_worker) = (fixture.counts().0 - before.0, fixture.counts().1 - before.1);
            println!(
                "{drives} drives on GPU {gpu}{properties}, {memory:?}: {looked_up} commands, {by_gpu} by the GPU, {by_worker} by the host"
            );
            assert!(
                by_gpu == looked_up && by_worker == 0,
                "{by_gpu} by the GPU, {by_worker} by the host, of {looked_up}"
            );
        }
    }
}

/// Up to 4,096 ids by one kernel, rows of several sets, and one row that everybody wants; in two halves as well.
#[test]
fn one_kernel_does_it_all() {
    let Some(fixture) = Fixture::new(3, "") else { return };
    for ((memory, _), sets) in PLACES.into_iter().zip([1, 2, 4]) {
        let options = GpuOptions::default().with_queue_sets(sets).with_queue_memory(memory);
        let executor = fixture.attach(options.with_one_kernel_ids(4096));
        let options = PlanOptions::default().with_max(5_000, 5_000).with_prefetch();
        let plan = executor.plan(&[Feature::new("t", "t")], options).unwrap();
        let equal = vec![4_711; 4_096];
        let all = [1, 24, 48, 192, 768, 1_536, 4_095, 4_096, 4_097, 5_000].map(|count| ids(count, count as u64));
        for wanted in all.iter().chain([&equal]) {
            let before = fixture.counts().0;
            let report = fixture.look_up(&plan, wanted, 0);
            assert_eq!((report.anomalies, fixture.counts().0 - before), (0, report.commands), "{memory:?}");
            fixture.look_up_ahead(&plan, wanted);
        }
    }
}

/// What is captured knows the queues by their addresses, and wakes nobody.
#[test]
fn graphs_are_replayed() {
    let Some(fixture) = Fixture::new(2, "") else { return };
    for (memory, _) in PLACES {
        let executor = fixture.executor(memory);
        let (plan, count) = (plan_of(&executor, 10_000), 10_000);
        let (slot, stream) = (plan.slot().unwrap(), &fixture.stream);
        let mut on_gpu = stream.clone_htod(&ids(count, 0)).unwrap();
        let rows = stream.alloc_zeros::<f32>(count * DIM).unwrap();
        let batch = GpuBatch::new(on_gpu.device_ptr(stream).0, BatchLen::Host(count), count as u32);
        let output = GpuOutput::new(rows.device_ptr(stream).0, plan.width());
        stream.synchronize().unwrap();
        stream.begin_capture(CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        // SAFETY: both arrays live until the graph has run for the last time.
        let ticket = unsafe { slot.lookup(stream.cu_stream().cast(), &batch, &output) }.unwrap();
        let flags = CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).unwrap().unwrap();
        for seed in 1..5 {
            let wanted = ids(count, seed);
            stream.memcpy_htod(&wanted, &mut on_gpu).unwrap();
            graph.launch().unwrap();
            let found = stream.clone_dtoh(&rows).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(ticket.poll().unwrap().unwrap().runs, seed);
            for (&id, found) in wanted.iter().zip(found.chunks(DIM)) {
                assert_eq!(found, row(id as u64, 0), "row {id}");
            }
        }
    }
}

/// A command that is never answered, and a controller with a fatal error: the look-up ends with an error, the next brings the queue or the
/// drive back, and the GPU answers again.
#[test]
fn time_outs_and_resets_are_survived() {
    for (memory, _) in PLACES {
        let Some(fixture) = Fixture::new(2, "") else { return };
        let options = GpuOptions::default().with_queue_sets(2).with_queue_memory(memory);
        let executor = fixture.attach(options.with_timeout(Duration::from_millis(300)));
        let plan = plan_of(&executor, 2_000);
        fixture.look_up(&plan, &ids(2_000, 1), 0);
        for fault in [Fault::Swallow, Fault::Fatal] {
            fixture.drives[1].faults().inject(Rule::new(fault).io(NvmOpcode::READ).nth(9));
            let wanted = ids(2_000, 2);
            let (report, found) = fixture.rows(&plan, &wanted);
            let Err(GpuError::RowsFailed { failed, .. }) = report else { panic!("{memory:?}, {fault:?}: {report:?}") };
            let wrong = wanted.iter().zip(found.chunks(DIM)).filter(|(id, found)| **found != row(**id as u64, 0));
            assert!(failed >= 1 && wrong.count() as u64 <= failed, "{memory:?}, {fault:?}: {failed} failed");
            let before = fixture.counts();
            let report = fixture.look_up(&plan, &ids(2_000, 3), 0);
            let by_gpu = fixture.counts().0 - before.0;
            assert!(by_gpu == report.commands, "{memory:?}, {fault:?}: {by_gpu} of {} commands", report.commands);
        }
    }
}

#[test]
fn updates_reach_the_copy() {
    let Some(fixture) = Fixture::new(2, "") else { return };
    let rows: Vec<u8> = (0..ROWS).flat_map(|id| row(id, 1)).flat_map(f32::to_le_bytes).collect();
    let spec = TableSpec::new("t", ROWS, DIM as u32, DType::F32);
    let load = TableLoad::new(&spec, &rows);
    let options = LoadOptions::default().with_replace();
    {
        let executor = fixture.executor(MemoryPlacement::A);
        fixture.look_up(&plan_of(&executor, 1000), &ids(1000, 1), 0);
    }
    fixture.store.load("model", &[load], &options, &mut |_| ControlFlow::Continue(())).unwrap();
    for (memory, _) in PLACES {
        let executor = fixture.executor(memory);
        let report = fixture.look_up(&plan_of(&executor, 10_000), &ids(10_000, 2), 1);
        assert!(report.commands > 0);
    }
}

/// Whoever waits for the whole GPU waits for the look-up and its drive, and for no longer.
#[test]
fn waiting_for_the_whole_gpu_is_no_deadlock() {
    let Some(fixture) = Fixture::new(1, ",iops=1e5") else { return };
    let executor = fixture.executor(MemoryPlacement::Best);
    assert_eq!(executor.queue_placements().placement, QueuePlacement::A);
    let plan = plan_of(&executor, 10_000);
    let (done, context) = (Arc::new(AtomicBool::new(false)), fixture.context.clone());
    let waiter = {
        let done = done.clone();
        std::thread::spawn(move || {
            let mut waits = 0;
            while !done.load(Ordering::SeqCst) {
                context.synchronize().unwrap();
                waits += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            waits
        })
    };
    for seed in 0..5 {
        fixture.look_up(&plan, &ids(10_000, seed), 0);
    }
    done.store(true, Ordering::SeqCst);
    println!("the whole GPU was waited for {} times", waiter.join().unwrap());
}

/// While a rule of faults is armed the host serves; its fault is met by the look-up, and the next look-up is right.
#[test]
fn faults_are_met() {
    let Some(fixture) = Fixture::new(1, "") else { return };
    for (memory, _) in PLACES {
        let executor = fixture.executor(memory);
        let plan = plan_of(&executor, 1_000);
        fixture.look_up(&plan, &ids(1_000, 1), 0);
        let unreadable = Fault::Status(StatusCode::UnrecoveredReadError.into());
        fixture.drives[0].faults().inject(Rule::new(unreadable).io(NvmOpcode::READ).nth(5));
        let second = ids(1_000, 2);
        let (report, found) = fixture.rows(&plan, &second);
        let Err(GpuError::RowsFailed { failed, .. }) = report else { panic!("{memory:?}: {report:?}") };
        let is_wrong = |(id, found): &(&i64, &[f32])| **found != row(**id as u64, 0);
        let wrong = second.iter().zip(found.chunks(DIM)).filter(is_wrong).count();
        assert!(failed == 1 && wrong as u64 == failed, "{memory:?}: {failed} failed, {wrong} wrong");
        let (before, _) = fixture.counts();
        fixture.look_up(&plan, &ids(1_000, 3), 0);
        assert!(fixture.counts().0 > before, "{memory:?}: the GPU answers again");
    }
}
