//! HugeCTR's Norm.

use std::path::Path;

use warprow_formats::{FileError, FileStream};

use super::batches::{WriteBatches, row};
use super::options::{DataWriteOptions, Keys};
use crate::data::batch::DataBatch;
use crate::data::shape::DataShape;

pub(super) struct NormWriter {
    file: FileStream,
    keys: Keys,
    sums: bool,
    shape: [usize; 3],
    samples: u64,
    unit: Vec<u8>,
}

impl NormWriter {
    pub(super) fn create(path: &Path, shape: &DataShape, options: &DataWriteOptions) -> Result<Self, FileError> {
        let mut made = Self {
            file: FileStream::create(path, options.force)?,
            keys: Keys::new(path, shape, options)?,
            sums: options.sums,
            shape: [shape.labels.len(), shape.dense.len(), shape.features.len()],
            samples: 0,
            unit: Vec::new(),
        };
        let header = made.header();
        made.file.put(&header)?;
        Ok(made)
    }

    /// The header, which says how many samples follow.
    fn header(&self) -> Vec<u8> {
        let [labels, dense, features] = self.shape.map(|number| number as u64);
        let numbers = [self.sums.into(), self.samples, labels, dense, features, 0, 0, 0];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        if self.sums { framed(&bytes) } else { bytes }
    }
}

/// A unit between its length and the sum of its bytes.
fn framed(unit: &[u8]) -> Vec<u8> {
    let sum = unit.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
    [&(unit.len() as i32).to_le_bytes(), unit, &[sum]].concat()
}

impl WriteBatches for NormWriter {
    fn write(&mut self, batch: &DataBatch, first: u64) -> Result<(), FileError> {
        let samples = batch.samples();
        for sample in 0..samples {
            self.unit.clear();
            let floats = row(batch.labels(), samples, sample).iter().chain(row(batch.dense(), samples, sample));
            self.unit.extend(floats.flat_map(|float| float.to_le_bytes()));
            for feature in 0..batch.features() {
                let list = batch.list(feature, sample);
                self.unit.extend((list.len() as i32).to_le_bytes());
                self.keys.put(list, &mut self.unit, first + sample as u64, feature)?;
            }
            match self.sums {
                true => self.file.put(&framed(&self.unit))?,
                false => self.file.put(&self.unit)?,
            }
        }
        self.samples += samples as u64;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), FileError> {
        let header = self.header();
        self.file.replace(0, &header)?;
        self.file.finish()
    }
}
