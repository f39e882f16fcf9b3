//! Parquet files of which every byte is ours: pages that promise what they do not have.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{BrotliLevel, Compression, Encoding};
use parquet::column::writer::ColumnCloseResult;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnDescPtr;
use warprow_formats::{FileError, FileErrorKind, IntegerFile, TableFile};

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

/// A page's values and its body: lists of two floats, of which row `odd` has another length, and row `gap` lacks a value.
fn pairs(rows: u64, odd: Option<(u64, u64)>, gap: Option<u64>) -> (u64, Vec<u8>) {
    let mut repetition = Vec::new();
    let mut definition = Vec::new();
    let mut values = Vec::new();
    for row in 0..rows {
        let length = odd.filter(|(odd, _)| *odd == row).map_or(2, |(_, length)| length);
        repetition.extend([(1, 0), (length - 1, 1)].into_iter().filter(|(count, _)| *count > 0));
        for value in 0..length {
            let is_missing = gap == Some(row) && value == 1;
            definition.push((1, if is_missing { 2 } else { 3 }));
            if !is_missing {
                values.extend((row as f32 + value as f32 / 4.0).to_le_bytes());
            }
        }
    }
    (definition.len() as u64, [levels(&repetition), levels(&definition), values].concat())
}

/// A page of one list that goes on and on, all of whose elements are missing.
fn endless(values: u64, begins: bool) -> Vec<u8> {
    let repetition = if begins { levels(&[(1, 0), (values - 1, 1)]) } else { levels(&[(values, 1)]) };
    let body = [repetition, levels(&[(values, 2)])].concat();
    page(values, body.len() as u64, &body)
}

/// A file whose metadata say that it has `rows` rows and `values` values.
fn file(schema: &str, pages: &[Vec<u8>], rows: u64, values: u64) -> (tempfile::TempDir, PathBuf) {
    packed(schema, pages, rows, values, Compression::UNCOMPRESSED)
}

/// A file as [`file`] makes it, whose metadata say that pages are compressed.
fn packed(
    schema: &str,
    pages: &[Vec<u8>],
    rows: u64,
    values: u64,
    compression: Compression,
) -> (tempfile::TempDir, PathBuf) {
    groups(schema, &[(pages, rows, values)], compression)
}

/// A file of several row groups: the pages, rows and values of each.
fn groups(schema: &str, groups: &[(&[Vec<u8>], u64, u64)], compression: Compression) -> (tempfile::TempDir, PathBuf) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, schema, Arc::new(WriterProperties::default())).unwrap();
    let columns = writer.schema_descr().columns().to_vec();
    for &(pages, rows, values) in groups {
        let mut group = writer.next_row_group().unwrap();
        for column in &columns {
            let (bytes, close) = chunk(column, pages, (rows, values), compression);
            group.append_column(&bytes, close).unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "t.parquet", out);
    (dir, path)
}

/// A column chunk, and what the footer says of it.
fn chunk(
    column: &ColumnDescPtr,
    pages: &[Vec<u8>],
    (rows, values): (u64, u64),
    compression: Compression,
) -> (Bytes, ColumnCloseResult) {
    let bytes = pages.concat();
    let metadata = ColumnChunkMetaData::builder(column.clone())
        .set_encodings(vec![Encoding::PLAIN])
        .set_compression(compression)
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
    (Bytes::from(bytes), close)
}

/// What reading the first row says.
fn refused(schema: &str, pages: &[Vec<u8>], rows: u64, values: u64) -> FileError {
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
    assert!(error.kind == FileErrorKind::Memory && error.what.contains("more memory than there is"), "{error}");
}

