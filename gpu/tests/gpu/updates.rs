//! Rows that are updated under look-ups that go on, captured ones too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use warprow_gpu::{BatchLen, GpuBatch, GpuError, GpuExecutor, GpuOptions, GpuOutput, GpuReport, GpuSlot, Ticket};
use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions, Pooling, PrepareOptions};
use warprow_store::{
    CompactorOptions, DType, FingerprintWidth, KeyKind, LoadOptions, OpenOptions, RowOrder, Store, StoreError,
    TableSpec, UpdateOptions,
};

use crate::common::random::{Case, random_features, random_tables};
use crate::common::{self, Keys, Table};
use crate::fixture::{Graph, Stream, check_report, gpu, one_batch, patient, scaled, wait};

pub(crate) const DIM: usize = 16;
const ROWS: u64 = 3000;
pub(crate) const IDS: usize = 600;
/// Rows that are updated together.
const HOT: u64 = 200;

/// An element of version `version`: exact in `f32`, sums of two included.
fn element(version: u64, id: u64) -> f32 {
    (version * 4096 + id) as f32
}

fn row(version: u64, id: u64) -> Vec<u8> {
    element(version, id).to_le_bytes().repeat(DIM)
}

fn table() -> Table {
    let mut spec = TableSpec::new("a", ROWS, DIM as u32, DType::F32);
    spec.hot_rows = 300;
    Table { rows: (0..ROWS).flat_map(|id| row(0, id)).collect(), ranks: None, spec, keys: None }
}

/// Gives all rows that are updated together the content of a version, in some order, some of them twice.
fn update(store: &Store, version: u64, random: &mut fastrand::Rng) -> Result<u64, StoreError> {
    let mut ids: Vec<u64> = (0..HOT).map(|number| number * 15).collect();
    random.shuffle(&mut ids);
    let again: Vec<u64> = ids[..3].to_vec();
    let mut rows: Vec<u8> = again.iter().flat_map(|&id| row(900, id)).collect();
    rows.extend(ids.iter().flat_map(|&id| row(version, id)));
    store.update("a", &[again, ids].concat(), &rows)
}

/// Arrays of look-ups: half of the ids are of rows that are updated.
pub(crate) struct Reader {
    ids: Vec<u64>,
    on_gpu: DeviceMemory,
    rows: DeviceMemory,
    pooled: bool,
}

impl Reader {
    fn new(gpu: &Arc<Gpu>, pooled: bool, random: &mut fastrand::Rng) -> Self {
        let id = |random: &mut fastrand::Rng| match random.bool() {
            true => random.u64(..HOT) * 15,
            false => random.u64(..ROWS),
        };
        Self::of(gpu, (0..IDS).map(|_| id(random)).collect(), pooled)
    }

