//! Tables that have a share of a cache in GPU memory: their rows stay whatever is looked up in others, over restarts and switches too.

use std::sync::Arc;
use std::time::Duration;

use warprow_gpu::{GpuError, GpuExecutor, GpuOptions};
use warprow_lookup::{Batch, Feature, Output, OutputRows, PlanOptions, Pooling, PrepareOptions};
use warprow_soft_controller::SoftController;
use warprow_store::{DType, LoadOptions, Store, StoreError};

use crate::common::{self, Table};
use crate::fixture::{gpu, patient, scaled};

/// Rows of each table, of 128 B.
const ROWS: u64 = 3000;
/// Bytes of a line, with its word.
const LINE: u64 = 136;
/// Lines of the share, and of the rest.
const SHARE: u64 = 2400 * LINE;
const REST: u64 = 600 * LINE;

fn tables() -> (Vec<Arc<SoftController>>, Store, [Table; 2]) {
    let (drives, store) = common::store(2, 24 << 20, 512);
    let tables = ["a", "b"].map(|name| filled(name, 0.0));
    common::load(&store, &tables, &LoadOptions::default());
    (drives, store, tables)
}

fn filled(name: &str, first: f32) -> Table {
    let mut table = Table::random(name, ROWS, 32, DType::F32, &mut fastrand::Rng::with_seed(1));
    table.rows = (0..ROWS as u32 * 32).flat_map(|number| (number as f32 + first).to_le_bytes()).collect();
    table
}

fn cached(share: Option<u64>) -> GpuOptions {
    let options = patient().with_cache_bytes(58_500 + SHARE + REST).with_cache_batch_rows(20);
    share.into_iter().fold(options, |options, share| options.with_table_cache("a", share))
}

/// How many of the ids the cache had. Each row is compared with the table's.
fn looked_up(executor: &GpuExecutor, table: &Table, ids: &[u64]) -> u64 {
    let feature = Feature::new("f", &table.spec.name).pooling(Pooling::None);
    let plan = executor.plan(&[feature], PlanOptions::default().with_max(500, 500)).unwrap();
    let mut slot = plan.slot().unwrap().copied().unwrap();
    let mut rows = vec![0.0f32; ids.len() * plan.width()];
    let mut output = Output::new(OutputRows::F32(&mut rows), plan.width());
    let report = slot.lookup(&Batch::new(ids, ids.len()), &mut output).unwrap();
    for (row, &id) in rows.chunks(plan.width()).zip(ids) {
        let found: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(found, table.row(id), "id {id} of {}", table.spec.name);
    }
    report.ids_cached
}

/// Looks all rows of a table up, some times.
fn pass_by(executor: &GpuExecutor, table: &Table) {
    for first in (0..ROWS).step_by(500).cycle().take(30) {
        looked_up(executor, table, &(first..first + 500).collect::<Vec<u64>>());
    }
}

#[test]
fn rows_of_a_table_with_a_share_stay_whatever_is_looked_up_in_others() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store, [a, b]) = tables();
    let ids: Vec<u64> = (0..ROWS).step_by(10).collect();
    for (share, stays) in [(None, false), (Some(SHARE), true)] {
        let executor = GpuExecutor::attach(&store, gpu.clone(), cached(share)).unwrap();
        assert_eq!(executor.warm("a", &ids).unwrap().cached, 300);
        pass_by(&executor, &b);
        let found = looked_up(&executor, &a, &ids);
        assert_eq!(found == 300, stays, "{share:?}: {found}");
        let statistics = executor.cache_statistics().unwrap().unwrap();
        assert!((2950..=3000).contains(&statistics.lines) && statistics.evictions > 1000, "{statistics:?}");
        executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
        assert_eq!(looked_up(&executor, &a, &ids), 0);
    }
}

#[test]
fn pins_lists_and_generations_keep_to_the_share() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store, [a, b]) = tables();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    let ids: Vec<u64> = (0..ROWS).step_by(10).collect();
    let executor = GpuExecutor::attach(&store, gpu.clone(), cached(Some(SHARE)).with_adopting()).unwrap();
    assert_eq!(executor.pin("a", &ids[..40]).unwrap().pinned, 40);
    executor.warm("a", &ids).unwrap();
    pass_by(&executor, &b);
    pass_by(&executor, &a);
    assert_eq!(looked_up(&executor, &a, &ids[..40]), 40);
    executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
    executor.warm("a", &ids).unwrap();
    executor.warm("b", &ids[..50]).unwrap();
    let saved = executor.save_cache(&path).unwrap();
    assert_eq!((saved.rows, saved.tables), (350, 2));
    executor.clear_cache(scaled(Duration::from_secs(5))).unwrap();
    let restored = executor.warm_from(&path).unwrap();
    assert!(restored.tables.iter().all(|table| table.warmed.cached == table.warmed.ids), "{restored:?}");
    assert_eq!((looked_up(&executor, &a, &ids), looked_up(&executor, &b, &ids[..50])), (300, 50));
    // Other rows under the same names: the share is the new table's.
    let others = ["a", "b"].map(|name| filled(name, 7.0));
    let second = common::try_load(&store, &others, &LoadOptions::default().with_standby()).unwrap();
    let upcoming = executor.prepare(&PrepareOptions::default().with_generation(second)).unwrap();
    store.switch(second, false).unwrap();
    executor.adopt(&upcoming, scaled(Duration::from_secs(5))).unwrap();
    drop(upcoming);
    let [a, b] = &others;
    assert_eq!(looked_up(&executor, a, &ids), 0);
    executor.warm("a", &ids).unwrap();
    pass_by(&executor, b);
    assert_eq!(looked_up(&executor, a, &ids), 300);
}

#[test]
fn shares_that_cannot_be_are_named() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store, _) = tables();
    let refused = |options| GpuExecutor::attach(&store, gpu.clone(), options).unwrap_err();
    let unknown = refused(cached(None).with_table_cache("shop", 10_000));
    assert!(matches!(unknown, GpuError::Store(StoreError::NoSuchTable { .. })), "{unknown:?}");
    for (options, words) in [
        (cached(Some(SHARE)).with_table_cache("a", 10_000), "two shares"),
        (cached(Some(1 << 30)), "come to 1073741824 bytes"),
        (cached(Some(SHARE)).with_hbm_bytes(ROWS * 128).with_hbm_rows("a", ROWS), "all its rows lie in GPU memory"),
        (patient().with_table_cache("a", 10_000), "the cache has 0"),
    ] {
        let refused = refused(options);
        assert!(matches!(&refused, GpuError::CacheShares(why) if why.contains(words)), "{refused:?}");
    }
    let small = refused(cached(Some(1000)));
    let GpuError::CacheShareTooSmall { table, bytes: 1000, needed } = small else { panic!("{small:?}") };
    assert_eq!((&table[..], needed), ("a", 8 * LINE));
    // A batch may have 500 different rows.
    let executor = GpuExecutor::attach(&store, gpu.clone(), cached(Some(needed))).unwrap();
    let plan = |executor: &GpuExecutor, table: &str| {
        let feature = Feature::new("f", table).pooling(Pooling::None);
        executor.plan(&[feature], PlanOptions::default().with_max(500, 500))
    };
    plan(&executor, "b").unwrap();
    let small = plan(&executor, "a").unwrap_err();
    let GpuError::CacheShareTooSmall { table, needed, .. } = small else { panic!("{small:?}") };
    assert_eq!(table, "a");
    let executor = GpuExecutor::attach(&store, gpu.clone(), cached(Some(needed))).unwrap();
    plan(&executor, "a").unwrap();
}
