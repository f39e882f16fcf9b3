//! Rows that land in the output beside rows that are copied to it, by threads, on one and the same drives.

use std::cell::RefCell;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warprow_layout::DType;
use warprow_lookup::HostExecutor;
use warprow_lookup::{
    Batch, Feature, HostOptions, LookupReport, Output, OutputBuffer, OutputRows, PlanOptions, ReadMerging, Slot, Stage,
};
use warprow_store::Store;
use warprow_workload::{BatchSource, ContentOracle, PairedTimes, RowsAnswer, TableContent, verify};
use zerocopy::IntoBytes;

use crate::fixtures::{Fixture, FixtureTable};
use crate::lookup::{LookupSetup, TABLE};

/// Look-ups of a thread in a turn, each with an output of its own.
const TURN: usize = 4;
/// What outputs are overwritten with before they are filled.
const POISON: u8 = 0xa5;

/// What look-ups of one kind took of a thread.
#[derive(Debug, Default, Clone, Copy)]
pub struct Taken {
    /// Ids.
    pub ids: u64,
    /// Rows that were read from drives, and those of them that landed in the output.
    pub rows: u64,
    /// See `rows`.
    pub landed: u64,
    /// The stage *expand*: copying, and looking for what has come.
    pub expand: Duration,
}

impl Taken {
    fn add(&mut self, report: &LookupReport) {
        self.ids += report.ids;
        self.rows += report.rows_ssd;
        self.landed += report.landed;
        self.expand += report.stages[Stage::Expand as usize];
    }

    /// Nanoseconds of *expand* for each id.
    pub fn expand_ns(&self) -> f64 {
        self.expand.as_nanos() as f64 / self.ids.max(1) as f64
    }
}

/// So many threads.
#[derive(Debug)]
pub struct Team {
    /// How many.
    pub threads: u32,
    /// Ids a second of all together: into output buffers, and into ordinary memory.
    pub ids_per_second: PairedTimes,
    /// What the ones took, and the others.
    pub buffers: Taken,
    /// See `buffers`.
    pub ordinary: Taken,
}

/// All teams.
#[derive(Debug)]
pub struct LandingResult {
    /// By threads.
    pub teams: Vec<Team>,
    /// Drives, each with a thread that answers.
    pub drives: u32,
    /// Rows in DRAM.
    pub hot_rows: u64,
    /// Rows compared.
    pub checked: u64,
}

/// A thread's slot, and its outputs.
struct Reader {
    slot: Slot,
    batch: u32,
    dim: usize,
    ids: Vec<Vec<i64>>,
    rows: Vec<Vec<f32>>,
    buffers: Vec<OutputBuffer>,
    checked: u64,
}

impl Reader {
    fn new(store: &Store, slot: Slot, setup: &LookupSetup) -> anyhow::Result<Self> {
        let batch = setup.batch as usize;
        let dim = setup.dim as usize;
        let buffers =
            (0..TURN).map(|_| OutputBuffer::allocate(store, DType::F32, batch * dim)).collect::<Result<_, _>>()?;
        let ids = vec![vec![0; batch]; TURN];
        let rows = vec![vec![0.0; batch * dim]; TURN];
        Ok(Self { slot, batch: setup.batch, dim, ids, rows, buffers, checked: 0 })
    }

    /// A turn, from when all are ready: how long it took. What is outside of that is not measured.
    fn turn(
        &mut self,
        landing: bool,
        first: u64,
        batches: &BatchSource,
        content: &ContentOracle,
        ready: &Barrier,
        taken: &mut Taken,
    ) -> anyhow::Result<Duration> {
        for (number, ids) in (first..).zip(&mut self.ids) {
            batches.fill(number, ids);
        }
        // Whoever fails meets the others all the same.
        let poisoned = self.rows.iter_mut().zip(&mut self.buffers).try_for_each(|(rows, buffer)| {
            let rows = if landing { buffer.elements_mut()? } else { &mut rows[..] };
            rows.as_mut_bytes().fill(POISON);
            anyhow::Ok(())
        });
        ready.wait();
        let began = Instant::now();
        let outputs = self.rows.iter_mut().zip(&mut self.buffers);
        let looked_up = self.ids.iter().zip(outputs).try_for_each(|(ids, (rows, buffer))| {
            let rows = if landing { OutputRows::Buffer(buffer) } else { OutputRows::F32(rows) };
            let report = self.slot.lookup(&Batch::new(ids, self.batch as usize), &mut Output::new(rows, self.dim))?;
            taken.add(&report);
            anyhow::Ok(())
        });
        let took = began.elapsed();
        // Comparing takes time of others that are still at it.
        ready.wait();
        poisoned.and(looked_up)?;
        for ((ids, rows), buffer) in self.ids.iter().zip(&self.rows).zip(&self.buffers) {
            let rows: &[f32] = if landing { buffer.elements()? } else { rows };
            let answer = RowsAnswer { rows: rows.as_bytes(), stride: content.row_bytes(), mask: None };
            self.checked += verify(content, ids, answer).context("a wrong row was returned")?.rows;
        }
        Ok(took)
    }
}