    pub(crate) fn of(gpu: &Arc<Gpu>, ids: Vec<u64>, pooled: bool) -> Self {
        let on_gpu = DeviceMemory::new(gpu, IDS as u64 * 8).unwrap();
        on_gpu.write(0, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        Self { ids, on_gpu, rows: DeviceMemory::new(gpu, (IDS * DIM * 4) as u64).unwrap(), pooled }
    }

    pub(crate) fn features(pooled: bool) -> [Feature; 1] {
        [Feature::new("f", "a").pooling(if pooled { Pooling::Sum } else { Pooling::None })]
    }

    pub(crate) fn launch(&self, slot: &GpuSlot, stream: &Stream) -> Result<Ticket, GpuError> {
        let bags = if self.pooled { IDS / 2 } else { IDS };
        let batch = GpuBatch::new(self.on_gpu.address(), BatchLen::Host(IDS), bags as u32);
        let out = GpuOutput::new(self.rows.address(), DIM);
        // SAFETY: whoever launches waits for the ticket while this lives.
        unsafe { slot.lookup(stream.0, &batch, &out) }
    }

    pub(crate) fn capture(&self, gpu: &Gpu, slot: &GpuSlot, stream: &Stream) -> (Graph, Ticket) {
        let mut ticket = None;
        let graph = stream.capture(gpu, || ticket = Some(self.launch(slot, stream).unwrap()));
        (graph, ticket.unwrap())
    }

    /// All elements that it read.
    pub(crate) fn elements(&self) -> Vec<f32> {
        let mut bytes = vec![0; IDS * DIM * 4];
        self.rows.read(0, &mut bytes).unwrap();
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    }

    /// Which version it read, by all its elements.
    fn version(&self) -> u64 {
        let got = self.elements();
        let bags: Vec<&[u64]> = self.ids.chunks(if self.pooled { 2 } else { 1 }).collect();
        let updated = |id: u64| id.is_multiple_of(15);
        let (first, bag) = bags.iter().enumerate().find(|(_, bag)| updated(bag[0])).unwrap();
        let others: f32 = bag.iter().map(|&id| id as f32).sum();
        let times = bag.iter().filter(|&&id| updated(id)).count() as f32;
        let version = ((got[first * DIM] - others) / 4096.0 / times) as u64;
        for (at, &got) in got.iter().enumerate().take(bags.len() * DIM) {
            let of = |&id: &u64| element(if updated(id) { version } else { 0 }, id);
            let wanted: f32 = bags[at / DIM].iter().map(of).sum();
            assert_eq!(got, wanted, "element {at}, of ids {:?}, of version {version}", bags[at / DIM]);
        }
        version
    }
}

#[derive(Default)]
struct Course {
    begun: AtomicU64,
    ended: AtomicU64,
    over: AtomicBool,
}

/// Says that it is over, whatever happens.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Looks up again and again until it is over; how often, and how many versions it saw.
fn read_on(gpu: &Arc<Gpu>, course: &Course, reader: &Reader, slot: &GpuSlot, captured: bool) -> (u64, u64) {
    let stream = Stream::new(gpu);
    let mut runs = 0;
    let mut seen = 0;
    let mut last = u64::MAX;
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
        let version = reader.version();
        assert!(
            (before..=after).contains(&version),
            "version {version}, where {before} was shown before it began and {after} had begun when it had ended"
        );
        if version > 0 {
            let updated = reader.ids.iter().filter(|id| id.is_multiple_of(15)).count() as u64;
            assert!(report.ids_dram >= updated, "updated rows count as in DRAM: {report:?}");
        }
        (runs, seen, last) = (runs + 1, seen + u64::from(version != last), version);
    }
    (runs, seen)
}

fn store() -> (Vec<Arc<warprow_soft_controller::SoftController>>, Store) {
    let (drives, store) = common::store(2, 64 << 20, 512);
    common::load(&store, &[table()], &LoadOptions::default());
    (drives, store)
}

/// 500 updates of 200 rows each under four readers, of which two launch graphs, in each of three tiers, with plans that
/// follow generations and that do not. So little memory that the sides of the overlay turn again and again.
#[test]
fn look_ups_see_all_of_an_update_or_nothing_and_what_was_shown_before() {
    let Some(gpu) = gpu() else { return };
    let updates = std::env::var("WARPROW_UPDATES").ok().and_then(|text| text.parse().ok()).unwrap_or(500u64).min(899);
    for (hbm, dram, following) in
        [(1 << 20, 0, false), (0, 1 << 20, true), (40_000, 60_000, false), (40_000, 60_000, true)]
    {
        let (_drives, store) = store();
        let mut random = fastrand::Rng::with_seed(hbm + dram);
        let mut options = patient().with_hbm_bytes(hbm).with_dram_bytes(dram).with_overlay_bytes(400_000);
        options.adopting = following;
        let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
        let plan = |pooled| {
            let options = PlanOptions::default().with_max(IDS, IDS).with_slots(2);
            executor.plan(&Reader::features(pooled), options).unwrap()
        };
        let plans = [false, true].map(plan);
        let course = Course::default();
        std::thread::scope(|scope| {
            let readers: Vec<_> = [(false, false), (false, true), (true, false), (true, true)]
                .into_iter()
                .map(|(pooled, captured)| {
                    let gpu = &*gpu;
                    let course = &course;
                    let plan = &plans[usize::from(pooled)];
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(11);
                        let reader = Reader::new(gpu, pooled, &mut random);
                        let slot = plan.slot().unwrap();
                        read_on(gpu, course, &reader, &slot, captured)
                    })
                })
                .collect();
            let over = Over(&course.over);
            let began = std::time::Instant::now();
            for version in 1..=updates {
                course.begun.store(version, Ordering::Release);
                update(&store, version, &mut random).unwrap();
                course.ended.store(version, Ordering::Release);
                // Everything is in the overlay once, and the log grows.
                if version % 100 == 0 {
                    let id = store.generations()[0].id;
                    store.compact(id).unwrap_or_else(|error| panic!("compacting at {version}: {error}"));
                }
            }
            let took = began.elapsed();
            drop(over);
            let runs: Vec<(u64, u64)> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
            eprintln!(
                "{hbm} B in GPU memory, {dram} B in DRAM: {updates} updates in {took:?}, (look-ups, versions) {runs:?}"
            );
            assert!(runs.iter().all(|&(_, versions)| versions > 5), "{runs:?}");
        });
    }
}

