//! `bench-report`: a set of benchmarks as one page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use clap::Parser;
use warprow_bench::report::{Described, Extent, Needs, Outcome, Part, Report, date_of, keep, load, page, run, set};

/// Runs a set of benchmarks and writes one page of HTML: what was emulated, the machine, plots with rivals side by side, and the
/// raw results. The page needs no network.
///
/// The programs lie beside this one (bench-ring, bench-lookup and so on) and run one after the other, each in a process of its own. What
/// needs a GPU is not run where there is none, and the page says so. What fails is in the page with its reason, and makes this
/// program fail when the page is written.
///
/// Results that were printed with --json earlier, or on other machines, become a page by --from: each *.json in the folder is a part.
#[derive(Debug, Parser)]
#[command(
    name = "bench-report",
    version,
    after_help = "\
Examples:
  bench-report --quick                          # some minutes; warprow-report.html
  bench-report --only ring,lookup --output a.html
  bench-report --keep results                   # the full set, an hour or more; results are kept
  bench-report --from results --output b.html   # the same page again, with nothing run"
)]
struct Args {
    /// Small tables and few repetitions.
    #[arg(long, conflicts_with = "from")]
    quick: bool,
    /// Parts to run: ring, lookup, load, plan-rate, plan-speed, switch, passes, ssd, ring-resident, ring-gpu, dram, dram-sms,
    /// elements, dedupe, hbm, lookup-gpu, lookup-dynamicemb, lookup-nve. All by default.
    #[arg(long, value_delimiter = ',', conflicts_with = "from")]
    only: Vec<String>,
    /// Runs nothing: makes the page of the results in this folder.
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
    /// Keeps the results in this folder, for --from.
    #[arg(long, value_name = "FOLDER", conflicts_with = "from")]
    keep: Option<PathBuf>,
    /// Seconds that a part may take [default: 300 with --quick, else 7200].
    #[arg(long, conflicts_with = "from")]
    limit: Option<u64>,
    /// The page.
    #[arg(long, short, default_value = "warprow-report.html")]
    output: PathBuf,
}

fn main() -> ExitCode {
    match make(&Args::parse()) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("error: failed: {}; the page says why", failed.join(", "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the page: the names of the parts that have failed.
fn make(args: &Args) -> anyhow::Result<Vec<String>> {
    // Before an hour of measuring, rather than after it.
    let mut output = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&args.output)
        .with_context(|| args.output.display().to_string())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = date_of(now.as_secs());
    let report = match &args.from {
        Some(folder) => load(folder, &set(Extent::Full).iter().map(|program| program.name).collect::<Vec<_>>(), &date)?,
        None => measure(args, date)?,
    };
    let text = page(&report);
    output.set_len(0)?;
    std::io::Write::write_all(&mut output, text.as_bytes()).with_context(|| args.output.display().to_string())?;
    println!("{} ({} parts)", args.output.display(), report.parts.len());
    Ok(report.failed().into_iter().map(str::to_owned).collect())
}

fn measure(args: &Args, date: String) -> anyhow::Result<Report> {
    let extent = if args.quick { Extent::Quick } else { Extent::Full };
    let programs = set(extent);
    for name in &args.only {
        ensure!(programs.iter().any(|program| program.name == name), "{name:?} is no part: see --help for their names");
    }
    let machine = Described::this();
    let program = std::env::current_exe()?;
    let binaries = program.parent().unwrap_or(Path::new("."));
    let scratch = tempfile::tempdir().context("a folder for what the programs print")?;
    let limit = Duration::from_secs(args.limit.unwrap_or(if args.quick { 300 } else { 7200 }));
    let wants = |name: &str| args.only.is_empty() || args.only.iter().any(|other| other == name);
    let mut report = Report { date, machine, parts: Vec::new() };
    for program in programs {
        let not_run = |reason: String| Part {
            name: program.name.to_owned(),
            command: None,
            outcome: Outcome::NotRun(reason),
            said: String::new(),
        };
        let part = match (&report.machine.gpu, program.needs) {
            _ if !wants(program.name) => not_run("left out by --only".to_owned()),
            (Err(reason), Needs::Gpu) => not_run(format!("it needs a GPU: {reason}")),
            _ => {
                eprintln!("{}: {} {}", program.name, program.binary, program.arguments);
                run(&program, binaries, scratch.path(), limit)
            }
        };
        match &part.outcome {
            Outcome::Done(_) => {}
            Outcome::Failed(reason) => eprintln!("  failed: {reason}"),
            Outcome::NotRun(reason) => eprintln!("{}: not run: {reason}", program.name),
        }
        report.parts.push(part);
        // After each part, so that what was measured survives what comes.
        if let Some(folder) = &args.keep {
            keep(&report, folder)?;
        }
    }
    Ok(report)
}
