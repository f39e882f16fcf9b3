//! The cache of rows from drives: look-ups give the rows that they would give without it, whatever happens meanwhile.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Keys, Table};
use warprow_layout::FormatOptions;
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, LookupError, LookupReport, Output, OutputBuffer, OutputRows,
    PlanOptions, Pooling, PrepareOptions, RowError, Slot,
};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{NvmOpcode, Status, StatusCode};
use warprow_store::{
    DType, FingerprintWidth, KeyKind, LoadOptions, OpenOptions, Ranks, RerankOptions, RowOrder, Store, TableSpec,
    UpdateOptions,
};

/// The widest row.
const WIDTH: usize = 24;

/// What each id of the two tables stands for.
type Content = [BTreeMap<i64, Vec<f32>>; 2];

const NAMES: [&str; 2] = ["dense", "sparse"];
const DIMS: [usize; 2] = [16, WIDTH];

/// A row of small whole numbers, so that sums are exact.
fn row_of(random: &mut fastrand::Rng, dim: usize) -> Vec<f32> {
    (0..dim).map(|_| f32::from(random.u16(..512))).collect()
}

fn bytes(row: &[f32]) -> Vec<u8> {
    row.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Two tables of random content in random order: ids 0 to 799, and sparse keys.
fn version(random: &mut fastrand::Rng) -> (Vec<Table>, Content) {
    let mut content = Content::default();
    let tables = (0..2).map(|table| {
        let rows = 800;
        let mut spec = TableSpec::new(NAMES[table], rows, DIMS[table] as u32, DType::F32);
        spec.row_crc = true;
        let ids: Vec<i64> = match table {
            0 => (0..rows as i64).collect(),
            _ => (0..rows as i64).map(|n| n * 1_000_003 - 77).collect(),
        };
        let mut all = Vec::new();
        for &id in &ids {
            let row = row_of(random, DIMS[table]);
            all.extend(bytes(&row));
            content[table].insert(id, row);
        }
        let counts: Vec<u64> = (0..rows).map(|_| random.u64(..50)).collect();
        let ranks = Ranks::by_hotness(&counts);
        match table {
            0 => {
                spec.permuted = true;
                Table { spec, rows: all, ranks: Some(ranks), keys: None }
            }
            _ => {
                let numbers = ids.iter().map(|&id| id.into()).collect();
                let order = RowOrder::Ranks(ranks);
                let fingerprint = FingerprintWidth::Bits32;
                let keys = Keys { numbers, kind: KeyKind::I64, fingerprint, order, stored: true };
                Table { spec, rows: all, ranks: None, keys: Some(keys) }
            }
        }
    });
    (tables.collect(), content)
}

fn features(pooling: Pooling) -> [Feature; 2] {
    NAMES.map(|name| Feature::new(name, name).pooling(pooling))
}

fn check_sums(report: &LookupReport) {
    let found = report.ids_dram + report.ids_cached + report.ids_ssd;
    assert_eq!(report.ids, report.padding + report.missing + report.failed + found, "{report:?}");
    assert_eq!(report.unique, report.rows_dram + report.rows_cached + report.rows_ssd, "{report:?}");
}

/// Ids of both tables: most of them of a few that are popular at this time, some that no table has.
fn ids_of(random: &mut fastrand::Rng, content: &Content, time: usize) -> [Vec<i64>; 2] {
    [0, 1].map(|table| {
        let known: Vec<i64> = content[table].keys().copied().collect();
        let mut ids: Vec<i64> = (0..random.usize(1..60))
            .map(|_| match random.u8(..20) {
                0 => -5,
                1..6 => known[random.usize(..known.len())],
                _ => known[(time * 17 + random.usize(..50)) % known.len()],
            })
            .collect();
        // Features are all of as many bags, each of one id here.
        ids.resize(60, -5);
        ids
    })
}

/// The rows that an unpooled look-up must give.
fn rows_of(content: &Content, ids: &[Vec<i64>; 2]) -> Vec<f32> {
    let mut rows = Vec::new();
    for (content, ids) in content.iter().zip(ids) {
        for id in ids {
            let mut row = content.get(id).cloned().unwrap_or_default();
            row.resize(WIDTH, 0.0);
            rows.extend(row);
        }
    }
    rows
}

/// The sums that a pooled look-up must give: each bag has five ids.
fn sums_of(content: &Content, ids: &[Vec<i64>; 2]) -> Vec<f32> {
    let mut sums = vec![0.0; 12 * (DIMS[0] + DIMS[1])];
    for (table, ids) in ids.iter().enumerate() {
        for (bag, ids) in ids.chunks(5).enumerate() {
            let at = bag * (DIMS[0] + DIMS[1]) + table * DIMS[0];
            for row in ids.iter().filter_map(|id| content[table].get(id)) {
                sums[at..].iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
        }
    }
    sums
}

/// What a seed has found in the caches of all its executors.
#[derive(Debug, Default)]
struct Seen {
    cached: u64,
    cached_updated: u64,
    evictions: u64,
    switches: u32,
    rebuilds: u32,
    held_over_adoptions: u32,
}

/// Look-ups at once, pooled, into a buffer and fetched ahead, while rows are updated, keys created, updates compacted,
/// and generations switched. Every row is compared.
fn storm(seed: u64, seen: &mut Seen) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (_drives, store) = common::store(2, 64 << 20, 512);
    let (tables, mut content) = version(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let options =
        HostOptions::default().with_cache_bytes(48_000).with_dram_bytes(random.u64(..4000)).with_checked_keys();
    let options = if random.bool() { options.with_checked_rows() } else { options };
    let host = HostExecutor::attach(&store, options).unwrap();
    let plan = |pooling| {
        let options = PlanOptions::default().with_max(128, 128).with_slots(2).with_prefetch().with_adopt_room();
        host.plan(&features(pooling), options).unwrap()
    };
    let (rows_plan, sums_plan) = (plan(Pooling::None), plan(Pooling::Sum));
    let (mut rows_slot, mut sums_slot, mut ahead) =
        (rows_plan.slot().unwrap(), sums_plan.slot().unwrap(), rows_plan.slot().unwrap());
    let mut held: Option<(Vec<f32>, bool)> = None;
    let mut updated = 0;
    for step in 0..120 {
        let ids = ids_of(&mut random, &content, step / 12);
        let flat = ids.concat();
        match random.u8(..16) {
            0..6 => {
                let mut rows = vec![7.0; flat.len() * WIDTH];
                let batch = Batch::new(&flat, 60);
                let report = rows_slot.lookup(&batch, &mut Output::new(OutputRows::F32(&mut rows), WIDTH)).unwrap();
                assert_eq!(rows, rows_of(&content, &ids), "seed {seed}, step {step}");
                check_sums(&report);
                seen.cached += report.rows_cached;
                seen.cached_updated += if updated != 0 { report.rows_cached } else { 0 };
            }
            6 | 7 => {
                let offsets: Vec<i64> = (0..24).map(|bag| bag * 5).collect();
                let mut sums = vec![7.0; 12 * sums_plan.width()];
                let batch = Batch::new(&flat, 12).with_offsets(&offsets);
                let mut out = Output::new(OutputRows::F32(&mut sums), sums_plan.width());
                let report = sums_slot.lookup(&batch, &mut out).unwrap();
                assert_eq!(sums, sums_of(&content, &ids), "seed {seed}, step {step}");
                check_sums(&report);
                seen.cached += report.rows_cached;
            }
            8 => {
                let mut buffer = OutputBuffer::allocate(&store, DType::F32, flat.len() * WIDTH).unwrap();
                let batch = Batch::new(&flat, 60);
                let out = &mut Output::new(OutputRows::Buffer(&mut buffer), WIDTH);
                let report = rows_slot.lookup(&batch, out).unwrap();
                assert_eq!(buffer.elements::<f32>().unwrap(), rows_of(&content, &ids), "seed {seed}, step {step}");
                check_sums(&report);
            }
            9 | 10 => {
                // What was fetched ahead shows the tables as they were then.
                if let Some((want, adopted)) = held.take() {
                    let mut rows = vec![7.0; want.len()];
                    let report = ahead.lookup_prefetched(&mut Output::new(OutputRows::F32(&mut rows), WIDTH)).unwrap();
                    assert_eq!(rows, want, "seed {seed}, step {step}");
                    check_sums(&report);
                    seen.held_over_adoptions += u32::from(adopted);
                } else {
                    ahead.prefetch(&Batch::new(&flat, 60)).unwrap();
                    held = Some((rows_of(&content, &ids), false));
                }
            }
            11 | 12 => {
                let table = random.usize(..2);
                let mut new: BTreeMap<i64, Vec<f32>> = ids[table]
                    .iter()
                    .filter(|id| content[table].contains_key(id))
                    .take(random.usize(1..8))
                    .map(|&id| (id, row_of(&mut random, DIMS[table])))
                    .collect();
                if table == 1 && random.bool() {
                    new.insert(random.i64(..) | 1 << 50, row_of(&mut random, DIMS[1]));
                }
                let keys: Vec<i64> = new.keys().copied().collect();
                let rows: Vec<u8> = new.values().flat_map(|row| bytes(row)).collect();
                let numbers: Vec<u64> = keys.iter().map(|&key| key as u64).collect();
                if !numbers.is_empty() {
                    let create = UpdateOptions::default();
                    let create = if table == 1 { create.with_created_keys() } else { create };
                    store.update_with(NAMES[table], &numbers, &rows, &create).unwrap();
                    updated += numbers.len();
                    content[table].extend(new);
                }
            }
            13 => {
                let before = content[1].len();
                store.compact(store.generations().last().unwrap().id).unwrap();
                seen.rebuilds += u32::from(before > 800);
                if random.bool() {
                    adopt(&host, &PrepareOptions::default());
                    held.iter_mut().for_each(|(_, adopted)| *adopted = true);
                }
            }
            14 if step % 3 == 0 => {
                let (tables, next) = version(&mut random);
                let old = store.generations().last().unwrap().id;
                let generation = common::try_load(&store, &tables, &LoadOptions::default().with_standby()).unwrap();
                let upcoming = host.prepare(&PrepareOptions::default().with_generation(generation)).unwrap();
                store.switch(generation, false).unwrap();
                host.adopt(upcoming, Duration::from_millis(1)).unwrap();
                store.drop_generation(old).unwrap();
                content = next;
                held.iter_mut().for_each(|(_, adopted)| *adopted = true);
                seen.switches += 1;
                updated = 0;
            }
            15 if step % 5 == 0 => host.clear_cache(),
            _ => {}
        }
    }
    let statistics = host.cache_statistics().unwrap();
    assert!(statistics.used <= statistics.lines && statistics.hits > 0, "seed {seed}: {statistics:?}");
    seen.evictions += statistics.evictions;
}

fn adopt(host: &HostExecutor, options: &PrepareOptions) {
    let upcoming = host.prepare(options).unwrap();
    host.adopt(upcoming, Duration::from_millis(1)).unwrap();
}

#[test]
fn rows_are_right_under_updates_compactions_and_switches() {
    let mut seen = Seen::default();
    for seed in 0..12 {
        println!("seed {seed}");
        storm(seed, &mut seen);
    }
    println!("{seen:?}");
    assert!(seen.cached > 5000 && seen.cached_updated > 1000 && seen.evictions > 1000, "{seen:?}");
    assert!(seen.switches > 10 && seen.rebuilds > 3 && seen.held_over_adoptions > 3, "{seen:?}");
}

/// Several threads look up what others bring in, while the popular rows change.
#[test]
fn threads_share_what_one_of_them_brought_in() {
    let (_drives, store) = common::store(2, 64 << 20, 512);
    let mut random = fastrand::Rng::with_seed(1);
    let (tables, content) = version(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_cache_bytes(64_000)).unwrap();
    let plan = host.plan(&features(Pooling::None), PlanOptions::default().with_max(128, 128).with_slots(4)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (mut slot, content) = (plan.slot().unwrap(), &content);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for step in 0..200 {
                    let ids = ids_of(&mut random, content, step / 20);
                    let mut rows = vec![7.0; 120 * WIDTH];
                    let out = &mut Output::new(OutputRows::F32(&mut rows), WIDTH);
                    check_sums(&slot.lookup(&Batch::new(&ids.concat(), 60), out).unwrap());
                    assert_eq!(rows, rows_of(content, &ids), "seed {thread}, step {step}");
                }
            });
        }
    });
    let (metrics, statistics) = (host.metrics(), host.cache_statistics().unwrap());
    assert_eq!((metrics.rows_cached, metrics.rows_ssd), (statistics.hits, statistics.misses));
    assert!(metrics.rows_cached > metrics.rows_ssd && statistics.evictions > 100, "{metrics:?} {statistics:?}");
}