/// Random tables, dense and of keys, random updates, created keys and look-ups: what the naive look-up says, and
/// counted as the host counts it.
#[test]
fn updated_rows_match_the_naive_look_up() {
    let Some(gpu) = gpu() else { return };
    let seeds = std::env::var("WARPROW_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(16);
    for seed in 0..seeds {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (drives, mut store) = common::store(random.usize(1..4), 48 << 20, 512);
        let mut tables = random_tables(&mut random);
        for table in &mut tables {
            if random.bool() {
                *table = table.clone().with_random_keys(true, &mut random);
            }
        }
        common::load(&store, &tables, &LoadOptions::default());
        let some = |store: &Store, tables: &mut Vec<Table>, random: &mut fastrand::Rng| {
            let number = random.usize(..tables.len());
            let table = &mut tables[number];
            let bytes = table.row_bytes();
            let mut position = |random: &mut fastrand::Rng| {
                let Some(keys) = table.keys.as_mut().filter(|_| random.u32(..3) == 0) else {
                    return random.u64(..table.spec.rows);
                };
                let number = keys.foreign(random);
                keys.numbers.push(number);
                table.rows.resize(table.rows.len() + bytes, 0);
                table.spec.rows += 1;
                table.spec.rows - 1
            };
            let positions: Vec<u64> = (0..random.usize(1..30)).map(|_| position(random)).collect();
            let ids: Vec<u64> = positions.iter().map(|&position| table.id(position) as u64).collect();
            let rows: Vec<u8> = (0..positions.len() * bytes).map(|_| random.u8(..)).collect();
            store.update_with(&table.spec.name, &ids, &rows, &UpdateOptions::default().with_created_keys()).unwrap();
            for (&position, row) in positions.iter().zip(rows.chunks(bytes)) {
                table.rows[position as usize * bytes..][..bytes].copy_from_slice(row);
            }
        };
        // Before it is attached, and by another that had the store open.
        for _ in 0..random.usize(..4) {
            some(&store, &mut tables, &mut random);
        }
        if random.bool() {
            drop(store);
            store = Store::open(&common::devices(&drives), &OpenOptions::default()).unwrap();
        }
        let budget = |random: &mut fastrand::Rng| [0, random.u64(..600_000), 1 << 30][random.usize(..3)];
        let attach = patient().with_hbm_bytes(budget(&mut random)).with_dram_bytes(budget(&mut random));
        let mut options = attach.with_queue_sets(random.u32(1..4)).with_checked_keys().with_overlay_bytes(8 << 20);
        options.adopting = random.bool();
        options.check_rows = random.bool();
        if random.bool() {
            options = options.with_direct_ids(0);
        }
        let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
        let options = HostOptions::default().with_dram_bytes(1 << 30).with_checked_keys();
        let host = HostExecutor::attach(&store, options).unwrap();
        let stream = Stream::new(&gpu);
        for _ in 0..3 {
            let (features, mut options) = random_features(&tables, &mut random);
            if random.bool() {
                options = options.with_max(3000, 40_000);
            }
            let plan = executor.plan(&features, options.clone()).unwrap();
            let slot = plan.slot().unwrap();
            for _ in 0..4 {
                some(&store, &mut tables, &mut random);
                one_batch((&gpu, &plan, &slot, &stream), &tables, &features, &options, &mut random);
            }
            drop(slot);
            // The copied look-up gives the host's bits, and the host's counts where all rows that are not in GPU
            // memory lie in its DRAM.
            let mut copied = plan.slot().unwrap().copied().unwrap();
            let host_plan = host.plan(&features, options.clone()).unwrap();
            let state = random.get_seed();
            let case = || {
                Case::random(&tables, &features, &options, plan.width(), false, &mut fastrand::Rng::with_seed(state))
            };
            let mut on_gpu = case();
            let mut on_host = case();
            let (batch, mut out) = on_gpu.arrays();
            let report = copied.lookup(&batch, &mut out).unwrap();
            let (batch, mut out) = on_host.arrays();
            let by_host = host_plan.slot().unwrap().lookup(&batch, &mut out).unwrap();
            on_gpu.check(&(seed, &features, &options));
            on_host.check(&(seed, &features, &options));
            check_report(&report, &on_gpu);
            assert_eq!((report.ids, report.missing, report.padding), (by_host.ids, by_host.missing, by_host.padding));
        }
    }
}

/// Tables of every type of elements, their checksums compared, copied and pooled, from each tier and by one kernel or
/// more: the host executor's bits.
#[test]
fn updated_rows_of_every_type_are_the_hosts() {
    let Some(gpu) = gpu() else { return };
    for (seed, dtype) in (0..).zip(DType::ALL) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(2, 24 << 20, 512);
        // Blocks that share a scale are whole.
        let dim = (36 + 4 * seed as u32).next_multiple_of(dtype.scale_block().unwrap_or(4));
        let mut table = Table::random("t", 300, dim, dtype, &mut random);
        (table.spec.row_crc, table.spec.hot_rows) = (true, 100);
        common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
        let bytes = table.row_bytes();
        for (hbm, dram, direct) in [(1 << 30, 0, true), (0, 1 << 30, true), (0, 1 << 30, false), (0, 0, false)] {
            let options = patient().with_hbm_bytes(hbm).with_dram_bytes(dram).with_overlay_bytes(1 << 20);
            let options = if direct { options } else { options.with_direct_ids(0) }.with_checked_rows();
            let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
            let host = HostExecutor::attach(&store, HostOptions::default().with_checked_rows()).unwrap();
            for pooling in [Pooling::None, Pooling::Sum, Pooling::Mean] {
                let ids: Vec<u64> = (0..100).map(|_| random.u64(..300)).collect();
                let rows: Vec<u8> = (0..ids.len() * bytes).map(|_| random.u8(..)).collect();
                store.update("t", &ids, &rows).unwrap();
                for (&id, row) in ids.iter().zip(rows.chunks(bytes)) {
                    table.rows[id as usize * bytes..][..bytes].copy_from_slice(row);
                }
                let features = [Feature::new("f", "t").pooling(pooling)];
                let options = PlanOptions::default().with_max(9, 12_000);
                let plan = executor.plan(&features, options.clone()).unwrap();
                let mut copied = plan.slot().unwrap().copied().unwrap();
                let mut on_host = host.plan(&features, options.clone()).unwrap().slot().unwrap();
                for _ in 0..6 {
                    let tables = std::slice::from_ref(&table);
                    let mut case = Case::random(tables, &features, &options, plan.width(), false, &mut random);
                    let (batch, mut out) = case.arrays();
                    on_host.lookup(&batch, &mut out).unwrap();
                    case.check(&(dtype, pooling, "host"));
                    let by_host = (case.buffer.bits(), case.mask.clone());
                    let (batch, mut out) = case.arrays();
                    let report = copied.lookup(&batch, &mut out).unwrap();
                    case.check(&(dtype, pooling, hbm, dram, direct));
                    check_report(&report, &case);
                    for (at, (got, due)) in case.buffer.bits().into_iter().zip(by_host.0).enumerate() {
                        // A NaN that arithmetic made may have any payload.
                        let is_nan = |bits: u32| f32::from_bits(bits).is_nan();
                        assert!(
                            got == due || is_nan(got) && is_nan(due),
                            "{dtype:?}, {pooling:?}: {at}: {got:#x}, {due:#x}"
                        );
                    }
                    assert_eq!(case.mask, by_host.1);
                }
            }
        }
    }
}

