//! Commands from thread blocks to software controllers, through pinned memory (rung C).

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use warprow_gpu::GpuExecutor;
use warprow_gpu::GpuOptions;
use warprow_layout::DType;
use warprow_lookup::{Feature, PlanOptions, Pooling};
use warprow_soft_controller::CommandTimes;
use warprow_workload::{ContentOracle, median};

use super::{Drawn, Request, Shape, Stream, TimedLookup};
use crate::fixtures::{Fixture, FixtureTable};
use crate::{Copies, Cores};

/// Bytes of a row, and of an LBA.
const BLOCK: u32 = 512;

/// Of plain copies behind each look-up.
const COPYING: Duration = Duration::from_millis(8);
/// Behind a look-up, until the drives' threads sleep: they look for work for 5 ms.
const QUIET: Duration = Duration::from_millis(8);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct GpuRingSetup {
    /// Drives, each with a thread of its own that answers.
    pub threads: u32,
    /// Bytes of rows on each drive.
    pub size: u64,
    /// Ids of a look-up; as many commands, but for rows that come twice.
    pub ids: u64,
    /// Look-ups whose median is taken.
    pub rounds: u32,
    /// Look-ups go on until so many commands have been answered.
    pub commands: u64,
    /// Of contents and ids.
    pub seed: u64,
}

/// One number of drives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuRingResult {
    /// Controller threads.
    pub threads: u32,
    /// Whether each has a processor of its own.
    pub pinned: bool,
    /// Median commands a second while commands were under way.
    pub commands_per_second: f64,
    /// The rate by the number of threads.
    pub commands_per_second_and_thread: f64,
    /// The rate by as many times that of one thread, or of the fewest that were measured.
    pub share_of_linear: f64,
    /// Median of the sum of all threads' own commands a second, each from its first doorbell to its last completion.
    pub sum_of_threads: f64,
    /// The sum of the threads' rates, divided by as many times the sum of the fewest threads.
    pub sum_of_linear: f64,
    /// Median commands a second over whole look-ups, deduplication and output included.
    pub commands_per_second_of_lookups: f64,
    /// Median commands a second of the slowest thread and of the fastest, from its first doorbell to its last completion by the
    /// controllers' clock: a look-up ends with the slowest.
    pub slowest_thread: f64,
    /// See [`slowest_thread`](Self::slowest_thread).
    pub fastest_thread: f64,
    /// Median commands a second of each thread, by its drive.
    pub by_thread: Vec<f64>,
    /// Median blocks a second of each thread that copies, on the same processor.
    pub copies_by_thread: Vec<f64>,
    /// Median blocks a second that plain copies of as many threads on the same processors make behind each look-up, without rings, drives or
    /// GPU: of the slowest thread, and of all.
    pub slowest_copies: f64,
    /// See [`slowest_copies`](Self::slowest_copies).
    pub sum_of_copies: f64,
    /// The slowest copying thread beside that of the fewest: what the machine lets any thread have of linear.
    pub copies_of_linear: f64,
    /// [`share_of_linear`](Self::share_of_linear) by that, where it is less than one.
    pub share_of_possible: f64,
    /// Commands of all look-ups.
    pub commands: u64,
    /// Look-ups.
    pub lookups: u64,
    /// Seconds that all of it took, fresh ids and comparisons included.
    pub seconds: f64,
    /// Completions that nobody waited for.
    pub anomalies: u64,
    /// Rows compared, all of every answer.
    pub checked: u64,
    /// Rows among them that the processor computed too.
    pub checked_by_cpu: u64,
}

/// Where a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Commands answered.
    pub commands: u64,
    /// Since the beginning.
    pub elapsed: Duration,
}

