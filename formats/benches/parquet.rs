//! Rows of a Parquet file, read here and by the library's own reader of columns, in turns: `cargo bench -p warprow-formats -- [MIB]`. The
//! file lies in memory's cache; every row is compared once.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use parquet::basic::{Compression, Encoding};
use parquet::column::reader::ColumnReader;
use parquet::data_type::FloatType;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use warprow_formats::TableFile;
use warprow_layout::RowSource;

/// Reads a file, and gives all rows to the function, about a mebibyte at a time.
type Read = fn(&Path, &mut dyn FnMut(&[u8]));

const SCHEMA: &str = "message m { optional group v (LIST) { repeated group list { optional float element; } } }";
const DIM: usize = 128;
const ROW: usize = DIM * 4;
/// Rows that are asked for at once.
const AT_ONCE: usize = (1 << 20) / ROW;
const GROUP: usize = 64 << 10;
const TURNS: usize = 7;

fn value(row: usize, element: usize) -> f32 {
    (row as f32).mul_add(0.37, element as f32 * 1.01).sin()
}

fn write(path: &Path, rows: usize, compression: Compression) {
    let plain = WriterProperties::builder().set_dictionary_enabled(false).set_encoding(Encoding::PLAIN);
    let properties = plain.set_compression(compression).build();
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut file = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    for first in (0..rows).step_by(GROUP) {
        let here = first..rows.min(first + GROUP);
        let values: Vec<f32> = here.clone().flat_map(|row| (0..DIM).map(move |element| value(row, element))).collect();
        let repetition: Vec<i16> = (0..values.len()).map(|at| i16::from(at % DIM != 0)).collect();
        let mut group = file.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<FloatType>().write_batch(&values, Some(&vec![3; values.len()]), Some(&repetition)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    file.close().unwrap();
}

/// As this crate reads it.
fn here(path: &Path, take: &mut dyn FnMut(&[u8])) {
    let file = TableFile::open(path).unwrap();
    let table = &file.tables[0];
    let mut buffer = vec![0; AT_ONCE * ROW];
    let rows = file.rows(table);
    for first in (0..table.rows).step_by(AT_ONCE) {
        let some = &mut buffer[..AT_ONCE.min((table.rows - first) as usize) * ROW];
        rows.read(first, ROW, some).unwrap();
        take(some);
    }
}

/// As [`here`], by the library, with as much compared of the levels as is needed for rows to be whole.
fn library(path: &Path, take: &mut dyn FnMut(&[u8])) {
    let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let mut values = Vec::new();
    let mut definition = Vec::new();
    let mut repetition = Vec::new();
    let mut buffer = vec![0; AT_ONCE * ROW];
    for group in 0..file.num_row_groups() {
        let group = file.get_row_group(group).unwrap();
        let ColumnReader::FloatColumnReader(mut column) = group.get_column_reader(0).unwrap() else { unreachable!() };
        loop {
            values.clear();
            definition.clear();
            repetition.clear();
            let levels = (Some(&mut definition), Some(&mut repetition));
            let (rows, ..) = column.read_records(AT_ONCE, levels.0, levels.1, &mut values).unwrap();
            if rows == 0 {
                break;
            }
            assert!(definition.iter().all(|&level| level == 3) && values.len() == rows * DIM);
            assert!(repetition.chunks(DIM).all(|row| row[0] == 0 && row[1..].iter().all(|&level| level == 1)));
            let some = &mut buffer[..rows * ROW];
            some.as_chunks_mut().0.iter_mut().zip(&values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
            take(some);
        }
    }
}

fn compare(path: &Path, read: Read) {
    let mut at = 0;
    read(path, &mut |rows| {
        for bytes in rows.as_chunks().0 {
            assert_eq!(f32::from_le_bytes(*bytes), value(at / DIM, at % DIM));
            at += 1;
        }
    });
}

fn main() {
    let mib = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(256usize);
    let folder = tempfile::tempdir().unwrap();
    let rows = (mib << 20) / ROW;
    for (name, compression) in [("plain", Compression::UNCOMPRESSED), ("snappy", Compression::SNAPPY)] {
        let path = folder.path().join(name).with_extension("parquet");
        write(&path, rows, compression);
        compare(&path, here);
        compare(&path, library);
        let time = |read: Read| {
            let began = Instant::now();
            let mut bytes = 0;
            read(&path, &mut |rows| bytes += rows.len());
            began.elapsed().as_secs_f64() * 1e9 / bytes as f64
        };
        let (mut ours, mut theirs): (Vec<f64>, Vec<f64>) = (0..TURNS).map(|_| (time(here), time(library))).unzip();
        ours.sort_by(f64::total_cmp);
        theirs.sort_by(f64::total_cmp);
        let ours = ours[TURNS / 2];
        let theirs = theirs[TURNS / 2];
        println!("{name:<8} here {ours:.2} ns/B, the library {theirs:.2} ns/B: {:.1} times", theirs / ours);
    }
}
