//! `bench-dram`: rows in DRAM, read by a GPU.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use warprow_bench::arguments::Common;
use warprow_bench::gpu::dram::{
    Asked, CachedDram, Case, DramResult, DramSetup, Preset, Sweep, cached, duration, everything, measure, report, sweep,
};
use warprow_bench::gpu::{Stream, ready};
use warprow_bench::output::{Notes, busy, finish};
use warprow_bench::results::{BenchmarkResult, DramLookups, Record};
use warprow_bench::{Bytes, Count};
use warprow_gpu_queues::Gpu;
use warprow_workload::MachineInfo;
use warprow_workload::units::bytes;

/// Look-ups on a GPU in tables that lie in DRAM, against rivals that only gather.
///
/// Warprow's figure is the whole look-up: ids are deduplicated and put in the order of addresses, rows are read from pinned
/// memory through unified addressing, and written to the output in the order of the request; few ids are not deduplicated.
///
/// "UVA" loads the rows in the order of the request, straight to the output, as PyTorch-Direct does; rows that are no multiple
/// of 16 B by 4 B a thread. Like is compared with like: both as captured graphs, both called, both with their launches hidden (the
/// stream is held until everything is enqueued, and time is the GPU's), and both as their callers see them (from the
/// call until a poll says that it has ended). "Over limit" is look-up - max(1.1 UVA, UVA + 3 us): negative is met.
///
/// "CPU" gathers with all cores into pinned memory and copies that. "Batch of copies" is cuMemcpyBatchAsync, a copy for each row, up
/// to 100,000. "F.embedding" is PyTorch on a pinned tensor of the same shape: ids on the CPU, as it wants them, and a copy of its
/// output; "index_select" gathers into a pinned tensor, which is copied without blocking. Rivals' times are by the clock.
///
/// Each repetition has fresh ids, for else rows would be in caches; ids are the ranks. Every row of every answer is compared on the
/// GPU with what it must be, and some by the processor too. The drive behind the table computes its rows: memory holds them once.
#[derive(Debug, Parser)]
#[command(
    name = "bench-dram",
    version,
    after_help = "\
Examples:
  bench-dram --quick                    # a first impression
  bench-dram --full --json > dram.json  # all sizes; says beforehand how long it takes
  bench-dram --size 16G --row-bytes 128,512 --ids 2M --alpha 0 --torch yes
  bench-dram --size 2G --row-bytes 512 --ids 256K --alpha 1.05 --cached 0.1
  bench-dram --sms 1,2,4,8,16,33,66,132 --size 4G --ids 2M --alpha 0
  bench-dram --size 4G --row-bytes 96,100,200 --json | jq '.results[] | [.row_bytes, .ids, .over_limit_graph_us]'"
)]
struct Args {
    /// 512 MiB and 4 GiB, rows of 100, 128 and 512 B, 100 to a million ids.
    #[arg(long, conflicts_with_all = ["full", "size", "row_bytes", "sms"])]
    quick: bool,
    /// 64 MiB to 64 GiB, rows of 64 to 4,096 B, 100 to 10 million ids. Needs 80 GiB of memory.
    #[arg(long, conflicts_with_all = ["size", "row_bytes", "sms"])]
    full: bool,
    /// Bytes of tables, each of which must fit into memory.
    #[arg(long, value_delimiter = ',', default_value = "512M,4G")]
    size: Vec<Bytes>,
    /// Bytes of rows, multiples of 4.
    #[arg(long, value_delimiter = ',', default_values_t = [128])]
    row_bytes: Vec<u32>,
    /// Ids of a look-up: 100, 64K (65,536), 1e6. As the preset says, or 128,1K,8K,64K,512K,2M.
    #[arg(long, value_delimiter = ',')]
    ids: Vec<Count>,
    /// Exponents of the power law that ids follow; 0 is uniform.
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 1.05])]
    alpha: Vec<f64>,
    /// Repetitions, of which medians are taken; above two million ids 3 at most.
    #[arg(long, default_value_t = 9)]
    runs: u32,
    /// Thread blocks that gather; 0: as many as the executor thinks best.
    #[arg(long, default_value_t = 0)]
    gatherers: u32,
    /// Up to so many ids rows are read where they lie, without deduplication [default: as the executor thinks best].
    #[arg(long, conflicts_with = "sms")]
    direct_ids: Option<Count>,
    /// Instead of rivals: the largest number of ids with each of these numbers of gathering blocks (as many multiprocessors),
    /// and the fewest that reach 90 % of the best rate.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_missing_value = "1,2,4,8,12,16,24,33,66,132")]
    sms: Vec<u32>,
    /// Instead of rivals: look-ups without a cache, and with one in GPU memory that has bytes for this share of the table and
    /// has learnt from 64 look-ups.
    #[arg(long, conflicts_with_all = ["sms", "direct_ids"])]
    cached: Option<f64>,
    /// Whether PyTorch takes part: auto leaves it out with a line if python3, torch or its CUDA is missing.
    #[arg(long, value_enum, default_value_t = Asked::Auto)]
    torch: Asked,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, run(&args))
}

