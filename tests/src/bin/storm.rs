//! Lets storms blow over the command: random work, kills and bit rot, for seconds or for hours.

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use warprow_tests::storm::{Options, Outcome, Part, run, shorten};

/// Drives the command `warprow` on emulated drives with random work, kills and bit rot, and compares what it reads with a model
/// that knows what every row may be. A seed decides what is done. docs/storms.md says what is checked.
#[derive(Parser)]
#[command(name = "storm")]
struct Arguments {
    /// The command [default: `warprow` beside this program]
    #[arg(long)]
    warprow: Option<PathBuf>,
    /// Storms one after another, each of the next seed
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// This storm alone, told aloud
    #[arg(long, conflicts_with_all = ["seeds", "start", "hours"])]
    seed: Option<u64>,
    /// Steps of a storm
    #[arg(long, default_value_t = 60)]
    steps: u64,
    /// These steps alone, as `N,N,N-M`
    #[arg(long, conflicts_with = "steps")]
    only: Option<String>,
    /// Go on for so long, whatever --seeds says
    #[arg(long)]
    hours: Option<f64>,
    /// What is left out
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<Part>,
    /// Kills come after a random time rather than before a random write: less repeatable, and other places
    #[arg(long)]
    timed: bool,
    /// Where drives and files are made, a folder for each storm; one that ends well goes [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Look for fewer steps that end in the same violation, for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    shorten: u64,
    /// Programs that share the seeds
    #[arg(long, default_value_t = 1)]
    processes: u64,
}

fn main() -> ExitCode {
    match all(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn steps(arguments: &Arguments) -> Result<Vec<u64>> {
    let Some(only) = &arguments.only else { return Ok((0..arguments.steps).collect()) };
    let mut steps = Vec::new();
    for part in only.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u64>().with_context(|| format!("--only {only}: {text:?}"));
        steps.extend(number(from)?..=number(to)?);
    }
    Ok(steps)
}

fn all(arguments: &Arguments) -> Result<bool> {
    let warprow = match &arguments.warprow {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("warprow"),
    };
    if !warprow.is_file() {
        bail!("{} is not there: build it with `cargo build --release`, or name it with --warprow", warprow.display());
    }
    if arguments.processes > 1 && arguments.seed.is_none() {
        return in_processes(arguments);
    }
    let warprow = warprow.canonicalize()?;
    let folder =
        arguments.keep.clone().unwrap_or_else(std::env::temp_dir).join(format!("storm.{}", std::process::id()));
    let steps = steps(arguments)?;
    let began = Instant::now();
    let limit = arguments.hours.map(|hours| Duration::from_secs_f64(hours * 3600.0));
    let seeds = match (arguments.seed, limit) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(_)) => arguments.start..u64::MAX,
        (None, None) => arguments.start..arguments.start.saturating_add(arguments.seeds),
    };
    let mut total = Outcome::default();
    let mut storms = 0;
    for seed in seeds {
        if limit.is_some_and(|limit| began.elapsed() > limit) {
            break;
        }
        let options = Options {
            without: arguments.without.clone(),
            timed: arguments.timed,
            aloud: arguments.seed.is_some(),
            steps: steps.clone(),
            ..Options::new(warprow.clone(), folder.join(seed.to_string()), 0)
        };
        let outcome = run(seed, &options);
        storms += 1;
        total.add(&outcome);
        if outcome.violation.is_some() {
            println!("{storms} storms in {:.0} s: {}", began.elapsed().as_secs_f64(), total.account());
            tell(seed, &options, outcome, arguments);
            return Ok(false);
        }
        let _ = std::fs::remove_dir_all(&options.folder);
        if storms % 20 == 0 {
            eprintln!("{storms} storms, to seed {seed}, after {:.0} s", began.elapsed().as_secs_f64());
        }
    }
    let _ = std::fs::remove_dir(&folder);
    println!("{storms} storms in {:.0} s: {}", began.elapsed().as_secs_f64(), total.account());
    Ok(true)
}

/// Says what was violated, by the fewest steps that were found, and how to see it again.
fn tell(seed: u64, options: &Options, outcome: Outcome, arguments: &Arguments) {
    let at = outcome.at;
    println!("seed {seed}, step {at}: VIOLATION: {}", outcome.violation.as_deref().unwrap_or_default());
    println!("drives and log are kept in {}", options.folder.display());
    let (left, shortest) = shorten(seed, options, outcome, Duration::from_secs(arguments.shorten));
    println!("\n{} steps are enough:\n{}\n", left.len(), shortest.log.join("\n"));
    let without: Vec<_> = arguments.without.iter().filter_map(clap::ValueEnum::to_possible_value).collect();
    let without = without.iter().map(|part| part.get_name()).collect::<Vec<_>>().join(",");
    let without = if without.is_empty() { String::new() } else { format!(" --without {without}") };
    let timed = if arguments.timed { " --timed" } else { "" };
    let only = left.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    println!("again: storm --seed {seed} --steps {}{without}{timed} --keep DIR", at + 1);
    println!("shorter: storm --seed {seed} --only {only}{without}{timed} --keep DIR");
}

fn in_processes(arguments: &Arguments) -> Result<bool> {
    let given: Vec<_> = std::env::args_os().skip(1).collect();
    let share = match arguments.hours {
        Some(_) => u64::MAX / 2 / arguments.processes,
        None => arguments.seeds.div_ceil(arguments.processes),
    };
    let part = |number: u64| -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut rest = given.iter();
        // All but what is divided.
        while let Some(word) = rest.next() {
            let text = word.to_string_lossy();
            let name = text.split('=').next().unwrap_or_default();
            if ["--processes", "--start", "--seeds"].contains(&name) {
                if !text.contains('=') {
                    rest.next();
                }
                continue;
            }
            command.arg(word);
        }
        let start = arguments.start + number * share;
        let seeds = share.min((arguments.start + arguments.seeds).saturating_sub(start));
        command.args(["--processes", "1", "--start", &start.to_string(), "--seeds", &seeds.to_string()]);
        Ok(command.spawn()?)
    };
    let parts: Vec<Child> = (0..arguments.processes).map(part).collect::<Result<_>>()?;
    let mut clean = true;
    for mut part in parts {
        clean &= part.wait()?.success();
    }
    Ok(clean)
}
