//! What keysets and options can have that passes cannot do, in every mode, staged at once or prepared ahead: an error before anything
//! moves, or what was asked for.

mod fixture;

use std::collections::BTreeSet;

use fastrand::Rng;
use fixture::{Fixture, KINDS, Kind};
use warprow_passes::{CacheOptions, Keyset, PassError, PassMode, PassOptions, Passes};

const ROWS: u64 = 400;
const ROW: usize = 64;
const CACHE: CacheOptions = CacheOptions { num_blocks: 2, target_hit_rate: 0.5, max_num_evict: 1 };

fn fixture(kind: Kind) -> Fixture {
    Fixture::new(kind, ROWS, ROW as u32 / 4, 512, 11)
}

/// Both modes, with room for all rows and some more.
fn modes() -> [PassOptions; 2] {
    let memory = (ROWS + 100) * ROW as u64;
    [PassOptions::staged(memory), PassOptions::cached(memory, CACHE)]
}

fn begin(key: u64, row: &mut [u8]) {
    Rng::with_seed(key ^ 5).fill(row);
}

/// Trains the rows of a keyset, and compares them with the model before.
fn train(fixture: &mut Fixture, passes: &mut Passes, keyset: &Keyset, byte: u8) {
    let pass = passes.stage(keyset).unwrap();
    let different = |keys: &[u64]| keys.iter().copied().collect::<BTreeSet<u64>>();
    assert_eq!(different(pass.keys()), different(keyset.keys()));
    let mut rows = vec![0; pass.bytes()];
    pass.read(&mut rows).unwrap();
    for (key, row) in pass.keys().iter().zip(rows.chunks_exact(ROW)) {
        let mut new = vec![0; ROW];
        begin(*key, &mut new);
        assert!(fixture.model.get(key).unwrap_or(&new) == row, "the row of key {key} differs");
    }
    rows.iter_mut().for_each(|row| *row = row.wrapping_add(byte));
    fixture.model.extend(pass.keys().iter().copied().zip(rows.chunks_exact(ROW).map(<[u8]>::to_vec)));
    passes.finish(pass, &rows).unwrap();
}

/// A key that the table does not have, and that can be created.
fn absent(kind: Kind) -> u64 {
    match kind {
        Kind::Ids | Kind::Permuted => ROWS,
        Kind::U64 | Kind::I64 => 1 << 61 | 5,
    }
}

#[test]
fn keys_that_are_not_in_the_table_are_refused_ahead_as_at_once() {
    for kind in KINDS {
        for options in modes() {
            let mut fixture = fixture(kind);
            let all: Vec<u64> = fixture.model.keys().copied().collect();
            let good = fixture.keyset(all[5..50].to_vec());
            let bad = fixture.keyset(vec![all[0], absent(kind), all[1]]);
            let mut passes = Passes::open(&fixture.store, fixture::NAME, options).unwrap();
            let is_refused = |error: PassError| {
                let PassError::NewKeys { count, first, .. } = &error else { panic!("{kind:?}: {error}") };
                assert_eq!((*count, &first[..]), (1, &[absent(kind).to_string()][..]));
            };
            let before = passes.resident();
            for _ in 0..2 {
                // By one of both, and by `stage` in any case.
                if let Err(error) = passes.prefetch(&bad) {
                    is_refused(error);
                }
                is_refused(passes.stage(&bad).unwrap_err());
            }
            assert_eq!((passes.resident(), passes.totals().staged), (before, 0));
            // What another pass was prepared for is as it was.
            passes.prefetch(&good).unwrap();
            is_refused(passes.stage(&bad).unwrap_err());
            train(&mut fixture, &mut passes, &good, 1);
            assert_eq!(passes.totals().hits + passes.totals().read, 45);
            fixture.check("only what was trained");
        }
    }
}