fn run(args: &Args) -> anyhow::Result<String> {
    let (setups, expected) = setups(args)?;
    let machine = MachineInfo::this();
    let gpu = Gpu::open(0)?;
    let stream = ready(&gpu)?;
    let mut results = Vec::new();
    let (mut sweeps, mut cached) = (Vec::new(), Vec::new());
    let mut notes = Notes::default();
    eprintln!("{} tables; this takes about {:.0} s", setups.len(), expected.as_secs_f64());
    cases(args, &setups, &stream, (&mut results, &mut sweeps, &mut cached), &mut |text| notes.say(text))?;
    if args.common.json {
        let gpu = gpu.name().to_owned();
        let seed = args.common.seed;
        let runs = args.runs;
        let found = DramLookups { gpu, seed, runs, results, sweeps, cached, notes: notes.into_vec() };
        return Ok(Record::new(BenchmarkResult::Dram(found), machine).line()?);
    }
    let mut text =
        format!("Rows in DRAM, read by {}; medians of {}, seed {}\n", gpu.name(), args.runs, args.common.seed);
    if !results.is_empty() {
        text += &report::show(&results)?;
    }
    for sweep in &sweeps {
        text += &report::show_sweep(sweep)?;
    }
    for cached in &cached {
        text += &report::show_cached(cached)?;
    }
    Ok(text + &notes.lines() + &busy(&machine))
}

/// What is to be measured, and about how long that takes; an error where it makes no sense, before the GPU is asked.
fn setups(args: &Args) -> anyhow::Result<(Vec<DramSetup>, Duration)> {
    let preset = match (args.quick, args.full) {
        (true, _) => Preset::quick(),
        (_, true) => Preset::full(),
        _ => Preset {
            cases: everything(&args.size.iter().map(|size| size.0).collect::<Vec<_>>(), &args.row_bytes),
            counts: [128, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 2 << 20].to_vec(),
        },
    };
    let counts = if args.ids.is_empty() { preset.counts } else { args.ids.iter().map(|ids| ids.0).collect() };
    ensure!(args.runs > 0, "--runs 0 leaves nothing to measure");
    ensure!(!args.sms.contains(&0), "--sms 0: a look-up takes one thread block at least");
    let setup = |case: &Case| DramSetup {
        size: case.size,
        row_bytes: case.row_bytes,
        counts: counts.clone(),
        alphas: args.alpha.clone(),
        runs: args.runs,
        seed: args.common.seed,
        gatherers: args.gatherers,
        direct_ids: args.direct_ids.map(|ids| ids.0),
        torch: if case.torch && args.sms.is_empty() && args.cached.is_none() { args.torch } else { Asked::No },
    };
    let setups: Vec<_> = preset.cases.iter().map(setup).collect();
    setups.iter().try_for_each(DramSetup::check)?;
    let torch = args.torch != Asked::No && args.sms.is_empty();
    Ok((setups, duration(&preset.cases, &counts, args.alpha.len(), args.runs, torch)))
}

fn cases(
    args: &Args,
    setups: &[DramSetup],
    stream: &Stream,
    (results, sweeps, with_cache): (&mut Vec<DramResult>, &mut Vec<Sweep>, &mut Vec<CachedDram>),
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<()> {
    let began = Instant::now();
    for (number, setup) in (1..).zip(setups) {
        let size = bytes(setup.size);
        let row_bytes = setup.row_bytes;
        let elapsed = began.elapsed().as_secs();
        eprintln!("{number}/{}: {size}, rows of {row_bytes} B ({elapsed} s so far)", setups.len());
        match args.cached {
            Some(share) => with_cache.extend(cached(stream, setup, share)?),
            None if args.sms.is_empty() => results.extend(measure(stream, setup, note)?),
            None => sweeps.extend(sweep(stream, setup, &args.sms)?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiprocessors_have_a_default() {
        let sms = |arguments: &[&str]| Args::try_parse_from([&["bench-dram"], arguments].concat()).unwrap().sms;
        assert!(sms(&[]).is_empty());
        assert_eq!(sms(&["--sms", "1,2"]), [1, 2]);
        assert_eq!(sms(&["--sms"]).len(), 10);
    }
}