#[test]
fn rows_of_other_lengths_and_without_a_value_are_named() {
    // The metadata promise two values for each of 100 rows.
    for (odd, gap, says) in
        [(Some((7, 1)), None, "row 7 has 1 values, others 2"), (None, Some(41), "row 41 lacks a value")]
    {
        let (values, body) = pairs(100, odd, gap);
        let error = refused(VECTORS, &[page(values, body.len() as u64, &body)], 100, 200);
        assert!(error.what.contains(says), "{error}");
    }
    // The last one's length shows where the column ends.
    let (values, body) = pairs(100, Some((99, 1)), None);
    let (_dir, path) = file(VECTORS, &[page(values, body.len() as u64, &body)], 100, 200);
    let short = TableFile::open(&path).unwrap();
    let error = short.rows(&short.tables[0]).fill(0, &mut vec![0; 800]).unwrap_err();
    assert!(error.what.contains("row 99 has 1 values, others 2"), "{error}");
    // One row too many values, another too few.
    let (long, first) = pairs(10, Some((7, 3)), None);
    let (short, second) = pairs(10, Some((9, 1)), None);
    let pages = [page(long, first.len() as u64, &first), page(short, second.len() as u64, &second)];
    let error = refused(VECTORS, &pages, 20, 40);
    assert!(error.what.contains("row 7 goes on: a row has more values than rows have, 2"), "{error}");
}

#[test]
fn pages_that_end_early_are_refused() {
    let (values, body) = pairs(100, None, None);
    // Whole, it is read.
    let (_dir, path) = file(VECTORS, &[page(values, body.len() as u64, &body)], 100, 200);
    let whole = TableFile::open(&path).unwrap();
    let mut rows = vec![0; 800];
    whole.rows(&whole.tables[0]).fill(0, &mut rows).unwrap();
    let expected: Vec<u8> =
        (0..200u32).flat_map(|at| (at as f32 / 2.0 - (at % 2) as f32 / 4.0).to_le_bytes()).collect();
    assert_eq!(rows, expected);
    for len in (0..body.len()).step_by(7) {
        let error = refused(VECTORS, &[page(values, len as u64, &body[..len])], 100, 200);
        assert!(
            error.kind == FileErrorKind::Damaged && error.what.contains("a page ends before its"),
            "{len}: {error}"
        );
    }
}

/// Two pages of a hundred rows of two, as they stand; of the second `spoil` makes another.
fn two_pages(spoil: impl FnOnce(u64, Vec<u8>) -> Vec<u8>) -> (tempfile::TempDir, PathBuf) {
    let (values, body) = pairs(100, None, None);
    let sound = page(values, body.len() as u64, &body);
    file(VECTORS, &[sound, spoil(values, body)], 200, 400)
}

/// The page behind a header that has a checksum.
fn checked(values: u64, body: &[u8], crc: u32) -> Vec<u8> {
    let page = page(values, body.len() as u64, body);
    let header = page.len() - body.len();
    // Field 4 comes behind the sizes, and before what only pages of values have.
    let at = page[..header].iter().position(|&byte| byte == 0x2c).unwrap();
    let mut bytes = [&page[..at], &[0x15]].concat();
    let crc = crc as i32;
    number(&mut bytes, u64::from((crc << 1 ^ crc >> 31) as u32));
    bytes.push(0x1c);
    bytes.extend(&page[at + 1..]);
    bytes
}

