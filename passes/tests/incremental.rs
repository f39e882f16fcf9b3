//! What an incremental model has: the keys that were touched since the mark, and their rows, with the optimizer's state or without.

mod fixture;

use std::collections::BTreeSet;
use std::path::Path;

use fastrand::Rng;
use fixture::{Fixture, KINDS, Kind, Model};
use warprow_formats::TableFile;
use warprow_layout::RowSource;
use warprow_passes::{CacheOptions, ExportedElements, Keyset, PassError, PassOptions, Passes};

const DIM: u32 = 12;
const VECTOR: u32 = 4;

/// A trainer with state: vectors go against gradients, and how far is what the state says (Adagrad).
fn train(pass: &warprow_passes::Pass, seed: u64) -> Vec<u8> {
    let mut rows = vec![0; pass.bytes()];
    pass.read(&mut rows).unwrap();
    step(pass.keys(), &mut rows, seed);
    rows
}

fn step(keys: &[u64], rows: &mut [u8], seed: u64) {
    for (key, row) in keys.iter().zip(rows.chunks_exact_mut(DIM as usize * 4)) {
        let mut random = Rng::with_seed(key ^ seed << 50);
        let (vector, state) = row.split_at_mut(VECTOR as usize * 4);
        let state = &mut state.as_chunks_mut::<4>().0[..VECTOR as usize];
        for (x, sum) in vector.as_chunks_mut::<4>().0.iter_mut().zip(state) {
            let gradient = random.f32() - 0.5;
            let next = f32::from_le_bytes(*sum) + gradient * gradient;
            *x = (f32::from_le_bytes(*x) - gradient / (next.sqrt() + 1e-6)).to_le_bytes();
            *sum = next.to_le_bytes();
        }
    }
}

/// The keys and rows of an incremental model, as files say.
fn load(rows: &Path, keys: &Path, bytes: usize) -> Model {
    let file = TableFile::open(rows).unwrap();
    let table = &file.tables[0];
    let mut content = vec![0; table.rows as usize * bytes];
    file.rows(table).read(0, bytes, &mut content).unwrap();
    let text = std::fs::read(keys).unwrap();
    let from = text.len() - table.rows as usize * 8;
    let keys = text[from..].as_chunks().0.iter().map(|&key| u64::from_le_bytes(key));
    keys.zip(content.chunks_exact(bytes).map(<[u8]>::to_vec)).collect()
}

