//! What is refused, by which error, and that it names the thing. Nothing is changed by a refusal.

mod common;

use common::Table;
use half::f16;
use warprow_lookup::{
    Batch, BoundsCheck, Feature, HostExecutor, HostOptions, InvalidBatch, LookupError, MissingId, MissingPolicy,
    Output, OutputRows, PlanOptions, Pooling,
};
use warprow_store::{DType, LoadOptions, Store, StoreError};

fn tables() -> Vec<Table> {
    let mut random = fastrand::Rng::with_seed(5);
    let mut table = |name: &str, dim, dtype| Table::random(name, 50, dim, dtype, &mut random.fork());
    vec![table("wide", 8, DType::F32), table("narrow", 4, DType::F32), table("bytes", 8, DType::U8)]
}

fn host() -> (Store, HostExecutor) {
    let (_, store) = common::store(1, 16 << 20, 512);
    common::load(&store, &tables(), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    (store, host)
}

#[track_caller]
fn refused(host: &HostExecutor, features: &[Feature], options: PlanOptions, hints: &[&str]) {
    let error = host.plan(features, options).unwrap_err().to_string();
    for hint in hints {
        assert!(error.contains(hint), "{error:?} does not say {hint:?}");
    }
}

#[test]
fn plans_that_make_no_sense() {
    let (_store, host) = host();
    let options = PlanOptions::default;
    let sum = |table: &str| Feature::new("f", table).pooling(Pooling::Sum);
    refused(&host, &[], options(), &["features"]);
    refused(&host, &[Feature::new("f", "wrong")], options(), &["wrong", "wide, narrow, bytes"]);
    refused(&host, &[sum("wide"), Feature::new("g", "narrow")], options(), &["\"g\"", "\"f\"", "two plans"]);
    refused(&host, &[Feature::new("f", "wide").pooling(Pooling::Mean).weighted()], options(), &["\"f\"", "sums"]);
    refused(&host, &[Feature::new("f", "wide").weighted()], options(), &["sums"]);
    refused(&host, &[sum("bytes")], options().with_out(DType::U8), &["u8", "f32"]);
    refused(&host, &[Feature::new("f", "wide")], options().with_out(DType::I8), &["f32", "i8"]);
    refused(&host, &[Feature::new("f", "bytes")], options().with_out(DType::I8), &["u8", "i8"]);
    refused(&host, &[Feature::new("f", "wide")], options().with_slots(0), &["slots"]);
    refused(&host, &[Feature::new("f", "wide")], options().with_max(1, usize::MAX), &["max_ids"]);
    assert!(host.plan(&[Feature::new("f", "bytes")], options().with_out(DType::F16)).is_ok());
}

#[test]
fn batches_that_do_not_fit() {
    let (_store, host) = host();
    let features = [
        Feature::new("f", "wide").pooling(Pooling::Sum).weighted(),
        Feature::new("g", "narrow").pooling(Pooling::Mean).padding(-7),
    ];
    let plan = host.plan(&features, PlanOptions::default().with_max(4, 20)).unwrap();
    assert_eq!((plan.width(), plan.columns(0), plan.columns(1), plan.columns(2)), (12, Some(0..8), Some(8..12), None));
    let mut slot = plan.slot().unwrap();
    let before = host.metrics();
    let ids = [1i64; 20];
    let weights = [1.0; 20];
    let mut rows = vec![7.0; 48];
    let mut mask = [7; 20];
    let mut check = |batch: Batch<'_>, stride: usize, len: usize, masked: usize, wanted: InvalidBatch| {
        let mut out = Output::new(OutputRows::F32(&mut rows[..len]), stride).with_mask(&mut mask[..masked]);
        match slot.lookup(&batch, &mut out) {
            Err(LookupError::Invalid(error)) => assert_eq!(error, wanted),
            other => panic!("{other:?} instead of {wanted:?}"),
        }
    };
    let good = || Batch::new(&ids[..16], 4).with_weights(&weights[..16]);
    check(Batch { batch: 5, ..good() }, 12, 48, 16, InvalidBatch::Batch { given: 5, max: 4 });
    check(Batch::new(&[0i32; 21], 4), 12, 48, 20, InvalidBatch::Ids { given: 21, max: 20 });
    check(Batch { batch: 3, ..good() }, 12, 48, 16, InvalidBatch::Uneven { ids: 16, bags: 6 });
    check(Batch { batch: 0, ..good() }, 12, 48, 16, InvalidBatch::Uneven { ids: 16, bags: 0 });
    check(good().with_offsets(&[0i32; 7]), 12, 48, 16, InvalidBatch::OffsetCount { given: 7, features: 2, batch: 4 });
    let offset = |offsets: &[i64], index: usize, hint: &str| {
        let mut out = Output::new(OutputRows::F32(&mut []), 12);
        let mut slot = host.plan(&features, PlanOptions::default()).unwrap().slot().unwrap();
        match slot.lookup(&good().with_offsets(offsets), &mut out) {
            Err(LookupError::Invalid(error @ InvalidBatch::Offset { .. })) => {
                let text = error.to_string();
                assert!(
                    text.starts_with(&format!("offsets[{index}] is {}", offsets[index])) && text.contains(hint),
                    "{text}"
                );
            }
            other => panic!("{other:?}"),
        }
    };
    offset(&[1, 2, 3, 4, 5, 6, 7, 8], 0, "0");
    offset(&[0, 2, 1, 4, 5, 6, 7, 8], 2, "smaller");
    offset(&[0, 2, -1, 4, 5, 6, 7, 8], 2, "negative");
    offset(&[0, 2, 3, 4, 5, 6, 7, 17], 7, "number of ids");
    offset(&[0, 2, 3, 4, 5, 6, 7, 8, 15], 8, "number of ids");
    check(Batch { weights: None, ..good() }, 12, 48, 16, InvalidBatch::Weights { wanted: true });
    check(good().with_weights(&weights[..15]), 12, 48, 16, InvalidBatch::WeightCount { given: 15, ids: 16 });
    check(good(), 11, 48, 16, InvalidBatch::Stride { given: 11, width: 12 });
    check(good(), 12, 47, 16, InvalidBatch::OutputLength { given: 47, needed: 48 });
    check(good(), usize::MAX, 48, 16, InvalidBatch::OutputLength { given: 48, needed: usize::MAX });
    check(good(), 12, 48, 15, InvalidBatch::MaskLength { given: 15, needed: 16 });
    let wrong = slot.lookup(&good(), &mut Output::new(OutputRows::F16(&mut [f16::ZERO; 48]), 12)).unwrap_err();
    assert_eq!(wrong.to_string(), "the output has elements of type f16, the plan yields f32");
    assert!(rows.iter().all(|&x| x == 7.0) && mask.iter().all(|&x| x == 7), "the output is untouched");
    assert_eq!(host.metrics(), before);

    let unweighted = host.plan(&features[1..], PlanOptions::default()).unwrap();
    let wrong =
        unweighted.slot().unwrap().lookup(&good(), &mut Output::new(OutputRows::F32(&mut rows), 12)).unwrap_err();
    assert!(matches!(wrong, LookupError::Invalid(InvalidBatch::Weights { wanted: false })), "{wrong}");
}

