//! Rows of DRAM that a cache in GPU memory keeps: they are read over the bus once, they are the table's whatever happens beside, and counts are what the ids
//! say.

use std::time::Duration;

use warprow_gpu::{CacheAdmission, GpuError, GpuExecutor, GpuOptions};
use warprow_lookup::{DedupeMethod, PrepareOptions};
use warprow_store::{LoadOptions, RerankOptions};

use crate::common;
use crate::common::random::{random_features, random_tables};
use crate::fixture::{Fixture, Flat, ROW, ROWS, Stream, gpu, one_batch, patient, scaled, wait};
use crate::lookups::some_keyed;
use crate::row_cache::{lines, storm};

/// A cache of about so many lines, and room for so many rows in DRAM.
fn cached(count: u64, dram_rows: u64) -> GpuOptions {
    let options = patient().with_cache_bytes(lines(count)).with_cache_batch_rows(100);
    options.with_dram_bytes(dram_rows * ROW as u64).with_cached_dram()
}

#[test]
fn rows_are_read_from_dram_once() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let ways = [DedupeMethod::Bitmap, DedupeMethod::Hash, DedupeMethod::Radix].map(Some);
    // All rows in DRAM, and half of them.
    for (dram_rows, dedupe) in
        [2 * ROWS, ROWS / 2].into_iter().flat_map(|rows| ways.into_iter().chain([None]).map(move |way| (rows, way)))
    {
        let what = (dram_rows, dedupe);
        let executor = fixture.attach(&gpu, cached(8 * ROWS, dram_rows));
        assert_eq!(executor.tiers("t"), Some((0, dram_rows.min(ROWS))));
        let options = Fixture::options(2).with_prefetch();
        let options = dedupe.map_or(options.clone(), |dedupe| options.with_dedupe(dedupe));
        let plan = executor.plan(&Fixture::features(), options).unwrap();
        let (slots, stream) = ([plan.slot().unwrap(), plan.slot().unwrap()], Stream::new(&gpu));
        let ids = Fixture::ids(700, &mut fastrand::Rng::with_seed(3));
        let in_dram = ids.iter().filter(|&&id| (id as u64) < dram_rows).count() as u64;
        let mut flat = Flat::new(&gpu, ids.clone());
        let (mut hits, mut misses, mut lookups) = (0, 0, 0);
        let mut look = |flat: &Flat, slot: usize| {
            let report = flat.assert_found(&fixture, &slots[slot], &stream, &what);
            assert_eq!(report.ids_cached + report.ids_dram + report.ids_ssd, 700, "{what:?}: {report:?}");
            assert_eq!((report.rows_dram, report.rows_ssd), (report.ids_dram, report.ids_ssd), "{what:?}: {report:?}");
            (hits, misses) = (hits + report.ids_cached, misses + report.ids_dram + report.ids_ssd);
            lookups += 1;
            assert!(lookups < 30, "{what:?}: {report:?}");
            report
        };
        let first = look(&flat, 0);
        assert_eq!((first.ids_cached, first.ids_dram, first.ids_ssd), (0, in_dram, 700 - in_dram), "{what:?}");
        // Of rows that want one line at once one gets it, and later launches give lines to the others.
        while look(&flat, 0).ids_cached < 700 {}
        let again = look(&flat, 1);
        assert_eq!((again.ids_cached, again.rows_dram, again.rows_ssd, again.commands), (700, 0, 0, 0), "{what:?}");
        // Fetched ahead, and by a graph, some rows of which are others.
        let ahead = flat.prefetch(&slots[0], &stream).unwrap();
        flat.reset();
        let report = wait(&flat.launch_prefetched(&slots[0], ahead, &stream).unwrap()).unwrap();
        assert_eq!((report.ids_cached, flat.check(&fixture, &what)), (700, Vec::new()), "{what:?}");
        let (graph, ticket) = flat.capture(&gpu, &slots[1], &stream);
        let others: Vec<i64> = (0..ROWS as i64).filter(|id| !ids.contains(id)).take(100).collect();
        flat.set_ids([&ids[100..], &others[..]].concat());
        flat.reset();
        stream.launch(&gpu, &graph);
        stream.wait(&gpu);
        let report = wait(&ticket).unwrap();
        assert_eq!((report.ids_cached, flat.check(&fixture, &what)), (600, Vec::new()), "{what:?}");
        let counts = executor.cache_statistics().unwrap().unwrap();
        assert_eq!((counts.hits, counts.misses), (hits + 1300, misses + 100), "{what:?}: {counts:?}");
        assert!(counts.evictions == 0 && counts.used == counts.admissions, "{what:?}: {counts:?}");
        executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
        flat.set_ids(ids);
        assert_eq!(flat.assert_found(&fixture, &slots[0], &stream, &what).ids_cached, 0, "{what:?}");
    }
}

#[test]
fn cached_look_ups_in_dram_match_the_naive_one() {
    let Some(gpu) = gpu() else { return };
    let mut hits = 0;
    for seed in 5000..5012 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(random.usize(1..4), 24 << 20, 512);
        let checked = random.bool();
        let tables = some_keyed(random_tables(&mut random), checked, &mut random);
        common::load(&store, &tables, &LoadOptions::default());
        let dram_bytes = if random.bool() { 1 << 30 } else { random.u64(..200_000) };
        let mut attach = patient().with_hbm_bytes(random.u64(..50_000)).with_dram_bytes(dram_bytes).with_cached_dram();
        attach = attach.with_cache_bytes(64 << 20).with_cache_batch_rows([100, 1 << 20][random.usize(..2)]);
        attach = attach.with_cache_admission(match random.u32(..3) {
            0 => CacheAdmission::Probability(0.5),
            1 => CacheAdmission::Sketch,
            _ => CacheAdmission::Always,
        });
        (attach.check_keys, attach.check_rows, attach.adopting) = (checked, random.bool(), random.bool());
        if random.bool() {
            attach.overlay_bytes = 1 << 20;
        }
        let executor = match GpuExecutor::attach(&store, gpu.clone(), attach) {
            // Small tables lie in GPU memory.
            Err(GpuError::Unsupported(why)) if why.contains("all rows lie in GPU memory") => continue,
            attached => attached.unwrap(),
        };
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
        hits += executor.cache_statistics().unwrap().unwrap().hits;
    }
    assert!(hits > 1000, "{hits}");
}

