//! Runs the simulation over many seeds.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
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
    /// Threads; each runs whole simulations. Default: as many as there are processors.
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.seed {
        Some(seed) => one(seed),
        None => many(&arguments),
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

fn many(arguments: &Arguments) -> ExitCode {
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let end = arguments.start.saturating_add(arguments.seeds);
    let next = AtomicU64::new(arguments.start);
    let stop = AtomicBool::new(false);
    let (events, incidents, rows) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let panicked = |_| Outcome { violation: Some("it panicked".into()), ..Outcome::default() };
                    let outcome = std::panic::catch_unwind(|| run(seed, Options::default())).unwrap_or_else(panicked);
                    events.fetch_add(outcome.events, Ordering::Relaxed);
                    incidents.fetch_add(outcome.incidents, Ordering::Relaxed);
                    rows.fetch_add(outcome.rows_read, Ordering::Relaxed);
                    if let Some(violation) = outcome.violation {
                        stop.store(true, Ordering::Relaxed);
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        if failed.as_ref().is_none_or(|(other, _)| seed < *other) {
                            *failed = Some((seed, violation));
                        }
                    }
                }
            });
        }
    });
    let ran = next.into_inner().min(end) - arguments.start;
    let (events, incidents, rows) = (events.into_inner(), incidents.into_inner(), rows.into_inner());
    println!(
        "{ran} seeds from {} in {:.1} s: {events} events, {incidents} operations disturbed, {rows} rows read and compared",
        arguments.start,
        began.elapsed().as_secs_f64()
    );
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => ExitCode::SUCCESS,
        Some((seed, violation)) => {
            println!("seed {seed} VIOLATES: {violation}");
            println!("replay: cargo run --release -p warprow-tests --bin simulate -- --seed {seed}");
            ExitCode::FAILURE
        }
    }
}
