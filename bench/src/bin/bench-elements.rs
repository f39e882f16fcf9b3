//! `bench-elements`: what elements and checksums of rows cost a GPU.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use warprow_bench::arguments::Common;
use warprow_bench::gpu::elements::{ChecksumSetup, ELEMENTS, ElementSetup, checksums, elements, report};
use warprow_bench::gpu::ready;
use warprow_bench::output::{Notes, busy, finish};
use warprow_bench::results::{BenchmarkResult, ElementsAndChecksums, Record};
use warprow_bench::{Bytes, Count};
use warprow_gpu_queues::Gpu;
use warprow_layout::DType;
use warprow_workload::MachineInfo;

/// Look-ups of the same number of ids in tables of every kind of elements, to f32; and of rows on drives, compared with their checksums or
/// not.
///
/// elements: tables of f32, f16, bf16, both eight-bit floats, q8 and q4 (bytes, or halves of them, with a scale and a bias for each row),
/// in GPU memory and in DRAM, looked up as they are and in sums of bags. Times are the GPU's, with the launch hidden; each is also given by
/// that of f32. Tables are decoded by the processor, and all of every answer is compared on the GPU with what that made of them.
///
/// checksums: f32 rows on emulated drives in memory, which answer as fast as they can, by two executors in turn: one compares the CRC32C of
/// each row as it arrives (GpuOptions::check_rows), one does not.
///
/// Each repetition has fresh ids.
#[derive(Debug, Parser)]
#[command(
    name = "bench-elements",
    version,
    after_help = "\
Examples:
  bench-elements                            # both, 4 M rows of 128 elements, 256 Ki ids; two minutes
  bench-elements --only checksums --ids 1K,1M
  bench-elements --only elements --elements f32,q8 --dim 64 --bags 4K --hot 64 --json | jq '.elements[] | [.elements, .tier, .pooled, .us]'"
)]
struct Args {
    /// What to measure; may be given several times or separated by commas. Both by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// elements: rows of each table.
    #[arg(long, default_value = "4M")]
    rows: Count,
    /// elements: of a row.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// elements: bags of a look-up.
    #[arg(long, default_value = "8K")]
    bags: Count,
    /// elements: ids of a bag.
    #[arg(long, default_value = "32")]
    hot: Count,
    /// elements: exponent of the power law that ids follow; 0 is uniform.
    #[arg(long, default_value_t = 0.0)]
    alpha: f64,
    /// elements: which, f32 first [default: f32,f16,bf16,f8e4m3,f8e5m2,q8,q4].
    #[arg(long, value_delimiter = ',', value_parser = dtype)]
    elements: Vec<DType>,
    /// checksums: bytes of the rows of a table.
    #[arg(long, default_value = "1G")]
    size: Bytes,
    /// checksums: bytes of rows.
    #[arg(long, value_delimiter = ',', default_values_t = [128, 512])]
    row_bytes: Vec<u32>,
    /// checksums: ids of a look-up.
    #[arg(long, value_delimiter = ',', default_value = "1K,32K,256K")]
    ids: Vec<Count>,
    /// checksums: drives, each with a thread that answers.
    #[arg(long, default_value_t = 8)]
    drives: u32,
    /// Repetitions, of which medians are taken.
    #[arg(long, default_value_t = 21)]
    runs: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Elements, in memory.
    Elements,
    /// Checksums, on drives.
    Checksums,
}

fn dtype(name: &str) -> Result<DType, String> {
    let found = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
    found.ok_or_else(|| DType::ALL.map(DType::name).join(", "))
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, run(&args))
}

fn run(args: &Args) -> anyhow::Result<String> {
    let runs = args.runs;
    let seed = args.common.seed;
    let of_elements = ElementSetup {
        rows: args.rows.0,
        dim: args.dim,
        bags: args.bags.0,
        hot: args.hot.0,
        alpha: args.alpha,
        elements: if args.elements.is_empty() { ELEMENTS.to_vec() } else { args.elements.clone() },
        runs,
        seed,
    };
    let of_checksums = ChecksumSetup {
        size: args.size.0,
        row_bytes: args.row_bytes.clone(),
        counts: args.ids.iter().map(|ids| ids.0).collect(),
        drives: args.drives,
        runs,
        seed,
    };
    of_elements.check()?;
    of_checksums.check()?;
    let machine = MachineInfo::this();
    let gpu = Gpu::open(0)?;
    let stream = ready(&gpu)?;
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let mut notes = Notes::default();
    let by_checksums = match wants(Part::Checksums) {
        true => checksums(&stream, &of_checksums, &mut |text| notes.say(text))?,
        false => Vec::new(),
    };
    let by_elements = match wants(Part::Elements) {
        true => elements(&stream, &of_elements, &mut |text| eprintln!("{text}"))?,
        false => Vec::new(),
    };
    if args.common.json {
        let found = ElementsAndChecksums {
            gpu: gpu.name().to_owned(),
            rows: of_elements.rows,
            dim: of_elements.dim,
            bags: of_elements.bags,
            hot: of_elements.hot,
            alpha: of_elements.alpha,
            size: of_checksums.size,
            runs,
            seed,
            elements: by_elements,
            checksums: by_checksums,
            notes: notes.into_vec(),
        };
        return Ok(Record::new(BenchmarkResult::Elements(found), machine).line()?);
    }
    let ElementSetup { rows, dim, bags, hot, .. } = of_elements;
    let mut text = format!("{}; medians of {runs}, seed {seed}\n", gpu.name());
    if !by_elements.is_empty() {
        text += &format!("{bags} bags of {hot} ids in tables of {rows} rows of {dim} elements\n");
    }
    text += &report::show(&by_elements, &by_checksums)?;
    Ok(text + &notes.lines() + &busy(&machine))
}
