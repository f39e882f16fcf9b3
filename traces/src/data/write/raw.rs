//! HugeCTR's Raw.

use std::path::Path;

use warprow_formats::{FileError, FileErrorKind, FileStream};

use super::batches::{WriteBatches, row};
use super::options::{DataWriteOptions, Keys};
use crate::data::batch::DataBatch;
use crate::data::shape::DataShape;

pub(super) struct RawWriter {
    file: FileStream,
    keys: Keys,
    bytes: Vec<u8>,
}

impl RawWriter {
    pub(super) fn create(path: &Path, shape: &DataShape, options: &DataWriteOptions) -> Result<Self, FileError> {
        if let Some(feature) = shape.features.iter().find(|feature| feature.hotness.is_none_or(|hotness| hotness == 0))
        {
            let what = format!("nothing says how many ids each sample has of feature {:?}", feature.name);
            let remedy = "say its hotness, at least 1; lists of any length go into norm, parquet, csv or npz";
            return Err(FileError::new(FileErrorKind::Unclear, path, what, remedy));
        }
        Ok(Self {
            file: FileStream::create(path, options.force)?,
            keys: Keys::new(path, shape, options)?,
            bytes: Vec::new(),
        })
    }
}

impl WriteBatches for RawWriter {
    fn write(&mut self, batch: &DataBatch, first: u64) -> Result<(), FileError> {
        let samples = batch.samples();
        for sample in 0..samples {
            self.bytes.clear();
            let floats = row(batch.labels(), samples, sample).iter().chain(row(batch.dense(), samples, sample));
            self.bytes.extend(floats.flat_map(|float| float.to_le_bytes()));
            for feature in 0..batch.features() {
                self.keys.put(batch.list(feature, sample), &mut self.bytes, first + sample as u64, feature)?;
            }
            self.file.put(&self.bytes)?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), FileError> {
        self.file.finish()
    }
}
