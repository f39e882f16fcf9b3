//! The arguments of `warprow update`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::drives::DriveArgs;
use crate::reading::ReadingArgs;

/// When what was updated is brought into the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Compact {
    /// Where memory for updated rows, or the log, is full; the next batch waits for that
    Full,
    /// At half of the memory, or of the log, too, while the next batches are written
    Auto,
    /// Never: an update for which there is no room ends the command
    Never,
}

/// Give rows of a table other content, or remove keys
///
/// The rows come from a file of any format that `load` reads; whose they are say its keys (--keys names them), or --ids or --ids-file. Rows of another type
/// are converted. Each batch is durable before the next is begun. After a power cut or a kill in a batch its rows are there up to one of
/// them; what comes twice has its last row then. So a command that was stopped may simply be run again, or go on with --from.
///
/// Nothing is changed if one of the ids or keys is not there; with --create, keys that are not there are created with their rows. These are
/// found like all others at once, and come into the table with the next `warprow compact`, which writes its generation anew. Ids do not grow.
///
/// With --delete, keys are removed with their rows: look-ups treat them as keys that the table never had. Keys that are not there are passed
/// over. The next `warprow compact` gives back the room. Ids of a table without keys cannot be removed.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow update items -d emulated:a.drive --ids 7,42 --rows two.npy
  warprow update items -d emulated:a.drive --ids-file changed.npy --rows changed_rows.npy --batch 4096
  warprow update items -d emulated:a.drive --rows delta.parquet
  warprow update users -d emulated:a.drive --rows delta.npz --tensor vectors --keys ids
  warprow update users -d emulated:a.drive --rows delta.parquet --create
  warprow update users -d emulated:a.drive --delete gone.npy")]
pub struct UpdateArgs {
    /// The table
    pub(super) table: String,
    #[command(flatten)]
    pub(super) drives: DriveArgs,
    /// A file or folder of rows, with or without keys
    #[arg(long, value_name = "FILE", required_unless_present = "delete")]
    pub(super) rows: Option<PathBuf>,
    /// Remove the keys that a file lists: .npy, .csv with a column, or raw .i32, .i64, .u32, .u64
    #[arg(long, value_name = "FILE[:COLUMN]", conflicts_with_all = ["rows", "ids", "ids_file", "keys", "tensor", "create"])]
    pub(super) delete: Option<String>,
    /// The ids, or keys, of the rows, in their order
    #[arg(long, value_name = "ID,...", allow_hyphen_values = true, conflicts_with = "ids_file")]
    pub(super) ids: Option<String>,
    /// A file of them: .npy, .csv with a column, or raw .i32, .i64, .u32, .u64
    #[arg(long, value_name = "FILE[:COLUMN]")]
    pub(super) ids_file: Option<String>,
    /// The keys of the rows: a list of whole numbers of 32 or 64 bits in the same .npz or safetensors file, or a .npy file of them. TENSOR,
    /// where a file has several, is what the file calls the rows, not the table
    #[arg(long, value_name = "[TENSOR=]NAME", conflicts_with_all = ["ids", "ids_file"])]
    pub(super) keys: Option<String>,
    /// Which tensor of the file, if it holds several
    #[arg(long, value_name = "GLOB")]
    pub(super) tensor: Option<String>,
    #[command(flatten)]
    pub(super) reading: ReadingArgs,
    /// Create keys that the table does not have, rather than refuse them
    #[arg(long)]
    pub(super) create: bool,
    /// Rows, or removals, that are made durable at once
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) batch: u64,
    /// When what was updated is brought into the table, rather than kept in memory and in the log
    #[arg(long, value_name = "WHEN", default_value = "full")]
    pub(super) compact: Compact,
    /// Begin with this row, or key, of the file: those before were updated, or removed
    #[arg(long, value_name = "ROW", default_value = "0", hide_default_value = true)]
    pub(super) from: u64,
}

impl UpdateArgs {
    /// The file of rows; empty where keys are removed.
    pub(super) fn rows(&self) -> &Path {
        self.rows.as_deref().unwrap_or(Path::new(""))
    }

    /// The file of rows, or of keys that are removed, for messages.
    pub(super) fn file(&self) -> String {
        self.delete.clone().unwrap_or_else(|| self.rows().display().to_string())
    }
}
