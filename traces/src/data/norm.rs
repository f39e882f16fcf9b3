//! HugeCTR's Norm.

use std::path::PathBuf;

use warprow_formats::{FileError, FileErrorKind, KeyType};

use super::files::{DataFiles, FileSamples};
use super::opened::OpenedData;
use super::shape::{DataFeature, DataShape};
use super::spec::DataSpec;
use super::staging::Staging;
use crate::list;
use crate::norm::{Norm, header_of};

impl FileSamples for Norm {
    fn read(&mut self, staging: &mut Staging) -> Result<(), FileError> {
        Norm::read(self, staging)
    }
}

pub(super) fn open(spec: &DataSpec) -> Result<OpenedData, FileError> {
    let width = spec.keys.unwrap_or(KeyType::U32);
    let files = spec.paths.iter().map(|path| list::files(path)).collect::<Result<Vec<_>, _>>()?.concat();
    let Some(first) = files.first() else {
        return Err(FileError::new(FileErrorKind::Missing, spec.path(), "lists no file", "look at the list"));
    };
    let shape = header_of(first)?.shape();
    let mut samples = 0u64;
    for file in &files {
        let header = header_of(file)?;
        if header.shape() != shape {
            let what = format!(
                "labels, dense features and slots are {:?} in it, {shape:?} in {}",
                header.shape(),
                first.display()
            );
            return Err(FileError::new(FileErrorKind::Disagree, file, what, "list only files of one data set"));
        }
        samples = samples.saturating_add(header.samples);
    }
    let (labels, dense, slots) = shape;
    let names = |names: &[String], count, plain: &str| spec.named(names, count, plain);
    let features = match spec.features.len() {
        0 => (0..slots).map(|slot| slot.to_string()).collect(),
        _ => names(&spec.features, slots, "features")?,
    };
    let shape = DataShape {
        labels: spec.labels.names_of("label", labels, spec)?,
        dense: spec.dense.names_of("dense", dense, spec)?,
        features: features.into_iter().map(|name| DataFeature { name, hotness: None }).collect(),
    };
    let open = move |path: &std::path::Path| -> Result<Box<dyn FileSamples>, FileError> {
        Ok(Box::new(Norm::open(path, vec![PathBuf::from(path)], width)?))
    };
    Ok(OpenedData { shape, samples: Some(samples), files: DataFiles::new(files, Box::new(open)), left_out: Vec::new() })
}
