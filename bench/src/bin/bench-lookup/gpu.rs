//! `bench-lookup --gpu`.

use clap::{Parser, ValueEnum};
use warprow_bench::arguments::Common;
use warprow_bench::fixtures::Media;
use warprow_bench::gpu::ahead::{AheadSetup, ahead};
use warprow_bench::gpu::criteo::{
    CriteoResult, CriteoSetup, LatencySetup, Shape, calls, latencies, report, run, split,
};
use warprow_bench::gpu::ready;
use warprow_bench::output::busy;
use warprow_bench::results::{BenchmarkResult, GpuLookups, Record};
use warprow_bench::{Bytes, Count};
use warprow_gpu_queues::Gpu;
use warprow_workload::MachineInfo;

/// Look-ups by the GPU executor: of tables shaped like Criteo's, small ones, and what they cost their callers.
///
/// tables: with --shape criteo, 26 tables of 128 f32 with the rows of the Criteo 1 TB click logs (at most 40 M, as in MLPerf's DLRM-DCNv2) divided by
/// --scale, ids by a power law (ids are ranks). The hottest rows of each table are in memory, part of them in GPU memory, the others on
/// emulated drives that permute completions and delay one in 10,000. One id a table and sample is looked up as it is, several are
/// summed. Rivals: the host executor on the same store with as much in DRAM, and a copy; and all cores on a copy of everything in
/// DRAM, and a copy, which reads no drive: an upper bound. --shape dynamicemb and nve are tables, ids and tiers as these peers publish them,
/// scaled: no row is on a drive, 10 % are in GPU memory. A last line says what the peer publishes, and where a cache that changes would win.
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
  bench-lookup --gpu                    # everything, some minutes
  bench-lookup --gpu --only small --batches 10000
  bench-lookup --gpu --only tables --scale 8 --batch 4K,64K --json | jq '.tables[] | [.batch, .hot, .hbm, .graph_us]'
  bench-lookup --gpu --only tables --scale 1 --media computed   # 105 GB of rows that nobody has to hold
  bench-lookup --gpu --only tables --shape nve                  # or dynamicemb: what peers publish")]
pub(crate) struct GpuArgs {
    /// What to measure; may be given several times or separated by commas. Everything by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// tables: whose.
    #[arg(long, value_enum, default_value_t = Shape::Criteo)]
    shape: Shape,
    /// tables: the published rows are divided by this [default: 8; dynamicemb 16; nve 32].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    scale: Option<u64>,
    /// tables: the share of rows in memory, the hottest [default: 0.05; of peers' shapes 1].
    #[arg(long)]
    memory: Option<f64>,
    /// tables: shares of all rows that are in GPU memory, of those in memory [default: 0,0.01; of peers' shapes 0.1].
    #[arg(long, value_delimiter = ',')]
    hbm: Vec<f64>,
    /// tables: samples of a batch [default: 256,1K,4K,16K,64K; dynamicemb 104858; nve 256K].
    #[arg(long, value_delimiter = ',')]
    batch: Vec<Count>,
    /// tables: ids of each table and sample; more than one are summed [default: 1,8; of peers' shapes 1].
    #[arg(long, value_delimiter = ',')]
    hot: Vec<u64>,
    /// tables: exponent of the power law that ids follow; 0 is uniform.
    #[arg(long, default_value_t = 1.05)]
    alpha: f64,
    /// tables, ahead: drives, each with a thread that answers.
    #[arg(long, default_value_t = 8)]
    drives: u32,
    /// tables: what drives are made of [default: ram; of peers' shapes computed].
    #[arg(long, value_enum)]
    media: Option<Media>,
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
    #[command(flatten)]
    pub(crate) common: Common,
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

pub(crate) fn measure(args: &GpuArgs) -> anyhow::Result<String> {
    let machine = MachineInfo::this();
    let gpu = Gpu::open(0)?;
    let stream = ready(&gpu)?;
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let note = &mut |text: &str| eprintln!("{text}");
    // The short ones first.
    let small = match wants(Part::Small) {
        true => {
            let size = args.size.0;
            let ids = args.ids.0;
            let batches = args.batches.0;
            let seed = args.common.seed;
            latencies(&stream, &LatencySetup { size, ids, batches, seed }, note)?
        }
        false => Vec::new(),
    };
    let split = match wants(Part::Split) {
        true => split(&stream, args.size.0, &[40, 630], (args.batches.0 / 10).max(1), args.common.seed, note)?,
        false => Vec::new(),
    };
    let calls =
        if wants(Part::Call) { calls(&stream, args.calls.0.max(1), args.common.seed, note)? } else { Vec::new() };
    let ahead = match wants(Part::Ahead) {
        true => {
            let size = args.size.0;
            let ids = args.ids.0;
            let drives = args.drives;
            let runs = args.runs.max(1);
            let seed = args.common.seed;
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
    notes.extend(tables.iter().filter_map(CriteoResult::words));
    if args.common.json {
        let gpu = gpu.name().to_owned();
        let seed = args.common.seed;
        let found = GpuLookups { gpu, seed, small, split, calls, ahead, tables, notes };
        return Ok(Record::new(BenchmarkResult::LookupGpu(found), machine).line()?);
    }
    let mut text = format!("Look-ups by {}, seed {}\n\n", gpu.name(), args.common.seed);
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
    fn given<T>(given: Vec<T>, default: Vec<T>) -> Vec<T> {
        if given.is_empty() { default } else { given }
    }
    let default = args.shape.defaults();
    CriteoSetup {
        shape: args.shape,
        scale: args.scale.unwrap_or(default.scale),
        memory: args.memory.unwrap_or(default.memory),
        hbm: given(args.hbm.clone(), default.hbm),
        batches: given(args.batch.iter().map(|batch| batch.0).collect(), default.batches),
        hot: given(args.hot.clone(), default.hot),
        alpha: args.alpha,
        drives: args.drives,
        media: args.media.unwrap_or(default.media),
        runs: args.runs,
        seed: args.common.seed,
    }
}
