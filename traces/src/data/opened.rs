//! A data set at its beginning.

use super::files::DataFiles;
use super::shape::DataShape;

/// What a data set is at its beginning.
pub(super) struct OpenedData {
    pub(super) shape: DataShape,
    /// Samples of all files, where their headers tell.
    pub(super) samples: Option<u64>,
    pub(super) files: DataFiles,
    /// The names of columns whose types no label, dense feature or sparse feature can have.
    pub(super) left_out: Vec<String>,
}
