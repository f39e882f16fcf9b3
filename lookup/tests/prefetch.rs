//! Look-ups whose rows are fetched ahead: what a look-up at the time of the prefetch gives, whatever comes in between.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Table;
use common::random::{Case, random_features, random_tables};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_driver::DriverError;
use warprow_layout::FormatOptions;
use warprow_lookup::HostExecutor;
use warprow_lookup::{
    Batch, Feature, HostOptions, LookupError, Output, OutputRows, Plan, PlanOptions, Pooling, PrepareOptions, RowError,
    Slot,
};
use warprow_soft_controller::{Fault, Rule, SoftController};
use warprow_spec::{NvmOpcode, Status, StatusCode};
use warprow_store::{DType, LoadOptions, OpenOptions, Store, TableSpec};

/// Batches are prefetched and looked up in any order by the slots of a plan, some are forgotten, and some slots look up
/// at once.
fn ahead_of(seed: u64) {
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
    common::load(&store, &tables, &LoadOptions::default());
    let mut host = HostOptions::default().with_dram_bytes(random.u64(..600_000)).with_queue_pairs(random.u32(1..3));
    host.depth = [2, 16, 1023][random.usize(..3)];
    (host.check_rows, host.check_keys) = (random.bool(), checked);
    let host = HostExecutor::attach(&store, host).unwrap();
    for _ in 0..3 {
        let (features, options) = random_features(&tables, &mut random);
        let plan = host.plan(&features, options.clone().with_slots(3).with_prefetch()).unwrap();
        let mut slots: Vec<(Slot, Option<Case>)> = (0..3).map(|_| (plan.slot().unwrap(), None)).collect();
        for _ in 0..12 {
            let (slot, ahead) = &mut slots[random.usize(..3)];
            let mut new = || Case::random(&tables, &features, &options, plan.width(), false, &mut random);
            let Some(mut case) = ahead.take() else {
                let mut case = new();
                slot.prefetch(&case.arrays().0).unwrap();
                *ahead = Some(case);
                continue;
            };
            if random.u32(..4) == 0 {
                assert!(slot.forget_prefetched());
                case = Case::random(&tables, &features, &options, plan.width(), false, &mut random);
                let (batch, mut out) = case.arrays();
                slot.lookup(&batch, &mut out).unwrap();
            } else {
                let report = slot.lookup_prefetched(&mut case.arrays().1).unwrap();
                let wanted = &case.wanted;
                let counts = (report.ids, report.missing, report.padding, report.failed);
                assert_eq!(counts, (wanted.mask.len() as u64, wanted.missing, wanted.padding, 0));
                assert_eq!(report.first_missing, wanted.first_missing);
                assert_eq!(report.ids, report.padding + report.missing + report.ids_dram + report.ids_ssd);
                assert_eq!(report.unique as usize, case.unique);
                assert_eq!(report.unique, report.rows_dram + report.rows_ssd);
                assert_eq!(report.commands, report.rows_ssd - report.merges);
                assert_eq!(report.sq_doorbells > 0, report.commands > 0);
            }
            case.check(&(seed, &features, &options));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, rng_seed: RngSeed::Fixed(0xa4ead), ..ProptestConfig::default() })]

    #[test]
    fn match_the_naive_look_up(seed: u64) {
        ahead_of(seed);
    }
}

const ROWS: u64 = 500;
const DIM: usize = 32;
const HOT: u64 = 50;

/// A table of rows of 128 B in version `version`, of which 50 are in DRAM.
fn table(version: u64) -> Table {
    let mut spec = TableSpec::new("t", ROWS, DIM as u32, DType::F32);
    (spec.hot_rows, spec.row_crc) = (HOT, true);
    let rows = (0..ROWS * DIM as u64).flat_map(|i| ((version * 100_000 + i) as f32).to_le_bytes()).collect();
    Table { spec, rows, ranks: None, keys: None }
}

fn fixture() -> (Vec<Arc<SoftController>>, Store, Table) {
    let drives: Vec<_> = (0..2).map(|i| common::drive(&format!("drive{i}"), 16 << 20, 512)).collect();
    let open = OpenOptions::default().with_timeout(Duration::from_millis(300));
    let options = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let store = Store::create(&common::devices(&drives), &options, &open).unwrap();
    let table = table(0);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    (drives, store, table)
}

fn host() -> HostOptions {
    HostOptions::default().with_dram_bytes(HOT * 128)
}

fn plan_of(host: &warprow_lookup::HostExecutor, pooling: Pooling) -> Plan {
    let options = PlanOptions::default().with_max(64, 256).with_slots(2).with_adopt_room().with_prefetch();
    host.plan(&[Feature::new("f", "t").pooling(pooling)], options).unwrap()
}

