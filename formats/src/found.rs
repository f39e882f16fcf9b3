//! What a format's reader finds.

use crate::file_table::FileTable;
use crate::input::Input;
use crate::key_array::KeyArray;

/// What a format's reader finds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) inputs: Vec<Input>,
    pub(crate) tables: Vec<FileTable>,
    pub(crate) skipped: Vec<(String, String)>,
    pub(crate) empty: Vec<String>,
    pub(crate) key_arrays: Vec<KeyArray>,
}
