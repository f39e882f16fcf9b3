//! Why a file of tables cannot be a drive.

use std::path::PathBuf;

use warprow_formats::{FileError, ScaleError};

use crate::attached_files::ChangedFile;
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
    #[error("no tensor of {} matches {pattern:?}; there are: {}", .file.display(), some(.tensors))]
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
    /// Shards are missing, or cannot be one table.
    #[error("the shards {pattern:?} of {}: {reason}", .file.display())]
    Shards {
        /// The file.
        file: PathBuf,
        /// What was given, or what the table would be called.
        pattern: String,
        /// Why not.
        reason: String,
    },
    /// The scales of a tensor are missing, or are not what its rows need.
    #[error("table {tensor:?} of {}: {source}", .file.display())]
    Scales {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with them.
        source: Box<ScaleError>,
    },
    /// A file was written to, or replaced, while it was attached.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
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

/// The most names that an error lists.
const NAMES: usize = 20;

fn some(names: &[String]) -> String {
    let first = names.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMES) {
        None | Some(0) => first,
        Some(others) => format!("{first}, and {others} others"),
    }
}

fn listed(skipped: &[SkippedTensor]) -> String {
    let each = skipped.iter().take(NAMES).map(|tensor| format!("; {:?}: {}", tensor.name, tensor.reason));
    let others = skipped.len().saturating_sub(NAMES);
    let rest = if others > 0 { format!("; and {others} others") } else { String::new() };
    each.chain([rest]).collect()
}
