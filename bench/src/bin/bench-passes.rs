//! `bench-passes`: training passes, against rows from the drive and against copies of memory.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use warprow_bench::Scratch;
use warprow_bench::arguments::Common;
use warprow_bench::output::{busy, finish, per_second, table};
use warprow_bench::passes::{DriveKind, Measured, PassSetup, Progress, run};
use warprow_bench::results::{BenchmarkResult, Record, TrainingPasses};
use warprow_soft_controller::TimingProfile;
use warprow_workload::MachineInfo;
use warprow_workload::rival::PageCaching;

/// Training passes on an emulated drive: how long a trainer waits for its rows, and for giving them back.
///
/// Ten passes, twice over, shaped as those by which HugeCTR's embedding training cache was measured: keys by a power law, such that
/// a pass has 23% of all keys that any has, and 45% of a pass were in the first two. For each pass its rows are staged and copied out
/// (read), compared with what they have to be, changed, and given back (write); comparing and changing is not timed. At the
/// end what is durable is compared.
///
/// uncached: every pass is read from the drive, and durable before the next. cached (num_blocks, target_hit_rate, max_num_evict).
/// ahead: the next pass is prepared while the trainer trains, as long as an uncached pass takes to be read and written: keys are found, and
/// rows read that are missing. behind: the one before is written meanwhile. in parts: copied out of memory in parts of 256 KiB, as to memory that a GPU reads. Effective
/// bandwidth is the bytes of the rows by the time for which the trainer waits: for preparing the next pass, staging, copying out and giving back. memcpy is measured before each pass, by as many threads.
///
/// Each way that is left has the same share of the time that is left (--limit), and ends with the pass under way: figures are then of
/// fewer passes, which is said, as are ways for which no time was left. What is done is told on stderr meanwhile.
#[derive(Debug, Parser)]
#[command(
    name = "bench-passes",
    version,
    after_help = "\
Examples:
  bench-passes                                  # 128 MiB of rows of 512 B, on a file in /var/tmp
  bench-passes --rows 16000000 --dir /mnt/nvme --limit 900 --json
  bench-passes --drive gen5-tlc                 # in memory, with the timing of such a drive"
)]
struct Args {
    /// Rows. Three times their bytes must be free, and twice their bytes in memory.
    #[arg(long, default_value_t = 1 << 18)]
    rows: u64,
    /// Elements (f32) of a row.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// The drive.
    #[arg(long, value_enum, default_value_t = Drive::Direct)]
    drive: Drive,
    /// Threads that copy rows; 0: as many as there are processors.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Seconds that all of it may take, about: up to a pass longer, and what it takes to compare the table.
    #[arg(long, value_name = "SECONDS", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// Where the file is made, without a name. By default $TMPDIR or /var/tmp.
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Drive {
    /// A file, past the page cache.
    Direct,
    /// A file, through the page cache.
    Cached,
    /// Memory, with the timing of Optane.
    P5800x,
    /// Memory, with the timing of a flash drive of 2026.
    Gen5Tlc,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, measure(&args))
}

fn measure(args: &Args) -> anyhow::Result<String> {
    let machine = MachineInfo::this();
    let drive = match args.drive {
        Drive::Direct => DriveKind::File(PageCaching::Direct),
        Drive::Cached => DriveKind::File(PageCaching::Cached),
        Drive::P5800x => DriveKind::Timed(TimingProfile::P5800x),
        Drive::Gen5Tlc => DriveKind::Timed(TimingProfile::Gen5Tlc),
    };
    let setup = PassSetup {
        rows: args.rows,
        dim: args.dim,
        drive,
        threads: args.threads,
        seed: args.common.seed,
        limit: Duration::from_secs(args.limit),
    };
    let result = run(&setup, &args.dir.clone().unwrap_or_else(Scratch::default_directory), &mut tell)?;
    if args.common.json {
        let found = TrainingPasses {
            rows: args.rows,
            row_bytes: u64::from(args.dim) * 4,
            drive: format!("{:?}", args.drive).to_lowercase(),
            seed: args.common.seed,
            result,
        };
        return Ok(Record::new(BenchmarkResult::Passes(found), machine).line()?);
    }
    let mut text = format!(
        "Ten passes twice, of {} rows of {} B each, of {} that any has and {} in all; memcpy {}B/s\n",
        result.pass_rows,
        args.dim * 4,
        result.distinct,
        args.rows,
        per_second(result.memcpy.unwrap_or(f64::NAN))
    );
    let uncached = result.ways.iter().find(|way| way.way == "uncached").map_or(f64::NAN, |way| way.both);
    let rows = result.ways.iter().map(|way| {
        [
            way.way.clone(),
            way.passes.to_string(),
            hits(way),
            per_second(way.read),
            per_second(way.write),
            per_second(way.both),
            format!("{:.1} ×", way.both / uncached),
            format!("{:.0} %", way.both / way.memcpy * 100.0),
            format!("{:.2} ms, {:.2} ms", way.stage * 1e3, way.ahead * 1e3),
            per_second(way.copy),
            format!("{:.0} %, {:.0} %", way.copy / way.memcpy * 100.0, way.parts / way.memcpy * 100.0),
            format!("{:.2} s, {:.2} s", way.training, way.tail),
        ]
    });
    let header = [
        "way",
        "passes",
        "hits, 2nd time",
        "read B/s",
        "write B/s",
        "both",
        "of uncached",
        "of memcpy",
        "staging, ahead",
        "copy B/s",
        "of memcpy: whole, in parts",
        "training, tail",
    ];
    writeln!(text, "{}", table(header, rows))?;
    if !result.left_out.is_empty() {
        writeln!(text, "Left out, since no time was left (--limit {}): {}.", args.limit, result.left_out.join("; "))?;
    }
    writeln!(text, "{} rows compared.", result.checked)?;
    Ok(text + &busy(&machine))
}

fn hits(way: &Measured) -> String {
    let later = way.hit_rate_later.map_or("–".to_owned(), |rate| format!("{:.0} %", rate * 100.0));
    format!("{:.0} %, {later}", way.hit_rate * 100.0)
}

/// On stderr, which nobody may be reading.
fn tell(progress: Progress<'_>) {
    let line = match progress {
        Progress::Loaded(seconds) => format!("table loaded, {seconds:.1} s"),
        Progress::Done(way, None) => format!("{way}: no time left"),
        Progress::Done(way, Some(it)) => format!(
            "{way}: {} passes, {} in memory, read {}B/s, write {}B/s, both {}B/s, memcpy {}B/s",
            it.passes,
            hits(it),
            per_second(it.read),
            per_second(it.write),
            per_second(it.both),
            per_second(it.memcpy)
        ),
    };
    let _ = writeln!(std::io::stderr(), "{line}");
}
