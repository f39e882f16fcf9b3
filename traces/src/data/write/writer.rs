//! A data set that is being written, whatever its format.

use std::path::{Path, PathBuf};

use warprow_formats::{FileError, FileErrorKind};

use super::batches::WriteBatches;
use super::options::DataWriteOptions;
use super::{csv, norm, npz, parquet, raw};
use crate::data::batch::DataBatch;
use crate::data::shape::DataShape;
use crate::data::spec::DataFormat;

/// A data set that is being written, to one file. Dropped before [`finish`](Self::finish), it leaves nothing behind.
///
/// ```
/// use warprow_traces::data::{DataFormat, DataOptions, DataReader, DataSpec, DataWriteOptions, DataWriter};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("train.csv");
/// # let out = dir.path().join("train.bin");
/// std::fs::write(&path, "label,dense,user,item\n1,0.5,7,3\n0,2,8,4\n")?;
/// let reader = DataReader::open(&DataSpec::new(&path), &DataOptions::default())?;
/// // Text does not say how many ids each sample has; Raw has to know.
/// let mut shape = reader.shape().clone();
/// shape.features.iter_mut().for_each(|feature| feature.hotness = Some(1));
/// let mut writer = DataWriter::create(&out, DataFormat::Raw, &shape, &DataWriteOptions::default())?;
/// for batch in reader {
///     writer.write(&batch?)?;
/// }
/// assert_eq!(writer.finish()?, 2);
/// let words = [1f32.to_bits(), 0.5f32.to_bits(), 7, 3, 0f32.to_bits(), 2f32.to_bits(), 8, 4];
/// assert_eq!(std::fs::read(&out)?, words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DataWriter {
    path: PathBuf,
    shape: DataShape,
    file: Box<dyn WriteBatches>,
    samples: u64,
}

impl std::fmt::Debug for DataWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataWriter").field("path", &self.path).field("samples", &self.samples).finish_non_exhaustive()
    }
}

impl DataWriter {
    /// Begins the file `path` for samples of `shape`.
    ///
    /// # Errors
    /// A file that exists, unless [`DataWriteOptions::force`] is set; a shape that the format cannot have: Norm and Raw want a
    /// sparse feature, Raw the [hotness](crate::data::DataFeature::hotness) of every one, and columns have names of their own.
    pub fn create(
        path: &Path,
        format: DataFormat,
        shape: &DataShape,
        options: &DataWriteOptions,
    ) -> Result<Self, FileError> {
        if matches!(format, DataFormat::Norm | DataFormat::Raw) && shape.features.is_empty() {
            let what = format!("{} has samples with sparse features alone, and these samples have none", format.name());
            let remedy = "name the sparse features, or write to parquet, csv or npz";
            return Err(FileError::new(FileErrorKind::Unsupported, path, what, remedy));
        }
        let file: Box<dyn WriteBatches> = match format {
            DataFormat::Norm => Box::new(norm::NormWriter::create(path, shape, options)?),
            DataFormat::Raw => Box::new(raw::RawWriter::create(path, shape, options)?),
            DataFormat::Parquet => Box::new(parquet::ParquetWriter::create(path, shape, options)?),
            DataFormat::Csv => Box::new(csv::CsvWriter::create(path, shape, options)?),
            DataFormat::Npz => Box::new(npz::NpzWriter::create(path, shape, options)?),
        };
        Ok(Self { path: path.to_owned(), shape: shape.clone(), file, samples: 0 })
    }

    /// Adds all samples of `batch`, which has the labels, dense features and sparse features of the shape.
    ///
    /// # Errors
    /// A sample that the format cannot have: by its number, the feature and what to do.
    pub fn write(&mut self, batch: &DataBatch) -> Result<(), FileError> {
        let DataShape { labels, dense, features } = &self.shape;
        let has = |all: usize, width: usize| all == batch.samples() * width;
        if !has(batch.labels().len(), labels.len())
            || !has(batch.dense().len(), dense.len())
            || batch.features() != features.len()
        {
            let what = format!("a batch of {} samples does not have what each sample has", batch.samples());
            let remedy = "give batches of one data set";
            return Err(FileError::new(FileErrorKind::Disagree, &self.path, what, remedy));
        }
        for (nth, feature) in features.iter().enumerate() {
            let Some(hotness) = feature.hotness else { continue };
            let other = (0..batch.samples()).find(|&sample| batch.list(nth, sample).len() != hotness as usize);
            if let Some(sample) = other {
                let what = format!(
                    "sample {} has {} ids of feature {:?}, of which each sample should have {hotness}",
                    self.samples + sample as u64,
                    batch.list(nth, sample).len(),
                    feature.name
                );
                let remedy = "write to a format with lists: norm, parquet, csv or npz";
                return Err(FileError::new(FileErrorKind::Unsupported, &self.path, what, remedy));
            }
        }
        self.file.write(batch, self.samples)?;
        self.samples += batch.samples() as u64;
        Ok(())
    }

    /// Makes the file appear under its name, durably. Returns how many samples it has.
    pub fn finish(self) -> Result<u64, FileError> {
        self.file.finish()?;
        Ok(self.samples)
    }
}
