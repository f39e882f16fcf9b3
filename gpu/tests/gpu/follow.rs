//! Other tables for look-ups that go on, captured ones too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use warprow_gpu::{BatchLen, GpuBatch, GpuError, GpuExecutor, GpuOutput, GpuReport, GpuSlot, Ticket};
use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_layout::FormatOptions;
use warprow_lookup::{Feature, PlanOptions, Pooling, PrepareOptions};
use warprow_soft_controller::{Fault, Rule, SoftController};
use warprow_spec::NvmOpcode;
use warprow_store::{DType, LoadOptions, OpenOptions, Ranks, Store, TableSpec};

use crate::common::{self, Table};
use crate::fixture::{Graph, Stream, gpu, millis, patient, scaled, wait};

const DIM: usize = 16;
const ROWS: u64 = 3000;
const IDS: usize = 600;

/// An element of version `version`: exact in `f32`, and different in every version, table, row and column.
fn element(version: u64, table: u64, id: u64, column: usize) -> f32 {
    (version * 2_000_000 + table * 1_000_000 + id * 16 + column as u64) as f32
}

/// Two tables of a version: one in another order in each, one as it comes.
fn version(version: u64, rows: u64, dim: usize) -> [Table; 2] {
    [("a", 0), ("b", 1)].map(|(name, table)| {
        let mut spec = TableSpec::new(name, rows, dim as u32, DType::F32);
        (spec.permuted, spec.hot_rows) = (table == 0, rows / 10);
        let counts: Vec<u64> = (0..rows).map(|id| (id * 7919 + version * 131) % rows).collect();
        let content = (0..rows).flat_map(|id| (0..dim).map(move |column| element(version, table, id, column)));
        Table {
            rows: content.flat_map(f32::to_le_bytes).collect(),
            ranks: spec.permuted.then(|| Ranks::by_hotness(&counts)),
            spec,
            keys: None,
        }
    })
}

fn store() -> (Vec<Arc<SoftController>>, Store) {
    let drives: Vec<_> = [24, 40].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let options = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let open = OpenOptions::default().with_admin_timeout(scaled(Duration::from_secs(2)));
    let store = Store::create(&common::devices(&drives), &options, &open).unwrap();
    (drives, store)
}

/// Loads a version; the generation.
fn load(store: &Store, tables: &[Table], options: &LoadOptions) -> u64 {
    common::load(store, tables, options);
    store.generations().last().unwrap().id
}

/// Arrays of look-ups of both tables: unpooled 300 ids of each, or in bags of two.
struct Reader {
    ids: Vec<i64>,
    on_gpu: DeviceMemory,
    rows: DeviceMemory,
    pooled: bool,
}

