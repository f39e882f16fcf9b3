//! Rows that a cache in GPU memory keeps: they are found again, they are the table's whatever happens beside, and bad input is named.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warprow_gpu::{CacheAdmission, GpuError, GpuExecutor, GpuOptions, GpuPlan, GpuSlot};
use warprow_gpu_queues::Gpu;
use warprow_lookup::{DedupeMethod, PlanOptions};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::NvmOpcode;
use warprow_store::LoadOptions;

use crate::common;
use crate::common::random::{random_features, random_tables};
use crate::fixture::{Fixture, Flat, MAX_IDS, ROW, ROWS, Stream, failed, gpu, one_batch, patient, scaled, short, wait};
use crate::lookups::some_keyed;

/// Bytes of a cache of about so many lines for rows of [`Fixture`]'s table.
pub(crate) fn lines(count: u64) -> u64 {
    58_200 + count * (ROW as u64 + 8)
}

pub(crate) fn cached(count: u64) -> GpuOptions {
    patient().with_cache_bytes(lines(count)).with_cache_batch_rows(100)
}

/// Ids of which a few come often, and those are others when `drift` is.
fn drifting(count: usize, drift: u64, random: &mut fastrand::Rng) -> Vec<i64> {
    let id = |random: &mut fastrand::Rng| match random.u32(..4) {
        0 => random.u64(..ROWS),
        _ => (random.u64(..ROWS / 10) + drift * 131) % ROWS,
    };
    (0..count).map(|_| id(random) as i64).collect()
}

/// Looks up until the cache has all rows. Of rows that want the same line at the same time one gets it, and later launches
/// give lines to the others.
fn until_cached(flat: &Flat, fixture: &Fixture, slot: &GpuSlot, stream: &Stream, what: &dyn std::fmt::Debug) {
    let mut missed = u64::MAX;
    for _ in 0..20 {
        let report = flat.assert_found(fixture, slot, stream, what);
        assert_eq!(report.ids_cached + report.ids_ssd, report.ids, "{what:?}: {report:?}");
        assert!(report.ids_ssd <= missed, "{what:?}: {report:?} after {missed} misses");
        if report.ids_ssd == 0 {
            return;
        }
        missed = report.ids_ssd;
    }
    panic!("{what:?}: {missed} rows are still not cached");
}

#[test]
fn rows_are_read_from_a_drive_once() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    // Each way to find different rows, and few ids by one block.
    for dedupe in [None, Some(DedupeMethod::Bitmap), Some(DedupeMethod::Hash), Some(DedupeMethod::Radix)] {
        let executor = fixture.attach(&gpu, cached(8 * ROWS));
        let options = Fixture::options(2);
        let options = match dedupe {
            Some(dedupe) => options.with_dedupe(dedupe),
            None => options,
        };
        let plan = executor.plan(&Fixture::features(), options).unwrap();
        let (slots, stream) = ([plan.slot().unwrap(), plan.slot().unwrap()], Stream::new(&gpu));
        let mut random = fastrand::Rng::with_seed(3);
        let flat = Flat::new(&gpu, Fixture::ids(700, &mut random));
        let first = flat.assert_found(&fixture, &slots[0], &stream, &dedupe);
        assert_eq!((first.ids_cached, first.ids_ssd, first.rows_ssd), (0, 700, 700), "{dedupe:?}");
        until_cached(&flat, &fixture, &slots[0], &stream, &dedupe);
        for slot in &slots {
            let again = flat.assert_found(&fixture, slot, &stream, &dedupe);
            assert_eq!((again.ids_cached, again.ids_ssd, again.commands), (700, 0, 0), "{dedupe:?}");
        }
        let statistics = executor.cache_statistics().unwrap().unwrap();
        assert_eq!((statistics.used, statistics.admissions, statistics.evictions), (700, 700, 0), "{statistics:?}");
        assert!(statistics.lines >= 8 * ROWS && statistics.hold > 0, "{statistics:?}");
        executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
        assert_eq!(executor.cache_statistics().unwrap().unwrap().used, 0);
        let anew = flat.assert_found(&fixture, &slots[1], &stream, &dedupe);
        assert_eq!((anew.ids_cached, anew.ids_ssd), (0, 700), "{dedupe:?}");
    }
}

