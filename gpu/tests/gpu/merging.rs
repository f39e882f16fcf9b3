//! Rows of neighbouring LBAs in one command: by content, fewer commands, and bad blocks that fail no other rows.

use warprow_gpu::GpuReport;
use warprow_lookup::ReadMerging;
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{NvmOpcode, StatusCode};
use warprow_store::ReadCurve;

use crate::fixture::{Fixture, Flat, Stream, failed, gpu, patient, wait};
use crate::lookups::whole_lookups;

/// The read curve of a drive that takes 3.3 M commands and 14 GB a second: two rows of 512 B share a command over 14
/// LBAs.
fn flash() -> ReadMerging {
    ReadMerging::Curves(vec![ReadCurve::of_limits(3.3e6, 14e9).unwrap()])
}

#[test]
fn every_way_matches_the_naive_look_up() {
    let Some(gpu) = gpu() else { return };
    let ways = [ReadMerging::Neighbours, flash(), ReadMerging::Measured];
    for (seed, merging) in (3000..).zip(ways.iter().cycle().take(18)) {
        eprintln!("seed {seed}: {merging:?}");
        whole_lookups(&gpu, seed, |options| options.with_merging(merging.clone()));
    }
}

#[test]
fn rows_that_lie_close_share_commands_in_graphs_too() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let flat = Flat::new(&gpu, Fixture::ids(1000, &mut fastrand::Rng::with_seed(31)));
    let stream = Stream::new(&gpu);
    let report = |merging: ReadMerging| -> GpuReport {
        let slot = fixture.plan(&gpu, patient().with_merging(merging.clone()), 1).slot().unwrap();
        let report = flat.assert_found(&fixture, &slot, &stream, &merging);
        let (graph, captured) = flat.capture(&gpu, &slot, &stream);
        for _ in 0..3 {
            flat.reset();
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            let again = captured.poll().expect("it has ended").unwrap();
            assert!(flat.check(&fixture, &merging).is_empty());
            assert_eq!((again.commands, again.split, again.anomalies), (report.commands, 0, 0), "{merging:?}");
        }
        report
    };
    let [separate, neighbours, curve] = [ReadMerging::Separate, ReadMerging::Neighbours, flash()].map(report);
    assert_eq!((separate.commands, separate.bytes_read), (1000, 1000 * 512));
    // Nothing is read for nothing.
    assert!(neighbours.commands < separate.commands && neighbours.bytes_read == separate.bytes_read, "{neighbours:?}");
    // One row in five is wanted: windows of 16 LBAs hold three.
    assert!(curve.commands < 500 && curve.bytes_read > separate.bytes_read, "{curve:?}");
}

#[test]
fn a_bad_block_fails_the_rows_in_it_alone() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let stream = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(32);
    let slot = fixture.plan(&gpu, patient().with_merging(flash()), 1).slot().unwrap();
    let flat = Flat::new(&gpu, Fixture::ids(1000, &mut random));
    let wanted = flat.ids[500];
    let between =
        (0..).find(|id| !flat.ids.contains(id) && flat.ids.contains(&(id - 1)) && flat.ids.contains(&(id + 1)));
    let bad = |id: i64| {
        let lba = fixture.home(id as u64).1;
        let status = Fault::Status(StatusCode::UnrecoveredReadError.into());
        fixture.drives[0].faults().inject(Rule::new(status).io(NvmOpcode::READ).lbas(lba..lba + 1).always())
    };
    let rule = bad(wanted);
    flat.reset();
    let it = failed(wait(&flat.launch(&slot, &stream).unwrap()), &"a wanted block");
    assert_eq!(flat.check(&fixture, &"a wanted block"), [wanted]);
    assert_eq!((it.ids, it.report.split, it.first.command.1), (1, 1, fixture.home(wanted as u64).1), "{}", it.first);
    assert!(it.first.what.contains("Unrecovered Read Error"), "{}", it.first);
    fixture.drives[0].faults().remove(rule);
    // In a gap it fails none. (The pair around it may lie across two windows; then nobody reads it.)
    let rule = bad(between.expect("a gap"));
    let report = flat.assert_found(&fixture, &slot, &stream, &"a gap");
    assert!(report.split <= 1, "{report:?}");
    fixture.drives[0].faults().remove(rule);
    assert_eq!(flat.assert_found(&fixture, &slot, &stream, &"afterwards").split, 0);
}