fn ids() -> Vec<i64> {
    (0..64).map(|i| (i * 37 + i % 3) % ROWS as i64).chain([3, 250, 444, 250]).collect()
}

/// What the output must be: rows, or one sum for every two ids, which are exact.
fn wanted(table: &Table, ids: &[i64], pooling: Pooling) -> Vec<f32> {
    let rows = ids.iter().map(|&id| common::widen(DType::F32, table.row(id as u64)));
    match pooling {
        Pooling::None => rows.flatten().collect(),
        _ => {
            let rows: Vec<_> = rows.collect();
            rows.chunks(2)
                .flat_map(|pair| pair[0].iter().zip(&pair[1]).map(|(a, b)| a + b).collect::<Vec<_>>())
                .collect()
        }
    }
}

fn prefetch(slot: &mut Slot, ids: &[i64]) {
    // The caller's memory is its own again.
    let mut given = ids.to_vec();
    slot.prefetch(&Batch::new(&given, ids.len() / 2)).unwrap();
    given.fill(-1);
}

fn look(slot: &mut Slot, len: usize) -> Result<Vec<f32>, LookupError> {
    let mut rows = vec![7.0; len];
    slot.lookup_prefetched(&mut Output::new(OutputRows::F32(&mut rows), DIM)).map(|_| rows)
}

fn wait_for(slot: &mut Slot) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !slot.is_fetched() {
        assert!(Instant::now() < limit, "it was never fetched");
        std::thread::yield_now();
    }
}

#[test]
fn rows_are_read_before_they_are_looked_up() {
    let (drives, store, table) = fixture();
    let host = HostExecutor::attach(&store, host()).unwrap();
    for pooling in [Pooling::None, Pooling::Sum] {
        let plan = plan_of(&host, pooling);
        let mut slot = plan.slot().unwrap();
        let ids = ids();
        prefetch(&mut slot, &ids);
        wait_for(&mut slot);
        let fault = Fault::Status(Status::from(StatusCode::UnrecoveredReadError));
        for drive in &drives {
            drive.faults().inject(Rule::new(fault).io(NvmOpcode::READ).always());
        }
        let wanted = wanted(&table, &ids, pooling);
        assert_eq!(look(&mut slot, wanted.len()).unwrap(), wanted);
        let mut rows = vec![7.0; wanted.len()];
        let failed = slot.lookup(&Batch::new(&ids, ids.len() / 2), &mut Output::new(OutputRows::F32(&mut rows), DIM));
        assert!(matches!(failed, Err(LookupError::RowsFailed { .. })), "{failed:?}");
        drives.iter().for_each(|drive| drive.faults().clear());
    }
}

#[test]
fn a_look_up_sees_what_its_prefetch_saw() {
    let (_drives, store, mut table) = fixture();
    let host = HostExecutor::attach(&store, host()).unwrap();
    for pooling in [Pooling::None, Pooling::Sum] {
        let plan = plan_of(&host, pooling);
        let mut slot = plan.slot().unwrap();
        let ids = ids();
        prefetch(&mut slot, &ids);
        let before = wanted(&table, &ids, pooling);
        // A row in DRAM, and two on drives.
        for id in [3u64, 250, 444] {
            let row: Vec<u8> = (0..DIM).flat_map(|i| ((id as usize * 7 + i) as f32).to_le_bytes()).collect();
            store.update("t", &[id], &row).unwrap();
            table.rows[id as usize * DIM * 4..][..DIM * 4].copy_from_slice(&row);
        }
        assert_eq!(look(&mut slot, before.len()).unwrap(), before, "{pooling:?}");
        prefetch(&mut slot, &ids);
        let after = wanted(&table, &ids, pooling);
        assert_eq!(look(&mut slot, after.len()).unwrap(), after, "{pooling:?}");
        table = self::table(0);
        let all: Vec<u64> = (0..ROWS).collect();
        store.update("t", &all, &table.rows).unwrap();
    }
}

#[test]
fn a_look_up_reads_the_generation_of_its_prefetch() {
    let (_drives, store, first) = fixture();
    let host = HostExecutor::attach(&store, host()).unwrap();
    let plan = plan_of(&host, Pooling::None);
    let mut slot = plan.slot().unwrap();
    let ids = ids();
    let generation = plan.generation();
    prefetch(&mut slot, &ids);
    let second = table(1);
    common::load(&store, std::slice::from_ref(&second), &LoadOptions::default().with_replace());
    let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
    assert!(!host.adopt(upcoming, Duration::ZERO).unwrap(), "what was prefetched is still to be read");
    assert_ne!(plan.generation(), generation);
    let mut rows = vec![0.0; ids.len() * DIM];
    let report = slot.lookup_prefetched(&mut Output::new(OutputRows::F32(&mut rows), DIM)).unwrap();
    assert_eq!((rows, report.generation), (wanted(&first, &ids, Pooling::None), generation));
    prefetch(&mut slot, &ids);
    let second = wanted(&second, &ids, Pooling::None);
    assert_eq!(look(&mut slot, second.len()).unwrap(), second);
}

