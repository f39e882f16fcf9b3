//! HugeCTR's Raw.

use std::path::Path;

use warprow_formats::{FileError, FileErrorKind, KeyType};

use super::files::{DataFiles, FileSamples};
use super::opened::OpenedData;
use super::shape::{DataFeature, DataShape};
use super::spec::DataSpec;
use super::staging::Staging;
use crate::fixed::{Fixed, raw_samples};

impl FileSamples for Fixed {
    fn read(&mut self, staging: &mut Staging) -> Result<(), FileError> {
        Fixed::read(self, staging)
    }
}

pub(super) fn open(spec: &DataSpec) -> Result<OpenedData, FileError> {
    let width = spec.keys.unwrap_or(KeyType::U32);
    let labels = spec.labels.count();
    let dense = spec.dense.count();
    let hotness = match (spec.hotness.len(), spec.features.len()) {
        (0, named) => vec![1; named],
        _ => spec.hotness.clone(),
    };
    let words = (labels + dense) as u64;
    let sample = words * 4 + hotness.iter().map(|&keys| u64::from(keys)).sum::<u64>() * width.size();
    let files = spec.files()?;
    let mut samples = 0;
    for file in &files {
        samples += raw_samples(file, words, &hotness, width)?.0.len / sample;
    }
    let names = match spec.features.len() {
        0 => (0..hotness.len()).map(|slot| slot.to_string()).collect(),
        _ => spec.named(&spec.features, hotness.len(), "features")?,
    };
    if let Some(slot) = hotness.iter().position(|&keys| keys == 0) {
        let what = format!("slot {slot} is said to have no keys");
        return Err(FileError::new(FileErrorKind::Unclear, spec.path(), what, "leave the slot out of hotness="));
    }
    let features = names.into_iter().zip(&hotness);
    let shape = DataShape {
        labels: spec.labels.names_of("label", labels, spec)?,
        dense: spec.dense.names_of("dense", dense, spec)?,
        features: features.map(|(name, &keys)| DataFeature { name, hotness: Some(keys) }).collect(),
    };
    let open = move |path: &Path| -> Result<Box<dyn FileSamples>, FileError> {
        let (stream, before) = raw_samples(path, words, &hotness, width)?;
        Ok(Box::new(Fixed::new(stream, before, hotness.clone(), width)))
    };
    Ok(OpenedData { shape, samples: Some(samples), files: DataFiles::new(files, Box::new(open)), left_out: Vec::new() })
}
