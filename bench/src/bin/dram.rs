//! `dram`: rows in DRAM, read by a GPU.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Parser;
use warprow_bench::gpu::dram::{DramResult, DramSetup, run};
use warprow_bench::output::{busy, finish, per_second, table};
use warprow_bench::{Bytes, machine_json};
use warprow_gpu_queues::Gpu;
use warprow_workload::Machine;

/// Look-ups on a GPU in tables that lie in DRAM, against two rivals that only gather.
///
/// Warprow's figure is the whole look-up: ids are deduplicated and put in the order of addresses, rows are read from pinned
/// memory through unified addressing, and written to the output in the order of the request; few ids are not deduplicated. "As a
/// graph" is the same, captured and replayed with other ids, and what the ratios are of; "the call" is what it keeps its caller busy. "Plain UVA" loads the rows in the
/// order of the request, straight to the output, as PyTorch-Direct does. "CPU" gathers them with all cores into pinned memory
/// and copies that to the GPU.
///
/// Each repetition has fresh ids, for else rows would be in caches; times are by the GPU, except the CPU's, which are by the
/// clock. Rows are compared with what they must be: all of them, or 50,000 of each repetition.
#[derive(Debug, Parser)]
#[command(
    name = "dram",
    version,
    after_help = "\
Examples:
  dram --size 1G,16G --row-bytes 128,512
  dram --size 16G --ids 2M --json | jq '.results[].ratio_uva'"
)]
struct Args {
    /// Bytes of tables. Twice as much memory is needed.
    #[arg(long, value_delimiter = ',', default_value = "512M,4G")]
    size: Vec<Bytes>,
    /// Bytes of rows, multiples of 16.
    #[arg(long, value_delimiter = ',', default_values_t = [128])]
    row_bytes: Vec<u32>,
    /// Ids of a look-up.
    #[arg(long, value_delimiter = ',', default_value = "128,1K,8K,64K,512K,2M")]
    ids: Vec<Bytes>,
    /// Exponents of the power law that ids follow; 0 is uniform.
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 1.05])]
    alpha: Vec<f64>,
    /// Repetitions, of which medians are taken.
    #[arg(long, default_value_t = 7)]
    runs: u32,
    /// Thread blocks that gather; 0: as many as the executor thinks best.
    #[arg(long, default_value_t = 0)]
    gatherers: u32,
    /// Seed of contents and ids.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.json, measure(&args))
}

fn measure(args: &Args) -> anyhow::Result<String> {
    let (machine, gpu) = (Machine::this(), Gpu::open(0)?);
    let counts: Vec<u64> = args.ids.iter().map(|ids| ids.0).collect();
    let mut results: Vec<DramResult> = Vec::new();
    for size in &args.size {
        for &row_bytes in &args.row_bytes {
            for &alpha in &args.alpha {
                eprintln!("{} B, rows of {row_bytes} B, alpha {alpha}", size.0);
                let setup = DramSetup {
                    size: size.0,
                    row_bytes,
                    alpha,
                    runs: args.runs,
                    seed: args.seed,
                    gatherers: args.gatherers,
                };
                results.extend(run(&gpu, &setup, &counts)?);
            }
        }
    }
    if args.json {
        let json = serde_json::json!({
            "schema": 1,
            "gpu": gpu.name(),
            "seed": args.seed,
            "results": results,
            "machine": machine_json(&machine),
        });
        return Ok(format!("{json}\n"));
    }
    let us = |time: f64| format!("{time:.1}");
    let lines = results.iter().map(|it| {
        [
            format!("{} MiB / {} B / {}", it.size >> 20, it.row_bytes, it.alpha),
            it.ids.to_string(),
            it.unique.to_string(),
            us(it.lookup_us),
            us(it.graph_us),
            us(it.call_us),
            format!("{} + {} + {}", us(it.prepare_us), us(it.fetch_us), us(it.expand_us)),
            per_second(it.lookup_bytes_per_second),
            us(it.uva_us),
            us(it.cpu_us),
            format!("{:.2}", it.ratio_uva),
            format!("{:.2}", it.ratio_cpu),
        ]
    });
    let header = [
        "table / rows / alpha",
        "ids",
        "different",
        "look-up us",
        "as a graph",
        "the call",
        "dedupe + rows + output",
        "B/s",
        "plain UVA us",
        "CPU + copy us",
        "× UVA",
        "× CPU",
    ];
    let mut text =
        format!("Rows in DRAM, read by {}; medians of {}\n{}\n", gpu.name(), args.runs, table(header, lines));
    let checked: u64 = results.iter().map(|it| it.checked).sum();
    writeln!(text, "{checked} rows compared, byte for byte.")?;
    text += &busy(&machine);
    Ok(text)
}
