//! How a data set is named: `[KIND:]PATH[:SETTINGS]`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use warprow_formats::{FileError, FileErrorKind, KeyType};

use super::shape::numbered;
use crate::spec::{TraceSpecError, address_parts, key_type, list};

/// What a data set is, and how it is to be read.
///
/// ```
/// use warprow_traces::data::{DataColumns, DataFormat, DataSpec};
///
/// let spec: DataSpec = "raw:day_0.bin:labels=1,dense=13,slots=26".parse()?;
/// assert_eq!((spec.format, &spec.dense, spec.hotness.len()), (Some(DataFormat::Raw), &DataColumns::Count(13), 26));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DataSpec {
    /// Files, file lists or folders, whose samples follow each other.
    pub paths: Vec<PathBuf>,
    /// What they are; `None`: told by the first path.
    pub format: Option<DataFormat>,
    /// The type of the keys, where the files do not say: of Norm and Raw, which have `u32` unless `i64` is said.
    pub keys: Option<KeyType>,
    /// The labels.
    pub labels: DataColumns,
    /// The dense features.
    pub dense: DataColumns,
    /// The sparse features by name. Empty: all; of Norm and Raw, which have no names, numbers from 0.
    pub features: Vec<String>,
    /// How many ids each sample of Raw has of each feature.
    pub hotness: Vec<u32>,
    /// Whether labels and dense features of Raw are integers, of which dense ones become log(x + 1).
    pub integers: bool,
    /// Whether dense features become log(x + 1), of any format.
    pub log: bool,
    /// Whether ids in text are hexadecimal.
    pub hex: bool,
    /// How many ids each feature has: an id from there on, or below zero, is an error. Empty: nothing is compared.
    pub rows: Vec<u64>,
    /// HugeCTR's `slot_size_array`: as `rows`, and the sizes of the features before are added to the ids of each.
    pub sizes: Vec<u64>,
}

/// What a data set is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataFormat {
    /// HugeCTR's Norm.
    Norm,
    /// HugeCTR's Raw.
    Raw,
    /// HugeCTR's Parquet, or any other with columns of numbers.
    Parquet,
    /// Text with a line of names, separated by commas, or in `*.tsv` by tabs.
    Csv,
    /// An archive of NumPy's arrays.
    Npz,
}

/// Labels, or dense features.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DataColumns {
    /// What the files say, or else what their names tell.
    #[default]
    Unsaid,
    /// So many.
    Count(u32),
    /// Columns of these names, in this order.
    Named(Vec<String>),
}

impl DataFormat {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Norm, Self::Raw, Self::Parquet, Self::Csv, Self::Npz];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::Raw => "raw",
            Self::Parquet => "parquet",
            Self::Csv => "csv",
            Self::Npz => "npz",
        }
    }

    /// The format of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The format of `spec`: as it says, or as the first path does.
    pub fn of(spec: &DataSpec) -> Result<Self, FileError> {
        if let Some(format) = spec.format {
            return Ok(format);
        }
        let path = spec.path();
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz")) {
            return Ok(Self::Npz);
        }
        let trace = crate::TraceSpec::new(path);
        let found = match crate::TraceFormat::of(&trace) {
            Ok(crate::TraceFormat::Norm) => Some(Self::Norm),
            Ok(crate::TraceFormat::Parquet) => Some(Self::Parquet),
            Ok(crate::TraceFormat::Csv) => Some(Self::Csv),
            Err(error) if error.kind != FileErrorKind::Name => return Err(error),
            _ if !spec.hotness.is_empty() => Some(Self::Raw),
            _ => None,
        };
        found.ok_or_else(|| {
            let what = "neither its name nor its content tells what kind of data set it is";
            let names = Self::ALL.map(Self::name).join(", ");
            FileError::new(
                FileErrorKind::Name,
                path,
                what,
                format!("say which of {names} it is, as in raw:PATH:labels=1,dense=13,slots=26"),
            )
        })
    }
}

impl DataColumns {
    /// How many they are, of formats that have no names.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Unsaid => 0,
            Self::Count(count) => *count as usize,
            Self::Named(names) => names.len(),
        }
    }

    /// Names for `count` columns of a format that has none.
    pub(super) fn names_of(&self, plain: &str, count: usize, spec: &DataSpec) -> Result<Vec<String>, FileError> {
        match self {
            Self::Unsaid => Ok(numbered(plain, count)),
            Self::Count(said) if *said as usize != count => Err(spec.other_count(plain, *said as usize, count)),
            Self::Count(_) => Ok(numbered(plain, count)),
            Self::Named(names) => spec.named(names, count, plain),
        }
    }
}

