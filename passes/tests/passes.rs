//! Passes against a map from keys to rows, in both modes.

mod fixture;

use fastrand::Rng;
use fixture::{Fixture, KINDS, Kind, Model};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_passes::{CacheOptions, NewKeys, Pass, PassError, PassMode, PassOptions, Passes};

/// What a pass has, compared with the model.
fn read(pass: &Pass, model: &Model) -> Vec<u8> {
    let mut rows = vec![0xEE; pass.bytes()];
    pass.read(&mut rows).unwrap();
    for (key, row) in pass.keys().iter().zip(rows.chunks_exact(pass.row_bytes())) {
        assert!(model.get(key).map(|row| &row[..]) == Some(row), "staged, the row of key {key} differs");
    }
    if pass.len() > 2 {
        let mut two = vec![0; 2 * pass.row_bytes()];
        pass.read_from(1, &mut two).unwrap();
        assert!(two == rows[pass.row_bytes()..3 * pass.row_bytes()]);
    }
    rows
}

/// What a new key's row begins with.
fn begin(key: u64, row: &mut [u8]) {
    Rng::with_seed(key ^ 77).fill(row);
}

/// Keys of the table, some more than once, and new ones if so asked.
fn keys(fixture: &Fixture, random: &mut Rng, most: usize, create: bool) -> Vec<u64> {
    let all: Vec<u64> = fixture.model.keys().copied().collect();
    // Some are in most passes.
    let mut keys: Vec<u64> = (0..random.usize(..most))
        .map(|_| all[if random.bool() { random.usize(..all.len() / 8) } else { random.usize(..all.len()) }])
        .collect();
    if create && random.u8(..3) == 0 {
        let new = random.u64(1..6);
        keys.extend((0..new).map(|i| match fixture.kind {
            Kind::Ids | Kind::Permuted => all.len() as u64 + i,
            Kind::U64 | Kind::I64 => random.u64(..) >> 1 | 1 << 62,
        }));
    }
    random.shuffle(&mut keys);
    keys
}

/// Panics at the first difference.
fn same(found: &Model, wanted: &Model, what: &str) {
    let differs = |key: &&u64| found.get(key) != wanted.get(key);
    let different: Vec<&u64> = found.keys().chain(wanted.keys()).filter(differs).take(10).collect();
    assert!(different.is_empty(), "{what}: {} rows and {}: {different:?}", found.len(), wanted.len());
}

/// Some passes, compared with the model at each step; then the store is opened anew and compared.
fn script(fixture: Fixture, options: &PassOptions, seed: u64, create: bool) -> Fixture {
    let what = format!("seed {seed}, {:?}, {options:?}", fixture.kind);
    let mut fixture = fixture;
    let mut random = Rng::with_seed(seed);
    let mut passes = Passes::open(&fixture.store, fixture::NAME, options.clone()).unwrap();
    let mut next = keys(&fixture, &mut random, 200, create);
    // What the table was after each pass; which of that was durable last.
    let mut history = vec![fixture.model.clone()];
    let mut durable = 0;
    for number in 1..=random.u32(2..9) {
        let keyset = fixture.keyset(next.clone());
        let pass = passes.stage(&keyset).unwrap_or_else(|error| panic!("{what}: {error}"));
        let report = pass.report();
        let mut model = fixture.model.clone();
        for &key in keyset.keys() {
            model.entry(key).or_insert_with(|| {
                let mut row = vec![0; fixture.dim as usize * 4];
                begin(key, &mut row);
                row
            });
        }
        let mut distinct = keyset.keys().to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let mut staged = pass.keys().to_vec();
        staged.sort_unstable();
        assert_eq!(staged, distinct, "{what}");
        assert_eq!(report.rows, distinct.len() as u64);
        assert_eq!(report.duplicates, (keyset.len() - distinct.len()) as u64);
        assert_eq!(report.hits + report.prefetched + report.read + report.created, report.rows, "{what}: {report:?}");
        assert_eq!(report.created as usize, model.len() - fixture.model.len(), "{what}");
        assert!((passes.resident() * passes.row_bytes()) as u64 <= options.memory);
        if create {
            // What was created is there from now on, whether the pass is finished or not: drop none.
            fixture.model = model;
        }
        let mut rows = read(&pass, &fixture.model);
        next = keys(&fixture, &mut random, 200, create);
        for _ in 0..random.u8(..3) {
            // Of another pass, now and then.
            let ahead = if random.u8(..4) > 0 { next.clone() } else { keys(&fixture, &mut random, 200, create) };
            passes.prefetch(&fixture.keyset(ahead)).unwrap();
        }
        assert!(matches!(passes.stage(&keyset), Err(PassError::PassOpen)));
        if random.u8(..6) == 0 && !create {
            drop(pass);
            continue;
        }
        // Of key and pass alone: the order of rows is the mode's.
        for (key, row) in pass.keys().iter().zip(rows.chunks_exact_mut(pass.row_bytes())) {
            let mut random = Rng::with_seed(key ^ u64::from(number) << 32);
            row.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3).wrapping_add(random.u8(..)));
        }
        let finished: Vec<u64> = pass.keys().to_vec();
        passes.finish(pass, &rows).unwrap_or_else(|error| panic!("{what}: {error}"));
        for (key, row) in finished.iter().zip(rows.chunks_exact(passes.row_bytes())) {
            fixture.model.insert(*key, row.to_vec());
        }
        if options.commit_every == 1 && !options.behind {
            same(&fixture.stored(), &fixture.model, &format!("{what}: after pass {number}"));
        }
        // Where there is no room for rows that are not durable, they become so before.
        history.push(fixture.model.clone());
        let stored = fixture.stored();
        let found = history.iter().rposition(|model| *model == stored);
        let found = found.unwrap_or_else(|| panic!("{what}: after pass {number} what is durable is no whole pass"));
        assert!(found >= durable, "{what}: pass {found} is durable, pass {durable} was");
        durable = found;
    }
    passes.commit().unwrap();
    drop(passes);
    let fixture = fixture.reopen();
    fixture.check(&what);
    fixture
}

