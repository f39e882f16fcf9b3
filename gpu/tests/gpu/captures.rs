//! Captures without number: what graphs keep, until when, and what goes on beside a capture.

use std::ptr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode_enum as Mode};
use warprow_gpu::{GpuError, GpuOptions, GpuPlan, GpuSlot, Ticket};
use warprow_gpu_queues::Gpu;
use warprow_lookup::PrepareOptions;
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{NvmOpcode, StatusCode};
use warprow_store::{DType, LoadOptions, TableSpec};

use crate::common::{self, Table};
use crate::fixture::{DIM, Fixture, Flat, Graph, ROWS, Stream, gpu, millis, patient, scaled, short, soon, wait};

/// A stream that the default stream waits for.
fn blocking(gpu: &Gpu) -> Stream {
    let _current = gpu.enter().unwrap();
    let mut stream = ptr::null_mut();
    // SAFETY: a context is current; it stores a handle.
    assert_eq!(unsafe { sys::cuStreamCreate(&mut stream, 0) }, CUresult::CUDA_SUCCESS);
    Stream(stream)
}

/// Records what `work` launches, in that mode; the graph, or what the end of the capture says.
pub(crate) fn record(gpu: &Gpu, stream: &Stream, mode: Mode, work: impl FnOnce()) -> Result<CUgraph, CUresult> {
    let _current = gpu.enter().unwrap();
    let mut graph = ptr::null_mut();
    // SAFETY: the stream is one; capture begins and ends on this thread; a handle is stored.
    let ended = unsafe {
        assert_eq!(sys::cuStreamBeginCapture_v2(stream.0, mode), CUresult::CUDA_SUCCESS);
        work();
        sys::cuStreamEndCapture(stream.0, &mut graph)
    };
    if ended == CUresult::CUDA_SUCCESS { Ok(graph) } else { Err(ended) }
}

fn executable(gpu: &Gpu, graph: CUgraph) -> Graph {
    let _current = gpu.enter().unwrap();
    let mut exec: CUgraphExec = ptr::null_mut();
    // SAFETY: the graph is one; a handle is stored.
    assert_eq!(unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) }, CUresult::CUDA_SUCCESS);
    Graph(exec)
}

pub(crate) fn destroy(gpu: &Gpu, graph: CUgraph) {
    let _current = gpu.enter().unwrap();
    // SAFETY: the graph is one, and is destroyed once.
    assert_eq!(unsafe { sys::cuGraphDestroy(graph) }, CUresult::CUDA_SUCCESS);
}

/// A graph with one look-up, not yet instantiated.
fn recorded(gpu: &Gpu, flat: &Flat, slot: &GpuSlot, stream: &Stream, mode: Mode) -> (CUgraph, Ticket) {
    let mut ticket = None;
    let graph = record(gpu, stream, mode, || ticket = Some(flat.launch(slot, stream).unwrap())).unwrap();
    (graph, ticket.unwrap())
}

/// Runs a graph, and checks what its look-up wrote.
fn run(
    gpu: &Gpu,
    fixture: &Fixture,
    (flat, graph, ticket): (&Flat, &Graph, &Ticket),
    stream: &Stream,
    what: &dyn std::fmt::Debug,
) -> u64 {
    flat.reset();
    stream.launch(gpu, graph);
    stream.wait(gpu);
    let report = ticket.poll().expect("it has ended").unwrap_or_else(|error| panic!("{what:?}: {error}"));
    ticket.check().unwrap();
    assert_eq!(flat.check(fixture, what), [0i64; 0], "{what:?}");
    assert_eq!(report.ids, flat.ids.len() as u64, "{what:?}");
    report.runs
}

/// Plans whose look-ups take the slot's lease, and plans whose look-ups do not.
fn plans(fixture: &Fixture, gpu: &std::sync::Arc<Gpu>) -> [GpuPlan; 2] {
    [patient(), patient().with_hbm_bytes(1 << 30)].map(|options| fixture.plan(gpu, options, 1))
}