#[test]
fn launches_that_admit_and_evict_rows_of_dram_read_no_wrong_row() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let ids = std::env::var("WARPROW_CACHE_IDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300_000);
    for (dram_rows, batch_rows) in [(2 * ROWS, 1 << 20), (2 * ROWS, 20), (ROWS / 2, 1 << 20)] {
        let executor = fixture.attach(&gpu, cached(1100, dram_rows).with_cache_batch_rows(batch_rows));
        let plan = executor.plan(&Fixture::features(), Fixture::options(4)).unwrap();
        let (all, hits) = storm(&gpu, &fixture, &plan, 4, ids);
        let counts = executor.cache_statistics().unwrap().unwrap();
        eprintln!("{hits} of {all} ids, {counts:?}");
        assert!(hits > all / 10 && counts.evictions > 100, "{hits} of {all}, {counts:?}");
        assert_eq!((counts.hits, counts.hits + counts.misses), (hits, all), "{counts:?}");
    }
}

/// Rows are updated that lie in lines; lists come that have others in DRAM, and are adopted, while a graph stays as it is.
#[test]
fn updated_and_listed_rows_are_found_as_they_are() {
    let Some(gpu) = gpu() else { return };
    let mut fixture = Fixture::new(1);
    let options = cached(8 * ROWS, 600).with_adopting().with_overlay_bytes(1 << 20);
    let executor = fixture.attach(&gpu, options);
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let flat = Flat::new(&gpu, (0..1000).collect());
    let (graph, ticket) = flat.capture(&gpu, &slot, &stream);
    let replay = |fixture: &Fixture| {
        flat.reset();
        stream.launch(&gpu, &graph);
        stream.wait(&gpu);
        let report = wait(&ticket).unwrap();
        assert_eq!(flat.check(fixture, &"a graph"), [0i64; 0]);
        assert_eq!(report.ids_cached + report.ids_dram + report.ids_ssd, 1000, "{report:?}");
        report
    };
    let until_cached = |fixture: &Fixture, due: u64| {
        let mut report = replay(fixture);
        for _ in 0..20 {
            report = replay(fixture);
        }
        assert_eq!(report.ids_cached, due, "{report:?}");
    };
    until_cached(&fixture, 1000);
    let ids: Vec<u64> = (0..50).map(|number| number * 17).collect();
    let rows: Vec<u8> = (0..50 * ROW).map(|at| (at % 63) as u8).collect();
    fixture.store.update("t", &ids, &rows).unwrap();
    for (&id, row) in ids.iter().zip(rows.chunks(ROW)) {
        fixture.table.rows[id as usize * ROW..][..ROW].copy_from_slice(row);
    }
    let report = replay(&fixture);
    assert_eq!((report.ids_cached, report.ids_dram), (950, 50), "{report:?}");
    for round in 0..6 {
        let listed: Vec<u64> = (0..500).map(|number| (number * 2 + round * 100) % 1000).collect();
        fixture.store.rerank(&RerankOptions::new("t").with_ranks(&listed)).unwrap();
        let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
        executor.adopt(&upcoming, scaled(Duration::from_secs(5))).unwrap();
        // The cache has nothing of the tables that were adopted.
        assert_eq!(replay(&fixture).ids_cached, 0, "round {round}");
        until_cached(&fixture, 950);
    }
    // What is listed is pinned and saved by its id.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    let some: Vec<u64> = (0..40).map(|number| 500 + number * 3).filter(|id| id % 17 != 0).collect();
    let pinned = executor.pin("t", &some).unwrap();
    assert_eq!((pinned.pinned, pinned.in_memory, pinned.left), (some.len() as u64, 0, 0), "{pinned:?}");
    let saved = executor.save_cache(&path).unwrap();
    assert!(saved.rows >= 950, "{saved:?}");
    executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
    let restored = executor.warm_from(&path).unwrap();
    assert_eq!(restored.tables.len(), 1, "{restored:?}");
    until_cached(&fixture, 950);
}

#[test]
fn what_cannot_be_cached_of_dram_is_named() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let refused = |options| GpuExecutor::attach(&fixture.store, gpu.clone(), options).unwrap_err().to_string();
    let without = refused(patient().with_dram_bytes(1 << 30).with_cached_dram());
    assert!(without.contains("cache_bytes"), "{without}");
    let none = refused(cached(1200, ROWS).with_hbm_bytes(1 << 30));
    assert!(none.contains("all rows lie in GPU memory"), "{none}");
    let dram = refused(patient().with_dram_bytes(1 << 30).with_cache_bytes(lines(1200)));
    assert!(dram.contains("cached_dram"), "{dram}");
    // A batch of 1,000 different rows in 700 lines.
    let executor = fixture.attach(&gpu, cached(700, 2 * ROWS));
    let small = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap_err();
    assert!(matches!(small, GpuError::CacheTooSmall { .. }), "{small:?}");
}
