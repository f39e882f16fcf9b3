//! What is written in a format is what is read from it: there and back, and from each format to each other.

use std::path::Path;

use proptest::prelude::*;
use warprow_traces::data::{
    DataFeature, DataFormat, DataOptions, DataReader, DataShape, DataSpec, DataWriteOptions, DataWriter,
};
use warprow_traces::{FileError, KeyType};

use crate::build::{Sample, Set, norm, put, read, sets};

/// Writes the data set `spec` to `out`, with so many ids of each feature, if that is said.
fn convert(
    spec: &str,
    batch: usize,
    out: &Path,
    format: DataFormat,
    hotness: Option<&[u32]>,
    keys: KeyType,
) -> Result<u64, FileError> {
    let options = DataOptions { batch, ..DataOptions::default() };
    let reader = DataReader::open(&spec.parse::<DataSpec>().unwrap(), &options)?;
    let mut shape: DataShape = reader.shape().clone();
    for (feature, &each) in shape.features.iter_mut().zip(hotness.unwrap_or_default()) {
        feature.hotness = Some(each);
    }
    let options = DataWriteOptions { keys, ..DataWriteOptions::default() };
    let mut writer = DataWriter::create(out, format, &shape, &options)?;
    for batch in reader {
        writer.write(&batch?)?;
    }
    writer.finish()
}

/// How a written data set is named, so that it is read as it was.
fn named(path: &Path, format: DataFormat, set: &Set, hotness: &[u32]) -> String {
    let path = path.display();
    let list: Vec<_> = hotness.iter().map(u32::to_string).collect();
    match format {
        DataFormat::Norm => format!("norm:{path}:i64"),
        DataFormat::Raw => {
            format!("raw:{path}:labels={},dense={},hotness={},i64", set.labels, set.dense, list.join("/"))
        }
        other => format!("{}:{path}", other.name()),
    }
}

fn there_and_back(set: &Set, batches: [usize; 2], hotness: Option<&[u32]>) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let first = put(dir.path(), "first", norm(set, &set.samples, true, true));
    let all: Vec<DataFormat> =
        DataFormat::ALL.into_iter().filter(|&format| hotness.is_some() || format != DataFormat::Raw).collect();
    for &format in &all {
        let out = dir.path().join(format.name());
        let written = convert(&format!("norm:{first}:i64"), batches[0], &out, format, hotness, KeyType::I64).unwrap();
        prop_assert_eq!(written, set.samples.len() as u64);
        let name = named(&out, format, set, hotness.unwrap_or_default());
        prop_assert_eq!(&read(&name, batches[1]).unwrap(), &set.samples, "{}", format.name());
        // And from there back to Norm, which is the file that it was.
        let back = dir.path().join(format!("{}.back", format.name()));
        convert(&name, batches[1], &back, DataFormat::Norm, None, KeyType::I64).unwrap();
        prop_assert!(std::fs::read(&back).unwrap() == std::fs::read(&first).unwrap(), "{}", format.name());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn lists_of_any_length(set in sets(30, any::<i64>(), false), batches: [u8; 2]) {
        there_and_back(&set, batches.map(|batch| usize::from(batch % 40) + 1), None)?;
    }

    #[test]
    fn lists_of_one_length(set in sets(30, any::<i64>(), true), batches: [u8; 2]) {
        let hotness: Vec<_> = set.samples[0].ids.iter().map(|list| list.len() as u32).collect();
        there_and_back(&set, batches.map(|batch| usize::from(batch % 40) + 1), Some(&hotness))?;
    }
}

/// A file of Parquet is not written where a later reading of the data set would find it.
#[test]
fn the_folder_that_is_read_is_not_written_to() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let dir = tempfile::tempdir().unwrap();
    for name in ["0.parquet", "1.parquet", "_metadata.json"] {
        std::fs::copy(golden.join(name), dir.path().join(name)).unwrap();
    }
    let go = &mut |_: u64, _: Option<u64>| std::ops::ControlFlow::<()>::Continue(());
    let options = DataWriteOptions::default();
    let out = dir.path().join("all.PARQUET");
    for path in [dir.path().to_owned(), dir.path().join("_metadata.json")] {
        let spec = DataSpec::new(&path);
        let error = warprow_traces::data::convert(&spec, &out, DataFormat::Parquet, &options, go).unwrap_err();
        assert!(error.what.contains("which is read") && error.remedy.contains("another folder"), "{error}");
        assert!(!out.exists());
    }
    // A file of it alone, and another format, are in nobody's way.
    let one = DataSpec::new(dir.path().join("0.parquet"));
    assert_eq!(
        warprow_traces::data::convert(&one, &out, DataFormat::Parquet, &options, go).unwrap().unwrap().samples,
        200
    );
    std::fs::remove_file(&out).unwrap();
    let all = DataSpec::new(dir.path());
    let text = dir.path().join("all.csv");
    assert_eq!(
        warprow_traces::data::convert(&all, &text, DataFormat::Csv, &options, go).unwrap().unwrap().samples,
        300
    );
}

