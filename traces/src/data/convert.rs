//! From one format to another.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use warprow_formats::{FileError, FileErrorKind};

use super::options::DataOptions;
use super::reader::DataReader;
use super::shape::DataShape;
use super::spec::{DataFormat, DataSpec};
use super::write::{DataWriteOptions, DataWriter};
use crate::parquet::METADATA;

/// What was converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertedData {
    /// The format that was read.
    pub from: DataFormat,
    /// What each sample has.
    pub shape: DataShape,
    /// How many samples were written.
    pub samples: u64,
    /// The names of columns that were left out because no label, dense feature or sparse feature can have their type.
    pub left_out: Vec<String>,
}

/// Told how many samples were read, of how many if that is known; breaks to end the conversion.
pub type DataProgress<'a> = dyn FnMut(u64, Option<u64>) -> ControlFlow<()> + 'a;

/// Writes the data set `spec` to the file `out`, in the format `to`. `None` if `progress` broke: then nothing is left behind.
///
/// Where the data set does not say how many ids each sample has of a feature, and `to` wants to know, all of it is read once before: Raw has
/// features of which each sample has equally many ids; Parquet and archives have columns of single ids rather than lists where each sample
/// has one.
///
/// # Errors
/// The errors of reading and of writing; and a file that a later reading of the data set, which is a folder, would take for a part of it.
pub fn convert(
    spec: &DataSpec,
    out: &Path,
    to: DataFormat,
    options: &DataWriteOptions,
    progress: &mut DataProgress<'_>,
) -> Result<Option<ConvertedData>, FileError> {
    refuse_own_folder(spec, out)?;
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
    let (from, used, left_out) = (reader.format(), reader.used(), reader.left_out().to_vec());
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
    Ok(Some(ConvertedData { from, samples: writer.finish()?, shape, left_out }))
}

/// Refuses to write a file of Parquet into a folder of such that is read.
fn refuse_own_folder(spec: &DataSpec, out: &Path) -> Result<(), FileError> {
    let folder_of = |path: &Path| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    if !out.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet")) {
        return Ok(());
    }
    let Ok(target) = folder_of(out).canonicalize() else { return Ok(()) };
    let mut read = spec.paths.iter().filter_map(|path| match path.is_dir() {
        true => Some(path.clone()),
        false => path.ends_with(METADATA).then(|| folder_of(path)),
    });
    match read.find(|folder| folder.canonicalize().is_ok_and(|folder| folder == target)) {
        Some(folder) => {
            let what = format!(
                "lies in {}, which is read: who reads that folder again would take it for a part",
                folder.display()
            );
            Err(FileError::new(FileErrorKind::Unsupported, out, what, "write it to another folder"))
        }
        None => Ok(()),
    }
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
