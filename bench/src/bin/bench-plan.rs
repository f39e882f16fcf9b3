//! `bench-plan`: what a plan expects, against what look-ups do.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use warprow_bench::Bytes;
use warprow_bench::output::{busy, finish, per_second, table};
use warprow_bench::plan::{PlanSetup, run, speed};
use warprow_bench::results::{BenchmarkResult, PlanCase, PlanRates, PlanSpeed, Record};
use warprow_plan::HostCosts;
use warprow_workload::MachineInfo;

/// What `warprow plan` expects of look-ups, against what they do on emulated drives with the timing of real ones.
///
/// rate: plans by four fifths of a generated trace, with the processor's costs measured, loads the table as planned and
/// looks the last fifth up, in three rounds, of which the medians count. Every row is compared, outside the measured time. The rate
/// is that of the median look-up.
///
/// speed: how long a plan takes, and how much memory, with ids that are generated as they are read.
#[derive(Debug, Parser)]
#[command(
    name = "bench-plan",
    version,
    after_help = "\
Examples:
  bench-plan rate
  bench-plan rate --profile p5800x --alpha 0.8 --dram 0.2 --json
  bench-plan speed --ids 100000000 --rows 100000000"
)]
struct Args {
    #[command(subcommand)]
    what: What,
    /// Prints one JSON object instead of the table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Hit rates, commands and look-up rates, planned and measured
    Rate {
        #[command(flatten)]
        setup: Setup,
        /// Seconds of look-ups for each case, at least.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
    /// Time and memory that a plan takes
    Speed {
        #[command(flatten)]
        setup: Setup,
        /// Memory for counting.
        #[arg(long, default_value = "2G")]
        memory: Bytes,
    },
}

#[derive(Debug, clap::Args)]
struct Setup {
    /// Rows.
    #[arg(long, default_value_t = 1 << 18)]
    rows: u64,
    /// Elements (f32) of a row.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// Exponent of the power law; without it, of `rate`, several.
    #[arg(long)]
    alpha: Option<f64>,
    /// The share of ranks that get another id within a million queries.
    #[arg(long, default_value_t = 0.0)]
    drift: f64,
    /// Ids of the trace.
    #[arg(long, default_value_t = 4_000_000)]
    ids: u64,
    /// Ids of a look-up.
    #[arg(long, default_value_t = 4096)]
    batch: u32,
    /// The share of rows in DRAM.
    #[arg(long, default_value_t = 0.05)]
    dram: f64,
    /// Drives.
    #[arg(long, default_value_t = 1)]
    drives: u32,
    /// The drive whose timing emulated drives have; without it, the timing of `rate`, each in turn.
    #[arg(long)]
    profile: Option<String>,
    /// Seed of ids and content.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Setup {
    fn with(&self, alpha: f64, profile: &str) -> PlanSetup {
        PlanSetup {
            rows: self.rows,
            dim: self.dim,
            alpha,
            drift: self.drift,
            ids: self.ids,
            batch: self.batch,
            dram: self.dram,
            drives: self.drives,
            profile: profile.to_owned(),
            seed: self.seed,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.json, measure(&args))
}

fn nanoseconds(costs: &HostCosts) -> String {
    let HostCosts { lookup, dram_before, dram, ssd_before, row_before, send, complete, row, repeat, emulated } = costs;
    let all = [
        ("look-up", lookup),
        ("id in DRAM", dram_before),
        ("then", dram),
        ("id on drives", ssd_before),
        ("its row", row_before),
        ("command", send),
        ("then", complete),
        ("row", row),
        ("repeat", repeat),
        ("drive's thread", emulated),
    ];
    all.map(|(what, seconds)| format!("{what} {:.0}", seconds * 1e9)).join(", ")
}

fn measure(args: &Args) -> anyhow::Result<String> {
    let machine = MachineInfo::this();
    match &args.what {
        What::Rate { setup, seconds } => {
            anyhow::ensure!((0.0..3600.0).contains(seconds), "{seconds} seconds: 0 to an hour is possible");
            let alphas = setup.alpha.map_or(vec![1.05, 0.8, 0.0], |alpha| vec![alpha]);
            let profiles = setup.profile.as_deref().map_or(vec!["gen5-tlc", "p5800x"], |profile| vec![profile]);
            let cases = profiles.iter().flat_map(|profile| alphas.iter().map(|&alpha| setup.with(alpha, profile)));
            let mut results = Vec::new();
            for case in cases {
                let result = run(&case, Duration::from_secs_f64(*seconds))?;
                results.push((case, result));
            }
            if args.json {
                let cases = results.into_iter().map(|(setup, result)| PlanCase { setup, result }).collect();
                return Ok(Record::new(BenchmarkResult::PlanRate(PlanRates { cases }), machine).line()?);
            }
            let is_busy = machine.is_busy();
            let rows = results.iter().map(|(setup, it)| {
                [
                    format!("{} × {}, α {}", setup.drives, setup.profile, setup.alpha),
                    format!("{:.1} ± {:.1} %", it.hit_planned * 100.0, it.hit_error * 100.0),
                    format!("{:.1} %", it.hit * 100.0),
                    format!("{:.1}", it.commands_planned),
                    format!("{:.1}", it.commands),
                    per_second(it.rate_planned),
                    per_second(it.rate),
                    format!("{:.2} ({:.2}–{:.2})", it.ratio, it.ratios[0], it.ratios[1]),
                    format!("{:.2}", it.undisturbed_ratio),
                    format!("{:.0} %", it.waited * 100.0),
                    match (it.hit_holds(), it.rate_holds(is_busy)) {
                        (true, true) => "held",
                        (true, false) => "rate off",
                        (false, true) => "hit rate off",
                        (false, false) => "both off",
                    }
                    .to_owned(),
                ]
            });
            let header = [
                "drives, ids",
                "in DRAM: planned",
                "was",
                "commands",
                "were",
                "ids/s",
                "were",
                "planned/measured",
                "undisturbed",
                "waiting",
                "verdict",
            ];
            let mut text = format!(
                "Look-ups of {} ids in {} rows of {} B, {} of them in DRAM\n",
                setup.batch,
                setup.rows,
                setup.dim * 4,
                setup.dram
            );
            writeln!(text, "{}", table(header, rows))?;
            let costs: Vec<String> = results.iter().map(|(_, it)| nanoseconds(&it.costs)).collect();
            let whose = if is_busy { ", of undisturbed look-ups since the machine is busy" } else { "" };
            writeln!(text, "Held: the hit rate within 2 points or the error stated, the rate within 20%{whose}.")?;
            writeln!(text, "Nanoseconds of a processor, as measured before each case:\n{}", costs.join("\n"))?;
            writeln!(text, "{} rows compared.", results.iter().map(|result| result.1.checked).sum::<u64>())?;
            Ok(text + &busy(&machine))
        }
        What::Speed { setup, memory } => {
            let profile = setup.profile.as_deref().unwrap_or("gen5-tlc");
            let case = setup.with(setup.alpha.unwrap_or(1.05), profile);
            let it = speed(&case, memory.0)?;
            if args.json {
                let found = PlanSpeed { setup: case, result: it };
                return Ok(Record::new(BenchmarkResult::PlanSpeed(found), machine).line()?);
            }
            let mut text = format!(
                "{} ids of {} rows: planned in {:.1} s, of which generating takes about {:.1} s; {} MB resident at most\n",
                case.ids,
                case.rows,
                it.seconds,
                it.generating,
                it.peak_resident_bytes.unwrap_or(0) / 1_000_000
            );
            writeln!(
                text,
                "counts are too low by {} at most; {:.1} % in DRAM",
                it.count_error,
                it.hit_planned * 100.0
            )?;
            Ok(text + &busy(&machine))
        }
    }
}
