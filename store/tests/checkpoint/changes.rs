use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use warprow_layout::DType;
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, LookupError, Output, OutputRows, PlanOptions, RowError, Slot,
};
use warprow_store::{AttachError, Store, StoreError};

use crate::files::{Tensor, checkpoint, folder, open, random_bytes, refused, stored};

/// Bytes of a row.
const ROW: usize = 160;

fn slot_of(store: &Store) -> Slot {
    let host = HostExecutor::attach(store, HostOptions::default()).unwrap();
    let options = PlanOptions::default().with_max(64, 64).with_out(DType::I8);
    host.plan(&[Feature::new("f", "t.weight")], options).unwrap().slot().unwrap()
}

/// Rows of ids; every one that comes with success, or beside a failure and not named by it, is right.
fn look(slot: &mut Slot, ids: &[i64], rows: &[u8]) -> Result<(), RowError> {
    let mut out = vec![0i8; ids.len() * ROW];
    let result = slot.lookup(&Batch::new(ids, ids.len()), &mut Output::new(OutputRows::I8(&mut out), ROW));
    let (failed, result) = match result {
        Ok(_) => (Vec::new(), Ok(())),
        Err(LookupError::RowsFailed { positions, source, .. }) => (positions, Err(source)),
        Err(other) => panic!("{other}"),
    };
    for (position, (&id, out)) in ids.iter().zip(out.chunks(ROW)).enumerate() {
        let wanted = &rows[id as usize * ROW..][..ROW];
        let is_right = out.iter().zip(wanted).all(|(&got, &wanted)| got.cast_unsigned() == wanted);
        let is_zero = out.iter().all(|&byte| byte == 0);
        assert!(if failed.contains(&position) { is_zero } else { is_right }, "id {id}");
    }
    result
}

/// What somebody does to a file, by its name; `Err`: it has to be noticed, and what is said of it.
type Change = (&'static str, fn(&Path), Result<(), &'static str>);

const CHANGES: [Change; 9] = [
    (
        "a row is overwritten",
        |path| {
            File::options().write(true).open(path).unwrap().write_all_at(&[1; ROW], 5000).unwrap();
        },
        Err("was written to"),
    ),
    (
        "it becomes shorter",
        |path| File::options().write(true).open(path).unwrap().set_len(9000).unwrap(),
        Err("became shorter (9000 bytes"),
    ),
    ("it is emptied", |path| drop(File::create(path).unwrap()), Err("became shorter (0 bytes")),
    (
        "it becomes longer",
        |path| {
            use std::io::Write;
            OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap();
        },
        Err("became longer"),
    ),
    (
        "another takes its name",
        |path| {
            let other = path.with_extension("new");
            std::fs::copy(path, &other).unwrap();
            std::fs::rename(&other, path).unwrap();
        },
        Err("was removed, or replaced by another file"),
    ),
    ("it is removed", |path| std::fs::remove_file(path).unwrap(), Err("was removed, or replaced")),
    ("it is renamed", |path| std::fs::rename(path, path.with_extension("old")).unwrap(), Err("is gone")),
    (
        "its rights change",
        |path| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        },
        Ok(()),
    ),
    ("it gets another name", |path| std::fs::hard_link(path, path.with_extension("link")).unwrap(), Ok(())),
];

#[test]
fn changes_of_a_file_are_noticed_and_no_wrong_row_is_given() {
    let mut random = fastrand::Rng::with_seed(6);
    for (what, change, outcome) in CHANGES {
        for how in ["direct=0", "direct=1", "direct=0,depth=1"] {
            let bytes: Vec<u8> = random_bytes(&mut random, 400 * ROW).iter().map(|byte| byte | 1).collect();
            let folder = folder();
            checkpoint(folder.path(), &[vec![Tensor::new("t.weight", "I8", &[400, ROW as u64], bytes.clone())]]);
            let path = folder.path().join("model-00000.safetensors");
            let store = match crate::files::try_open(folder.path(), how) {
                Err(error) if how == "direct=1" && error.to_string().contains("past the page cache") => {
                    eprintln!("skipped: {error}");
                    continue;
                }
                store => store.unwrap(),
            };
            let mut slot = slot_of(&store);
            let ids: Vec<i64> = (0..64).map(|_| random.i64(0..400)).collect();
            look(&mut slot, &ids, &bytes).unwrap();
            assert!(store.changed_files().is_empty());
            // Clocks of file systems tick by some milliseconds.
            std::thread::sleep(Duration::from_millis(20));
            change(&path);
            let Err(said) = outcome else {
                look(&mut slot, &ids, &bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(store.changed_files().is_empty(), "{what}");
                continue;
            };
            if said == "is gone" {
                // Names are looked at once a second.
                std::thread::sleep(Duration::from_millis(1100));
            }
            let mut seen = None;
            for _ in 0..2 {
                let error = look(&mut slot, &ids, &bytes).expect_err(what);
                let RowError::FileChanged(changed) = &error else { panic!("{what}, {how}: {error}") };
                assert!(
                    changed.what.contains(said) && changed.file.starts_with(folder.path()),
                    "{what}, {how}: {error}"
                );
                assert!(error.to_string().contains("attach it again"), "{error}");
                // It stays so.
                assert_eq!(*seen.get_or_insert(changed.clone()), *changed);
            }
            assert_eq!(store.changed_files(), Vec::from_iter(seen), "{what}");
            let error = store.scan("t.weight", 0..400, &mut |_, _| panic!("a row after {what}")).unwrap_err();
            assert!(matches!(error, StoreError::Attached(AttachError::Changed(_))), "{what}: {error}");
        }
    }
}

#[test]
fn a_change_of_the_scales_file_is_one_too() {
    let folder = folder();
    let codes = Tensor::new("t.weight", "F8_E4M3", &[40, 64], vec![0x38; 40 * 64]);
    let scales = Tensor::new("t.scale", "F8_E8M0", &[40, 2], vec![127; 80]);
    checkpoint(folder.path(), &[vec![codes], vec![scales]]);
    for how in ["direct=0", "direct=0,resident=1"] {
        let store = open(folder.path(), how);
        assert!(!stored(&store, "t.weight").is_empty());
        std::thread::sleep(Duration::from_millis(20));
        let file = File::options().write(true).open(folder.path().join("model-00001.safetensors")).unwrap();
        file.write_all_at(&[126], file.metadata().unwrap().len() - 1).unwrap();
        let result = store.scan("t.weight", 0..40, &mut |_, _| std::ops::ControlFlow::Continue(()));
        match how {
            "direct=0" => assert!(matches!(result, Err(StoreError::Attached(AttachError::Changed(_)))), "{result:?}"),
            // They were read when the file was opened.
            _ => result.unwrap(),
        }
    }
}

#[test]
fn a_file_that_somebody_writes_to_is_not_attached() {
    let folder = folder();
    checkpoint(folder.path(), &[vec![Tensor::new("t", "I8", &[4, 8], vec![1; 32])]]);
    let file = File::options().write(true).open(folder.path().join("model-00000.safetensors")).unwrap();
    file.lock().unwrap();
    let error = refused(folder.path(), "");
    assert!(
        matches!(error, AttachError::File(_)) && error.to_string().contains("locked by another process"),
        "{error}"
    );
    file.unlock().unwrap();
    let store = open(folder.path(), "");
    assert!(file.try_lock().is_err(), "whoever writes sees that it is in use");
    drop(store);
    file.try_lock().unwrap();
}
