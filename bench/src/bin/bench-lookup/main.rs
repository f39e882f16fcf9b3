//! `bench-lookup`: whole look-ups, against `pread` and io_uring; in tables of growing size; and on a GPU.

mod gpu;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use warprow_bench::ahead::{self, AheadResult};
use warprow_bench::arguments::Common;
use warprow_bench::cold::{self, ColdResult};
use warprow_bench::growth::{self, Growth, GrowthResult};
use warprow_bench::host_cache::{self, HostCacheResult};
use warprow_bench::landing::{self, LandingResult};
use warprow_bench::lookup::{Duel, LookupResult, LookupSetup, run};
use warprow_bench::merging::{self, MergingResult};
use warprow_bench::output::{busy, finish, per_second, ratio, table};
use warprow_bench::rerank::{self, RerankResult};
use warprow_bench::results::{
    AheadCalls, BenchmarkResult, HostCacheShares, HostLookups, LandingTeams, MergingWays, Race, Record, RerankWindows,
};
use warprow_bench::{Bytes, Scratch};
use warprow_soft_controller::TimingProfile;
use warprow_workload::MachineInfo;
use warprow_workload::rival::PageCaching;
use warprow_workload::units::bytes;

/// Look-ups of skewed batches in a table on an emulated drive, by the host executor and by rivals that read the drive's file.
///
/// Rivals read one row for each id ("pread", "io_uring"), or have equal means: the same deduplication, the same rows in DRAM, the
/// same order and merging of reads by the same functions, and the same depth. They know where each row lies. All get
/// the same batches, fresh ones each turn; ours and each rival's turns alternate. The figures are medians, the ratio is
/// the median of the pairs' ratios. Every row of every answer is compared with the truth, outside the measured time.
///
/// cached: the drive serves reads from the page cache, which is warm. direct: drive and rivals go past it with O_DIRECT.
///
/// cold: batches of 1,024 uniform ids, each of a page that nobody has read: an emulated drive as it is by default and with direct=1, attached tables
/// likewise, and rivals. Milliseconds of a batch, in turns. Also in cached, a plain file of the rows is mapped: by a loop in Rust, and by numpy.memmap where
/// python3 has numpy.
///
/// growth: the same look-ups, without rivals, in tables from 1 GiB up on a drive with the timing of a real one, whose rows
/// are computed when they are read. Uniform ids without a DRAM tier show what size alone costs; with skewed ids and a
/// DRAM tier of one size, larger tables also read more rows. Each size runs in a process of its own, in turn.
///
/// ahead: steps of a look-up and a wait of --work, as for a model on a GPU; batches fetched --ahead steps ahead, and not at all. On a drive
/// with --profile's timing whose rows are computed.
///
/// merging: rows of the same LBA in one command and no others, those of neighbouring LBAs too, and whatever one command reads more cheaply
/// than two by the drive's read curve, which is measured. On a drive with --profile's timing whose rows are computed.
///
/// landing: look-ups into output buffers of the store's own, where rows land without a copy, and into ordinary memory, by 1, 2 … --threads threads on --drives
/// drives in memory. Rows share no commands. *expand* is the time that a thread spends on copying, and on looking for what has come.
///
/// host-cache: batches of different ids, of which 0, 50 and 90 % are in the executor's cache, with that cache and without it. No rows are in
/// DRAM otherwise. On a drive with --profile's timing whose rows are computed.
///
/// rerank: batches of uniform ids in windows: in every second one a round exchanges rows in DRAM, and the window lasts as long as that. The ratio
/// is of the 99th percentiles of two windows next to each other. On a drive in memory with --profile's timing.
///
/// --gpu: the GPU executor instead, with options of its own: see bench-lookup --gpu --help.
#[derive(Debug, Parser)]
#[command(
    name = "bench-lookup",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  bench-lookup                          # everything, 1 GiB of rows of 512 B in /var/tmp
  bench-lookup --only cached --seconds 10 --json | jq .cached.rivals
  bench-lookup --only direct --dir /mnt/nvme
  bench-lookup --only cold --dir /mnt/nvme --dim 40
  bench-lookup --only growth --growth 1G,16G,256G --profile gen5-tlc
  bench-lookup --only ahead --profile gen5-tlc --batch 1024 --ahead 2
  bench-lookup --only merging --profile gen5-tlc --size 64M --alpha 0 --hot 0
  bench-lookup --only landing --size 256M --alpha 0 --hot 0 --dim 1024 --drives 2 --threads 4
  bench-lookup --only host-cache --profile gen5-tlc --batch 1024
  bench-lookup --only rerank --size 256M --batch 64 --seconds 60
  bench-lookup --gpu --help             # look-ups by the GPU: Criteo-shaped tables, latencies, the caller's time"
)]
struct Args {
    #[command(subcommand)]
    executor: Option<Executor>,
    /// What to measure; may be given several times. Everything by default.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Bytes of rows.
    #[arg(long, default_value = "1G")]
    size: Bytes,
    /// Elements (f32) of a row.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// Exponent of the power law that ids follow; 0 is uniform.
    #[arg(long, default_value_t = 1.05)]
    alpha: f64,
    /// Ids in a batch.
    #[arg(long, default_value_t = 4096)]
    batch: u32,
    /// The share of rows that lie in DRAM: the hottest.
    #[arg(long, default_value_t = 0.05)]
    hot: f64,
    /// Seconds for each rival, and for each run of a growing table.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// cold: batches of each, at most.
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Sizes of growing tables.
    #[arg(long, value_delimiter = ',', default_value = "1G,8G,64G")]
    growth: Vec<Bytes>,
    /// Runs of each growing size.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// The drive whose timing emulated drives have, in the parts about growing tables, steps ahead and merging: none,
    /// p5800x, gen5-tlc or gen6.
    #[arg(long, default_value = "p5800x")]
    profile: String,
    /// ahead: how many.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    ahead: u32,
    /// ahead: microseconds that the caller waits in each step; as long as a look-up takes by default.
    #[arg(long)]
    work: Option<f64>,
    /// rerank: milliseconds that windows without a round last at least.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    interval: u64,
    /// landing: the most threads.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// landing: drives, each with a thread that answers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    drives: u32,
    /// Where the drive's file is made, without a name. By default $TMPDIR or /var/tmp.
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
    /// Runs one growing size, --size, with so many bytes of rows in DRAM, and prints its result.
    #[arg(long, hide = true)]
    one_size: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// From the page cache.
    Cached,
    /// Past the page cache.
    Direct,
    /// Rows that the page cache does not hold.
    Cold,
    /// Growing tables.
    Growth,
    /// Batches fetched ahead.
    Ahead,
    /// Rows that share commands.
    Merging,
    /// Rows that land in the output.
    Landing,
    /// A cache, and none.
    HostCache,
    /// A DRAM tier that follows.
    Rerank,
}