/// A store on one drive with a table of 500 rows of 512 B, all of them on the drive.
struct Fixture {
    drive: std::sync::Arc<warprow_soft_controller::SoftController>,
    table: Table,
    store: Store,
}

fn fixture() -> Fixture {
    fixture_with(Duration::from_millis(300))
}

/// With so long a wait for a read.
fn fixture_with(timeout: Duration) -> Fixture {
    let drive = common::drive("drive", 16 << 20, 512);
    let devices = common::devices(std::slice::from_ref(&drive));
    let options = OpenOptions::default().with_timeout(timeout);
    let store = Store::create(&devices, &FormatOptions::default(), &options).unwrap();
    let mut spec = TableSpec::new("t", 500, 128, DType::F32);
    spec.row_crc = true;
    let rows = (0..500 * 128).flat_map(|i| (i as f32 * 0.5 - 7.0).to_le_bytes()).collect();
    let table = Table { spec, rows, ranks: None, keys: None };
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    Fixture { drive, table, store }
}

impl Fixture {
    fn host(&self) -> HostExecutor {
        let options = HostOptions::default().with_cache_bytes(1 << 20).with_checked_rows();
        HostExecutor::attach(&self.store, options).unwrap()
    }

    /// Looks `ids` up; rows that did not fail are right.
    fn look(&self, slot: &mut Slot, ids: &[i64]) -> Result<LookupReport, (Vec<usize>, RowError)> {
        let mut rows = vec![7.0; ids.len() * 128];
        let result = slot.lookup(&Batch::new(ids, 1), &mut Output::new(OutputRows::F32(&mut rows), 128));
        let failed = match &result {
            Ok(_) => Vec::new(),
            Err(LookupError::RowsFailed { positions, .. }) => positions.clone(),
            Err(other) => panic!("{other}"),
        };
        for (position, &id) in ids.iter().enumerate() {
            let want = match failed.contains(&position) {
                true => vec![0.0; 128],
                false => common::widen(DType::F32, self.table.row(id as u64)),
            };
            assert_eq!(rows[position * 128..][..128], want, "id {id}");
        }
        match result {
            Err(LookupError::RowsFailed { positions, source, .. }) => Err((positions, source)),
            result => Ok(result.unwrap()),
        }
    }
}

