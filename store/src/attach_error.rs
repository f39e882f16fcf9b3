//! Why a file of tables cannot be a drive.

use std::path::PathBuf;

use warprow_formats::FileError;

use crate::skipped_tensor::SkippedTensor;

/// Why a file of tables cannot be a drive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The file cannot be read, or is none of tables.
    #[error(transparent)]
    File(#[from] FileError),
    /// Nothing in it can be read where it is.
    #[error("{} holds no table that can be read where it is{}", .file.display(), listed(.skipped))]
    Nothing {
        /// The file.
        file: PathBuf,
        /// What it holds.
        skipped: Vec<SkippedTensor>,
    },
    /// No tensor has a name like that.
    #[error("no tensor of {} matches {pattern:?}; there are: {}", .file.display(), .tensors.join(", "))]
    NoMatch {
        /// The file.
        file: PathBuf,
        /// What was given.
        pattern: String,
        /// What there is.
        tensors: Vec<String>,
    },
    /// A tensor that was asked for cannot be read where it is.
    #[error("table {tensor:?} of {}: {reason}", .file.display())]
    Stays {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Why.
        reason: String,
    },
    /// A name was given for several tensors.
    #[error("{matches} tensors of {} match {pattern:?}, one can be called that", .file.display())]
    Several {
        /// The file.
        file: PathBuf,
        /// What was given.
        pattern: String,
        /// How many match.
        matches: usize,
    },
    /// Two tables would have one name.
    #[error("two tables of {} would be called {name:?}", .file.display())]
    SameName {
        /// The file.
        file: PathBuf,
        /// The name.
        name: String,
    },
}

fn listed(skipped: &[SkippedTensor]) -> String {
    let each = skipped.iter().map(|tensor| format!("; {:?}: {}", tensor.name, tensor.reason));
    each.collect()
}