#[derive(Debug, Subcommand)]
enum Executor {
    #[command(long_flag = "gpu")]
    Gpu(gpu::GpuArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    match &args.executor {
        Some(Executor::Gpu(args)) => finish(args.common.json, gpu::measure(args)),
        None => finish(args.common.json, measure(&args)),
    }
}

fn measure(args: &Args) -> anyhow::Result<String> {
    let time = Duration::try_from_secs_f64(args.seconds)?;
    let Ok(profile) = args.profile.parse::<TimingProfile>() else {
        anyhow::bail!("{:?} is no profile: use none, p5800x, gen5-tlc or gen6", args.profile);
    };
    let dim = args.dim;
    let alpha = args.alpha;
    let batch = args.batch;
    let hot = args.hot;
    let seed = args.common.seed;
    let setup = LookupSetup { size: args.size.0, dim, alpha, batch, hot, seed };
    if let Some(dram) = args.one_size {
        return Ok(serde_json::to_string(&growth::run(&setup, dram, profile, time)?)?);
    }
    let machine = MachineInfo::this();
    let directory = args.dir.clone().unwrap_or_else(Scratch::default_directory);
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let run = |part, caching| wants(part).then(|| run(&setup, caching, &directory, time)).transpose();
    let cached = run(Part::Cached, PageCaching::Cached)?;
    let direct = match run(Part::Direct, PageCaching::Direct) {
        // Where nothing was asked for by name, a file system without O_DIRECT is no reason to fail.
        Err(error) if args.only.is_empty() => {
            eprintln!("direct is left out: {error:#}");
            None
        }
        result => result?,
    };
    let cold = match wants(Part::Cold) {
        true => match cold::run(&setup, &directory, args.rounds) {
            Err(error) if args.only.is_empty() => {
                eprintln!("cold is left out: {error:#}");
                None
            }
            result => Some(result?),
        },
        false => None,
    };
    let growth = if wants(Part::Growth) { Some(grow(args)?) } else { None };
    let ahead = match wants(Part::Ahead) {
        true => {
            let work = args.work.map(|us| Duration::try_from_secs_f64(us * 1e-6)).transpose()?;
            Some(ahead::run(&setup, profile, args.ahead, work, time)?)
        }
        false => None,
    };
    let merging = if wants(Part::Merging) { Some(merging::run(&setup, profile, time)?) } else { None };
    let landing = match wants(Part::Landing) {
        true => Some(landing::run(&setup, args.drives, args.threads, time)?),
        false => None,
    };
    let host_cache = if wants(Part::HostCache) { Some(host_cache::run(&setup, profile, time)?) } else { None };
    let rerank = match wants(Part::Rerank) {
        true => Some(rerank::run(&setup, profile, Duration::from_millis(args.interval), time)?),
        false => None,
    };
    if args.common.json {
        let found = HostLookups {
            size: args.size.0,
            row_bytes: u64::from(args.dim) * 4,
            alpha: args.alpha,
            batch: args.batch,
            seed: args.common.seed,
            cached: cached.as_ref().map(Race::from),
            direct: direct.as_ref().map(Race::from),
            cold,
            profile: args.profile.clone(),
            growth,
            ahead: ahead.as_ref().map(AheadCalls::from),
            merging: merging.as_ref().map(MergingWays::from),
            landing: landing.as_ref().map(LandingTeams::from),
            host_cache: host_cache.as_ref().map(HostCacheShares::from),
            rerank: rerank.as_ref().map(RerankWindows::from),
        };
        return Ok(Record::new(BenchmarkResult::Lookup(Box::new(found)), machine).line()?);
    }
    let mut text = String::new();
    for result in [&cached, &direct].into_iter().flatten() {
        show(&setup, result, &mut text)?;
    }
    if let Some(cold) = &cold {
        show_cold(&setup, cold, &mut text)?;
    }
    for growth in growth.iter().flatten() {
        show_growth(args, growth, &mut text)?;
    }
    if let Some(ahead) = &ahead {
        show_ahead(args, ahead, &mut text)?;
    }
    if let Some(merging) = &merging {
        show_merging(args, merging, &mut text)?;
    }
    if let Some(landing) = &landing {
        show_landing(args, landing, &mut text)?;
    }
    if let Some(host_cache) = &host_cache {
        show_host_cache(args, host_cache, &mut text)?;
    }
    if let Some(rerank) = &rerank {
        show_rerank(args, rerank, &mut text)?;
    }
    text += &busy(&machine);
    Ok(text)
}

fn show_cold(setup: &LookupSetup, result: &ColdResult, text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "{} B of rows of {} B, uniform, batches of {} of pages that nobody has read, {}; medians of {} rounds",
        setup.size,
        setup.dim * 4,
        result.batch,
        result.filesystem,
        result.rounds
    )?;
    let rows = result.lines.iter().map(|line| match (&line.ms, line.median_ms) {
        (Some(ms), Some(median)) => {
            let (low, high) = ms.iter().fold((f64::MAX, 0f64), |(low, high), &ms| (low.min(ms), high.max(ms)));
            let times = line.to_ours.map(|times| format!("{times:.2}")).unwrap_or_default();
            [line.who.clone(), format!("{median:.1}"), format!("{low:.1} to {high:.1}"), times]
        }
        _ => [line.who.clone(), line.unavailable.clone().unwrap_or_default(), String::new(), String::new()],
    });
    writeln!(text, "{}", table(["who", "ms", "range", "× as long as the first"], rows))?;
    writeln!(text, "{} rows compared bit for bit.\n", result.rows_checked)
}

