//! What the tests share: a GPU, streams and graphs, a store with a table on drives that may fail, look-ups checked by
//! content.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUgraphExec, CUresult, CUstream};
use warprow_gpu::{
    BatchLen, GpuBatch, GpuError, GpuExecutor, GpuOptions, GpuOutput, GpuPlan, GpuReport, GpuSlot, IdType,
    PrefetchedBatch, Ticket,
};
use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_layout::FormatOptions;
use warprow_lookup::{Feature, Ids, OutputRows, PlanOptions, Pooling};
use warprow_soft_controller::SoftController;
use warprow_store::{DType, Device, LoadOptions, OpenOptions, Store, TableSpec};

use crate::common::random::{Buffer, Case};
use crate::common::{self, Table};

/// The GPU, for one test at a time: they hold look-ups up, and what frees memory waits for all that runs.
pub(crate) struct Turn {
    gpu: Arc<Gpu>,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for Turn {
    type Target = Arc<Gpu>;

    fn deref(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

/// The GPU, or `None` after saying so.
pub(crate) fn gpu() -> Option<Turn> {
    static ALONE: Mutex<()> = Mutex::new(());
    match Gpu::open(0) {
        Ok(gpu) => Some(Turn { gpu, _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) }),
        Err(error) => {
            eprintln!("skipped: needs a GPU: {error}");
            None
        }
    }
}

pub(crate) struct Stream(pub(crate) CUstream);

impl Stream {
    pub(crate) fn new(gpu: &Gpu) -> Self {
        let _current = gpu.enter().unwrap();
        let mut stream = std::ptr::null_mut();
        // SAFETY: a context is current; it stores a handle.
        assert_eq!(unsafe { sys::cuStreamCreate(&mut stream, 1) }, CUresult::CUDA_SUCCESS);
        Self(stream)
    }

    /// Waits for what was launched on it.
    pub(crate) fn wait(&self, gpu: &Gpu) {
        let _current = gpu.enter().unwrap();
        // SAFETY: the stream is one of this context.
        assert_eq!(unsafe { sys::cuStreamSynchronize(self.0) }, CUresult::CUDA_SUCCESS);
    }

    /// Records what `work` launches, as a graph.
    pub(crate) fn capture(&self, gpu: &Gpu, work: impl FnOnce()) -> Graph {
        let _current = gpu.enter().unwrap();
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is one; capture begins and ends on this thread; handles are stored.
        unsafe {
            assert_eq!(sys::cuStreamBeginCapture_v2(self.0, mode), CUresult::CUDA_SUCCESS);
            work();
            assert_eq!(sys::cuStreamEndCapture(self.0, &mut graph), CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0), CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuGraphDestroy(graph), CUresult::CUDA_SUCCESS);
        }
        Graph(exec)
    }

    pub(crate) fn launch(&self, gpu: &Gpu, graph: &Graph) {
        let _current = gpu.enter().unwrap();
        // SAFETY: both are handles of this context.
        assert_eq!(unsafe { sys::cuGraphLaunch(graph.0, self.0) }, CUresult::CUDA_SUCCESS);
    }
}

/// An executable graph; what it was instantiated of is gone.
pub(crate) struct Graph(pub(crate) CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        let gpu = Gpu::open(0).unwrap();
        let _current = gpu.enter().unwrap();
        // SAFETY: made once, destroyed once; a launch that is under way ends all the same.
        unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

/// What becomes true soon, because a thread of CUDA's has to come to it.
pub(crate) fn soon(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < scaled(Duration::from_secs(10)), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A kernel that ends its context.
const TRAP: &std::ffi::CStr = c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry end_it() { trap; }\n";

/// Launches that kernel on a stream of its own, and waits until the context is lost.
pub(crate) fn trap(gpu: &Gpu) {
    let stream = Stream::new(gpu);
    let _current = gpu.enter().unwrap();
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the text ends with a zero; handles are stored; the kernel takes no parameters.
    unsafe {
        assert_eq!(sys::cuModuleLoadData(&mut module, TRAP.as_ptr().cast()), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuModuleGetFunction(&mut function, module, c"end_it".as_ptr()), CUresult::CUDA_SUCCESS);
        let none = std::ptr::null_mut();
        assert_eq!(sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream.0, none, none), CUresult::CUDA_SUCCESS);
        let ended = sys::cuStreamSynchronize(stream.0);
        assert!(warprow_gpu_queues::ends_context(ended), "{ended:?}");
    }
}

/// Waits for a ticket, for a bounded time.
pub(crate) fn wait(ticket: &Ticket) -> Result<GpuReport, GpuError> {
    let began = Instant::now();
    loop {
        if let Some(report) = ticket.poll() {
            return report;
        }
        assert!(began.elapsed() < scaled(Duration::from_secs(60)), "the look-up does not end");
        std::thread::yield_now();
    }
}

pub(crate) fn bytes_of(ids: &Ids<'_>) -> (Vec<u8>, IdType) {
    match ids {
        Ids::I32(ids) => (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), IdType::I32),
        Ids::I64(ids) => (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), IdType::I64),
        Ids::U32(ids) => (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), IdType::U32),
        Ids::U64(ids) => (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), IdType::U64),
    }
}

