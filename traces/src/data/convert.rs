//! From one format to another.

use std::ops::ControlFlow;
use std::path::Path;

use warprow_formats::FileError;

use super::options::DataOptions;
use super::reader::DataReader;
use super::shape::DataShape;
use super::spec::{DataFormat, DataSpec};
use super::write::{DataWriteOptions, DataWriter};

/// What was converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertedData {
    /// The format that was read.
    pub from: DataFormat,
    /// What each sample has.
    pub shape: DataShape,
    /// How many samples were written.
    pub samples: u64,
}

/// Told how many samples were read, of how many if that is known; breaks to end the conversion.
pub type DataProgress<'a> = dyn FnMut(u64, Option<u64>) -> ControlFlow<()> + 'a;

/// Writes the data set `spec` to the file `out`, in the format `to`. `None` if `progress` broke: then nothing is left behind.
///
/// Where the data set does not say how many ids each sample has of a feature, and `to` wants to know, all of it is read once before: Raw has
/// features of which each sample has equally many ids; Parquet and archives have columns of single ids rather than lists where each sample
/// has one.
pub fn convert(
    spec: &DataSpec,
    out: &Path,
    to: DataFormat,
    options: &DataWriteOptions,
    progress: &mut DataProgress<'_>,
) -> Result<Option<ConvertedData>, FileError> {
    let reading = DataOptions::default();
    let mut reader = DataReader::open(spec, &reading)?;
    let mut shape = reader.shape().clone();
    let wants_hotness = matches!(to, DataFormat::Raw | DataFormat::Parquet | DataFormat::Npz);
    let total = reader.samples();
    if wants_hotness && shape.features.iter().any(|feature| feature.hotness.is_none()) {
        if learn(&mut reader, &mut shape, to, progress)?.is_break() {
            return Ok(None);
        }
        reader = DataReader::open(spec, &reading)?;
    }
    let (from, used) = (reader.format(), reader.used());
    let mut writer = DataWriter::create(out, to, &shape, options)?;
    let mut samples = 0;
    while let Some(batch) = reader.next_batch()? {
        writer.write(&batch)?;
        samples += batch.samples() as u64;
        used.put(batch);
        if progress(samples, total).is_break() {
            return Ok(None);
        }
    }
    Ok(Some(ConvertedData { from, samples: writer.finish()?, shape }))
}

/// Finds how many ids each sample has of the features that do not say.
fn learn(
    reader: &mut DataReader,
    shape: &mut DataShape,
    to: DataFormat,
    progress: &mut DataProgress<'_>,
) -> Result<ControlFlow<()>, FileError> {
    let (used, total) = (reader.used(), reader.samples());
    // For each feature what the samples so far have; `Err`: they differ.
    let mut each: Vec<Result<Option<usize>, ()>> = vec![Ok(None); shape.features.len()];
    let mut samples = 0;
    while let Some(batch) = reader.next_batch()? {
        for (feature, each) in each.iter_mut().enumerate() {
            for sample in 0..batch.samples() {
                let length = batch.list(feature, sample).len();
                *each = match *each {
                    Ok(None) => Ok(Some(length)),
                    Ok(Some(before)) if before == length => continue,
                    _ => Err(()),
                };
                if each.is_err() {
                    break;
                }
            }
        }
        samples += batch.samples() as u64;
        used.put(batch);
        if progress(samples, total).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    for (feature, each) in shape.features.iter_mut().zip(each) {
        let each = each.ok().flatten().and_then(|each| u32::try_from(each).ok());
        // Of lists that happen to be equally long, only Raw has to make a rule.
        let is_rule = |&each: &u32| each == 1 || (each > 1 && to == DataFormat::Raw);
        feature.hotness = feature.hotness.or(each.filter(is_rule));
    }
    Ok(ControlFlow::Continue(()))
}
