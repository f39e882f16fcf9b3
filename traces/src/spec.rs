//! How a trace is named: `[KIND:]PATH[:SETTINGS]`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use warprow_formats::{FileError, FileErrorKind, KeyType};

/// What a trace is, and how it is to be read.
///
/// ```
/// use warprow_traces::{QueryBy, TraceFormat, TraceSpec};
///
/// let spec: TraceSpec = "csv:ratings.csv:movieId,query=userId".parse()?;
/// assert_eq!((spec.format, &*spec.columns), (Some(TraceFormat::Csv), &["movieId".to_owned()][..]));
/// assert_eq!(spec.query, Some(QueryBy::Column("userId".to_owned())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceSpec {
    /// A file, a file list or a folder.
    pub path: PathBuf,
    /// What it is; `None`: told by its name.
    pub format: Option<TraceFormat>,
    /// The type of the keys, where the file does not say.
    pub keys: Option<KeyType>,
    /// The columns that are slots, of text and Parquet. None: the only one; of Parquet all of integers.
    pub columns: Vec<String>,
    /// What makes a sample, where the format does not say.
    pub query: Option<QueryBy>,
    /// Label words of a Raw sample.
    pub labels: u32,
    /// Dense words of a Raw sample.
    pub dense: u32,
    /// Keys in each slot of a Raw sample.
    pub hotness: Vec<u32>,
    /// How many keys each slot has: HugeCTR's `slot_size_array`. Keys of a slot have those of the slots before it added.
    pub sizes: Vec<u64>,
    /// How rows are made of tokens.
    pub ngrams: NgramSpec,
    /// The only slot that is wanted, by name or by number from 0; `None`: all.
    pub slot: Option<String>,
}

/// What a trace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceFormat {
    /// Bare integers, such as a HugeCTR keyset.
    Ids,
    /// An array of NumPy's.
    Npy,
    /// Text with a header line, separated by commas, or in `*.tsv` by tabs.
    Csv,
    /// HugeCTR's Norm.
    Norm,
    /// HugeCTR's Raw.
    Raw,
    /// HugeCTR's Parquet, or any other with columns of integers.
    Parquet,
    /// An archive of NumPy's arrays, of which those of integers are slots.
    Npz,
    /// Token ids of text, each of which looks up the rows of its n-grams.
    Tokens,
}

/// How rows of an n-gram table are made of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NgramSpec {
    /// The table of the model whose hash it is.
    pub hash: Option<String>,
    /// A file with a number for each token of the tokenizer, which is hashed in its place.
    pub map: Option<PathBuf>,
    /// The token of the tokenizer that ends a text: no n-gram reaches across it.
    pub end: Option<u32>,
}

/// What makes a sample of keys that a file only lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryBy {
    /// Lines that follow each other with the same text in this column.
    Column(String),
    /// So many keys.
    Ids(u32),
    /// Each key by itself, whatever rows it stands in.
    Every,
}

/// A trace is named in a way that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting:?}: {what}")]
pub struct TraceSpecError {
    /// The part of the name.
    pub setting: String,
    /// What is wrong with it, and what it may be.
    pub what: &'static str,
}

/// The integer type that a name stands for: `u32`, `u64`, `i32` or `i64`.
pub(crate) fn key_type(name: &str) -> Option<KeyType> {
    Some(match name {
        "u32" => KeyType::U32,
        "i32" => KeyType::I32,
        "u64" => KeyType::U64,
        "i64" => KeyType::I64,
        _ => return None,
    })
}

impl TraceFormat {
    /// Whether its slots are columns with names, of which some can be chosen ([`TraceSpec::columns`]).
    pub const fn has_columns(self) -> bool {
        matches!(self, Self::Csv | Self::Parquet | Self::Npz)
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "ids" | "keyset" => Self::Ids,
            "npy" => Self::Npy,
            "csv" => Self::Csv,
            "norm" => Self::Norm,
            "raw" => Self::Raw,
            "parquet" => Self::Parquet,
            "npz" => Self::Npz,
            "tokens" => Self::Tokens,
            _ => return None,
        })
    }
}

impl TraceSpec {
    /// One that its name tells all about.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// A plain list of keys in one file: of text, `column`, which may be left out where there is only one; an array of NumPy's, taken
    /// flat; or bare integers of the type that the path's ending says, or else `column`. Each key is a sample.
    pub fn list(path: impl Into<PathBuf>, column: Option<&str>) -> Result<Self, FileError> {
        let spec = Self { query: Some(QueryBy::Every), ..Self::new(path) };
        let columns = || column.map(str::to_owned).into_iter().collect();
        Ok(match (&*spec.ending(), column.and_then(key_type)) {
            ("csv" | "tsv" | "txt", _) => Self { format: Some(TraceFormat::Csv), columns: columns(), ..spec },
            ("npy", _) => Self { format: Some(TraceFormat::Npy), columns: columns(), ..spec },
            (ending, keys) if key_type(ending).is_some() || keys.is_some() => {
                Self { format: Some(TraceFormat::Ids), keys, ..spec }
            }
            _ => {
                let what = "its name does not tell what kind of list it is";
                let remedy = "end it in .csv, .npy, .u32 or .u64, or add :u32 or :u64 for bare integers";
                return Err(FileError::new(FileErrorKind::Name, &spec.path, what, remedy));
            }
        })
    }

