//! The arguments of `warprow load`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use warprow_keys::FingerprintWidth;
use warprow_layout::{ChunkSpread, DType};

use crate::drives::DriveArgs;
use crate::keyed::Index;
use crate::reading::ReadingArgs;

/// Load tables from files, all of them or none
///
/// A table is a tensor [rows, dim] of F32, F16, BF16, F8_E4M3, F8_E5M2, I8 or U8 in a safetensors file (also sharded: give
/// its folder or model.safetensors.index.json), a .npy file, an array of a .npz file, a HugeCTR sparse model or
/// embedding-collection dump or a DynamicEmb dump (give the folder), a column of vectors in a Parquet file, or raw rows
/// (--shape). If a file holds several, choose with --tensor or take --all. The rows keep their bits, NaN included, unless
/// --to says otherwise.
///
/// Where a format has keys, or --keys names them, row i of the file is that of key i. Keys that are the numbers from 0 on, in any
/// order, become ids; any other 64-bit keys get an index, by which they are looked up (--key-index). Each key comes once.
///
/// Which rows are hot decides how fast look-ups are: the hottest are kept in memory. Tell with --hotness, by a count for
/// each row, by recorded look-ups to be counted (several add up), or by the scores of a HugeCTR dump. A click log is for all tables
/// that its columns are called like: column `user_id` for `user_id` or `embeddings.user_id.weight`. Without it, --replace and --beside
/// keep the order of the table that they follow, and else the first rows count as the hottest.
///
/// Nothing is visible before everything is written, and an interrupted load leaves the store as it was.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow load -d emulated:a.drive items.npy
  warprow load -d emulated:a.drive model.safetensors --tensor 'emb.*' --strip-prefix emb.
  warprow load -d emulated:a.drive model.safetensors --tensor item=emb.items.weight \\
      --hotness trace:clicks.csv:item
  warprow load -d emulated:a.drive model.safetensors --tensor 'embeddings.*' --hotness trace:clicks.parquet
  warprow load -d emulated:a.drive users/ --hotness norm:train/file_list.txt:i64,slot=3
  warprow load -d emulated:a.drive users.npz --tensor vectors --keys ids
  warprow load -d emulated:a.drive model.safetensors --all --dry-run
  warprow load -d emulated:a.drive dump/ --all --to f16
  warprow load -d emulated:a.drive rows.bin --shape 1000000x64:f32")]
pub struct LoadArgs {
    #[command(flatten)]
    pub(super) drives: DriveArgs,
    /// Files or folders to load from
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) reading: ReadingArgs,
    /// The keys of the rows: a list of whole numbers of 32 or 64 bits in the same .npz or safetensors file, or a .npy file of them. TENSOR,
    /// where a file has several, is what the file calls the rows, not the table
    #[arg(long, value_name = "[TENSOR=]NAME")]
    pub(super) keys: Vec<String>,
    /// Whether keys get an index, or become ids; ids are the numbers from 0 on
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(super) key_index: Index,
    /// Bits by which the index tells other keys: one in 2^BITS gets a row of the table, rather than the default
    #[arg(long, value_name = "8|16|32", default_value = "16", value_parser = fingerprint)]
    pub(super) fingerprint: FingerprintWidth,
    /// Store the index of keys alone, which takes 8 bytes a row less: keys can then not be exported, nor compared in look-ups
    #[arg(long)]
    pub(super) forget_keys: bool,
    /// Convert the rows to this type, and say what that loses: f32, f16, bf16, f8e4m3, f8e5m2, or q8 or q4,
    /// bytes or halves of bytes with a scale and a bias for each row, in the layout of FBGEMM
    #[arg(long, value_name = "TYPE", value_parser = target_type)]
    pub(super) to: Option<DType>,
    /// Load the tensors that match; with a name, the only one that matches, under that name
    #[arg(long, value_name = "[NAME=]GLOB", conflicts_with = "all")]
    pub(super) tensor: Vec<String>,
    /// Load all tables there are
    #[arg(long)]
    pub(super) all: bool,
    /// Cut this from the names of tables
    #[arg(long, value_name = "PREFIX")]
    pub(super) strip_prefix: Option<String>,
    /// How hot each row is: a count a row (.npy, .csv, .u32, .u64). Or recorded look-ups to be counted, with trace: before the
    /// file, or one of ids:, keyset:, npy:, csv:, norm:, raw:, parquet:, and behind it settings such as COLUMN, i64, slot=NAME,
    /// labels=1,dense=13,slots=26, sizes=A/B/... Or scores:FOLDER of a HugeCTR dump. TABLE may be a pattern such as emb.*; without, look-ups
    /// are of the tables that columns are called like
    #[arg(long, value_name = "[TABLE=][KIND:]FILE[:SETTINGS]")]
    pub(super) hotness: Vec<String>,
    /// Order the rows as this plan says, which `warprow plan --out` made, and keep as many in memory
    #[arg(long, value_name = "FILE", conflicts_with = "hotness")]
    pub(super) plan: Option<PathBuf>,
    /// The row that stands for ids a table does not have: zeros, a row of the table, or a file of one row
    #[arg(long, value_name = "zeros|id:N|FILE.npy", default_value = "zeros")]
    pub(super) default: String,
    /// Store a checksum of every row, four bytes each, so that `verify` can tell whether rows are intact
    #[arg(long)]
    pub(super) row_crc: bool,
    /// Which free chunks of each drive the tables get
    #[arg(long, value_name = "WHICH", default_value = "packed")]
    pub(super) span: Span,
    /// Replace tables that have these names; until the end both need room
    #[arg(long)]
    pub(super) replace: bool,
    /// Do not keep the order of the tables that are replaced, or followed with --beside: the first rows count as the hottest
    #[arg(long)]
    pub(super) forget_order: bool,
    /// Load them beside those of these names: nothing finds them before `warprow switch`
    #[arg(long, conflicts_with = "replace")]
    pub(super) beside: bool,
    /// Say which LBA size look-ups of these tables want, and why, and whether the store has it: only `format` can change it
    #[arg(long, value_name = "auto", value_parser = ["auto"])]
    pub(super) lba: Option<String>,
    /// What the model is called that these tables belong to [default: the first file's name]
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// Note in this file what is written, so that the same command goes on where it was killed or stopped; it goes when all is
    /// loaded. Of tables above 1 GiB that are put in order, by --hotness or keys, whole GiB are found
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(super) resume: Option<PathBuf>,
    /// Only say what would be loaded and replaced, or why it could not be
    #[arg(long)]
    pub(super) dry_run: bool,
}

/// Which free chunks of a drive tables get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Span {
    /// The lowest.
    Packed,
    /// Some from all over the drive, for drives on which reads of rows that lie far apart go on side by side.
    Whole,
}

impl From<Span> for ChunkSpread {
    fn from(span: Span) -> Self {
        match span {
            Span::Packed => Self::Packed,
            Span::Whole => Self::Whole,
        }
    }
}

fn fingerprint(bits: &str) -> Result<FingerprintWidth, String> {
    match bits {
        "8" => Ok(FingerprintWidth::Bits8),
        "16" => Ok(FingerprintWidth::Bits16),
        "32" => Ok(FingerprintWidth::Bits32),
        _ => Err("fingerprints have 8, 16 or 32 bits".to_owned()),
    }
}

fn target_type(name: &str) -> Result<DType, String> {
    let types = || DType::ALL.into_iter().filter(|dtype| dtype.is_made());
    let known = || types().map(DType::name).collect::<Vec<_>>().join(", ");
    types().find(|dtype| dtype.name() == name).ok_or_else(|| format!("the types are {}", known()))
}