#[test]
fn rows_that_fail_are_not_kept_and_rows_that_are_kept_do_not_fail() {
    let fixture = fixture();
    let host = fixture.host();
    let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_max(1, 256)).unwrap();
    let mut slot = plan.slot().unwrap();
    let (even, all): (Vec<i64>, Vec<i64>) = ((0..100).map(|n| n * 4).collect(), (0..200).map(|n| n * 2).collect());
    assert_eq!(fixture.look(&mut slot, &even).unwrap().rows_ssd, 100);
    for fault in [
        Fault::Status(Status::from(StatusCode::UnrecoveredReadError)),
        Fault::Corrupt,
        Fault::Drop,
        Fault::Delay(Duration::from_millis(600)),
    ] {
        host.clear_cache();
        assert_eq!(fixture.look(&mut slot, &even).unwrap().rows_ssd, 100);
        fixture.drive.faults().inject(Rule::new(fault).io(NvmOpcode::READ).nth(5));
        let (failed, _) = fixture.look(&mut slot, &all).expect_err("a command fails");
        assert!(!failed.is_empty() && failed.iter().all(|&position| all[position] % 4 != 0), "{fault:?}: {failed:?}");
        fixture.drive.faults().clear();
        // What failed is read again, and nothing else.
        let report = fixture.look(&mut slot, &all).unwrap();
        assert_eq!(report.rows_ssd, failed.len() as u64, "{fault:?}");
        assert_eq!(fixture.look(&mut slot, &all).unwrap().rows_cached, 200);
    }
    // A drive that answers nothing any more.
    fixture.drive.faults().inject(Rule::new(Fault::Drop).io(NvmOpcode::READ).always());
    assert_eq!(fixture.look(&mut slot, &all).unwrap().rows_cached, 200, "no drive is asked");
}

