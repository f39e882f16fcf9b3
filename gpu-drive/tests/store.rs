//! A store on drives that a GPU plays: written, read, updated, and looked up by a kernel. Without a GPU the tests are skipped.
#![allow(unsafe_code, reason = "look-ups on a GPU take addresses")]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags_enum, CUstreamCaptureMode_enum};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr};
use warprow_gpu::{
    BatchLen, Gpu, GpuBatch, GpuError, GpuExecutor, GpuOptions, GpuOutput, GpuPlan, GpuReport, MemoryPlacement,
    QueuePlacement,
};
use warprow_lookup::{Feature, PlanOptions};
use warprow_soft_controller::{Fault, NvmOpcode, Rule, SoftController, StatusCode};
use warprow_store::{
    CreateDrive, DType, Device, FormatConsent, FormatProposal, FormatSettings, LoadOptions, Store, TableLoad, TableSpec,
};

const ROWS: u64 = 20_000;
const DIM: usize = 128;
/// Where rings and landing areas lie, and what that is called.
const PLACES: [(MemoryPlacement, QueuePlacement); 3] = [
    (MemoryPlacement::Pinned, QueuePlacement::C),
    (MemoryPlacement::AMinus, QueuePlacement::AMinus),
    (MemoryPlacement::A, QueuePlacement::A),
];

fn row(id: u64, version: u32) -> [f32; DIM] {
    std::array::from_fn(|column| id as f32 + column as f32 / 256.0 + version as f32 * 1e6)
}

struct Fixture {
    _folder: tempfile::TempDir,
    store: Store,
    drives: Vec<Arc<SoftController>>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

impl Fixture {
    /// Drives that the GPU plays which looks up; `None` without a GPU.
    fn new(drives: usize, properties: &str) -> Option<Self> {
        Self::played_by(0, drives, properties)
    }

    /// Drives that GPU `gpu` plays, for look-ups by the first; `None` if there is none of that number.
    fn played_by(gpu: usize, drives: usize, properties: &str) -> Option<Self> {
        if Gpu::count() as usize <= gpu {
            println!("skipped: there is no GPU {gpu}, or no CUDA driver");
            return None;
        }
        warprow_gpu_drive::register();
        let folder = tempfile::tempdir().unwrap();
        let open = |index| {
            let path = folder.path().join(format!("{index}.drive"));
            let address = format!("emulated:{},size=64M,gpu={gpu}{properties}", path.display()).parse().unwrap();
            Device::open(&address, CreateDrive::IfMissing).unwrap()
        };
        let devices: Vec<Device> = (0..drives).map(open).collect();
        let drives = devices.iter().map(|device| device.soft_controller().unwrap().clone()).collect();
        let proposal = FormatProposal::new(&devices, FormatSettings::default()).unwrap();
        let store = proposal.run(&FormatConsent::None, &mut |_, _| {}).unwrap();
        let rows: Vec<u8> = (0..ROWS).flat_map(|id| row(id, 0)).flat_map(f32::to_le_bytes).collect();
        let spec = TableSpec::new("t", ROWS, DIM as u32, DType::F32);
        let load = TableLoad::new(&spec, &rows);
        store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        Some(Self { _folder: folder, store, drives, context, stream })
    }

    fn executor(&self, memory: MemoryPlacement) -> GpuExecutor {
        self.attach(GpuOptions::default().with_queue_sets(4).with_queue_memory(memory))
    }

    fn attach(&self, options: GpuOptions) -> GpuExecutor {
        GpuExecutor::attach(&self.store, Gpu::open(0).unwrap(), options).unwrap()
    }

    /// Looks `ids` up and compares every row.
    fn look_up(&self, plan: &GpuPlan, ids: &[i64], version: u32) -> GpuReport {
        let (report, found) = self.rows(plan, ids);
        let report = report.unwrap();
        for (&id, found) in ids.iter().zip(found.chunks(DIM)) {
            assert_eq!(found, row(id as u64, version), "row {id}");
        }
        report
    }

    fn rows(&self, plan: &GpuPlan, ids: &[i64]) -> (Result<GpuReport, GpuError>, Vec<f32>) {
        let slot = plan.slot().unwrap();
        let on_gpu = self.stream.clone_htod(ids).unwrap();
        let rows = self.stream.alloc_zeros::<f32>(ids.len() * DIM).unwrap();
        let batch = GpuBatch::new(on_gpu.device_ptr(&self.stream).0, BatchLen::Host(ids.len()), ids.len() as u32);
        let output = GpuOutput::new(rows.device_ptr(&self.stream).0, plan.width());
        // SAFETY: both arrays live until the stream has been waited for.
        let ticket = unsafe { slot.lookup(self.stream.cu_stream().cast(), &batch, &output) }.unwrap();
        let found = self.stream.clone_dtoh(&rows).unwrap();
        self.stream.synchronize().unwrap();
        (ticket.poll().unwrap(), found)
    }

    /// Looks `ids` up in two halves, and compares every row.
    fn look_up_ahead(&self, plan: &GpuPlan, ids: &[i64]) {
        let (slot, stream) = (plan.slot().unwrap(), self.stream.cu_stream().cast());
        let on_gpu = self.stream.clone_htod(ids).unwrap();
        let rows = self.stream.alloc_zeros::<f32>(ids.len() * DIM).unwrap();
        let batch = GpuBatch::new(on_gpu.device_ptr(&self.stream).0, BatchLen::Host(ids.len()), ids.len() as u32);
        let output = GpuOutput::new(rows.device_ptr(&self.stream).0, plan.width());
        // SAFETY: both arrays live until the stream has been waited for.
        let ticket = unsafe {
            let prefetched = slot.prefetch(stream, &batch).unwrap();
            slot.lookup_prefetched(prefetched, stream, &output).unwrap()
        };
        let found = self.stream.clone_dtoh(&rows).unwrap();
        self.stream.synchronize().unwrap();
        assert_eq!(ticket.poll().unwrap().unwrap().failed, 0);
        for (&id, found) in ids.iter().zip(found.chunks(DIM)) {
            assert_eq!(found, row(id as u64, 0), "row {id}");
        }
    }

    /// Commands answered by the GPU and by the host.
    fn counts(&self) -> (u64, u64) {
        let counts = self.drives.iter().map(|drive| drive.offload_counts().unwrap());
        counts.fold((0, 0), |sum, it| (sum.0 + it.offload_commands, sum.1 + it.worker_commands))
    }
}

fn plan_of(executor: &GpuExecutor, ids: usize) -> GpuPlan {
    executor.plan(&[Feature::new("t", "t")], PlanOptions::default().with_max(ids, ids)).unwrap()
}

fn ids(count: usize, seed: u64) -> Vec<i64> {
    (0..count as u64).map(|n| ((n * 7_919 + seed * 104_729) % ROWS) as i64).collect()
}

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
