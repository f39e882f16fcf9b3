//! What is wrong: each file of a sound whole spoilt in turn.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;
use warprow_formats::{FileError, FileErrorKind, ReadOptions, TableFile};
use warprow_layout::RowSource;

use crate::build::*;

/// Opens a file, and reads all of it.
fn read_all(path: &Path, options: &ReadOptions) -> Result<(), FileError> {
    let file = TableFile::open_with(path, options)?;
    for table in &file.tables {
        if table.rows.saturating_mul(table.row_bytes() as u64) > 1 << 24 {
            continue;
        }
        file.rows(table).fill(0, &mut vec![0; table.rows as usize * table.row_bytes()])?;
        for key in file.keys(table)?.into_iter().flatten() {
            key?;
        }
        let _ = file.order(table);
    }
    Ok(())
}

fn refused(path: &Path, kind: FileErrorKind, says: &str) {
    let error = read_all(path, &ReadOptions::default()).expect_err(says);
    assert!(error.kind == kind && error.to_string().contains(says), "{says}: {error:?}");
    assert!(!error.remedy.is_empty(), "{error:?}");
}

#[test]
fn files_of_one_array() {
    let dir = tempfile::tempdir().unwrap();
    let flat = String::from_utf8_lossy(&npy_bytes("<f4", 2, 2, &[0; 16])).replace("(2, 2), ", "(4,),   ");
    let flat: Vec<u8> = std::iter::once(0x93).chain(flat.into_bytes().into_iter().skip(3)).collect();
    let sound = npy_bytes("<f4", 2, 2, &[0; 16]);
    let fortran: Vec<u8> = {
        let at = sound.windows(5).position(|window| window == b"False").unwrap();
        let mut bytes = sound.clone();
        bytes[at..at + 5].copy_from_slice(b"True ");
        bytes
    };
    // A second key in the spaces behind the first: NumPy takes the last.
    let again = |key: &str| {
        let at = sound.windows(4).position(|window| window == b", } ").unwrap() + 2;
        let mut bytes = sound.clone();
        bytes[at..at + key.len() + 1].copy_from_slice(format!("{key}}}").as_bytes());
        bytes
    };
    for (name, bytes, kind, says) in [
        ("shapes.npy", &again("'shape': (4, 1), ")[..], FileErrorKind::Damaged, "'shape' comes twice"),
        ("orders.npy", &again("\"fortran_order\": True, "), FileErrorKind::Damaged, "'fortran_order' comes twice"),
        ("types.npy", &again("'descr': '<f2', "), FileErrorKind::Damaged, "'descr' comes twice"),
        ("wrong.npy", &b"not numpy"[..], FileErrorKind::Damaged, "damaged .npy header"),
        (
            "short.npy",
            &npy_bytes("<f4", 2, 2, &[0; 15]),
            FileErrorKind::Damaged,
            "promises 16 bytes of data, 15 follow",
        ),
        (
            "long.npy",
            &npy_bytes("<f4", 2, 2, &[0; 17]),
            FileErrorKind::Damaged,
            "promises 16 bytes of data, 17 follow: more",
        ),
        (
            "vast.npy",
            &npy_bytes("<f4", u64::MAX, u64::from(u32::MAX) >> 2, &[0; 16]),
            FileErrorKind::Damaged,
            "cut off",
        ),
        ("wide.npy", &npy_bytes("<f4", 1, u64::MAX, &[0; 16]), FileErrorKind::Unsupported, "4 GiB"),
        ("double.npy", &npy_bytes("<f8", 2, 1, &[0; 16]), FileErrorKind::Unsupported, "its elements are <f8"),
        ("flat.npy", &flat, FileErrorKind::Unsupported, "a table is [rows, dim]"),
        ("fortran.npy", &fortran, FileErrorKind::Unsupported, "Fortran order"),
        ("model.pt", b"PK\x03\x04....", FileErrorKind::Unsupported, "archive"),
        ("pickle.pkl", b"\x80\x04......", FileErrorKind::Unsupported, "pickle"),
        ("empty.safetensors", b"", FileErrorKind::Damaged, "0 bytes"),
        ("empty.npz", b"", FileErrorKind::Damaged, "cut off"),
        ("no.npz", &[0; 64], FileErrorKind::Damaged, "no directory at its end"),
        ("no.parquet", b"PAR1", FileErrorKind::Damaged, ""),
        ("twice.safetensors", &twice(), FileErrorKind::Duplicate, "\"a\" is listed twice"),
    ] {
        refused(&write(dir.path(), name, bytes), kind, says);
    }
}

