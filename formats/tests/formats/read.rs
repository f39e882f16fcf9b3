//! What is right.

use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;
use warprow_formats::{FileErrorKind, KeyOrder, KeyType, RawShape, ReadOptions, TableFile, TableFormat, TableWriter};
use warprow_layout::{DType, Ranks, RowSource};

use crate::build::*;

/// All rows of a table, read whole, in two halves backwards, and one by one from the end.
pub(crate) fn rows_of(file: &TableFile, name: &str) -> Vec<u8> {
    let table = file.tables.iter().find(|table| table.name == name).unwrap_or_else(|| panic!("no {name}: {file:?}"));
    let rows = file.rows(table);
    let row_bytes = table.row_bytes();
    let mut all = vec![0; table.rows as usize * row_bytes];
    rows.fill(0, &mut all).unwrap();
    let half = table.rows / 2;
    let mut again = vec![0; all.len()];
    let (first, second) = again.split_at_mut(half as usize * row_bytes);
    rows.fill(half, second).unwrap();
    rows.read(0, row_bytes, first).unwrap();
    assert_eq!(again, all, "{name}");
    for row in (0..table.rows).rev().take(5) {
        let mut one = vec![0; row_bytes];
        rows.fill(row, &mut one).unwrap();
        assert_eq!(one, all[row as usize * row_bytes..][..row_bytes], "{name} row {row}");
    }
    assert!(rows.fill(table.rows, &mut vec![0; row_bytes]).is_err(), "past the last");
    let copy = file.rows_in_any_order(table, &std::env::temp_dir(), &mut |_| Ok::<_, warprow_formats::FileError>(()));
    let mut copied = vec![0; all.len()];
    copy.unwrap().read(0, row_bytes, &mut copied).unwrap();
    assert_eq!(copied, all, "{name}");
    all
}

pub(crate) fn keys_of(file: &TableFile, name: &str) -> Option<Vec<i64>> {
    let table = file.tables.iter().find(|table| table.name == name).unwrap();
    Some(file.keys(table).unwrap()?.map(|key| key.unwrap() as i64).collect())
}

fn shape(file: &TableFile, name: &str) -> (u64, u32, DType, Option<KeyType>) {
    let table = file.tables.iter().find(|table| table.name == name).unwrap_or_else(|| panic!("no {name}: {file:?}"));
    (table.rows, table.dim, table.dtype, table.keys)
}

#[test]
fn safetensors_of_every_type() {
    let dir = tempfile::tempdir().unwrap();
    let types = [("F32", 4), ("F16", 2), ("BF16", 2), ("F8_E4M3", 1), ("F8_E5M2", 1), ("I8", 1), ("U8", 1)];
    let contents: Vec<Vec<u8>> = types.iter().map(|(_, size)| data(7 * 3 * size, *size as u64)).collect();
    let tensors: Vec<(&str, &str, &[u64], &[u8])> =
        types.iter().zip(&contents).map(|((dtype, _), data)| (*dtype, *dtype, &[7, 3][..], &data[..])).collect();
    let file = TableFile::open(&write(dir.path(), "m.safetensors", safetensors(&tensors))).unwrap();
    assert_eq!((file.format, file.tables.len()), (TableFormat::Safetensors, types.len()));
    for ((name, size), content) in types.iter().zip(&contents) {
        let (rows, dim, dtype, keys) = shape(&file, name);
        assert_eq!((rows, dim, dtype.size() as usize, keys), (7, 3, *size, None));
        assert_eq!(rows_of(&file, name), *content);
    }
}

#[test]
fn sharded_safetensors() {
    let dir = tempfile::tempdir().unwrap();
    let a = data(40, 1);
    let b = data(60, 2);
    let bias = data(8, 3);
    write(
        dir.path(),
        "model-00001-of-00002.safetensors",
        safetensors(&[("a", "F32", &[5, 2], &a), ("bias", "F32", &[2], &bias)]),
    );
    write(dir.path(), "model-00002-of-00002.safetensors", safetensors(&[("b", "BF16", &[10, 3], &b)]));
    let index = r#"{"metadata":{"total_size":108},"weight_map":{"a":"model-00001-of-00002.safetensors",
        "bias":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let index = write(dir.path(), "model.safetensors.index.json", index);
    for path in [&index, dir.path()] {
        let file = TableFile::open(path).unwrap();
        assert_eq!(file.format, TableFormat::SafetensorsIndex);
        assert_eq!((rows_of(&file, "a"), rows_of(&file, "b")), (a.clone(), b.clone()));
        assert_eq!(file.skipped, [("bias".to_owned(), "rank 1".to_owned())]);
    }
}