/// Far more graphs than a slot has tickets, recorded in a row, in each mode and by streams of both kinds; then thrown
/// away and recorded again, many times, in the places that are there.
#[test]
fn captures_of_a_slot_are_not_limited() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let mut random = fastrand::Rng::with_seed(11);
    for plan in plans(&fixture, &gpu) {
        let slot = plan.slot().unwrap();
        let streams = [Stream::new(&gpu), blocking(&gpu)];
        let modes = [
            Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        ];
        let flats: Vec<Flat> = (0..100).map(|_| Flat::new(&gpu, Fixture::ids(40, &mut random))).collect();
        let mut graphs = Vec::new();
        for (number, flat) in flats.iter().enumerate() {
            let (graph, ticket) = recorded(&gpu, flat, &slot, &streams[number % 2], modes[number % 3]);
            let exec = executable(&gpu, graph);
            destroy(&gpu, graph);
            assert!(ticket.is_captured() && ticket.has_graph() && ticket.poll().is_none());
            graphs.push((exec, ticket));
        }
        assert_eq!(slot.captured_places().0, 100);
        // In no order.
        let mut runs = vec![0; flats.len()];
        for turn in 0..150 {
            let number = random.usize(..flats.len());
            let (graph, ticket) = &graphs[number];
            runs[number] += 1;
            let ran = run(&gpu, &fixture, (&flats[number], graph, ticket), &streams[turn % 2], &number);
            assert_eq!(ran, runs[number]);
        }
        // What is launched is no concern of captures.
        let launched = Flat::new(&gpu, Fixture::ids(500, &mut random));
        launched.assert_found(&fixture, &slot, &streams[0], &"launched");
        drop(graphs);
        soon("all graphs have let their places go", || slot.captured_places().0 == 0);
        let places = slot.captured_places().1;
        let flat = &flats[0];
        for round in 0..300 {
            let (graph, ticket) = recorded(&gpu, flat, &slot, &streams[0], modes[round % 3]);
            let exec = executable(&gpu, graph);
            destroy(&gpu, graph);
            assert_eq!(run(&gpu, &fixture, (flat, &exec, &ticket), &streams[0], &round), 1);
            drop(exec);
            soon("the ticket alone has its place", || !ticket.has_graph());
            assert!(matches!(ticket.poll(), Some(Ok(_))), "it tells of the last run");
        }
        soon("the last one too", || slot.captured_places().0 == 0);
        assert_eq!(slot.captured_places().1, places, "places are used again");
    }
}

/// As a caller who frees everything in the wrong order.
#[test]
fn a_graph_keeps_its_slot() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let stream = Stream::new(&gpu);
    for plan in plans(&fixture, &gpu) {
        let slot = plan.slot().unwrap();
        let flat = Flat::new(&gpu, Fixture::ids(700, &mut fastrand::Rng::with_seed(3)));
        let (graph, ticket) = flat.capture(&gpu, &slot, &stream);
        drop(ticket);
        drop(slot);
        assert!(matches!(plan.slot(), Err(GpuError::NoFreeSlot { .. })), "the graph has it");
        for round in 0..3 {
            flat.reset();
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            assert_eq!(flat.check(&fixture, &round), [0i64; 0]);
        }
        drop(graph);
        soon("the slot comes back", || plan.slot().is_ok());
        flat.assert_found(&fixture, &plan.slot().unwrap(), &stream, &"again");
        // Nothing is left of plan and executor but what the graph has.
        let (graph, ticket) = flat.capture(&gpu, &plan.slot().unwrap(), &stream);
        drop(plan);
        assert_eq!(run(&gpu, &fixture, (&flat, &graph, &ticket), &stream, &"alone"), 1);
        // A ticket tells of the last run of a graph that is gone. (Long enough for CUDA's thread to let go, so that the
        // executor ends here, and not beside the next capture.)
        drop(graph);
        std::thread::sleep(millis(300));
        assert_eq!(ticket.poll().unwrap().unwrap().runs, 1);
    }
}