fn twice() -> Vec<u8> {
    safetensors(&[("a", "U8", &[1, 1], &[0]), ("a", "U8", &[1, 1], &[0])])
}

#[test]
fn archives() {
    let dir = tempfile::tempdir().unwrap();
    let array = npy_bytes("<f4", 50, 8, &data(1600, 1));
    for deflated in [false, true] {
        let twice = zip(&[("a.npy", &array, deflated), ("a.npy", &array, deflated)]);
        refused(&write(dir.path(), "t.npz", twice), FileErrorKind::Duplicate, "a.npy twice");
        let short = zip(&[("a.npy", &array[..1000], deflated)]);
        refused(&write(dir.path(), "t.npz", short), FileErrorKind::Damaged, "in a.npy");
        let sound = zip(&[("a.npy", &array, deflated)]);
        refused(&write(dir.path(), "t.npz", &sound[..sound.len() - 3]), FileErrorKind::Damaged, "no sound archive");
        refused(&write(dir.path(), "t.npz", &sound[5..]), FileErrorKind::Damaged, "no sound archive");
    }
    // What deflate cannot have made.
    let mut sound = zip(&[("a.npy", &array, true)]);
    let entry = sound.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    sound[entry + 24..entry + 28].copy_from_slice(&u32::MAX.wrapping_sub(1).to_le_bytes());
    refused(&write(dir.path(), "t.npz", sound), FileErrorKind::Damaged, "\"a.npy\" cannot be 4294967294 bytes");
    let zeros = vec![0; 10 << 20];
    let sound = zip(&[("a.npy", &npy_bytes("<f4", 10 << 10, 256, &zeros), true)]);
    assert!(sound.len() < 12 << 10, "packed as tightly as can be: {}", sound.len());
    read_all(&write(dir.path(), "t.npz", sound), &ReadOptions::default()).unwrap();
    // A bit of the packed data.
    let mut sound = zip(&[("a.npy", &array, true)]);
    sound[400] ^= 4;
    refused(&write(dir.path(), "t.npz", sound), FileErrorKind::Damaged, "a.npy");
}

/// What libraries for archives open without a word (`formats/src/zip.rs` names them), and what they refuse.
#[test]
fn archives_that_contradict_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let array = npy_bytes("<f4", 50, 8, &data(1600, 1));
    let sound = zip(&[("a.npy", &array, false)]);
    let entry = sound.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let end = sound.windows(4).position(|window| window == b"PK\x05\x06").unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = sound.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let len = array.len() as u32;
    let two = zip(&[("a.npy", &array, false), ("b.npy", &array, false)]);
    let second = two.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    let mut overlapping = two.clone();
    overlapping[second + 42..second + 46].fill(0);
    for (archive, says) in [
        ([b"more!", &sound[..]].concat(), "does not end before its end record"),
        ([&sound[..], b"more!"].concat(), "no directory at its end"),
        ([&sound[..end], b"more", &sound[end..]].concat(), "does not end before its end record"),
        (with(end + 8, &[7, 0, 7, 0]), "lists 1 members and should list 7"),
        (overlapping, "does not begin where the directory says"),
        (with(entry + 20, &[len + 9, len + 9].map(u32::to_le_bytes).concat()), "reaches into the directory"),
        (with(entry + 24, &(len + 9).to_le_bytes()), "is stored in another length than it has"),
        (with(entry + 42, &1u32.to_le_bytes()), "does not begin where the directory says"),
        (with(entry + 8, &[1]), "is encrypted"),
        (with(entry + 10, &[12]), "is packed by the method 12"),
        (with(entry + 46, &[0xff]), "is no text"),
    ] {
        refused(&write(dir.path(), "t.npz", archive), FileErrorKind::Damaged, says);
    }
    read_all(&write(dir.path(), "t.npz", sound), &ReadOptions::default()).unwrap();
}