#[test]
fn cached_look_ups_match_the_naive_one() {
    let Some(gpu) = gpu() else { return };
    for seed in 4000..4012 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(random.usize(1..4), 24 << 20, 512);
        let checked = random.bool();
        let tables = some_keyed(random_tables(&mut random), checked, &mut random);
        common::load(&store, &tables, &LoadOptions::default());
        let mut attach = patient().with_hbm_bytes(random.u64(..100_000)).with_dram_bytes(random.u64(..100_000));
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
            // Small tables lie in memory.
            Err(GpuError::Unsupported(why)) if why.contains("all rows lie in GPU memory or DRAM") => continue,
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
    }
}

/// Several threads look up until they have looked so many ids up, by calls and by graphs, in a cache of far fewer lines than there are rows, while what comes
/// often drifts; every row is compared. Their reports, added up: ids, and ids that the cache had.
pub(crate) fn storm(gpu: &Arc<Gpu>, fixture: &Fixture, plan: &GpuPlan, threads: u64, ids: u64) -> (u64, u64) {
    let (all, hits) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (all, hits) = (&all, &hits);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let (slot, stream) = (plan.slot().unwrap(), Stream::new(gpu));
                let mut flat = Flat::new(gpu, drifting(MAX_IDS, 0, &mut random));
                let graph = (thread % 2 == 1).then(|| flat.capture(gpu, &slot, &stream));
                while all.load(Ordering::Relaxed) < ids {
                    let drift = all.load(Ordering::Relaxed) / 20_000;
                    flat.set_ids(drifting(MAX_IDS, drift, &mut random));
                    let report = match &graph {
                        Some((graph, ticket)) => {
                            flat.reset();
                            stream.launch(gpu, graph);
                            stream.wait(gpu);
                            let report = wait(ticket).unwrap();
                            assert_eq!(flat.check(fixture, &thread), [0i64; 0]);
                            report
                        }
                        None => flat.assert_found(fixture, &slot, &stream, &thread),
                    };
                    all.fetch_add(report.ids, Ordering::Relaxed);
                    hits.fetch_add(report.ids_cached, Ordering::Relaxed);
                }
            });
        }
    });
    (all.into_inner(), hits.into_inner())
}

#[test]
fn launches_that_admit_and_evict_beside_each_other_read_no_wrong_row() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let ids = std::env::var("WARPROW_CACHE_IDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400_000);
    for (count, batch_rows) in [(1100, 1 << 20), (1100, 20), (2500, 100)] {
        let executor = fixture.attach(&gpu, cached(count).with_cache_batch_rows(batch_rows));
        let plan = executor.plan(&Fixture::features(), Fixture::options(4)).unwrap();
        let over = AtomicBool::new(false);
        let (sweeps, (all, hits)) = std::thread::scope(|scope| {
            let sweeper = scope.spawn(|| {
                let mut sweeps = 0;
                while !over.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(50));
                    executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
                    sweeps += 1;
                }
                sweeps
            });
            let stormed = storm(&gpu, &fixture, &plan, 4, ids);
            over.store(true, Ordering::Release);
            (sweeper.join().unwrap(), stormed)
        });
        let statistics = executor.cache_statistics().unwrap().unwrap();
        eprintln!("{count} lines: {hits} of {all} ids, {sweeps} sweeps, {statistics:?}");
        assert!(hits > all / 10 && statistics.evictions > 100, "{hits} of {all}, {statistics:?}");
        assert!(statistics.used <= statistics.lines, "{statistics:?}");
    }
}