#[test]
fn npy_and_npz() {
    let dir = tempfile::tempdir().unwrap();
    let a = data(24, 1);
    let b = data(300 * 70 * 4, 2);
    let npy_a = npy_bytes("<f2", 4, 3, &a);
    let npy_b = npy_bytes("<f4", 300, 70, &b);
    let file = TableFile::open(&write(dir.path(), "user.table.npy", &npy_a)).unwrap();
    assert_eq!(shape(&file, "user.table"), (4, 3, DType::F16, None));
    assert_eq!(rows_of(&file, "user.table"), a);
    for deflated in [false, true] {
        let members: [(&str, &[u8], bool); 3] =
            [("a.npy", &npy_a, deflated), ("b/c.npy", &npy_b, deflated), ("note.txt", b"hello", false)];
        let file = TableFile::open(&write(dir.path(), "t.npz", zip(&members))).unwrap();
        assert_eq!(shape(&file, "b/c"), (300, 70, DType::F32, None));
        assert_eq!(file.tables[0].is_sequential(), deflated);
        assert_eq!((rows_of(&file, "a"), rows_of(&file, "b/c")), (a.clone(), b.clone()));
        assert_eq!(file.skipped, [("note.txt".to_owned(), "no array".to_owned())]);
    }
}

#[test]
fn a_sparse_model() {
    let dir = tempfile::tempdir().unwrap();
    let vectors = data(5 * 3 * 4, 1);
    write(dir.path(), "m/key", i64s([4, 0, 3, 1, 2]));
    write(dir.path(), "m/emb_vector", &vectors);
    write(dir.path(), "m/slot_id", i64s([0; 5]));
    let file = TableFile::open(&dir.path().join("m")).unwrap();
    assert_eq!(file.format, TableFormat::HugeCtr);
    assert_eq!(shape(&file, "m"), (5, 3, DType::F32, Some(KeyType::I64)));
    assert_eq!((rows_of(&file, "m"), keys_of(&file, "m").unwrap()), (vectors, vec![4, 0, 3, 1, 2]));
    assert_eq!(file.order(&file.tables[0]).unwrap(), Some(Ranks::U32(vec![4, 0, 3, 1, 2])));
    write(dir.path(), "m/key", i64s(0..5));
    assert_eq!(file.order(&file.tables[0]).unwrap(), None, "in their order");
}

#[test]
fn embedding_collections() {
    for (fifth, wide) in [(true, true), (false, false)] {
        let dir = tempfile::tempdir().unwrap();
        let size = if wide { 4 } else { 2 };
        let a = data(3 * 2 * size, 1);
        let b = data(2 * 5 * size, 2);
        let keys = |keys: &[i64]| -> Vec<u8> {
            if wide {
                i64s(keys.iter().copied())
            } else {
                keys.iter().flat_map(|&key| (key as u32).to_le_bytes()).collect()
            }
        };
        let key_type = i32::from(wide);
        let value_type = i32::from(!wide);
        let tables = [(7, 3, 2), (9, 2, 5), (11, 0, 4)];
        write(dir.path(), "embedding_collection_0/meta_data", meta(fifth, key_type, value_type, &tables));
        write(dir.path(), "embedding_collection_0/key7", part(1, 7, &keys(&[2, 0, 1])));
        write(dir.path(), "embedding_collection_0/weight7", part(2, 7, &a));
        write(dir.path(), "embedding_collection_0/key9", part(1, 9, &keys(&[1, 4_000_000_000])));
        write(dir.path(), "embedding_collection_0/weight9", part(2, 9, &b));
        let one = TableFile::open(&dir.path().join("embedding_collection_0")).unwrap();
        let dtype = if wide { DType::F32 } else { DType::F16 };
        let key_type = if wide { KeyType::I64 } else { KeyType::U32 };
        assert_eq!(shape(&one, "table7"), (3, 2, dtype, Some(key_type)));
        assert_eq!((rows_of(&one, "table7"), rows_of(&one, "table9")), (a.clone(), b.clone()));
        assert_eq!(keys_of(&one, "table9").unwrap(), [1, 4_000_000_000]);
        assert_eq!(one.skipped.len(), 1, "an empty table");
        let above = TableFile::open(dir.path()).unwrap();
        assert_eq!(above.format, TableFormat::EmbeddingCollection);
        assert_eq!(rows_of(&above, "embedding_collection_0.table9"), b);
    }
}

