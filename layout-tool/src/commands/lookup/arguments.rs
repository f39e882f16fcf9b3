//! The arguments of `warprow lookup`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use warprow_soft_controller::parse_size;
use warprow_workload::TraceFile;

use crate::drives::DriveArgs;

/// Look rows up by their ids
///
/// Ids that the table does not have are missing, negative ones among them unless it has keys: --missing says what stands for them. With
/// --pooling, ids are added up in bags: --offsets says where each begins, as for torch.nn.EmbeddingBag; without it, all ids are
/// one bag.
///
/// With --trace, recorded look-ups of several tables are looked up and not shown: what is printed is, for each table and for all,
/// the share of ids that memory answered, so that what `plan` expects can be compared with what comes.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow lookup -d emulated:a.drive --table items --ids 7,42,-1
  warprow lookup -d emulated:a.drive --table items --ids-file clicks.csv:item --out rows.npy
  warprow lookup -d emulated:a.drive --table items --ids 1,2,3,4 --pooling mean --offsets offsets.npy
  warprow lookup -d emulated:a.drive --trace clicks.parquet --dram 64M
  warprow lookup -d emulated:a.drive --trace clicks.parquet --plan plan.safetensors
  warprow lookup -d emulated:a.drive --trace clicks.parquet --cache 64M")]
pub struct LookupArgs {
    #[command(flatten)]
    pub(super) drives: DriveArgs,
    /// The table; with --trace it may be repeated, and be a pattern such as emb.*: by default all that columns are called like
    #[arg(long = "table", value_name = "TABLE", required_unless_present = "traces")]
    pub(super) tables: Vec<String>,
    /// Recorded look-ups of several tables: each column is of the table that it is called like
    ///
    /// [KIND:]PATH[:SETTINGS], as for `plan --trace` and `load --hotness`; with TABLE, or a pattern of tables, for these alone.
    #[arg(
        long = "trace",
        value_name = "[TABLE=]TRACE",
        conflicts_with_all = ["ids", "ids_file", "pooling", "offsets", "weights", "out", "degraded"]
    )]
    pub(super) traces: Vec<String>,
    /// Queries of the trace that are looked up at once
    #[arg(long, value_name = "N", default_value_t = 4096, conflicts_with_all = ["ids", "ids_file"], value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(super) batch: u32,
    /// DRAM for rows, the hottest of all tables of the store; by default none
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub(super) dram: Option<u64>,
    /// Memory for rows that look-ups read from drives, which later ones then find there; by default none
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub(super) cache: Option<u64>,
    /// Give as much DRAM as this plan has memory for rows, and print what it expects beside what comes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ids", "ids_file"])]
    pub(super) plan: Option<PathBuf>,
    /// The ids
    #[arg(
        long,
        value_name = "ID,...",
        allow_hyphen_values = true,
        required_unless_present_any = ["ids_file", "traces"],
        conflicts_with = "ids_file"
    )]
    pub(super) ids: Option<String>,
    /// A file of ids: .npy, .csv with a column, or raw .i32, .i64, .u32, .u64
    #[arg(long, value_name = "FILE[:COLUMN]")]
    pub(super) ids_file: Option<String>,
    /// Whether the rows of a bag become one, and how
    #[arg(long, default_value = "none")]
    pub(super) pooling: Pooling,
    /// A file of integers: where in the ids each bag begins
    ///
    /// As for torch.nn.EmbeddingBag: as many bags as offsets, the last up to the last id. The first is 0.
    #[arg(long, value_name = "FILE[:COLUMN]")]
    pub(super) offsets: Option<String>,
    /// The last offset begins no bag, but is the number of ids, where the last bag ends
    #[arg(long, requires = "offsets")]
    pub(super) include_last_offset: bool,
    /// A .npy file of <f4: a weight for each id; only with --pooling sum
    #[arg(long, value_name = "FILE")]
    pub(super) weights: Option<PathBuf>,
    /// What stands for missing ids: the table's default row, zeros, nothing, or an error
    #[arg(long, default_value = "default")]
    pub(super) missing: Missing,
    /// An id that stands for nothing
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub(super) padding: Option<i128>,
    /// Do not compare rows with their checksums, where the table has them
    ///
    /// To compare them, all checksums of the table are read first: four bytes a row.
    #[arg(long)]
    pub(super) no_check: bool,
    /// Compare every id with the stored key, where the table has keys
    ///
    /// Without it, a key that the table does not have gets some row once in 256, 65,536 or 4,294,967,296 times, by the table's
    /// fingerprints. To compare them, all keys of the table are read first: eight bytes a row.
    #[arg(long)]
    pub(super) check_keys: bool,
    /// Do without drives that are missing: print the rows that are left, unchecked
    ///
    /// Exit code 6 if one of the rows is lost. The table must be in the order of its ids; the order of others, and their keys, may be lost as well.
    #[arg(long, conflicts_with_all = ["out", "offsets"])]
    pub(super) degraded: bool,
    /// Write the rows to a .npy or .safetensors file instead of printing them
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "out")]
    pub(super) force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Pooling {
    None,
    Sum,
    Mean,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Missing {
    Default,
    Zero,
    Skip,
    Error,
}

impl LookupArgs {
    /// The files that are read, each with its option.
    pub(super) fn inputs(&self) -> Vec<(&'static str, PathBuf)> {
        let columns = [("--ids-file", &self.ids_file), ("--offsets", &self.offsets)];
        let columns = columns.into_iter().filter_map(|(option, argument)| {
            let Ok(file) = argument.as_ref()?.parse::<TraceFile>();
            Some((option, file.path))
        });
        columns.chain(self.weights.clone().map(|path| ("--weights", path))).collect()
    }
}

impl Pooling {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sum => "sum",
            Self::Mean => "mean",
        }
    }

    pub(super) fn of_store(self) -> warprow_lookup::Pooling {
        match self {
            Self::None => warprow_lookup::Pooling::None,
            Self::Sum => warprow_lookup::Pooling::Sum,
            Self::Mean => warprow_lookup::Pooling::Mean,
        }
    }
}

impl Missing {
    pub(super) fn of_store(self) -> warprow_lookup::MissingPolicy {
        match self {
            Self::Default => warprow_lookup::MissingPolicy::Default,
            Self::Zero => warprow_lookup::MissingPolicy::Zero,
            Self::Skip => warprow_lookup::MissingPolicy::Skip,
            Self::Error => warprow_lookup::MissingPolicy::Error,
        }
    }
}