fn options(random: &mut Rng, rows: u64, row_bytes: u64, create: bool) -> PassOptions {
    let cache =
        CacheOptions { num_blocks: random.u32(0..4), target_hit_rate: random.f64(), max_num_evict: random.u32(0..4) };
    let memory = random.u64(206..rows + 200) * row_bytes;
    let options = match random.u8(..3) {
        0 => PassOptions::staged((rows + 300) * row_bytes),
        _ => PassOptions::cached(memory, cache),
    };
    let options = options.with_commit_every(random.u32(0..3)).with_threads(random.usize(0..3));
    let options = if random.bool() { options.with_behind() } else { options };
    if create { options.with_new_keys(begin) } else { options }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, rng_seed: RngSeed::Fixed(0x5eed), max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn passes_are_a_map(seed: u64, kind in 0usize..4, create: bool, dim in prop_oneof![Just(3u32), Just(25), Just(128), Just(300)], large: bool) {
        let mut random = Rng::with_seed(seed);
        let rows = if create { 300 } else { random.u64(300..3000) };
        let fixture = Fixture::new(KINDS[kind], rows, dim, if large { 4096 } else { 512 }, seed);
        let options = options(&mut random, rows, u64::from(dim) * 4, create);
        script(fixture, &options, seed, create);
    }
}

