//! How data sets are written.

use std::path::Path;

use warprow_formats::{FileError, FileErrorKind, KeyType};

use super::super::shape::DataShape;

/// How a data set is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataWriteOptions {
    /// The type of keys in Norm and Raw: `u32` or `i64`. All others have `i64`.
    pub keys: KeyType,
    /// Whether each sample of Norm has the sum of its bytes.
    pub sums: bool,
    /// Whether a file that exists is replaced.
    pub force: bool,
}

impl Default for DataWriteOptions {
    /// Keys of `u32`, sums, and no file is replaced.
    fn default() -> Self {
        Self { keys: KeyType::U32, sums: true, force: false }
    }
}

/// The keys of Norm and Raw.
pub(super) struct Keys {
    path: std::path::PathBuf,
    is_wide: bool,
    names: Vec<String>,
}

impl Keys {
    pub(super) fn new(path: &Path, shape: &DataShape, options: &DataWriteOptions) -> Result<Self, FileError> {
        let is_wide = match options.keys {
            KeyType::U32 => false,
            KeyType::I64 => true,
            KeyType::I32 | KeyType::U64 => {
                let what = "keys of such files are u32 or i64";
                return Err(FileError::new(FileErrorKind::Unclear, path, what, "choose one of these"));
            }
        };
        let names = shape.features.iter().map(|feature| feature.name.clone()).collect();
        Ok(Self { path: path.to_owned(), is_wide, names })
    }

    /// Appends the ids of sample `sample` of feature `feature`.
    pub(super) fn put(&self, ids: &[i64], bytes: &mut Vec<u8>, sample: u64, feature: usize) -> Result<(), FileError> {
        if self.is_wide {
            bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
            return Ok(());
        }
        for &id in ids {
            let Ok(key) = u32::try_from(id) else {
                let name = self.names.get(feature).map_or("", |name| name);
                let what = format!("sample {sample} has the id {id} of feature {name:?}, which is no u32");
                return Err(FileError::new(FileErrorKind::Unsupported, &self.path, what, "write keys of i64"));
            };
            bytes.extend(key.to_le_bytes());
        }
        Ok(())
    }
}
