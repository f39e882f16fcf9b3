//! What a format's reader finds.

use std::collections::BTreeMap;

use crate::file_table::FileTable;
use crate::input::Input;
use crate::key_array::KeyArray;
use crate::safetensors::Tensor;

/// What a format's reader finds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) inputs: Vec<Input>,
    pub(crate) tables: Vec<FileTable>,
    pub(crate) skipped: Vec<(String, String)>,
    pub(crate) empty: Vec<String>,
    pub(crate) key_arrays: Vec<KeyArray>,
    pub(crate) tensors: BTreeMap<String, (usize, Tensor)>,
}
