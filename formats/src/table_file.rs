//! Files with tables in them, open.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::FormatError;
use crate::file_table::FileTable;
use crate::format::Format;
use crate::input::Input;
use crate::key_array::KeyArray;
use crate::locked_file::LockedFile;

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
    /// Where it is: a file, or the folder of several.
    pub path: PathBuf,
    /// What it was read as.
    pub format: Format,
    /// What can be loaded, by name.
    pub tables: Vec<FileTable>,
    /// What cannot be loaded, by name, and why not.
    pub skipped: Vec<(String, String)>,
    /// The names among `skipped` of what would be a table if it had rows.
    pub empty: Vec<String>,
    /// Lists of whole numbers, which may be the keys of the tables: see [`with_keys`](Self::with_keys).
    pub key_arrays: Vec<KeyArray>,
    pub(crate) inputs: Vec<Arc<Input>>,
}

impl TableFile {
    /// Locks the files (shared, flock(2)) until what this returns is dropped: others can see that they are needed as they are.
    pub fn lock(&self) -> Vec<LockedFile> {
        self.inputs.iter().map(|input| LockedFile::new(&input.file)).collect()
    }

    /// What tells these files from others, and from themselves after a change: paths, inodes, sizes, times.
    pub fn identity(&self) -> String {
        self.inputs.iter().map(|input| input.identity()).collect::<Vec<_>>().join("; ")
    }

    /// Refuses files that have been written to, or replaced, since they were opened: what was read of them may be of both.
    pub fn unchanged(&self) -> Result<(), FormatError> {
        self.inputs.iter().try_for_each(|input| input.unchanged())
    }
}