pub(crate) fn buffer_bytes(buffer: &mut Buffer) -> Vec<u8> {
    match buffer.rows() {
        OutputRows::F32(rows) => rows.iter().flat_map(|x| x.to_le_bytes()).collect(),
        OutputRows::F16(rows) => rows.iter().flat_map(|x| x.to_le_bytes()).collect(),
        OutputRows::Bf16(rows) => rows.iter().flat_map(|x| x.to_le_bytes()).collect(),
        OutputRows::I8(rows) => rows.iter().map(|&x| x as u8).collect(),
        OutputRows::U8(rows) => rows.to_vec(),
        other => panic!("{:?}", other.dtype()),
    }
}

pub(crate) fn fill_buffer(buffer: &mut Buffer, bytes: &[u8]) {
    match buffer.rows() {
        OutputRows::F32(rows) => {
            rows.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = f32::from_le_bytes(*b))
        }
        OutputRows::F16(rows) => {
            rows.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = half::f16::from_le_bytes(*b))
        }
        OutputRows::Bf16(rows) => {
            rows.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = half::bf16::from_le_bytes(*b))
        }
        OutputRows::I8(rows) => rows.iter_mut().zip(bytes).for_each(|(x, &b)| *x = b as i8),
        OutputRows::U8(rows) => rows.iter_mut().zip(bytes).for_each(|(x, &b)| *x = b),
        other => panic!("{:?}", other.dtype()),
    }
}

/// A case's arrays in GPU memory.
pub(crate) struct OnGpu {
    ids: DeviceMemory,
    offsets: Option<DeviceMemory>,
    weights: Option<DeviceMemory>,
    counts: DeviceMemory,
    rows: DeviceMemory,
    mask: DeviceMemory,
    id_type: IdType,
    offset_type: IdType,
}

impl OnGpu {
    pub(crate) fn new(gpu: &Arc<Gpu>, case: &mut Case) -> Self {
        let upload = |bytes: &[u8]| {
            let memory = DeviceMemory::new(gpu, bytes.len().max(1) as u64).unwrap();
            memory.write(0, bytes).unwrap();
            memory
        };
        let (ids, id_type) = bytes_of(&case.ids.ids());
        let offsets = case.offsets.as_ref().map(|offsets| bytes_of(&offsets.ids()));
        let counts = [case.count as u64, case.batch as u64];
        Self {
            ids: upload(&ids),
            offset_type: offsets.as_ref().map_or(IdType::I64, |offsets| offsets.1),
            offsets: offsets.map(|(bytes, _)| upload(&bytes)),
            weights: case
                .weights
                .as_ref()
                .map(|weights| upload(&weights.iter().flat_map(|weight| weight.to_le_bytes()).collect::<Vec<u8>>())),
            counts: upload(&counts.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<u8>>()),
            rows: upload(&buffer_bytes(&mut case.buffer)),
            mask: upload(&case.mask),
            id_type,
        }
    }

    pub(crate) fn batch(&self, case: &Case, device_counts: bool, max_batch: usize) -> GpuBatch {
        let len = if device_counts { BatchLen::Device(self.counts.address()) } else { BatchLen::Host(case.count) };
        let batch = if device_counts { max_batch } else { case.batch };
        let mut it = GpuBatch::new(self.ids.address(), len, batch as u32).with_id_type(self.id_type);
        if let Some(offsets) = &self.offsets {
            it = it.with_offsets(offsets.address(), self.offset_type);
        }
        if let Some(weights) = &self.weights {
            it = it.with_weights(weights.address());
        }
        it
    }

