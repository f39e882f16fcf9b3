//! Training passes: rows from memory against rows from a drive, and against copies of memory.

mod keysets;
mod memory;
mod trainer;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use warprow_layout::{DType, FormatOptions, TableSpec};
use warprow_passes::{CacheOptions, PassOptions};
use warprow_soft_controller::{Namespace, RamBacking, SoftController, TimingProfile};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, StoreError, TableLoad};
use warprow_workload::rival::PageCaching;
use warprow_workload::{ContentOracle, median};

use crate::Scratch;
use keysets::{distinct, keysets};
use memory::Memory;
use trainer::{Trainer, Way};

const TABLE: &str = "table";
/// Passes of an iteration, and iterations: as HugeCTR measures its embedding training cache.
const PASSES: usize = 10;
const ITERATIONS: usize = 2;

/// Where the rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveKind {
    /// A file, past the page cache or through it.
    File(PageCaching),
    /// Memory, with the timing of a drive.
    Timed(TimingProfile),
}

/// A table, and passes over it.
#[derive(Clone, Copy, Debug)]
pub struct PassSetup {
    /// Rows.
    pub rows: u64,
    /// Elements (f32) of a row.
    pub dim: u32,
    /// The drives that the rows lie on.
    pub drive: DriveKind,
    /// Threads that copy; 0: as many as there are processors.
    pub threads: usize,
    /// Seed of keys and content.
    pub seed: u64,
    /// How long it may take: each way of running has as much of what is left as the others, and ends with the pass under way.
    pub limit: Duration,
}

/// Passes run in one way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// In which.
    pub way: String,
    /// How many, of twenty.
    pub passes: usize,
    /// Rows that were in memory when their pass was staged, of all.
    pub hit_rate: f64,
    /// The hit rate of the second iteration; `None`: it was not reached.
    pub hit_rate_later: Option<f64>,
    /// Bytes a second: of a pass's rows, by the time for which staging and copying them out keeps the trainer. Median.
    pub read: f64,
    /// Bytes a second: of a pass's rows, by the time for which taking them back keeps the trainer. Median.
    pub write: f64,
    /// Bytes in both directions, by the time for both, of all passes.
    pub both: f64,
    /// Seconds that staging alone took: finding the rows, and reading those that were missing. Median.
    pub stage: f64,
    /// Seconds that beginning to prepare the next pass took; 0: that was not done. Median.
    pub ahead: f64,
    /// Copying alone, out of memory that has the rows: bytes a second, median.
    pub copy: f64,
    /// Copying in parts that stay in a core's cache: bytes a second, median.
    pub parts: f64,
    /// Copying as many bytes as a pass has from memory to memory, in one piece a thread, before each pass: bytes a second, median.
    pub memcpy: f64,
    /// Seconds that the trainer trained between, each pass; median.
    pub training: f64,
    /// Seconds for what was left to be made durable behind the last pass.
    pub tail: f64,
    /// Rows that were read from drives, and written.
    pub read_rows: u64,
    /// See [`read_rows`](Self::read_rows).
    pub written_rows: u64,
    /// Rows in memory at most, each once.
    pub resident: usize,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PassResult {
    /// Rows of a pass, on average.
    pub pass_rows: u64,
    /// Different rows of all passes.
    pub distinct: u64,
    /// Copying as many bytes as a pass has from memory to memory, in one piece a thread: bytes a second, the median of all ways'; `None`: no time was
    /// left for any.
    pub memcpy: Option<f64>,
    /// Each way.
    pub ways: Vec<Measured>,
    /// Ways for which no time was left.
    pub left_out: Vec<String>,
    /// Rows compared, all equal.
    pub checked: u64,
}

/// What has just been done.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The table is on its drive: after so many seconds.
    Loaded(f64),
    /// Passes were run in a way, or in none for which no time was left.
    Done(&'a str, Option<&'a Measured>),
}