/// Clones, children, and executable graphs that are updated: a place is taken for as long as one of them has the
/// look-up.
#[test]
fn copies_of_graphs_keep_what_they_need() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let stream = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(4);
    let mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    for plan in plans(&fixture, &gpu) {
        let slot = plan.slot().unwrap();
        let taken = || slot.captured_places().0;
        let [first, second] = [0, 1].map(|_| Flat::new(&gpu, Fixture::ids(300, &mut random)));
        let (graph, ticket) = recorded(&gpu, &first, &slot, &stream, mode);
        let (mut clone, mut parent, mut child) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let current = gpu.enter().unwrap();
        // SAFETY: the graphs are graphs; handles are stored.
        unsafe {
            assert_eq!(sys::cuGraphClone(&mut clone, graph), CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuGraphCreate(&mut parent, 0), CUresult::CUDA_SUCCESS);
            let added = sys::cuGraphAddChildGraphNode(&mut child, parent, ptr::null(), 0, clone);
            assert_eq!(added, CUresult::CUDA_SUCCESS);
        }
        destroy(&gpu, graph);
        destroy(&gpu, clone);
        let exec = executable(&gpu, parent);
        destroy(&gpu, parent);
        assert_eq!(run(&gpu, &fixture, (&first, &exec, &ticket), &stream, &"as a child"), 1);
        assert_eq!(taken(), 1);
        drop((exec, ticket));
        soon("a child goes with its parent", || taken() == 0);
        // Updated from another graph, which is gone then.
        let (graph, before) = recorded(&gpu, &first, &slot, &stream, mode);
        let exec = executable(&gpu, graph);
        destroy(&gpu, graph);
        assert_eq!(run(&gpu, &fixture, (&first, &exec, &before), &stream, &"before"), 1);
        let (graph, after) = recorded(&gpu, &second, &slot, &stream, mode);
        assert_eq!(taken(), 2);
        // SAFETY: a structure of integers and pointers, of which all may be zero.
        let mut result: sys::CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
        // SAFETY: both are graphs, of one shape.
        let updated = unsafe { sys::cuGraphExecUpdate_v2(exec.0, graph, &mut result) };
        assert_eq!(updated, CUresult::CUDA_SUCCESS);
        destroy(&gpu, graph);
        assert_eq!(run(&gpu, &fixture, (&second, &exec, &after), &stream, &"after"), 1);
        drop(before);
        soon("an update lets go what is no part of the graph any more", || taken() == 1);
        assert_eq!(run(&gpu, &fixture, (&second, &exec, &after), &stream, &"again"), 2);
        drop((exec, after));
        soon("all are gone", || taken() == 0);
        drop(current);
    }
}

/// Destroyed while it runs: its place is taken until it has ended.
#[test]
fn a_graph_that_runs_keeps_its_place() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.plan(&gpu, patient(), 1);
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let flat = Flat::new(&gpu, Fixture::ids(300, &mut fastrand::Rng::with_seed(5)));
    let (graph, ticket) = flat.capture(&gpu, &slot, &stream);
    fixture.drives[0].faults().inject(Rule::new(Fault::Delay(millis(500))).io(NvmOpcode::READ));
    stream.launch(&gpu, &graph);
    drop((graph, ticket));
    std::thread::sleep(millis(100));
    assert_eq!(slot.captured_places().0, 1, "it runs");
    stream.wait(&gpu);
    assert_eq!(flat.check(&fixture, &"destroyed"), [0i64; 0]);
    soon("it has ended", || slot.captured_places().0 == 0);
}

