//! Random look-ups, against the naive one.

use std::sync::Arc;

use warprow_gpu::GpuExecutor;
use warprow_gpu::GpuOptions;
use warprow_gpu_queues::Gpu;
use warprow_lookup::{DedupeMethod, Feature, PlanOptions, Pooling};
use warprow_store::{DType, LoadOptions, Store};

use crate::common::random::{Case, random_features, random_tables};
use crate::common::{self, Table};
use crate::fixture::{Stream, check_report, gpu, one_batch, patient};

/// Half of the tables, with sparse keys; `checked`: with any fingerprints, for keys will be compared.
pub(crate) fn some_keyed(mut tables: Vec<Table>, checked: bool, random: &mut fastrand::Rng) -> Vec<Table> {
    for table in &mut tables {
        if random.bool() {
            *table = table.clone().with_random_keys(checked, random);
        }
    }
    tables
}

/// Random look-ups of random tables; `with` says how they are attached.
pub(crate) fn whole_lookups(gpu: &Arc<Gpu>, seed: u64, with: impl FnOnce(GpuOptions) -> GpuOptions) {
    whole_lookups_on(gpu, seed, common::store, with);
}

/// As [`whole_lookups`], on a store that `make` makes on so many drives of so many bytes with LBAs of that length.
pub(crate) fn whole_lookups_on<D>(
    gpu: &Arc<Gpu>,
    seed: u64,
    make: impl FnOnce(usize, u64, u32) -> (D, Store),
    with: impl FnOnce(GpuOptions) -> GpuOptions,
) {
    let mut random = fastrand::Rng::with_seed(seed);
    let lba = if random.bool() { 512 } else { 4096 };
    let (_drives, store) = make(random.usize(1..4), 24 << 20, lba);
    let checked = random.bool();
    let tables = some_keyed(random_tables(&mut random), checked, &mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let budget = |random: &mut fastrand::Rng| [0, random.u64(..600_000), 1 << 30][random.usize(..3)];
    let attach = patient().with_hbm_bytes(budget(&mut random)).with_dram_bytes(budget(&mut random));
    let mut options = attach.with_queue_sets(random.u32(1..4));
    options.check_keys = checked;
    options.check_rows = random.bool();
    if random.bool() {
        // What has no rows on drives is deduplicated too, unless it lies in GPU memory.
        options = options.with_direct_ids(0);
    }
    let executor = GpuExecutor::attach(&store, gpu.clone(), with(options)).unwrap();
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
        whole_lookups(&gpu, seed, |options| options);
    }
}

#[test]
fn one_kernel_and_several_match_the_naive_look_up() {
    let Some(gpu) = gpu() else { return };
    for (seed, ids) in (3000..).zip([4096, 0].repeat(10)) {
        eprintln!("seed {seed}: one kernel up to {ids} ids");
        whole_lookups(&gpu, seed, |options| options.with_one_kernel_ids(ids));
    }
}

#[test]
fn every_way_to_find_different_rows_matches_the_naive_look_up() {
    let Some(gpu) = gpu() else { return };
    for (seed, way) in
        (2000..).zip([DedupeMethod::Block, DedupeMethod::Bitmap, DedupeMethod::Hash, DedupeMethod::Radix].repeat(4))
    {
        eprintln!("seed {seed}: {way:?}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(random.usize(1..4), 24 << 20, 512);
        let tables = some_keyed(random_tables(&mut random), true, &mut random);
        common::load(&store, &tables, &LoadOptions::default());
        let attach = patient().with_hbm_bytes(random.u64(..200_000)).with_dram_bytes(random.u64(..600_000));
        let executor = GpuExecutor::attach(&store, gpu.clone(), attach.with_checked_keys()).unwrap();
        let stream = Stream::new(&gpu);
        let (features, options) = random_features(&tables, &mut random);
        let ids = if way == DedupeMethod::Block { 8192 } else { 40_000 };
        let options = options.with_max(1000, ids).with_dedupe(way);
        let plan = executor.plan(&features, options.clone()).unwrap();
        assert_eq!(plan.dedupe(), way);
        let slot = plan.slot().unwrap();
        for _ in 0..4 {
            one_batch((&gpu, &plan, &slot, &stream), &tables, &features, &options, &mut random);
        }
        if way == DedupeMethod::Block {
            let refused = executor.plan(&features, options.with_max(1000, 8193)).unwrap_err().to_string();
            assert!(refused.contains("8192 ids"), "{refused}");
        }
    }
}

/// Bags that a block pools each: of rows in GPU memory, or from drives, or in a cache.
#[test]
fn sums_of_long_bags_match_the_naive_look_up() {
    let Some(gpu) = gpu() else { return };
    for seed in 4000..4018 {
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(random.usize(1..3), 24 << 20, 512);
        let mut table = |name: &str| {
            let dtype = [DType::F32, DType::F16, DType::BF16][random.usize(..3)];
            let dim = [1, 8, 30, 128, 257, 500][random.usize(..6)];
            Table::random(name, random.u64(1..2000), dim, dtype, &mut random)
        };
        let tables = vec![table("a"), table("b")];
        common::load(&store, &tables, &LoadOptions::default());
        let attach = match seed % 3 {
            0 => patient().with_hbm_bytes(1 << 30),
            1 => patient().with_hbm_bytes(100_000),
            _ => patient().with_cache_bytes(32 << 20),
        };
        let executor = GpuExecutor::attach(&store, gpu.clone(), attach).unwrap();
        let stream = Stream::new(&gpu);
        let mut sums = Feature::new("b", "b").pooling(Pooling::Sum);
        sums.weighted = random.bool();
        let features = [Feature::new("a", "a").pooling(Pooling::Mean), sums];
        let options = PlanOptions::default().with_max(6, 12_000);
        let plan = executor.plan(&features, options.clone()).unwrap();
        let slot = plan.slot().unwrap();
        for _ in 0..4 {
            one_batch((&gpu, &plan, &slot, &stream), &tables, &features, &options, &mut random);
        }
    }
}

#[test]
fn arrays_of_this_process_are_copied_both_ways() {
    let Some(gpu) = gpu() else { return };
    for seed in 1000..1020 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(random.usize(1..3), 24 << 20, 512);
        let tables = some_keyed(random_tables(&mut random), true, &mut random);
        common::load(&store, &tables, &LoadOptions::default());
        let attach = patient().with_hbm_bytes(random.u64(..200_000)).with_dram_bytes(random.u64(..200_000));
        let attach = attach.with_checked_keys();
        let executor = GpuExecutor::attach(&store, gpu.clone(), attach).unwrap();
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