/// Runs the passes in each way, and says so.
pub fn run(setup: &PassSetup, directory: &Path, tell: &mut dyn FnMut(Progress<'_>)) -> anyhow::Result<PassResult> {
    let began = Instant::now();
    ensure!((1 << 12..1 << 32).contains(&setup.rows), "{} rows: 4096 to 2³² are possible", setup.rows);
    ensure!((1..=8192).contains(&setup.dim), "rows of {} elements: 1 to 8192 are possible", setup.dim);
    let end = began.checked_add(setup.limit).context("that limit is no time")?;
    let keysets = keysets(setup)?;
    let pass_rows = keysets.iter().map(|keyset| keyset.len() as u64).sum::<u64>() / PASSES as u64;
    let distinct = distinct(&keysets, setup.rows);
    let row_bytes = u64::from(setup.dim) * 4;
    let threads = match setup.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let content = ContentOracle::new(setup.seed, 0, setup.rows, setup.dim, DType::F32);
    // The store lives as long as its drive's file.
    let scratch;
    let all = setup.rows * row_bytes;
    let device = match setup.drive {
        DriveKind::File(caching) => {
            scratch = Scratch::new(directory, (all * 3 + (256 << 20)).next_multiple_of(1 << 20))?;
            let lba = scratch.smallest_lba(caching)?;
            Device::new(scratch.drive(0, caching, lba, None)?, 1)
        }
        DriveKind::Timed(profile) => {
            let ram = RamBacking::new((all * 3 + (256 << 20)).next_multiple_of(1 << 20))
                .context("no memory for the drive")?;
            let namespace = Namespace::new(ram).lba(512);
            Device::new(SoftController::builder().name("timed").profile(profile).namespace(namespace).build()?, 1)
        }
    };
    let store = Store::create(&[device], &FormatOptions::default(), &OpenOptions::default())?;
    let spec = TableSpec::new(TABLE, setup.rows, setup.dim, DType::F32);
    let load = TableLoad::new(&spec, &content).with_random_access();
    let in_time = |_| if Instant::now() < end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    store.load("bench", &[load], &LoadOptions::default(), &mut |progress| in_time(progress)).map_err(|error| {
        match error {
            StoreError::Interrupted => anyhow::anyhow!(
                "the table was not loaded within {:.0} s: give fewer rows, or more time",
                setup.limit.as_secs_f64()
            ),
            error => error.into(),
        }
    })?;
    let versions = vec![0; setup.rows as usize];
    let mut trainer = Trainer { keysets, content, versions, threads, checked: 0, checking: Duration::ZERO };
    let mut memory = Memory::new(all as usize, (pass_rows * row_bytes) as usize, threads)?;
    tell(Progress::Loaded(began.elapsed().as_secs_f64()));

    let mut ways = Vec::<Measured>::new();
    let mut left_out = Vec::new();
    let planned = planned(all, setup.threads);
    let count = planned.len();
    // What a trainer takes for a pass that is as long as its reading and writing.
    let mut training = Duration::ZERO;
    for (at, (name, options, ahead)) in planned.into_iter().enumerate() {
        let way = Way { name, options, ahead, training: if ahead { training } else { Duration::ZERO } };
        // Behind its passes each way is compared as a whole.
        let share =
            (end.saturating_duration_since(Instant::now()) / (count - at) as u32).saturating_sub(trainer.checking);
        let measured = trainer.measure(&store, &way, &mut memory, Instant::now() + share)?;
        tell(Progress::Done(name, measured.as_ref()));
        match measured {
            Some(measured) => {
                if at == 0 {
                    training = Duration::try_from_secs_f64(2.0 * (pass_rows * row_bytes) as f64 / measured.both)
                        .unwrap_or_default();
                }
                ways.push(measured);
            }
            None => left_out.push(name.to_owned()),
        }
    }
    let memcpy = Some(median(ways.iter().map(|way| way.memcpy))).filter(|rate| rate.is_finite());
    Ok(PassResult { pass_rows, distinct, memcpy, ways, left_out, checked: trainer.checked })
}

/// The ways of running, for a table of so many bytes, and whether the next pass is prepared ahead, while a trainer trains.
fn planned(all: u64, threads: usize) -> Vec<(&'static str, PassOptions, bool)> {
    let none = CacheOptions { num_blocks: 0, target_hit_rate: 0.0, max_num_evict: 0 };
    let as_theirs = CacheOptions { num_blocks: 2, target_hit_rate: 0.4, max_num_evict: 0 };
    let many = CacheOptions { num_blocks: PASSES as u32, target_hit_rate: 1.0, max_num_evict: u32::MAX };
    let cached = |cache| PassOptions::cached(all, cache);
    let ways = [
        ("uncached", cached(none), false),
        ("staged, durable at the end", PassOptions::staged(all).with_commit_every(0), false),
        ("staged, ahead, durable at the end", PassOptions::staged(all).with_commit_every(0), true),
        ("cached (10, 1, ∞), durable at the end", cached(many).with_commit_every(0), false),
        ("cached (10, 1, ∞), ahead and behind", cached(many).with_behind(), true),
        ("cached (2, 0.4, 0), ahead and behind", cached(as_theirs).with_behind(), true),
        ("staged, ahead and behind", PassOptions::staged(all).with_behind(), true),
        ("cached (2, 0.4, 0)", cached(as_theirs), false),
        ("cached (2, 0.4, 0), durable at the end", cached(as_theirs).with_commit_every(0), false),
        ("uncached, ahead and behind", cached(none).with_behind(), true),
    ];
    ways.into_iter().map(|(name, options, ahead)| (name, options.with_threads(threads), ahead)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn passes_are_as_large_as_theirs_and_all_rows_are_compared() {
        let directory = tempfile::tempdir().unwrap();
        let drive = DriveKind::File(PageCaching::Cached);
        let setup = PassSetup { rows: 8_000, dim: 16, drive, threads: 2, seed: 3, limit: HOUR };
        let mut told = Vec::new();
        let result = run(&setup, directory.path(), &mut |progress| {
            told.extend(match progress {
                Progress::Done(way, measured) => measured.map(|measured| (way.to_owned(), measured.passes)),
                Progress::Loaded(_) => None,
            });
        })
        .unwrap();
        // A fifth to a quarter of the keys that any pass has, and three quarters of all.
        let share = result.pass_rows as f64 / result.distinct as f64;
        assert!((0.2..0.27).contains(&share), "{share}");
        assert_eq!(result.checked, 10 * (exact(&setup) + 8_000));
        assert_eq!((told.len(), result.left_out.len()), (10, 0));
        assert!(told.iter().all(|pair| pair.1 == PASSES * ITERATIONS), "{told:?}");
        let of = |name: &str| result.ways.iter().find(|way| way.way == name).unwrap();
        // Theirs have 45% with two passes.
        let theirs = of("cached (2, 0.4, 0)");
        assert!((0.40..0.58).contains(&theirs.hit_rate), "{}", theirs.hit_rate);
        assert_eq!(of("uncached").hit_rate_later, Some(0.0));
        assert_eq!(of("staged, durable at the end").hit_rate, 1.0);
        assert!(of("cached (10, 1, ∞), durable at the end").hit_rate_later > Some(0.99));
        assert!(result.memcpy > Some(0.0) && result.ways.iter().all(|way| way.both > 0.0 && way.memcpy > 0.0));
    }

    /// Rows of all passes, twice.
    fn exact(setup: &PassSetup) -> u64 {
        2 * keysets(setup).unwrap().iter().map(|keyset| keyset.len() as u64).sum::<u64>()
    }

    #[test]
    fn what_no_time_is_left_for_is_left_out_and_said() {
        let directory = tempfile::tempdir().unwrap();
        let drive = DriveKind::File(PageCaching::Cached);
        let setup = PassSetup { rows: 5000, dim: 16, drive, threads: 1, seed: 1, limit: HOUR };
        // A limit that runs out while the second way is told of.
        let limited = PassSetup { limit: Duration::from_secs(3), ..setup };
        let mut ways = 0;
        let result = run(&limited, directory.path(), &mut |progress| {
            ways += u32::from(matches!(progress, Progress::Done(..)));
            if ways == 2 {
                std::thread::sleep(limited.limit);
            }
        })
        .unwrap();
        assert_eq!((result.ways.len(), result.left_out.len()), (2, 8), "{result:?}");
        assert!(result.checked > 0 && result.memcpy > Some(0.0));
        let nothing = PassSetup { limit: Duration::ZERO, ..setup };
        let error = run(&nothing, directory.path(), &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("not loaded within 0 s"), "{error}");
    }

    #[test]
    fn impossible_setups_are_refused() {
        let drive = DriveKind::File(PageCaching::Cached);
        let good = PassSetup { rows: 5000, dim: 16, drive, threads: 1, seed: 1, limit: HOUR };
        let limit = Duration::MAX;
        for bad in [
            PassSetup { rows: 10, ..good },
            PassSetup { dim: 0, ..good },
            PassSetup { rows: 1 << 40, ..good },
            PassSetup { limit, ..good },
        ] {
            assert!(run(&bad, &std::env::temp_dir(), &mut |_| ()).is_err());
        }
    }
}
