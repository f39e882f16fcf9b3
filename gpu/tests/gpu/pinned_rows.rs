//! Rows that are brought into a cache before anybody looks them up, and rows that stay there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use warprow_gpu::{CacheAdmission, GpuError, GpuExecutor, GpuOptions};
use warprow_lookup::{Batch, Feature, Output, OutputRows, PlanOptions, Pooling, PrepareOptions};
use warprow_store::{DType, LoadOptions, StoreError};

use crate::common::{self, Table};
use crate::fixture::{Fixture, Flat, ROW, ROWS, Stream, gpu, patient, scaled};
use crate::row_cache::{cached, storm};

fn every(step: usize, count: u64) -> Vec<u64> {
    (0..ROWS).step_by(step).take(count as usize).collect()
}

fn signed(ids: &[u64]) -> Vec<i64> {
    ids.iter().map(|&id| id as i64).collect()
}

#[test]
fn rows_are_there_before_they_are_looked_up() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let executor = fixture.attach(&gpu, cached(8 * ROWS));
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let mut ids = every(5, 700);
    let flat = Flat::new(&gpu, signed(&ids));
    // An id that is given twice counts twice; two are no ids of the table.
    ids.extend([0, ROWS, u64::MAX]);
    let warmed = executor.warm("t", &ids).unwrap();
    assert_eq!((warmed.ids, warmed.cached, warmed.missing), (703, 701, 2), "{warmed:?}");
    assert_eq!((warmed.in_memory, warmed.left), (0, 0), "{warmed:?}");
    let report = flat.assert_found(&fixture, &slot, &stream, &"warm");
    assert_eq!((report.ids_cached, report.ids_ssd, report.commands), (700, 0, 0), "{report:?}");
    assert_eq!(executor.warm("t", &[]).unwrap().ids, 0);
    let known = executor.warm("other", &[1]).unwrap_err();
    assert!(matches!(known, GpuError::Store(StoreError::NoSuchTable { .. })), "{known:?}");
    let none = fixture.attach(&gpu, patient());
    assert!(matches!(none.warm("t", &[1]).unwrap_err(), GpuError::NoCache));
    assert!(matches!(none.pin("t", &[1]).unwrap_err(), GpuError::NoCache));
}

#[test]
fn the_first_ids_are_there_where_not_all_have_room() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    for admission in [CacheAdmission::Always, CacheAdmission::Probability(0.0), CacheAdmission::Sketch] {
        let executor = fixture.attach(&gpu, cached(1100).with_cache_admission(admission));
        let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        // Others were asked for often: the admission alone would keep them.
        let often = Flat::new(&gpu, (4000..4900).collect());
        (0..10).for_each(|_| _ = often.assert_found(&fixture, &slot, &stream, &admission));
        let all: Vec<u64> = (0..ROWS).collect();
        let warmed = executor.warm("t", &all).unwrap();
        assert_eq!((warmed.ids, warmed.missing), (ROWS, 0), "{admission:?}: {warmed:?}");
        let first = Flat::new(&gpu, (0..100).collect());
        let report = first.assert_found(&fixture, &slot, &stream, &admission);
        assert!(report.ids_cached >= 95, "{admission:?}: {report:?}, {warmed:?}");
    }
}

#[test]
fn pinned_rows_stay_whatever_passes_by() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    for admission in [CacheAdmission::Always, CacheAdmission::Sketch] {
        let executor = fixture.attach(&gpu, cached(1200).with_cache_admission(admission));
        let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        let ids = every(97, 50);
        let flat = Flat::new(&gpu, signed(&ids));
        let graph = flat.capture(&gpu, &slot, &stream);
        let pinned = executor.pin("t", &[&ids[..], &[ids[0], ROWS + 3]].concat()).unwrap();
        assert_eq!((pinned.pinned, pinned.already, pinned.missing, pinned.left), (50, 0, 1, 0), "{pinned:?}");
        assert_eq!(executor.pin("t", &ids).unwrap().already, 50);
        assert_eq!(executor.cache_statistics().unwrap().unwrap().pinned, 50);
        let pass_by = || {
            for first in (0..ROWS as i64).step_by(1000).cycle().take(15) {
                let once = Flat::new(&gpu, (first..first + 1000).collect());
                once.assert_found(&fixture, &slot, &stream, &admission);
            }
        };
        pass_by();
        let report = flat.assert_found(&fixture, &slot, &stream, &admission);
        assert_eq!((report.ids_cached, report.ids_ssd), (50, 0), "{admission:?}");
        // A graph that was captured before.
        flat.reset();
        stream.launch(&gpu, &graph.0);
        stream.wait(&gpu);
        assert_eq!(crate::fixture::wait(&graph.1).unwrap().ids_cached, 50);
        assert_eq!(flat.check(&fixture, &"a graph"), [0i64; 0]);
        // Those that are let go leave, the others do not.
        assert_eq!(executor.unpin("t", Some(&ids[..20])).unwrap(), 20);
        assert_eq!(executor.unpin("t", Some(&ids[..20])).unwrap(), 0);
        assert_eq!(executor.cache_statistics().unwrap().unwrap().pinned, 30);
        if admission == CacheAdmission::Always {
            pass_by();
            pass_by();
            let report = flat.assert_found(&fixture, &slot, &stream, &admission);
            assert!((30..45).contains(&report.ids_cached), "{report:?}");
        }
        assert_eq!(executor.unpin("t", None).unwrap(), 30);
        executor.pin("t", &ids).unwrap();
        executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
        assert_eq!(executor.cache_statistics().unwrap().unwrap().pinned, 0);
    }
}