/// A capture that becomes invalid half-way, and one that its caller gives up: nothing of the slot is lost.
#[test]
fn a_capture_that_fails_lets_go() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let stream = Stream::new(&gpu);
    for plan in plans(&fixture, &gpu) {
        let slot = plan.slot().unwrap();
        let flat = Flat::new(&gpu, Fixture::ids(300, &mut fastrand::Rng::with_seed(6)));
        for mode in [Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL] {
            let mut held = None;
            let ended = record(&gpu, &stream, mode, || {
                held = Some(flat.launch(&slot, &stream).unwrap());
                // SAFETY: the stream is one. It is being captured, and cannot be waited for.
                assert_ne!(unsafe { sys::cuStreamSynchronize(stream.0) }, CUresult::CUDA_SUCCESS);
                match flat.launch(&slot, &stream) {
                    Err(error @ GpuError::Invalid { .. }) => assert!(error.to_string().contains("invalid"), "{error}"),
                    other => panic!("{other:?}"),
                }
            });
            assert_eq!(ended, Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
            assert!(held.take().unwrap().poll().is_none());
            soon("what was recorded is gone", || slot.captured_places().0 == 0);
            flat.assert_found(&fixture, &slot, &stream, &"afterwards");
        }
    }
}

/// What this thread does does not end a capture of another thread's in the strictest mode.
#[test]
fn others_work_beside_a_capture() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, patient());
    let plan = executor.plan(&Fixture::features(), Fixture::options(3).with_prefetch()).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let (stream, capturing) = (Stream::new(&gpu), Stream::new(&gpu));
    let [flat, inside] = [0, 1].map(|_| Flat::new(&gpu, Fixture::ids(400, &mut random)));
    let (slot, own) = (plan.slot().unwrap(), plan.slot().unwrap());
    let (graph, captured) = flat.capture(&gpu, &slot, &stream);
    let ((begun, begin), (go_on, wait_here)) = (channel(), channel());
    std::thread::scope(|scope| {
        let (gpu, own, inside) = (&**gpu, &own, &inside);
        // A stream's handle is a number.
        let raw = capturing.0 as usize;
        let thread = scope.spawn(move || {
            let stream = Stream(raw as sys::CUstream);
            let mut ticket = None;
            let graph = record(gpu, &stream, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, || {
                begun.send(()).unwrap();
                wait_here.recv().unwrap();
                ticket = Some(inside.launch(own, &stream).unwrap());
            });
            let exec = executable(gpu, graph.expect("nobody has ended the capture"));
            drop(ticket.unwrap());
            std::mem::ManuallyDrop::new(exec).0 as usize
        });
        begin.recv().unwrap();
        flat.assert_found(&fixture, &slot, &stream, &"launched");
        stream.launch(gpu, &graph);
        soon("the graph runs", || captured.poll().is_some());
        captured.check().unwrap();
        assert!(!slot.recover().unwrap());
        let third = plan.slot().unwrap();
        let prefetched = flat.prefetch(&third, &stream).unwrap();
        soon("rows come", || prefetched.is_fetched().unwrap());
        wait(&flat.launch_prefetched(&third, prefetched, &stream).unwrap()).unwrap();
        drop(flat.prefetch(&third, &stream).unwrap());
        drop(third);
        drop(plan.slot().unwrap());
        go_on.send(()).unwrap();
        let exec = thread.join().unwrap();
        drop(Graph(exec as CUgraphExec));
    });
}