fn show_ahead(args: &Args, result: &AheadResult, text: &mut String) -> std::fmt::Result {
    let AheadResult { ahead, work, hot_rows, lookup, prefetch, prefetched, steps, checked } = result;
    writeln!(
        text,
        "{} B of rows of {} B, α = {}, batches of {}, {hot_rows} rows in DRAM, a drive with the timing of {}",
        args.size.0,
        args.dim * 4,
        args.alpha,
        args.batch,
        args.profile
    )?;
    let calls = [("lookup", lookup), ("prefetch", prefetch), ("lookup_prefetched, rows there", prefetched)];
    let call = |(name, latencies): (&str, _)| {
        let [p50, p99] = percentiles(latencies);
        [name.to_owned(), p50, p99]
    };
    writeln!(text, "{}", table(["call", "p50 µs", "p99 µs"], calls.map(call)))?;
    let waiting = work.as_secs_f64() * 1e6;
    let us = |rate: f64| format!("{:.0}", 1e6 / rate);
    let steps_of = [
        ["one after the other".to_owned(), us(steps.median_b()), String::new()],
        [format!("{ahead} ahead"), us(steps.median_a()), ratio(steps)],
    ];
    writeln!(text, "Steps of a look-up and a wait of {waiting:.0} µs:")?;
    writeln!(text, "{}", table(["", "step µs", "steps/s to those (range)"], steps_of))?;
    writeln!(text, "{checked} rows compared bit for bit.\n")
}