fn attach(store: &Store, gpu: &Arc<Gpu>, options: GpuOptions) -> (GpuExecutor, GpuSlot) {
    let executor = GpuExecutor::attach(store, gpu.clone(), options).unwrap();
    let plan = executor.plan(&Reader::features(false), PlanOptions::default().with_max(IDS, IDS)).unwrap();
    let slot = plan.slot().unwrap();
    (executor, slot)
}

#[test]
fn what_has_no_room_is_refused_and_a_compaction_that_is_adopted_makes_room() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(5);
    let options = patient().with_hbm_bytes(1 << 20).with_overlay_bytes(120_000).with_adopting();
    let (executor, slot) = attach(&store, &gpu, options);
    let reader = Reader::new(&gpu, false, &mut random);
    let stream = Stream::new(&gpu);
    let (graph, ticket) = reader.capture(&gpu, &slot, &stream);
    let read = || {
        stream.launch(&gpu, &graph);
        stream.wait(&gpu);
        wait(&ticket).unwrap();
        reader.version()
    };
    // Again and again: what was updated again takes no room for long.
    for version in 1..30 {
        update(&store, version, &mut random).unwrap();
        assert_eq!(read(), version);
    }
    let others: Vec<u64> = (0..ROWS).filter(|id| !id.is_multiple_of(15)).collect();
    let mut refused = 0;
    for ids in others.chunks(100) {
        // The same content, so that readers see no other version.
        let rows: Vec<u8> = ids.iter().flat_map(|&id| row(0, id)).collect();
        match store.update("a", ids, &rows) {
            Ok(_) => {}
            Err(StoreError::GpuOverlayFull { bytes, bound }) => {
                assert!(bytes > bound - bound / 8 && bound < 60_000, "{bytes} of {bound}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 10, "{refused}");
    assert_eq!(read(), 29);
    let id = store.generations()[0].id;
    store.compact(id).unwrap();
    assert_eq!(read(), 29);
    let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
    executor.adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
    drop(upcoming);
    assert_eq!(read(), 29);
    for version in 30..40 {
        update(&store, version, &mut random).unwrap();
        assert_eq!(read(), version);
    }
}

#[test]
fn switches_take_the_overlay_of_the_generation_with_them() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(6);
    let first = store.generations()[0].id;
    common::load(&store, &[table()], &LoadOptions::default().with_standby());
    let second = store.generations().last().unwrap().id;
    let options = patient().with_hbm_bytes(40_000).with_dram_bytes(60_000).with_overlay_bytes(1 << 20).with_adopting();
    let (executor, slot) = attach(&store, &gpu, options);
    let reader = Reader::new(&gpu, false, &mut random);
    let stream = Stream::new(&gpu);
    let read = || {
        let report = wait(&reader.launch(&slot, &stream).unwrap()).unwrap();
        (report.generation, reader.version())
    };
    update(&store, 1, &mut random).unwrap();
    assert_eq!(read(), (first, 1));
    // Of the one that stands by: nobody sees it yet.
    let ids: Vec<u64> = (0..HOT).map(|number| number * 15).collect();
    let rows: Vec<u8> = ids.iter().flat_map(|&id| row(2, id)).collect();
    store.update_generation(second, "a", &ids, &rows).unwrap();
    assert_eq!(read(), (first, 1));
    let patience = scaled(Duration::from_secs(10));
    for turn in 0..6u64 {
        let (id, other) = if turn % 2 == 0 { (second, first) } else { (first, second) };
        let upcoming = executor.prepare(&PrepareOptions::default().with_generation(id)).unwrap();
        store.switch(id, false).unwrap();
        // Between, updates go to what will be read, and to what is read.
        for (generation, version) in [(id, 10 + turn), (other, 20 + turn)] {
            let rows: Vec<u8> = ids.iter().flat_map(|&id| row(version, id)).collect();
            store.update_generation(generation, "a", &ids, &rows).unwrap();
        }
        assert_eq!(read(), (other, 20 + turn));
        executor.adopt(&upcoming, patience).unwrap();
        assert_eq!(read(), (id, 10 + turn));
        update(&store, 30 + turn, &mut random).unwrap();
        assert_eq!(read(), (id, 30 + turn));
    }
}

#[test]
fn an_executor_without_an_overlay_is_refused_what_it_does_not_see() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(8);
    let without = GpuExecutor::attach(&store, gpu.clone(), patient()).unwrap();
    assert!(matches!(update(&store, 1, &mut random), Err(StoreError::Unfollowing { .. })));
    // One that follows does not change that.
    let (with, slot) = attach(&store, &gpu, patient().with_overlay_bytes(1 << 20));
    assert!(matches!(update(&store, 1, &mut random), Err(StoreError::Unfollowing { .. })));
    drop(without);
    update(&store, 1, &mut random).unwrap();
    let refused = GpuExecutor::attach(&store, gpu.clone(), patient());
    assert!(matches!(&refused, Err(GpuError::Unsupported(why)) if why.contains("compact")), "{refused:?}");
    let tiny = GpuExecutor::attach(&store, gpu.clone(), patient().with_overlay_bytes(1000));
    assert!(matches!(&tiny, Err(GpuError::Unsupported(why)) if why.contains("overlay_bytes")), "{tiny:?}");
    let small = GpuExecutor::attach(&store, gpu.clone(), patient().with_overlay_bytes(20_000));
    assert!(matches!(&small, Err(GpuError::Store(StoreError::GpuOverlayFull { .. }))), "{small:?}");
    // What could not be attached is in nobody's way.
    update(&store, 2, &mut random).unwrap();
    let reader = Reader::new(&gpu, false, &mut random);
    let stream = Stream::new(&gpu);
    wait(&reader.launch(&slot, &stream).unwrap()).unwrap();
    assert_eq!(reader.version(), 2);
    drop((slot, with));
    update(&store, 3, &mut random).unwrap();
}

/// Keys by the numbers in some order, of which an index has fingerprints of eight bits.
fn keyed_table(random: &mut fastrand::Rng) -> Table {
    let mut table = Table::random("t", 2000, DIM as u32, DType::F32, random);
    let numbers: Vec<i128> = (0..2000).map(|i| (i128::from(random.i64(..)) & !0xffff) + i).collect();
    let kind = KeyKind::I64;
    let fingerprint = FingerprintWidth::Bits8;
    let order = RowOrder::Given;
    table.keys = Some(Keys { numbers, kind, fingerprint, order, stored: true });
    table
}

/// Before keys are created, of which some pass for others by their fingerprints; after it; after a compaction that is
/// not followed; and by one that is: the host's bits, whether keys are compared or not.
#[test]
fn created_keys_are_found_as_the_host_finds_them() {
    let Some(gpu) = gpu() else { return };
    let shapes = [(0, 0, false), (0, 1 << 30, true), (1 << 16, 1 << 16, false)];
    for (seed, (checked, (hbm, dram, direct))) in
        (0..).zip([false, true].into_iter().flat_map(|checked| shapes.map(|shape| (checked, shape))))
    {
        eprintln!("seed {seed}: keys compared: {checked}, {hbm} B in GPU memory, {dram} B in DRAM");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(2, 64 << 20, 512);
        let table = keyed_table(&mut random);
        common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
        let mut options =
            patient().with_hbm_bytes(hbm).with_dram_bytes(dram).with_overlay_bytes(4 << 20).with_adopting();
        options.check_keys = checked;
        let options = if direct { options } else { options.with_direct_ids(0) };
        let mut host_options = HostOptions::default();
        host_options.check_keys = checked;
        let host = HostExecutor::attach(&store, host_options).unwrap();
        // One goes over to what is compacted, the other reads on.
        let executors = [(); 2].map(|()| GpuExecutor::attach(&store, gpu.clone(), options.clone()).unwrap());
        let features = [Feature::new("f", "t")];
        let plan_options = || PlanOptions::default().with_max(1, 6000).with_adopt_room();
        let mut on_gpu = executors
            .each_ref()
            .map(|executor| executor.plan(&features, plan_options()).unwrap().slot().unwrap().copied().unwrap());
        let host_plan = host.plan(&features, plan_options()).unwrap();
        let own = table.keys.as_ref().unwrap().numbers.iter().map(|&key| key as i64);
        let new: Vec<i64> = (0..4000).map(|i| (random.i64(..) & !0xffff) + 3000 + i).collect();
        let mut ids: Vec<i64> = own.chain(new.iter().copied()).collect();
        random.shuffle(&mut ids);
        let mut passes = |how: &str| {
            let arrays = || (vec![0f32; ids.len() * DIM], vec![7u8; ids.len()]);
            let (mut due, mut due_mask) = arrays();
            let mut out = Output::new(OutputRows::F32(&mut due), DIM).with_mask(&mut due_mask);
            let by_host = host_plan.slot().unwrap().lookup(&Batch::new(&ids, 1), &mut out).unwrap();
            for (number, slot) in on_gpu.iter_mut().enumerate() {
                let (mut rows, mut mask) = arrays();
                let mut out = Output::new(OutputRows::F32(&mut rows), DIM).with_mask(&mut mask);
                let report = slot.lookup(&Batch::new(&ids, 1), &mut out).unwrap();
                assert_eq!((report.missing, report.failed), (by_host.missing, 0), "{how}, executor {number}");
                assert_eq!(mask, due_mask, "{how}, executor {number}");
                let same = |(at, (got, due)): (usize, (&f32, &f32))| {
                    assert_eq!(got.to_bits(), due.to_bits(), "{how}, executor {number}, element {at}");
                };
                rows.iter().zip(&due).enumerate().for_each(same);
            }
            due_mask.iter().filter(|&&byte| byte == 1).count() - 2000
        };
        let passed = passes("nothing was created");
        assert!(if checked { passed == 0 } else { (1..100).contains(&passed) }, "{passed}");
        let creating = UpdateOptions::default().with_created_keys();
        let mut create = |keys: &[i64]| {
            let rows: Vec<u8> = (0..keys.len() * DIM).flat_map(|_| random.f32().to_le_bytes()).collect();
            let keys: Vec<u64> = keys.iter().map(|&key| key as u64).collect();
            store.update_with("t", &keys, &rows, &creating).unwrap();
        };
        for (number, keys) in new[..1500].chunks(500).enumerate() {
            create(keys);
            // Old and new ones together, some of them again.
            create(&[&keys[..5], &ids[..50]].concat());
            assert!(passes(&format!("after {number} creations")) >= 500 * (number + 1));
        }
        store.compact(0).unwrap();
        passes("a compaction that nobody follows");
        create(&new[1000..2000]);
        passes("created anew, by some");
        let upcoming = executors[0].prepare(&PrepareOptions::default()).unwrap();
        create(&new[2000..2100]);
        executors[0].adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
        drop(upcoming);
        // What an executor that reads an older index takes for another's row is its own affair: the host's is that of
        // the other.
        let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
        host.adopt(upcoming, scaled(Duration::from_secs(10))).unwrap();
        create(&ids[..200]);
        drop(on_gpu);
        let mut on_gpu = executors[0].plan(&features, plan_options()).unwrap().slot().unwrap().copied().unwrap();
        let mut rows = vec![0f32; ids.len() * DIM];
        let mut mask = vec![7u8; ids.len()];
        let mut due = rows.clone();
        let mut due_mask = mask.clone();
        on_gpu
            .lookup(&Batch::new(&ids, 1), &mut Output::new(OutputRows::F32(&mut rows), DIM).with_mask(&mut mask))
            .unwrap();
        let mut out = Output::new(OutputRows::F32(&mut due), DIM).with_mask(&mut due_mask);
        host_plan.slot().unwrap().lookup(&Batch::new(&ids, 1), &mut out).unwrap();
        assert_eq!(mask, due_mask);
        assert!(rows.iter().zip(&due).all(|(got, due)| got.to_bits() == due.to_bits()));
    }
}

/// Sixteen keys, half of which are created, are always updated together, all elements to the number of the update, with
/// one that is new each time: captured look-ups see one number in all of them, also while their table is written anew
/// and taken up.
#[test]
fn captured_look_ups_see_whole_creations() {
    let Some(gpu) = gpu() else { return };
    const UPDATES: u64 = 200;
    for (dram, following) in [(0, true), (1 << 20, true), (1 << 20, false)] {
        let (_drives, store) = common::store(2, 64 << 20, 512);
        let spec = TableSpec::new("a", 400, DIM as u32, DType::F32);
        let numbers = (0..400).map(|i| i * 1_000_003).collect();
        let kind = KeyKind::U64;
        let fingerprint = FingerprintWidth::Bits16;
        let order = RowOrder::Given;
        let keys = Some(Keys { numbers, kind, fingerprint, order, stored: true });
        let table = Table { rows: vec![0; 400 * DIM * 4], ranks: None, keys, spec };
        common::load(&store, &[table], &LoadOptions::default());
        // So little that the sides of the overlay turn.
        let mut options = patient().with_dram_bytes(dram).with_overlay_bytes(400_000);
        options.adopting = following;
        let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
        let options = PlanOptions::default().with_max(IDS, IDS).with_slots(2);
        let plan = executor
            .plan(&Reader::features(false), if following { options.with_adopt_room() } else { options })
            .unwrap();
        let together: Vec<u64> = (0..16).map(|i| i * 25 * 1_000_003 + i % 2).collect();
        let over = AtomicBool::new(false);
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let readers: Vec<_> = [false, true]
                .into_iter()
                .map(|captured| {
                    let gpu = &gpu;
                    let plan = &plan;
                    let together = &together;
                    let over = &over;
                    let acknowledged = &acknowledged;
                    scope.spawn(move || {
                        let ids = (0..IDS).map(|at| together[at % 16]).collect();
                        let reader = Reader::of(gpu, ids, false);
                        let slot = plan.slot().unwrap();
                        let stream = Stream::new(gpu);
                        let graph = captured.then(|| reader.capture(gpu, &slot, &stream));
                        let mut runs = 0u64;
                        let mut last = 0;
                        loop {
                            let ends = over.load(Ordering::Acquire);
                            let least = acknowledged.load(Ordering::Acquire);
                            let report = match &graph {
                                Some((graph, ticket)) => {
                                    stream.launch(gpu, graph);
                                    stream.wait(gpu);
                                    wait(ticket).unwrap()
                                }
                                None => wait(&reader.launch(&slot, &stream).unwrap()).unwrap(),
                            };
                            let mut bytes = vec![0; IDS * DIM * 4];
                            reader.rows.read(0, &mut bytes).unwrap();
                            let got: Vec<f32> =
                                bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
                            let number = got[0] as u64;
                            assert!(got.iter().all(|&other| other == number as f32), "{number}: {got:?}");
                            assert!(number >= least.max(last), "{number} after {least} and {last}");
                            assert!(number == 0 || report.missing == 0, "{report:?}");
                            (runs, last) = (runs + 1, number);
                            if ends {
                                return (runs, last);
                            }
                        }
                    })
                })
                .collect();
            let ends = Over(&over);
            for number in 1..=UPDATES {
                let rows: Vec<u8> = (0..17 * DIM).flat_map(|_| (number as f32).to_le_bytes()).collect();
                let keys = [&together[..], &[number * 1_000_003 + 7]].concat();
                store.update_with("a", &keys, &rows, &UpdateOptions::default().with_created_keys()).unwrap();
                acknowledged.store(number, Ordering::Release);
                if number.is_multiple_of(70) {
                    store.compact(0).unwrap();
                    if following {
                        let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
                        executor.adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
                    }
                }
            }
            drop(ends);
            for reader in readers {
                let (runs, last) = reader.join().unwrap();
                assert!(runs > 3 && last == UPDATES, "{runs} look-ups, up to {last}");
            }
        });
        assert_eq!(store.table("a").unwrap().rows, 400 + 8 + 140);
    }
}