/// Rows of a stored member are read where they stand; whoever has read them all is told that they are not what was written.
#[test]
fn stored_members_have_a_checksum_too() {
    let dir = tempfile::tempdir().unwrap();
    let rows = data(50 * 32, 1);
    let mut keys = warprow_formats::npy::head_of_list("<i8", 50);
    keys.extend(i64s(0..50));
    let sound = zip(&[("a.npy", &npy_bytes("<f4", 50, 8, &rows), false), ("k.npy", &keys, false)]);
    let flipped = |row: &[u8]| {
        let at = sound.windows(row.len()).position(|bytes| bytes == row).unwrap();
        let mut bytes = sound.clone();
        bytes[at + 3] ^= 4;
        write(dir.path(), "t.npz", bytes)
    };
    let compare = |path: &Path, read: &[(u64, usize)]| {
        let file = TableFile::open(path).unwrap();
        let source = file.rows(&file.tables[0]);
        for &(first, count) in read {
            source.read(first, 32, &mut vec![0; count * 32]).unwrap();
        }
        source.unchanged(&mut |_| ControlFlow::Continue(()))
    };
    let path = write(dir.path(), "t.npz", &sound);
    let orders: [&[(u64, usize)]; 4] = [&[(0, 50)], &[(20, 30), (0, 20)], &[(5, 1), (5, 1), (7, 3)], &[]];
    for read in orders {
        compare(&path, read).unwrap();
    }
    TableFile::open(&path).unwrap().with_keys("a", "k").unwrap();
    let path = flipped(&rows[32 * 6..32 * 7]);
    for read in orders {
        let error = compare(&path, read).unwrap_err();
        assert!(error.to_string().contains("the checksum of a.npy does not match"), "{read:?}: {error}");
    }
    let path = flipped(&i64s([7, 8]));
    compare(&path, orders[0]).unwrap();
    let error = TableFile::open(&path).unwrap().with_keys("a", "k").unwrap_err();
    assert!(error.kind == FileErrorKind::Damaged && error.what.contains("the checksum of k.npy"), "{error}");
}