#[test]
fn rows_stay_cached_as_long_as_adopted_tables_have_them() {
    let mut fixture = fixture();
    let options = HostOptions::default().with_cache_bytes(1 << 20).with_dram_bytes(50 * 512).with_checked_rows();
    let host = HostExecutor::attach(&fixture.store, options).unwrap();
    let options = PlanOptions::default().with_max(1, 256).with_adopt_room();
    let mut slot = host.plan(&[Feature::new("f", "t")], options).unwrap().slot().unwrap();
    let ids: Vec<i64> = (100..300).collect();
    let counts = |report: LookupReport| (report.rows_dram, report.rows_cached, report.rows_ssd);
    assert_eq!(counts(fixture.look(&mut slot, &ids).unwrap()), (0, 0, 200));
    adopt(&host, &PrepareOptions::default());
    assert_eq!(counts(fixture.look(&mut slot, &ids).unwrap()), (0, 200, 0), "the tables are the same");
    // Other rows come to DRAM, and none moves on the drive.
    let hottest: Vec<u64> = (120..170).collect();
    fixture.store.rerank(&RerankOptions::new("t").with_ids(&hottest)).unwrap();
    adopt(&host, &PrepareOptions::default());
    assert_eq!(counts(fixture.look(&mut slot, &ids).unwrap()), (50, 150, 0));
    // A compaction rewrites the table: what was cached are its rows, but for the one that was updated.
    let row: Vec<u8> = (0..128).flat_map(|i| (-(i as f32)).to_le_bytes()).collect();
    fixture.store.update_with("t", &[200], &row, &UpdateOptions::default()).unwrap();
    fixture.table.rows[200 * 512..][..512].copy_from_slice(&row);
    fixture.look(&mut slot, &ids).unwrap();
    fixture.store.compact(fixture.store.generations().last().unwrap().id).unwrap();
    adopt(&host, &PrepareOptions::default());
    assert_eq!(counts(fixture.look(&mut slot, &ids).unwrap()), (50, 149, 1));
    assert_eq!(counts(fixture.look(&mut slot, &ids).unwrap()), (50, 150, 0));
    // Several compactions, of which the executor adopts the last.
    let generation = fixture.store.generations().last().unwrap().id;
    let update = |fixture: &mut Fixture, id: u64, first: f32| {
        let row: Vec<u8> = (0..128).flat_map(|i| (first + i as f32).to_le_bytes()).collect();
        fixture.store.update("t", &[id], &row).unwrap();
        fixture.table.rows[id as usize * 512..][..512].copy_from_slice(&row);
    };
    for (time, id) in [200, 201, 202, 201].into_iter().enumerate() {
        update(&mut fixture, id, time as f32 * 0.25);
        fixture.store.compact(generation).unwrap();
    }
    adopt(&host, &PrepareOptions::default());
    assert_eq!(counts(fixture.look(&mut slot, &ids).unwrap()), (50, 147, 3));
    // Rows that are replaced by rank are not among the updates.
    fixture.store.replace_rows(generation, "t", &[210], &|_, row| row.fill(0x41)).unwrap();
    fixture.table.rows[210 * 512..][..512].fill(0x41);
    adopt(&host, &PrepareOptions::default());
    assert_eq!(counts(fixture.look(&mut slot, &ids).unwrap()), (50, 0, 150));
    assert_eq!(counts(fixture.look(&mut slot, &ids).unwrap()), (50, 150, 0));
}

