//! Which format a file is in.

use std::path::Path;

use crate::error::{FileError, FileErrorKind};
use crate::format::TableFormat;
use crate::input::Input;
use crate::read_options::ReadOptions;
use crate::{collection, dynamicemb, hugectr, safetensors, sharded};

impl TableFormat {
    /// What `options` say, or else what a folder holds, or else how a file begins and ends its name.
    pub fn of(path: &Path, options: &ReadOptions) -> Result<Self, FileError> {
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
        let ends = |ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
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
            Err(FileError::new(FileErrorKind::Unsupported, path, what, remedy))
        } else {
            Ok(Self::Safetensors)
        }
    }
}

fn of_folder(path: &Path) -> Result<TableFormat, FileError> {
    if hugectr::is(path) {
        Ok(TableFormat::HugeCtr)
    } else if collection::is(path)? {
        Ok(TableFormat::EmbeddingCollection)
    } else if dynamicemb::is(path)? {
        Ok(TableFormat::DynamicEmb)
    } else if sharded::index_of(path)?.is_some() {
        Ok(TableFormat::SafetensorsIndex)
    } else if safetensors::only_file_of(path)?.is_some() {
        Ok(TableFormat::Safetensors)
    } else {
        Err(FileError::new(
            FileErrorKind::Unsupported,
            path,
            "is a folder without files that are known to belong together",
            "give a file of it; folders are read that hold key and emb_vector (HugeCTR), meta_data or \
             embedding_collection_0 (HugeCTR), NAME_emb_keys.rank_0.world_size_1 (DynamicEmb), \
             model.safetensors.index.json, or one file that ends in .safetensors",
        ))
    }
}
