//! Training passes: rows from memory against rows from a drive, and against copies of memory.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use warprow_layout::{DType, FormatOptions, TableSpec};
use warprow_passes::{CacheOptions, Keyset, Pass, PassOptions, Passes};
use warprow_soft_controller::{Namespace, Profile, Ram, SoftController};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad};
use warprow_workload::rival::Caching;
use warprow_workload::{Content, Oracle, PowerLaw, Random, Shuffle, median, mix_all};

use crate::Scratch;

const TABLE: &str = "table";
/// Passes of an iteration, and iterations: as HugeCTR measures its embedding training cache.
const PASSES: usize = 10;
const ITERATIONS: usize = 2;
/// Of the keys that there are, as many as its ten passes have: draws of a pass by a power law.
const ALPHA: f64 = 0.7;
const DRAWS: f64 = 0.263;
/// Bytes of rows that are copied out at once, where it is in parts.
const PART: usize = 256 << 10;

/// Where the rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bed {
    /// A file, past the page cache or through it.
    File(Caching),
    /// Memory, with the timing of a drive.
    Timed(Profile),
}

/// A table, and passes over it.
#[derive(Clone, Copy, Debug)]
pub struct PassSetup {
    /// Rows.
    pub rows: u64,
    /// Elements (f32) of a row.
    pub dim: u32,
    /// Where they lie.
    pub bed: Bed,
    /// Threads that copy; 0: as many as there are processors.
    pub threads: usize,
    /// Seed of keys and content.
    pub seed: u64,
}

/// Passes run in one way.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// In which.
    pub way: &'static str,
    /// Rows that were in memory when their pass was staged, of all.
    pub hit_rate: f64,
    /// The same in the second iteration.
    pub hit_rate_later: f64,
    /// Bytes a second: of a pass's rows, by the time for which staging and copying them out keeps the trainer. Median.
    pub read: f64,
    /// The same for taking them back.
    pub write: f64,
    /// Bytes in both directions, by the time for both, of all passes.
    pub both: f64,
    /// Copying alone, out of memory that has the rows: bytes a second, median.
    pub copy: f64,
    /// The same in parts that stay in a core's cache.
    pub parts: f64,
    /// Seconds that the trainer trained between, each pass.
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
#[derive(Clone, Debug, Serialize)]
pub struct PassResult {
    /// Rows of a pass, on average.
    pub pass_rows: u64,
    /// Different rows of all passes.
    pub distinct: u64,
    /// Copying as many bytes as a pass has from memory to memory, in one piece: bytes a second.
    pub memcpy: f64,
    /// Each way.
    pub ways: Vec<Measured>,
    /// Rows compared, all equal.
    pub checked: u64,
}

/// How passes are run: with which options, and training so long between.
struct Way {
    name: &'static str,
    options: PassOptions,
    ahead: bool,
    training: Duration,
}

struct Bench {
    setup: PassSetup,
    keysets: Vec<Keyset>,
    content: Oracle,
    /// By id: how often its row was trained.
    versions: Vec<u16>,
    checked: u64,
}

