//! `bench-switch`: look-ups while generations are switched under them.

use std::process::ExitCode;

use clap::Parser;
use warprow_bench::arguments::Common;
use warprow_bench::output::{busy, finish, table};
use warprow_bench::results::{BenchmarkResult, Record, Switches};
use warprow_bench::switch::{LIMIT_US, SwitchResult, SwitchSetup, run};
use warprow_bench::{Bytes, Count};
use warprow_workload::units::bytes;
use warprow_workload::{Latencies, MachineInfo};

/// Look-ups of the host executor while generations are switched under them, against look-ups while nothing is.
///
/// Two generations of a table lie on emulated drives in memory. Threads look batches up without a pause; another thread switches to and
/// fro: it prepares the other generation (which reads its rows for DRAM from the drives), makes the switch durable, and has the host
/// adopt it. Switches come in ten portions with calm times between, so that both figures are of the same machine at the same time.
/// Every row of every answer is compared with what the generation has that the look-up's report names: a wrong or mixed row ends it with an error.
///
/// The verdict: p99.9 of look-ups that overlap a portion is less than 10 ms longer than that of the others.
#[derive(Debug, Parser)]
#[command(
    name = "bench-switch",
    version,
    after_help = "\
Examples:
  bench-switch                          # 1,000 switches of 64 MiB
  bench-switch --size 4G --hot 0.1 --switches 100 --rate 500M --readers 8
  bench-switch --json | jq .p999_growth_us"
)]
struct Args {
    /// Bytes of rows of a generation.
    #[arg(long, default_value = "64M")]
    size: Bytes,
    /// Elements (f32) of a row.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// Exponent of the power law that ids follow.
    #[arg(long, default_value_t = 1.05)]
    alpha: f64,
    /// Ids in a batch.
    #[arg(long, default_value_t = 256)]
    batch: u32,
    /// The share of rows that lie in DRAM: each switch reads them anew.
    #[arg(long, default_value_t = 0.05)]
    hot: f64,
    /// Threads that look up.
    #[arg(long, default_value_t = 2)]
    readers: u32,
    /// Switches.
    #[arg(long, default_value = "1000")]
    switches: Count,
    /// Bytes a second that filling the DRAM tier reads at most [default: as fast as it goes].
    #[arg(long)]
    rate: Option<Bytes>,
    /// Emulated drives.
    #[arg(long, default_value_t = 2)]
    drives: u32,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, measure(&args))
}

fn measure(args: &Args) -> anyhow::Result<String> {
    let machine = MachineInfo::this();
    let setup = SwitchSetup {
        size: args.size.0,
        dim: args.dim,
        alpha: args.alpha,
        batch: args.batch,
        hot: args.hot,
        readers: args.readers,
        switches: u32::try_from(args.switches.0)?,
        rate: args.rate.map(|rate| rate.0),
        drives: args.drives,
        seed: args.common.seed,
    };
    let result = run(&setup)?;
    if args.common.json {
        return Ok(Record::new(BenchmarkResult::Switch(Switches::new(&setup, &result)), machine).line()?);
    }
    Ok(show(&setup, &result) + &busy(&machine))
}

fn show(setup: &SwitchSetup, result: &SwitchResult) -> String {
    let row = |name: &str, it: &Latencies| {
        let time = |percent| format!("{:.1}", it.percentile_us(percent));
        [name.to_owned(), it.count().to_string(), time(50.0), time(99.0), time(99.9)]
    };
    let rows = [
        row("look-ups, calm", &result.before),
        row("look-ups, switching", &result.during),
        row("switches, with preparation", &result.switches),
        row("switches, without", &result.adoptions),
    ];
    let table = table(["µs", "count", "p50", "p99", "p99.9"], rows);
    let [first, second] = result.checked;
    format!(
        "Two generations of {}, rows of {} B, batches of {} ids, {} threads, {} drives, seed {}\n{table}\n\
         p99.9 grows by {:.2} ms while generations are switched: {} (less than {:.0} ms is due)\n\
         every row was right: {first} of the first generation, {second} of the second\n",
        bytes(setup.size),
        setup.dim * 4,
        setup.batch,
        setup.readers,
        setup.drives,
        setup.seed,
        result.growth_us() / 1000.0,
        if result.is_met() { "met" } else { "NOT MET" },
        LIMIT_US / 1000.0,
    )
}
