//! `bench-ring`: commands a second over one queue pair, against a minimal ring.

mod resident;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::{Parser, ValueEnum};
use warprow_bench::arguments::Common;
use warprow_bench::gpu::ring::{self as gpu_ring, GpuRingSetup};
use warprow_bench::output::{busy, finish, per_second, ratio, table};
use warprow_bench::results::{BenchmarkResult, DriveRing, GpuRing, HostRing, Record, Submitter};
use warprow_bench::ring::{Media, RingResult, RingSetup, run};
use warprow_bench::{Bytes, Count};
use warprow_gpu_queues::Gpu;
use warprow_workload::MachineInfo;

/// Random reads over one NVMe queue pair: Warprow's driver on its software controller, against a bundled minimal ring.
///
/// Two threads take part on each side: one submits and consumes completions, one answers. The minimal ring has the
/// same submission entries of 64 bytes, completion entries of 16, phase bits and doorbells in memory, and nothing else:
/// no errors, no time-outs, no checks, in order. So the ratio tells what everything else costs. Warprow's controller
/// fetches data to the cache ahead of its command; the minimal ring is measured without that and, for "RAM, fetched ahead",
/// with it.
///
/// Both are measured in turn, in rounds of 8192 commands with fresh random blocks; the figures are medians, the ratio is
/// the median of the pairs' ratios. Every block read is compared byte for byte after its round, in both. A drive
/// without data (null) must leave the memory untouched.
///
/// The controller answers in order, as the minimal ring does. "In disorder" it permutes completions and delays one in
/// 10,000 by 100 us; that is measured too, without a rival.
///
/// With --gpu the rows come through whole look-ups of Warprow's, and the figure is their commands by the time from the first
/// command to the last completion, by the GPU's clock; rows are random and fresh in each look-up, and all of them compared on
/// the GPU. Each drive has a thread that answers. Drives share a look-up's commands evenly, so it takes as long as the slowest; the sum
/// of what each thread does by its own clock, from its first doorbell to its last completion, stands beside it. Behind each look-up as many
/// threads on the same processors copy random blocks out of as much memory, without rings, drives or GPU: how that scales is what the machine
/// has to give, and "of those" is the share of it. With --commands look-ups go on, with the most threads, until so many commands have been
/// answered.
///
/// With --gpu --controller gpu a kernel that stays on the GPU answers instead of threads, and the ring code reads nothing but LBAs: what
/// rings and protocol cost where the controller is as fast as the GPU. It permutes completions, delays one in 10,000 by 20 us, and checks
/// addresses and that no command identifier is used again too early. With --controller peer it is on another GPU. All that is read
/// is compared, where data moves (--data). Figures are commands by the time of the whole kernel.
///
/// Needs two idle cores; each thread is bound to one. Nothing is written to disk.
#[derive(Debug, Parser)]
#[command(
    name = "bench-ring",
    version,
    after_help = "\
Examples:
  bench-ring --host                     # RAM and null drive, a table
  bench-ring --host --json | jq .ratio
  bench-ring --host --depth 1 --backing ram --seconds 5
  bench-ring --on vfio-user:/run/a.sock --overwrite --depth 1 --block 4096
  bench-ring --gpu --size 2G --threads 1,2,4,8
  bench-ring --gpu --size 2G --threads 8 --commands 1G --json   # a soak: about a minute at 17 M/s
  bench-ring --gpu --controller gpu --queues 1,16,48
  bench-ring --gpu --controller peer --queues 48 --data yes
  bench-ring --gpu --controller gpu --queues 1 --batch 1,16,256 --depths 64,1024,4096 --data no"
)]
struct Args {
    /// A host thread submits: the default.
    #[arg(long)]
    host: bool,
    /// A GPU submits: one thread block a drive, each drive answered by a thread. Of the other options only --size, --seed and
    /// --json count, and the next four.
    #[arg(long, conflicts_with = "host")]
    gpu: bool,
    /// Reach the controller through a vfio-user socket, as one of another process.
    #[arg(long, conflicts_with = "gpu")]
    vfio_user: bool,
    /// Read a drive that is there, without a rival: a PCI address (bound to vfio-pci) or vfio-user:SOCKET, by Warprow's driver; a
    /// block device or file, such as /dev/nvme0n1, by Linux with io_uring. Overwrites the first --size bytes of it.
    #[arg(long, value_name = "DRIVE", conflicts_with_all = ["host", "gpu", "vfio_user", "backing"], requires = "overwrite")]
    on: Option<String>,
    /// With --on: agree that what lies on the drive is overwritten.
    #[arg(long, requires = "on")]
    overwrite: bool,
    /// With --gpu: numbers of drives, each with a thread that answers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    threads: Vec<u32>,
    /// With --gpu: who answers.
    #[arg(long, value_enum, default_value_t = Answering::Threads, requires = "gpu")]
    controller: Answering,
    #[command(flatten)]
    resident: resident::Options,
    /// With --gpu: commands to be answered in all, by the most of --threads: 1e8, 1G.
    #[arg(long, requires = "gpu")]
    commands: Option<Count>,
    /// With --gpu: ids of a look-up, at most a block each.
    #[arg(long, default_value = "256K")]
    ids: Count,
    /// With --gpu: look-ups of which the median is taken.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// Commands in flight, 1 to 4095.
    #[arg(long, default_value_t = 128)]
    depth: u16,
    /// Bytes of a block: 512 or 4096.
    #[arg(long, default_value_t = 512)]
    block: u32,
    /// Size of the drive, or of each with --gpu. Larger than the caches, or it measures those.
    #[arg(long, default_value = "256M")]
    size: Bytes,
    /// What the drive is made of.
    #[arg(long, value_enum, default_value_t = Backings::Both)]
    backing: Backings,
    /// Seconds of measuring, for each backing.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backings {
    /// Memory, which is copied.
    Ram,
    /// Nothing: no data moves.
    Null,
    /// First the one, then the other.
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Answering {
    /// Threads of the processor.
    Threads,
    /// A kernel on the same GPU.
    Gpu,
    /// A kernel on another GPU.
    Peer,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, measure(&args))
}