#[test]
fn plain_pages_are_read_where_they_stand_and_others_unpacked() {
    let one: Vec<u8> = (0..200u32).flat_map(|at| (at as f32 / 2.0 - (at % 2) as f32 / 4.0).to_le_bytes()).collect();
    let expected = [&one[..], &one].concat();
    let plain = |values, body: Vec<u8>| page(values, body.len() as u64, &body);
    let with_checksum = |values, body: Vec<u8>| checked(values, &body, crc32fast::hash(&body));
    for ((_dir, path), is_plain) in [(two_pages(plain), true), (two_pages(with_checksum), false)] {
        let file = TableFile::open(&path).unwrap();
        assert_eq!(file.tables[0].is_sequential(), !is_plain, "the second page counts as the first does");
        let rows = file.rows(&file.tables[0]);
        // Forward and back, over the end of a page and up to it.
        for (first, count) in [(3, 1), (95, 10), (0, 100), (199, 1), (100, 100), (0, 200), (150, 0)] {
            let mut some = vec![0; count * 8];
            rows.fill(first as u64, &mut some).unwrap();
            assert_eq!(some, expected[first * 8..][..count * 8], "{count} rows from {first} on");
        }
    }
    // What is wrong with the second page does not matter to the rows before, if they need not be unpacked with it.
    let lacks = |_, _| {
        let (values, body) = pairs(100, None, Some(41));
        page(values, body.len() as u64, &body)
    };
    let wrong_checksum = |values, body: Vec<u8>| checked(values, &body, !crc32fast::hash(&body));
    let short = |values, body: Vec<u8>| page(values, body.len() as u64 - 4, &body[..body.len() - 4]);
    for ((_dir, path), says) in [
        (two_pages(lacks), "row 141 lacks a value"),
        (two_pages(wrong_checksum), "CRC checksum mismatch"),
        (two_pages(short), "a page ends before its values do"),
    ] {
        let file = TableFile::open(&path).unwrap();
        let rows = file.rows(&file.tables[0]);
        let mut some = vec![0; 800];
        if !file.tables[0].is_sequential() {
            rows.fill(0, &mut some).unwrap();
            assert_eq!(some, one);
        }
        for _ in 0..2 {
            let error = rows.fill(100, &mut some).unwrap_err();
            assert!(error.what.contains(says), "{error}");
        }
    }
}

/// The pairs of the plain page, split by bytes: a page of another encoding than the footer says.
fn split(rows: u64) -> Vec<u8> {
    let (values, body) = pairs(rows, None, None);
    let at = body.len() - values as usize * 4;
    let streams: Vec<u8> = (0..4).flat_map(|byte| body[at..].chunks_exact(4).map(move |bytes| bytes[byte])).collect();
    let page = page(values, body.len() as u64, &[&body[..at], &streams].concat());
    // The encoding of values is the field behind their number.
    let encoding = page.iter().position(|&byte| byte == 0x2c).unwrap() + 2 + varint_bytes(values << 1);
    let mut bytes = page;
    assert_eq!(&bytes[encoding..][..2], [0x15, 0]);
    bytes[encoding + 1] = 9 << 1;
    bytes
}

fn varint_bytes(value: u64) -> usize {
    let mut bytes = Vec::new();
    number(&mut bytes, value);
    bytes.len()
}

/// One page that is otherwise makes a table sequential, wherever it stands; read as a load does, it is read once.
#[test]
fn a_page_that_is_otherwise_is_found_before_a_row_is_read() {
    let (values, body) = pairs(1000, None, None);
    let one: Vec<u8> = body[body.len() - 8000..].to_vec();
    let plain = page(values, body.len() as u64, &body);
    let empty = page(0, 8, &[levels(&[]), levels(&[])].concat());
    let with_checksum = checked(values, &body, crc32fast::hash(&body));
    let padded = page(values, body.len() as u64 + 4, &[&body[..], &[0; 4]].concat());
    // Statistics longer than is looked at: field 5 of the page's own header, a struct with one binary.
    let long_header = {
        let header = plain.len() - body.len();
        let mut bytes = plain[..header - 2].to_vec();
        bytes.extend([0x1c, 0x18]);
        number(&mut bytes, 600);
        bytes.extend([7; 600]);
        bytes.extend([0, 0, 0]);
        [&bytes[..], &body].concat()
    };
    let first = [plain.clone(), plain.clone(), plain.clone()];
    for (second, is_plain, what) in [
        (vec![plain.clone(), plain.clone()], true, "plain"),
        (vec![with_checksum.clone(), with_checksum], false, "checksums"),
        (vec![plain.clone(), split(1000)], false, "another encoding"),
        (vec![plain.clone(), plain.clone(), empty.clone()], false, "a page behind the last value"),
        (vec![plain.clone(), empty, plain.clone()], false, "a page of no values"),
        (vec![plain.clone(), long_header], false, "a long header"),
        (vec![plain.clone(), padded], true, "bytes behind the last value"),
    ] {
        let two: [(&[Vec<u8>], _, _); 2] = [(&first, 3000, 3 * values), (&second, 2000, 2 * values)];
        let (_dir, path) = groups(VECTORS, &two, Compression::UNCOMPRESSED);
        let file = TableFile::open(&path).unwrap();
        let table = &file.tables[0];
        assert_eq!(table.is_sequential(), !is_plain, "{what}");
        let rows = file.rows(table);
        let mut some = vec![0; 70 * 8];
        for first in (0..5000).step_by(70) {
            let some = &mut some[..(5000 - first).min(70) * 8];
            rows.fill(first as u64, some).unwrap();
            let expected: Vec<u8> = one.iter().cycle().skip(first % 1000 * 8).take(some.len()).copied().collect();
            assert!(some == expected, "{what}: row {first}");
        }
    }
}