impl Reader {
    fn new(gpu: &Arc<Gpu>, pooled: bool, rows: u64, random: &mut fastrand::Rng) -> Self {
        let ids: Vec<i64> = (0..IDS).map(|_| random.i64(0..rows as i64)).collect();
        let on_gpu = DeviceMemory::new(gpu, IDS as u64 * 8).unwrap();
        on_gpu.write(0, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        Self { ids, on_gpu, rows: DeviceMemory::new(gpu, (IDS * DIM * 4) as u64).unwrap(), pooled }
    }

    fn features(pooled: bool) -> [Feature; 2] {
        let pooling = if pooled { Pooling::Sum } else { Pooling::None };
        [Feature::new("fa", "a").pooling(pooling), Feature::new("fb", "b").pooling(pooling)]
    }

    fn launch(&self, slot: &GpuSlot, stream: &Stream) -> Result<Ticket, GpuError> {
        let bags = if self.pooled { IDS / 4 } else { IDS / 2 };
        let batch = GpuBatch::new(self.on_gpu.address(), BatchLen::Host(IDS), bags as u32);
        let out = GpuOutput::new(self.rows.address(), if self.pooled { 2 * DIM } else { DIM });
        // SAFETY: whoever launches waits for the ticket while this lives.
        unsafe { slot.lookup(stream.0, &batch, &out) }
    }

    fn capture(&self, gpu: &Gpu, slot: &GpuSlot, stream: &Stream) -> (Graph, Ticket) {
        let mut ticket = None;
        let graph = stream.capture(gpu, || ticket = Some(self.launch(slot, stream).unwrap()));
        (graph, ticket.unwrap())
    }

    /// Every element is that of the version.
    fn check(&self, version: u64, what: &dyn std::fmt::Debug) {
        let mut bytes = vec![0; IDS * DIM * 4];
        self.rows.read(0, &mut bytes).unwrap();
        let got: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let id = |position: usize| self.ids[position] as u64;
        for (at, &got) in got.iter().enumerate().take(if self.pooled { IDS / 4 * 2 * DIM } else { IDS * DIM }) {
            let column = at % DIM;
            let wanted = if self.pooled {
                let bag = at / (2 * DIM);
                let table = at / DIM % 2;
                let first = table * (IDS / 2) + bag * 2;
                let element = |position| element(version, table as u64, id(position), column);
                element(first) + element(first + 1)
            } else {
                let position = at / DIM;
                element(version, (position / (IDS / 2)) as u64, id(position), column)
            };
            assert_eq!(got, wanted, "{what:?}: element {at} of version {version}");
        }
    }
}

/// How many adoptions have begun and have ended; the generation after n of them is known.
#[derive(Default)]
struct Course {
    begun: AtomicU64,
    ended: AtomicU64,
    over: AtomicBool,
}

/// Looks up again and again, by a graph or not, until it is over; how often.
fn read_on(
    gpu: &Arc<Gpu>,
    course: &Course,
    reader: &Reader,
    slot: &GpuSlot,
    captured: bool,
    version_after: impl Fn(u64) -> u64,
    version_of: impl Fn(u64) -> u64,
) -> u64 {
    let stream = Stream::new(gpu);
    let mut runs = 0;
    let mut both = [0u64; 2];
    let graph = captured.then(|| reader.capture(gpu, slot, &stream));
    while !course.over.load(Ordering::Acquire) {
        let before = course.ended.load(Ordering::Acquire);
        let report: GpuReport = match &graph {
            Some((graph, ticket)) => {
                stream.launch(gpu, graph);
                stream.wait(gpu);
                wait(ticket).unwrap()
            }
            None => wait(&reader.launch(slot, &stream).unwrap()).unwrap(),
        };
        let after = course.begun.load(Ordering::Acquire);
        runs += 1;
        let version = version_of(report.generation);
        if before == after {
            assert_eq!(version, version_after(before), "a look-up after {before} switches");
        }
        both[version as usize % 2] += 1;
        reader.check(version, &(captured, reader.pooled, runs));
    }
    assert!(both.iter().all(|&count| count > 0), "{both:?}");
    runs
}

#[test]
fn a_thousand_switches_under_graphs_and_calls_give_no_wrong_or_mixed_row() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = store();
    let first = load(&store, &version(0, ROWS, DIM), &LoadOptions::default());
    let second = load(&store, &version(1, ROWS, DIM), &LoadOptions::default().with_standby());
    let switches = std::env::var("WARPROW_SWITCHES").ok().and_then(|text| text.parse().ok()).unwrap_or(334u64);
    // All in GPU memory and all in DRAM, by one kernel; in all three tiers, by three.
    // With a cache of far fewer lines than there are rows, too.
    for (hbm, dram, cache) in [(1 << 20, 0, 0), (0, 1 << 20, 0), (40_000, 100_000, 0), (40_000, 0, 200_000)] {
        let attach = patient().with_hbm_bytes(hbm).with_dram_bytes(dram).with_cache_bytes(cache).with_adopting();
        store.switch(first, false).unwrap();
        let executor: GpuExecutor = GpuExecutor::attach(&store, gpu.clone(), attach).unwrap();
        let upcoming =
            [first, second].map(|id| executor.prepare(&PrepareOptions::default().with_generation(id)).unwrap());
        let options = PlanOptions::default().with_max(IDS, IDS).with_slots(2);
        let plans = [false, true].map(|pooled| executor.plan(&Reader::features(pooled), options.clone()).unwrap());
        let course = Course::default();
        std::thread::scope(|scope| {
            let readers: Vec<_> = [(false, false), (false, true), (true, false), (true, true)]
                .into_iter()
                .map(|(pooled, captured)| {
                    let gpu = &*gpu;
                    let course = &course;
                    let plan = &plans[usize::from(pooled)];
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(7);
                        let reader = Reader::new(gpu, pooled, ROWS, &mut random);
                        let slot = plan.slot().unwrap();
                        let version_of = |generation| u64::from(generation == second);
                        read_on(gpu, course, &reader, &slot, captured, |adoptions| adoptions % 2, version_of)
                    })
                })
                .collect();
            let over = Over(&course.over);
            for switch in 1..=switches {
                let next = switch as usize % 2;
                store.switch([first, second][next], false).unwrap();
                course.begun.store(switch, Ordering::Release);
                executor.adopt(&upcoming[next], scaled(Duration::from_secs(10))).unwrap();
                course.ended.store(switch, Ordering::Release);
            }
            drop(over);
            let runs: Vec<u64> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
            eprintln!("{hbm} B in GPU memory, {dram} B in DRAM: {runs:?} look-ups in {switches} switches");
        });
        drop(upcoming);
    }
}