#[test]
fn a_cache_counts_what_reports_say() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, cached(1200).with_cache_batch_rows(1 << 20));
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let (mut launches, mut hits, mut misses) = (0, 0, 0);
    let mut look_up = |flat: &Flat, times: u32| {
        for _ in 0..times {
            let report = flat.assert_found(&fixture, &slot, &stream, &launches);
            launches += 1;
            hits += report.ids_cached;
            misses += report.ids_ssd;
        }
    };
    // Rows that are used once, and 60 launches of others.
    look_up(&Flat::new(&gpu, (0..400).collect()), 1);
    let few = Flat::new(&gpu, (400..410).collect());
    look_up(&few, 60);
    let counts = executor.cache_statistics().unwrap().unwrap();
    assert_eq!((counts.hold, counts.evictions, counts.eviction_age), (0, 0, 0), "{counts:?}");
    // Of rows that want one line at once one gets it, and the others in the next launches. Where no line is empty, the rows go that were used once.
    look_up(&Flat::new(&gpu, (1000..1900).collect()), 5);
    let counts = executor.cache_statistics().unwrap().unwrap();
    assert!(counts.evictions > 20 && (50..=65).contains(&counts.eviction_age), "{counts:?}");
    let mut random = fastrand::Rng::with_seed(11);
    for drift in 0..20 {
        look_up(&Flat::new(&gpu, drifting(MAX_IDS, drift, &mut random)), 2);
    }
    let mut replayed = Flat::new(&gpu, (0..MAX_IDS as i64).collect());
    let (graph, ticket) = replayed.capture(&gpu, &slot, &stream);
    for drift in 0..20 {
        replayed.set_ids(drifting(MAX_IDS, drift, &mut random));
        replayed.reset();
        stream.launch(&gpu, &graph);
        stream.wait(&gpu);
        let report = wait(&ticket).unwrap();
        assert_eq!(replayed.check(&fixture, &drift), [0i64; 0]);
        (hits, misses) = (hits + report.ids_cached, misses + report.ids_ssd);
    }
    let counts = executor.cache_statistics().unwrap().unwrap();
    assert_eq!((counts.hits, counts.misses), (hits, misses), "{counts:?}");
    assert_eq!(hits + misses, 400 + 60 * 10 + 5 * 900 + 60 * MAX_IDS as u64);
    assert_eq!(counts.admissions - counts.evictions, counts.used, "{counts:?}");
    assert!(hits > 1000 && counts.evictions > 1000 && counts.eviction_age < 126, "{counts:?}");
}

#[test]
fn a_sketch_keeps_what_is_asked_for_often() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    for (admission, keeps) in [(CacheAdmission::Always, false), (CacheAdmission::Sketch, true)] {
        let options = cached(1200).with_cache_batch_rows(1 << 20).with_cache_admission(admission);
        let executor = fixture.attach(&gpu, options);
        let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        let often = Flat::new(&gpu, (0..300).collect());
        for _ in 0..10 {
            often.assert_found(&fixture, &slot, &stream, &admission);
        }
        // Each other row once.
        for first in (300..ROWS as i64).step_by(500) {
            let once = Flat::new(&gpu, (first..(first + 500).min(ROWS as i64)).collect());
            once.assert_found(&fixture, &slot, &stream, &admission);
        }
        let report = often.assert_found(&fixture, &slot, &stream, &admission);
        eprintln!("{admission:?}: {} of 300, {:?}", report.ids_cached, executor.cache_statistics().unwrap());
        assert_eq!(report.ids_cached > 270, keeps, "{admission:?}: {report:?}");
    }
}

#[test]
fn what_was_fetched_ahead_is_cached_and_holds_its_lines() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, cached(8 * ROWS));
    let plan = executor.plan(&Fixture::features(), Fixture::options(2).with_prefetch()).unwrap();
    let (slot, other, stream) = (plan.slot().unwrap(), plan.slot().unwrap(), Stream::new(&gpu));
    let mut random = fastrand::Rng::with_seed(5);
    let flat = Flat::new(&gpu, Fixture::ids(500, &mut random));
    let prefetched = flat.prefetch(&slot, &stream).unwrap();
    let began = Instant::now();
    while !prefetched.is_fetched().unwrap() {
        assert!(began.elapsed() < scaled(Duration::from_secs(10)));
    }
    // The batch may read lines, for as long as it is held.
    let busy = executor.clear_cache(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(busy, GpuError::CacheBusy { .. }), "{busy:?}");
    let report = wait(&flat.launch_prefetched(&slot, prefetched, &stream).unwrap()).unwrap();
    assert_eq!((report.ids_cached, report.ids_ssd), (0, 500));
    assert_eq!(flat.check(&fixture, &"prefetched"), [0i64; 0]);
    until_cached(&flat, &fixture, &other, &stream, &"prefetched");
    let again = flat.assert_found(&fixture, &other, &stream, &"again");
    assert_eq!((again.ids_cached, again.ids_ssd), (500, 0));
    // One that is dropped keeps nothing, and lets go of its lines.
    executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
    drop(flat.prefetch(&slot, &stream).unwrap());
    executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
    assert_eq!(executor.cache_statistics().unwrap().unwrap().used, 0);
}

