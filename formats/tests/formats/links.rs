//! Symbolic links among files that a folder lists, and files that are none.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use warprow_formats::{FileError, FileErrorKind, LockedFile, TableFile, open_regular, tensor_types};

use crate::build::*;

const INDEX: &str = r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#;

fn shard(name: &str) -> Vec<u8> {
    safetensors(&[(name, "F8_E4M3", &[2, 3], &data(6, 7))])
}

fn tables(path: &Path) -> Result<Vec<String>, FileError> {
    TableFile::open(path).map(|file| file.tables.into_iter().map(|table| table.name).collect())
}

fn refused(path: &Path, link: &Path) {
    let error = tables(path).unwrap_err();
    assert_eq!((error.kind, &*error.file), (FileErrorKind::Elsewhere, link), "{error}");
    assert!(error.what.contains("is a symbolic link to") && !error.remedy.is_empty(), "{error:?}");
}

/// As `huggingface_hub` lays out its cache.
#[test]
fn a_snapshot_of_the_hugging_face_hub_is_read_through_its_links() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let snapshot = path("hub/models--org--m/snapshots/0123");
    fs::create_dir_all(&snapshot).unwrap();
    for (blob, name, bytes) in [
        ("h1", "1.safetensors", shard("a")),
        ("h2", "2.safetensors", shard("b")),
        ("h3", "model.safetensors.index.json", INDEX.into()),
    ] {
        write(&path("hub/models--org--m/blobs"), blob, bytes);
        symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    symlink(&snapshot, path("latest")).unwrap();
    for given in [&snapshot, &snapshot.join("model.safetensors.index.json"), &path("latest")] {
        assert_eq!(tables(given).unwrap(), ["a", "b"]);
    }
    // Another repository's are not its own.
    write(&path("hub/models--org--other/blobs"), "h1", shard("a"));
    fs::remove_file(snapshot.join("1.safetensors")).unwrap();
    symlink("../../../models--org--other/blobs/h1", snapshot.join("1.safetensors")).unwrap();
    refused(&snapshot, &snapshot.join("1.safetensors"));
}

#[test]
fn what_a_folder_lists_lies_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    write(dir.path(), "m/model.safetensors.index.json", INDEX);
    write(dir.path(), "m/2.safetensors", shard("b"));
    write(dir.path(), "m/kept/1", shard("a"));
    write(dir.path(), "secret.safetensors", shard("a"));
    symlink("kept/1", path("m/1.safetensors")).unwrap();
    assert_eq!(tables(&path("m")).unwrap(), ["a", "b"], "a link within the folder");
    fs::remove_file(path("m/1.safetensors")).unwrap();
    symlink("../secret.safetensors", path("m/1.safetensors")).unwrap();
    refused(&path("m"), &path("m/1.safetensors"));
    refused(&path("m/model.safetensors.index.json"), &path("m/1.safetensors"));
    // What the user names is what the user means.
    assert_eq!(tables(&path("m/1.safetensors")).unwrap(), ["a"]);
    write(dir.path(), "h/key", i64s([1, 2]));
    write(dir.path(), "vectors", data(24, 1));
    symlink("../vectors", path("h/emb_vector")).unwrap();
    refused(&path("h"), &path("h/emb_vector"));
}

#[test]
fn a_pipe_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("p.safetensors");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for error in
        [open_regular(&pipe).map(drop), tables(&pipe).map(drop), open_regular(Path::new("/dev/zero")).map(drop)]
    {
        assert_eq!(error.unwrap_err().kind, FileErrorKind::Special);
    }
    assert!(open_regular(&dir.path().join("absent")).unwrap_err().is_absent());
}

#[test]
fn the_types_of_tables_are_all_that_are_read() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(tensor_types(), "F32, F16, BF16, F8_E4M3, F8_E5M2, I8 or U8");
    for name in tensor_types().replace(" or ", ", ").split(", ") {
        let bytes = if name.ends_with("32") {
            24
        } else if name.ends_with("16") {
            12
        } else {
            6
        };
        let path = write(dir.path(), "t.safetensors", safetensors(&[("t", name, &[2, 3], &data(bytes, 1))]));
        assert_eq!(tables(&path).unwrap(), ["t"], "{name}");
    }
    let path = write(dir.path(), "t.safetensors", safetensors(&[("t", "I64", &[2, 3], &data(48, 1))]));
    assert_eq!(TableFile::open(&path).unwrap().skipped[0].1, format!("type I64: tables are of {}", tensor_types()));
    let file = TableFile::open(&write(dir.path(), "t.safetensors", shard("t"))).unwrap();
    assert!(file.lock().iter().all(LockedFile::is_locked));
}
