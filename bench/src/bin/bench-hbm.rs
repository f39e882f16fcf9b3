//! `bench-hbm`: rows in GPU memory.

use std::process::ExitCode;

use clap::Parser;
use warprow_bench::Count;
use warprow_bench::arguments::Common;
use warprow_bench::gpu::dram::Asked;
use warprow_bench::gpu::hbm::{HbmSetup, cached, copy_bytes_per_second, measure, report};
use warprow_bench::gpu::ready;
use warprow_bench::output::{Notes, busy, finish};
use warprow_bench::results::{BenchmarkResult, HbmLookups, Record};
use warprow_gpu::CacheAdmission;
use warprow_gpu_queues::Gpu;
use warprow_workload::MachineInfo;

/// Look-ups in a table that lies in GPU memory, against PyTorch's on a table of the same shape, and against the memory's own speed.
///
/// By default the shape that NVIDIA's embedding cache reports: batches of 256, 1,024 ids each, rows of 128 f32. Sums of bags are measured
/// against torch.nn.functional.embedding_bag, rows as they are against F.embedding; the better of PyTorch's call and of its CUDA graph
/// counts. Times are the GPU's with launches hidden, and as callers see them. Aim: 1.4 times as fast.
///
/// "Of a copy": bytes that a look-up reads and writes a second, each row as often as it is asked for, by those of a copy within GPU
/// memory in the same run. Rows that are asked for again come from caches, so skewed ids may pass 100 %.
///
/// Each repetition has fresh ids. Every sum and row is compared on the GPU with what it must be, in the order of the bag, and some by the
/// processor too. PyTorch runs before, in a process of its own, and compares all of its answers too.
#[derive(Debug, Parser)]
#[command(
    name = "bench-hbm",
    version,
    after_help = "\
Examples:
  bench-hbm                              # 4 GiB of rows, uniform ids and alpha 1.05; half a minute
  bench-hbm --rows 64M --runs 51 --torch yes
  bench-hbm --rows 512K --cache 4G       # rows in a cache, against the same rows in GPU memory
  bench-hbm --bags 4096 --hot 64 --alpha 0 --json | jq '.results[] | [.pooled, .ratio, .share_of_copy]'"
)]
struct Args {
    /// Rows of the table.
    #[arg(long, default_value = "8M")]
    rows: Count,
    /// Elements (f32) of a row.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// Bags of a look-up.
    #[arg(long, default_value = "256")]
    bags: Count,
    /// Ids of a bag.
    #[arg(long, default_value = "1024")]
    hot: Count,
    /// Exponents of the power law that ids follow; 0 is uniform.
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 1.05])]
    alpha: Vec<f64>,
    /// Repetitions, of which medians are taken.
    #[arg(long, default_value_t = 21)]
    runs: u32,
    /// Whether PyTorch takes part: auto leaves it out with a line if python3, torch or its CUDA is missing.
    #[arg(long, value_enum, default_value_t = Asked::Auto)]
    torch: Asked,
    /// A cache of so many bytes takes part, by itself: hits alone, of the rows of the table, against those rows in GPU memory; and misses alone
    #[arg(long, value_name = "BYTES")]
    cache: Option<Count>,
    /// The cache counts how often rows are asked for, and keeps those that were asked for more often than others
    #[arg(long, requires = "cache")]
    sketch: bool,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, run(&args))
}

fn run(args: &Args) -> anyhow::Result<String> {
    let setup = HbmSetup {
        rows: args.rows.0,
        dim: args.dim,
        bags: args.bags.0,
        hot: args.hot.0,
        alphas: args.alpha.clone(),
        runs: args.runs,
        seed: args.common.seed,
        torch: args.torch,
    };
    setup.check()?;
    let machine = MachineInfo::this();
    let gpu = Gpu::open(0)?;
    let stream = ready(&gpu)?;
    let mut notes = Notes::default();
    let copy = copy_bytes_per_second(&stream, setup.runs)?;
    let admission = if args.sketch { CacheAdmission::Sketch } else { CacheAdmission::Always };
    let cache = args.cache.map(|bytes| cached::measure(&stream, &setup, (bytes.0, admission))).transpose()?;
    let results = match cache {
        Some(_) => Vec::new(),
        None => measure(&stream, &setup, copy, &mut |text| notes.say(text))?,
    };
    if args.common.json {
        let found = HbmLookups {
            gpu: gpu.name().to_owned(),
            rows: setup.rows,
            row_bytes: u64::from(setup.dim) * 4,
            bags: setup.bags,
            hot: setup.hot,
            runs: setup.runs,
            seed: setup.seed,
            copy_bytes_per_second: copy,
            results,
            cache,
            notes: notes.into_vec(),
        };
        return Ok(Record::new(BenchmarkResult::Hbm(found), machine).line()?);
    }
    let rows = setup.rows;
    let bytes = setup.dim * 4;
    let runs = setup.runs;
    let seed = setup.seed;
    let mut text = format!("{rows} rows of {bytes} B in memory of {}; medians of {runs}, seed {seed}\n", gpu.name());
    text += &match &cache {
        Some(cache) => report::show_cache(cache)?,
        None => report::show(&results, copy)?,
    };
    Ok(text + &notes.lines() + &busy(&machine))
}