#[test]
fn a_drive_that_fails_fails_the_look_up() {
    let (drives, store, table) = fixture();
    let host = HostExecutor::attach(&store, host()).unwrap();
    for pooling in [Pooling::None, Pooling::Sum] {
        for fault in [Fault::Status(Status::from(StatusCode::UnrecoveredReadError)), Fault::Drop] {
            let plan = plan_of(&host, pooling);
            let mut slot = plan.slot().unwrap();
            let ids = ids();
            drives[0].faults().inject(Rule::new(fault).io(NvmOpcode::READ).nth(3));
            prefetch(&mut slot, &ids);
            let mut rows = vec![7.0; ids.len() * DIM];
            let mut mask = vec![7; ids.len()];
            let mut out = Output::new(OutputRows::F32(&mut rows), DIM).with_mask(&mut mask);
            let Err(LookupError::RowsFailed { report, positions, source }) = slot.lookup_prefetched(&mut out) else {
                panic!("rows failed")
            };
            let is_right = match fault {
                Fault::Drop => matches!(source, RowError::Drive(DriverError::TimedOut { .. })),
                _ => matches!(source, RowError::Drive(DriverError::Command { .. })),
            };
            assert!(is_right, "{source:?}");
            assert_eq!(report.failed, positions.len() as u64);
            assert!(!positions.is_empty() && positions.len() < ids.len());
            let mut right = wanted(&table, &ids, pooling);
            for &position in &positions {
                let row = if pooling == Pooling::None { position } else { position / 2 };
                right[row * DIM..][..DIM].fill(0.0);
            }
            assert_eq!(rows[..right.len()], right, "{pooling:?}");
            assert!((0..ids.len()).all(|id| mask[id] == u8::from(!positions.contains(&id))));
            // The queue comes back with the next.
            prefetch(&mut slot, &ids);
            let right = wanted(&table, &ids, pooling);
            assert_eq!(look(&mut slot, right.len()).unwrap(), right);
        }
    }
}

#[test]
fn a_slot_holds_one_batch() {
    let (_drives, store, table) = fixture();
    let host = HostExecutor::attach(&store, host()).unwrap();
    let plan = plan_of(&host, Pooling::None);
    let mut slot = plan.slot().unwrap();
    let ids = ids();
    let batch = Batch::new(&ids, 1);
    let right = wanted(&table, &ids, Pooling::None);
    assert!(matches!(look(&mut slot, right.len()), Err(LookupError::NothingPrefetched)));
    assert!(!slot.is_fetched() && !slot.forget_prefetched());
    prefetch(&mut slot, &ids);
    assert!(matches!(slot.prefetch(&batch), Err(LookupError::SlotHoldsBatch)));
    let mut rows = vec![7.0; right.len()];
    let busy = slot.lookup(&batch, &mut Output::new(OutputRows::F32(&mut rows), DIM));
    assert!(matches!(busy, Err(LookupError::SlotHoldsBatch)));
    // An output that does not fit loses nothing.
    assert!(matches!(look(&mut slot, 5), Err(LookupError::Invalid(_))));
    assert_eq!(look(&mut slot, right.len()).unwrap(), right);
    // Neither does a batch that does not fit take the slot.
    assert!(matches!(slot.prefetch(&Batch::new(&ids, 65)), Err(LookupError::Invalid(_))));
    assert!(matches!(look(&mut slot, right.len()), Err(LookupError::NothingPrefetched)));
    // Dropped with a batch under way, it goes back to its plan.
    prefetch(&mut slot, &ids);
    let other = plan.slot().unwrap();
    assert!(plan.slot().is_err());
    drop(slot);
    let mut slot = plan.slot().unwrap();
    drop(other);
    assert!(matches!(look(&mut slot, right.len()), Err(LookupError::NothingPrefetched)));
    slot.lookup(&batch, &mut Output::new(OutputRows::F32(&mut rows), DIM)).unwrap();
    assert_eq!(rows, right);

    let options = PlanOptions::default().with_max(64, 256);
    let without = host.plan(&[Feature::new("f", "t")], options).unwrap();
    assert!(matches!(without.slot().unwrap().prefetch(&batch), Err(LookupError::PrefetchNotPlanned)));
}
