//! Text: a line of names, then a line for each sample.

use std::path::Path;

use csv::{Writer, WriterBuilder};
use warprow_formats::{FileError, FileErrorKind, FileStream};

use super::batches::{WriteBatches, row};
use super::options::DataWriteOptions;
use crate::data::batch::DataBatch;
use crate::data::csv::LIST_SEPARATOR;
use crate::data::shape::DataShape;

pub(super) struct CsvWriter {
    path: std::path::PathBuf,
    file: Writer<FileStream>,
    text: String,
}

impl CsvWriter {
    pub(super) fn create(path: &Path, shape: &DataShape, options: &DataWriteOptions) -> Result<Self, FileError> {
        let separator =
            if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tsv")) { b'\t' } else { b',' };
        let mut file = WriterBuilder::new().delimiter(separator).from_writer(FileStream::create(path, options.force)?);
        let features = shape.features.iter().map(|feature| &feature.name);
        let names = shape.labels.iter().chain(&shape.dense).chain(features);
        file.write_record(names).map_err(|error| failed(path, &error))?;
        Ok(Self { path: path.to_owned(), file, text: String::new() })
    }
}

fn failed(path: &Path, error: &csv::Error) -> FileError {
    FileError::new(FileErrorKind::Io, path, format!("cannot be written: {error}"), "look at the disk, and make room")
}

impl WriteBatches for CsvWriter {
    fn write(&mut self, batch: &DataBatch, _first: u64) -> Result<(), FileError> {
        use std::fmt::Write;
        let Self { path, file, text } = self;
        let samples = batch.samples();
        for sample in 0..samples {
            let floats = row(batch.labels(), samples, sample).iter().chain(row(batch.dense(), samples, sample));
            let mut put = |text: &str| file.write_field(text).map_err(|error| failed(path, &error));
            for float in floats {
                text.clear();
                // The shortest text that is this number.
                let _ = write!(text, "{float}");
                put(text)?;
            }
            for feature in 0..batch.features() {
                text.clear();
                for (nth, id) in batch.list(feature, sample).iter().enumerate() {
                    let _ = match nth {
                        0 => write!(text, "{id}"),
                        _ => write!(text, "{LIST_SEPARATOR}{id}"),
                    };
                }
                put(text)?;
            }
            file.write_record(None::<&[u8]>).map_err(|error| failed(path, &error))?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), FileError> {
        let path = self.path.clone();
        let file =
            self.file.into_inner().map_err(|error| FileError::io(&path, "cannot be written", error.into_error()))?;
        file.finish()
    }
}