    pub(crate) fn output(&self, case: &Case) -> GpuOutput {
        let out = GpuOutput::new(self.rows.address(), case.stride);
        if case.masked { out.with_mask(self.mask.address()) } else { out }
    }

    /// Makes the ids others.
    pub(crate) fn spoil_ids(&self) {
        self.ids.write(0, &vec![0x77; self.ids.bytes() as usize]).unwrap();
    }

    pub(crate) fn download(&self, case: &mut Case) {
        let mut bytes = vec![0; self.rows.bytes() as usize];
        self.rows.read(0, &mut bytes).unwrap();
        fill_buffer(&mut case.buffer, &bytes);
        let mut mask = vec![0; case.mask.len()];
        self.mask.read(0, &mut mask).unwrap();
        case.mask = mask;
    }
}

pub(crate) fn look_up(
    slot: &GpuSlot,
    stream: &Stream,
    on: &OnGpu,
    case: &Case,
    counts: bool,
    most: usize,
) -> Result<Ticket, GpuError> {
    // SAFETY: the memory of `on` lives until its caller has waited for the ticket.
    unsafe { slot.lookup(stream.0, &on.batch(case, counts, most), &on.output(case)) }
}

pub(crate) fn check_report(report: &GpuReport, case: &Case) {
    assert_eq!(report.ids, case.count as u64);
    assert_eq!((report.missing, report.padding, report.failed), (case.wanted.missing, case.wanted.padding, 0));
    assert_eq!((report.first_missing, report.damaged), (case.wanted.first_missing, 0));
    assert_eq!(
        report.ids,
        report.padding + report.missing + report.ids_hbm + report.ids_dram + report.ids_cached + report.ids_ssd
    );
    assert!(report.rows_dram + report.rows_ssd <= case.unique as u64);
    assert!(report.commands <= report.rows_ssd && (report.commands > 0) == (report.rows_ssd > 0));
    assert_eq!(report.anomalies, 0);
}

pub(crate) fn one_batch(
    (gpu, plan, slot, stream): (&Arc<Gpu>, &GpuPlan, &GpuSlot, &Stream),
    tables: &[Table],
    features: &[Feature],
    options: &PlanOptions,
    random: &mut fastrand::Rng,
) {
    let mut case = Case::random(tables, features, options, plan.width(), true, random);
    let on = OnGpu::new(gpu, &mut case);
    let ticket = look_up(slot, stream, &on, &case, random.bool(), options.max_batch).unwrap();
    let report = wait(&ticket).unwrap();
    on.download(&mut case);
    case.check(&(features, options));
    check_report(&report, &case);
}

