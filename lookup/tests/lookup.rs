//! Whole look-ups on drives in memory, against a naive one.

mod common;

use common::random::{Case, random_features, random_tables};
use common::{Table, Wanted};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_lookup::HostExecutor;
use warprow_lookup::{Feature, HostOptions, LookupReport, PlanOptions, Slot, Stage};
use warprow_store::LoadOptions;

fn check_report(report: &LookupReport, wanted: &Wanted, unique_rows: usize) {
    assert_eq!(report.ids, wanted.mask.len() as u64);
    assert_eq!((report.missing, report.padding, report.failed), (wanted.missing, wanted.padding, 0));
    assert_eq!(report.first_missing, wanted.first_missing);
    assert_eq!(report.ids, report.padding + report.missing + report.failed + report.ids_dram + report.ids_ssd);
    assert_eq!(report.unique as usize, unique_rows);
    assert_eq!(report.unique, report.rows_dram + report.rows_ssd);
    assert_eq!(report.commands, report.rows_ssd - report.merges);
    assert!(report.bytes_read >= report.bytes_needed || report.merges > 0);
    assert_eq!(report.sq_doorbells > 0, report.commands > 0);
    assert_eq!(report.commands > 0, report.rows_ssd > 0);
    assert_eq!(report.stages.len(), Stage::ALL.len());
}

/// One random batch through `slot`, checked.
fn one_batch(
    slot: &mut Slot,
    tables: &[Table],
    features: &[Feature],
    options: &PlanOptions,
    width: usize,
    random: &mut fastrand::Rng,
) {
    let mut case = Case::random(tables, features, options, width, false, random);
    let (batch, mut out) = case.arrays();
    let report = slot.lookup(&batch, &mut out).unwrap();
    case.check(&(features, options));
    check_report(&report, &case.wanted, case.unique);
}

fn whole_lookups(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let lba = if random.bool() { 512 } else { 4096 };
    let (_drives, store) = common::store(random.usize(1..4), 24 << 20, lba);
    let checked = random.bool();
    let mut tables = random_tables(&mut random);
    for table in &mut tables {
        if random.bool() {
            *table = table.clone().with_random_keys(checked, &mut random);
        }
    }
    let memory = if random.bool() { 1 << 20 } else { 1 << 30 };
    common::load(&store, &tables, &LoadOptions::default().with_memory(memory));
    let mut host = HostOptions::default().with_dram_bytes(random.u64(..600_000)).with_queue_pairs(random.u32(1..3));
    host.depth = [1, 2, 16, 1023][random.usize(..4)];
    host.check_rows = random.bool();
    host.check_keys = checked;
    let host = HostExecutor::attach(&store, host).unwrap();
    for _ in 0..4 {
        let (features, options) = random_features(&tables, &mut random);
        let plan = host.plan(&features, options.clone()).unwrap();
        let mut slot = plan.slot().unwrap();
        for _ in 0..4 {
            one_batch(&mut slot, &tables, &features, &options, plan.width(), &mut random);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn match_the_naive_look_up(seed: u64) {
        whole_lookups(seed);
    }
}

#[test]
fn slots_look_up_side_by_side() {
    let mut random = fastrand::Rng::with_seed(77);
    let (_drives, store) = common::store(2, 24 << 20, 512);
    let tables = random_tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(20_000)).unwrap();
    let (features, options) = random_features(&tables, &mut random);
    let plan = host.plan(&features, options.clone().with_slots(3)).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let mut slot = plan.slot().unwrap();
            let tables = &tables;
            let features = &features;
            let options = &options;
            let width = plan.width();
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                (0..40).for_each(|_| one_batch(&mut slot, tables, features, options, width, &mut random));
            });
        }
    });
    let metrics = host.metrics();
    assert_eq!(metrics.lookups, 120);
    assert_eq!(metrics.ids, metrics.padding + metrics.missing + metrics.ids_dram + metrics.ids_ssd);
    assert!(plan.slot().is_ok());
}