/// Keys that are created in one pass are no new ones of the next, which was prepared when they were.
#[test]
fn keys_that_are_created_after_they_were_looked_for_ahead_are_found() {
    for kind in KINDS {
        for options in modes() {
            for behind in [false, true] {
                let mut fixture = fixture(kind);
                let is_staged = options.mode == PassMode::Staged;
                let options = if behind { options.clone().with_behind() } else { options.clone() };
                let all: Vec<u64> = fixture.model.keys().copied().collect();
                let new = absent(kind);
                let mut passes = Passes::open(&fixture.store, fixture::NAME, options.with_new_keys(begin)).unwrap();
                let first = fixture.keyset([&all[..50], &[new]].concat());
                let second = fixture.keyset([&all[25..75], &[new + 1, new]].concat());
                passes.prefetch(&first).unwrap();
                let pass = passes.stage(&first).unwrap();
                assert_eq!(pass.report().created, 1, "{kind:?}");
                passes.prefetch(&second).unwrap();
                let mut rows = vec![0; pass.bytes()];
                pass.read(&mut rows).unwrap();
                fixture.model.extend(pass.keys().iter().copied().zip(rows.chunks_exact(ROW).map(<[u8]>::to_vec)));
                // Durable here: the table is another from now on.
                passes.finish(pass, &rows).unwrap();
                passes.commit().unwrap();
                fixture.check("the first");
                train(&mut fixture, &mut passes, &second, 3);
                assert_eq!(passes.totals().rows, 51 + 52);
                passes.prefetch(&first).unwrap();
                passes.prefetch(&second).unwrap();
                train(&mut fixture, &mut passes, &first, 5);
                if is_staged {
                    assert_eq!(passes.totals().read, 0, "created rows stay in memory as all do");
                }
                passes.commit().unwrap();
                drop(passes);
                fixture.reopen().check("all");
            }
        }
    }
}

/// Content alone decides whose rows are handed out.
#[test]
fn what_was_found_ahead_is_that_keyset_s_alone() {
    for kind in KINDS {
        for options in modes() {
            let mut fixture = fixture(kind);
            let all: Vec<u64> = fixture.model.keys().copied().collect();
            let mut passes = Passes::open(&fixture.store, fixture::NAME, options.with_commit_every(0)).unwrap();
            let keys = all[10..90].to_vec();
            let ahead = fixture.keyset(keys.clone());
            let mut other = keys.clone();
            other[79] = all[91];
            let mut shuffled = keys.clone();
            shuffled.reverse();
            // A clone, the same anew, in another order, another of the same length, a part, with one twice.
            let staged = [
                ahead.clone(),
                fixture.keyset(keys.clone()),
                fixture.keyset(shuffled),
                fixture.keyset(other),
                fixture.keyset(keys[..79].to_vec()),
                fixture.keyset([&keys[..], &keys[..1]].concat()),
            ];
            for keyset in &staged {
                passes.prefetch(&ahead).unwrap();
                let duplicates = passes.stage(keyset).unwrap().report().duplicates;
                assert_eq!(duplicates, u64::from(keyset.len() == 81));
                passes.prefetch(&ahead).unwrap();
                train(&mut fixture, &mut passes, keyset, 7);
            }
            // Nor is it another's that is dropped, or never staged.
            passes.prefetch(&ahead).unwrap();
            passes.commit().unwrap();
            fixture.check("all of them");
            drop(passes);
        }
    }
}

/// The bits of a key are another key where keys are numbers of the other kind.
#[test]
fn a_keyset_of_the_other_kind_of_number_takes_over_nothing() {
    for options in modes() {
        let fixture = fixture(Kind::I64);
        let keys: Vec<u64> = fixture.model.keys().copied().filter(|key| key >> 63 == 1).take(9).collect();
        let mut passes = Passes::open(&fixture.store, fixture::NAME, options).unwrap();
        passes.prefetch(&fixture.keyset(keys.clone())).unwrap();
        assert!(matches!(passes.stage(&Keyset::new(keys)), Err(PassError::NewKeys { count: 9, .. })));
    }
}

#[test]
fn empty_keysets_are_passes_without_rows() {
    for kind in KINDS {
        for options in modes() {
            let mut fixture = fixture(kind);
            let all: Vec<u64> = fixture.model.keys().copied().collect();
            let empty = fixture.keyset(Vec::new());
            let some = fixture.keyset(all[..30].to_vec());
            let mut passes = Passes::open(&fixture.store, fixture::NAME, options.with_new_keys(begin)).unwrap();
            for turn in 0..4 {
                if turn % 2 == 0 {
                    passes.prefetch(&empty).unwrap();
                }
                let pass = passes.stage(&empty).unwrap();
                assert!(pass.is_empty() && pass.keys().is_empty() && pass.bytes() == 0);
                assert_eq!((pass.report().rows, pass.report().hit_rate()), (0, 0.0));
                pass.read(&mut []).unwrap();
                pass.read_parts(|_, _| -> Result<(), PassError> { panic!("there is no part") }).unwrap();
                passes.prefetch(&some).unwrap();
                passes.finish(pass, &[]).unwrap();
                train(&mut fixture, &mut passes, &some, turn);
            }
            assert_eq!((passes.touched(), passes.finished()), (30, 8));
            assert_eq!(passes.totals().commits, 4, "nothing is written for no rows");
            fixture.check("after empty passes");
        }
    }
}