impl DataSpec {
    /// A data set that its name tells all about.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { paths: vec![path.into()], ..Self::default() }
    }

    /// The first path, by which errors name the data set.
    pub fn path(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), |path| path)
    }

    /// The sizes that ids are compared with.
    pub(super) fn sizes(&self) -> &[u64] {
        if self.sizes.is_empty() { &self.rows } else { &self.sizes }
    }

    /// `names`, if they are `count`.
    pub(super) fn named(&self, names: &[String], count: usize, of: &str) -> Result<Vec<String>, FileError> {
        match names.len() == count {
            true => Ok(names.to_vec()),
            false => Err(self.other_count(of, names.len(), count)),
        }
    }

    fn other_count(&self, of: &str, said: usize, count: usize) -> FileError {
        let what = format!("its samples have {count} of {of}, and {said} are said");
        FileError::new(FileErrorKind::Disagree, self.path(), what, "say as many as there are, or nothing")
    }

    /// The files themselves: the lists in `*.txt` are followed. Of Parquet's folders and their `_metadata.json` there is the path alone.
    ///
    /// # Errors
    /// A list that cannot be read.
    pub fn files(&self) -> Result<Vec<PathBuf>, FileError> {
        let of = |path: &PathBuf| match path.extension().is_some_and(|ending| ending == "txt") {
            true => crate::list::files(path),
            false => Ok(vec![path.clone()]),
        };
        Ok(self.paths.iter().map(of).collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn set(&mut self, setting: &str) -> Result<(), TraceSpecError> {
        let wrong = |what| TraceSpecError { setting: setting.to_owned(), what };
        let Some((name, value)) = setting.split_once('=') else {
            match (setting, key_type(setting)) {
                ("integers", _) => self.integers = true,
                ("log", _) => self.log = true,
                ("hex", _) => self.hex = true,
                (_, Some(keys)) => self.keys = Some(keys),
                _ => return Err(wrong(SETTINGS)),
            }
            return Ok(());
        };
        let names = || value.split('/').map(str::to_owned).collect::<Vec<_>>();
        let columns = || value.parse().map_or_else(|_| DataColumns::Named(names()), DataColumns::Count);
        match name {
            "labels" => self.labels = columns(),
            "dense" => self.dense = columns(),
            "features" => self.features = names(),
            "keys" => self.keys = Some(key_type(value).ok_or(wrong("keys are u32 or i64"))?),
            "slots" => match value.parse() {
                Ok(slots @ 1..=65536) => self.hotness = vec![1; slots],
                _ => return Err(wrong("there are 1 to 65536 slots")),
            },
            "hotness" => self.hotness = list(value).ok_or(wrong("write numbers with / between them: 1/3/1"))?,
            "rows" => self.rows = list(value).ok_or(wrong("write numbers with / between them: 100/20/3000"))?,
            "sizes" => self.sizes = list(value).ok_or(wrong("write numbers with / between them: 100/20/3000"))?,
            _ => return Err(wrong(SETTINGS)),
        }
        Ok(())
    }

    /// Settings that say nothing about such a data set would be lost.
    pub(super) fn refuse_settings(&self, format: DataFormat) -> Result<(), FileError> {
        use DataFormat::{Csv, Norm, Raw};
        let is = |formats: &[DataFormat]| formats.contains(&format);
        let lost = [
            ("slots= or hotness=", !self.hotness.is_empty() && !is(&[Raw])),
            ("integers", self.integers && !is(&[Raw])),
            ("hex", self.hex && !is(&[Csv])),
            ("a type of keys", self.keys.is_some() && !is(&[Norm, Raw])),
            ("a type of 32-bit signed or 64-bit unsigned keys", matches!(self.keys, Some(KeyType::I32 | KeyType::U64))),
            ("rows= beside sizes=", !self.rows.is_empty() && !self.sizes.is_empty()),
        ];
        match lost.iter().find(|(_, lost)| *lost) {
            None => Ok(()),
            Some((setting, _)) => {
                let what = format!("{setting} does not belong to a data set of the kind {}", format.name());
                let remedy = "leave it out, or say what kind it is: KIND:PATH";
                Err(FileError::new(FileErrorKind::Unclear, self.path(), what, remedy))
            }
        }
    }
}

const SETTINGS: &str =
    "settings are labels=, dense=, features=, keys=, slots=, hotness=, integers, log, hex, rows= and sizes=";

impl FromStr for DataSpec {
    type Err = TraceSpecError;

    fn from_str(text: &str) -> Result<Self, TraceSpecError> {
        let (format, path, mut settings) = address_parts(text, DataFormat::named);
        let mut spec = Self { format, ..Self::new(path) };
        settings.try_for_each(|setting| spec.set(setting))?;
        Ok(spec)
    }
}