#[test]
fn it_has_what_was_touched_since_the_mark() {
    for (kind, staged) in KINDS.into_iter().zip([true, false, false, true]) {
        let mut fixture = Fixture::new(kind, 800, DIM, 512, 4);
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // Rows begin as numbers, not as any bits.
        let all: Vec<u64> = fixture.model.keys().copied().collect();
        let cache = CacheOptions { num_blocks: 1, target_hit_rate: 1.0, max_num_evict: 100 };
        let options = if staged { PassOptions::staged(1 << 20) } else { PassOptions::cached(250 * 48, cache) };
        let options = options.with_vector(VECTOR).with_journal(path("touched"));
        let mut random = Rng::with_seed(11);
        let mut touched: BTreeSet<u64> = BTreeSet::new();
        let mut late: BTreeSet<u64> = BTreeSet::new();
        let mut passes = Passes::open(&fixture.store, fixture::NAME, options.clone()).unwrap();
        for number in 0..7u64 {
            let keys: Vec<u64> = (0..200).map(|_| all[random.usize(..all.len())]).collect();
            let pass = passes.stage(&fixture.keyset(keys)).unwrap();
            if number == 0 {
                let zeros = vec![0; pass.bytes()];
                fixture.model.extend(pass.keys().iter().map(|&key| (key, vec![0; DIM as usize * 4])));
                passes.finish(pass, &zeros).unwrap();
                // The first is exported, and the mark set.
                let done = passes
                    .incremental(&path("0.npy"), Some(&path("0.keys.npy")), ExportedElements::Whole, false)
                    .unwrap();
                assert_eq!((done.rows as usize, done.dim), (passes.touched(), DIM));
                passes.mark().unwrap();
                assert_eq!(passes.touched(), 0);
                continue;
            }
            touched.extend(pass.keys());
            // Passes count from 1 on.
            late.extend(pass.keys().iter().filter(|_| number + 1 > 4));
            let rows = train(&pass, number);
            let keys = pass.keys().to_vec();
            for key in &keys {
                step(&[*key], fixture.model.get_mut(key).unwrap(), number);
            }
            for (key, row) in keys.iter().zip(rows.chunks_exact(DIM as usize * 4)) {
                assert!(fixture.model[key] == row, "the optimizer's state comes with the row");
            }
            passes.finish(pass, &rows).unwrap();
            assert_eq!(passes.finished(), number + 1);
            if number == 3 {
                // After a restart the journal knows what was touched.
                drop(passes);
                fixture = fixture.reopen();
                passes = Passes::open(&fixture.store, fixture::NAME, options.clone()).unwrap();
                assert_eq!(passes.touched(), touched.len());
            }
        }
        for (part, dim) in [(ExportedElements::Vector, VECTOR), (ExportedElements::Whole, DIM)] {
            let rows = path(&format!("{dim}.safetensors"));
            let keys = path(&format!("{dim}.npy"));
            let done = passes.incremental(&rows, Some(&keys), part, false).unwrap();
            assert_eq!((done.rows as usize, done.dim), (touched.len(), dim));
            let found = load(&rows, &keys, dim as usize * 4);
            assert_eq!(found.len(), touched.len());
            for (key, row) in &found {
                assert!(
                    touched.contains(key) && fixture.model[key][..dim as usize * 4] == row[..],
                    "{kind:?}, key {key}"
                );
            }
            let again = passes.incremental(&rows, Some(&keys), part, false).unwrap_err();
            assert!(matches!(again, PassError::File(_)), "what exists stays: {again}");
            passes.incremental(&rows, Some(&keys), part, true).unwrap();
        }
        // Of some passes, with the keys in the same file.
        let one = path("since.safetensors");
        let done = passes.incremental_since(4, &one, None, ExportedElements::Whole, false).unwrap();
        assert_eq!((done.rows as usize, done.dim), (late.len(), DIM));
        let bytes = std::fs::read(&one).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let whose = tensors.tensor(&format!("{}.keys", fixture::NAME)).unwrap();
        let whose: Vec<u64> = whose.data().as_chunks().0.iter().map(|&key| u64::from_le_bytes(key)).collect();
        assert!(whose.len() == late.len() && whose.iter().all(|key| late.contains(key)), "{kind:?}");
        let content = tensors.tensor(fixture::NAME).unwrap();
        for (key, row) in whose.iter().zip(content.data().chunks_exact(DIM as usize * 4)) {
            assert!(fixture.model[key] == row, "{kind:?}, key {key}");
        }
        assert_eq!(passes.incremental_since(7, &one, None, ExportedElements::Whole, true).unwrap().rows, 0);
        for (pass, says) in [(0, "forgot passes up to 1"), (8, "no pass 8")] {
            let error =
                passes.incremental_since(pass, &one, None, ExportedElements::Whole, true).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        drop(passes);
        fixture.reopen().check("after all");
        // Nothing is known of single passes without a journal.
        let fixture = Fixture::new(kind, 100, DIM, 512, 4);
        let mut passes = Passes::open(&fixture.store, fixture::NAME, PassOptions::staged(1 << 20)).unwrap();
        let error = passes.incremental_since(0, &one, None, ExportedElements::Whole, true).unwrap_err().to_string();
        assert!(error.contains("no journal"), "{error}");
    }
}

#[test]
fn keysets_come_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(path(name), bytes).unwrap();
    write("a.u32", [7u32, 3, 3, 9].iter().flat_map(|key| key.to_le_bytes()).collect());
    write("b.i64", [-7i64, 3].iter().flat_map(|key| key.to_le_bytes()).collect());
    write("cut.u32", vec![1, 0, 0, 0, 2, 0, 0]);
    write("keyset", vec![1, 0, 0, 0]);
    assert_eq!(Keyset::read_path(&path("a.u32")).unwrap(), Keyset::new(vec![7, 3, 3, 9]));
    assert_eq!(Keyset::read_path(&path("b.i64")).unwrap(), Keyset::signed(vec![-7, 3]));
    let spec = format!("keyset:{}:u32", path("keyset").display()).parse().unwrap();
    assert_eq!(Keyset::read(&spec).unwrap(), Keyset::new(vec![1]));
    for (name, says) in [("cut.u32", "cut off"), ("keyset", "what kind"), ("none.u32", "none.u32")] {
        let error = Keyset::read_path(&path(name)).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
    // What it says is not in the table is refused, and nothing is staged.
    let fixture = Fixture::new(Kind::Ids, 300, 4, 512, 1);
    let mut passes = Passes::open(&fixture.store, fixture::NAME, PassOptions::staged(1 << 20)).unwrap();
    let error = passes.stage(&Keyset::read_path(&path("b.i64")).unwrap()).unwrap_err().to_string();
    assert!(error.contains("such as -7"), "{error}");
    let pass = passes.stage(&Keyset::read_path(&path("a.u32")).unwrap()).unwrap();
    assert_eq!((pass.keys(), pass.report().duplicates), (&[3, 7, 9][..], 1));
}