/// Captures of look-ups that take no lease have descriptions of their own, which follow, those that were captured
/// before and after.
#[test]
fn captured_look_ups_without_a_lease_follow() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let options = patient().with_hbm_bytes(1 << 30).with_adopting();
    let executor = fixture.attach(&gpu, options);
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let mut random = fastrand::Rng::with_seed(8);
    let flats: Vec<Flat> = (0..80).map(|_| Flat::new(&gpu, Fixture::ids(20, &mut random))).collect();
    let mut graphs: Vec<_> = flats[..40].iter().map(|flat| flat.capture(&gpu, &slot, &stream)).collect();
    for (flat, (graph, ticket)) in flats.iter().zip(&graphs) {
        run(&gpu, &fixture, (flat, graph, ticket), &stream, &"before");
    }
    let spec = TableSpec::new("t", ROWS, DIM, DType::F32);
    let rows: Vec<u8> = fixture.table.rows.iter().map(|byte| byte ^ 0x55).collect();
    let second = Table { spec, rows, ranks: None, keys: None };
    common::load(&fixture.store, std::slice::from_ref(&second), &LoadOptions::default().with_replace());
    let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
    executor.adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
    // The first chunk of places is full, so that the next one is described anew.
    graphs.extend(flats[40..].iter().map(|flat| flat.capture(&gpu, &slot, &stream)));
    let fixture = Fixture { table: second, ..fixture };
    for (number, (flat, (graph, ticket))) in flats.iter().zip(&graphs).enumerate() {
        run(&gpu, &fixture, (flat, graph, ticket), &stream, &number);
        let report = ticket.poll().unwrap().unwrap();
        assert_eq!(report.generation, plan.generation(), "{number}");
    }
}

/// A drive that fails in a run: told once, mended between two runs, and told even if nobody asked before the next run.
#[test]
fn what_failed_in_a_run_is_told_and_mended_between_runs() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.plan(&gpu, GpuOptions::default().with_timeout(short()), 1);
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let flat = Flat::new(&gpu, Fixture::ids(300, &mut fastrand::Rng::with_seed(9)));
    let (graph, ticket) = flat.capture(&gpu, &slot, &stream);
    let go = || {
        flat.reset();
        stream.launch(&gpu, &graph);
        stream.wait(&gpu);
    };
    assert!(ticket.check().is_ok(), "it has not run");
    for (what, fault) in [("lost", Fault::Drop), ("never carried out", Fault::Swallow)] {
        assert_eq!(run(&gpu, &fixture, (&flat, &graph, &ticket), &stream, &what) % 3, 1);
        fixture.drives[0].faults().inject(Rule::new(fault).io(NvmOpcode::READ).nth(20));
        go();
        let lost = flat.check(&fixture, &what);
        match ticket.check() {
            Err(GpuError::RowsFailed { failed, .. }) => assert_eq!(failed, lost.len() as u64, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
        assert!(ticket.check().is_ok(), "{what}: each failure is told once");
        // The queue takes no commands: the next run fails too.
        go();
        assert_eq!(flat.check(&fixture, &what).len(), 300, "{what}");
        assert!(matches!(ticket.check(), Err(GpuError::RowsFailed { failed: 300, .. })), "{what}");
        assert!(slot.recover().unwrap(), "{what}");
        assert!(!slot.recover().unwrap(), "{what}");
    }
    run(&gpu, &fixture, (&flat, &graph, &ticket), &stream, &"mended");
    // A status fails rows and not the queue: the next run is well, and overwrites the report.
    let bad = Fault::Status(StatusCode::UnrecoveredReadError.into());
    fixture.drives[0].faults().inject(Rule::new(bad).io(NvmOpcode::READ).nth(20));
    go();
    go();
    assert_eq!(flat.check(&fixture, &"overwritten"), [0i64; 0]);
    match ticket.check() {
        Err(GpuError::RunsFailed { failures: 1, report }) => assert_eq!(report.failed, 0),
        other => panic!("{other:?}"),
    }
    assert!(ticket.check().is_ok());
    // What it costs where there is nothing to do.
    let mut took: Vec<Duration> = (0..1000)
        .map(|_| {
            let began = Instant::now();
            assert!(!slot.recover().unwrap());
            ticket.check().unwrap();
            began.elapsed()
        })
        .collect();
    took.sort();
    eprintln!("recover and check between runs: {:?} (median of 1000), {:?} (99 of 100)", took[500], took[990]);
    assert!(took[500] < millis(1), "{:?}", took[500]);
}
