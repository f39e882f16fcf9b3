//! Rows that are listed for DRAM: look-ups read them there and from no drive, by each way of finding different rows, ahead and
//! in graphs; an executor keeps the list that it was attached with, until it adopts another.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use warprow_gpu::{GpuExecutor, GpuTiers};
use warprow_lookup::{CounterOptions, DedupeMethod, PrepareOptions};
use warprow_store::{LoadOptions, RerankOptions, Store};

use crate::common;
use crate::common::random::{random_features, random_tables};
use crate::fixture::{Fixture, Flat, MAX_IDS, ROW, ROWS, Stream, gpu, one_batch, patient, scaled, wait};
use crate::lookups::some_keyed;

/// Lists these ranks of [`Fixture`]'s table, which are ids.
fn list(store: &Store, ranks: &[u64]) {
    store.rerank(&RerankOptions::new("t").with_ranks(ranks)).unwrap();
}

/// `count` of the table's ids, from some one on, that lie as far from each other as they can.
fn spread(count: u64, first: u64) -> Vec<u64> {
    (0..count).map(|number| (first + number * (ROWS / count)) % ROWS).collect()
}

fn as_ids(ranks: &[u64]) -> Vec<i64> {
    ranks.iter().map(|&rank| rank as i64).collect()
}

#[test]
fn listed_rows_are_read_from_no_drive() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let listed = spread(700, 3);
    list(&fixture.store, &listed);
    let others: Vec<i64> = (0..ROWS).filter(|id| !listed.contains(id)).map(|id| id as i64).collect();
    let ways = [DedupeMethod::Bitmap, DedupeMethod::Hash, DedupeMethod::Radix];
    for (dedupe, ids) in ways.map(|way| (Some(way), 600)).into_iter().chain([(None, 600), (None, 60)]) {
        let attach = patient().with_dram_bytes(700 * ROW as u64).with_checked_rows();
        let attach = if dedupe.is_none() { attach } else { attach.with_one_kernel_ids(0) };
        let executor = fixture.attach(&gpu, attach);
        assert_eq!(executor.tiers("t"), Some((0, 700)));
        let options = Fixture::options(1).with_prefetch();
        let options = match dedupe {
            Some(dedupe) => options.with_dedupe(dedupe),
            None => options,
        };
        let plan = executor.plan(&Fixture::features(), options).unwrap();
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        let what = (dedupe, ids);
        let flat = Flat::new(&gpu, as_ids(&listed[..ids]));
        let report = flat.assert_found(&fixture, &slot, &stream, &what);
        assert_eq!((report.ids_dram, report.ids_ssd, report.commands), (ids as u64, 0, 0), "{what:?}");
        let mixed = [as_ids(&listed[100..100 + ids / 2]), others[..ids / 2].to_vec()].concat();
        let flat = Flat::new(&gpu, mixed);
        let half = (ids / 2) as u64;
        let report = flat.assert_found(&fixture, &slot, &stream, &what);
        assert_eq!((report.ids_dram, report.ids_ssd, report.rows_ssd), (half, half, half), "{what:?}");
        flat.reset();
        let ahead = flat.prefetch(&slot, &stream).unwrap();
        let report = wait(&flat.launch_prefetched(&slot, ahead, &stream).unwrap()).unwrap();
        assert_eq!(flat.check(&fixture, &what), [0i64; 0]);
        assert_eq!((report.ids_dram, report.ids_ssd, report.rows_ssd), (half, half, half), "{what:?}");
    }
}

/// Ids of look-ups are counted, captured ones too, and list rows.
#[test]
fn what_is_looked_up_is_counted_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let counters = CounterOptions::new(1 << 20).with_every(1).with_halved_after(0);
    let attach = patient().with_dram_bytes(300 * ROW as u64).with_adopting().with_counters(counters);
    let executor = fixture.attach(&gpu, attach);
    assert_eq!(executor.popular("t", 10).unwrap(), []);
    assert_eq!(executor.popular("absent", 10), None);
    let plan = executor.plan(&Fixture::features(), Fixture::options(2).with_prefetch()).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let hot = spread(300, 5);
    // By calls of each size of batch, by a graph, and ahead.
    let mut looked = 0;
    for ids in [60, 300] {
        let flat = Flat::new(&gpu, as_ids(&hot[..ids]));
        flat.assert_found(&fixture, &slot, &stream, &ids);
        looked += ids;
    }
    let flat = Flat::new(&gpu, as_ids(&hot));
    let (graph, ticket) = flat.capture(&gpu, &slot, &stream);
    for _ in 0..5 {
        stream.launch(&gpu, &graph);
        stream.wait(&gpu);
        wait(&ticket).unwrap();
        looked += 300;
    }
    let ahead = flat.prefetch(&slot, &stream).unwrap();
    wait(&flat.launch_prefetched(&slot, ahead, &stream).unwrap()).unwrap();
    looked += 300;
    let popular = executor.popular("t", usize::MAX).unwrap();
    assert_eq!((popular.len(), popular.iter().map(|row| row.count).sum::<u64>()), (300, looked as u64));
    assert_eq!((popular[0].count, popular[299].count), (8, 7));
    // What was counted is listed, and read from no drive from then on.
    let ids: Vec<u64> = popular.iter().map(|row| row.id).collect();
    let report = fixture.store.rerank(&RerankOptions::new("t").with_ids(&ids)).unwrap();
    assert_eq!((report.listed, report.missing), (300, 0));
    let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
    executor.adopt(&upcoming, scaled(Duration::from_secs(5))).unwrap();
    let report = flat.assert_found(&fixture, &slot, &stream, &"listed");
    assert_eq!((report.ids_dram, report.commands), (300, 0));
}

