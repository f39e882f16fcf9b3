//! Data sets, byte by byte, by other code than the crate's.

use std::path::Path;

use proptest::prelude::*;
use warprow_traces::FileError;
use warprow_traces::data::{DataBatch, DataOptions, DataReader};

/// A sample: labels, dense features, and the ids of each sparse feature.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) labels: Vec<f32>,
    pub(crate) dense: Vec<f32>,
    pub(crate) ids: Vec<Vec<i64>>,
}

/// What samples have.
#[derive(Debug, Clone)]
pub(crate) struct Set {
    pub(crate) labels: usize,
    pub(crate) dense: usize,
    pub(crate) features: usize,
    pub(crate) samples: Vec<Sample>,
}

/// Data sets of up to `most` samples; ids are of `width` bytes, lists of any length, or of the same length in each sample.
pub(crate) fn sets(
    most: usize,
    ids: impl Strategy<Value = i64> + Clone + 'static,
    fixed: bool,
) -> impl Strategy<Value = Set> {
    let shape = (0..3usize, 0..4usize, prop::collection::vec(1..4usize, 1..5));
    shape.prop_flat_map(move |(labels, dense, hotness)| {
        let lists: Vec<_> = hotness
            .iter()
            .map(|&each| prop::collection::vec(ids.clone(), if fixed { each..=each } else { 0..=each * 2 }))
            .collect();
        let float = || any::<f32>().prop_filter("a number", |float| !float.is_nan());
        let floats = (prop::collection::vec(float(), labels), prop::collection::vec(float(), dense));
        let sample = (floats, lists).prop_map(|((labels, dense), ids)| Sample { labels, dense, ids });
        let features = hotness.len();
        prop::collection::vec(sample, 1..most).prop_map(move |samples| Set { labels, dense, features, samples })
    })
}

/// The bytes of a key.
pub(crate) fn key(key: i64, wide: bool) -> Vec<u8> {
    match wide {
        true => key.to_le_bytes().to_vec(),
        false => u32::try_from(key).unwrap().to_le_bytes().to_vec(),
    }
}

fn floats(sample: &Sample) -> Vec<u8> {
    sample.labels.iter().chain(&sample.dense).flat_map(|float| float.to_le_bytes()).collect()
}

/// A Norm data file.
pub(crate) fn norm(set: &Set, samples: &[Sample], wide: bool, framed: bool) -> Vec<u8> {
    let mut file = Vec::new();
    let unit = |file: &mut Vec<u8>, bytes: &[u8]| match framed {
        true => {
            file.extend((bytes.len() as i32).to_le_bytes());
            file.extend(bytes);
            file.push(bytes.iter().fold(0, |sum, &byte| sum.wrapping_add(byte)));
        }
        false => file.extend(bytes),
    };
    let header =
        [framed.into(), samples.len() as i64, set.labels as i64, set.dense as i64, set.features as i64, 0, 0, 0];
    unit(&mut file, &header.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
    for sample in samples {
        let mut bytes = floats(sample);
        for list in &sample.ids {
            bytes.extend((list.len() as i32).to_le_bytes());
            list.iter().for_each(|&id| bytes.extend(key(id, wide)));
        }
        unit(&mut file, &bytes);
    }
    file
}

/// A Raw file.
pub(crate) fn raw(samples: &[Sample], wide: bool) -> Vec<u8> {
    let of = |sample: &Sample| {
        let ids = sample.ids.iter().flatten().flat_map(|&id| key(id, wide));
        floats(sample).into_iter().chain(ids).collect::<Vec<u8>>()
    };
    samples.iter().flat_map(of).collect()
}

/// All samples of batches of `batch`, of which all but the last are whole.
pub(crate) fn read(spec: &str, batch: usize) -> Result<Vec<Sample>, FileError> {
    let options = DataOptions { batch, ..DataOptions::default() };
    let mut reader = DataReader::open(&spec.parse().unwrap(), &options)?;
    let shape = reader.shape().clone();
    let used = reader.used();
    let mut all = Vec::new();
    let mut last = batch;
    while let Some(next) = reader.next_batch()? {
        assert_eq!(last, batch, "a batch before the last is whole");
        last = next.samples();
        assert!((1..=batch).contains(&last));
        assert_eq!((next.first(), next.features()), (all.len() as u64, shape.features.len()));
        all.extend((0..last).map(|sample| sample_of(&next, sample)));
        // The memory is used again.
        used.put(next);
    }
    assert!(matches!(reader.next_batch(), Ok(None)));
    if let Some(samples) = reader.samples() {
        assert_eq!(samples, all.len() as u64);
    }
    Ok(all)
}

/// One sample of a batch, found by each of the ways in which a batch gives its ids.
fn sample_of(batch: &DataBatch, sample: usize) -> Sample {
    let samples = batch.samples();
    let row = |all: &[f32]| all[all.len() / samples * sample..all.len() / samples * (sample + 1)].to_vec();
    let list = |feature: usize| {
        let of_feature = batch.feature(feature);
        let before: usize = (0..sample).map(|before| batch.list(feature, before).len()).sum();
        let at = batch.offsets()[feature * samples + sample] as usize;
        let list = batch.list(feature, sample);
        assert_eq!(list, &batch.ids()[at..at + list.len()]);
        assert_eq!(list, &of_feature[before..before + list.len()]);
        list.to_vec()
    };
    let ids = (0..batch.features()).map(list).collect();
    assert_eq!(batch.offsets().len(), batch.features() * samples + 1);
    assert_eq!(*batch.offsets().last().unwrap(), batch.ids().len() as i64);
    Sample { labels: row(batch.labels()), dense: row(batch.dense()), ids }
}

/// Writes a file in a folder.
pub(crate) fn put(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

/// The error of a data set.
pub(crate) fn fails(spec: &str) -> String {
    let error = read(spec, 3).unwrap_err();
    format!("{error}; {}", error.remedy)
}
