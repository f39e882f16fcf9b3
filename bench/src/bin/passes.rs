//! `passes`: training passes, against rows from the drive and against copies of memory.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use serde_json::json;
use warprow_bench::arguments::Common;
use warprow_bench::output::{busy, finish, per_second, table};
use warprow_bench::passes::{Bed, PassSetup, run};
use warprow_bench::{Scratch, machine_json};
use warprow_soft_controller::Profile;
use warprow_workload::Machine;
use warprow_workload::rival::Caching;

/// Training passes on an emulated drive: how long a trainer waits for its rows, and for giving them back.
///
/// Ten passes, twice over, shaped as those by which HugeCTR's embedding training cache was measured: keys by a power law, such that
/// a pass has 23% of all keys that any has, and 45% of a pass were in the first two. For each pass its rows are staged and copied out
/// (read), compared with what they have to be, changed, and given back (write); comparing and changing is not timed. At the
/// end what is durable is compared.
///
/// uncached: every pass is read from the drive, and durable before the next. cached (num_blocks, target_hit_rate, max_num_evict).
/// ahead and behind: the next pass is read, and the one before written, while the trainer trains, as long as an uncached
/// pass takes to be read and written. in parts: copied out of memory in parts of 256 KiB, as to memory that a GPU reads. Effective bandwidth is the bytes of the rows by the time for which the trainer waits.
#[derive(Debug, Parser)]
#[command(
    name = "passes",
    version,
    after_help = "\
Examples:
  passes                                  # 256 MiB of rows of 512 B, on a file in /var/tmp
  passes --rows 16000000 --dir /mnt/nvme --json
  passes --drive gen5-tlc                 # in memory, with the timing of such a drive"
)]
struct Args {
    /// Rows. Three times their bytes must be free, and twice their bytes in memory.
    #[arg(long, default_value_t = 1 << 19)]
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
    let machine = Machine::this();
    let bed = match args.drive {
        Drive::Direct => Bed::File(Caching::Direct),
        Drive::Cached => Bed::File(Caching::Cached),
        Drive::P5800x => Bed::Timed(Profile::P5800x),
        Drive::Gen5Tlc => Bed::Timed(Profile::Gen5Tlc),
    };
    let setup = PassSetup { rows: args.rows, dim: args.dim, bed, threads: args.threads, seed: args.common.seed };
    let result = run(&setup, &args.dir.clone().unwrap_or_else(Scratch::default_directory))?;
    if args.common.json {
        let object = json!({
            "schema": 1,
            "rows": args.rows,
            "row_bytes": u64::from(args.dim) * 4,
            "drive": format!("{:?}", args.drive).to_lowercase(),
            "seed": args.common.seed,
            "result": result,
            "machine": machine_json(&machine),
        });
        return Ok(format!("{object}\n"));
    }
    let mut text = format!(
        "Ten passes twice, of {} rows of {} B each, of {} that any has and {} in all; memcpy {}B/s\n",
        result.pass_rows,
        args.dim * 4,
        result.distinct,
        args.rows,
        per_second(result.memcpy)
    );
    let uncached = result.ways.first().map_or(f64::NAN, |way| way.both);
    let rows = result.ways.iter().map(|it| {
        [
            it.way.to_owned(),
            format!("{:.0} %, {:.0} %", it.hit_rate * 100.0, it.hit_rate_later * 100.0),
            per_second(it.read),
            per_second(it.write),
            per_second(it.both),
            format!("{:.1} ×", it.both / uncached),
            per_second(it.copy),
            format!("{:.0} %, {:.0} %", it.copy / result.memcpy * 100.0, it.parts / result.memcpy * 100.0),
            format!("{:.2} s, {:.2} s", it.training, it.tail),
        ]
    });
    let header = [
        "way",
        "hits, 2nd time",
        "read B/s",
        "write B/s",
        "both",
        "of uncached",
        "copy B/s",
        "of memcpy, in parts",
        "training, tail",
    ];
    writeln!(text, "{}", table(header, rows))?;
    writeln!(text, "{} rows compared.", result.checked)?;
    Ok(text + &busy(&machine))
}