/// The GPU submits.
fn measure_gpu(args: &Args) -> anyhow::Result<String> {
    let machine = MachineInfo::this();
    let gpu = Gpu::open(0)?;
    let stream = warprow_bench::gpu::ready(&gpu)?;
    let run = |threads, commands| {
        let size = args.size.0;
        let ids = args.ids.0;
        let rounds = args.rounds;
        let seed = args.common.seed;
        eprintln!("{threads} threads");
        gpu_ring::run(&stream, &GpuRingSetup { threads, size, ids, rounds, commands, seed }, &mut |progress| {
            let rate = progress.commands as f64 / progress.elapsed.as_secs_f64();
            let left = commands.saturating_sub(progress.commands) as f64 / rate;
            eprintln!("  {} commands, {}/s with all checks, {left:.0} s left", progress.commands, per_second(rate));
        })
    };
    let mut results = args.threads.iter().map(|&threads| run(threads, 0)).collect::<anyhow::Result<Vec<_>>>()?;
    gpu_ring::scale(&mut results);
    let most = args.threads.iter().copied().max();
    let soak = args.commands.zip(most).map(|(commands, threads)| run(threads, commands.0)).transpose()?;
    if args.common.json {
        let found = GpuRing {
            submitter: Submitter::Gpu,
            gpu: gpu.name().to_owned(),
            block: 512,
            size: args.size.0,
            ids: args.ids.0,
            seed: args.common.seed,
            placement: "C: a software controller in this process, pinned memory".to_owned(),
            results,
            soak,
        };
        return Ok(Record::new(BenchmarkResult::RingGpu(found), machine).line()?);
    }
    let rows = results.iter().map(|result| {
        [
            result.threads.to_string(),
            per_second(result.commands_per_second),
            per_second(result.commands_per_second_and_thread),
            format!("{:.0} %", result.share_of_linear * 100.0),
            per_second(result.sum_of_threads),
            format!("{:.0} %", result.sum_of_linear * 100.0),
            format!("{:.0} %", result.copies_of_linear * 100.0),
            format!("{:.0} %", result.share_of_possible * 100.0),
            per_second(result.commands_per_second_of_lookups),
            result.commands.to_string(),
            result.checked.to_string(),
        ]
    });
    let header = [
        "controller threads",
        "commands/s",
        "by thread",
        "of linear",
        "sum of threads' own",
        "of linear",
        "plain copies",
        "of those",
        "of whole look-ups",
        "commands",
        "rows compared",
    ];
    let mut text = format!(
        "Random reads of 512 B by {}, through pinned memory, completions in disorder, seed {}\n{}\n",
        gpu.name(),
        args.common.seed,
        table(header, rows)
    );
    if let Some(soak) = soak {
        writeln!(
            text,
            "{} commands in a row by {} threads in {:.0} s: {}/s, {} rows compared ({} by the processor too), no anomaly.",
            soak.commands,
            soak.threads,
            soak.seconds,
            per_second(soak.commands_per_second),
            soak.checked,
            soak.checked_by_cpu
        )?;
    }
    if results.iter().any(|result| !result.pinned) {
        text += "The threads could not be given a processor each: do not trust these figures.\n";
    }
    text += &busy(&machine);
    Ok(text)
}

