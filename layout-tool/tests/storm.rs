//! A small share of the storms of `docs/storms.md`: the command with random work, kills and bit rot, against a model.

use std::path::Path;

use nix::sys::statvfs::statvfs;
use tempfile::TempDir;
use warprow_tests::storm::{Lie, Options, Outcome, run};

fn options(folder: &Path, seed: u64, steps: u64) -> Options {
    let folder = folder.join(seed.to_string());
    Options::new(env!("CARGO_BIN_EXE_warprow").into(), folder, steps)
}

/// In memory, where there is enough of it: a kill does not ask what a disk was told to keep.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let free = statvfs(memory).map_or(0, |system| system.blocks_available().saturating_mul(system.fragment_size()));
    if free < 1 << 30 {
        return tempfile::tempdir().unwrap();
    }
    tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap()
}

/// Storms of these seeds, none of which finds anything.
fn storms(seeds: std::ops::Range<u64>) -> Outcome {
    let folder = folder();
    let mut total = Outcome::default();
    for seed in seeds {
        let options = options(folder.path(), seed, 40);
        let outcome = run(seed, &options);
        assert!(
            outcome.violation.is_none(),
            "{}\n{}\nagain: target/release/storm --seed {seed} --steps 40",
            outcome.log.join("\n"),
            outcome.violation.unwrap_or_default()
        );
        total.add(&outcome);
    }
    eprintln!("{}", total.account());
    total
}

#[test]
fn a_few_storms_find_nothing() {
    let total = storms(0..4);
    // That they blow at all. Where children may not be traced, fewer are killed.
    assert!(total.runs() > 800, "only {} runs", total.runs());
    assert!(total.kills() > 10, "only {} kills", total.kills());
    assert!(total.rows_read > 20_000, "only {} rows were read", total.rows_read);
    assert!(total.rots.values().sum::<u64>() > 5, "only these bits were flipped: {:?}", total.rots);
}

#[test]
fn a_few_other_storms_find_nothing() {
    storms(4..8);
}

#[test]
fn lies_are_noticed() {
    for lie in [Lie::LostUpdate, Lie::WrongRow] {
        let folder = folder();
        let storm = |seed: u64| run(seed, &Options { lie: Some(lie), ..options(folder.path(), seed, 12) });
        let noticed = (100..110).find(|&seed| storm(seed).violation.is_some());
        eprintln!("{lie:?}: {noticed:?}");
        assert!(noticed.is_some(), "{lie:?} goes unnoticed in ten storms");
    }
}
