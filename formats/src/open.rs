//! Opening files of tables, whatever their format.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use crate::error::FileError;
use crate::format::TableFormat;
use crate::found::Found;
use crate::read_options::ReadOptions;
use crate::table_file::TableFile;
use crate::{collection, dynamicemb, hugectr, npy, npz, raw, safetensors, sharded};

/// Chooses tensors among the names of all that an index lists.
pub type ChooseTensors<'a> = dyn Fn(&[&str]) -> HashSet<String> + 'a;

impl TableFile {
    /// Opens the file or folder at `path` and reads its headers, in the format that its name and its first bytes show.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Self::open_with(path, &ReadOptions::default())
    }

    /// Opens the file or folder at `path` and reads its headers. What they say is compared with what is there before it
    /// is relied on.
    pub fn open_with(path: &Path, options: &ReadOptions) -> Result<Self, FileError> {
        Self::open_choosing(path, options, None)
    }

    /// As [`open_with`](Self::open_with); where an index says which tensor is in which file, only the files of those that `choose`
    /// chooses among the names are opened, and have to be there.
    pub fn open_choosing(
        path: &Path,
        options: &ReadOptions,
        choose: Option<&ChooseTensors<'_>>,
    ) -> Result<Self, FileError> {
        let format = TableFormat::of(path, options)?;
        let mut found = match format {
            TableFormat::Safetensors => safetensors::open(path, options)?,
            TableFormat::SafetensorsIndex => sharded::open(path, options, choose)?,
            TableFormat::Npy => npy::open(path)?,
            TableFormat::Npz => npz::open(path)?,
            TableFormat::HugeCtr => hugectr::open(path, options)?,
            TableFormat::EmbeddingCollection => collection::open(path)?,
            TableFormat::DynamicEmb => dynamicemb::open(path, options)?,
            #[cfg(feature = "parquet")]
            TableFormat::Parquet => crate::parquet::open(path, options)?,
            #[cfg(not(feature = "parquet"))]
            TableFormat::Parquet => {
                let what = "is a Parquet file, which this build does not read";
                let remedy = "build with the feature `parquet`, or save the vectors as .npy";
                return Err(FileError::new(crate::error::FileErrorKind::Unsupported, path, what, remedy));
            }
            TableFormat::Raw => raw::open(path, options)?,
        };
        found.tables.sort_by(|a, b| a.name.cmp(&b.name));
        found.skipped.sort();
        let Found { inputs, tables, skipped, empty, key_arrays, tensors } = found;
        let inputs = inputs.into_iter().map(Arc::new).collect();
        Ok(Self { path: path.to_owned(), format, tables, skipped, empty, key_arrays, tensors, inputs })
    }
}
