//! Passes run in one way, every row compared.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warprow_passes::{Keyset, Pass, PassOptions, Passes};
use warprow_store::Store;
use warprow_workload::{ContentOracle, TableContent, median};

use super::memory::{Memory, huge};
use super::{ITERATIONS, Measured, PASSES, TABLE};

/// Bytes of rows that are copied out at once, where it is in parts.
const PART: usize = 256 << 10;
/// Of so many passes one is copied in parts as well.
const IN_PARTS: usize = 3;
/// Words of a row's one in so many differ from one time to the next.
const MARKED: usize = 8;

/// How passes are run: with which options, and training so long between.
pub(super) struct Way {
    pub name: &'static str,
    pub options: PassOptions,
    pub ahead: bool,
    pub training: Duration,
}

/// Who trains: knows what each row has to be.
pub(super) struct Trainer {
    pub keysets: Vec<Keyset>,
    pub content: ContentOracle,
    /// By id: how often its row was trained.
    pub versions: Vec<u16>,
    pub threads: usize,
    /// Rows compared.
    pub checked: u64,
    /// How long what is durable was compared, the last time.
    pub checking: Duration,
}

/// What makes the row of a version of another's, a word.
fn mark(version: u16) -> u64 {
    u64::from(version).wrapping_mul(0x0001_0001_0001_0001)
}

/// Applies it.
fn apply(mark: u64, row: &mut [u8]) {
    let mark = mark.to_le_bytes();
    row.as_chunks_mut::<8>().0.iter_mut().step_by(MARKED).for_each(|word| {
        word.iter_mut().zip(mark).for_each(|(byte, mark)| *byte ^= mark);
    });
}

impl Trainer {
    fn version(&self, id: u64) -> u16 {
        self.versions.get(id as usize).copied().unwrap_or_default()
    }

    /// The row of `id` as it was trained last. Few bytes differ from one time to the next, but in every part of it.
    fn fill(&self, id: u64, row: &mut [u8]) {
        self.content.fill(id, row);
        apply(mark(self.version(id)), row);
    }

