//! What was written is read, whatever the size of batches.

use proptest::prelude::*;
use warprow_traces::data::{DataFormat, DataOptions, DataReader, DataSpec, DataWriteOptions, NextBatch, convert};

use crate::build::{Sample, norm, put, raw, read, sets};

fn list(numbers: impl IntoIterator<Item = usize>) -> String {
    numbers.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join("/")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn norm_of_any_lists(set in sets(40, any::<i64>(), false), batch in 1..50usize, framed: bool, cut in 0..40usize) {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = set.samples.split_at(cut.min(set.samples.len()));
        put(dir.path(), "0.data", norm(&set, first, true, framed));
        put(dir.path(), "1.data", norm(&set, second, true, framed));
        let list = put(dir.path(), "list.txt", "2\n0.data\n1.data\n");
        prop_assert_eq!(&read(&format!("norm:{list}:i64"), batch).unwrap(), &set.samples);
        // Without its kind, a list is known by its files.
        prop_assert_eq!(read(&format!("{list}:i64"), batch).unwrap(), set.samples);
    }

    #[test]
    fn norm_of_narrow_keys(set in sets(40, 0..=i64::from(u32::MAX), false), batch in 1..50usize, framed: bool) {
        let dir = tempfile::tempdir().unwrap();
        let file = put(dir.path(), "t.data", norm(&set, &set.samples, false, framed));
        prop_assert_eq!(read(&file, batch).unwrap(), set.samples);
    }

    #[test]
    fn raw_of_any_hotness(set in sets(40, 0..=i64::from(u32::MAX), true), batch in 1..50usize, wide: bool) {
        let dir = tempfile::tempdir().unwrap();
        let file = put(dir.path(), "t.bin", raw(&set.samples, wide));
        let hotness = list(set.samples[0].ids.iter().map(Vec::len));
        let keys = if wide { ",i64" } else { "" };
        let spec = format!("raw:{file}:labels={},dense={},hotness={hotness}{keys}", set.labels, set.dense);
        prop_assert_eq!(read(&spec, batch).unwrap(), set.samples);
    }
}

#[test]
fn integers_of_raw_become_logarithms() {
    let dir = tempfile::tempdir().unwrap();
    let words = [1i32, 0, 7, 3, 0, -1, 1_000_000, 4];
    let file = put(dir.path(), "t.bin", words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
    let samples = read(&format!("raw:{file}:labels=1,dense=2,slots=1,integers"), 2).unwrap();
    let sample =
        |label, dense: [f32; 2], id| Sample { labels: vec![label], dense: dense.to_vec(), ids: vec![vec![id]] };
    assert_eq!(samples[0], sample(1.0, [0.0, 8f32.ln()], 3));
    // log(0): what a count of −1 becomes, as HugeCTR computes it.
    assert_eq!(samples[1], sample(0.0, [f32::NEG_INFINITY, 1_000_001f32.ln()], 4));
}

#[test]
fn names_sizes_and_batches_are_as_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let sample = |at: i64| Sample { labels: vec![at as f32], dense: vec![], ids: vec![vec![at], vec![at % 3, 4]] };
    let samples: Vec<_> = (0..10).map(sample).collect();
    let first = put(dir.path(), "0.bin", raw(&samples[..7], false));
    let second = put(dir.path(), "1.bin", raw(&samples[7..], false));
    let text = format!("raw:{first}:labels=click,hotness=1/2,features=user/item,sizes=10/5");
    let mut spec: DataSpec = text.parse().unwrap();
    spec.paths.push(second.into());
    let options = DataOptions { batch: 4, drop_last: true, ..DataOptions::default() };
    let mut reader = DataReader::open(&spec, &options).unwrap();
    assert_eq!((reader.format(), reader.samples()), (DataFormat::Raw, Some(8)));
    let names: Vec<_> = reader.shape().features.iter().map(|feature| (&*feature.name, feature.hotness)).collect();
    assert_eq!(
        (names, &*reader.shape().labels),
        (vec![("user", Some(1)), ("item", Some(2))], &["click".to_owned()][..])
    );
    let batches: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(|batch| batch.samples()).collect::<Vec<_>>(), [4, 4]);
    // The second file's samples follow the first's within a batch; the items' ids have the users' number added.
    assert_eq!(batches[1].feature(0), [4, 5, 6, 7]);
    assert_eq!(batches[1].feature(1), [11, 14, 12, 14, 10, 14, 11, 14]);
    assert!(matches!(reader.wait(std::time::Duration::ZERO), Ok(NextBatch::Ended)));
}