#[test]
fn missing_ids_are_named_before_anything_is_read() {
    let (_store, host) = host();
    let features = [Feature::new("f", "wide"), Feature::new("g", "narrow").missing(MissingPolicy::Error).padding(-1)];
    let plan = host.plan(&features, PlanOptions::default()).unwrap();
    let mut slot = plan.slot().unwrap();
    let mut rows = vec![7.0; 64];
    let mut mask = vec![7; 8];
    let ids = [1i64, 50, -1, 2, 3, -1, 50, -2];
    let mut out = Output::new(OutputRows::F32(&mut rows), 8).with_mask(&mut mask);
    let Err(LookupError::MissingIds { report, positions }) = slot.lookup(&Batch::new(&ids, 1), &mut out) else {
        panic!("ids 50 and -2 are missing")
    };
    assert_eq!(positions, [6, 7], "those of the first feature are not errors, and padding is not missing");
    assert_eq!((report.ids, report.missing, report.padding, report.commands), (8, 4, 1, 0));
    assert!(rows.iter().all(|&x| x == 7.0) && mask.iter().all(|&x| x == 7), "the output is untouched");
    assert_eq!(host.metrics().lookups, 1);
    assert_eq!(host.metrics().missing, 4);
}

#[test]
fn missing_ids_are_told_of_as_features_want_it() {
    let (_store, host) = host();
    let feature = |bounds| Feature::new("f", "narrow").missing(MissingPolicy::Default).bounds(bounds).padding(-1);
    let features = [
        feature(BoundsCheck::Ignore),
        feature(BoundsCheck::Count),
        feature(BoundsCheck::Report),
        feature(BoundsCheck::Report),
    ];
    let plan = host.plan(&features, PlanOptions::default()).unwrap();
    let mut rows = vec![7.0; 64];
    let mut mask = vec![7; 12];
    // Rows of "narrow": 0 to 9; the third feature has all it asks for.
    let ids = [0i64, 1 << 40, -2, -2, 1, -1, 2, -1, 3, 4, -3, 1 << 41];
    let mut out = Output::new(OutputRows::F32(&mut rows), plan.width()).with_mask(&mut mask);
    let report = plan.slot().unwrap().lookup(&Batch::new(&ids, 1), &mut out).unwrap();
    assert_eq!((report.missing, report.padding), (3, 4));
    assert_eq!(report.first_missing, Some(MissingId { position: 10, id: -3 }));
    assert_eq!(mask, [1, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0]);
    let both = [feature(BoundsCheck::Ignore).missing(MissingPolicy::Error)];
    let text = host.plan(&both, PlanOptions::default()).unwrap_err().to_string();
    assert!(text.contains("\"f\"") && text.contains("choose one"), "{text}");
}