/// Whatever the mode, the rows are the same.
#[test]
fn modes_give_the_same_rows() {
    for (kind, seed) in KINDS.into_iter().zip(1..) {
        let cache = CacheOptions { num_blocks: 2, target_hit_rate: 0.7, max_num_evict: 2 };
        let ways = [
            PassOptions::staged(1 << 20),
            PassOptions::cached(1 << 20, cache).with_behind(),
            PassOptions::cached(220 * 100, CacheOptions { num_blocks: 0, ..cache }),
            PassOptions::cached(600 * 100, cache).with_commit_every(0),
        ];
        let results = ways.map(|options| script(Fixture::new(kind, 2000, 25, 512, seed), &options, seed, false).model);
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{kind:?}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_moves() {
    for kind in KINDS {
        let fixture = Fixture::new(kind, 400, 16, 512, 9);
        let all: Vec<u64> = fixture.model.keys().copied().collect();
        let cache = CacheOptions { num_blocks: 2, target_hit_rate: 0.5, max_num_evict: 1 };
        let mut passes = Passes::open(&fixture.store, fixture::NAME, PassOptions::cached(100 * 64, cache)).unwrap();
        let absent = 1 << 61 | 5;
        let refused = passes.stage(&fixture.keyset(vec![all[0], absent, all[1], absent])).unwrap_err();
        let PassError::NewKeys { count, first, .. } = &refused else { panic!("{refused}") };
        assert_eq!((*count, &first[..]), (1, &[absent.to_string()][..]));
        let refused = passes.stage(&fixture.keyset(all[..101].to_vec())).unwrap_err();
        assert!(matches!(refused, PassError::TooLarge { rows: 101, memory: 6400, .. }), "{refused}");
        assert!(passes.prefetch(&fixture.keyset(all[..101].to_vec())).is_err());
        assert!(passes.prefetch(&fixture.keyset(vec![absent])).is_err());
        assert_eq!((passes.resident(), passes.totals()), (0, Default::default()));
        // A pass of exactly what there is room for, and no others' passes.
        let pass = passes.stage(&fixture.keyset(all[..100].to_vec())).unwrap();
        assert_eq!(pass.len(), 100);
        let mut others = Passes::open(&fixture.store, fixture::NAME, PassOptions::staged(1 << 20)).unwrap();
        let theirs = others.stage(&fixture.keyset(all[..3].to_vec())).unwrap();
        assert!(matches!(passes.finish(theirs, &[0; 192]), Err(PassError::NotThisPass)));
        assert!(matches!(passes.finish(pass, &[0; 63]), Err(PassError::Length { rows: 100, given: 63, .. })));
        fixture.check("nothing was finished");
        let refused = Passes::open(&fixture.store, fixture::NAME, PassOptions::staged(399 * 64)).unwrap_err();
        assert!(matches!(refused, PassError::TooLarge { rows: 400, .. }), "{refused}");
        let bad = PassOptions::cached(1 << 20, CacheOptions { target_hit_rate: f64::NAN, ..cache });
        assert!(matches!(Passes::open(&fixture.store, fixture::NAME, bad), Err(PassError::Options { .. })));
        for vector in [0, 17] {
            let bad = PassOptions::staged(1 << 20).with_vector(vector);
            assert!(matches!(Passes::open(&fixture.store, fixture::NAME, bad), Err(PassError::Options { .. })));
        }
        assert!(Passes::open(&fixture.store, "no such", PassOptions::staged(1 << 20)).is_err());
    }
}

#[test]
fn keys_that_cannot_be_created_are_refused() {
    for kind in KINDS {
        let fixture = Fixture::new(kind, 300, 16, 512, 5);
        let options =
            PassOptions::cached(1 << 20, CacheOptions { num_blocks: 1, target_hit_rate: 0.0, max_num_evict: 0 });
        let mut passes = Passes::open(&fixture.store, fixture::NAME, options.with_new_keys(begin)).unwrap();
        // A gap behind the ids; bits that are another number in the table.
        let keyset = match kind {
            Kind::Ids | Kind::Permuted => warprow_passes::Keyset::new(vec![300, 302]),
            Kind::U64 => warprow_passes::Keyset::signed(vec![-1]),
            Kind::I64 => warprow_passes::Keyset::new(vec![u64::MAX - 7]),
        };
        let refused = passes.stage(&keyset).unwrap_err();
        assert!(matches!(refused, PassError::Uncreatable { .. }), "{kind:?}: {refused}");
        assert_eq!(passes.resident(), 0);
        fixture.check("nothing was created");
    }
}

/// Created keys come with their pass and not before it.
#[test]
fn created_keys_are_durable_with_their_pass() {
    for kind in KINDS {
        let mut fixture = Fixture::new(kind, 300, 16, 512, 6);
        let before = fixture.model.clone();
        let options = match kind {
            Kind::Ids | Kind::U64 => PassOptions::staged(310 * 64),
            _ => PassOptions::cached(100 * 64, CacheOptions { num_blocks: 1, target_hit_rate: 0.0, max_num_evict: 0 }),
        };
        let mut passes = Passes::open(&fixture.store, fixture::NAME, options.with_new_keys(begin)).unwrap();
        let new: Vec<u64> = match kind {
            Kind::Ids | Kind::Permuted => vec![301, 300, 302],
            _ => vec![1 << 61, 1 << 60 | 7, 5 << 50],
        };
        let some: Vec<u64> = before.keys().copied().take(40).collect();
        let generation = passes.generation();
        let pass = passes.stage(&fixture.keyset([&new[..], &some].concat())).unwrap();
        assert_eq!((pass.len(), pass.report().created), (43, 3));
        assert!(fixture.stored() == before);
        drop(pass);
        assert!(fixture.stored() == before);
        let pass = passes.stage(&fixture.keyset([&some[..], &new].concat())).unwrap();
        assert_eq!(pass.report().created, 0, "they were created in memory");
        let mut rows = vec![0; pass.bytes()];
        pass.read(&mut rows).unwrap();
        for (key, row) in pass.keys().iter().zip(rows.chunks_exact(64)) {
            let mut wanted = before.get(key).cloned().unwrap_or(vec![0; 64]);
            if new.contains(key) {
                begin(*key, &mut wanted);
            }
            assert!(row == wanted);
        }
        rows.iter_mut().for_each(|byte| *byte ^= 0x5A);
        fixture.model.extend(pass.keys().iter().copied().zip(rows.chunks_exact(64).map(<[u8]>::to_vec)));
        passes.finish(pass, &rows).unwrap();
        assert_ne!(passes.generation(), generation);
        assert!(fixture.stored() == fixture.model);
        if kind == Kind::U64 {
            // 303 rows are there, and room for 310.
            let many: Vec<u64> = (0..8).map(|i| 3 << 59 | i).collect();
            let refused = passes.stage(&fixture.keyset(many)).unwrap_err();
            assert!(matches!(refused, PassError::TooLarge { rows: 311, .. }), "{refused}");
        }
        drop(passes);
        fixture.reopen().check("after a restart");
    }
}

/// Others' updates before the passes are kept, and those meanwhile are noticed.
#[test]
fn others_updates_are_not_lost() {
    let mut fixture = Fixture::new(Kind::Permuted, 1000, 16, 512, 3);
    for id in [3, 500] {
        fixture.store.update(fixture::NAME, &[id], &[id as u8; 64]).unwrap();
        fixture.model.insert(id, vec![id as u8; 64]);
    }
    let cache = CacheOptions { num_blocks: 1, target_hit_rate: 0.0, max_num_evict: 0 };
    let mut passes = Passes::open(&fixture.store, fixture::NAME, PassOptions::cached(1 << 20, cache)).unwrap();
    let pass = passes.stage(&fixture.keyset(vec![500, 501])).unwrap();
    read(&pass, &fixture.model);
    let rows = [7; 128];
    passes.finish(pass, &rows).unwrap();
    fixture.model.extend([(500, vec![7; 64]), (501, vec![7; 64])]);
    fixture.check("the other update is still there");
    fixture.store.update(fixture::NAME, &[500], &[9; 64]).unwrap();
    fixture.model.insert(500, vec![9; 64]);
    let refused = passes.stage(&fixture.keyset(vec![500])).unwrap_err();
    assert!(matches!(refused, PassError::Changed { how: "updated", .. }), "{refused}");
    drop(passes);
    fixture.reopen().check("theirs is the last");
}

/// Keys that updates created are the table's when passes begin, and no key is created by others meanwhile unnoticed.
#[test]
fn keys_that_updates_created_are_found() {
    for kind in [Kind::U64, Kind::I64] {
        let mut fixture = Fixture::new(kind, 300, 16, 512, 8);
        let create = |store: &warprow_store::Store, key: u64| {
            let options = warprow_store::UpdateOptions::default().with_created_keys();
            store.update_with(fixture::NAME, &[key], &[3; 64], &options).unwrap();
        };
        create(&fixture.store, 1 << 61);
        fixture.model.insert(1 << 61, vec![3; 64]);
        let cache = CacheOptions { num_blocks: 1, target_hit_rate: 0.0, max_num_evict: 0 };
        let mut passes = Passes::open(&fixture.store, fixture::NAME, PassOptions::cached(1 << 20, cache)).unwrap();
        fixture.check("it is in the table");
        let pass = passes.stage(&fixture.keyset(vec![1 << 61])).unwrap();
        read(&pass, &fixture.model);
        passes.finish(pass, &[4; 64]).unwrap();
        fixture.model.insert(1 << 61, vec![4; 64]);
        fixture.check("its row is trained");
        create(&fixture.store, 1 << 60);
        let refused = passes.stage(&fixture.keyset(vec![1 << 61])).unwrap_err();
        assert!(matches!(refused, PassError::Changed { .. }), "{refused}");
    }
}

/// Read ahead, so that nothing is left to read; and what is read ahead is no hit.
#[test]
fn the_next_pass_is_read_during_this_one() {
    let fixture = Fixture::new(Kind::Ids, 2000, 16, 512, 8);
    let cache = CacheOptions { num_blocks: 2, target_hit_rate: 1.0, max_num_evict: 100 };
    let mut passes = Passes::open(&fixture.store, fixture::NAME, PassOptions::cached(1500 * 64, cache)).unwrap();
    let keyset = |first: u64| fixture.keyset((first..first + 500).collect());
    let first = passes.stage(&keyset(0)).unwrap();
    assert_eq!(first.report().read, 500);
    passes.prefetch(&keyset(300)).unwrap();
    let rows = vec![1; first.bytes()];
    passes.finish(first, &rows).unwrap();
    let second = passes.stage(&keyset(300)).unwrap();
    let report = second.report();
    assert_eq!((report.hits, report.prefetched, report.read, report.inserted), (200, 300, 0, true));
    assert_eq!(passes.resident(), 800, "no row is there twice");
    assert_eq!(passes.totals().read, 800);
    assert_eq!(report.hit_rate(), 0.4);
}

#[test]
fn options_are_what_they_say() {
    let options = PassOptions::staged(5).with_commit_every(3).with_behind().with_vector(2).with_threads(4);
    assert!(matches!(options.mode, PassMode::Staged) && matches!(options.new_keys, NewKeys::Refuse));
    assert_eq!((options.commit_every, options.behind, options.vector, options.threads), (3, true, Some(2), 4));
}

#[test]
fn rows_are_handed_on_in_parts() {
    let fixture = Fixture::new(Kind::Permuted, 3000, 300, 512, 6);
    let mut passes = Passes::open(&fixture.store, fixture::NAME, PassOptions::staged(4 << 20)).unwrap();
    let pass = passes.stage(&fixture.keyset((0..3000).filter(|key| key % 5 != 0).collect())).unwrap();
    let mut rows = vec![0; pass.bytes()];
    let mut parts = Vec::new();
    let mut sizes = Vec::new();
    pass.read(&mut rows).unwrap();
    let put = |at: u64, part: &[u8]| {
        assert_eq!(at, parts.len() as u64);
        parts.extend_from_slice(part);
        sizes.push(part.len());
        Ok::<_, PassError>(())
    };
    pass.read_parts(put).unwrap();
    assert!(
        parts == rows && sizes.len() == 3 && sizes.iter().all(|size| size % 1200 == 0 && *size <= 1 << 20),
        "{sizes:?}"
    );
    for (key, row) in pass.keys().iter().zip(parts.chunks_exact(1200)) {
        assert!(fixture.model[key] == row, "key {key}");
    }
    // The first that does not want more ends it.
    let mut calls = 0;
    let refused = pass.read_parts(|_, _| {
        calls += 1;
        if calls == 2 { Err(PassError::PassOpen) } else { Ok(()) }
    });
    assert!(matches!(refused, Err(PassError::PassOpen)) && calls == 2);
}

#[test]
fn many_keys_are_found_by_several_threads() {
    let fixture = Fixture::new(Kind::U64, 90_000, 4, 512, 2);
    let all: Vec<u64> = fixture.model.keys().copied().collect();
    let mut random = Rng::with_seed(8);
    let mut keys: Vec<u64> = all.iter().copied().filter(|_| random.u8(..) < 240).collect();
    let different = keys.len() as u64;
    keys.extend_from_within(..50_000);
    random.shuffle(&mut keys);
    for threads in [1, 2, 5] {
        let options = PassOptions::staged(2 << 20).with_threads(threads);
        let mut passes = Passes::open(&fixture.store, fixture::NAME, options).unwrap();
        let pass = passes.stage(&fixture.keyset(keys.clone())).unwrap();
        assert_eq!((pass.report().rows, pass.report().duplicates), (different, 50_000), "{threads} threads");
        read(&pass, &fixture.model);
        // What was found ahead is what is staged.
        passes.prefetch(&fixture.keyset(keys.clone())).unwrap();
        drop(pass);
        let pass = passes.stage(&fixture.keyset(keys.clone())).unwrap();
        assert_eq!((pass.report().rows, pass.report().duplicates, pass.report().read), (different, 50_000, 0));
        read(&pass, &fixture.model);
        drop(pass);
        // Those that are not there come in their order, each once.
        let mut with_new = keys.clone();
        let new = [1 << 62 | 9, 1 << 62 | 4, 1 << 62 | 9, 1 << 62 | 7];
        [100, 40_000, 80_000, 130_000].into_iter().zip(new).for_each(|(at, key)| with_new.insert(at, key));
        let refused = passes.stage(&fixture.keyset(with_new)).unwrap_err();
        let PassError::NewKeys { count, first, .. } = refused else { panic!("{refused}") };
        assert_eq!((count, first), (3, [new[0], new[1], new[3]].map(|key| key.to_string()).to_vec()));
    }
}
