//! An archive of NumPy's: `labels` and `dense`, and for each sparse feature an array of its name, with `NAME.offsets` if samples have any
//! number of ids.

use std::path::Path;

use warprow_formats::{ArrayArchiveWriter, FileError, FileErrorKind};

use super::batches::WriteBatches;
use super::options::DataWriteOptions;
use crate::data::batch::DataBatch;
use crate::data::npz::{DENSE, LABELS, OFFSETS};
use crate::data::shape::DataShape;

pub(super) struct NpzWriter {
    file: ArrayArchiveWriter,
    widths: [u64; 2],
    hotness: Vec<Option<u32>>,
    samples: u64,
    /// Ids of each feature so far.
    ids: Vec<u64>,
    bytes: Vec<u8>,
}

impl NpzWriter {
    pub(super) fn create(path: &Path, shape: &DataShape, options: &DataWriteOptions) -> Result<Self, FileError> {
        let is_feature = |name: &str| shape.features.iter().any(|feature| feature.name == name);
        let taken = |name: &str| name.strip_suffix(OFFSETS).is_some_and(is_feature);
        if let Some(feature) = shape.features.iter().find(|feature| taken(&feature.name)) {
            let what = format!("an array {:?} would be taken for the offsets of another feature", feature.name);
            return Err(FileError::new(FileErrorKind::Duplicate, path, what, "rename the feature: features="));
        }
        let mut arrays = vec![(LABELS.to_owned(), "<f4"), (DENSE.to_owned(), "<f4")];
        for feature in &shape.features {
            arrays.push((feature.name.clone(), "<i8"));
            if feature.hotness.is_none() {
                arrays.push((format!("{}{OFFSETS}", feature.name), "<i8"));
            }
        }
        let mut file = ArrayArchiveWriter::create(path, options.force, &arrays)?;
        // Offsets begin with 0.
        for (nth, (name, _)) in arrays.iter().enumerate() {
            if nth >= 2 && name.ends_with(OFFSETS) && shape.features.iter().all(|feature| feature.name != *name) {
                file.put(nth, &0i64.to_le_bytes())?;
            }
        }
        Ok(Self {
            file,
            widths: [shape.labels.len() as u64, shape.dense.len() as u64],
            hotness: shape.features.iter().map(|feature| feature.hotness).collect(),
            samples: 0,
            ids: vec![0; shape.features.len()],
            bytes: Vec::new(),
        })
    }
}

impl WriteBatches for NpzWriter {
    fn write(&mut self, batch: &DataBatch, _first: u64) -> Result<(), FileError> {
        let Self { file, hotness, samples, ids, bytes, .. } = self;
        for (array, floats) in [batch.labels(), batch.dense()].into_iter().enumerate() {
            bytes.clear();
            bytes.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
            file.put(array, bytes)?;
        }
        let mut array = 2;
        for (feature, hotness) in hotness.iter().enumerate() {
            bytes.clear();
            bytes.extend(batch.feature(feature).iter().flat_map(|id| id.to_le_bytes()));
            file.put(array, bytes)?;
            array += 1;
            if hotness.is_none() {
                bytes.clear();
                for sample in 0..batch.samples() {
                    ids[feature] += batch.list(feature, sample).len() as u64;
                    bytes.extend(ids[feature].to_le_bytes());
                }
                file.put(array, bytes)?;
                array += 1;
            } else {
                ids[feature] += batch.feature(feature).len() as u64;
            }
        }
        *samples += batch.samples() as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), FileError> {
        let Self { file, widths, hotness, samples, ids, .. } = *self;
        let mut shapes: Vec<Vec<u64>> = widths.iter().map(|&width| vec![samples, width]).collect();
        for (hotness, ids) in hotness.iter().zip(ids) {
            match hotness {
                Some(1) => shapes.push(vec![samples]),
                Some(each) => shapes.push(vec![samples, u64::from(*each)]),
                None => shapes.extend([vec![ids], vec![samples + 1]]),
            }
        }
        file.finish(&shapes)
    }
}
