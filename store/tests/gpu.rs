//! Whole look-ups on a GPU, against the naive one that the host executor is held to as well. Without a GPU they are skipped.
#![allow(unsafe_code, reason = "look-ups on a GPU take addresses")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Table;
use common::random::{Buffer, Case, Given, random_features, random_tables};
use cudarc::driver::sys::{self, CUgraphExec, CUresult, CUstream};
use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_layout::FormatOptions;
use warprow_soft_controller::{Fault, Namespace, Ram, Rule, SoftController};
use warprow_spec::{NvmOpcode, StatusCode};
use warprow_store::{
    DType, Device, Feature, GpuBatch, GpuError, GpuOptions, GpuOutput, GpuPlan, GpuReport, GpuSlot, IdType, Ids, Len,
    LoadOptions, OpenOptions, PlanOptions, Pooling, Rows, Store, TableSpec, Ticket,
};

/// The GPU, or `None` after saying so.
fn gpu() -> Option<Arc<Gpu>> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            eprintln!("skipped: needs a GPU: {error}");
            None
        }
    }
}

struct Stream(CUstream);

impl Stream {
    fn new(gpu: &Gpu) -> Self {
        let _current = gpu.enter().unwrap();
        let mut stream = std::ptr::null_mut();
        // SAFETY: a context is current; it stores a handle.
        assert_eq!(unsafe { sys::cuStreamCreate(&mut stream, 1) }, CUresult::CUDA_SUCCESS);
        Self(stream)
    }

    /// Records what `work` launches, as a graph.
    fn capture(&self, gpu: &Gpu, work: impl FnOnce()) -> Graph {
        let _current = gpu.enter().unwrap();
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is one; capture begins and ends on this thread; handles are stored.
        unsafe {
            assert_eq!(sys::cuStreamBeginCapture_v2(self.0, mode), CUresult::CUDA_SUCCESS);
            work();
            assert_eq!(sys::cuStreamEndCapture(self.0, &mut graph), CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0), CUresult::CUDA_SUCCESS);
        }
        Graph(exec)
    }

    fn launch(&self, gpu: &Gpu, graph: &Graph) {
        let _current = gpu.enter().unwrap();
        // SAFETY: both are handles of this context.
        assert_eq!(unsafe { sys::cuGraphLaunch(graph.0, self.0) }, CUresult::CUDA_SUCCESS);
    }
}

struct Graph(CUgraphExec);

/// Waits for a ticket, for a bounded time.
fn wait(ticket: &Ticket) -> Result<GpuReport, GpuError> {
    let began = Instant::now();
    loop {
        if let Some(report) = ticket.poll() {
            return report;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the look-up does not end");
        std::thread::yield_now();
    }
}

fn bytes_of(ids: &Ids<'_>) -> (Vec<u8>, IdType) {
    match ids {
        Ids::I32(ids) => (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), IdType::I32),
        Ids::I64(ids) => (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), IdType::I64),
        Ids::U32(ids) => (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), IdType::U32),
        Ids::U64(ids) => (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), IdType::U64),
    }
}

fn buffer_bytes(buffer: &mut Buffer) -> Vec<u8> {
    match buffer.rows() {
        Rows::F32(rows) => rows.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Rows::F16(rows) => rows.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Rows::Bf16(rows) => rows.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Rows::I8(rows) => rows.iter().map(|&x| x as u8).collect(),
        Rows::U8(rows) => rows.to_vec(),
        other => panic!("{:?}", other.dtype()),
    }
}

fn fill_buffer(buffer: &mut Buffer, bytes: &[u8]) {
    match buffer.rows() {
        Rows::F32(rows) => rows.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = f32::from_le_bytes(*b)),
        Rows::F16(rows) => {
            rows.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = half::f16::from_le_bytes(*b))
        }
        Rows::Bf16(rows) => {
            rows.iter_mut().zip(bytes.as_chunks().0).for_each(|(x, b)| *x = half::bf16::from_le_bytes(*b))
        }
        Rows::I8(rows) => rows.iter_mut().zip(bytes).for_each(|(x, &b)| *x = b as i8),
        Rows::U8(rows) => rows.iter_mut().zip(bytes).for_each(|(x, &b)| *x = b),
        other => panic!("{:?}", other.dtype()),
    }
}

