//! Passes as files: what changes under them, what stops them, and what is larger than a window.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fastrand::Rng;
use safetensors::SafeTensors;
use warprow_layout::FormatOptions;
use warprow_passes::{BeginReport, CommitOptions, Keyset, PassError, PassProgress, begin, commit};
use warprow_soft_controller::{Namespace, RamBacking, SoftController};
use warprow_store::{DType, Device, LoadOptions, Store, TableLoad, TableSpec};

fn store(rows: u64, dim: u32, drive_bytes: u64, row_crc: bool) -> (Store, Vec<u8>) {
    let drives = ["drive0", "drive1"].map(|name| {
        let namespace = Namespace::new(RamBacking::new(drive_bytes).unwrap());
        Device::new(SoftController::builder().name(name).serial(name).namespace(namespace).build().unwrap(), 1)
    });
    let format = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let store = Store::create(&drives, &format, &Default::default()).unwrap();
    let mut content = vec![0; (rows * u64::from(dim) * 4) as usize];
    Rng::with_seed(7).fill(&mut content);
    let spec = TableSpec { row_crc, ..TableSpec::new("t", rows, dim, DType::F32) };
    let source = &content[..];
    let load = TableLoad::new(&spec, &source);
    store.load("m", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    (store, content)
}

fn content(store: &Store, row_bytes: usize) -> Vec<u8> {
    let rows = store.table("t").unwrap().rows as usize;
    let mut all = vec![0; rows * row_bytes];
    store
        .scan("t", 0..u64::MAX, &mut |rank, row| {
            all[rank as usize * row_bytes..][..row_bytes].copy_from_slice(row);
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

fn go_on(_: PassProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn stage(store: &Store, keys: &[u64], out: &Path) -> BeginReport {
    begin(store, "t", &Keyset::new(keys.to_vec()), out, true, &mut go_on).unwrap()
}

/// Where the rows stand in a staged file.
fn rows_at(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let rows = tensors.tensor("t").unwrap().data();
    rows.as_ptr() as u64 - bytes.as_ptr() as u64
}

/// Fills row `row` of a staged file.
fn fill(path: &Path, at: u64, row: u64, row_bytes: usize, byte: u8) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![byte; row_bytes], at + row * row_bytes as u64).unwrap();
}

#[test]
fn what_is_larger_than_a_window_goes_through_in_parts() {
    // 80 MiB of rows, where 64 are in memory at once.
    let dim = 4096u32;
    let rows = 5120u64;
    let row_bytes = dim as usize * 4;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.safetensors");
    for row_crc in [true, false] {
        let (store, mut expected) = store(rows, dim, 160 << 20, row_crc);
        let mut keys: Vec<u64> = (0..rows).collect();
        Rng::with_seed(3).shuffle(&mut keys);
        let mut seen = Vec::new();
        let begun = begin(&store, "t", &Keyset::new(keys.clone()), &path, true, &mut |progress| {
            seen.push(progress.done);
            ControlFlow::Continue(())
        });
        let begun = begun.unwrap();
        assert_eq!((begun.rows, begun.checked, seen), (rows, row_crc, vec![4096, 5120]));
        let at = rows_at(&path);
        let bytes = std::fs::read(&path).unwrap();
        for (place, &key) in keys.iter().enumerate() {
            let staged = &bytes[at as usize + place * row_bytes..][..row_bytes];
            assert!(staged == &expected[key as usize * row_bytes..][..row_bytes], "key {key}");
        }
        for place in (0..rows).step_by(7) {
            fill(&path, at, place, row_bytes, place as u8);
            expected[keys[place as usize] as usize * row_bytes..][..row_bytes].fill(place as u8);
        }
        let done = commit(&store, "t", &path, &CommitOptions::default(), &mut go_on).unwrap();
        assert_eq!(done.rows, rows);
        assert!(content(&store, row_bytes) == expected);
        assert!(store.verify("t", &mut |_| ControlFlow::Continue(())).unwrap().is_sound());
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_changes_nothing() {
    let dim = 64u32;
    let rows = 20_000u64;
    let row_bytes = dim as usize * 4;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.safetensors");
    let (store, before) = store(rows, dim, 64 << 20, true);
    let keys: Vec<u64> = (0..rows).rev().collect();
    let journal = folder.path().join("journal");
    let mut options = CommitOptions::default();
    options.journal = Some(journal.clone());
    for (what, shorter) in [("reading", false), ("writing", false), ("reading", true), ("writing", true)] {
        stage(&store, &keys, &path);
        let at = rows_at(&path);
        (0..rows).step_by(3).for_each(|row| fill(&path, at, row, row_bytes, 1));
        let mut changed = false;
        let error = commit(&store, "t", &path, &options, &mut |progress| {
            if progress.what == what && progress.done >= rows / 2 && !changed {
                changed = true;
                match shorter {
                    true => OpenOptions::new().write(true).open(&path).unwrap().set_len(at + 100).unwrap(),
                    false => (0..rows).for_each(|row| fill(&path, at, row, row_bytes, 9)),
                }
            }
            ControlFlow::Continue(())
        });
        let error = error.unwrap_err();
        assert!(changed && error.to_string().contains("changed while it was read"), "{what}, {shorter}: {error}");
        assert!(content(&store, row_bytes) == before, "{what}, {shorter}");
        assert_eq!(std::fs::metadata(&journal).unwrap().len(), 1536, "keys of a pass that did not come about");
    }
    // Stopped anywhere.
    stage(&store, &keys, &path);
    let at = rows_at(&path);
    (0..rows).for_each(|row| fill(&path, at, row, row_bytes, 5));
    let mut reports = 0;
    let counted = &mut |_: PassProgress| {
        reports += 1;
        ControlFlow::Continue(())
    };
    let mut dry = BTreeMap::new();
    for stop in 0.. {
        let mut told = 0;
        let done = commit(&store, "t", &path, &options, &mut |progress| {
            told += 1;
            *dry.entry(progress.what).or_insert(0) += 1;
            if told > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match done {
            Ok(done) => {
                assert_eq!((done.rows, done.pass), (rows, Some(1)));
                break;
            }
            Err(PassError::Stopped) => assert!(content(&store, row_bytes) == before, "stopped at report {stop}"),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(dry.len() >= 2, "{dry:?}");
    assert!(content(&store, row_bytes).iter().all(|&byte| byte == 5));
    assert!(begin(&store, "t", &Keyset::new(keys), &path, true, counted).is_ok() && reports > 0);
    assert!(matches!(
        begin(&store, "t", &Keyset::new(vec![1]), &path, true, &mut |_| ControlFlow::Break(())),
        Err(PassError::Stopped)
    ));
}