#[test]
fn more_pins_than_sets_have_room_for_are_refused_before_anything_moves() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, cached(1200));
    executor.pin("t", &every(97, 40)).unwrap();
    let before = executor.cache_statistics().unwrap();
    let all: Vec<u64> = (0..ROWS).collect();
    let refused = executor.pin("t", &all).unwrap_err();
    let text = refused.to_string();
    let GpuError::CachePinsFull { table, rows, first } = refused else { panic!("{refused:?}") };
    assert!(table == "t" && rows > ROWS - 1200 && first < ROWS, "{rows} {first}");
    assert!(text.contains("cache_bytes") && text.contains("with_hbm_rows"), "{text}");
    assert_eq!(executor.cache_statistics().unwrap(), before);
    // Sets are full one by one; what fits is pinned.
    let fitting: u64 = all.iter().map(|&id| executor.pin("t", &[id]).map_or(0, |pinned| pinned.pinned)).sum();
    let statistics = executor.cache_statistics().unwrap().unwrap();
    assert_eq!((fitting + 40, statistics.pinned), (statistics.lines / 8 * 6, statistics.lines / 8 * 6));
    // Two lines of each set are left to others.
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
    let mut random = fastrand::Rng::with_seed(8);
    for _ in 0..20 {
        let flat = Flat::new(&gpu, Fixture::ids(500, &mut random));
        let report = flat.assert_found(&fixture, &slot, &stream, &"full of pins");
        assert!(report.ids_cached > 0 && report.ids_ssd > 0, "{report:?}");
    }
    assert!(executor.cache_statistics().unwrap().unwrap().evictions > before.unwrap().evictions);
}

#[test]
fn rows_are_pinned_and_let_go_beside_look_ups() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let executor = fixture.attach(&gpu, cached(1100).with_cache_batch_rows(20));
    let plan = executor.plan(&Fixture::features(), Fixture::options(4)).unwrap();
    let over = AtomicBool::new(false);
    let (pins, (all, hits)) = std::thread::scope(|scope| {
        let pinner = scope.spawn(|| {
            let (mut random, mut pins) = (fastrand::Rng::with_seed(4), 0);
            while !over.load(Ordering::Acquire) {
                let ids: Vec<u64> = (0..20).map(|_| random.u64(..ROWS)).collect();
                match executor.pin("t", &ids) {
                    Ok(pinned) => pins += pinned.pinned,
                    Err(GpuError::CachePinsFull { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
                if random.u32(..3) == 0 {
                    executor.unpin("t", None).unwrap();
                }
            }
            pins
        });
        let stormed = storm(&gpu, &fixture, &plan, 3, 150_000);
        over.store(true, Ordering::Release);
        (pinner.join().unwrap(), stormed)
    });
    eprintln!("{hits} of {all} ids, {pins} pinned");
    assert!(hits > all / 20 && pins > 20, "{hits} of {all}, {pins}");
}

/// How many ids the cache had. Each row is compared with the table's.
fn looked_up(executor: &GpuExecutor, table: &Table, positions: &[u64]) -> u64 {
    let plan = executor
        .plan(&[Feature::new("f", "k").pooling(Pooling::None)], PlanOptions::default().with_max(500, 500))
        .unwrap();
    let mut slot = plan.slot().unwrap().copied().unwrap();
    let width = plan.width();
    let mut rows = vec![0.0f32; positions.len() * width];
    let ids: Vec<i128> = positions.iter().map(|&position| table.id(position)).collect();
    let (signed, unsigned): (Vec<i64>, Vec<u64>) = ids.iter().map(|&id| (id as i64, id as u64)).unzip();
    let is_signed = ids.iter().all(|&id| i64::try_from(id).is_ok());
    let batch = match is_signed {
        true => Batch::new(&signed[..], positions.len()),
        false => Batch::new(&unsigned[..], positions.len()),
    };
    let mut output = Output::new(OutputRows::F32(&mut rows), width);
    let report = slot.lookup(&batch, &mut output).unwrap();
    for (row, &position) in rows.chunks(width).zip(positions) {
        let wanted: Vec<u32> =
            table.row(position).as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
        assert_eq!(row.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), wanted, "position {position}");
    }
    report.ids_cached
}

#[test]
fn keys_and_other_orders_name_the_rows_that_are_pinned() {
    let Some(gpu) = gpu() else { return };
    for seed in 0..6 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(2, 24 << 20, 512);
        let mut table = Table::random("k", 3000, 32, DType::F32, &mut random);
        table.rows = (0..3000 * 32u32).flat_map(|number| (number as f32).to_le_bytes()).collect();
        let checked = seed % 2 == 0;
        if seed > 1 {
            table = table.with_random_keys(checked, &mut random);
        }
        common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
        let mut options = patient().with_cache_bytes(400_000).with_cache_batch_rows(100);
        options.check_keys = checked && table.keys.is_some();
        let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
        let positions: Vec<u64> = (0..3000).step_by(37).collect();
        let bits = |positions: &[u64]| positions.iter().map(|&it| table.id(it) as u64).collect::<Vec<u64>>();
        let pinned = executor.pin("k", &bits(&positions)).unwrap();
        assert_eq!((pinned.pinned, pinned.missing, pinned.left), (positions.len() as u64, 0, 0), "{pinned:?}");
        for first in (0..3000).step_by(500).cycle().take(18) {
            looked_up(&executor, &table, &(first..first + 500).collect::<Vec<u64>>());
        }
        assert_eq!(looked_up(&executor, &table, &positions), positions.len() as u64);
        assert_eq!(executor.unpin("k", Some(&bits(&positions[..9]))).unwrap(), 9);
    }
}