/// Pages of a few values each are unpacked: looking for them would take as long.
#[test]
fn pages_that_are_small_throughout_are_not_looked_for() {
    let (values, body) = pairs(10, None, None);
    let small = page(values, body.len() as u64, &body);
    for (count, is_plain) in [(4_000, true), (4_200, false)] {
        let pages = vec![small.clone(); count];
        let (_dir, path) = file(VECTORS, &pages, count as u64 * 10, count as u64 * values);
        let file = TableFile::open(&path).unwrap();
        assert_eq!(file.tables[0].is_sequential(), !is_plain);
        let mut last = [0; 80];
        file.rows(&file.tables[0]).fill(count as u64 * 10 - 10, &mut last).unwrap();
        assert_eq!(last, body[body.len() - 80..]);
    }
}

#[test]
fn a_page_that_changes_behind_our_back_is_an_error() {
    let (values, body) = pairs(100, None, None);
    let sound = page(values, body.len() as u64, &body);
    let (_dir, path) = file(VECTORS, &[sound.clone(), sound.clone()], 200, 400);
    let file = TableFile::open(&path).unwrap();
    assert!(!file.tables[0].is_sequential());
    let mut bytes = std::fs::read(&path).unwrap();
    // The kind of the second page.
    let second = 4 + sound.len();
    assert_eq!(bytes[second..][..2], [0x15, 0]);
    bytes[second + 1] = 4;
    std::fs::write(&path, bytes).unwrap();
    let rows = file.rows(&file.tables[0]);
    let mut some = [0; 800];
    rows.fill(0, &mut some).unwrap();
    for _ in 0..2 {
        let error = rows.fill(100, &mut some).unwrap_err();
        assert!(error.kind == FileErrorKind::Changed && error.at == Some(second as u64), "{error}");
    }
}

#[test]
fn codecs_that_are_not_read_are_named() {
    let (values, body) = pairs(100, None, None);
    let page = page(values, body.len() as u64, &body);
    let (_dir, path) = packed(VECTORS, &[page], 100, 200, Compression::BROTLI(BrotliLevel::default()));
    let file = TableFile::open(&path).unwrap();
    assert!(file.tables.is_empty());
    assert!(file.skipped[0].1.contains("compressed with brotli") && file.skipped[0].1.contains("zstd"), "{file:?}");
}

