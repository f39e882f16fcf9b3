//! Batches of a data set, made by whoever asks for them.

use std::path::PathBuf;

use warprow_formats::{FileError, FileErrorKind};

use super::batch::DataBatch;
use super::files::DataFiles;
use super::opened::OpenedData;
use super::shape::DataShape;
use super::spec::{DataFormat, DataSpec};
use super::staging::{Rows, Staging};
use super::{csv, norm, npz, parquet, raw};

/// A data set whose samples are read one batch after another.
pub(crate) struct DataSource {
    path: PathBuf,
    format: DataFormat,
    shape: DataShape,
    samples: Option<u64>,
    files: DataFiles,
    left_out: Vec<String>,
    staging: Staging,
    rows: Rows,
}

impl DataSource {
    /// Opens a data set and reads the headers of its files, for batches of `most` samples.
    pub(crate) fn open(spec: &DataSpec, most: usize) -> Result<Self, FileError> {
        let path = spec.path().to_owned();
        let unclear = |what: String, remedy: &str| FileError::new(FileErrorKind::Unclear, &path, what, remedy);
        let format = DataFormat::of(spec)?;
        spec.refuse_settings(format)?;
        let OpenedData { shape, samples, files, left_out } = match format {
            DataFormat::Norm => norm::open(spec)?,
            DataFormat::Raw => raw::open(spec)?,
            DataFormat::Parquet => parquet::open(spec)?,
            DataFormat::Csv => csv::open(spec)?,
            DataFormat::Npz => npz::open(spec)?,
        };
        let sizes = spec.sizes();
        if !sizes.is_empty() && sizes.len() != shape.features.len() {
            let what = format!("it has {} sparse features, and rows of {} are said", shape.features.len(), sizes.len());
            return Err(unclear(what, "say the rows of each feature"));
        }
        let all = sizes.iter().try_fold(0u64, |all, &size| all.checked_add(size)).filter(|&all| all <= i64::MAX as u64);
        if all.is_none() {
            return Err(unclear("the rows of its features pass 2⁶³".to_owned(), "look at the numbers"));
        }
        let rows = Rows { sizes: sizes.to_vec(), shift: !spec.sizes.is_empty() };
        let staging = Staging::new(&shape, most, spec.integers, spec.log);
        Ok(Self { path, format, shape, samples, files, left_out, staging, rows })
    }

    pub(crate) fn format(&self) -> DataFormat {
        self.format
    }

    pub(crate) fn shape(&self) -> &DataShape {
        &self.shape
    }

    /// The names of columns whose types no label, dense feature or sparse feature can have.
    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Samples of all files, where their headers tell.
    pub(crate) fn samples(&self) -> Option<u64> {
        self.samples
    }

    /// Makes `batch` of the next samples; `false` if there are no more.
    pub(crate) fn fill(&mut self, batch: &mut DataBatch) -> Result<bool, FileError> {
        let Self { path, shape, files, staging, rows, .. } = self;
        files.fill(staging)?;
        if staging.is_too_large() {
            return Err(staging.too_large(path));
        }
        if staging.samples() == 0 {
            return Ok(false);
        }
        staging.finish(rows, batch).map_err(|bad| bad.error(path, shape, rows))?;
        Ok(true)
    }
}
