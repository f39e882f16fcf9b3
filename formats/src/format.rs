//! The formats of tables in files.

use std::fmt;
use std::str::FromStr;

/// A format of tables in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TableFormat {
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

impl TableFormat {
    /// All formats.
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

    /// The name of the format on a command line.
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
}

impl fmt::Display for TableFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TableFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| format!("the formats are {}", known()))
    }
}