    /// The path's ending, in small letters.
    pub(crate) fn ending(&self) -> String {
        self.path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
    }

    /// What whoever wants look-ups says of a trace that has none.
    pub(crate) fn no_look_ups(&self) -> FileError {
        FileError::new(
            FileErrorKind::Empty,
            &self.path,
            "it holds no look-ups",
            "give a trace with one look-up at least",
        )
    }

    fn set(&mut self, setting: &str) -> Result<(), TraceSpecError> {
        let wrong = |what| TraceSpecError { setting: setting.to_owned(), what };
        let Some((name, value)) = setting.split_once('=') else {
            match key_type(setting) {
                Some(keys) => self.keys = Some(keys),
                None => self.columns.push(setting.to_owned()),
            }
            return Ok(());
        };
        let number = || value.parse::<u32>().map_err(|_| wrong("a number from 0 to 4294967295 belongs here"));
        match name {
            "column" => self.columns.push(value.to_owned()),
            "keys" => self.keys = Some(key_type(value).ok_or(wrong("keys are u32, i32, u64 or i64"))?),
            "slot" => self.slot = Some(value.to_owned()),
            "query" => self.query = Some(QueryBy::Column(value.to_owned())),
            "ids" => match number()? {
                0 => return Err(wrong("a sample has at least one id")),
                ids => self.query = Some(QueryBy::Ids(ids)),
            },
            "hash" => self.ngrams.hash = Some(value.to_owned()),
            "map" => self.ngrams.map = Some(value.into()),
            "end" => self.ngrams.end = Some(number()?),
            "labels" => self.labels = number()?,
            "dense" => self.dense = number()?,
            "slots" => match number()? {
                slots @ 1..=65536 => self.hotness = vec![1; slots as usize],
                _ => return Err(wrong("there are 1 to 65536 slots")),
            },
            "hotness" => self.hotness = list(value).ok_or(wrong("write numbers with / between them: 1/3/1"))?,
            "sizes" => self.sizes = list(value).ok_or(wrong("write numbers with / between them: 100/20/3000"))?,
            _ => {
                return Err(wrong(
                    "settings are slot=, column=, keys=, query=, ids=, labels=, dense=, slots=, hotness=, sizes=, hash=, map= and end=",
                ));
            }
        }
        Ok(())
    }
}

pub(crate) fn list<T: FromStr>(text: &str) -> Option<Vec<T>> {
    text.split('/').map(|number| number.parse().ok()).collect()
}

/// The parts of an address `KIND:PATH:SETTING,SETTING…`: the kind, if `named` knows it, the path, and the settings. A path may contain
/// colons: a text that is the path of a file is taken as it stands.
pub(crate) fn address_parts<F>(
    text: &str,
    named: impl Fn(&str) -> Option<F>,
) -> (Option<F>, &str, impl Iterator<Item = &str>) {
    let (format, text) = match text.split_once(':') {
        Some((kind, rest)) if !Path::new(text).exists() && named(kind).is_some() => (named(kind), rest),
        _ => (None, text),
    };
    let (path, settings) = match text.rsplit_once(':') {
        Some((path, settings)) if !path.is_empty() && !settings.is_empty() && !Path::new(text).exists() => {
            (path, settings)
        }
        _ => (text, ""),
    };
    (format, path, settings.split(',').filter(|setting| !setting.is_empty()))
}

impl FromStr for TraceSpec {
    type Err = TraceSpecError;

    fn from_str(text: &str) -> Result<Self, TraceSpecError> {
        let (format, path, mut settings) = address_parts(text, TraceFormat::named);
        let mut spec = Self { format, ..Self::new(path) };
        settings.try_for_each(|setting| spec.set(setting))?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> TraceSpec {
        text.parse().unwrap()
    }

    #[test]
    fn kind_path_and_settings_are_told_apart() {
        assert_eq!(parse("t.u32"), TraceSpec::new("t.u32"));
        assert_eq!(parse("t.csv:Id").columns, ["Id"]);
        assert_eq!(parse("other:t.csv:Id").path, Path::new("other:t.csv"));
        let norm = parse("norm:a/list.txt:i64,sizes=1/20");
        assert_eq!((norm.format, norm.keys), (Some(TraceFormat::Norm), Some(KeyType::I64)));
        assert_eq!((norm.path, norm.sizes), ("a/list.txt".into(), vec![1, 20]));
        let raw = parse("raw:t.bin:labels=1,dense=13,hotness=1/3,keys=u32");
        assert_eq!((raw.labels, raw.dense, raw.hotness), (1, 13, vec![1, 3]));
        assert_eq!(parse("raw:t:slots=3").hotness, [1; 3]);
        assert_eq!(parse("r.csv:movieId,query=userId").query, Some(QueryBy::Column("userId".into())));
        let tokens = parse("tokens:t.bin:hash=ple,end=3,map=m.u32").ngrams;
        assert_eq!((tokens.hash, tokens.map, tokens.end), (Some("ple".into()), Some("m.u32".into()), Some(3)));
        assert_eq!(parse("keyset:t.u64:ids=7").query, Some(QueryBy::Ids(7)));
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for text in ["t:ids=0", "t:ids=x", "t:slots=65537", "t:sizes=1//2", "t:keys=f32", "t:colour=red", "t:end=-1"] {
            let error = text.parse::<TraceSpec>().unwrap_err();
            assert_eq!(error.setting, text[2..]);
        }
    }
}
