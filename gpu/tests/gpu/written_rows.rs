//! Rows that go from queues' landing areas to the output, in plans that sort all ids: the same rows, masks and reports as by way of staging.

use warprow_gpu::{Ablations, GpuError};
use warprow_lookup::{DedupeMethod, FailedRows, MaskMeaning};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{NvmOpcode, StatusCode};

use crate::fixture::{Fixture, Flat, ROW, Stream, gpu, patient, wait};

/// Ids that one position has, and ids that several have.
fn ids(random: &mut fastrand::Rng) -> Vec<i64> {
    let mut ids = Fixture::ids(400, random);
    ids.extend_from_within(..40);
    ids.extend([ids[0]; 60]);
    random.shuffle(&mut ids);
    ids
}

/// Launched and from a graph, by way of the output and of staging alone, with rows on all tiers and on drives alone.
#[test]
fn rows_are_right_on_either_way() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let mut random = fastrand::Rng::with_seed(5);
    for (written, tiers) in [(true, false), (true, true), (false, false), (false, true)] {
        let what = (written, tiers);
        let ablations = if written { Ablations::default() } else { Ablations::default().without_written_rows() };
        let options = patient().with_ablations(ablations).with_queue_sets(2);
        let options = if tiers { options.with_hbm_bytes(300_000).with_dram_bytes(300_000) } else { options };
        let plan = Fixture::options(1).with_dedupe(DedupeMethod::Radix);
        let slot = fixture.attach(&gpu, options).plan(&Fixture::features(), plan).unwrap().slot().unwrap();
        let stream = Stream::new(&gpu);
        let mut flat = Flat::new(&gpu, ids(&mut random));
        for _ in 0..5 {
            flat.set_ids(ids(&mut random));
            let report = flat.assert_found(&fixture, &slot, &stream, &what);
            assert_eq!(report.ids_ssd == 500, !tiers, "{what:?}: {report:?}");
        }
        let (graph, ticket) = flat.capture(&gpu, &slot, &stream);
        for _ in 0..5 {
            flat.set_ids(ids(&mut random));
            flat.reset();
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            ticket.check().unwrap();
            assert_eq!(flat.check(&fixture, &what), [0i64; 0]);
        }
    }
}

/// Commands that fail, of rows that one position wants and of rows that several want: NaN in their places, and the mask tells them.
#[test]
fn rows_that_fail_are_filled_in() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let mut random = fastrand::Rng::with_seed(6);
    let plan = Fixture::options(1).with_dedupe(DedupeMethod::Radix).with_failed_rows(FailedRows::Nan);
    let plan = plan.with_mask(MaskMeaning::Failed);
    let slot = fixture.attach(&gpu, patient()).plan(&Fixture::features(), plan).unwrap().slot().unwrap();
    let stream = Stream::new(&gpu);
    for round in 0..10 {
        let flat = Flat::new(&gpu, ids(&mut random));
        let bad = Fault::Status(StatusCode::UnrecoveredReadError.into());
        fixture.drives[0].faults().inject(Rule::new(bad).io(NvmOpcode::READ).times(5));
        let ticket = flat.launch(&slot, &stream).unwrap();
        let Err(GpuError::RowsFailed { failed, .. }) = wait(&ticket) else { panic!("{round}") };
        fixture.drives[0].faults().clear();
        let (rows, mask) = flat.download();
        let mut lost = 0;
        for (position, (&id, row)) in flat.ids.iter().zip(rows.chunks(ROW)).enumerate() {
            match mask[position] {
                0 => assert_eq!(row, fixture.table.row(id as u64), "{round}: position {position}, id {id}"),
                _ => {
                    lost += 1;
                    let is_nan = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes).to_bits() == f32::NAN.to_bits();
                    assert!(row.as_chunks().0.iter().all(is_nan), "{round}: position {position}, id {id}");
                }
            }
        }
        assert_eq!((lost, failed >= 5), (failed, true), "{round}");
    }
}
