//! After a plan is made, look-ups allocate nothing.

mod common;

use common::Table;
use warprow_lookup::HostExecutor;
use warprow_lookup::OutputBuffer;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions, Pooling};
use warprow_store::{DType, LoadOptions};

/// Nor is anything allocated by a prefetch and its look-up, once the slot's thread is there.
#[test]
fn a_prefetched_look_up_allocates_nothing() {
    let (_drives, store) = common::store(2, 16 << 20, 512);
    let table = Table::random("t", 5000, 128, DType::F32, &mut fastrand::Rng::with_seed(5));
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(100_000).with_depth(64)).unwrap();
    for pooling in [Pooling::None, Pooling::Sum] {
        let options = PlanOptions::default().with_max(64, 2048).with_prefetch();
        let plan = host.plan(&[Feature::new("f", "t").pooling(pooling).padding(7)], options).unwrap();
        let mut slot = plan.slot().unwrap();
        let mut random = fastrand::Rng::with_seed(6);
        let mut rows = vec![0f32; 2048 * 128];
        let mut mask = vec![0; 2048];
        for turn in 0..10 {
            let ids: Vec<i64> = (0..2048).map(|_| random.i64(-100..5100)).collect();
            let allocated = allocation_counter::measure(|| {
                slot.prefetch(&Batch::new(&ids, 64)).unwrap();
                let mut out = Output::new(OutputRows::F32(&mut rows), 128).with_mask(&mut mask);
                assert!(slot.lookup_prefetched(&mut out).unwrap().commands > 64);
            });
            assert!(turn == 0 || allocated.count_total == 0, "{pooling:?}: {allocated:?}");
        }
    }
}

#[test]
fn a_look_up_allocates_nothing() {
    let (_drives, store) = common::store(2, 16 << 20, 512);
    let table = Table::random("t", 5000, 128, DType::F32, &mut fastrand::Rng::with_seed(3));
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    for (pooling, cache) in [(Pooling::None, 0), (Pooling::Sum, 0), (Pooling::None, 200_000), (Pooling::Sum, 200_000)] {
        let options = HostOptions::default().with_dram_bytes(100_000).with_cache_bytes(cache).with_depth(64);
        let host = HostExecutor::attach(&store, options).unwrap();
        let feature = Feature::new("f", "t").pooling(pooling).padding(7);
        let plan = host.plan(&[feature], PlanOptions::default().with_max(64, 2048)).unwrap();
        let mut slot = plan.slot().unwrap();
        let mut random = fastrand::Rng::with_seed(4);
        let mut rows = vec![0f32; 2048 * 128];
        let mut mask = vec![0; 2048];
        for _ in 0..20 {
            let ids: Vec<i64> = (0..2048).map(|_| random.i64(-100..5100)).collect();
            let allocated = allocation_counter::measure(|| {
                let mut out = Output::new(OutputRows::F32(&mut rows), 128).with_mask(&mut mask);
                let report = slot.lookup(&Batch::new(&ids, 64), &mut out).unwrap();
                assert!(report.commands > 64, "{report:?}");
            });
            assert_eq!(allocated.count_total, 0, "{pooling:?}: {allocated:?}");
        }
    }
}

/// Nor by rows that land in the output, once a queue pair has kept it.
#[test]
fn a_look_up_into_a_buffer_allocates_nothing() {
    let (_drives, store) = common::store(2, 16 << 20, 512);
    let table = Table::random("t", 5000, 128, DType::F32, &mut fastrand::Rng::with_seed(7));
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(100_000).with_depth(64)).unwrap();
    let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_max(64, 2048)).unwrap();
    let mut slot = plan.slot().unwrap();
    let mut random = fastrand::Rng::with_seed(8);
    let mut output = OutputBuffer::allocate(&store, DType::F32, 2048 * 128).unwrap();
    for turn in 0..10 {
        let ids: Vec<i64> = (0..2048).map(|_| random.i64(-100..5100)).collect();
        let allocated = allocation_counter::measure(|| {
            let report =
                slot.lookup(&Batch::new(&ids, 64), &mut Output::new(OutputRows::Buffer(&mut output), 128)).unwrap();
            assert!(report.landed > 64, "{report:?}");
        });
        assert!(turn == 0 || allocated.count_total == 0, "{allocated:?}");
    }
}