#[test]
fn slots_and_queues_run_out_by_name() {
    let drive = warprow_soft_controller::SoftController::builder()
        .name("few")
        .queue_pairs(3)
        .namespace(warprow_soft_controller::Namespace::new(warprow_soft_controller::RamBacking::new(16 << 20).unwrap()))
        .build()
        .unwrap();
    let store = Store::create(&common::devices(&[drive]), &Default::default(), &Default::default()).unwrap();
    common::load(&store, &tables(), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_queue_pairs(2)).unwrap();
    let feature = [Feature::new("f", "wide")];
    let error = host.plan(&feature, PlanOptions::default().with_slots(2)).unwrap_err();
    assert!(matches!(error, StoreError::Queues { slots: 2, queue_pairs: 2, free: 3, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("few") && text.contains("2 slots of 2 each need 4"), "{text}");

    // All three queues for look-ups; metadata's was given up, and comes back when they are gone.
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let plan = host.plan(&feature, PlanOptions::default().with_slots(3)).unwrap();
    let slots: Vec<_> = (0..3).map(|_| plan.slot().unwrap()).collect();
    let error = plan.slot().unwrap_err();
    assert!(matches!(error, StoreError::NoFreeSlot { slots: 3 }), "{error}");
    assert!(store.ranks("wide").is_err() || store.ranks("wide").unwrap().is_none());
    drop(slots);
    assert!(plan.slot().is_ok());
    drop(plan);
    common::load(
        &store,
        &[Table {
            spec: warprow_store::TableSpec { name: "more".into(), ..tables()[0].spec.clone() },
            ..tables().remove(0)
        }],
        &LoadOptions::default(),
    );
}

#[test]
fn an_empty_batch_is_valid() {
    let (_store, host) = host();
    for pooling in [Pooling::None, Pooling::Mean] {
        let plan = host.plan(&[Feature::new("f", "wide").pooling(pooling)], PlanOptions::default()).unwrap();
        let mut slot = plan.slot().unwrap();
        for offsets in [None, Some(&[0i64][..]), Some(&[][..])] {
            let batch = Batch::new(&[] as &[i64], 0);
            let batch = offsets.map_or(batch, |offsets| batch.with_offsets(offsets));
            let report = slot.lookup(&batch, &mut Output::new(OutputRows::F32(&mut []), 8)).unwrap();
            assert_eq!((report.ids, report.commands), (0, 0));
        }
    }
}
