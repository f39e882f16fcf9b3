//! `lookup --gpu`.

use clap::{Parser, ValueEnum};
use serde_json::json;
use warprow_bench::beds::Media;
use warprow_bench::gpu::ahead::{AheadSetup, ahead};
use warprow_bench::gpu::criteo::{CriteoSetup, LatencySetup, calls, latencies, report, run, split};
use warprow_bench::gpu::ready;
use warprow_bench::output::busy;
use warprow_bench::{Bytes, Count, machine_json};
use warprow_gpu_queues::Gpu;
use warprow_workload::Machine;

/// Look-ups by the GPU executor: of tables shaped like Criteo's, small ones, and what they cost their callers.
///
/// tables: 26 tables of 128 f32 with the rows of the Criteo 1 TB click logs (at most 40 M, as in MLPerf's DLRM-DCNv2) divided by
/// --scale, ids by a power law (ids are ranks). The hottest rows of each table are in memory, part of them in GPU memory, the others on
/// emulated drives that permute completions and delay one in 10,000. One id a table and sample is looked up as it is, several are
/// summed. Rivals: the host executor on the same store with as much in DRAM, and a copy; and all cores on a copy of everything in
/// DRAM, and a copy, which reads no drive: an upper bound.
///
/// small: different ids, fresh and uploaded before each of --batches launches of a captured graph, all rows in GPU memory or all in
/// DRAM: percentiles by the GPU with the launch hidden (the stream is held until all is enqueued), and from the launch until a poll
/// of the ticket says that it has ended. Aims: 10 us in GPU memory; in DRAM 10 us and ids / 33 M per s, 40 us at most.
///
/// split: the same number of ids of one table by itself, and in look-ups of 26 tables: spread over them, or all in one of them.
/// Aim: 3 us more at most.
///
/// ahead: different ids, rows on --drives drives: what is left of a look-up whose rows were fetched ahead, and steps of a look-up and a model's
/// work (memory is written for about as long as a look-up takes), with each batch fetched a step ahead on a loader's stream, and not.
/// --ids and --runs.
///
/// call: processor time of the calling thread, by its own clock, and the duration of calls, for the look-ups of one, three and more
/// kernels, and of a graph's launch. Aim: 10 us a call.
///
/// Every row of every answer is compared on the GPU with what it must be, and some by the processor too.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  lookup --gpu                    # everything, some minutes
  lookup --gpu --only small --batches 10000
  lookup --gpu --only tables --scale 8 --batch 4K,64K --json | jq '.tables[] | [.batch, .hot, .hbm, .graph_us]'
  lookup --gpu --only tables --scale 1 --media computed   # 105 GB of rows that nobody has to hold")]
pub(crate) struct GpuArgs {
    /// What to measure; may be given several times or separated by commas. Everything by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// tables: the published rows are divided by this.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    scale: u64,
    /// tables: the share of rows in memory, the hottest.
    #[arg(long, default_value_t = 0.05)]
    memory: f64,
    /// tables: shares of rows in GPU memory, of those in memory.
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.01])]
    hbm: Vec<f64>,
    /// tables: samples of a batch.
    #[arg(long, value_delimiter = ',', default_value = "256,1K,4K,16K,64K")]
    batch: Vec<Count>,
    /// tables: ids of each table and sample; more than one are summed.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    hot: Vec<u64>,
    /// tables: exponent of the power law that ids follow; 0 is uniform.
    #[arg(long, default_value_t = 1.05)]
    alpha: f64,
    /// tables, ahead: drives, each with a thread that answers.
    #[arg(long, default_value_t = 8)]
    drives: u32,
    /// tables: what drives are made of.
    #[arg(long, value_enum, default_value_t = MediaArg::Ram)]
    media: MediaArg,
    /// tables, ahead: repetitions, of which medians are taken; a third of them for the rivals.
    #[arg(long, default_value_t = 9)]
    runs: u32,
    /// small, split, ahead: bytes of rows.
    #[arg(long, default_value = "4G")]
    size: Bytes,
    /// small, ahead: different ids of a batch.
    #[arg(long, default_value = "1000")]
    ids: Count,
    /// small: fresh batches for each way of measuring; a tenth of it for split.
    #[arg(long, default_value = "10000")]
    batches: Count,
    /// call: calls of each kind.
    #[arg(long, default_value = "1000")]
    calls: Count,
    /// Seed of ids and contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// 26 tables on three tiers.
    Tables,
    /// Small look-ups.
    Small,
    /// One table and 26.
    Split,
    /// What calls cost.
    Call,
    /// Batches fetched ahead.
    Ahead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MediaArg {
    /// Memory, into which the tables are loaded first.
    Ram,
    /// Rows are computed when they are read.
    Computed,
}

pub(crate) fn measure(args: &GpuArgs) -> anyhow::Result<String> {
    let (machine, gpu) = (Machine::this(), Gpu::open(0)?);
    let stream = ready(&gpu)?;
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let note = &mut |text: &str| eprintln!("{text}");
    // The short ones first.
    let small = match wants(Part::Small) {
        true => {
            let (size, ids, batches, seed) = (args.size.0, args.ids.0, args.batches.0, args.seed);
            latencies(&stream, &LatencySetup { size, ids, batches, seed }, note)?
        }
        false => Vec::new(),
    };
    let split = match wants(Part::Split) {
        true => split(&stream, args.size.0, &[40, 630], (args.batches.0 / 10).max(1), args.seed, note)?,
        false => Vec::new(),
    };
    let calls = if wants(Part::Call) { calls(&stream, args.calls.0.max(1), args.seed, note)? } else { Vec::new() };
    let ahead = match wants(Part::Ahead) {
        true => {
            let (size, ids, drives, runs, seed) = (args.size.0, args.ids.0, args.drives, args.runs.max(1), args.seed);
            vec![ahead(&stream, &AheadSetup { size, ids, drives, runs, seed }, note)?]
        }
        false => Vec::new(),
    };
    let mut notes = Vec::new();
    let tables = match wants(Part::Tables) {
        true => run(&stream, &setup(args), &mut |text| {
            eprintln!("{text}");
            notes.push(text.to_owned());
        })?,
        false => Vec::new(),
    };
    if args.json {
        let json = json!({
            "schema": 2,
            "gpu": gpu.name(),
            "seed": args.seed,
            "small": small,
            "split": split,
            "calls": calls,
            "ahead": ahead,
            "tables": tables,
            "notes": notes,
            "machine": machine_json(&machine),
        });
        return Ok(format!("{json}\n"));
    }
    let mut text = format!("Look-ups by {}, seed {}\n\n", gpu.name(), args.seed);
    text += &report::latencies(&small)?;
    if !split.is_empty() {
        text += &report::split(&split)?;
    }
    if !calls.is_empty() {
        text += &report::calls(&calls)?;
    }
    text += &report::ahead(&ahead)?;
    text += &report::tables(&tables)?;
    text += &busy(&machine);
    Ok(text)
}

fn setup(args: &GpuArgs) -> CriteoSetup {
    CriteoSetup {
        scale: args.scale,
        memory: args.memory,
        hbm: args.hbm.clone(),
        batches: args.batch.iter().map(|batch| batch.0).collect(),
        hot: args.hot.clone(),
        alpha: args.alpha,
        drives: args.drives,
        media: match args.media {
            MediaArg::Ram => Media::Ram,
            MediaArg::Computed => Media::Computed,
        },
        runs: args.runs,
        seed: args.seed,
    }
}