/// Says that it is over, whatever happens.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(3);
    let first = load(&store, &version(0, ROWS, DIM), &LoadOptions::default());
    let (pinned, _) = store.generation("a").unwrap();
    let larger = load(&store, &version(1, 3 * ROWS, DIM), &LoadOptions::default().with_standby());
    let wider = load(&store, &version(2, ROWS, 2 * DIM), &LoadOptions::default().with_standby());
    let to = |id| PrepareOptions::default().with_generation(id);
    // All rows of the first, and not all of the larger.
    let attach = patient().with_hbm_bytes(100_000).with_dram_bytes(300_000);
    let keeps = GpuExecutor::attach(&store, gpu.clone(), attach.clone()).unwrap();
    assert!(matches!(keeps.prepare(&to(first)), Err(GpuError::Unsupported(why)) if why.contains("with_adopting")));
    let executor = GpuExecutor::attach(&store, gpu.clone(), attach.with_adopting()).unwrap();
    let options = PlanOptions::default().with_max(IDS, IDS);
    let reader = Reader::new(&gpu, false, ROWS, &mut random);
    let stream = Stream::new(&gpu);
    let assert_reads = |slot: &GpuSlot, version: u64| {
        let report = wait(&reader.launch(slot, &stream).unwrap()).unwrap();
        reader.check(version, &"after a refusal or an adoption");
        report
    };
    {
        let plan = executor.plan(&Reader::features(false), options.clone()).unwrap();
        let slot = plan.slot().unwrap();
        for id in [larger, wider] {
            let error = executor.prepare(&to(id)).unwrap_err();
            assert!(matches!(&error, GpuError::Unfit(_)), "{error:?}");
            assert!(error.to_string().contains("plan"), "{error}");
            assert_eq!(assert_reads(&slot, 0).generation, first);
        }
        assert!(executor.prepare(&to(99)).is_err());
    }
    // Room for what grows, with queues for rows on drives.
    let plan = executor.plan(&Reader::features(false), options.with_adopt_room()).unwrap();
    let slot = plan.slot().unwrap();
    let (graph, ticket) = reader.capture(&gpu, &slot, &stream);
    let replay = |version: u64| {
        stream.launch(&gpu, &graph);
        stream.wait(&gpu);
        let report = wait(&ticket).unwrap();
        reader.check(version, &"a graph");
        report
    };
    assert_eq!((replay(0).ids_ssd, assert_reads(&slot, 0).generation), (0, first));
    let upcoming = executor.prepare(&to(larger)).unwrap();
    let other = GpuExecutor::attach(&store, gpu.clone(), patient().with_adopting()).unwrap();
    assert!(matches!(other.adopt(&upcoming, Duration::from_secs(1)), Err(GpuError::Unfit(_))));
    store.switch(larger, false).unwrap();
    assert_eq!(replay(0).generation, first);
    executor.adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
    assert!(replay(1).ids_ssd > 0 && assert_reads(&slot, 1).generation == larger && plan.generation() == larger);
    // What was made since begins with them.
    drop((ticket, slot, plan, upcoming));
    let plan = executor.plan(&Reader::features(false), PlanOptions::default().with_max(IDS, IDS)).unwrap();
    assert_eq!(assert_reads(&plan.slot().unwrap(), 1).generation, larger);
    drop((plan, keeps, other));
    assert_eq!(Arc::strong_count(&pinned), 1, "nobody reads what was left");
}

#[test]
fn a_look_up_that_does_not_end_keeps_its_tables() {
    let Some(gpu) = gpu() else { return };
    let (drives, store) = store();
    let mut random = fastrand::Rng::with_seed(4);
    let first = load(&store, &version(0, ROWS, DIM), &LoadOptions::default());
    let second = load(&store, &version(1, ROWS, DIM), &LoadOptions::default().with_standby());
    let executor = GpuExecutor::attach(&store, gpu.clone(), patient().with_adopting()).unwrap();
    let options = PlanOptions::default().with_max(IDS, IDS).with_slots(2);
    let plan = executor.plan(&Reader::features(false), options).unwrap();
    let readers =
        [(); 2].map(|()| (Reader::new(&gpu, false, ROWS, &mut random), plan.slot().unwrap(), Stream::new(&gpu)));
    let [held, free] = &readers;
    let upcoming = executor.prepare(&PrepareOptions::default().with_generation(second)).unwrap();
    drives.iter().for_each(|drive| _ = drive.faults().inject(Rule::new(Fault::Delay(millis(400))).io(NvmOpcode::READ)));
    let ticket = held.0.launch(&held.1, &held.2).unwrap();
    std::thread::sleep(millis(50));
    let busy = executor.adopt(&upcoming, millis(50));
    assert!(matches!(&busy, Err(GpuError::Busy(why)) if why.contains("again")), "{busy:?}");
    // The other slot has gone over, this one has not.
    let report = wait(&free.0.launch(&free.1, &free.2).unwrap()).unwrap();
    assert_eq!(report.generation, second);
    free.0.check(1, &"the other slot");
    assert_eq!(wait(&ticket).unwrap().generation, first);
    held.0.check(0, &"the slot that was held up");
    executor.adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
    for (reader, slot, stream) in &readers {
        assert_eq!(wait(&reader.launch(slot, stream).unwrap()).unwrap().generation, second);
        reader.check(1, &"both slots");
    }
}
