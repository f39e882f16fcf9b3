//! Open files with tables in them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::FileError;
use crate::file_table::FileTable;
use crate::format::TableFormat;
use crate::input::Input;
use crate::key_array::KeyArray;
use crate::locked_file::LockedFile;
use crate::safetensors::Tensor;

/// Files with tables in them: one, or several that belong together.
///
/// ```
/// use warprow_formats::TableFile;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("m.safetensors");
/// # let mut bytes = br#"{"emb":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},"bias":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}}"#.to_vec();
/// # bytes.splice(0..0, (bytes.len() as u64).to_le_bytes());
/// # bytes.extend(0..8);
/// # std::fs::write(&path, bytes)?;
/// let file = TableFile::open(&path)?;
/// for table in &file.tables {
///     let mut rows = vec![0; table.rows as usize * table.row_bytes()];
///     file.rows(table).fill(0, &mut rows)?;
///     assert_eq!((&*table.name, rows), ("emb", vec![0, 1, 2, 3, 4, 5]));
/// }
/// assert_eq!(file.skipped, [("bias".to_owned(), "rank 1".to_owned())]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TableFile {
    /// The path of the file, or of the folder of several.
    pub path: PathBuf,
    /// The format that it was read as.
    pub format: TableFormat,
    /// The tables that can be loaded, by name.
    pub tables: Vec<FileTable>,
    /// What the files have besides, that cannot be loaded: each with its name and the reason.
    pub skipped: Vec<(String, String)>,
    /// The names in `skipped` whose entry would be a table if it had rows.
    pub empty: Vec<String>,
    /// Lists of whole numbers, which may be the keys of the tables: see [`with_keys`](Self::with_keys).
    pub key_arrays: Vec<KeyArray>,
    /// All tensors of safetensors files by their names, and which input each is in.
    pub(crate) tensors: BTreeMap<String, (usize, Tensor)>,
    pub(crate) inputs: Vec<Arc<Input>>,
}

impl TableFile {
    /// Locks the files (shared, flock(2)) until the locks that this returns are dropped, so that others can see that
    /// the files must not change.
    pub fn lock(&self) -> Vec<LockedFile> {
        self.inputs.iter().map(|input| LockedFile::new(&input.file)).collect()
    }

    /// As [`lock`](Self::lock), but fails if another process has one of the files locked for itself alone, as who writes to it does.
    pub fn lock_for_reading(&self) -> Result<Vec<LockedFile>, FileError> {
        let lock = |input: &Arc<Input>| {
            LockedFile::shared(&input.file).map_err(|error| {
                FileError::io(&input.path, "is locked by another process, which may be writing to it", error)
                    .remedy("wait until it is written, and try again")
            })
        };
        self.inputs.iter().map(lock).collect()
    }

    /// The first file whose name leads to another file now, or to none, and what is seen of it.
    pub fn replaced(&self) -> Option<(PathBuf, String)> {
        self.inputs.iter().find_map(|input| Some((input.path.clone(), input.replaced()?)))
    }

    /// A text that differs for other files, and for the same files after a change: it has their paths, inodes, sizes
    /// and times.
    pub fn identity(&self) -> String {
        self.inputs.iter().map(|input| input.identity()).collect::<Vec<_>>().join("; ")
    }

    /// Fails if a file was written to, or replaced, since it was opened: what was read may then be partly old and
    /// partly new.
    pub fn unchanged(&self) -> Result<(), FileError> {
        self.inputs.iter().try_for_each(|input| input.unchanged())
    }
}