/// The compactor's own thread has hosts and executors go over; nobody is ever refused for want of room, in memory or on
/// the GPU.
#[test]
fn a_compactor_makes_room_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(9);
    let options = patient().with_hbm_bytes(1 << 20).with_overlay_bytes(200_000).with_adopting();
    let (executor, slot) = attach(&store, &gpu, options);
    let compacted = Arc::new(AtomicU64::new(0));
    let count = compacted.clone();
    let follows = executor.clone();
    let compactor = store
        .start_compactor(&CompactorOptions::default(), move |_, done| {
            done.chunks.unwrap();
            let upcoming = follows.prepare(&PrepareOptions::default()).unwrap();
            follows.adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    let reader = Reader::new(&gpu, false, &mut random);
    let stream = Stream::new(&gpu);
    let others: Vec<u64> = (0..ROWS).filter(|id| !id.is_multiple_of(15)).collect();
    for version in 1..60 {
        // All of them are more than the overlay holds: the same content, so that readers see no other version.
        let ids: Vec<u64> = (0..100).map(|_| others[random.usize(..others.len())]).collect();
        let rows: Vec<u8> = ids.iter().flat_map(|&id| row(0, id)).collect();
        store.update("a", &ids, &rows).unwrap();
        update(&store, version, &mut random).unwrap();
        wait(&reader.launch(&slot, &stream).unwrap()).unwrap();
        assert_eq!(reader.version(), version);
    }
    drop(compactor);
    assert!(compacted.load(Ordering::Relaxed) > 1);
}
