//! The arguments of `warprow plan`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use warprow_plan::{AlikeDrives, GpuCosts, GroupRows, HostCosts, MemoryBudgets, ProposalOptions};
use warprow_soft_controller::parse_size;

/// Say what of each table belongs in GPU memory, in DRAM and on drives, and what look-ups will then cost
///
/// A trace of past look-ups tells which rows are hot. The plan is learnt from its first part and tested on the rest (--held-out):
/// what is printed as expected is what the rest would have met, with the intervals that 90% of unseen traces are in: of the queries
/// that follow, as many as were held out, and as many as the trace has. `load --plan` applies the file that --out writes.
///
/// Nothing is written to drives. The trace is read as a stream, up to four times; counting takes --memory at most, and
/// where rows are too many for exact counts, the most frequent are counted, with the error stated.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  warprow plan --table 100000000x64:f16 --trace clicks.npy --dram 4G --on 2*gen5-tlc:6.4T --out plan.safetensors
  warprow plan -d emulated:a.drive --trace item=ratings.csv:movieId,query=userId --batch 64 --dram 1M
  warprow plan --table user=5000000x32:f32 --table item=80000x128:f32 --trace user,item=clicks.parquet:user_id,item_id \\
      --hbm 256M --dram 1G --on 4*p5800x --svg budgets.svg
  warprow plan --table l1=384006168x256:mxfp8 --trace tokens:corpus.u32:hash=engram-1,map=words.u32,end=0 \
      --memory 4G --batch 8192 --group off --rates 1G,4G,16G --out hot.safetensors
  warprow plan --table 5000000x32:f32 --trace clicks.npy --dram 64M --cache 64M
  warprow load -d emulated:a.drive model.safetensors --all --plan plan.safetensors")]
pub struct PlanArgs {
    /// The shape of a table; without NAME if it is the only one. TYPE is one of those of `load`
    #[arg(long = "table", value_name = "[NAME=]ROWSxDIM:TYPE", required_unless_present = "drives")]
    pub(super) tables: Vec<String>,
    /// This table is looked up by keys, any numbers of 64 bits; their index counts as memory. Repeat it for each
    #[arg(long = "keyed", value_name = "NAME", requires = "tables")]
    pub(super) keyed: Vec<String>,
    /// Take the shapes from the store on this drive, of the tables that traces are given of; repeat it for each drive
    #[arg(short, long = "drive", value_name = "DRIVE", id = "drives", conflicts_with = "tables")]
    pub(super) drives: Vec<String>,
    /// What was looked up, and in which tables: one for each slot of the trace, or each column is of the table that it is called
    /// like (`user_id` of `user_id` or `embeddings.user_id.weight`); of several traces, each query of one is that of the others
    ///
    /// [KIND:]PATH[:SETTINGS]: ids or keyset (.u32, .i64, ..), npy, csv (its columns; query=COLUMN makes a query of lines
    /// that follow each other), norm, raw (labels=, dense=, slots= or hotness=), parquet, tokens (of text; hash=, map=, end=); ids=N: so many ids a query.
    #[arg(long = "trace", value_name = "[TABLE,..=]TRACE", required = true)]
    pub(super) traces: Vec<String>,
    /// Queries of a look-up
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(super) batch: u32,
    /// GPU memory for rows; with any, look-ups run on the GPU
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub(super) hbm: u64,
    /// DRAM for rows
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub(super) dram: u64,
    /// The drives, as emulated drives can be timed: none, p5800x, gen5-tlc or gen6; with SIZE, whether the tables fit is checked
    #[arg(long = "on", value_name = "[N*]KIND[:SIZE]", default_value = "gen5-tlc")]
    pub(super) kind: DriveKind,
    /// These drives are emulated: a thread of this machine serves each, and takes its own time
    #[arg(long)]
    pub(super) emulated: bool,
    /// Bytes of an LBA
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    pub(super) lba: u32,
    /// The share of the trace, at its end, that the plan is tested on: above 0, up to 0.5
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    pub(super) held_out: f64,
    /// Whether rows that are looked up together share LBAs: auto does so where it pays on the part held out
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(super) group: Group,
    /// Memory for counting
    #[arg(long, value_name = "BYTES", default_value = "2G", value_parser = parse_size)]
    pub(super) memory: u64,
    /// Count ids that their table does not have, rather than refuse them
    #[arg(long)]
    pub(super) allow_missing: bool,
    /// Take the processor's costs as they are on a typical machine, rather than measure this one
    #[arg(long)]
    pub(super) typical_host: bool,
    /// Print what memory of these sizes would give: with the hottest rows, in DRAM and in GPU memory, and with the row cache of a host
    #[arg(long, value_name = "BYTES,..", value_delimiter = ',', value_parser = parse_size)]
    pub(super) rates: Vec<u64>,
    /// Compare the row cache of a host executor with a DRAM tier, both of so many bytes, on the part held out, and say which is ahead
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub(super) cache: Option<u64>,
    /// Compare the cache of an executor on a GPU with the hottest rows in GPU memory, both of so many bytes, on the part held out, and say
    /// which is ahead
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub(super) gpu_cache: Option<u64>,
    /// Write the plan to this file, for `load --plan`
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Draw what other budgets would give
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Overwrite files that exist
    #[arg(long)]
    pub(super) force: bool,
    /// Seed of what is drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
}

/// When rows share LBAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Group {
    /// Where it pays
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// `[N*]KIND[:SIZE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DriveKind {
    pub(super) count: u32,
    pub(super) kind: String,
    pub(super) bytes: u64,
}

impl FromStr for DriveKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (count, rest) = text.split_once('*').unwrap_or(("1", text));
        let count = count.parse().map_err(|_| format!("{count:?} is no number of drives"))?;
        let (kind, bytes) = match rest.split_once(':') {
            // Drives are sold by powers of 1000, with fractions.
            Some((kind, size)) => (kind, drive_bytes(size)?),
            None => (rest, 0),
        };
        Ok(Self { count, kind: kind.to_owned(), bytes })
    }
}

fn drive_bytes(text: &str) -> Result<u64, String> {
    let fraction =
        text.strip_suffix('T').and_then(|text| text.parse::<f64>().ok()).filter(|number| number.fract() != 0.0);
    match fraction {
        Some(terabytes) if terabytes > 0.0 && terabytes < 1e6 => Ok((terabytes * 1e12) as u64),
        _ => parse_size(text).map_err(|error| error.to_string()),
    }
}

impl PlanArgs {
    /// What a proposal is made with, on a processor of these costs.
    pub(super) fn options(&self, costs: HostCosts) -> ProposalOptions {
        let DriveKind { count, kind, bytes } = self.kind.clone();
        ProposalOptions {
            budgets: MemoryBudgets { hbm: self.hbm, dram: self.dram },
            drives: AlikeDrives { count, profile: kind, bytes, lba: self.lba, emulated: self.emulated },
            batch: self.batch,
            held_out: self.held_out,
            memory: self.memory,
            group: match self.group {
                Group::Auto => GroupRows::Auto,
                Group::On => GroupRows::On,
                Group::Off => GroupRows::Off,
            },
            allow_missing: self.allow_missing,
            costs,
            gpu: GpuCosts::default(),
            seed: self.seed,
        }
    }

    /// The files that are written.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.out, &self.svg].into_iter().flatten()
    }
}