#[test]
fn a_reader_that_is_dropped_ends_its_thread() {
    let dir = tempfile::tempdir().unwrap();
    let file = put(dir.path(), "t.bin", vec![0; 8 << 16]);
    let spec: DataSpec = format!("raw:{file}:labels=1,slots=1").parse().unwrap();
    let options = DataOptions { batch: 16, ahead: 1, drop_last: false };
    let mut reader = DataReader::open(&spec, &options).unwrap();
    assert_eq!(reader.next_batch().unwrap().unwrap().samples(), 16);
    let used = reader.used();
    let batch = reader.next_batch().unwrap().unwrap();
    // Returns although thousands of batches are still to come.
    drop(reader);
    used.put(batch);
}

/// The data set of another writer.
#[test]
fn pyarrows_data_set_is_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let sample = |at: i64| Sample {
        labels: vec![(at % 2) as f32],
        dense: vec![at as f32 / 2.0],
        ids: vec![vec![at * at % 1000], vec![-at], (0..at % 4).map(|nth| at * 7 + nth).collect()],
    };
    for batch in [1, 37, 4096] {
        assert_eq!(read(folder, batch).unwrap(), (0..300).map(sample).collect::<Vec<_>>());
    }
    let reader = DataReader::open(&DataSpec::new(folder), &DataOptions::default()).unwrap();
    let features: Vec<_> = reader.shape().features.iter().map(|it| (&*it.name, it.hotness)).collect();
    assert_eq!(features, [("C1", Some(1)), ("C2", Some(1)), ("C3", None)]);
    assert_eq!((reader.shape().labels.join(" "), reader.shape().dense.join(" ")), ("label".into(), "I1".into()));
}

/// Columns of types that nothing takes are named, and what is converted from the others says so.
#[test]
fn columns_of_other_types_are_left_out_by_name() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden-types/types.parquet");
    let reader = DataReader::open(&DataSpec::new(path), &DataOptions::default()).unwrap();
    assert_eq!(reader.left_out(), ["name", "day", "half"]);
    assert_eq!((reader.shape().labels.join(" "), reader.shape().dense.len()), ("label".to_owned(), 0));
    drop(reader);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t.npz");
    let go = &mut |_: u64, _: Option<u64>| std::ops::ControlFlow::<()>::Continue(());
    let options = DataWriteOptions::default();
    let done = convert(&DataSpec::new(path), &out, DataFormat::Npz, &options, go).unwrap().unwrap();
    assert_eq!((done.samples, done.left_out), (2, vec!["name".to_owned(), "day".into(), "half".into()]));
    let reader = DataReader::open(&DataSpec::new(&out), &DataOptions::default()).unwrap();
    assert!(reader.left_out().is_empty());
}

/// A shard that the folder's metadata name and that is gone is missed, unless the others are named one by one.
#[test]
fn a_missing_shard_is_named() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let dir = tempfile::tempdir().unwrap();
    for name in ["0.parquet", "_metadata.json"] {
        std::fs::copy(golden.join(name), dir.path().join(name)).unwrap();
    }
    for path in [dir.path().to_owned(), dir.path().join("_metadata.json")] {
        let error = DataReader::open(&DataSpec::new(&path), &DataOptions::default()).unwrap_err();
        assert_eq!(error.kind, warprow_traces::FileErrorKind::Missing);
        assert!(format!("{error}").contains("1.parquet") && error.what.contains("_metadata.json names it"), "{error}");
        let error = warprow_traces::Trace::open(&path.display().to_string().parse().unwrap()).unwrap_err();
        assert!(error.what.contains("_metadata.json names it"), "{error}");
    }
    let alone = DataReader::open(&DataSpec::new(dir.path().join("0.parquet")), &DataOptions::default()).unwrap();
    assert_eq!(alone.samples(), Some(200));
}

#[test]
fn text_in_hexadecimal_and_logarithms() {
    let dir = tempfile::tempdir().unwrap();
    let file = put(dir.path(), "t.tsv", "click\tdense\tuser\n1\t7\tff|10\n0\t0\t\n");
    let samples = read(&format!("csv:{file}:hex,log"), 8).unwrap();
    let sample =
        |label, dense: f32, ids: &[i64]| Sample { labels: vec![label], dense: vec![dense], ids: vec![ids.to_vec()] };
    assert_eq!(samples, [sample(1.0, 8f32.ln(), &[255, 16]), sample(0.0, 0.0, &[])]);
}
