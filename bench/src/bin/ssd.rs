//! `ssd`: rows on drives, by a GPU and by processors.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use warprow_bench::arguments::{Common, profile};
use warprow_bench::beds::Media;
use warprow_bench::gpu::ready;
use warprow_bench::gpu::ssd::GpuGround;
use warprow_bench::output::{busy, finish};
use warprow_bench::ssd::{HostGround, SsdResult, SsdSetup, run, show};
use warprow_bench::{Bytes, Count, machine_json};
use warprow_gpu_queues::Gpu;
use warprow_soft_controller::Profile;
use warprow_workload::Machine;

/// Look-ups of rows that lie on emulated drives, driven by the GPU and driven by processors, on the same drives in turn.
///
/// By the GPU: thread blocks write commands into rings in pinned memory and ring the doorbells; rows end up in GPU memory.
/// By threads: the host executor on each number of threads, each with a part of the ids and queues of its own, into pinned memory, from
/// where each part is copied to the GPU as soon as it is there. Threads get the ids for nothing; those are not copied from the GPU.
///
/// What matters is the time beside the drives: the look-up, from the call until its caller sees that the rows are there, less the time
/// from the first doorbell that a drive found to the last completion that one posted, by the drives' clocks. Aims: 15 us + 1 ns an id,
/// and half of what threads need; 1.3 times as fast on 16 drives; 10 us of the caller's processor for a call.
///
/// Drives have the timing of a real one, answer on a thread each, permute completions and delay one in 10,000. Ids are uniform, and fresh
/// for each look-up; every row is compared. io_uring cannot reach an emulated drive: lookup --only direct has it as a rival.
///
/// Without a GPU threads alone are measured, and rows end up in memory.
#[derive(Debug, Parser)]
#[command(
    name = "ssd",
    version,
    after_help = "\
Examples:
  ssd                             # both timings, 16, 4 and 1 drives, 100 to a million ids; a minute at most
  ssd --profile p5800x --drives 16 --ids 1e4,1e6 --json
  ssd --threads 1,2,4,8,16 --sets 1,2 --seconds 0.5 --limit 600
  ssd --media ram --size 1G"
)]
struct Args {
    /// Bytes of rows.
    #[arg(long, default_value = "16G")]
    size: Bytes,
    /// Elements (f32) of a row.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// What drives are made of.
    #[arg(long, value_enum, default_value_t = Media::Computed)]
    media: Media,
    /// Whose timing they have: none, p5800x, gen5-tlc.
    #[arg(long, value_delimiter = ',', default_value = "p5800x,gen5-tlc", value_parser = profile)]
    profile: Vec<Profile>,
    /// Drives, each with a thread that answers.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 4, 1])]
    drives: Vec<u32>,
    /// Ids of a look-up.
    #[arg(long, value_delimiter = ',', default_value = "100,1e3,1e4,1e5,1e6")]
    ids: Vec<Count>,
    /// Threads that drive look-ups, of which the best counts.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    threads: Vec<u32>,
    /// Queue sets by which the GPU drives them, likewise.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    sets: Vec<u32>,
    /// Seconds for each of these and each number of ids, at least three look-ups.
    #[arg(long, default_value_t = 0.1)]
    seconds: f64,
    /// Seconds after which nothing more is begun; what is left out is said.
    #[arg(long, default_value_t = 50.0)]
    limit: f64,
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish(args.common.json, measure(&args))
}

fn measure(args: &Args) -> anyhow::Result<String> {
    let setup = SsdSetup {
        size: args.size.0,
        dim: args.dim,
        media: args.media,
        profiles: args.profile.clone(),
        drives: args.drives.clone(),
        counts: args.ids.iter().map(|ids| ids.0).collect(),
        threads: args.threads.clone(),
        sets: args.sets.clone(),
        time: Duration::try_from_secs_f64(args.seconds)?,
        limit: Duration::try_from_secs_f64(args.limit)?,
        seed: args.common.seed,
    };
    setup.check()?;
    let (machine, mut notes) = (Machine::this(), Vec::new());
    let mut note = |text: &str, kept: bool| {
        eprintln!("{text}");
        if kept && !notes.iter().any(|note| note == text) {
            notes.push(text.to_owned());
        }
    };
    let gpu = Gpu::open(0);
    let results = match &gpu {
        Ok(gpu) => run(&mut GpuGround::new(&ready(gpu)?, &setup), &setup, &mut note)?,
        Err(missing) => {
            note(&format!("look-ups by a GPU were not run: {missing}"), true);
            run(&mut HostGround::new(&setup), &setup, &mut note)?
        }
    };
    let gpu = gpu.ok().map(|gpu| gpu.name().to_owned());
    match args.common.json {
        true => Ok(format!("{}\n", to_json(&setup, gpu, &results, &notes, &machine))),
        false => {
            let by = gpu.unwrap_or_else(|| "no GPU".to_owned());
            let (rows, seed) = (args.dim * 4, setup.seed);
            let mut text =
                format!("Rows of {rows} B on emulated drives ({} MiB); {by}, seed {seed}\n", setup.size >> 20);
            text += &show(&results)?;
            notes.iter().for_each(|note| text += &format!("{note}\n"));
            Ok(text + &busy(&machine))
        }
    }
}

fn to_json(
    setup: &SsdSetup,
    gpu: Option<String>,
    results: &[SsdResult],
    notes: &[String],
    machine: &Machine,
) -> serde_json::Value {
    json!({
        "schema": 1,
        "benchmark": "ssd",
        "gpu": gpu,
        "size": setup.size,
        "row_bytes": u64::from(setup.dim) * 4,
        "media": setup.media,
        "seed": setup.seed,
        "results": results,
        "notes": notes,
        "machine": machine_json(machine),
    })
}
