//! Parquet as HugeCTR reads it: plain columns of floats and of integers, or of lists of integers, without nulls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{DataType, FloatType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use warprow_formats::{FileError, FileErrorKind, FileStream};

use super::batches::WriteBatches;
use super::options::DataWriteOptions;
use crate::data::batch::DataBatch;
use crate::data::shape::DataShape;

/// Rows of a group, and ids with which a group is full however few rows it has.
const ROWS: usize = 1 << 16;
const IDS: usize = 1 << 24;

pub(super) struct ParquetWriter {
    path: PathBuf,
    file: SerializedFileWriter<FileStream>,
    /// Whether each feature has lists.
    lists: Vec<bool>,
    /// The columns of the group that is being made.
    floats: Vec<Vec<f32>>,
    ids: Vec<Vec<i64>>,
    /// Of features that have lists: how many ids each row has.
    lengths: Vec<Vec<u32>>,
    rows: usize,
}

fn failed(path: &Path) -> impl Fn(ParquetError) -> FileError + '_ {
    move |error| {
        let what = format!("cannot be written: {error}");
        FileError::new(FileErrorKind::Io, path, what, "look at the disk, and make room")
    }
}

fn schema(shape: &DataShape) -> Result<TypePtr, ParquetError> {
    let one = |name: &str, physical| {
        Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED).build().map(Arc::new)
    };
    let list = |name: &str| {
        let element = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
        let element = element.with_fields(vec![one("element", Physical::INT64)?]).build()?;
        let list = Type::group_type_builder(name).with_repetition(Repetition::REQUIRED);
        let list = list.with_converted_type(ConvertedType::LIST).with_fields(vec![Arc::new(element)]);
        list.build().map(Arc::new)
    };
    let mut fields = Vec::new();
    for name in shape.labels.iter().chain(&shape.dense) {
        fields.push(one(name, Physical::FLOAT)?);
    }
    for feature in &shape.features {
        fields.push(match feature.hotness {
            Some(1) => one(&feature.name, Physical::INT64)?,
            _ => list(&feature.name)?,
        });
    }
    Type::group_type_builder("samples").with_fields(fields).build().map(Arc::new)
}

impl ParquetWriter {
    pub(super) fn create(path: &Path, shape: &DataShape, options: &DataWriteOptions) -> Result<Self, FileError> {
        let schema = schema(shape).map_err(failed(path))?;
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_compression(Compression::UNCOMPRESSED)
            .set_data_page_row_count_limit(ROWS)
            .build();
        let stream = FileStream::create(path, options.force)?;
        let file = SerializedFileWriter::new(stream, schema, Arc::new(properties)).map_err(failed(path))?;
        let lists: Vec<bool> = shape.features.iter().map(|feature| feature.hotness != Some(1)).collect();
        Ok(Self {
            path: path.to_owned(),
            file,
            floats: vec![Vec::new(); shape.labels.len() + shape.dense.len()],
            ids: vec![Vec::new(); lists.len()],
            lengths: vec![Vec::new(); lists.len()],
            lists,
            rows: 0,
        })
    }

    fn write_group(&mut self) -> Result<(), FileError> {
        let Self { path, file, lists, floats, ids, lengths, rows } = self;
        if *rows == 0 {
            return Ok(());
        }
        let write = |file: &mut SerializedFileWriter<FileStream>| {
            let mut group = file.next_row_group()?;
            for floats in &*floats {
                column::<FloatType>(&mut group, floats, None)?;
            }
            for ((ids, lengths), is_list) in ids.iter().zip(&*lengths).zip(&*lists) {
                match is_list {
                    false => column::<Int64Type>(&mut group, ids, None)?,
                    true => column::<Int64Type>(&mut group, ids, Some(&levels(lengths)))?,
                }
            }
            group.close().map(drop)
        };
        write(file).map_err(failed(path))?;
        floats.iter_mut().for_each(Vec::clear);
        ids.iter_mut().for_each(Vec::clear);
        lengths.iter_mut().for_each(Vec::clear);
        *rows = 0;
        Ok(())
    }
}

/// Definition and repetition levels of lists of these lengths.
fn levels(lengths: &[u32]) -> (Vec<i16>, Vec<i16>) {
    let mut definition = Vec::new();
    let mut repetition = Vec::new();
    for &length in lengths {
        // An empty list has a place too.
        let places = length.max(1) as usize;
        definition.extend(std::iter::repeat_n(i16::from(length > 0), places));
        repetition.push(0);
        repetition.extend(std::iter::repeat_n(1, places - 1));
    }
    (definition, repetition)
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, FileStream>,
    values: &[T::T],
    levels: Option<&(Vec<i16>, Vec<i16>)>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("a column is missing".into());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    let (definition, repetition) = levels.map_or((None, None), |(first, second)| (Some(&**first), Some(&**second)));
    column.typed::<T>().write_batch(values, definition, repetition)?;
    column.close()
}

impl WriteBatches for ParquetWriter {
    fn write(&mut self, batch: &DataBatch, _first: u64) -> Result<(), FileError> {
        let samples = batch.samples();
        let width = |all: &[f32]| all.len() / samples.max(1);
        let (labels, dense) = (width(batch.labels()), width(batch.dense()));
        let mut begin = 0;
        while begin < samples {
            let end = samples.min(begin + ROWS - self.rows.min(ROWS - 1));
            for (nth, column) in self.floats.iter_mut().enumerate() {
                let (all, width, nth) = match nth.checked_sub(labels) {
                    None => (batch.labels(), labels, nth),
                    Some(nth) => (batch.dense(), dense, nth),
                };
                column.extend(all[begin * width..end * width].iter().skip(nth).step_by(width));
            }
            for (feature, ids) in self.ids.iter_mut().enumerate() {
                for sample in begin..end {
                    ids.extend_from_slice(batch.list(feature, sample));
                }
                if self.lists[feature] {
                    let lengths = (begin..end).map(|sample| batch.list(feature, sample).len() as u32);
                    self.lengths[feature].extend(lengths);
                }
            }
            self.rows += end - begin;
            begin = end;
            if self.rows >= ROWS || self.ids.iter().map(Vec::len).sum::<usize>() >= IDS {
                self.write_group()?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), FileError> {
        self.write_group()?;
        self.file.into_inner().map_err(failed(&self.path))?.finish()
    }
}