#[test]
fn maps_and_lists_of_structs_are_no_vectors() {
    let map = "message m { optional group v (MAP) {
        repeated group key_value { required int64 key; optional float value; } } }";
    let keys = "message m { optional group v (MAP) { repeated group key_value { required float key; } } }";
    let one = "message m { optional group v (LIST) {
        repeated group list { optional group element { optional float a; } } } }";
    let two = "message m { optional group v (LIST) { repeated group list { required float a; required float b; } } }";
    let (values, body) = pairs(1, None, None);
    for (schema, says) in [(map, "a map"), (keys, "a map"), (one, "a list of structs"), (two, "a list of structs")] {
        let (_dir, path) = file(schema, &[page(values, body.len() as u64, &body)], 2, 2);
        let file = TableFile::open(&path).unwrap();
        assert!(file.tables.is_empty() && file.skipped.iter().any(|pair| pair.1.contains(says)), "{schema}: {file:?}");
    }
    // However lists are written.
    for schema in [
        "message m { repeated float v; }",
        "message m { optional group v (LIST) { repeated float array; } }",
        "message m { optional group v { repeated group bag { optional float array_element; } } }",
    ] {
        let (_dir, path) = file(schema, &[page(values, body.len() as u64, &body)], 1, 2);
        assert_eq!(TableFile::open(&path).unwrap().tables.len(), 1, "{schema}");
    }
}

#[test]
fn a_file_without_rows_is_said_to_be_empty() {
    let (_dir, path) = file(VECTORS, &[], 0, 0);
    let file = TableFile::open(&path).unwrap();
    assert_eq!((&file.empty[..], &file.skipped[..]), (&["t".into()][..], &[("t".into(), "it has no rows".into())][..]));
}

#[test]
fn headers_of_pages_begin_as_such() {
    // A page's type in the long form, which no writer uses: its size would be looked for elsewhere.
    let (values, body) = pairs(100, None, None);
    let page = page(values, body.len() as u64, &body);
    let long = [&[0x05, 2, 0][..], &page[2..]].concat();
    let error = refused(VECTORS, &[long], 100, 200);
    assert!(error.what.contains("no header of a page"), "{error}");
}

#[test]
fn indices_past_the_end_of_a_dictionary_are_refused() {
    let dictionary = |count: u64| {
        let body: Vec<u8> = (0..count).flat_map(|value| (value as f32).to_le_bytes()).collect();
        let mut bytes = Vec::new();
        // Type 2; field 7 is the dictionary's header: how many values, and PLAIN.
        [2, body.len() as u64, body.len() as u64].into_iter().for_each(|value| field(&mut bytes, value));
        bytes.push(0x4c);
        [count, 0].into_iter().for_each(|value| field(&mut bytes, value));
        bytes.extend([0, 0]);
        [bytes, body].concat()
    };
    // Two rows of four: packed indices of three bits.
    let packed: u32 = [0u32, 1, 2, 3, 4, 5, 6, 7].iter().rev().fold(0, |all, index| all << 3 | index);
    let indices = [&[3u8, 3][..], &packed.to_le_bytes()[..3]].concat();
    let body = [levels(&[(1, 0), (3, 1), (1, 0), (3, 1)]), levels(&[(8, 3)]), indices].concat();
    let mut data = Vec::new();
    [0, body.len() as u64, body.len() as u64].into_iter().for_each(|value| field(&mut data, value));
    data.push(0x2c);
    [8, 8, 3, 3].into_iter().for_each(|value| field(&mut data, value));
    data.extend([0, 0]);
    data.extend(body);
    let (_dir, path) = file(VECTORS, &[dictionary(8), data.clone()], 2, 8);
    let whole = TableFile::open(&path).unwrap();
    let mut rows = vec![0; 32];
    whole.rows(&whole.tables[0]).fill(0, &mut rows).unwrap();
    assert_eq!(rows, (0..8).flat_map(|value| (value as f32).to_le_bytes()).collect::<Vec<_>>());
    let error = refused(VECTORS, &[dictionary(7), data.clone()], 2, 8);
    assert!(error.what.contains("past the end of its dictionary"), "{error}");
    let error = refused(VECTORS, &[data], 2, 8);
    assert!(error.what.contains("there is none"), "{error}");
}