#[test]
fn rows_that_failed_are_not_cached_and_cached_ones_do_not_fail() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, cached(8 * ROWS).with_timeout(short()));
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let mut random = fastrand::Rng::with_seed(6);
    let ids = Fixture::ids(600, &mut random);
    let known = Flat::new(&gpu, ids[..300].to_vec());
    until_cached(&known, &fixture, &slot, &stream, &"known");
    let rule = fixture.drives[0].faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).always());
    let all = Flat::new(&gpu, ids.clone());
    let ticket = all.launch(&slot, &stream).unwrap();
    let failed = failed(wait(&ticket), &"a drive that does not answer");
    assert_eq!((failed.ids, failed.report.ids_cached), (300, 300));
    let mut lost = all.check(&fixture, &"half");
    lost.sort_unstable();
    let mut due = ids[300..].to_vec();
    due.sort_unstable();
    assert_eq!(lost, due);
    assert_eq!(executor.cache_statistics().unwrap().unwrap().used, 300);
    fixture.drives[0].faults().remove(rule);
    let report = all.assert_found(&fixture, &slot, &stream, &"after");
    assert_eq!((report.ids_cached, report.ids_ssd), (300, 300));
}

#[test]
fn caches_that_cannot_be_are_named() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let attach = |options| GpuExecutor::attach(&fixture.store, gpu.clone(), options);
    let too_small = attach(patient().with_cache_bytes(1000)).unwrap_err();
    let GpuError::CacheTooSmall { bytes: 1000, needed } = too_small else { panic!("{too_small:?}") };
    attach(patient().with_cache_bytes(needed)).unwrap();
    let needless = attach(patient().with_cache_bytes(1 << 20).with_hbm_bytes(1 << 30)).unwrap_err().to_string();
    assert!(needless.contains("all rows lie in GPU memory or DRAM"), "{needless}");
    let both = attach(patient().with_cache_bytes(1 << 20).with_one_kernel_ids(64)).unwrap_err().to_string();
    assert!(both.contains("one_kernel_ids") && both.contains("cache_bytes"), "{both}");
    attach(patient().with_cache_bytes(1 << 20).with_one_kernel_ids(0)).unwrap();
    for chance in [-0.1, 1.5, f64::NAN] {
        let admission = CacheAdmission::Probability(chance);
        let none = attach(patient().with_cache_bytes(1 << 20).with_cache_admission(admission)).unwrap_err().to_string();
        assert!(none.contains("probability"), "{none}");
    }
    let too_large = attach(patient().with_cache_bytes(1 << 50)).unwrap_err().to_string();
    assert!(too_large.contains("GPU memory"), "{too_large}");
    // A batch of 1,000 different rows in 700 lines.
    let executor = attach(cached(700)).unwrap();
    let small = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap_err();
    let GpuError::CacheTooSmall { needed, .. } = small else { panic!("{small:?}") };
    let options = PlanOptions::default().with_max(500, 500);
    executor.plan(&Fixture::features(), options).unwrap();
    let executor = attach(patient().with_cache_bytes(needed + needed / 10)).unwrap();
    executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let none = attach(patient()).unwrap();
    assert!(matches!(none.clear_cache(Duration::ZERO), Err(GpuError::NoCache)));
    assert_eq!(none.cache_statistics().unwrap(), None);
}
