//! What is written in a format is what is read from it: there and back, and from each format to each other.

use std::path::Path;

use proptest::prelude::*;
use warprow_traces::data::{DataFormat, DataOptions, DataReader, DataShape, DataSpec, DataWriteOptions, DataWriter};
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
