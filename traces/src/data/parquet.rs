//! Parquet: labels and dense features in columns of numbers, the ids of a sparse feature in a column of integers, or of lists of them.

use std::path::{Path, PathBuf};

use warprow_formats::{FileError, FileErrorKind, FloatReader, IntegerColumn, IntegerFile, IntegerReader};

use super::files::{DataFiles, FileSamples};
use super::opened::OpenedData;
use super::roles::Roles;
use super::shape::{DataFeature, DataShape};
use super::spec::DataSpec;
use super::staging::{MAX_BATCH_IDS, Staging};
use crate::parquet::{METADATA, check_files, check_rows, files, metadata, no_files};

/// A column of numbers, whatever they are.
enum Numbers {
    Floats(FloatReader),
    Integers(IntegerReader, bool),
}

/// The columns of one file.
struct Columns {
    path: PathBuf,
    labels: Vec<Numbers>,
    dense: Vec<Numbers>,
    /// With whether keys are signed.
    features: Vec<(IntegerReader, bool)>,
    rows: u64,
    left: u64,
    floats: Vec<f32>,
    keys: Vec<u64>,
    lengths: Vec<u32>,
}

/// Rows that are decoded at once: rows of lists may have many keys, and what is decoded should lie in a cache.
const ROWS: usize = 2048;

pub(super) fn open(spec: &DataSpec) -> Result<OpenedData, FileError> {
    let mut all = Vec::new();
    let mut said = None;
    let mut stated = std::collections::HashMap::new();
    for path in &spec.paths {
        let (files, folder) = files(path)?;
        if files.is_empty() {
            return Err(no_files(path));
        }
        let metadata = metadata(&folder.join(METADATA))?;
        check_files(path, &folder, metadata.as_ref())?;
        stated.extend(metadata.iter().flat_map(|metadata| metadata.stated()));
        said = said.or(metadata);
        all.extend(files);
    }
    let Some(first) = all.first() else { return Err(no_files(spec.path())) };
    let file = IntegerFile::open(first)?;
    let floats = file.floats().iter().map(|column| column.name.clone()).collect();
    let integers = file.columns().iter().map(|column| column.name.clone()).collect();
    let said = said.as_ref().map(|said| (said.labels(), said.conts(), said.cats()));
    let roles = Roles::of(spec, first, floats, integers, said)?;
    let shape = shape(first, &file, &roles)?;
    let mut samples = 0u64;
    for path in &all {
        let file = IntegerFile::open(path)?;
        check_rows(&stated, path, file.rows())?;
        if self::shape(path, &file, &roles)? != shape {
            let what = format!("its columns are of other types than those of {}", first.display());
            return Err(FileError::new(FileErrorKind::Disagree, path, what, "list only files of one data set"));
        }
        samples = samples.saturating_add(file.rows());
    }
    let numbers = |name: &String| {
        file.floats().iter().any(|column| column.name == *name)
            || file.columns().iter().any(|column| column.name == *name)
    };
    let left_out = file.others().iter().filter(|name| !numbers(name)).cloned().collect();
    let open =
        move |path: &Path| -> Result<Box<dyn FileSamples>, FileError> { Ok(Box::new(Columns::open(path, &roles)?)) };
    Ok(OpenedData { shape, samples: Some(samples), files: DataFiles::new(all, Box::new(open)), left_out })
}

fn shape(path: &Path, file: &IntegerFile, roles: &Roles) -> Result<DataShape, FileError> {
    let feature = |name: &String| {
        let hotness = (!integers(path, file, name)?.is_list).then_some(1);
        Ok(DataFeature { name: name.clone(), hotness })
    };
    for name in roles.labels.iter().chain(&roles.dense) {
        if !file.floats().iter().any(|column| column.name == *name) && integers(path, file, name)?.is_list {
            let what = format!("its column {name:?} has lists, and labels and dense features are single numbers");
            return Err(FileError::new(FileErrorKind::Unsupported, path, what, "write a column for each of them"));
        }
    }
    let features = roles.features.iter().map(feature).collect::<Result<_, FileError>>()?;
    Ok(DataShape { labels: roles.labels.clone(), dense: roles.dense.clone(), features })
}

/// The column of integers of a name.
fn integers<'a>(path: &Path, file: &'a IntegerFile, name: &str) -> Result<&'a IntegerColumn, FileError> {
    file.columns().iter().find(|column| column.name == *name).ok_or_else(|| {
        let known = file.columns().iter().map(|column| &column.name).chain(file.others());
        let known = known.map(|name| &**name).collect::<Vec<_>>().join(", ");
        let what = format!("it has no column {name:?} of such numbers; its columns are: {known}");
        FileError::new(FileErrorKind::Missing, path, what, "name one of these; keys are integers, or lists of them")
    })
}