/// A case's arrays in GPU memory.
struct OnGpu {
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
    fn new(gpu: &Arc<Gpu>, case: &mut Case) -> Self {
        let upload = |bytes: &[u8]| {
            let memory = DeviceMemory::new(gpu, bytes.len().max(1) as u64).unwrap();
            memory.write(0, bytes).unwrap();
            memory
        };
        let (ids, id_type) = bytes_of(&case.ids.ids());
        let offsets = case.offsets.as_ref().map(|offsets| bytes_of(&offsets.ids()));
        let counts = [case.count as u64, case.batch.into()];
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

    fn batch(&self, case: &Case, device_counts: bool, max_batch: u32) -> GpuBatch {
        let len = if device_counts { Len::Device(self.counts.address()) } else { Len::Host(case.count) };
        let batch = if device_counts { max_batch } else { case.batch };
        let mut it = GpuBatch::new(self.ids.address(), len, batch).with_id_type(self.id_type);
        if let Some(offsets) = &self.offsets {
            it = it.with_offsets(offsets.address(), self.offset_type);
        }
        if let Some(weights) = &self.weights {
            it = it.with_weights(weights.address());
        }
        it
    }

    fn output(&self, case: &Case) -> GpuOutput {
        let out = GpuOutput::new(self.rows.address(), case.stride);
        if case.masked { out.with_mask(self.mask.address()) } else { out }
    }

    fn download(&self, case: &mut Case) {
        let mut bytes = vec![0; self.rows.bytes() as usize];
        self.rows.read(0, &mut bytes).unwrap();
        fill_buffer(&mut case.buffer, &bytes);
        let mut mask = vec![0; case.mask.len()];
        self.mask.read(0, &mut mask).unwrap();
        case.mask = mask;
    }
}

fn look_up(
    slot: &GpuSlot,
    stream: &Stream,
    on: &OnGpu,
    case: &Case,
    counts: bool,
    most: u32,
) -> Result<Ticket, GpuError> {
    // SAFETY: the memory of `on` lives until its caller has waited for the ticket.
    unsafe { slot.lookup(stream.0, &on.batch(case, counts, most), &on.output(case)) }
}

fn check_report(report: &GpuReport, case: &Case) {
    assert_eq!(report.ids, case.count as u64);
    assert_eq!((report.missing, report.padding, report.failed), (case.wanted.missing, case.wanted.padding, 0));
    assert_eq!(report.ids, report.padding + report.missing + report.ids_hbm + report.ids_dram + report.ids_ssd);
    assert!(report.rows_dram + report.rows_ssd <= case.unique as u64);
    assert!(report.commands <= report.rows_ssd && (report.commands > 0) == (report.rows_ssd > 0));
    assert_eq!(report.anomalies, 0);
}

fn one_batch(
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

fn whole_lookups(gpu: &Arc<Gpu>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let lba = if random.bool() { 512 } else { 4096 };
    let (_drives, store) = common::store(random.usize(1..4), 24 << 20, lba);
    let tables = random_tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let budget = |random: &mut fastrand::Rng| [0, random.u64(..600_000), 1 << 30][random.usize(..3)];
    let attach = GpuOptions::default().with_hbm_bytes(budget(&mut random)).with_dram_bytes(budget(&mut random));
    let executor = store.attach_gpu(gpu.clone(), attach.with_queue_sets(random.u32(1..4))).unwrap();
    let stream = Stream::new(gpu);
    for _ in 0..3 {
        let (features, mut options) = random_features(&tables, &mut random);
        if random.bool() {
            // Beyond what one block prepares.
            options = options.with_max(3000, 40_000);
        }
        let plan = executor.plan(&features, options.clone()).unwrap();
        let slot = plan.slot().unwrap();
        for _ in 0..3 {
            one_batch((gpu, &plan, &slot, &stream), &tables, &features, &options, &mut random);
        }
    }
}

#[test]
fn match_the_naive_look_up() {
    let Some(gpu) = gpu() else { return };
    let seeds = std::env::var("WARPROW_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(24);
    for seed in 0..seeds {
        eprintln!("seed {seed}");
        whole_lookups(&gpu, seed);
    }
}

/// A table of 5,000 rows of 32 f32 on one drive with faults, all of it on the drive, and a plan over it.
fn faulty(
    gpu: &Arc<Gpu>,
    timeout: Duration,
) -> (Arc<SoftController>, Table, Store, GpuPlan, PlanOptions, Vec<Feature>) {
    let mut random = fastrand::Rng::with_seed(9);
    let drive = SoftController::builder()
        .name("faulty")
        .serial("faulty")
        .namespace(Namespace::new(Ram::new(24 << 20).unwrap()).lba(512))
        .permute()
        .build()
        .unwrap();
    let store =
        Store::create(&[Device::new(drive.clone(), 1)], &FormatOptions::default(), &OpenOptions::default()).unwrap();
    let mut table = Table::random("t", 5000, 32, DType::F32, &mut random);
    table.ranks = None;
    table.spec = TableSpec::new("t", 5000, 32, DType::F32);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let executor = store.attach_gpu(gpu.clone(), GpuOptions::default().with_timeout(timeout)).unwrap();
    let features = vec![Feature::new("f", "t").pooling(Pooling::None)];
    let options = PlanOptions::default().with_max(1000, 1000);
    let plan = executor.plan(&features, options.clone()).unwrap();
    (drive, table, store, plan, options, features)
}

#[test]
fn faults_are_bounded_named_and_mended() {
    let Some(gpu) = gpu() else { return };
    let timeout = Duration::from_millis(200);
    let (drive, table, _store, plan, options, features) = faulty(&gpu, timeout);
    let tables = [table];
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let mut random = fastrand::Rng::with_seed(1);
    let rules = [
        ("lost", Rule::new(Fault::Drop)),
        ("never carried out", Rule::new(Fault::Swallow)),
        ("late", Rule::new(Fault::Delay(timeout * 3))),
        ("a bad status", Rule::new(Fault::Status(StatusCode::UnrecoveredReadError.into()))),
        ("another's identifier", Rule::new(Fault::WrongCid(0x7777))),
        ("doubled", Rule::new(Fault::Duplicate)),
    ];
    for (what, rule) in rules {
        let id = drive.faults().inject(rule.io(NvmOpcode::READ).nth(20));
        let ids: Vec<i64> = (0..600).map(|_| random.i64(0..5000)).collect();
        let memory = DeviceMemory::new(&gpu, 600 * 8).unwrap();
        memory.write(0, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        let (rows, mask) = (DeviceMemory::new(&gpu, 600 * 128).unwrap(), DeviceMemory::new(&gpu, 600).unwrap());
        let batch = GpuBatch::new(memory.address(), Len::Host(600), 600);
        let out = GpuOutput::new(rows.address(), 32).with_mask(mask.address());
        // SAFETY: the memory lives until the ticket was waited for.
        let ticket = unsafe { slot.lookup(stream.0, &batch, &out) }.unwrap();
        let began = Instant::now();
        let report = wait(&ticket);
        assert!(began.elapsed() < timeout * 20, "{what}: {:?}", began.elapsed());
        let (mut got, mut flags) = (vec![0; 600 * 128], vec![0; 600]);
        rows.read(0, &mut got).unwrap();
        mask.read(0, &mut flags).unwrap();
        let lost = flags.iter().filter(|&&flag| flag == 0).count() as u64;
        for (position, (&id, row)) in ids.iter().zip(got.chunks(128)).enumerate() {
            let wanted = if flags[position] == 1 { tables[0].row(id as u64) } else { &[0; 128] };
            assert_eq!(row, wanted, "{what}: position {position}");
        }
        match (what, report) {
            ("doubled", Ok(report)) => assert!(report.anomalies > 0 && lost == 0),
            (_, Err(GpuError::RowsFailed { failed, first, .. })) => {
                assert!(failed > 0 && failed == lost, "{what}: {failed} failed, {lost} lost");
                let text = first.map(|first| first.to_string()).unwrap_or_default();
                let names = ["faulty", "queue", "CID", "LBA"].iter().all(|name| text.contains(name));
                assert!(names, "{what}: {text}");
                assert_eq!(text.contains("Unrecovered Read Error"), what == "a bad status", "{what}: {text}");
            }
            (_, other) => panic!("{what}: {other:?}"),
        }
        drop(ticket);
        drive.faults().remove(id);
        // Late data has landed by then.
        std::thread::sleep(timeout * 4);
        for _ in 0..2 {
            one_batch((&gpu, &plan, &slot, &stream), &tables, &features, &options, &mut random);
        }
    }
}

#[test]
fn graphs_are_replayed_with_other_ids_and_counts() {
    let Some(gpu) = gpu() else { return };
    let mut random = fastrand::Rng::with_seed(5);
    let (_drives, store) = common::store(2, 24 << 20, 512);
    let tables = [Table::random("t", 3000, 40, DType::F16, &mut random)];
    common::load(&store, &tables, &LoadOptions::default());
    let attach = GpuOptions::default().with_hbm_bytes(20_000).with_dram_bytes(80_000);
    let executor = store.attach_gpu(gpu.clone(), attach).unwrap();
    for max in [4000, 20_000] {
        let features = [Feature::new("f", "t").pooling(Pooling::Sum)];
        let options = PlanOptions::default().with_max(400, max);
        let plan = executor.plan(&features, options.clone()).unwrap();
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        // One set of arrays, large enough for all cases.
        let ids = DeviceMemory::new(&gpu, max as u64 * 8).unwrap();
        let offsets = DeviceMemory::new(&gpu, 401 * 8).unwrap();
        let counts = DeviceMemory::new(&gpu, 16).unwrap();
        let rows = DeviceMemory::new(&gpu, 400 * 40 * 4).unwrap();
        let batch = GpuBatch::new(ids.address(), Len::Device(counts.address()), 400)
            .with_offsets(offsets.address(), IdType::I64);
        let mut ticket = None;
        let graph = stream.capture(&gpu, || {
            // SAFETY: the arrays outlive the graph's launches.
            ticket = Some(unsafe { slot.lookup(stream.0, &batch, &GpuOutput::new(rows.address(), 40)) }.unwrap());
        });
        let ticket = ticket.unwrap();
        assert!(ticket.is_captured() && ticket.poll().is_none());
        for run in 1..=5 {
            let bags: Vec<Vec<i64>> = (0..random.usize(1..400))
                .map(|_| (0..random.usize(..10)).map(|_| random.i64(0..3000)).collect())
                .collect();
            let flat: Vec<u8> = bags.iter().flatten().flat_map(|id| id.to_le_bytes()).collect();
            let begins: Vec<i64> = std::iter::once(0)
                .chain(bags.iter().scan(0, |sum, bag| {
                    *sum += bag.len() as i64;
                    Some(*sum)
                }))
                .collect();
            ids.write(0, &flat).unwrap();
            offsets.write(0, &begins.iter().flat_map(|begin| begin.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
            let both = [begins[bags.len()] as u64, bags.len() as u64];
            counts.write(0, &both.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
            stream.launch(&gpu, &graph);
            gpu.synchronize().unwrap();
            let report = wait(&ticket).unwrap();
            assert_eq!((report.runs, report.ids), (run, both[0]));
            let mut got = vec![0; bags.len() * 160];
            rows.read(0, &mut got).unwrap();
            let wide: Vec<Vec<i128>> = bags.iter().map(|bag| bag.iter().map(|&id| id.into()).collect()).collect();
            let wanted = common::look_up(&tables, &features, &options, &wide, None, 40, 40);
            let mut buffer = Buffer::new(DType::F32, bags.len() * 40);
            fill_buffer(&mut buffer, &got);
            for (index, &value) in wanted.rows.iter().enumerate() {
                assert!(buffer.matches(index, value), "run {run}, element {index}");
            }
        }
    }
}

#[test]
fn a_slot_serves_one_launch_at_a_time() {
    let Some(gpu) = gpu() else { return };
    let (drive, table, _store, plan, options, features) = faulty(&gpu, Duration::from_secs(2));
    let slot = plan.slot().unwrap();
    assert!(matches!(plan.slot(), Err(GpuError::QueueBusy(_))));
    let (first, second) = (Stream::new(&gpu), Stream::new(&gpu));
    let mut random = fastrand::Rng::with_seed(2);
    let tables = [table];
    let case = |random: &mut fastrand::Rng| loop {
        let case = Case::random(&tables, &features, &options, plan.width(), true, random);
        if case.unique > 20 {
            break case;
        }
    };
    // The first is held up by a late completion, so that the second finds it there.
    let id = drive.faults().inject(Rule::new(Fault::Delay(Duration::from_millis(300))).io(NvmOpcode::READ).nth(1));
    let (mut one, mut two) = (case(&mut random), case(&mut random));
    let (on_one, on_two) = (OnGpu::new(&gpu, &mut one), OnGpu::new(&gpu, &mut two));
    let ticket = look_up(&slot, &first, &on_one, &one, false, options.max_batch).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let busy = look_up(&slot, &second, &on_two, &two, false, options.max_batch).unwrap();
    assert!(matches!(wait(&busy), Err(GpuError::QueueBusy(_))));
    wait(&ticket).unwrap();
    drive.faults().remove(id);
    on_one.download(&mut one);
    one.check(&"first");
    // One after another on one stream, without waiting: both succeed.
    drop((ticket, busy));
    let (mut one, mut two) = (case(&mut random), case(&mut random));
    let (on_one, on_two) = (OnGpu::new(&gpu, &mut one), OnGpu::new(&gpu, &mut two));
    let tickets = [(&on_one, &one), (&on_two, &two)]
        .map(|(on, case)| look_up(&slot, &first, on, case, false, options.max_batch).unwrap());
    for ticket in &tickets {
        wait(ticket).unwrap();
    }
    for (on, case) in [(on_one, &mut one), (on_two, &mut two)] {
        on.download(case);
        case.check(&"one after another");
    }
}

#[test]
fn arrays_of_this_process_are_copied_both_ways() {
    let Some(gpu) = gpu() else { return };
    for seed in 1000..1020 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(random.usize(1..3), 24 << 20, 512);
        let tables = random_tables(&mut random);
        common::load(&store, &tables, &LoadOptions::default());
        let attach = GpuOptions::default().with_hbm_bytes(random.u64(..200_000)).with_dram_bytes(random.u64(..200_000));
        let executor = store.attach_gpu(gpu.clone(), attach).unwrap();
        let (features, options) = random_features(&tables, &mut random);
        let plan = executor.plan(&features, options.clone()).unwrap();
        let mut slot = plan.slot().unwrap().copied().unwrap();
        for _ in 0..4 {
            let mut case = Case::random(&tables, &features, &options, plan.width(), false, &mut random);
            let (batch, mut out) = case.arrays();
            let report = slot.lookup(&batch, &mut out).unwrap();
            case.check(&(seed, &features, &options));
            check_report(&report, &case);
        }
    }
}

#[test]
fn bad_input_is_refused_before_anything_is_launched() {
    let Some(gpu) = gpu() else { return };
    let (_drive, _table, _store, plan, ..) = faulty(&gpu, Duration::from_secs(2));
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let (ids, rows) = (DeviceMemory::new(&gpu, 800).unwrap(), DeviceMemory::new(&gpu, 100 * 128).unwrap());
    let good = GpuBatch::new(ids.address(), Len::Host(100), 100);
    let out = GpuOutput::new(rows.address(), 32);
    let stack = 7u64;
    let refused = |batch: GpuBatch, out: GpuOutput, word: &str| {
        // SAFETY: it must be refused.
        match unsafe { slot.lookup(stream.0, &batch, &out) } {
            Err(error @ GpuError::Invalid { .. }) => assert!(error.to_string().contains(word), "{error}"),
            other => panic!("{word}: {other:?}"),
        }
    };
    refused(GpuBatch { batch: 5000, ..good }, out, "bags");
    refused(GpuBatch { len: Len::Host(2000), ..good }, out, "planned");
    refused(GpuBatch { len: Len::Host(99), ..good }, out, "one length");
    refused(good.with_weights(rows.address()), out, "weight");
    refused(good, GpuOutput { row_stride: 31, ..out }, "stride");
    refused(good, GpuOutput { rows: out.rows + 2, ..out }, "multiple");
    refused(good, GpuOutput { rows: out.rows + 128, ..out }, "needed");
    refused(GpuBatch { ids: 0x1000, ..good }, out, "no memory of CUDA's");
    refused(GpuBatch { ids: std::ptr::from_ref(&stack) as u64, ..good }, out, "no memory of CUDA's");
    refused(good.with_offsets(ids.address(), IdType::I64), out, "needed");
    let _ = Given::I32(Vec::new());
}