#[test]
fn shards() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let map = |text: &str| fs::write(&index, format!(r#"{{"weight_map":{{{text}}}}}"#)).unwrap();
    write(dir.path(), "1.safetensors", safetensors(&[("a", "U8", &[1, 1], &[0])]));
    map(r#""a":"1.safetensors","b":"2.safetensors""#);
    refused(&index, FileErrorKind::Missing, "2.safetensors");
    map(r#""a":"1.safetensors","b":"1.safetensors""#);
    refused(&index, FileErrorKind::Disagree, "lists tensor \"b\" in it, and it is not there");
    map(r#""b":"1.safetensors""#);
    refused(&index, FileErrorKind::Disagree, "which the index does not list");
    map(r#""a":"1.safetensors","a":"1.safetensors""#);
    refused(&index, FileErrorKind::Damaged, "\"a\" is listed twice");
    // In time that grows as the list does.
    let names: Vec<String> = (0..80_000).map(|number| format!("t{number}")).collect();
    let tensors: Vec<_> = names[1..].iter().map(|name| (&**name, "U8", &[0u64, 1][..], &[][..])).collect();
    write(dir.path(), "1.safetensors", safetensors(&tensors));
    map(&names.iter().map(|name| format!(r#""{name}":"1.safetensors""#)).collect::<Vec<_>>().join(","));
    let began = std::time::Instant::now();
    refused(&index, FileErrorKind::Disagree, "lists tensor \"t0\" in it, and it is not there");
    map(&names.iter().rev().map(|name| format!(r#""{name}":"1.safetensors""#)).collect::<Vec<_>>().join(","));
    refused(&index, FileErrorKind::Disagree, "lists tensor \"t0\" in it, and it is not there");
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    for outside in ["../1.safetensors", "/etc/passwd", "x/1.safetensors", "..", "", "a\\\\b"] {
        map(&format!(r#""a":"{outside}""#));
        refused(&index, FileErrorKind::Damaged, "no plain file name");
    }
    fs::write(&index, "{").unwrap();
    refused(&index, FileErrorKind::Damaged, "EOF");
    fs::write(dir.path().join("other.safetensors.index.json"), "{}").unwrap();
    refused(dir.path(), FileErrorKind::Unclear, "several files");
}

#[test]
fn sparse_models() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("m");
    let put = |keys: usize, vectors: usize, slots: Option<usize>| {
        write(dir.path(), "m/key", vec![0; keys]);
        write(dir.path(), "m/emb_vector", vec![0; vectors]);
        let _ = fs::remove_file(folder.join("slot_id"));
        if let Some(slots) = slots {
            write(dir.path(), "m/slot_id", vec![0; slots]);
        }
    };
    put(17, 32, None);
    refused(&folder, FileErrorKind::Damaged, "17 bytes are no whole number of keys");
    put(16, 31, None);
    refused(&folder, FileErrorKind::Damaged, "31 bytes are no whole number of elements");
    put(24, 32, None);
    refused(&folder, FileErrorKind::Disagree, "8 elements do not make 3 rows");
    put(0, 32, None);
    refused(&folder, FileErrorKind::Disagree, "do not make 0 rows");
    put(16, 32, Some(24));
    refused(&folder, FileErrorKind::Disagree, "3 slot numbers, and key has 2 keys");
    put(16, 0, None);
    refused(&folder, FileErrorKind::Damaged, "empty");
    put(16, 32, None);
    let error = read_all(&folder, &ReadOptions { dim: Some(3), ..ReadOptions::default() }).unwrap_err();
    assert!(error.kind == FileErrorKind::Disagree && error.what.contains("2 rows of 4, not of 3"), "{error}");
    fs::remove_file(folder.join("key")).unwrap();
    refused(&folder, FileErrorKind::Missing, "key is missing");
}

#[test]
fn embedding_collections() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("c");
    let put = |meta: Vec<u8>| drop(write(dir.path(), "c/meta_data", meta));
    write(dir.path(), "c/key1", part(1, 1, &[0; 16]));
    write(dir.path(), "c/weight1", part(2, 1, &[0; 24]));
    put(meta(true, 1, 0, &[(1, 2, 3)]));
    read_all(&folder, &ReadOptions::default()).unwrap();
    let sound = meta(true, 1, 0, &[(1, 2, 3)]);
    for (meta, kind, says) in [
        (sound[..30].to_vec(), FileErrorKind::Damaged, "are not what 1 tables take"),
        (vec![], FileErrorKind::Damaged, "cut off"),
        (meta(true, 2, 0, &[(1, 2, 3)]), FileErrorKind::Damaged, "key type is 2"),
        (meta(true, 1, 7, &[(1, 2, 3)]), FileErrorKind::Damaged, "value type is 7"),
        (meta(true, 1, 0, &[(1, 2, 3), (1, 2, 3)]), FileErrorKind::Damaged, "lists table 1 twice"),
        (meta(true, 1, 0, &[(-1, 2, 3)]), FileErrorKind::Damaged, "of the id -1"),
        (meta(true, 1, 0, &[(1, 2, -3)]), FileErrorKind::Damaged, "rows of -3 elements"),
        (meta(true, 1, 0, &[(2, 2, 3)]), FileErrorKind::Missing, "key2 is missing"),
        (meta(true, 1, 0, &[(1, 3, 2)]), FileErrorKind::Disagree, "table 1 has 3 rows"),
        (meta(true, 1, 0, &[(1, u64::MAX, 3)]), FileErrorKind::Disagree, "18446744073709551615 rows"),
        (meta(true, 1, 1, &[(1, 2, 3)]), FileErrorKind::Disagree, "24 bytes"),
    ] {
        put(meta);
        refused(&folder, kind, says);
    }
    put(sound);
    for (name, bytes, kind, says) in [
        ("key1", part(2, 1, &[0; 16]), FileErrorKind::Damaged, "of kind 2, not 1"),
        ("weight1", part(2, 3, &[0; 24]), FileErrorKind::Disagree, "of table 3, not 1"),
        ("weight1", vec![0; 100], FileErrorKind::Damaged, "in its head"),
    ] {
        let before = fs::read(folder.join(name)).unwrap();
        write(&folder, name, bytes);
        refused(&folder, kind, says);
        write(&folder, name, before);
    }
}

#[test]
fn dynamicemb_dumps() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: usize| drop(write(dir.path(), name, vec![0; bytes]));
    put("t_emb_keys.rank_0.world_size_2", 16);
    put("t_emb_values.rank_0.world_size_2", 32);
    refused(dir.path(), FileErrorKind::Missing, "t_emb_keys.rank_1.world_size_2");
    put("t_emb_keys.rank_1.world_size_2", 8);
    refused(dir.path(), FileErrorKind::Missing, "t_emb_values.rank_1.world_size_2");
    put("t_emb_values.rank_1.world_size_2", 12);
    refused(dir.path(), FileErrorKind::Disagree, "3 elements, those of other ranks 4");
    put("t_emb_values.rank_1.world_size_2", 16);
    read_all(dir.path(), &ReadOptions::default()).unwrap();
    put("t_emb_keys.rank_0.world_size_4000000000", 16);
    refused(dir.path(), FileErrorKind::Disagree, "different world sizes");
}

/// Written by pyarrow with checksums of pages, one bit flipped then; and with two columns of one name.
#[test]
fn parquet_pages_are_checked_where_they_can_be_and_names_are_ones() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    refused(&golden.join("flipped_crc.parquet"), FileErrorKind::Damaged, "CRC checksum mismatch");
    refused(&golden.join("twice.parquet"), FileErrorKind::Unclear, "several columns of vectors called \"v\"");
}

/// Sound files of every format that is one file or a folder, with how to read them.
fn sound(dir: &Path) -> Vec<(std::path::PathBuf, Vec<std::path::PathBuf>)> {
    let array = npy_bytes("<f4", 9, 4, &data(144, 1));
    let alone = |path: std::path::PathBuf| (path.clone(), vec![path]);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let [packed, plain] =
        ["pyarrow.parquet", "plain2.parquet"].map(|text| write(dir, text, fs::read(golden.join(text)).unwrap()));
    let folder = |name: &str, files: Vec<(&str, Vec<u8>)>| {
        let paths = files.into_iter().map(|(file, bytes)| write(&dir.join(name), file, bytes)).collect();
        (dir.join(name), paths)
    };
    vec![
        alone(write(dir, "a.safetensors", safetensors(&[("a", "F32", &[9, 4], &data(144, 1))]))),
        alone(write(dir, "a.npy", &array)),
        alone(write(dir, "a.npz", zip(&[("a.npy", &array, false), ("b.npy", &array, true)]))),
        alone(packed),
        alone(plain),
        folder("m", vec![("key", i64s(0..9)), ("emb_vector", data(144, 1)), ("slot_id", i64s(0..9))]),
        folder(
            "c",
            vec![
                ("meta_data", meta(true, 1, 0, &[(1, 9, 4)])),
                ("key1", part(1, 1, &i64s(0..9))),
                ("weight1", part(2, 1, &data(144, 1))),
            ],
        ),
        folder(
            "d",
            vec![("t_emb_keys.rank_0.world_size_1", i64s(0..9)), ("t_emb_values.rank_0.world_size_1", data(144, 1))],
        ),
        folder(
            "s",
            vec![
                ("1.safetensors", safetensors(&[("a", "F32", &[9, 4], &data(144, 1))])),
                ("model.safetensors.index.json", br#"{"weight_map":{"a":"1.safetensors"}}"#.to_vec()),
            ],
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever bytes are changed or cut off in any file of any format: an error or a table, never a panic.
    #[test]
    fn damage_never_panics(which: usize, file: usize, edits in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4), cut in prop::option::of(any::<usize>())) {
        let dir = tempfile::tempdir().unwrap();
        let all = sound(dir.path());
        let (path, files) = &all[which % all.len()];
        read_all(path, &ReadOptions::default()).unwrap();
        let spoilt = &files[file % files.len()];
        let mut bytes = fs::read(spoilt).unwrap();
        for (at, byte) in edits {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut % bytes.len());
        }
        fs::write(spoilt, bytes).unwrap();
        let _ = read_all(path, &ReadOptions::default());
    }
}