    /// Compares the rows of `keys` with what was trained last, and trains them once more.
    fn train(&mut self, keys: &[u64], rows: &mut [u8], row_bytes: usize, what: &str) -> anyhow::Result<()> {
        let share = keys.len().div_ceil(self.threads).max(1);
        let this = &*self;
        let part = |keys: &[u64], rows: &mut [u8]| -> Option<u64> {
            let mut wanted = vec![0; row_bytes];
            for (&id, row) in keys.iter().zip(rows.chunks_exact_mut(row_bytes)) {
                this.fill(id, &mut wanted);
                if row != wanted {
                    return Some(id);
                }
                let version = this.version(id);
                apply(mark(version) ^ mark(version.wrapping_add(1)), row);
            }
            None
        };
        let wrong = std::thread::scope(|scope| {
            let parts: Vec<_> = (keys.chunks(share).zip(rows.chunks_mut(share * row_bytes)))
                .map(|(keys, rows)| scope.spawn(move || part(keys, rows)))
                .collect();
            parts
                .into_iter()
                .map(|part| part.join().map_err(|_| anyhow::anyhow!("a thread has panicked")))
                .collect::<Vec<_>>()
        });
        for wrong in wrong {
            let wrong = wrong?;
            ensure!(wrong.is_none(), "{what}: the row of {wrong:?} is not what was trained last");
        }
        self.checked += keys.len() as u64;
        for &id in keys {
            if let Some(version) = self.versions.get_mut(id as usize) {
                *version = version.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// All passes, twice, or as many as are done by `end`; `None`: that is none.
    pub(super) fn measure(
        &mut self,
        store: &Store,
        way: &Way,
        memory: &mut Memory,
        end: Instant,
    ) -> anyhow::Result<Option<Measured>> {
        if Instant::now() >= end {
            return Ok(None);
        }
        let mut passes = Passes::open(store, TABLE, way.options.clone())?;
        let row_bytes = passes.row_bytes();
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        let mut trainings = Vec::new();
        let mut stages = Vec::new();
        let mut copies = Vec::new();
        let mut parts = Vec::new();
        let mut memcpys = Vec::new();
        let mut aheads = Vec::new();
        let mut bytes = 0;
        let mut time = Duration::ZERO;
        let mut hits = [0; ITERATIONS];
        let mut rows_in_all = [0; ITERATIONS];
        let mut resident = 0;
        let most = self.keysets.iter().map(Keyset::len).max().unwrap_or(0);
        // Touched: the kernel's time to give it would be counted as reading.
        let mut buffer = huge(most * row_bytes)?;
        for turn in 0..PASSES * ITERATIONS {
            if Instant::now() >= end {
                break;
            }
            let keyset = self.keysets.get(turn % PASSES).context("no such pass")?;
            let rows = buffer.get_mut(..keyset.len() * row_bytes).context("a pass larger than all")?;
            rows.fill(0);
            memcpys.push(memory.copy());
            let began = Instant::now();
            let pass = passes.stage(keyset)?;
            let staged = began.elapsed();
            pass.read(rows)?;
            let mut read = began.elapsed();
            stages.push(staged.as_secs_f64());
            copies.push(rows.len() as f64 / (read - staged).as_secs_f64());
            if turn.is_multiple_of(IN_PARTS) {
                parts.push(self.parts(&pass, rows)?);
            }
            if way.ahead && turn + 1 < PASSES * ITERATIONS {
                let began = Instant::now();
                passes.prefetch(self.keysets.get((turn + 1) % PASSES).context("no such pass")?)?;
                // The trainer waits for that, too.
                let ahead = began.elapsed();
                read += ahead;
                aheads.push(ahead.as_secs_f64());
            }
            let trained = Instant::now();
            self.train(pass.keys(), rows, row_bytes, &format!("{}, pass {turn}", way.name))?;
            std::thread::sleep(way.training.saturating_sub(trained.elapsed()));
            trainings.push(trained.elapsed().as_secs_f64());
            let report = pass.report();
            if let (Some(hits), Some(all)) = (hits.get_mut(turn / PASSES), rows_in_all.get_mut(turn / PASSES)) {
                (*hits, *all) = (*hits + report.hits, *all + report.rows);
            }
            resident = resident.max(passes.resident());
            let began = Instant::now();
            passes.finish(pass, rows)?;
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
        let began = Instant::now();
        self.check(store, way.name)?;
        self.checking = began.elapsed();
        let share = |of: usize| {
            hits.get(of..).unwrap_or_default().iter().sum::<u64>() as f64
                / rows_in_all.get(of..).unwrap_or_default().iter().sum::<u64>().max(1) as f64
        };
        let done = reads.len();
        Ok((done > 0).then(|| Measured {
            way: way.name.to_owned(),
            passes: done,
            hit_rate: share(0),
            hit_rate_later: (done > PASSES).then(|| share(1)),
            read: median(reads),
            write: median(writes),
            both: bytes as f64 / time.as_secs_f64(),
            stage: median(stages),
            ahead: if aheads.is_empty() { 0.0 } else { median(aheads) },
            copy: median(copies),
            parts: median(parts),
            memcpy: median(memcpys),
            training: if way.training.is_zero() { 0.0 } else { median(trainings) },
            tail: tail.as_secs_f64(),
            read_rows: totals.read,
            written_rows: totals.written,
            resident,
        }))
    }

    /// Compares what is durable.
    fn check(&mut self, store: &Store, way: &str) -> anyhow::Result<()> {
        let mut wanted = vec![0; self.content.row_bytes()];
        let mut rows = 0;
        let mut wrong = None;
        store.scan(TABLE, 0..u64::MAX, &mut |id, row| {
            self.fill(id, &mut wanted);
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
        let all = self.content.rows();
        ensure!(rows == all, "{way}: {rows} of {all} rows came back");
        self.checked += rows;
        Ok(())
    }

    /// Copies a pass's rows out in parts that stay in a core's cache, as to memory that a GPU reads: bytes a second. All are compared
    /// with `rows`, afterwards.
    fn parts(&self, pass: &Pass, rows: &[u8]) -> anyhow::Result<f64> {
        let part = (PART / pass.row_bytes()).max(1);
        let share = pass.len().div_ceil(self.threads).max(1);
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
                        !compare || rows.get(first * pass.row_bytes()..).is_some_and(|bytes| bytes.starts_with(buffer));
                    ensure!(same, "row {first} and those behind it differ when they are read in parts");
                }
                Ok(())
            };
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..pass.len()).step_by(share).map(|first| scope.spawn(move || one(first))).collect();
                all.into_iter()
                    .try_for_each(|handle| handle.join().map_err(|_| anyhow::anyhow!("a thread has panicked"))?)
            })
            .map(|()| pass.bytes() as f64 / began.elapsed().as_secs_f64())
        };
        let rate = through(false)?;
        through(true)?;
        Ok(rate)
    }
}