/// `WARPROW_TIME_SCALE` times as long: under tools that slow kernels down, all time-outs and waits are.
pub(crate) fn scaled(time: Duration) -> Duration {
    time * std::env::var("WARPROW_TIME_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1)
}

pub(crate) fn millis(count: u64) -> Duration {
    scaled(Duration::from_millis(count))
}

/// Where no read is lost: longer than anything takes.
pub(crate) fn patient() -> GpuOptions {
    GpuOptions::default().with_timeout(scaled(Duration::from_secs(10)))
}

/// Limit for reads where one is lost; looks at what is lost end within a few of it.
pub(crate) fn short() -> Duration {
    millis(200)
}

pub(crate) const ROWS: u64 = 5000;
pub(crate) const DIM: u32 = 128;
pub(crate) const ROW: usize = 512;
pub(crate) const MAX_IDS: usize = 1000;

/// A table of 5,000 rows of 128 f32, one to an LBA, ids being ranks, on drives of 512 B LBAs that may fail.
pub(crate) struct Fixture {
    pub(crate) drives: Vec<Arc<SoftController>>,
    pub(crate) table: Table,
    pub(crate) store: Store,
}

impl Fixture {
    /// On drives named `drive0` and so on, which permute completions.
    pub(crate) fn new(drives: usize) -> Self {
        let drives: Vec<_> = (0..drives).map(|i| common::drive(&format!("drive{i}"), 24 << 20, 512)).collect();
        let devices = common::devices(&drives);
        Self::on(drives, &devices)
    }

    /// On these drives, by way of these devices.
    pub(crate) fn on(drives: Vec<Arc<SoftController>>, devices: &[Device]) -> Self {
        let options = OpenOptions::default().with_admin_timeout(scaled(Duration::from_secs(2)));
        let store = Store::create(devices, &FormatOptions::default(), &options).unwrap();
        let mut table = Table::random("t", ROWS, DIM, DType::F32, &mut fastrand::Rng::with_seed(9));
        table.ranks = None;
        table.spec = TableSpec { row_crc: true, ..TableSpec::new("t", ROWS, DIM, DType::F32) };
        common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
        Self { drives, table, store }
    }

    pub(crate) fn features() -> Vec<Feature> {
        vec![Feature::new("f", "t").pooling(Pooling::None)]
    }

    /// Look-ups of up to 1,000 ids, unpooled.
    pub(crate) fn options(slots: u32) -> PlanOptions {
        PlanOptions::default().with_max(MAX_IDS, MAX_IDS).with_slots(slots)
    }

    pub(crate) fn attach(&self, gpu: &Arc<Gpu>, options: GpuOptions) -> GpuExecutor {
        GpuExecutor::attach(&self.store, gpu.clone(), options).unwrap()
    }

    pub(crate) fn plan(&self, gpu: &Arc<Gpu>, options: GpuOptions, slots: u32) -> GpuPlan {
        self.attach(gpu, options).plan(&Self::features(), Self::options(slots)).unwrap()
    }

    /// Drive and LBA of a row.
    pub(crate) fn home(&self, id: u64) -> (u16, u64) {
        let (generation, index) = self.store.generation("t").unwrap();
        let table = &generation.tables[index];
        let (lba, byte) = table.packing.locate(id);
        assert_eq!(byte, 0, "a row fills its LBA");
        generation.placement.locate(table.rows_region.first_lba + lba).unwrap()
    }

    /// Different ids, in any order.
    pub(crate) fn ids(count: usize, random: &mut fastrand::Rng) -> Vec<i64> {
        let mut ids: Vec<i64> = (0..ROWS as i64).collect();
        random.shuffle(&mut ids);
        ids.truncate(count);
        ids
    }
}

/// What an output is before a look-up: no row is like it, nor is a mask.
const SENTINEL: u8 = 0x5b;

/// Ids for [`Fixture`]'s table, with an output and a mask.
pub(crate) struct Flat {
    pub(crate) ids: Vec<i64>,
    on_gpu: DeviceMemory,
    rows: DeviceMemory,
    mask: DeviceMemory,
}

impl Flat {
    pub(crate) fn new(gpu: &Arc<Gpu>, ids: Vec<i64>) -> Self {
        let memory = |bytes: usize| DeviceMemory::new(gpu, bytes as u64).unwrap();
        let (on_gpu, rows, mask) = (memory(ids.len() * 8), memory(ids.len() * ROW), memory(ids.len()));
        on_gpu.write(0, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        let flat = Self { ids, on_gpu, rows, mask };
        flat.reset();
        flat
    }

    /// Makes the output as it was.
    pub(crate) fn reset(&self) {
        self.rows.write(0, &vec![SENTINEL; self.ids.len() * ROW]).unwrap();
        self.mask.write(0, &vec![SENTINEL; self.ids.len()]).unwrap();
    }

    /// Makes the ids others, as many.
    pub(crate) fn set_ids(&mut self, ids: Vec<i64>) {
        assert_eq!(ids.len(), self.ids.len());
        self.on_gpu.write(0, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        self.ids = ids;
    }

    /// Where the ids lie on the GPU, as i64.
    pub(crate) fn ids_on_gpu(&self) -> u64 {
        self.on_gpu.address()
    }

    pub(crate) fn launch(&self, slot: &GpuSlot, stream: &Stream) -> Result<Ticket, GpuError> {
        let count = self.ids.len();
        let batch = GpuBatch::new(self.on_gpu.address(), BatchLen::Host(count), count as u32);
        let out = GpuOutput::new(self.rows.address(), DIM as usize).with_mask(self.mask.address());
        // SAFETY: whoever launches waits for the ticket while this lives.
        unsafe { slot.lookup(stream.0, &batch, &out) }
    }

    pub(crate) fn prefetch(&self, slot: &GpuSlot, stream: &Stream) -> Result<PrefetchedBatch, GpuError> {
        let count = self.ids.len();
        let batch = GpuBatch::new(self.on_gpu.address(), BatchLen::Host(count), count as u32);
        // SAFETY: whoever prefetches keeps this until the rows are there.
        unsafe { slot.prefetch(stream.0, &batch) }
    }

    pub(crate) fn prefetch_behind(
        &self,
        slot: &GpuSlot,
        stream: &Stream,
        before: &PrefetchedBatch,
    ) -> Result<PrefetchedBatch, GpuError> {
        let count = self.ids.len();
        let batch = GpuBatch::new(self.on_gpu.address(), BatchLen::Host(count), count as u32);
        // SAFETY: whoever prefetches keeps this until the rows are there.
        unsafe { slot.prefetch_behind(stream.0, &batch, before) }
    }

    pub(crate) fn launch_prefetched(
        &self,
        slot: &GpuSlot,
        prefetched: PrefetchedBatch,
        stream: &Stream,
    ) -> Result<Ticket, GpuError> {
        let out = GpuOutput::new(self.rows.address(), DIM as usize).with_mask(self.mask.address());
        // SAFETY: whoever launches waits for the ticket while this lives.
        unsafe { slot.lookup_prefetched(prefetched, stream.0, &out) }
    }

    /// Captures the look-up in a graph.
    pub(crate) fn capture(&self, gpu: &Gpu, slot: &GpuSlot, stream: &Stream) -> (Graph, Ticket) {
        let mut ticket = None;
        let graph = stream.capture(gpu, || ticket = Some(self.launch(slot, stream).unwrap()));
        (graph, ticket.unwrap())
    }

    /// Rows and mask, as they are.
    pub(crate) fn download(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut rows, mut mask) = (vec![0; self.ids.len() * ROW], vec![0; self.ids.len()]);
        self.rows.read(0, &mut rows).unwrap();
        self.mask.read(0, &mut mask).unwrap();
        (rows, mask)
    }

    /// Every row that the mask has is right, and every other is zeros. The ids that the mask lacks.
    pub(crate) fn check(&self, fixture: &Fixture, what: &dyn std::fmt::Debug) -> Vec<i64> {
        let (rows, mask) = self.download();
        for (position, (&id, row)) in self.ids.iter().zip(rows.chunks(ROW)).enumerate() {
            match mask[position] {
                0 => assert_eq!(row, [0; ROW], "{what:?}: position {position}, id {id} failed"),
                1 => assert_eq!(row, fixture.table.row(id as u64), "{what:?}: position {position}, id {id}"),
                other => panic!("{what:?}: position {position} has a mask of {other:#x}"),
            }
        }
        let failed = self.ids.iter().zip(&mask).filter(|(_, mask)| **mask == 0);
        failed.map(|(&id, _)| id).collect()
    }

    pub(crate) fn assert_untouched(&self, what: &dyn std::fmt::Debug) {
        let (rows, mask) = self.download();
        assert!(rows.iter().chain(&mask).all(|&byte| byte == SENTINEL), "{what:?}: the output was written to");
    }

    /// Looks up, waits, and checks that every row is there.
    pub(crate) fn assert_found(
        &self,
        fixture: &Fixture,
        slot: &GpuSlot,
        stream: &Stream,
        what: &dyn std::fmt::Debug,
    ) -> GpuReport {
        self.reset();
        let ticket = self.launch(slot, stream).unwrap_or_else(|error| panic!("{what:?}: {error}"));
        let report = wait(&ticket).unwrap_or_else(|error| panic!("{what:?}: {error}"));
        assert_eq!(self.check(fixture, what), [0i64; 0], "{what:?}");
        assert_eq!((report.ids, report.failed), (self.ids.len() as u64, 0), "{what:?}");
        report
    }
}

/// What a ticket says of a look-up of which rows failed: how many, and the cause.
pub(crate) struct Failed {
    pub(crate) ids: u64,
    pub(crate) first: warprow_gpu::QueueFault,
    pub(crate) report: GpuReport,
}

pub(crate) fn failed(result: Result<GpuReport, GpuError>, what: &dyn std::fmt::Debug) -> Failed {
    match result {
        Err(GpuError::RowsFailed { failed, first: Some(first), report }) => {
            assert_eq!(report.failed, failed);
            Failed { ids: failed, first, report: *report }
        }
        other => panic!("{what:?}: {other:?}"),
    }
}