#[test]
fn keys_that_come_again_are_one_row() {
    for kind in KINDS {
        for options in modes() {
            let mut fixture = fixture(kind);
            let all: Vec<u64> = fixture.model.keys().copied().collect();
            let new = absent(kind);
            let mut passes = Passes::open(&fixture.store, fixture::NAME, options.with_new_keys(begin)).unwrap();
            // The same one always, and a new one.
            let keyset = fixture.keyset([vec![all[7]; 300], vec![new; 200], vec![all[8]]].concat());
            passes.prefetch(&keyset).unwrap();
            let pass = passes.stage(&keyset).unwrap();
            let report = pass.report();
            assert_eq!((report.keys, report.rows, report.duplicates, report.created), (501, 3, 498, 1), "{kind:?}");
            drop(pass);
            train(&mut fixture, &mut passes, &keyset, 9);
            fixture.check("three rows");
        }
    }
}

#[test]
fn conflicting_options_are_refused_when_passes_are_opened() {
    let fixture = fixture(Kind::U64);
    let cached = |memory, cache| PassOptions::cached(memory, cache);
    let open = |options| Passes::open(&fixture.store, fixture::NAME, options);
    for rate in [-0.1, 1.1, f64::INFINITY, f64::NAN] {
        let refused = open(cached(1 << 20, CacheOptions { target_hit_rate: rate, ..CACHE })).unwrap_err();
        assert!(matches!(&refused, PassError::Options { what } if what.contains("between 0 and 1")), "{refused}");
    }
    for memory in [0, ROW as u64 * ROWS - 1] {
        let refused = open(PassOptions::staged(memory)).unwrap_err();
        assert!(matches!(refused, PassError::TooLarge { rows: ROWS, .. }), "{refused}");
    }
    // A cache that holds no row refuses each pass that has any.
    let all: Vec<u64> = fixture.model.keys().copied().collect();
    for memory in [0, ROW as u64 - 1] {
        let mut passes = open(cached(memory, CACHE)).unwrap();
        let refused = passes.stage(&fixture.keyset(all[..1].to_vec())).unwrap_err();
        assert!(matches!(refused, PassError::TooLarge { rows: 1, .. }), "{refused}");
        assert!(matches!(passes.prefetch(&fixture.keyset(all[..1].to_vec())), Err(PassError::TooLarge { .. })));
        assert!(passes.stage(&fixture.keyset(Vec::new())).unwrap().is_empty());
    }
    // More memory, blocks and threads than there can be are as many as there are rows to use them for.
    let most = CacheOptions { num_blocks: u32::MAX, target_hit_rate: 1.0, max_num_evict: u32::MAX };
    for options in [cached(u64::MAX, most), PassOptions::staged(u64::MAX)] {
        let mut passes = open(options.with_commit_every(u32::MAX)).unwrap();
        let pass = passes.stage(&fixture.keyset(all.clone())).unwrap();
        assert_eq!(pass.len() as u64, ROWS);
    }
    fixture.check("nothing was finished");
}

/// Updates of others are noticed though all was found ahead.
#[test]
fn others_updates_after_keys_were_found_ahead_are_noticed() {
    for kind in KINDS {
        for options in modes() {
            let mut fixture = fixture(kind);
            let key = *fixture.model.keys().nth(3).unwrap();
            let mut passes = Passes::open(&fixture.store, fixture::NAME, options).unwrap();
            passes.prefetch(&fixture.keyset(vec![key])).unwrap();
            fixture.store.update(fixture::NAME, &[key], &[9; ROW]).unwrap();
            fixture.model.insert(key, vec![9; ROW]);
            let refused = passes.stage(&fixture.keyset(vec![key])).unwrap_err();
            assert!(matches!(refused, PassError::Changed { how: "updated", .. }), "{refused}");
            assert!(matches!(passes.prefetch(&fixture.keyset(vec![key])), Err(PassError::Changed { .. })));
            drop(passes);
            fixture.reopen().check("theirs is the last");
        }
    }
}
