//! Look-ups that do without a part: the same rows, by more commands or doorbells.

use warprow_gpu::{Ablations, GpuOptions};

use crate::fixture::{Fixture, Flat, Stream, gpu, patient};
use crate::lookups::whole_lookups;

#[test]
fn match_the_naive_look_up() {
    let Some(gpu) = gpu() else { return };
    let with = Ablations::default();
    let without = [with.without_shared_commands(), with.without_shared_doorbells()];
    let both = with.without_shared_commands().without_shared_doorbells();
    for (seed, ablations) in (4000..4012).zip([without[0], without[1], both].into_iter().cycle()) {
        eprintln!("seed {seed}, {ablations:?}");
        whole_lookups(&gpu, seed, |options| options.with_ablations(ablations));
    }
}

/// Each id twice: two commands for it where neither deduplication nor an LBA in common saves one.
#[test]
fn repeats_are_read_as_often_as_they_are_asked_for() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let with = Ablations::default();
    for (ablations, rows, commands) in [
        (with, 500, 500),
        (with.without_deduplication(), 1000, 500),
        (with.without_shared_commands(), 500, 500),
        (with.without_deduplication().without_shared_commands(), 1000, 1000),
        (with.without_deduplication().without_shared_commands().without_shared_doorbells(), 1000, 1000),
    ] {
        let plan = fixture.plan(&gpu, patient().with_ablations(ablations), 1);
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        let mut random = fastrand::Rng::with_seed(31);
        for round in 0..10 {
            let mut ids = Fixture::ids(500, &mut random).repeat(2);
            random.shuffle(&mut ids);
            let flat = Flat::new(&gpu, ids);
            let report = flat.assert_found(&fixture, &slot, &stream, &(ablations, round));
            assert_eq!((report.rows_ssd, report.commands), (rows, commands), "{ablations:?}");
            assert!(!ablations.shared_doorbells || report.doorbells >= commands, "{report:?}");
        }
    }
    let refused = fixture.attach(&gpu, GpuOptions::default().with_ablations(with.without_deduplication()));
    let options = Fixture::options(1).with_dedupe(warprow_lookup::DedupeMethod::Bitmap);
    let error =
        refused.plan(&Fixture::features(), options).expect_err("a method that finds different rows").to_string();
    assert!(error.contains("Radix"), "{error}");
}
