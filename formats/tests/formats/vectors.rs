//! Parquet files of many pages, which several threads unpack: rows keep their order, whatever is asked for.

use std::path::PathBuf;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::FloatType;
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use warprow_formats::TableFile;

const ROWS: usize = 30_000;
const DIM: usize = 33;
const SCHEMA: &str = "message m { optional group v (LIST) { repeated group list { optional float element; } } }";

/// Value `element` of a row; few different ones in the first third, which a dictionary holds.
fn value(row: usize, element: usize) -> f32 {
    let number = if row < ROWS / 3 { row % 100 * DIM + element } else { row * DIM + element };
    number as f32
}

fn write(properties: WriterProperties) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    // Groups of unequal size, of which none is whole pieces.
    for rows in [0..ROWS / 2, ROWS / 2..ROWS / 2 + 1, ROWS / 2 + 1..ROWS] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<f32> = rows.flat_map(|row| (0..DIM).map(move |element| value(row, element))).collect();
        let repetition: Vec<i16> = (0..values.len()).map(|at| i16::from(at % DIM > 0)).collect();
        let definition = vec![3; values.len()];
        column.typed::<FloatType>().write_batch(&values, Some(&definition), Some(&repetition)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    (dir, path)
}

fn expected(rows: std::ops::Range<usize>) -> Vec<u8> {
    rows.flat_map(|row| (0..DIM).flat_map(move |element| value(row, element).to_le_bytes())).collect()
}

#[test]
fn rows_of_many_pages_come_in_their_order() {
    let properties = || WriterProperties::builder().set_data_page_size_limit(20_000).set_write_batch_size(100);
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let version2 = || properties().set_writer_version(WriterVersion::PARQUET_2_0);
    for (properties, is_plain) in [
        (properties().set_dictionary_enabled(false), true),
        (version2().set_dictionary_enabled(false).set_encoding(Encoding::PLAIN), true),
        (properties().set_dictionary_page_size_limit(20_000).set_compression(zstd), false),
        (version2().set_compression(Compression::LZ4_RAW), false),
        (properties().set_dictionary_enabled(false).set_encoding(Encoding::BYTE_STREAM_SPLIT), false),
    ] {
        let (_dir, path) = write(properties.build());
        let file = TableFile::open(&path).unwrap();
        let table = &file.tables[0];
        assert_eq!((table.rows, table.dim), (ROWS as u64, DIM as u32));
        assert_eq!(table.is_sequential(), !is_plain);
        let rows = file.rows(table);
        let mut all = vec![0; ROWS * DIM * 4];
        rows.fill(0, &mut all).unwrap();
        assert!(all == expected(0..ROWS));
        // Forward, back, and over the ends of groups; what is asked for after a failure is there too.
        for (first, count) in [(3, 1), (4, 9_000), (14_990, 20), (29_999, 1), (7, 2), (0, 0), (29_000, 1_000)] {
            let mut some = vec![0; count * DIM * 4];
            rows.fill(first as u64, &mut some).unwrap();
            assert!(some == expected(first..first + count), "{count} rows from {first} on");
            assert!(rows.fill(ROWS as u64, &mut [0; DIM * 4]).is_err());
        }
    }
}

#[test]
fn a_page_that_is_damaged_is_told_behind_the_rows_before_it() {
    let properties = WriterProperties::builder().set_data_page_size_limit(20_000).set_write_batch_size(100);
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let (_dir, path) = write(properties.set_dictionary_enabled(false).set_compression(zstd).build());
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4000].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let file = TableFile::open(&path).unwrap();
    let rows = file.rows(&file.tables[0]);
    let mut row = 0;
    let mut one = vec![0; DIM * 4];
    let error = loop {
        match rows.fill(row as u64, &mut one) {
            Ok(()) => assert!(one == expected(row..row + 1), "row {row}"),
            Err(error) => break error,
        }
        row += 1;
    };
    assert!(error.kind == warprow_formats::FileErrorKind::Damaged && row > 1000 && row < ROWS, "row {row}: {error}");
}
