//! What callers get in the place of rows that could not be read, and of ids that are errors.

use warprow_gpu::{GpuError, GpuSlot, Ticket};
use warprow_lookup::{
    Batch, FailedRows, Feature, HostExecutor, HostOptions, MaskMeaning, MissingId, MissingPolicy, Output, OutputRows,
    PlanOptions, Pooling,
};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{NvmOpcode, StatusCode};

use crate::fixture::{DIM, Fixture, Flat, ROW, ROWS, Stream, gpu, patient, wait};

/// Ids of which some are missing.
fn some_missing(random: &mut fastrand::Rng) -> Vec<i64> {
    let mut ids = Fixture::ids(500, random);
    for (position, missing) in [(7, -1), (200, ROWS as i64), (499, i64::MAX)] {
        ids[position] = missing;
    }
    ids
}

/// Each way of looking up: at once, ahead, from a graph, and ahead in a graph.
fn each_way(gpu: &warprow_gpu_queues::Gpu, flat: &Flat, slot: &GpuSlot, stream: &Stream, way: usize) -> Ticket {
    let ahead = || {
        let prefetched = flat.prefetch(slot, stream).unwrap();
        flat.launch_prefetched(slot, prefetched, stream).unwrap()
    };
    let mut ticket = None;
    let graph = match way {
        0 => return flat.launch(slot, stream).unwrap(),
        1 => return ahead(),
        2 => stream.capture(gpu, || ticket = Some(flat.launch(slot, stream).unwrap())),
        _ => stream.capture(gpu, || ticket = Some(ahead())),
    };
    stream.launch(gpu, &graph);
    stream.wait(gpu);
    ticket.unwrap()
}

/// Rows of failed ids are NaN, and the mask tells them; all else is as the host executor has it.
#[test]
fn failed_rows_are_nan_or_zeros_and_masks_tell_them() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let host = HostExecutor::attach(&fixture.store, HostOptions::default()).unwrap();
    let stream = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(1);
    let executor = fixture.attach(&gpu, patient().with_hbm_bytes(300_000).with_dram_bytes(300_000));
    for (pooling, rows, mask, way) in [Pooling::None, Pooling::Sum, Pooling::Mean].into_iter().flat_map(|pooling| {
        let rows = [FailedRows::Nan, FailedRows::Zeros];
        let both = rows.into_iter().flat_map(|rows| [MaskMeaning::Failed, MaskMeaning::Found].map(|mask| (rows, mask)));
        both.flat_map(move |(rows, mask)| (0..4).map(move |way| (pooling, rows, mask, way)))
    }) {
        let what = (pooling, rows, mask, way);
        let features = [Feature::new("f", "t").pooling(pooling)];
        let options = Fixture::options(1).with_failed_rows(rows).with_mask(mask);
        let slot = executor.plan(&features, options.clone().with_prefetch()).unwrap().slot().unwrap();
        let flat = Flat::new(&gpu, some_missing(&mut random));
        let mut wanted = vec![0.0f32; flat.ids.len() * DIM as usize];
        let mut out = Output::new(OutputRows::F32(&mut wanted), DIM as usize);
        let plan = host.plan(&features, options).unwrap();
        plan.slot().unwrap().lookup(&Batch::new(&flat.ids, flat.ids.len()), &mut out).unwrap();
        let bad = Fault::Status(StatusCode::UnrecoveredReadError.into());
        fixture.drives[0].faults().inject(Rule::new(bad).io(NvmOpcode::READ).times(5));
        let ticket = each_way(&gpu, &flat, &slot, &stream, way);
        let Err(GpuError::RowsFailed { failed, report, .. }) = wait(&ticket) else { panic!("{what:?}") };
        assert!(matches!(ticket.check(), Err(GpuError::RowsFailed { .. })) && ticket.check().is_ok());
        fixture.drives[0].faults().clear();
        assert!(failed > 0 && report.failed == failed && report.missing == 3, "{what:?}: {report:?}");
        let (got, mask_bytes) = flat.download();
        let got: Vec<f32> = got.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let mut lost = 0;
        for (position, &id) in flat.ids.iter().enumerate() {
            let own = |all: &[f32]| all[position * DIM as usize..][..DIM as usize].to_vec();
            let (got, wanted) = (own(&got), own(&wanted));
            let is_missing = !(0..ROWS as i64).contains(&id);
            let value = if rows == FailedRows::Nan { f32::NAN.to_bits() } else { 0 };
            let is_right = got.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
            let has_failed = match mask {
                MaskMeaning::Failed => mask_bytes[position] == 1,
                MaskMeaning::Found => mask_bytes[position] == 0 && !is_missing,
            };
            assert!(mask_bytes[position] <= 1 && !(has_failed && is_missing), "{what:?}: position {position}");
            match has_failed {
                true => assert!(got.iter().all(|x| x.to_bits() == value), "{what:?}: position {position}: {got:?}"),
                false => assert!(is_right, "{what:?}: position {position}, id {id}"),
            }
            lost += u64::from(has_failed);
        }
        assert_eq!(lost, failed, "{what:?}");
    }
    let error = executor.plan(
        &Fixture::features(),
        PlanOptions::default().with_out(warprow_store::DType::I8).with_failed_rows(FailedRows::Nan),
    );
    assert!(error.is_err());
}

/// Ids that are errors are told by the ticket, whichever kernels find them; all other rows are right.
#[test]
fn missing_ids_that_are_errors_are_told_by_the_ticket() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let stream = Stream::new(&gpu);
    for options in [patient(), patient().with_hbm_bytes(1 << 30), patient().with_dram_bytes(1 << 30)] {
        let executor = fixture.attach(&gpu, options);
        let features = [Feature::new("f", "t").missing(MissingPolicy::Error)];
        let slot = executor.plan(&features, Fixture::options(1).with_prefetch()).unwrap().slot().unwrap();
        let mut random = fastrand::Rng::with_seed(2);
        let mut flat = Flat::new(&gpu, some_missing(&mut random));
        for way in 0..4 {
            flat.reset();
            let ticket = each_way(&gpu, &flat, &slot, &stream, way);
            match wait(&ticket) {
                Err(error @ GpuError::MissingIds { missing: 3, first: MissingId { position: 7, id: -1 }, .. }) => {
                    assert!(error.to_string().contains("id -1 at position 7"), "{error}");
                }
                other => panic!("{way}: {other:?}"),
            }
            assert!(matches!(ticket.check(), Err(GpuError::MissingIds { .. })) && ticket.check().is_ok());
            assert_eq!(flat.check(&fixture, &way), [-1, ROWS as i64, i64::MAX]);
        }
        let good = Fixture::ids(500, &mut random);
        flat.set_ids(good);
        for way in 0..4 {
            flat.reset();
            let ticket = each_way(&gpu, &flat, &slot, &stream, way);
            let report = wait(&ticket).unwrap();
            assert!(ticket.check().is_ok() && report.first_missing.is_none());
            assert_eq!(flat.check(&fixture, &way), [0i64; 0]);
        }
        let mut copied = slot.copied().unwrap();
        let mut rows = vec![7.0f32; 2 * ROW / 4];
        let mut out = Output::new(OutputRows::F32(&mut rows), DIM as usize);
        let refused = copied.lookup(&Batch::new(&[1i64, -5], 2), &mut out);
        assert!(matches!(refused, Err(GpuError::MissingIds { missing: 1, .. })), "{refused:?}");
        assert!(rows.iter().all(|&x| x == 7.0), "as on the host");
    }
}