#[test]
fn dynamicemb_dumps_of_several_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let shards: [&[i64]; 3] = [&[3, 1], &[], &[0, 2, 4]];
    let mut all = Vec::new();
    for (rank, keys) in shards.iter().enumerate() {
        let values = data(keys.len() * 8, rank as u64);
        write(dir.path(), &format!("item_emb_keys.rank_{rank}.world_size_3"), i64s(keys.iter().copied()));
        write(dir.path(), &format!("item_emb_values.rank_{rank}.world_size_3"), &values);
        write(dir.path(), &format!("item_opt_values.rank_{rank}.world_size_3"), [0; 3]);
        all.extend(values);
    }
    let file = TableFile::open(dir.path()).unwrap();
    assert_eq!((file.format, file.tables.len()), (TableFormat::DynamicEmb, 1));
    assert_eq!(shape(&file, "item"), (5, 2, DType::F32, Some(KeyType::I64)));
    assert_eq!((rows_of(&file, "item"), keys_of(&file, "item").unwrap()), (all, vec![3, 1, 0, 2, 4]));
}

#[test]
fn raw_rows() {
    let dir = tempfile::tempdir().unwrap();
    let content = data(10 + 6 * 5 * 2, 1);
    let path = write(dir.path(), "r.bin", &content);
    for text in ["6x5:bf16@10", "5:bf16@10"] {
        let options = ReadOptions { shape: Some(text.parse().unwrap()), ..ReadOptions::default() };
        let file = TableFile::open_with(&path, &options).unwrap();
        assert_eq!((file.format, shape(&file, "r")), (TableFormat::Raw, (6, 5, DType::BF16, None)));
        assert_eq!(rows_of(&file, "r"), content[10..]);
    }
    for bad in ["", "5", "5:f64", "ax5:f32", "5:f32@", "-1x5:f32", "5x5x5:f32"] {
        assert!(bad.parse::<RawShape>().is_err(), "{bad}");
    }
}

#[test]
fn keys_that_are_not_dense_are_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "m/emb_vector", data(4 * 4, 1));
    let order = |keys: [i64; 4]| {
        write(dir.path(), "m/key", i64s(keys));
        let file = TableFile::open(&dir.path().join("m")).unwrap();
        file.order(&file.tables[0]).unwrap_err()
    };
    let error = order([0, 1, 2, 93_281]);
    assert!(error.what.contains("row 3 has the key 93281") && error.kind == FileErrorKind::Unsupported, "{error}");
    assert!(order([0, -7, 2, 1]).what.contains("row 1 has the key -7"));
    let error = order([2, 1, 0, 1]);
    assert!(
        error.what.contains("the key 1 twice, in rows 1 and 3") && error.kind == FileErrorKind::Duplicate,
        "{error}"
    );
}

#[test]
fn a_file_that_became_shorter() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "t.npy", npy_bytes("<f2", 4, 3, &data(24, 1)));
    let file = TableFile::open(&path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(128 + 20).unwrap();
    let error = file.rows(&file.tables[0]).fill(2, &mut [0; 12]).unwrap_err();
    assert!(error.what.contains("became shorter"), "{error}");
}

#[test]
fn a_file_that_changes_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = npy_bytes("<f2", 4, 3, &data(24, 1));
    let path = write(dir.path(), "t.npy", &bytes);
    let open = || {
        let file = TableFile::open(&path).unwrap();
        file.unchanged().unwrap();
        // The kernel's clock for files goes on in steps of some milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        file
    };
    let changed = |file: &TableFile, says: &str| {
        let error = file.rows(&file.tables[0]).unchanged(&mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(file.unchanged().unwrap_err().kind, FileErrorKind::Changed);
    };
    let file = open();
    // The same length, and the same content, which nobody knows.
    std::fs::write(&path, &bytes).unwrap();
    changed(&file, "was changed while it was read");
    let file = open();
    std::fs::write(&path, &bytes[..130]).unwrap();
    changed(&file, "had 152 bytes when it was opened, and now has 130");
    std::fs::write(&path, &bytes).unwrap();
    let file = open();
    std::fs::rename(write(dir.path(), "u.npy", &bytes), &path).unwrap();
    changed(&file, "was replaced by another file");
    let file = open();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.unchanged().unwrap_err().kind, FileErrorKind::Io);
}