impl Columns {
    fn open(path: &Path, roles: &Roles) -> Result<Self, FileError> {
        let file = IntegerFile::open(path)?;
        let whole = |name: &String| {
            let column = integers(path, &file, name)?;
            Ok((file.read(column)?, column.keys.is_signed()))
        };
        let number = |name: &String| match file.floats().iter().find(|column| column.name == *name) {
            Some(column) => Ok(Numbers::Floats(file.read_floats(column)?)),
            None => whole(name).map(|(reader, signed)| Numbers::Integers(reader, signed)),
        };
        Ok(Self {
            path: path.to_owned(),
            labels: roles.labels.iter().map(number).collect::<Result<_, FileError>>()?,
            dense: roles.dense.iter().map(number).collect::<Result<_, FileError>>()?,
            features: roles.features.iter().map(whole).collect::<Result<_, FileError>>()?,
            rows: file.rows(),
            left: file.rows(),
            floats: Vec::new(),
            keys: Vec::new(),
            lengths: Vec::new(),
        })
    }

    /// The error of a column that ends before the rows do.
    fn short(path: &Path, rows: u64) -> FileError {
        FileError::damaged(path, format!("a column ends before the {rows} rows that the file says it has"))
    }

    /// Adds the next `count` rows of all columns.
    fn take(&mut self, count: usize, staging: &mut Staging) -> Result<(), FileError> {
        let Self { path, labels, dense, features, rows, floats, keys, lengths, .. } = self;
        for (columns, to) in [(labels, &mut staging.labels), (dense, &mut staging.dense)] {
            let (begin, width) = (to.len(), columns.len());
            to.resize(begin + count * width, 0.0);
            for (nth, column) in columns.iter_mut().enumerate() {
                floats.clear();
                while floats.len() < count {
                    let most = count - floats.len();
                    let read = match column {
                        Numbers::Floats(reader) => reader.next(most, floats)?,
                        Numbers::Integers(reader, signed) => {
                            keys.clear();
                            lengths.clear();
                            let read = reader.next(most, keys, lengths)?;
                            floats.extend(keys.iter().map(|&key| if *signed { key as i64 as f32 } else { key as f32 }));
                            read
                        }
                    };
                    if read == 0 {
                        return Err(Self::short(path, *rows));
                    }
                }
                let places = to[begin..].iter_mut().skip(nth).step_by(width);
                places.zip(&*floats).for_each(|(place, float)| *place = *float);
            }
        }
        let mut all = 0;
        for (nth, (reader, signed)) in features.iter_mut().enumerate() {
            keys.clear();
            lengths.clear();
            while lengths.len() < count {
                if keys.len() > MAX_BATCH_IDS {
                    return Err(staging.too_large(path));
                }
                if reader.next(count - lengths.len(), keys, lengths)? == 0 {
                    return Err(Self::short(path, *rows));
                }
            }
            all += keys.len();
            if let Some(lists) = staging.features.get_mut(nth) {
                lists.extend(keys, lengths, *signed);
            }
        }
        self.left -= count as u64;
        staging.added(count, all);
        Ok(())
    }

    /// Refuses columns that go on past the rows that the file says it has.
    fn end(&mut self) -> Result<(), FileError> {
        let Self { path, labels, dense, features, rows, floats, keys, lengths, .. } = self;
        let mut goes_on = false;
        for column in labels.iter_mut().chain(dense) {
            goes_on |= match column {
                Numbers::Floats(reader) => reader.next(1, floats)? > 0,
                Numbers::Integers(reader, _) => reader.next(1, keys, lengths)? > 0,
            };
        }
        for (reader, _) in features {
            goes_on |= reader.next(1, keys, lengths)? > 0;
        }
        match goes_on {
            true => {
                let what = format!("a column goes on after the {rows} rows that it says it has");
                Err(FileError::damaged(path, what))
            }
            false => Ok(()),
        }
    }
}

impl FileSamples for Columns {
    fn read(&mut self, staging: &mut Staging) -> Result<(), FileError> {
        while self.left > 0 && staging.has_room() {
            let count = staging.room().min(ROWS).min(usize::try_from(self.left).unwrap_or(ROWS));
            self.take(count, staging)?;
        }
        if self.left == 0 { self.end() } else { Ok(()) }
    }
}