#[test]
fn look_ups_with_lists_match_the_naive_one() {
    let Some(gpu) = gpu() else { return };
    for seed in 7000..7016 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(random.usize(1..4), 24 << 20, 512);
        let checked = random.bool();
        let tables = some_keyed(random_tables(&mut random), checked, &mut random);
        common::load(&store, &tables, &LoadOptions::default());
        for table in &tables {
            if random.u32(..4) == 0 {
                continue;
            }
            let share = random.u64(1..6);
            let mut ranks: Vec<u64> = (0..table.spec.rows).filter(|_| random.u64(..6) < share).collect();
            random.shuffle(&mut ranks);
            store.rerank(&RerankOptions::new(&table.spec.name).with_ranks(&ranks)).unwrap();
        }
        let mut attach = patient().with_hbm_bytes(random.u64(..100_000)).with_dram_bytes(random.u64(..100_000));
        (attach.check_keys, attach.check_rows, attach.adopting) = (checked, random.bool(), random.bool());
        if random.bool() {
            attach.overlay_bytes = 1 << 20;
        }
        let lists = GpuTiers::of(&store, &attach).unwrap().tables.iter().filter(|table| table.listed).count();
        eprintln!("{lists} tables have lists in use");
        let executor = GpuExecutor::attach(&store, gpu.clone(), attach).unwrap();
        let stream = Stream::new(&gpu);
        for _ in 0..3 {
            let (features, mut options) = random_features(&tables, &mut random);
            if random.bool() {
                options = options.with_max(3000, 40_000);
            }
            let plan = executor.plan(&features, options.clone()).unwrap();
            let slot = plan.slot().unwrap();
            for _ in 0..6 {
                one_batch((&gpu, &plan, &slot, &stream), &tables, &features, &options, &mut random);
            }
        }
    }
}

/// Tells threads to end, also when an assertion fails beside them.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Graphs are replayed while lists are replaced and adopted, as often as they may: every row is the table's, and a list counts from its adoption on.
#[test]
fn graphs_read_lists_from_their_adoption_on() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let rounds = 40;
    // The executor is attached before there is a list.
    for cached in [false, true] {
        let attach = patient().with_dram_bytes(500 * ROW as u64).with_adopting();
        let attach = if cached { attach.with_cache_bytes(4 << 20).with_cache_batch_rows(1000) } else { attach };
        fixture.store.rerank(&RerankOptions::new("t")).unwrap();
        let executor = fixture.attach(&gpu, attach);
        let plan = executor.plan(&Fixture::features(), Fixture::options(3)).unwrap();
        let (over, runs) = (AtomicBool::new(false), AtomicU64::new(0));
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        let mut flat = Flat::new(&gpu, as_ids(&spread(500, 1)));
        let (graph, ticket) = flat.capture(&gpu, &slot, &stream);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (plan, over, runs, gpu, fixture) = (&plan, &over, &runs, &gpu, &fixture);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    let (slot, stream) = (plan.slot().unwrap(), Stream::new(gpu));
                    let mut flat = Flat::new(gpu, Fixture::ids(MAX_IDS, &mut random));
                    let (graph, ticket) = flat.capture(gpu, &slot, &stream);
                    while !over.load(Ordering::Relaxed) {
                        flat.set_ids(Fixture::ids(MAX_IDS, &mut random));
                        flat.reset();
                        stream.launch(gpu, &graph);
                        stream.wait(gpu);
                        let report = wait(&ticket).unwrap();
                        assert_eq!((report.ids, report.failed), (MAX_IDS as u64, 0));
                        assert_eq!(flat.check(fixture, &thread), [0i64; 0]);
                        runs.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _ending = Ending(&over);
            let mut look = |ids: &[u64]| {
                flat.set_ids(as_ids(ids));
                flat.reset();
                stream.launch(&gpu, &graph);
                stream.wait(&gpu);
                let report = wait(&ticket).unwrap();
                assert_eq!(flat.check(&fixture, &"a list's ids"), [0i64; 0]);
                report.ids_dram
            };
            let first: Vec<u64> = (0..500).collect();
            assert_eq!(look(&first), 500);
            for round in 0..rounds {
                let ids = spread(500, 1 + round);
                list(&fixture.store, &ids);
                let before = look(&ids);
                assert!(before < 200, "round {round}: the list counts before it is adopted: {before}");
                let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
                executor.adopt(&upcoming, scaled(Duration::from_secs(5))).unwrap();
                assert_eq!(look(&ids), 500, "round {round}");
            }
        });
        let runs = runs.into_inner();
        eprintln!("{runs} replays of {MAX_IDS} ids beside {rounds} lists, cached: {cached}");
        assert!(runs > 10, "{runs}");
    }
}
