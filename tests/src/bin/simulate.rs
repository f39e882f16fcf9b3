//! Runs the simulation over many seeds.

use std::num::NonZeroU64;
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Parser;
use warprow_tests::simulation::{Options, Outcome, run};

/// Simulates driver, emulated drives, layout and store on one thread under a virtual clock, with random work, faults, delays,
/// resets and power cuts, and checks them against a naive model. A seed decides everything.
#[derive(Parser)]
#[command(name = "simulate")]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Run this seed alone, twice, and tell every event.
    #[arg(long, conflicts_with_all = ["seeds", "start"])]
    seed: Option<u64>,
    /// Processes that share the seeds. Default: as many as there are processors.
    #[arg(long)]
    processes: Option<NonZeroU64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.seed {
        Some(seed) => one(seed),
        None => {
            let available = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
            match arguments.processes.map_or(available, NonZeroU64::get).min(arguments.seeds.max(1)) {
                1 => many(&arguments),
                processes => in_processes(&arguments, processes),
            }
        }
    }
}

fn one(seed: u64) -> ExitCode {
    let first = run(seed, Options { aloud: true, ..Options::default() });
    let second = run(seed, Options::default());
    let Outcome { hash, events, incidents, rows_read, violation } = first;
    println!("seed {seed}: {events} events, {incidents} operations disturbed, {rows_read} rows read, hash {hash:016x}");
    if second.hash != hash {
        println!("NOT REPEATABLE: run again, its hash is {:016x}", second.hash);
        return ExitCode::FAILURE;
    }
    match violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("VIOLATION: {violation}");
            ExitCode::FAILURE
        }
    }
}

/// A process for each part: threads of one process would wait for each other's page tables most of the time.
fn in_processes(arguments: &Arguments, processes: u64) -> ExitCode {
    let share = arguments.seeds.div_ceil(processes);
    let parts = (0..processes).map(|part| {
        let start = arguments.start.saturating_add(part * share);
        let seeds = share.min(arguments.seeds.saturating_sub(part * share));
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["--processes", "1", "--start", &start.to_string(), "--seeds", &seeds.to_string()]).spawn()
    });
    let parts: Vec<_> = parts.collect();
    let clean = parts.into_iter().map(|child| match child.and_then(|mut child| child.wait()) {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cannot run a part of the seeds: {error}; try --processes 1");
            false
        }
    });
    // All are waited for.
    match clean.fold(true, |all, clean| all & clean) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn many(arguments: &Arguments) -> ExitCode {
    let mut events = 0;
    let mut incidents = 0;
    let mut rows = 0;
    let mut ran = 0;
    let mut failed = None;
    let began = Instant::now();
    for seed in (arguments.start..).take(usize::try_from(arguments.seeds).unwrap_or(usize::MAX)) {
        let panicked = |_| Outcome { violation: Some("it panicked".into()), ..Outcome::default() };
        let outcome = std::panic::catch_unwind(|| run(seed, Options::default())).unwrap_or_else(panicked);
        events += outcome.events;
        incidents += outcome.incidents;
        rows += outcome.rows_read;
        ran += 1;
        if let Some(violation) = outcome.violation {
            failed = Some((seed, violation));
            break;
        }
        if ran % 1000 == 0 {
            eprintln!(
                "{ran} of {} seeds from {} after {:.0} s",
                arguments.seeds,
                arguments.start,
                began.elapsed().as_secs_f64()
            );
        }
    }
    println!(
        "{ran} seeds from {} in {:.1} s: {events} events, {incidents} operations disturbed, {rows} rows read and compared",
        arguments.start,
        began.elapsed().as_secs_f64()
    );
    match failed {
        None => ExitCode::SUCCESS,
        Some((seed, violation)) => {
            println!("seed {seed} VIOLATES: {violation}");
            println!("replay: cargo run --release -p warprow-tests --bin simulate -- --seed {seed}");
            ExitCode::FAILURE
        }
    }
}