/// A read that takes long brings a row as it was, when the row's update is in the chunks and others read these.
#[test]
fn a_late_read_keeps_no_row_for_those_who_read_what_a_compaction_has_made_of_it() {
    let mut fixture = fixture_with(Duration::from_secs(30));
    let host = fixture.host();
    let options = PlanOptions::default().with_max(1, 256).with_slots(2).with_adopt_room();
    let plan = host.plan(&[Feature::new("f", "t")], options).unwrap();
    let (mut late, mut slot) = (plan.slot().unwrap(), plan.slot().unwrap());
    let read = Rule::new(Fault::Delay(Duration::from_secs(3))).io(NvmOpcode::READ);
    let rule = fixture.drive.faults().inject(read);
    let row: Vec<u8> = (0..128).flat_map(|i| (i as f32 * 3.0).to_le_bytes()).collect();
    let before = fixture.table.row(205).to_vec();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut rows = vec![7.0f32; 128];
            late.lookup(&Batch::new(&[205i64], 1), &mut Output::new(OutputRows::F32(&mut rows), 128)).unwrap();
            rows
        });
        while fixture.drive.faults().fired(rule) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        fixture.store.update("t", &[205], &row).unwrap();
        fixture.store.compact(fixture.store.generations().last().unwrap().id).unwrap();
        adopt(&host, &PrepareOptions::default());
        assert!(!reader.is_finished(), "the read took no longer than the compaction");
        assert_eq!(reader.join().unwrap(), common::widen(DType::F32, &before), "the row as it was");
    });
    assert_eq!(host.cache_statistics().unwrap().admissions, 1);
    fixture.table.rows[205 * 512..][..512].copy_from_slice(&row);
    let report = fixture.look(&mut slot, &[205]).unwrap();
    assert_eq!((report.rows_cached, report.rows_ssd), (0, 1));
    assert_eq!(fixture.look(&mut slot, &[205]).unwrap().rows_cached, 1);
}

#[test]
fn a_cache_that_helps_nobody_is_refused() {
    let fixture = fixture();
    let attach = |options| HostExecutor::attach(&fixture.store, options).map(drop).unwrap_err().to_string();
    let error = attach(HostOptions::default().with_cache_bytes(10_000));
    assert!(error.contains("64 rows"), "{error}");
    let error = attach(HostOptions::default().with_cache_bytes(1 << 20).with_dram_bytes(1 << 20));
    assert!(error.contains("no row is on a drive"), "{error}");
    let error = attach(HostOptions::default().with_table_cache("t", 1 << 16));
    assert!(error.contains("come to 65536 bytes, and the cache has 0"), "{error}");
    let error = attach(HostOptions::default().with_cache_bytes(1 << 20).with_table_cache("absent", 1 << 16));
    assert!(error.contains("no table \"absent\""), "{error}");
    let host = HostExecutor::attach(&fixture.store, HostOptions::default()).unwrap();
    assert_eq!(host.cache_statistics(), None);
}