/// Look-ups into output buffers and into ordinary memory, in pairs of turns, by 1, 2 … `threads` threads, for `time` each; on `drives` drives in memory, as fast as
/// they are. Rows share commands only where they share an LBA.
pub fn run(setup: &LookupSetup, drives: u32, threads: u32, time: Duration) -> anyhow::Result<LandingResult> {
    setup.check()?;
    ensure!((1..=64).contains(&threads), "{threads} threads: 1 to 64 are possible");
    let content = setup.content();
    let store = Fixture { drives, ..Fixture::default() }.store(&[FixtureTable::new(TABLE, content)], None)?;
    let dram = setup.hot_rows() * u64::from(setup.dim) * 4;
    let options = HostOptions::default().with_dram_bytes(dram).with_merging(ReadMerging::Separate);
    let options_of = PlanOptions::default().with_max(setup.batch as usize, setup.batch as usize).with_slots(threads);
    let plan = HostExecutor::attach(&store, options)?.plan(&[Feature::new("f", TABLE)], options_of)?;
    let readers = (0..threads).map(|_| Reader::new(&store, plan.slot()?, setup));
    let mut readers = readers.collect::<anyhow::Result<Vec<_>>>()?;
    let batches = setup.batches(false)?;
    let mut teams = Vec::new();
    let mut size = 1;
    while size <= threads {
        let mut takens = [Taken::default(); 2];
        let [buffers, ordinary] = &mut takens;
        let number = RefCell::new(0u64);
        let readers = RefCell::new(&mut readers[..size as usize]);
        let turn = |landing: bool, taken: &mut Taken| -> anyhow::Result<f64> {
            let first = number.replace_with(|number| *number + u64::from(size) * TURN as u64);
            let ready = Barrier::new(size as usize);
            let content = setup.content();
            let batches = &batches;
            let ready = &ready;
            let mut readers = readers.borrow_mut();
            let look = |(reader, first): (&mut Reader, u64)| {
                let mut mine = Taken::default();
                reader.turn(landing, first, batches, &content, ready, &mut mine).map(|took| (took, mine))
            };
            let look = &look;
            let results = std::thread::scope(|scope| {
                let turns = readers.iter_mut().zip((first..).step_by(TURN));
                let threads: Vec<_> = turns.map(|turn| scope.spawn(move || look(turn))).collect();
                threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect::<Vec<_>>()
            });
            let mut longest = Duration::ZERO;
            let mut ids = 0;
            for result in results {
                let (took, mine) = result?;
                longest = longest.max(took);
                ids += mine.ids;
                taken.ids += mine.ids;
                taken.rows += mine.rows;
                taken.landed += mine.landed;
                taken.expand += mine.expand;
            }
            Ok(ids as f64 / longest.as_secs_f64())
        };
        // The first of each is not counted.
        turn(true, &mut Taken::default())?;
        turn(false, &mut Taken::default())?;
        let ids_per_second = PairedTimes::alternate_for(time, 3, |_| turn(true, buffers), |_| turn(false, ordinary))?;
        teams.push(Team { threads: size, ids_per_second, buffers: takens[0], ordinary: takens[1] });
        size *= 2;
    }
    let checked = readers.iter().map(|reader| reader.checked).sum();
    Ok(LandingResult { teams, drives, hot_rows: setup.hot_rows(), checked })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_checked_and_only_one_lands() {
        let setup = LookupSetup { size: 4 << 20, dim: 128, alpha: 0.0, batch: 300, hot: 0.1, seed: 5 };
        let result = run(&setup, 2, 2, Duration::ZERO).unwrap();
        assert_eq!(result.teams.iter().map(|team| team.threads).collect::<Vec<_>>(), [1, 2]);
        for team in &result.teams {
            assert_eq!(team.ids_per_second.pairs().len(), 3);
            let ids = u64::from(team.threads) * 3 * TURN as u64 * 300;
            assert_eq!((team.buffers.ids, team.ordinary.ids), (ids, ids));
            assert_eq!((team.buffers.landed, team.ordinary.landed), (team.buffers.rows, 0));
            assert!(team.buffers.rows > ids / 2);
        }
        assert_eq!(result.checked, (1 + 2) * 8 * TURN as u64 * 300);
        // Less than an LBA.
        let result = run(&LookupSetup { dim: 64, ..setup }, 1, 1, Duration::ZERO).unwrap();
        assert_eq!(result.teams[0].buffers.landed, 0);
        assert!(run(&setup, 1, 0, Duration::ZERO).is_err());
    }
}