#[test]
fn pins_of_tables_that_nobody_reads_any_more_give_their_lines_back() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, cached(1200).with_adopting());
    let ids = every(97, 50);
    executor.pin("t", &ids).unwrap();
    let mut table = fixture.table.clone();
    table.rows.iter_mut().for_each(|byte| *byte ^= 0x55);
    let standby = LoadOptions::default().with_standby();
    let second = common::try_load(&fixture.store, std::slice::from_ref(&table), &standby).unwrap();
    let upcoming = executor.prepare(&PrepareOptions::default().with_generation(second)).unwrap();
    fixture.store.switch(second, false).unwrap();
    executor.adopt(&upcoming, scaled(Duration::from_secs(5))).unwrap();
    drop(upcoming);
    let pinned = executor.pin("t", &ids[..30]).unwrap();
    assert_eq!((pinned.pinned, pinned.already), (30, 0), "{pinned:?}");
    assert_eq!(executor.cache_statistics().unwrap().unwrap().pinned, 30);
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let mut slot = plan.slot().unwrap().copied().unwrap();
    let mut rows = vec![0.0f32; 30 * plan.width()];
    let mut output = Output::new(OutputRows::F32(&mut rows), plan.width());
    let report = slot.lookup(&Batch::new(&ids[..30], 30), &mut output).unwrap();
    assert_eq!((report.ids_cached, report.ids_ssd), (30, 0), "{report:?}");
    for (row, &id) in rows.chunks(plan.width()).zip(&ids) {
        assert_eq!(row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(), table.row(id), "id {id}");
    }
}

#[test]
fn updated_rows_are_found_updated_though_their_rows_are_pinned() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let executor = fixture.attach(&gpu, cached(1200).with_overlay_bytes(1 << 20));
    let ids = every(97, 50);
    executor.pin("t", &ids).unwrap();
    let row = vec![0x21; ROW];
    fixture.store.update("t", &ids[..10], &row.repeat(10)).unwrap();
    let plan = executor.plan(&Fixture::features(), Fixture::options(1)).unwrap();
    let mut slot = plan.slot().unwrap().copied().unwrap();
    let mut rows = vec![0.0f32; 50 * plan.width()];
    let mut output = Output::new(OutputRows::F32(&mut rows), plan.width());
    let report = slot.lookup(&Batch::new(&ids[..], 50), &mut output).unwrap();
    assert_eq!((report.ids_cached, report.ids_ssd), (40, 0), "{report:?}");
    for (number, (found, &id)) in rows.chunks(plan.width()).zip(&ids).enumerate() {
        let wanted = if number < 10 { &row[..] } else { fixture.table.row(id) };
        assert_eq!(found.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(), wanted, "id {id}");
    }
    let warmed = executor.warm("t", &ids).unwrap();
    assert_eq!((warmed.in_memory, warmed.cached), (10, 40), "{warmed:?}");
}

#[test]
fn tables_without_cached_rows_are_named() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = common::store(1, 24 << 20, 512);
    let mut random = fastrand::Rng::with_seed(1);
    let tables = ["a", "b"].map(|name| Table::random(name, 1000, 32, DType::F32, &mut random));
    common::load(&store, &tables, &LoadOptions::default());
    let options = GpuOptions::default().with_cache_bytes(1 << 20).with_hbm_bytes(1000 * 128).with_hbm_rows("a", 1000);
    let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
    for refused in [executor.warm("a", &[1]).unwrap_err(), executor.pin("a", &[1]).unwrap_err()] {
        assert!(refused.to_string().contains("no row of table \"a\" is cached"), "{refused}");
    }
    assert_eq!(executor.warm("b", &[1, 2]).unwrap().cached, 2);
}