fn show_merging(args: &Args, result: &MergingResult, text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "{} B of rows of {} B, α = {}, batches of {}, {} rows in DRAM, a drive with the timing of {}",
        args.size.0,
        args.dim * 4,
        args.alpha,
        args.batch,
        result.hot_rows,
        args.profile
    )?;
    match &result.curve {
        Some(curve) => writeln!(text, "Reads a second, as measured: {curve}")?,
        None => writeln!(text, "No read curve could be measured: neighbours instead.")?,
    }
    let rows = result.ways.iter().map(|way| {
        let [p50, p99] = percentiles(&way.latencies);
        let commands = format!("{:.0}", way.commands);
        let bytes = format!("{:.0}", way.bytes / 1024.0);
        let to_it = way.curve_to_it.as_ref().map(ratio).unwrap_or_default();
        [way.name.to_owned(), per_second(way.ids_per_second), commands, bytes, p50, p99, to_it]
    });
    let header = ["rows share", "ids/s", "commands", "KiB", "p50 µs", "p99 µs", "curve to it (range)"];
    writeln!(text, "{}", table(header, rows))?;
    writeln!(text, "{} rows compared bit for bit.\n", result.checked)
}

fn show_landing(args: &Args, result: &LandingResult, text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "{} B of rows of {} B, α = {}, batches of {}, {} rows in DRAM, {} drives in memory; ids/s of all threads, medians",
        args.size.0,
        args.dim * 4,
        args.alpha,
        args.batch,
        result.hot_rows,
        result.drives
    )?;
    let rows = result.teams.iter().map(|team| {
        let landed = format!("{:.0} %", 100.0 * team.buffers.landed as f64 / team.buffers.rows.max(1) as f64);
        let [buffers, ordinary] = [&team.buffers, &team.ordinary].map(|taken| format!("{:.0}", taken.expand_ns()));
        let pairs = &team.ids_per_second;
        let a = per_second(pairs.median_a());
        let b = per_second(pairs.median_b());
        [team.threads.to_string(), landed, a, b, ratio(pairs), buffers, ordinary]
    });
    let header = ["threads", "landed", "buffers", "ordinary", "to it (range)", "expand ns/id", "ordinary ns/id"];
    writeln!(text, "{}", table(header, rows))?;
    writeln!(text, "{} rows compared bit for bit.\n", result.checked)
}

fn show_host_cache(args: &Args, result: &HostCacheResult, text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "{} B of rows of {} B, batches of {} different ids, a cache of {} B ({} rows), a drive with the timing of {}",
        args.size.0,
        args.dim * 4,
        args.batch,
        result.cache_bytes,
        result.lines,
        args.profile
    )?;
    let rows = result.shares.iter().map(|share| {
        let [p50, p99] = percentiles(&share.with);
        let [p50_without, p99_without] = percentiles(&share.without);
        let found = format!("{:.1} %", share.found * 100.0);
        [found, p50_without, p50, p99_without, p99, format!("{:.0}", share.saved_us()), ratio(&share.pairs)]
    });
    let header =
        ["hits", "p50 µs without", "with", "p99 µs without", "with", "saved µs", "ids/s with to without (range)"];
    writeln!(text, "{}", table(header, rows))?;
    if !result.pinned {
        writeln!(text, "The caller and the drive could not be given a processor each.")?;
    }
    writeln!(text, "{} rows compared bit for bit.\n", result.checked)
}

fn show_rerank(args: &Args, result: &RerankResult, text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "{} B of rows of {} B, uniform, batches of {}, {} rows in DRAM, a drive with the timing of {}; rounds at {} B/s at most",
        args.size.0,
        args.dim * 4,
        args.batch,
        result.hot_rows,
        args.profile,
        result.rate
    )?;
    let windows = [("calm", &result.calm), ("beside rounds", &result.beside)];
    let rows = windows.map(|(name, latencies)| {
        let [p50, p99] = percentiles(latencies);
        [name.to_owned(), latencies.count().to_string(), p50, p99, format!("{:.0}", latencies.percentile_us(99.9))]
    });
    writeln!(text, "{}", table(["windows", "batches", "p50 µs", "p99 µs", "p99.9 µs"], rows))?;
    let pairs = result.p99_us.pairs().len();
    writeln!(text, "p99 beside rounds to calm, of {pairs} pairs of windows: {}", ratio(&result.p99_us))?;
    writeln!(text, "{} rounds exchanged {} rows in DRAM.", result.rounds, result.moved)?;
    writeln!(text, "{} rows compared bit for bit.\n", result.checked)
}

