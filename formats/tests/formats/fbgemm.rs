//! Rows with a scale and a bias of their own, byte by byte as FBGEMM fuses them.

use std::path::{Path, PathBuf};

use warprow_formats::{ConvertedRows, ReadOptions, TableFile};
use warprow_layout::{DType, RowSource};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn open(name: &str, dtype: DType) -> TableFile {
    let options = ReadOptions { shape: Some(format!("16:{dtype}").parse().unwrap()), ..ReadOptions::default() };
    TableFile::open_with(&golden(name), &options).unwrap()
}

/// All rows of the only table of `file` as `to`.
fn rows(file: &TableFile, to: DType) -> Vec<u8> {
    let table = &file.tables[0];
    let source = file.rows(table);
    let converted = ConvertedRows::new(&source, table.dim, table.dtype, to).unwrap();
    let row_bytes = to.row_bytes(table.dim).unwrap() as usize;
    let mut rows = vec![0; table.rows as usize * row_bytes];
    converted.read(0, row_bytes, &mut rows).unwrap();
    rows
}

/// The files are what `tests/python/fbgemm.py` computes with NumPy.
#[test]
fn rows_are_those_that_numpy_computes() {
    let table = open("fbgemm.f32", DType::F32);
    for (name, dtype, row_bytes) in [("fbgemm.q8", DType::Q8, 24), ("fbgemm.q4", DType::Q4, 12)] {
        let theirs = std::fs::read(golden(name)).unwrap();
        let ours = rows(&table, dtype);
        for (row, (ours, theirs)) in ours.chunks(row_bytes).zip(theirs.chunks(row_bytes)).enumerate() {
            assert_eq!(ours, theirs, "{name} row {row}");
        }
        let fused = open(name, dtype);
        assert_eq!((fused.tables[0].rows, fused.tables[0].row_bytes()), (40, row_bytes));
        let wide = std::fs::read(golden(&format!("{name}.f32"))).unwrap();
        for (at, (ours, theirs)) in rows(&fused, DType::F32).chunks(4).zip(wide.chunks(4)).enumerate() {
            assert_eq!(ours, theirs, "{name} element {at}");
        }
    }
}

/// The numbers that FBGEMM's own test (test/QuantUtilsTest.cc, EmbeddingQuantizeFixedNumberTest) has worked out by hand.
#[test]
fn rows_are_those_of_fbgemms_own_test() {
    let values = [1.0f32, 1.0, 1.0, 1.0, -64.0, -2.75, 61.625, 191.0];
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let source = &bytes[..];
    let of = |to: DType, row_bytes: usize| {
        let mut out = vec![0; 2 * row_bytes];
        ConvertedRows::new(&source, 4, DType::F32, to).unwrap().read(0, row_bytes, &mut out).unwrap();
        out
    };
    let eight = [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f], [0, 61, 126, 255, 0, 0, 0x80, 0x3f, 0, 0, 0x80, 0xc2]];
    assert_eq!(of(DType::Q8, 12), eight.concat());
    let four = [[0, 0, 0, 0x3c, 0, 0x3c], [0x40, 0xf7, 0x40, 0x4c, 0, 0xd4]];
    assert_eq!(of(DType::Q4, 6), four.concat());
}
