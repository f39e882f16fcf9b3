//! A store on drives that a GPU plays, and look-ups of its rows.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUgraphInstantiate_flags_enum, CUstreamCaptureMode_enum};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr};
use warprow_gpu::{
    BatchLen, Gpu, GpuBatch, GpuError, GpuExecutor, GpuOptions, GpuOutput, GpuPlan, GpuReport, GpuSlot,
    MemoryPlacement, QueuePlacement, Ticket,
};
use warprow_lookup::{Feature, PlanOptions};
use warprow_soft_controller::{Fault, NvmOpcode, Rule, SoftController};
use warprow_store::{
    CreateDrive, DType, Device, FormatConsent, FormatProposal, FormatSettings, LoadOptions, Store, TableLoad, TableSpec,
};

pub(crate) const ROWS: u64 = 20_000;
pub(crate) const DIM: usize = 128;
/// Where rings and landing areas lie, and what that is called.
pub(crate) const PLACES: [(MemoryPlacement, QueuePlacement); 3] = [
    (MemoryPlacement::Pinned, QueuePlacement::C),
    (MemoryPlacement::AMinus, QueuePlacement::AMinus),
    (MemoryPlacement::A, QueuePlacement::A),
];

pub(crate) fn row(id: u64, version: u32) -> [f32; DIM] {
    std::array::from_fn(|column| id as f32 + column as f32 / 256.0 + version as f32 * 1e6)
}

/// Held by each fixture: time-outs are short, and what a context keeps is everybody's.
static ALONE: Mutex<()> = Mutex::new(());

pub(crate) struct Fixture {
    _folder: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) drives: Vec<Arc<SoftController>>,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    // Goes last.
    _alone: MutexGuard<'static, ()>,
}

impl Fixture {
    /// Drives that the GPU plays which looks up; `None` without a GPU.
    pub(crate) fn new(drives: usize, properties: &str) -> Option<Self> {
        Self::played_by(0, drives, properties)
    }

    /// Drives that GPU `gpu` plays, for look-ups by the first; `None` if there is none of that number.
    pub(crate) fn played_by(gpu: usize, drives: usize, properties: &str) -> Option<Self> {
        if Gpu::count() as usize <= gpu {
            println!("skipped: there is no GPU {gpu}, or no CUDA driver");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
        Some(Self { _folder: folder, store, drives, context, stream, _alone: alone })
    }

    pub(crate) fn executor(&self, memory: MemoryPlacement) -> GpuExecutor {
        self.attach(GpuOptions::default().with_queue_sets(4).with_queue_memory(memory))
    }

    pub(crate) fn attach(&self, options: GpuOptions) -> GpuExecutor {
        GpuExecutor::attach(&self.store, Gpu::open(0).unwrap(), options).unwrap()
    }

    /// Looks `ids` up and compares every row.
    pub(crate) fn look_up(&self, plan: &GpuPlan, ids: &[i64], version: u32) -> GpuReport {
        let (report, found) = self.rows(plan, ids);
        let report = report.unwrap();
        for (&id, found) in ids.iter().zip(found.chunks(DIM)) {
            assert_eq!(found, row(id as u64, version), "row {id}");
        }
        report
    }

    pub(crate) fn rows(&self, plan: &GpuPlan, ids: &[i64]) -> (Result<GpuReport, GpuError>, Vec<f32>) {
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
    pub(crate) fn look_up_ahead(&self, plan: &GpuPlan, ids: &[i64]) {
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

    /// Commands answered by the GPU and by the host, of look-ups that have ended. A turn's commands are counted when the turn ends, which is
    /// behind the end of the look-up that it served. Whoever adds a fault rule has waited for that end; this rule hits no command.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let counts = self.drives.iter().map(|drive| {
            let faults = drive.faults();
            faults.remove(faults.inject(Rule::new(Fault::Swallow).io(NvmOpcode::WRITE_ZEROES)));
            drive.offload_counts().unwrap()
        });
        counts.fold((0, 0), |sum, it| (sum.0 + it.offload_commands, sum.1 + it.worker_commands))
    }
}

pub(crate) fn plan_of(executor: &GpuExecutor, ids: usize) -> GpuPlan {
    executor.plan(&[Feature::new("t", "t")], PlanOptions::default().with_max(ids, ids)).unwrap()
}

pub(crate) fn ids(count: usize, seed: u64) -> Vec<i64> {
    (0..count as u64).map(|n| ((n * 7_919 + seed * 104_729) % ROWS) as i64).collect()
}

/// A look-up of a slot in a graph, with arrays and a stream of its own.
pub(crate) struct Replayed {
    pub(crate) stream: Arc<CudaStream>,
    graph: CudaGraph,
    ticket: Ticket,
    ids: CudaSlice<i64>,
    rows: CudaSlice<f32>,
    _slot: GpuSlot,
}

impl Replayed {
    /// Captures look-ups of `count` ids.
    pub(crate) fn new(fixture: &Fixture, plan: &GpuPlan, count: usize) -> Self {
        let (slot, stream) = (plan.slot().unwrap(), fixture.context.new_stream().unwrap());
        let ids = stream.clone_htod(&vec![0i64; count]).unwrap();
        let rows = stream.alloc_zeros::<f32>(count * DIM).unwrap();
        let batch = GpuBatch::new(ids.device_ptr(&stream).0, BatchLen::Host(count), count as u32);
        let output = GpuOutput::new(rows.device_ptr(&stream).0, plan.width());
        stream.synchronize().unwrap();
        stream.begin_capture(CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        // SAFETY: both arrays live until the graph has run for the last time.
        let ticket = unsafe { slot.lookup(stream.cu_stream().cast(), &batch, &output) }.unwrap();
        let flags = CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).unwrap().unwrap();
        Self { stream, graph, ticket, ids, rows, _slot: slot }
    }

    /// Copies `wanted` to the GPU, and waits until they are there.
    pub(crate) fn ask(&mut self, wanted: &[i64]) {
        self.stream.memcpy_htod(wanted, &mut self.ids).unwrap();
        self.stream.synchronize().unwrap();
    }

    pub(crate) fn launch(&self) {
        self.graph.launch().unwrap();
    }

    /// What the latest launch has come to, once it has ended; its rows are compared.
    pub(crate) fn result(&self, wanted: &[i64]) -> Result<GpuReport, GpuError> {
        let found = self.stream.clone_dtoh(&self.rows).unwrap();
        self.stream.synchronize().unwrap();
        let report = self.ticket.poll().unwrap()?;
        for (&id, found) in wanted.iter().zip(found.chunks(DIM)) {
            assert_eq!(found, row(id as u64, 0), "row {id}");
        }
        Ok(report)
    }
}