/// Shapes that a format would read as another, or not at all.
#[test]
fn shapes_that_could_not_be_read_back_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let shape = |features: &[(&str, Option<u32>)]| DataShape {
        labels: vec!["label".into()],
        dense: vec!["dense".into()],
        features: features.iter().map(|&(name, hotness)| DataFeature { name: name.into(), hotness }).collect(),
    };
    let out = dir.path().join("out");
    let refused = |format, shape: &DataShape| {
        let error = DataWriter::create(&out, format, shape, &DataWriteOptions::default()).unwrap_err();
        assert!(!out.exists() && !error.remedy.is_empty(), "{error}");
        error.what
    };
    for format in [DataFormat::Norm, DataFormat::Raw] {
        assert!(refused(format, &shape(&[])).contains("these samples have none"));
    }
    for hotness in [None, Some(1)] {
        let twice = shape(&[("user", hotness), ("user.offsets", Some(1))]);
        assert!(refused(DataFormat::Npz, &twice).contains("\"user.offsets\" would be taken for the offsets"));
    }
    // Without the feature whose offsets it might be, it is a name like any other.
    let mut alone =
        DataWriter::create(&out, DataFormat::Npz, &shape(&[("user.offsets", Some(1))]), &DataWriteOptions::default());
    assert_eq!(alone.as_mut().map(|_| ()).map_err(|error| error.what.clone()), Ok(()));
}

/// Text has tabs in a file whose name ends in .tsv, however that is spelt.
#[test]
fn the_ending_of_text_may_have_capitals() {
    let dir = tempfile::tempdir().unwrap();
    let (set, sample) = one(vec![vec![7], vec![3]]);
    let source = format!("norm:{}:i64", put(dir.path(), "t", norm(&set, std::slice::from_ref(&sample), true, true)));
    for (name, separator) in [("t.TSV", '\t'), ("t.tsv", '\t'), ("t.CSV", ',')] {
        let out = dir.path().join(name);
        convert(&source, 2, &out, DataFormat::Csv, None, KeyType::I64).unwrap();
        assert!(
            std::fs::read_to_string(&out).unwrap().starts_with(&format!("label{separator}0{separator}1\n")),
            "{name}"
        );
        assert_eq!(read(&out.display().to_string(), 2).unwrap(), std::slice::from_ref(&sample), "{name}");
    }
}

fn one(ids: Vec<Vec<i64>>) -> (Set, Sample) {
    let sample = Sample { labels: vec![1.0], dense: vec![], ids };
    let set = Set { labels: 1, dense: 0, features: sample.ids.len(), samples: vec![sample.clone()] };
    (set, sample)
}

#[test]
fn samples_that_a_format_cannot_have_are_refused_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let (set, sample) = one(vec![vec![7], vec![1 << 32]]);
    let (_, longer) = one(vec![vec![7, 8], vec![3]]);
    let samples = [sample.clone(), sample, longer];
    let path = put(dir.path(), "t", norm(&set, &samples, true, true));
    let source = format!("norm:{path}:i64");
    let out = dir.path().join("out");
    let refused = |format, hotness: Option<&[u32]>, keys| {
        let error = convert(&source, 2, &out, format, hotness, keys).unwrap_err();
        assert!(!out.exists(), "{error}");
        format!("{error}; {}", error.remedy)
    };
    let error = refused(DataFormat::Norm, None, KeyType::U32);
    assert!(error.contains("sample 0 has the id 4294967296 of feature \"1\", which is no u32"), "{error}");
    assert!(error.contains("write keys of i64"), "{error}");
    let error = refused(DataFormat::Raw, None, KeyType::I64);
    assert!(error.contains("nothing says how many ids each sample has of feature \"0\""), "{error}");
    let error = refused(DataFormat::Raw, Some(&[1, 1]), KeyType::I64);
    assert!(error.contains("sample 2 has 2 ids of feature \"0\", of which each sample should have 1"), "{error}");
    assert!(error.contains("norm, parquet, csv or npz"), "{error}");
    assert!(refused(DataFormat::Norm, None, KeyType::U64).contains("u32 or i64"));
    // A file that exists stays as it is.
    std::fs::write(&out, "precious").unwrap();
    let error = convert(&source, 2, &out, DataFormat::Csv, None, KeyType::I64).unwrap_err();
    assert_eq!(error.kind, warprow_traces::FileErrorKind::Exists);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}
