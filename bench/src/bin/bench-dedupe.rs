//! `bench-dedupe`: how the different rows among a batch's ids are found on a GPU.

use std::process::ExitCode;

use clap::Parser;
use warprow_bench::Count;
use warprow_bench::arguments::Common;
use warprow_bench::gpu::dedupe::{DedupeSetup, measure, report};
use warprow_bench::gpu::ready;
use warprow_bench::output::{Notes, busy, finish};
use warprow_bench::results::{BenchmarkResult, Dedupes, Record};
use warprow_gpu_queues::Gpu;
use warprow_workload::MachineInfo;

/// Every way to find the different rows among a batch's ids on a GPU, and the one that a plan takes.
///
/// Ways: one block's sort in shared memory; a bitmap of all rows and sums over it; a hash table and a sort of what is different; a
/// one-sweep radix sort of all. Times are those of whole look-ups, with rows of 16 B that lie in GPU memory and are read as those in DRAM
/// are, so that reading them hides nothing. Batches of up to 8,192 ids are of rows on drives, of which there are none: each row fails at
/// once, and what is measured is everything else.
///
/// Each repetition has fresh ids. Of each way's first batches all positions and uniques are compared with the ids on the GPU; of
/// batches of rows in memory every output row is compared too, and some by the processor.
#[derive(Debug, Parser)]
#[command(
    name = "bench-dedupe",
    version,
    after_help = "\
Examples:
  bench-dedupe                                  # 64 Ki to 1 Gi rows, 100 to 10 million ids; 24 GB of GPU memory
  bench-dedupe --rows 16M --ids 64K,256K,1M --alpha 1.05 --runs 31
  bench-dedupe --json | jq '.results[] | [.rows, .ids, .alpha, .best, .chosen, .over_best]'"
)]
struct Args {
    /// Rows of tables, each by itself; those that do not fit GPU memory are left out with a line.
    #[arg(long, value_delimiter = ',', default_value = "64K,1M,16M,256M,1G")]
    rows: Vec<Count>,
    /// Ids of a batch.
    #[arg(long, value_delimiter = ',', default_value = "100,1K,8K,32K,128K,512K,2M,1e7")]
    ids: Vec<Count>,
    /// Exponents of the power law that ids follow; 0 is uniform.
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 1.05])]
    alpha: Vec<f64>,
    /// Repetitions, of which medians are taken.
    #[arg(long, default_value_t = 9)]
    runs: u32,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, run(&args))
}

fn run(args: &Args) -> anyhow::Result<String> {
    let setup = DedupeSetup {
        rows: args.rows.iter().map(|rows| rows.0).collect(),
        ids: args.ids.iter().map(|ids| ids.0).collect(),
        alphas: args.alpha.clone(),
        runs: args.runs,
        seed: args.common.seed,
    };
    setup.check()?;
    let machine = MachineInfo::this();
    let gpu = Gpu::open(0)?;
    let stream = ready(&gpu)?;
    let mut notes = Notes::default();
    let results = measure(&stream, &setup, &mut |text| notes.say(text))?;
    if args.common.json {
        let found = Dedupes {
            gpu: gpu.name().to_owned(),
            runs: setup.runs,
            seed: setup.seed,
            crossovers: report::crossovers(&results),
            results,
            notes: notes.into_vec(),
        };
        return Ok(Record::new(BenchmarkResult::Dedupe(found), machine).line()?);
    }
    let mut text = format!("{}; medians of {}, seed {}\n", gpu.name(), setup.runs, setup.seed);
    text += &report::show(&results)?;
    Ok(text + &notes.lines() + &busy(&machine))
}