/// Runs the passes in each way.
pub fn run(setup: &PassSetup, directory: &Path) -> anyhow::Result<PassResult> {
    ensure!((1 << 12..1 << 32).contains(&setup.rows), "{} rows: 4096 to 2³² are possible", setup.rows);
    ensure!((1..=8192).contains(&setup.dim), "rows of {} elements: 1 to 8192 are possible", setup.dim);
    let keysets = keysets(setup)?;
    let pass_rows = keysets.iter().map(|it| it.len() as u64).sum::<u64>() / PASSES as u64;
    let mut seen = vec![false; setup.rows as usize];
    for &key in keysets.iter().flat_map(Keyset::keys) {
        if let Some(seen) = seen.get_mut(key as usize) {
            *seen = true;
        }
    }
    let distinct = seen.iter().filter(|seen| **seen).count() as u64;
    let row_bytes = u64::from(setup.dim) * 4;
    let mut bench = Bench {
        setup: *setup,
        keysets,
        content: Oracle::new(setup.seed, 0, setup.rows, setup.dim, DType::F32),
        versions: vec![0; setup.rows as usize],
        checked: 0,
    };
    // The store lives as long as its drive's file.
    let scratch;
    let all = setup.rows * row_bytes;
    let device = match setup.bed {
        Bed::File(caching) => {
            scratch = Scratch::new(directory, (all * 3 + (256 << 20)).next_multiple_of(1 << 20))?;
            let lba = scratch.smallest_lba(caching)?;
            Device::new(scratch.drive(0, caching, lba, None)?, 1)
        }
        Bed::Timed(profile) => {
            let ram = Ram::new((all * 3 + (256 << 20)).next_multiple_of(1 << 20)).context("no memory for the drive")?;
            let namespace = Namespace::new(ram).lba(512);
            Device::new(SoftController::builder().name("timed").profile(profile).namespace(namespace).build()?, 1)
        }
    };
    let store = Store::create(&[device], &FormatOptions::default(), &OpenOptions::default())?;
    let spec = TableSpec::new(TABLE, setup.rows, setup.dim, DType::F32);
    let load = TableLoad::new(&spec, &bench.content).with_random_access();
    store.load("bench", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;

    let none = CacheOptions { num_blocks: 0, target_hit_rate: 0.0, max_num_evict: 0 };
    let as_theirs = CacheOptions { num_blocks: 2, target_hit_rate: 0.4, max_num_evict: 0 };
    let many = CacheOptions { num_blocks: PASSES as u32, target_hit_rate: 1.0, max_num_evict: u32::MAX };
    let few = all;
    let way = |name, options: PassOptions| Way {
        name,
        options: options.with_threads(setup.threads),
        ahead: false,
        training: Duration::ZERO,
    };
    let mut ways = Vec::new();
    let uncached = bench.measure(&store, &way("uncached", PassOptions::cached(few, none)))?;
    // What a trainer takes for a pass that is as long as its reading and writing.
    let training = Duration::from_secs_f64(2.0 * pass_rows as f64 * row_bytes as f64 / uncached.both);
    ways.push(uncached);
    let overlapped = |name, options: PassOptions| Way { ahead: true, training, ..way(name, options.with_behind()) };
    for way in [
        overlapped("uncached, ahead and behind", PassOptions::cached(few, none)),
        way("cached (2, 0.4, 0)", PassOptions::cached(few, as_theirs)),
        way("cached (2, 0.4, 0), durable at the end", PassOptions::cached(few, as_theirs).with_commit_every(0)),
        overlapped("cached (2, 0.4, 0), ahead and behind", PassOptions::cached(few, as_theirs)),
        way("cached (10, 1, ∞), durable at the end", PassOptions::cached(few, many).with_commit_every(0)),
        overlapped("cached (10, 1, ∞), ahead and behind", PassOptions::cached(few, many)),
        way("staged, durable at the end", PassOptions::staged(all).with_commit_every(0)),
        overlapped("staged, behind", PassOptions::staged(all)),
    ] {
        ways.push(bench.measure(&store, &way)?);
    }
    let memcpy = bench.memcpy((pass_rows * row_bytes) as usize);
    Ok(PassResult { pass_rows, distinct, memcpy, ways, checked: bench.checked })
}

/// Ten passes: different keys, each as often drawn by a power law as HugeCTR's passes over Criteo are large; where the hot ones lie is
/// random.
fn keysets(setup: &PassSetup) -> anyhow::Result<Vec<Keyset>> {
    let law = PowerLaw::new(setup.rows, ALPHA).context("no such law")?;
    let shuffle = Shuffle::new(setup.rows, setup.seed);
    let mut random = Random::new(mix_all([setup.seed, 1]));
    let pass = |_| {
        let mut drawn = vec![false; setup.rows as usize];
        let mut keys = Vec::new();
        for _ in 0..(setup.rows as f64 * DRAWS) as u64 {
            let id = shuffle.id(law.sample(&mut random));
            if let Some(drawn) = drawn.get_mut(id as usize).filter(|drawn| !**drawn) {
                *drawn = true;
                keys.push(id);
            }
        }
        Keyset::new(keys)
    };
    Ok((0..PASSES).map(pass).collect())
}

impl Bench {
    /// The row of `id` when it was trained so often. Few bytes differ from one time to the next, but in every part of it.
    fn fill(&self, id: u64, version: u16, row: &mut [u8]) {
        self.content.fill(id, row);
        let mask = u64::from(version).wrapping_mul(0x0001_0001_0001_0001).to_le_bytes();
        row.as_chunks_mut::<8>().0.iter_mut().step_by(8).for_each(|word| {
            word.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        });
    }

    fn version(&self, id: u64) -> u16 {
        self.versions.get(id as usize).copied().unwrap_or_default()
    }

    /// All passes, twice.
    fn measure(&mut self, store: &Store, way: &Way) -> anyhow::Result<Measured> {
        let mut passes = Passes::open(store, TABLE, way.options.clone())?;
        let row_bytes = passes.row_bytes();
        let (mut reads, mut writes, mut copies, mut parts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut bytes, mut time) = (0, Duration::ZERO);
        let (mut hits, mut rows_in_all, mut resident) = ([0; ITERATIONS], [0; ITERATIONS], 0);
        let mut rows = Vec::new();
        let mut wanted = vec![0; row_bytes];
        for turn in 0..PASSES * ITERATIONS {
            let keyset = self.keysets.get(turn % PASSES).context("no such pass")?;
            rows.resize(keyset.len() * row_bytes, 0);
            // Pages that were never touched would be counted as reading.
            rows.fill(0);
            let began = Instant::now();
            let pass = passes.stage(keyset)?;
            let staged = began.elapsed();
            pass.read(&mut rows)?;
            let mut read = began.elapsed();
            copies.push(rows.len() as f64 / (read - staged).as_secs_f64());
            parts.push(self.parts(&pass, &rows)?);
            if way.ahead && turn + 1 < PASSES * ITERATIONS {
                let began = Instant::now();
                passes.prefetch(self.keysets.get((turn + 1) % PASSES).context("no such pass")?)?;
                // The trainer waits for that, too.
                read += began.elapsed();
            }
            let trained = Instant::now();
            for (&id, row) in pass.keys().iter().zip(rows.chunks_exact_mut(row_bytes)) {
                self.fill(id, self.version(id), &mut wanted);
                ensure!(row == wanted, "{}, pass {turn}: the row of {id} is not what was trained last", way.name);
                self.fill(id, self.version(id).wrapping_add(1), row);
            }
            self.checked += pass.len() as u64;
            for &id in pass.keys() {
                if let Some(version) = self.versions.get_mut(id as usize) {
                    *version = version.wrapping_add(1);
                }
            }
            std::thread::sleep(way.training.saturating_sub(trained.elapsed()));
            let report = pass.report();
            if let (Some(hits), Some(all)) = (hits.get_mut(turn / PASSES), rows_in_all.get_mut(turn / PASSES)) {
                (*hits, *all) = (*hits + report.hits, *all + report.rows);
            }
            resident = resident.max(passes.resident());
            let began = Instant::now();
            passes.finish(pass, &rows)?;
            let written = began.elapsed();
            reads.push(rows.len() as f64 / read.as_secs_f64());
            writes.push(rows.len() as f64 / written.as_secs_f64());
            bytes += 2 * rows.len();
            time += read + written;
        }
        let began = Instant::now();
        passes.commit()?;
        let tail = began.elapsed();
        let totals = passes.totals();
        drop(passes);
        self.check(store, way.name)?;
        let share = |of: usize| {
            hits.get(of..).unwrap_or_default().iter().sum::<u64>() as f64
                / rows_in_all.get(of..).unwrap_or_default().iter().sum::<u64>().max(1) as f64
        };
        Ok(Measured {
            way: way.name,
            hit_rate: share(0),
            hit_rate_later: share(1),
            read: median(reads),
            write: median(writes),
            both: bytes as f64 / time.as_secs_f64(),
            copy: median(copies),
            parts: median(parts),
            training: way.training.as_secs_f64(),
            tail: tail.as_secs_f64(),
            read_rows: totals.read,
            written_rows: totals.written,
            resident,
        })
    }

    /// Compares what is durable.
    fn check(&mut self, store: &Store, way: &str) -> anyhow::Result<()> {
        let (mut wanted, mut rows, mut wrong) = (vec![0; self.content.row_bytes()], 0, None);
        store.scan(TABLE, 0..u64::MAX, &mut |id, row| {
            self.fill(id, self.version(id), &mut wanted);
            rows += 1;
            match row == wanted {
                true => ControlFlow::Continue(()),
                false => {
                    wrong = Some(id);
                    ControlFlow::Break(())
                }
            }
        })?;
        ensure!(wrong.is_none(), "{way}: the stored row of {wrong:?} is not what was trained last");
        ensure!(rows == self.setup.rows, "{way}: {rows} of {} rows came back", self.setup.rows);
        self.checked += rows;
        Ok(())
    }

    fn threads(&self) -> usize {
        match self.setup.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    /// Copies as many bytes as a pass has, in one piece for each thread, out of as much memory as the table takes: bytes a second,
    /// the median of several places, so that neither is in a cache.
    fn memcpy(&self, bytes: usize) -> f64 {
        let all = (self.setup.rows as usize * self.content.row_bytes()).max(bytes);
        let (from, mut to) = (vec![1u8; all], vec![2u8; bytes]);
        let share = bytes.div_ceil(self.threads()).max(1);
        let places = (0..17).map(|turn| (all - bytes) / 16 * (turn * 5 % 17));
        let copies = places.filter_map(|place| from.get(place..place + bytes)).map(|from| {
            let began = Instant::now();
            std::thread::scope(|scope| {
                for (to, from) in to.chunks_mut(share).zip(from.chunks(share)) {
                    scope.spawn(|| to.copy_from_slice(from));
                }
            });
            bytes as f64 / began.elapsed().as_secs_f64()
        });
        median(copies)
    }

    /// Copies a pass's rows out in parts that stay in a core's cache, as to memory that a GPU reads: bytes a second. All are compared
    /// with `rows`, afterwards.
    fn parts(&self, pass: &Pass, rows: &[u8]) -> anyhow::Result<f64> {
        let part = (PART / pass.row_bytes()).max(1);
        let share = pass.len().div_ceil(self.threads()).max(1);
        let through = |compare: bool| {
            let began = Instant::now();
            let one = |first: usize| -> anyhow::Result<()> {
                let mut buffer = vec![0; part * pass.row_bytes()];
                let end = pass.len().min(first + share);
                for first in (first..end).step_by(part) {
                    let bytes = (end - first).min(part) * pass.row_bytes();
                    let buffer = buffer.get_mut(..bytes).unwrap_or_default();
                    pass.read_from(first, buffer)?;
                    let same =
                        !compare || rows.get(first * pass.row_bytes()..).is_some_and(|it| it.starts_with(buffer));
                    ensure!(same, "row {first} and those behind it differ when they are read in parts");
                }
                Ok(())
            };
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..pass.len()).step_by(share).map(|first| scope.spawn(move || one(first))).collect();
                all.into_iter().try_for_each(|it| it.join().map_err(|_| anyhow::anyhow!("a thread has panicked"))?)
            })
            .map(|()| pass.bytes() as f64 / began.elapsed().as_secs_f64())
        };
        let rate = through(false)?;
        through(true)?;
        Ok(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_as_large_as_theirs_and_all_rows_are_compared() {
        let directory = tempfile::tempdir().unwrap();
        let bed = Bed::File(Caching::Cached);
        let setup = PassSetup { rows: 8_000, dim: 16, bed, threads: 2, seed: 3 };
        let result = run(&setup, directory.path()).unwrap();
        // A fifth to a quarter of the keys that any pass has, and three quarters of all.
        let share = result.pass_rows as f64 / result.distinct as f64;
        assert!((0.2..0.27).contains(&share), "{share}");
        assert_eq!(result.checked, 9 * (exact(&setup) + 8_000));
        let of = |name: &str| result.ways.iter().find(|way| way.way == name).unwrap();
        // Theirs have 45% with two passes.
        let theirs = of("cached (2, 0.4, 0)");
        assert!((0.40..0.58).contains(&theirs.hit_rate), "{}", theirs.hit_rate);
        assert_eq!(of("uncached").hit_rate_later, of("uncached").hit_rate_later.min(0.4));
        assert_eq!(of("staged, durable at the end").hit_rate, 1.0);
        assert!(of("cached (10, 1, ∞), durable at the end").hit_rate_later > 0.99);
        assert!(result.memcpy > 0.0 && result.ways.iter().all(|way| way.both > 0.0));
    }

    /// Rows of all passes, twice.
    fn exact(setup: &PassSetup) -> u64 {
        2 * keysets(setup).unwrap().iter().map(|keyset| keyset.len() as u64).sum::<u64>()
    }

    #[test]
    fn impossible_setups_are_refused() {
        let good = PassSetup { rows: 5000, dim: 16, bed: Bed::File(Caching::Cached), threads: 1, seed: 1 };
        for bad in [PassSetup { rows: 10, ..good }, PassSetup { dim: 0, ..good }, PassSetup { rows: 1 << 40, ..good }] {
            assert!(run(&bad, &std::env::temp_dir()).is_err());
        }
    }
}
