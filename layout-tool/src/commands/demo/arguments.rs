//! The arguments of `warprow demo`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The options of the table that is made up. Options of a table in a file conflict with each by name: clap waives what an option
/// requires where another one that is given rules that out.
const MADE_UP: [&str; 3] = ["rows", "dim", "alpha"];

/// See it work: format an emulated drive, load a table, replay a skewed trace, check every row, race six rivals
///
/// The drive is a sparse file, served by a complete NVMe controller model in this process; the driver, the queues and the
/// layout are those that a real drive gets. The table is larger than what is kept in memory. Each batch of ids is looked up,
/// timed, and then, untimed, every row that came back is compared bit for bit with what it must be.
///
/// Six rivals then answer the same batches, checked in the same way: from the same file a pread for each id, an io_uring
/// read for each id, a copy from a mapping of the file for each id, and the first two again with equal means: the same deduplication, rows in memory, order and depth;
/// and, where python3 has numpy, numpy.memmap of a plain file of the rows in the order of ids. Where there is
/// a GPU, Warprow answers them once more by kernels on it; ids are copied to the GPU and rows back.
///
/// All of that with a warm page cache. In the end a few batches come from the disk: the page cache forgets the files, and every
/// id lies in a page that nobody has read since. Warprow, also with direct=1, races pread by 16 threads and both mapped files.
///
/// The file has no name and is gone when the command ends, however it ends; --keep gives it one.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow demo
  warprow demo --rows 65536 --seconds 1 --json
  warprow demo --table model.safetensors --tensor 'emb.items.*' --trace clicks.csv:item
  warprow demo --keep /data/demo.drive && warprow inspect -d emulated:/data/demo.drive
  warprow demo --inject corrupt; echo $?     # a bit flips on its way: exit code 5")]
pub struct DemoArgs {
    /// Rows of the table that is made up; at least 1000
    #[arg(long, value_name = "N", default_value_t = 1 << 21, conflicts_with = "table", value_parser = clap::value_parser!(u64).range(1000..=u64::from(u32::MAX)))]
    pub rows: u64,
    /// Elements, f32, in each of its rows; at most 16384
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "table", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub dim: u32,
    /// Exponent of the power law that its ids follow, from 0 to 100
    #[arg(long, value_name = "X", default_value_t = 1.05, conflicts_with = "table")]
    pub alpha: f64,
    /// Take the table from this file instead
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub table: Option<PathBuf>,
    /// The tensor in it [default: the one with the most rows]
    #[arg(long, value_name = "GLOB", requires = "table", conflicts_with_all = MADE_UP)]
    pub tensor: Option<String>,
    /// Take the ids from this file instead: .csv with a column, .npy, or raw .u32, .u64, or any other trace, such as .npz, .parquet or
    /// norm:FILE:slot=3; its first half tells which rows are hot, its second half is replayed, again and again if it is short
    #[arg(long, value_name = "FILE[:COLUMN]", requires = "table", conflicts_with_all = MADE_UP)]
    pub trace: Option<String>,
    /// How keys of the trace become ids
    #[arg(long, default_value = "strict", requires = "trace", conflicts_with_all = MADE_UP)]
    pub map: Map,
    /// Ids in a batch, at most 4194304; a shorter trace makes a smaller one
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = parse_batch)]
    pub batch: usize,
    /// The share of the rows that is kept in memory, the hottest, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = parse_percent)]
    pub dram: f64,
    /// Batches to replay, at most
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub batches: u64,
    /// Seconds of look-ups, at most
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// What everything random comes from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where the drive's file lies [default: $TMPDIR or /var/tmp, unless that is in memory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Keep the drive, as this file; an existing one is refused
    #[arg(long, value_name = "PATH", conflicts_with = "dir")]
    pub keep: Option<PathBuf>,
    /// Let something go wrong, to see it found
    #[arg(long, value_name = "FAULT")]
    pub inject: Option<Inject>,
    /// Do without the rivals
    #[arg(long)]
    pub no_rivals: bool,
}

/// How keys become ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Map {
    /// A key is the id; keys that the table does not have are missing ids
    Strict,
    /// The n-th smallest key is id n
    Dense,
    /// The key modulo the number of rows
    Modulo,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Inject {
    /// The drive flips a bit of the data of one read, and says that all went well
    Corrupt,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(|| "give 0 to 100".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.001..=86_400.0).contains(seconds))
        .ok_or_else(|| "give 0.001 to 86400".to_owned())
}

fn parse_batch(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|batch| (1..=1 << 22).contains(batch)).ok_or_else(|| "give 1 to 4194304".to_owned())
}
