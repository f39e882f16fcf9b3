//! A controller that is a kernel.

use clap::{Args, ValueEnum};
use warprow_bench::Count;
use warprow_bench::arguments::profile;
use warprow_bench::gpu::resident::{Bench, ResidentResult, ResidentSetup};
use warprow_bench::output::{busy, per_second, table};
use warprow_bench::results::{BenchmarkResult, Record, ResidentRing, Submitter};
use warprow_gpu_queues::Gpu;
use warprow_soft_controller::TimingProfile;
use warprow_workload::MachineInfo;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// With --controller gpu or peer: queues, a block each that reads and one that answers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 48])]
    queues: Vec<u32>,
    /// Resident queues: commands of a batch at most, 1 to 256.
    #[arg(long, value_delimiter = ',', default_values_t = [256])]
    batch: Vec<u32>,
    /// Resident queues: entries of each ring, a power of two, 4 to 4096.
    #[arg(long, value_delimiter = ',', default_values_t = [2048])]
    depths: Vec<u32>,
    /// Resident queues: commands of each queue.
    #[arg(long, default_value = "1M")]
    each: Count,
    /// Resident queues: whether data moves, and is compared.
    #[arg(long, value_enum, default_value_t = Data::Both)]
    data: Data,
    /// Resident queues: the timing of the drive behind all queues: none, p5800x, gen5-tlc, gen6.
    #[arg(long, default_value = "none", value_parser = profile)]
    profile: TimingProfile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Data {
    Yes,
    No,
    Both,
}

/// Rounds of which the median counts.
const ROUNDS: u32 = 5;

pub(crate) fn measure(options: &Options, answering: u32, size: u64, seed: u64, json: bool) -> anyhow::Result<String> {
    let machine = MachineInfo::this();
    let gpu = Gpu::open(0)?;
    let other = if answering == 0 { gpu.clone() } else { Gpu::open(answering)? };
    let stream = warprow_bench::gpu::ready(&gpu)?;
    let bench = Bench::new(&stream, &other, size, seed)?;
    let moves = [(Data::Yes, false), (Data::No, true)].into_iter().filter(|(unless, _)| options.data != *unless);
    let mut results = Vec::new();
    for (_, data) in moves {
        for &depth in &options.depths {
            for &batch in &options.batch {
                for &queues in &options.queues {
                    let commands = options.each.0;
                    let profile = options.profile;
                    let setup = ResidentSetup { queues, batch, depth, data, commands, profile, seed };
                    eprintln!(
                        "{queues} queues of {depth}, batches of {batch}{}",
                        if data { ", with data" } else { "" }
                    );
                    results.push(bench.measure(&setup, ROUNDS)?);
                }
            }
        }
    }
    if json {
        let found = ResidentRing {
            submitter: Submitter::Gpu,
            controller: if answering == 0 { "a kernel on the same GPU" } else { "a kernel on another GPU" }.to_owned(),
            gpu: gpu.name().to_owned(),
            block: 512,
            size,
            seed,
            emulated: "the drive: a kernel that answers from GPU memory".to_owned(),
            results,
        };
        return Ok(Record::new(BenchmarkResult::RingResident(found), machine).line()?);
    }
    let row = |result: &ResidentResult| {
        [
            result.queues.to_string(),
            result.batch.to_string(),
            result.depth.to_string(),
            result.in_flight.to_string(),
            per_second(result.commands_per_second),
            if result.data { format!("{:.1} GB/s", result.bytes_per_second / 1e9) } else { "none".to_owned() },
            format!("{:.0}", result.commands_per_doorbell),
            format!("{:.0}", result.fetched_together),
            result.late.to_string(),
            result.checked.to_string(),
        ]
    };
    let header = [
        "queues",
        "batch",
        "entries",
        "in flight",
        "commands/s",
        "data",
        "by doorbell",
        "by fetch",
        "late",
        "blocks compared",
    ];
    let emulated = if answering == 0 { "the same GPU" } else { "another GPU, across the link between them" };
    Ok(format!(
        "The drive is emulated: a kernel on {emulated} answers from its memory. Random reads of 512 B by {}, seed {seed}, \
         medians of {ROUNDS}\n{}\n{}",
        gpu.name(),
        table(header, results.iter().map(row)),
        busy(&machine)
    ))
}