fn measure(args: &Args) -> anyhow::Result<String> {
    match args.controller {
        Answering::Threads if args.gpu => return measure_gpu(args),
        Answering::Threads => {}
        Answering::Gpu => return resident::measure(&args.resident, 0, args.size.0, args.common.seed, args.common.json),
        Answering::Peer => {
            return resident::measure(&args.resident, 1, args.size.0, args.common.seed, args.common.json);
        }
    }
    let machine = MachineInfo::this();
    let time = Duration::try_from_secs_f64(args.seconds).unwrap_or_default();
    let enough = (0.1..=86400.0).contains(&args.seconds);
    ensure!(enough, "--seconds {}: less than 0.1 tells nothing, and more than 86400 is not waited for", args.seconds);
    let setup = |media| RingSetup {
        depth: args.depth,
        block: args.block,
        size: args.size.0,
        media,
        seed: args.common.seed,
        vfio_user: args.vfio_user,
    };
    if let Some(on) = &args.on {
        return on_drive(args, on, &setup(Media::Ram), time, machine);
    }
    let run = |media, unless| (args.backing != unless).then(|| run(setup(media), time)).transpose();
    let ram = run(Media::Ram, Backings::Null)?;
    let null = run(Media::Null, Backings::Ram)?;
    if args.common.json {
        let found = HostRing::new(&setup(Media::Ram), ram.as_ref(), null.as_ref());
        return Ok(Record::new(BenchmarkResult::Ring(found), machine).line()?);
    }
    let mut rows = vec![];
    let disordered = |result: &RingResult| per_second(result.disordered);
    let all = [
        ("RAM", ram.as_ref().map(|result| (&result.pairs, disordered(result)))),
        ("RAM, fetched ahead", ram.as_ref().and_then(|result| Some((result.fetching.as_ref()?, String::new())))),
        ("null", null.as_ref().map(|result| (&result.pairs, disordered(result)))),
    ];
    for (name, result) in all {
        let Some((pairs, disordered)) = result else { continue };
        rows.push([
            name.to_owned(),
            per_second(pairs.median_a()),
            per_second(pairs.median_b()),
            ratio(pairs),
            disordered,
        ]);
    }
    let depth = args.depth;
    let block = args.block;
    let mut text = format!(
        "Random reads of {block} B, depth {depth}, one submitting and one answering thread{}; commands/s, medians\n",
        if args.vfio_user { ", over vfio-user" } else { "" }
    );
    let header = ["drive", "Warprow", "minimal ring", "ratio (range)", "Warprow, in disorder"];
    writeln!(text, "{}", table(header, rows))?;
    if let Some(ram) = &ram {
        let pairs = ram.pairs.pairs().len();
        writeln!(text, "{} blocks compared byte for byte in {pairs} pairs of rounds.", ram.checked)?;
    }
    if ram.iter().chain(&null).any(|result| !result.pinned) {
        text += "The threads could not be given a processor each: do not trust these figures.\n";
    }
    text += &busy(&machine);
    Ok(text)
}

/// A drive that is there.
fn on_drive(args: &Args, on: &str, setup: &RingSetup, time: Duration, machine: MachineInfo) -> anyhow::Result<String> {
    let result = warprow_bench::drive::run(&on.parse()?, *setup, time)?;
    let rate = result.commands_per_second;
    let microseconds = result.microseconds(args.depth);
    if args.common.json {
        let found = DriveRing {
            submitter: Submitter::Host,
            on: on.to_owned(),
            depth: args.depth,
            block: args.block,
            size: args.size.0,
            seed: args.common.seed,
            commands_per_second: rate,
            microseconds,
            rounds: result.rounds,
            blocks_checked: result.checked,
        };
        return Ok(Record::new(BenchmarkResult::RingOn(found), machine).line()?);
    }
    Ok(format!(
        "Random reads of {} B, depth {}, on {on}: {}/s, {microseconds:.1} us each; median of {} rounds\n{} blocks compared byte \
         for byte.\n{}",
        args.block,
        args.depth,
        per_second(rate),
        result.rounds,
        result.checked,
        busy(&machine)
    ))
}
