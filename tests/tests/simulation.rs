//! The simulation itself: that it repeats, that it notices drives that lie, and that it finds nothing else.

use warprow_tests::simulation::{Lie, Options, run};

fn lying(lie: Lie) -> Options {
    Options { lie: Some(lie), ..Options::default() }
}

#[test]
fn a_seed_repeats() {
    for seed in 1_000_000..1_000_020 {
        let first = run(seed, Options::default());
        let second = run(seed, Options::default());
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.events, second.events, "seed {seed}");
    }
    let hashes: std::collections::HashSet<u64> = (0..20).map(|seed| run(seed, Options::default()).hash).collect();
    assert_eq!(hashes.len(), 20, "every seed is another story");
}

#[test]
fn a_few_seeds_are_clean() {
    let mut incidents = 0;
    let mut rows = 0;
    for seed in 0..150 {
        let outcome = run(seed, Options::default());
        assert!(
            outcome.violation.is_none(),
            "{}; replay: cargo run --release -p warprow-tests --bin simulate -- --seed {seed}",
            outcome.violation.unwrap_or_default()
        );
        incidents += outcome.incidents;
        rows += outcome.rows_read;
    }
    // That it works at all.
    assert!(incidents > 150, "only {incidents} operations were disturbed");
    assert!(rows > 10_000, "only {rows} rows were read");
}

/// How many seeds it takes until the lie is noticed.
fn seeds_to_notice(lie: Lie, most: u64) -> Option<u64> {
    (0..most).find(|&seed| run(seed, lying(lie)).violation.is_some())
}

#[test]
fn lies_are_noticed() {
    for lie in [Lie::Flush, Lie::StaleRead, Lie::LostWrite, Lie::DamagedWrite] {
        let noticed = seeds_to_notice(lie, 100);
        eprintln!("{lie:?}: {noticed:?}");
        assert!(noticed.is_some(), "{lie:?} goes unnoticed in 100 seeds");
    }
}