fn percentiles(latencies: &warprow_workload::Latencies) -> [String; 2] {
    [50.0, 99.0].map(|percent| format!("{:.0}", latencies.percentile_us(percent)))
}

fn show(setup: &LookupSetup, result: &LookupResult, text: &mut String) -> std::fmt::Result {
    let how = if result.caching == PageCaching::Cached { "warm page cache" } else { "O_DIRECT" };
    writeln!(
        text,
        "{} B of rows of {} B, α = {}, batches of {}, {} rows in DRAM; {how}, {}, LBAs of {} B; ids/s, medians",
        setup.size,
        setup.dim * 4,
        setup.alpha,
        setup.batch,
        result.hot_rows,
        result.filesystem,
        result.lba
    )?;
    let [p50, p99] = percentiles(&result.latencies);
    let mut rows =
        vec![["Warprow".to_owned(), "2".to_owned(), per_second(result.ids_per_second), String::new(), p50, p99]];
    for Duel { rival, outcome, latencies } in &result.duels {
        rows.push(match outcome {
            Err(reason) => [rival.clone(), String::new(), reason.clone(), String::new(), String::new(), String::new()],
            Ok(pairs) => {
                let [p50, p99] = percentiles(latencies);
                let threads = if rival.starts_with("io_uring") { "1 + kernel" } else { "1" };
                [rival.clone(), threads.to_owned(), per_second(pairs.median_b()), ratio(pairs), p50, p99]
            }
        });
    }
    writeln!(text, "{}", table(["who", "threads", "ids/s", "Warprow to it (range)", "p50 µs", "p99 µs"], rows))?;
    writeln!(text, "{} rows compared bit for bit.\n", result.checked)
}

fn show_growth(args: &Args, growth: &Growth, text: &mut String) -> std::fmt::Result {
    let ids = if growth.alpha == 0.0 { "uniform ids".to_owned() } else { format!("α = {}", growth.alpha) };
    let dram = growth.dram_bytes;
    let profile = &args.profile;
    writeln!(text, "Growing tables, {ids}, {dram} B of rows in DRAM, timing of {profile}; medians")?;
    let rows = growth.sizes.iter().map(|size| {
        [
            bytes(size.size.unwrap_or(0)),
            per_second(size.ids_per_second),
            per_second(size.commands_per_second),
            format!("{:.0}", size.p50_us),
            format!("{:.0}", size.p99_us),
            size.peak_resident_bytes.map_or("unknown".to_owned(), bytes),
        ]
    });
    let header = ["size", "ids/s", "commands/s", "p50 µs", "p99 µs", "memory, at most"];
    writeln!(text, "{}", table(header, rows))?;
    let ratio = growth.ratio.unwrap_or(f64::NAN) * 100.0;
    writeln!(text, "The largest has {ratio:.1} % of the smallest's ids/s.\n")
}

fn grow(args: &Args) -> anyhow::Result<Vec<Growth>> {
    ensure!(!args.growth.is_empty() && args.runs > 0, "--growth and --runs leave nothing to run");
    let smallest = args.growth.iter().map(|size| size.0).min().unwrap_or(0);
    let dram = (smallest as f64 * args.hot) as u64;
    let mut growths = Vec::new();
    for (alpha, dram) in [(0.0, 0), (args.alpha, dram)] {
        let mut sizes: Vec<Vec<GrowthResult>> = args.growth.iter().map(|_| Vec::new()).collect();
        for _ in 0..args.runs {
            for (size, runs) in args.growth.iter().zip(&mut sizes) {
                runs.push(one_size(args, size.0, alpha, dram)?);
            }
        }
        growths.push(Growth::new(alpha, dram, &sizes));
    }
    Ok(growths)
}

/// Runs this program for one size, so that its memory is its own.
fn one_size(args: &Args, size: u64, alpha: f64, dram: u64) -> anyhow::Result<GrowthResult> {
    let arguments = [
        ("--size", size.to_string()),
        ("--dim", args.dim.to_string()),
        ("--alpha", alpha.to_string()),
        ("--batch", args.batch.to_string()),
        ("--seconds", args.seconds.to_string()),
        ("--seed", args.common.seed.to_string()),
        ("--profile", args.profile.clone()),
        ("--one-size", dram.to_string()),
    ];
    let done = Command::new(std::env::current_exe()?)
        .args(arguments.iter().flat_map(|(name, value)| [*name, value]))
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "the run with {size} bytes has failed: {}", said.trim());
    serde_json::from_slice(&done.stdout).with_context(|| format!("the run with {size} bytes printed no result: {said}"))
}
