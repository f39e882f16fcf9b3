//! `bench-load`: loading a table, and verifying it, against `dd`.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use warprow_bench::arguments::Common;
use warprow_bench::load::{LoadResult, LoadSetup, run};
use warprow_bench::output::{busy, finish, per_second, ratio, table};
use warprow_bench::results::{BenchmarkResult, LoadedTable, Loads, Record};
use warprow_bench::{Bytes, Scratch};
use warprow_workload::MachineInfo;
use warprow_workload::rival::PageCaching;

/// Loading a table onto an emulated drive, against `dd bs=1M oflag=direct conv=fsync` onto the same file system.
///
/// The rows lie in memory. They are loaded in the order of their ids ("identity"), or in that of a random permutation: read once
/// from the first to the last and then put in order, as from a file ("permuted"), or each picked when its rank is due
/// ("picked"). The time runs from the start of the load to the end of its commit, three flushes
/// included. Then all rows are verified by their checksums ("verify"), against dd that reads as many bytes of the drive's file
/// to nowhere, directly or from the page cache. Both are measured in turn, with a new file for each; the figures are medians, the ratio is the median of the
/// pairs' ratios. Everything is read back and compared afterwards.
///
/// The drive writes to its file through the page cache ("cached"), or past it with io_uring and O_DIRECT ("direct"), as dd
/// does.
#[derive(Debug, Parser)]
#[command(
    name = "bench-load",
    version,
    after_help = "\
Examples:
  bench-load                            # 1 GiB of rows of 512 B, in /var/tmp
  bench-load --drive direct --dir /mnt/nvme --size 8G --json"
)]
struct Args {
    /// Bytes of rows, a multiple of 1M.
    #[arg(long, default_value = "1G")]
    size: Bytes,
    /// Elements (f32) of a row.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// How the drive reaches its file.
    #[arg(long, value_enum, default_value_t = Drives::Both)]
    drive: Drives,
    /// Loads of each kind.
    #[arg(long, default_value_t = 5)]
    pairs: u32,
    /// Where files are made, without names; somewhat more than twice --size must be free. By default $TMPDIR or /var/tmp.
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Drives {
    /// Through the page cache.
    Cached,
    /// Past it.
    Direct,
    /// First the one, then the other.
    Both,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, measure(&args))
}

fn measure(args: &Args) -> anyhow::Result<String> {
    let machine = MachineInfo::this();
    let directory = args.dir.clone().unwrap_or_else(Scratch::default_directory);
    let run = |caching, unless| {
        let setup = LoadSetup { size: args.size.0, dim: args.dim, caching, seed: args.common.seed };
        (args.drive != unless).then(|| run(&setup, &directory, args.pairs)).transpose()
    };
    let cached = run(PageCaching::Cached, Drives::Direct)?;
    let direct = run(PageCaching::Direct, Drives::Cached)?;
    if args.common.json {
        let found = Loads {
            size: args.size.0,
            row_bytes: u64::from(args.dim) * 4,
            seed: args.common.seed,
            pairs: args.pairs,
            cached: cached.as_ref().map(LoadedTable::from),
            direct: direct.as_ref().map(LoadedTable::from),
        };
        return Ok(Record::new(BenchmarkResult::Load(found), machine).line()?);
    }
    let mut rows = vec![];
    for (name, result) in [("cached", &cached), ("direct", &direct)] {
        let Some(result) = result else { continue };
        let orders = [("identity", &result.identity), ("permuted", &result.permuted), ("picked", &result.picked)];
        for (order, pairs) in orders.into_iter().chain([("verify", &result.verified)]) {
            rows.push([
                format!("{name}, {order}"),
                per_second(pairs.median_a()),
                per_second(pairs.median_b()),
                ratio(pairs),
            ]);
        }
    }
    let mut text =
        format!("Loading {} B of rows of {} B; bytes/s, medians of {}\n", args.size.0, args.dim * 4, args.pairs);
    writeln!(text, "{}", table(["drive, what", "Warprow", "dd", "ratio (range)"], rows))?;
    for result in [&cached, &direct].into_iter().flatten() {
        let LoadResult { checked, lba, filesystem, .. } = result;
        writeln!(text, "{checked} rows read back and compared; LBAs of {lba} B, {filesystem}.")?;
    }
    text += &busy(&machine);
    Ok(text)
}