/// Reads random rows of 512 B by look-ups, from drives in memory that permute completions and delay one in 10,000. `progress` is told
/// about every two seconds.
pub fn run(stream: &Stream, setup: &GpuRingSetup, progress: &mut dyn FnMut(Progress)) -> anyhow::Result<GpuRingResult> {
    let rows = setup.size.saturating_mul(setup.threads.into()) / u64::from(BLOCK);
    let ids = setup.ids;
    ensure!(ids > 0 && ids <= rows, "{ids} ids a look-up in a table of {rows} rows");
    let content = ContentOracle::new(setup.seed, 0, rows, BLOCK / 4, DType::F32);
    let fixture = Fixture { drives: setup.threads, disorder: true, ..Fixture::default() };
    let cores = Cores::each(setup.threads as usize);
    let (store, drives) = fixture.with_drives(&[FixtureTable::new("table", content)], cores.as_ref())?;
    let executor = GpuExecutor::attach(&store, stream.gpu().clone(), GpuOptions::default())?;
    let feature = Feature::new("f", "table").pooling(Pooling::None);
    let plan = executor.plan(&[feature], PlanOptions::default().with_max(1, ids as usize))?;
    let mut request = Request::new(stream, &[Drawn::new(content, 0.0)?], ids, ids, setup.seed)?;
    request.reshape(Shape::rows(ids))?;
    let timed = TimedLookup::new(&plan, stream, &request)?;
    // In a long run nobody looks at what copies do.
    let copies = (setup.commands == 0).then(|| Copies::new(setup.threads, setup.size, BLOCK as usize)).transpose()?;
    let mut slowest_copies = Vec::new();
    let mut sums_of_copies = Vec::new();
    let mut by_thread = Vec::<Vec<f64>>::new();
    let mut copies_by_thread = Vec::<Vec<f64>>::new();
    let mut slowest = Vec::new();
    let mut fastest = Vec::new();
    let mut sums = Vec::new();
    let mut rates = Vec::new();
    let mut whole = Vec::new();
    let mut commands = 0;
    let mut lookups = 0;
    let mut anomalies = 0;
    let began = Instant::now();
    let mut told = began;
    // The first is for warming up.
    while lookups <= u64::from(setup.rounds) || commands < setup.commands {
        request.draw(stream)?;
        drives.iter().for_each(|drive| drive.watch());
        let (took, report, _) = timed.called(stream, &request)?;
        request.check(stream, 4)?;
        ensure!(report.anomalies == 0, "{} completions that nobody waited for", report.anomalies);
        anomalies += report.anomalies;
        commands += report.commands;
        if lookups > 0 {
            rates.push(report.commands as f64 / report.fetch.as_secs_f64());
            whole.push(report.commands as f64 / took.as_secs_f64());
            let own: Vec<f64> = drives.iter().filter_map(|drive| rate_of(&drive.watched())).collect();
            slowest.push(own.iter().copied().fold(f64::INFINITY, f64::min));
            sums.push(own.iter().sum());
            fastest.push(own.iter().copied().fold(0.0, f64::max));
            by_thread.push(own);
        }
        if let Some(copies) = copies.as_ref().filter(|_| lookups > 0) {
            std::thread::sleep(QUIET);
            let own = copies.round(cores.as_ref(), COPYING, setup.seed ^ lookups)?;
            slowest_copies.push(own.iter().copied().fold(f64::INFINITY, f64::min));
            sums_of_copies.push(own.iter().sum());
            copies_by_thread.push(own);
        }
        lookups += 1;
        if told.elapsed() >= Duration::from_secs(2) {
            told = Instant::now();
            progress(Progress { commands, elapsed: began.elapsed() });
        }
    }
    let rate = median(rates);
    Ok(GpuRingResult {
        threads: setup.threads,
        pinned: cores.is_some(),
        commands_per_second: rate,
        commands_per_second_and_thread: rate / f64::from(setup.threads),
        share_of_linear: 1.0,
        sum_of_threads: median(sums),
        sum_of_linear: 1.0,
        commands_per_second_of_lookups: median(whole),
        slowest_thread: median(slowest),
        fastest_thread: median(fastest),
        by_thread: medians(&by_thread),
        copies_by_thread: medians(&copies_by_thread),
        slowest_copies: if slowest_copies.is_empty() { 0.0 } else { median(slowest_copies) },
        sum_of_copies: if sums_of_copies.is_empty() { 0.0 } else { median(sums_of_copies) },
        copies_of_linear: 1.0,
        share_of_possible: 1.0,
        commands,
        lookups,
        seconds: began.elapsed().as_secs_f64(),
        anomalies,
        checked: request.checked,
        checked_by_cpu: request.spots,
    })
}

/// The median of each column.
fn medians(rows: &[Vec<f64>]) -> Vec<f64> {
    let columns = rows.first().map_or(0, Vec::len);
    (0..columns).map(|column| median(rows.iter().filter_map(|row| row.get(column).copied()))).collect()
}

/// Commands a second of one drive.
fn rate_of(watched: &CommandTimes) -> Option<f64> {
    let time = watched.last_completion?.checked_sub(watched.first_doorbell?)?;
    (!time.is_zero()).then(|| watched.completions as f64 / time.as_secs_f64())
}

/// Fills in how each does beside the one with the fewest threads.
pub fn scale(results: &mut [GpuRingResult]) {
    let by_threads = |a: &&GpuRingResult, b: &&GpuRingResult| a.threads.cmp(&b.threads);
    let Some(one) = results.iter().min_by(by_threads).cloned() else { return };
    for it in results {
        it.share_of_linear = it.commands_per_second_and_thread / one.commands_per_second_and_thread;
        if one.slowest_copies > 0.0 && it.slowest_copies > 0.0 {
            it.copies_of_linear = it.slowest_copies / one.slowest_copies;
            it.share_of_possible = it.share_of_linear / it.copies_of_linear.min(1.0);
        }
        it.sum_of_linear = it.sum_of_threads / f64::from(it.threads) / (one.sum_of_threads / f64::from(one.threads));
    }
}