#[test]
fn keys_may_be_lists_beside_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let keys = [5i64, -1, 1 << 40];
    let list = |descr: &str, data: &[u8]| {
        let mut bytes = warprow_formats::npy::head_of_list(descr, 3);
        bytes.extend(data);
        bytes
    };
    let rows = npy_bytes("<f4", 3, 2, &data(24, 1));
    let ids = list("<i8", &i64s(keys));
    let narrow = list("<u4", &[7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
    for deflated in [false, true] {
        let members = [("rows.npy", &*rows, deflated), ("ids.npy", &*ids, deflated), ("n.npy", &*narrow, deflated)];
        let path = write(dir.path(), "t.npz", zip(&members));
        let mut file = TableFile::open(&path).unwrap();
        let names: Vec<_> =
            file.key_arrays.iter().map(|key_array| (&*key_array.name, key_array.rows, key_array.keys)).collect();
        assert_eq!(names, [("ids", 3, KeyType::I64), ("n", 3, KeyType::U32)]);
        file.with_keys("rows", "ids").unwrap();
        let read = |file: &TableFile| {
            let keys = file.keys(&file.tables[0]).unwrap().unwrap();
            keys.map(Result::unwrap).collect::<Vec<_>>()
        };
        assert_eq!(read(&file), keys.map(|key| key as u64));
        assert_eq!(file.key_order(&file.tables[0]).unwrap(), KeyOrder::Sparse { row: 0, key: 5 });
        file.with_keys("rows", "n").unwrap();
        assert_eq!(read(&file), [7, u32::MAX.into(), 1]);
        let apart = write(dir.path(), "k.npy", &ids);
        file.with_keys("rows", apart.to_str().unwrap()).unwrap();
        let mut out = [0; 2];
        file.fill_keys(&file.tables[0], 1, &mut out).unwrap().unwrap();
        assert_eq!(out, [u64::MAX, 1 << 40]);
        assert_eq!(file.with_keys("rows", "gone").unwrap_err().kind, FileErrorKind::Missing);
        let short = write(dir.path(), "s.npy", &ids[..ids.len() - 1]);
        assert_eq!(file.with_keys("rows", short.to_str().unwrap()).unwrap_err().kind, FileErrorKind::Unsupported);
    }
}

fn arrays() -> impl Strategy<Value = (usize, u64, u32, u64)> {
    (0usize..7, 1u64..200, 1u32..70, any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read((dtype, rows, dim, seed) in arrays(), npy: bool) {
        let dtype = DType::ALL[dtype];
        let content = data(rows as usize * dtype.row_bytes(dim).unwrap() as usize, seed);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(if npy { "t.npy" } else { "t.safetensors" });
        match TableWriter::create(&path, false, "t", rows, dim, dtype) {
            Ok(writer) => {
                writer.write(0, &content).unwrap();
                writer.finish().unwrap();
                let file = TableFile::open(&path).unwrap();
                prop_assert_eq!(shape(&file, "t"), (rows, dim, dtype, None));
                prop_assert_eq!(rows_of(&file, "t"), content);
            }
            Err(error) => prop_assert!(npy && matches!(dtype, DType::BF16 | DType::F8E4M3 | DType::F8E5M2), "{}", error),
        }
    }
}

#[test]
fn folders_of_nothing_known() {
    let dir = tempfile::tempdir().unwrap();
    let error = TableFile::open(dir.path()).unwrap_err();
    assert!(error.what.contains("folder without files") && !error.remedy.is_empty());
    assert_eq!(TableFile::open(Path::new("/dev/zero")).unwrap_err().kind, FileErrorKind::Special);
    assert_eq!(TableFile::open(&dir.path().join("absent")).unwrap_err().kind, FileErrorKind::Io);
}
