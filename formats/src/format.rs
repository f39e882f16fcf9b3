//! Which format a file is in.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use warprow_layout::DType;

use crate::error::{FormatError, Kind};
use crate::input::Input;
use crate::{collection, dynamicemb, hugectr, sharded};

/// A format of tables in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// One safetensors file.
    Safetensors,
    /// Several, with an index that says which tensor is in which.
    SafetensorsIndex,
    /// One NumPy array.
    Npy,
    /// An archive of NumPy arrays.
    Npz,
    /// The folder of a HugeCTR sparse model: `key`, `emb_vector`, perhaps `slot_id`.
    HugeCtr,
    /// The folder of a HugeCTR embedding-collection dump, or one that has such folders.
    EmbeddingCollection,
    /// The folder of a DynamicEmb dump.
    DynamicEmb,
    /// A Parquet file with a column of vectors, and one of ids.
    Parquet,
    /// Rows and nothing else, of a shape that is stated.
    Raw,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Safetensors,
        Self::SafetensorsIndex,
        Self::Npy,
        Self::Npz,
        Self::HugeCtr,
        Self::EmbeddingCollection,
        Self::DynamicEmb,
        Self::Parquet,
        Self::Raw,
    ];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::SafetensorsIndex => "safetensors-index",
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::HugeCtr => "hugectr",
            Self::EmbeddingCollection => "embedding-collection",
            Self::DynamicEmb => "dynamicemb",
            Self::Parquet => "parquet",
            Self::Raw => "raw",
        }
    }

    /// What `options` say, or else what a folder holds, or else how a file begins and ends its name.
    pub fn of(path: &Path, options: &ReadOptions) -> Result<Self, FormatError> {
        if let Some(format) = options.format {
            return Ok(format);
        }
        if options.shape.is_some() {
            return Ok(Self::Raw);
        }
        if path.is_dir() {
            return of_folder(path);
        }
        let input = Input::open(path)?;
        let start = input.start::<8>()?;
        let ends = |ending: &str| path.extension().is_some_and(|it| it.eq_ignore_ascii_case(ending));
        if start.starts_with(b"\x93NUMPY") || ends("npy") {
            Ok(Self::Npy)
        } else if ends("npz") {
            Ok(Self::Npz)
        } else if start.starts_with(b"PAR1") || ends("parquet") {
            Ok(Self::Parquet)
        } else if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(sharded::ENDING)) {
            Ok(Self::SafetensorsIndex)
        } else if start.starts_with(b"PK") || matches!(*start, [0x80, 2..=5, ..] if !ends("safetensors")) {
            let what = "is an archive or a pickle, which are not read";
            let remedy = "save it as .safetensors (safetensors.torch.save_file) or each array as .npy (numpy.save)";
            Err(FormatError::new(Kind::Unsupported, path, what, remedy))
        } else {
            Ok(Self::Safetensors)
        }
    }
}

fn of_folder(path: &Path) -> Result<Format, FormatError> {
    if hugectr::is(path) {
        Ok(Format::HugeCtr)
    } else if collection::is(path)? {
        Ok(Format::EmbeddingCollection)
    } else if dynamicemb::is(path)? {
        Ok(Format::DynamicEmb)
    } else if sharded::index_of(path)?.is_some() {
        Ok(Format::SafetensorsIndex)
    } else {
        Err(FormatError::new(
            Kind::Unsupported,
            path,
            "is a folder without files that are known to belong together",
            "give a file of it; folders are read that hold key and emb_vector (HugeCTR), meta_data or \
             embedding_collection_0 (HugeCTR), NAME_emb_keys.rank_0.world_size_1 (DynamicEmb), or \
             model.safetensors.index.json",
        ))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or_else(|| format!("the formats are {}", known()))
    }
}

/// What files do not say of themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The format; `None`: as the file shows.
    pub format: Option<Format>,
    /// The shape of rows that stand in a file alone.
    pub shape: Option<RawShape>,
    /// Elements in a row, where files of keys and vectors leave it to their sizes: it must then agree with them.
    pub dim: Option<u32>,
    /// The Parquet column of ids; `None`: the only one of whole numbers, if there is one.
    pub key_column: Option<String>,
}

/// The shape of rows that stand in a file alone: `[ROWSx]DIM:TYPE[@OFFSET]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawShape {
    /// Rows; `None`: as many as the file holds.
    pub rows: Option<u64>,
    /// Elements in a row.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Byte of the file at which they begin.
    pub at: u64,
}

impl FromStr for RawShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shape = || -> Option<Self> {
            let (rest, at) = text.split_once('@').map_or((text, Some(0)), |(rest, at)| (rest, at.parse().ok()));
            let (shape, dtype) = rest.split_once(':')?;
            let (rows, dim) = shape.split_once('x').map_or((None, shape), |(rows, dim)| (Some(rows), dim));
            let rows = rows.map(str::parse).transpose().ok()?;
            let dtype = DType::ALL.into_iter().find(|it| it.name() == dtype)?;
            Some(Self { rows, dim: dim.parse().ok()?, dtype, at: at? })
        };
        let types = || DType::ALL.map(DType::name).join(", ");
        shape().ok_or_else(|| {
            format!("{text:?} is no [ROWSx]DIM:TYPE[@OFFSET], such as 1000x64:f32; the types are {}", types())
        })
    }
}
