//! Parquet files of which every byte is ours: pages that promise what they do not have.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::writer::ColumnCloseResult;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use warprow_formats::{FormatError, IntegerFile, Kind, TableFile};

use crate::build::write;

const VECTORS: &str = "message m { optional group v (LIST) { repeated group list { optional float element; } } }";
const NUMBERS: &str = "message m { optional group v (LIST) { repeated group list { optional int64 element; } } }";

/// A number as Thrift's compact protocol has it.
fn number(bytes: &mut Vec<u8>, value: u64) {
    let mut rest = value;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

fn field(bytes: &mut Vec<u8>, value: u64) {
    bytes.push(0x15);
    number(bytes, value << 1);
}

/// A page that says it has `values` values and unpacks to `unpacked` bytes, in front of `body`.
fn page(values: u64, unpacked: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    field(&mut bytes, 0);
    field(&mut bytes, unpacked);
    field(&mut bytes, body.len() as u64);
    bytes.push(0x2c);
    [values, 0, 3, 3].into_iter().for_each(|value| field(&mut bytes, value));
    bytes.extend([0, 0]);
    bytes.extend(body);
    bytes
}

/// Levels: so many of each.
fn levels(runs: &[(u64, u8)]) -> Vec<u8> {
    let mut runs_bytes = Vec::new();
    for &(count, level) in runs {
        number(&mut runs_bytes, count << 1);
        runs_bytes.push(level);
    }
    [&(runs_bytes.len() as u32).to_le_bytes()[..], &runs_bytes].concat()
}

/// A page of one list that goes on and on, all of whose elements are missing.
fn endless(values: u64, begins: bool) -> Vec<u8> {
    let repetition = if begins { levels(&[(1, 0), (values - 1, 1)]) } else { levels(&[(values, 1)]) };
    let body = [repetition, levels(&[(values, 2)])].concat();
    page(values, body.len() as u64, &body)
}

/// A file whose metadata say that it has `rows` rows and `values` values.
fn file(schema: &str, pages: &[Vec<u8>], rows: u64, values: u64) -> (tempfile::TempDir, PathBuf) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, schema, Arc::new(WriterProperties::default())).unwrap();
    let columns = writer.schema_descr().columns().to_vec();
    let mut group = writer.next_row_group().unwrap();
    for column in columns {
        let bytes = pages.concat();
        let metadata = ColumnChunkMetaData::builder(column)
            .set_encodings(vec![Encoding::PLAIN])
            .set_num_values(values as i64)
            .set_data_page_offset(0)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(bytes.len() as i64)
            .build()
            .unwrap();
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: rows,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        group.append_column(&Bytes::from(bytes), close).unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "t.parquet", out);
    (dir, path)
}

/// What reading the first row says.
fn refused(schema: &str, pages: &[Vec<u8>], rows: u64, values: u64) -> FormatError {
    let (_dir, path) = file(schema, pages, rows, values);
    if schema == NUMBERS {
        let file = IntegerFile::open(&path).unwrap();
        let mut reader = file.read(&file.columns()[0]).unwrap();
        return reader.next(1, &mut Vec::new(), &mut Vec::new()).unwrap_err();
    }
    let file = TableFile::open(&path).unwrap();
    let table = &file.tables[0];
    file.rows(table).fill(0, &mut vec![0; table.row_bytes()]).unwrap_err()
}

#[test]
fn pages_cannot_promise_any_number_of_values() {
    for schema in [VECTORS, NUMBERS] {
        for values in [(1 << 25) + 1, i32::MAX as u64] {
            let error = refused(schema, &[endless(values, true)], values / 16, values / 16 * 17);
            assert!(error.what.contains("at most 33554432 are read"), "{error}");
        }
        let error = refused(schema, &[endless(1 << 20, true)], 1 << 10, 1 << 14);
        assert!(error.what.contains("more values than their column chunk"), "{error}");
    }
}

#[test]
fn rows_that_never_end_are_not_followed() {
    let pages: Vec<_> = (0..300).map(|page| endless(1 << 20, page == 0)).collect();
    let error = refused(VECTORS, &pages, 300 << 16, 300 << 20);
    assert!(error.what.contains("a row has more values than rows have"), "{error}");
    let error = refused(NUMBERS, &pages, 300 << 16, 300 << 20);
    assert!(error.what.contains("a row has more values than rows have"), "{error}");
}

#[test]
fn pages_cannot_promise_any_number_of_bytes() {
    let body = [levels(&[(16, 0)]), levels(&[(16, 3)]), vec![0; 64]].concat();
    let error = refused(VECTORS, &[page(16, 300 << 20, &body)], 16, 16);
    assert!(error.what.contains("unpacks to 314572800 bytes"), "{error}");
}

#[test]
fn vectors_of_absurd_width_are_no_tables() {
    let (_dir, path) = file(VECTORS, &[endless(1 << 21, true)], 1, 1 << 21);
    let file = TableFile::open(&path).unwrap();
    assert!(file.tables.is_empty() && file.skipped[0].1.contains("elements or more"), "{:?}", file.skipped);
}

#[test]
fn rows_that_are_only_claimed_take_no_memory() {
    let schema =
        "message m { required int64 id; optional group v (LIST) { repeated group list { optional float element; } } }";
    let (_dir, path) = file(schema, &[endless(1, true)], 1 << 58, 1 << 58);
    let file = TableFile::open(&path).unwrap();
    let error = file.order(&file.tables[0]).unwrap_err();
    assert!(error.kind == Kind::Memory && error.what.contains("more memory than there is"), "{error}");
}
