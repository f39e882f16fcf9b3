//! The arguments of `warprow verify`.

use clap::Args;

use crate::drives::DriveArgs;
use crate::reading::ReadingArgs;

/// Read tables back and compare them with their checksums, or with the file they came from
///
/// Metadata, in all its copies, logs, permutations and keys always have checksums; of keys that are stored, each must lead to its
/// row. Rows have them if they were loaded with --row-crc; if not, reading them back shows only that the drives can read them, and
/// the result says so. Without --table, tables of generations that stand by are read too. With --against, every row is compared
/// bit for bit: of each table with the tensor that is called like it, in the file that was given for it, or else in one of the others.
///
/// It reads as fast as the drives do; `scrub` does the same slowly, and goes on where it was stopped.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow verify -d emulated:a.drive
  warprow verify -d emulated:a.drive --table items --against items.npy
  warprow verify -d emulated:a.drive --table users --against users.npy --keys keys.npy
  warprow verify -d emulated:a.drive --table items --against items.bin --shape 64:f32
  warprow verify -d emulated:a.drive --against users=u.npy --against items=model.safetensors --tensor items=emb.item.weight

Exit codes: 0 everything that could be checked is sound; 3 a file is wrong; 5 rows differ; 6 permutations, keys, logs or metadata \
are damaged; 7 a drive cannot read some of it. All are in `warprow --help`.")]
pub struct VerifyArgs {
    #[command(flatten)]
    pub(super) drives: DriveArgs,
    /// Only this table; may be repeated
    #[arg(long, value_name = "TABLE")]
    pub(super) table: Vec<String>,
    /// Compare with the tables in this file, bit for bit; with NAME, a table or a pattern of tables, these alone. May be repeated
    #[arg(long, value_name = "[NAME=]FILE")]
    pub(super) against: Vec<String>,
    /// The keys of the rows in that file, if they are a list beside them, or a .npy file. TENSOR, where it has several, is what the
    /// file calls the rows
    #[arg(long, value_name = "[TENSOR=]NAME", requires = "against")]
    pub(super) keys: Vec<String>,
    /// The tensor in the file, where its name is not the table's nor like it; NAME is the table, where several are compared. May be
    /// repeated
    #[arg(long, value_name = "[NAME=]GLOB", requires = "against")]
    pub(super) tensor: Vec<String>,
    #[command(flatten)]
    pub(super) reading: ReadingArgs,
}
