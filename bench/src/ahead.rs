//! Look-ups whose rows are fetched while their caller waits for something else, against look-ups one after the other.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions, Slot};
use warprow_soft_controller::TimingProfile;
use warprow_workload::{BatchSource, ContentOracle, Latencies, PairedTimes, RowsAnswer, TableContent, verify};
use zerocopy::IntoBytes;

use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::lookup::{LookupSetup, TABLE};

/// Steps that are timed together: their answers are compared afterwards, so that nothing is fetched meanwhile.
const STEPS: usize = 16;
/// What rows are overwritten with before they are looked up.
const POISON: u8 = 0xa5;

/// Host look-ups ahead and in turn.
#[derive(Debug)]
pub struct AheadResult {
    /// Steps that batches are fetched ahead.
    pub ahead: u32,
    /// What the caller waits for in each step.
    pub work: Duration,
    /// Rows in DRAM.
    pub hot_rows: u64,
    /// A look-up's call.
    pub lookup: Latencies,
    /// A prefetch's call.
    pub prefetch: Latencies,
    /// The call that looks up what is there already.
    pub prefetched: Latencies,
    /// Steps a second, those ahead first.
    pub steps: PairedTimes,
    /// Rows compared.
    pub checked: u64,
}

/// Slots, and the batches and answers of some steps.
struct Steps {
    slots: Vec<Slot>,
    batches: BatchSource,
    content: ContentOracle,
    batch: u32,
    width: usize,
    ids: Vec<Vec<i64>>,
    rows: Vec<Vec<f32>>,
    /// Number of the next batch.
    next: u64,
    checked: u64,
}

impl Steps {
    /// Fresh ids, and nothing of an answer.
    fn draw(&mut self) {
        for (ids, rows) in self.ids.iter_mut().zip(&mut self.rows) {
            self.batches.fill(self.next, ids);
            self.next += 1;
            rows.as_mut_bytes().fill(POISON);
        }
    }

    fn check(&mut self) -> anyhow::Result<()> {
        for (ids, rows) in self.ids.iter().zip(&self.rows) {
            let answer = RowsAnswer { rows: rows.as_bytes(), stride: self.content.row_bytes(), mask: None };
            self.checked += verify(&self.content, ids, answer).context("a wrong row was returned")?.rows;
        }
        Ok(())
    }

    fn slot(&mut self, step: usize) -> anyhow::Result<&mut Slot> {
        let slots = self.slots.len();
        self.slots.get_mut(step % slots.max(1)).context("no slot")
    }

    fn lookup(&mut self, step: usize) -> anyhow::Result<()> {
        let ids = std::mem::take(&mut self.ids[step]);
        let mut rows = std::mem::take(&mut self.rows[step]);
        let batch = self.batch;
        let width = self.width;
        let looked = self
            .slot(step)?
            .lookup(&Batch::new(&ids, batch as usize), &mut Output::new(OutputRows::F32(&mut rows), width));
        (self.ids[step], self.rows[step]) = (ids, rows);
        looked?;
        Ok(())
    }

    fn prefetch(&mut self, step: usize) -> anyhow::Result<()> {
        let ids = std::mem::take(&mut self.ids[step]);
        let batch = self.batch;
        let begun = self.slot(step)?.prefetch(&Batch::new(&ids, batch as usize));
        self.ids[step] = ids;
        Ok(begun?)
    }

    fn lookup_prefetched(&mut self, step: usize) -> anyhow::Result<()> {
        let mut rows = std::mem::take(&mut self.rows[step]);
        let width = self.width;
        let looked = self.slot(step)?.lookup_prefetched(&mut Output::new(OutputRows::F32(&mut rows), width));
        self.rows[step] = rows;
        looked?;
        Ok(())
    }

    /// Steps a second, each of a look-up and `work`, one after the other.
    fn in_turn(&mut self, work: Duration) -> anyhow::Result<f64> {
        self.draw();
        let began = Instant::now();
        for step in 0..STEPS {
            self.lookup(step)?;
            std::thread::sleep(work);
        }
        let took = began.elapsed();
        self.check()?;
        Ok(STEPS as f64 / took.as_secs_f64())
    }

    /// The steps with batches fetched so many steps ahead, the first ones included.
    fn ahead(&mut self, ahead: usize, work: Duration) -> anyhow::Result<f64> {
        self.draw();
        let began = Instant::now();
        for step in 0..STEPS + ahead {
            if step < STEPS {
                self.prefetch(step)?;
            }
            if step >= ahead {
                self.lookup_prefetched(step - ahead)?;
                std::thread::sleep(work);
            }
        }
        let took = began.elapsed();
        self.check()?;
        Ok(STEPS as f64 / took.as_secs_f64())
    }

    /// Each call by itself: look-ups, prefetches, and look-ups of what is there.
    fn calls(&mut self) -> anyhow::Result<[Latencies; 3]> {
        let [mut lookup, mut prefetch, mut prefetched] = [(); 3].map(|()| Latencies::new());
        for _ in 0..4 {
            self.draw();
            for step in 0..STEPS {
                let began = Instant::now();
                self.lookup(step)?;
                lookup.record(began.elapsed());
            }
            self.check()?;
            self.draw();
            for step in 0..STEPS {
                let began = Instant::now();
                self.prefetch(step)?;
                prefetch.record(began.elapsed());
                while !self.slot(step)?.is_fetched() {
                    std::thread::yield_now();
                }
                let began = Instant::now();
                self.lookup_prefetched(step)?;
                prefetched.record(began.elapsed());
            }
            self.check()?;
        }
        Ok([lookup, prefetch, prefetched])
    }
}

/// Steps of a look-up and a wait of `work` (`None`: as long as a look-up), on a drive with the timing of `profile` whose rows are computed,
/// fetched `ahead` steps ahead and not, for `time`.
pub fn run(
    setup: &LookupSetup,
    profile: TimingProfile,
    ahead: u32,
    work: Option<Duration>,
    time: Duration,
) -> anyhow::Result<AheadResult> {
    setup.check()?;
    ensure!((1..=8).contains(&ahead), "{ahead} steps ahead: 1 to 8 are possible");
    let fixture = Fixture { media: Media::Computed, profile, ..Fixture::default() };
    let store = fixture.store(&[FixtureTable::new(TABLE, setup.content())], None).context("no computed drive")?;
    let dram = setup.hot_rows() * u64::from(setup.dim) * 4;
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(dram))?;
    let options = PlanOptions::default().with_max(setup.batch as usize, setup.batch as usize);
    let plan = host.plan(&[Feature::new("f", TABLE)], options.with_slots(ahead + 1).with_prefetch())?;
    let slots = (0..=ahead).map(|_| plan.slot()).collect::<Result<Vec<_>, _>>()?;
    let batch = setup.batch;
    let width = plan.width();
    let mut steps = Steps {
        slots,
        batches: setup.batches(false)?,
        content: setup.content(),
        batch,
        width,
        ids: vec![vec![0; batch as usize]; STEPS],
        rows: vec![vec![0.0; batch as usize * width]; STEPS],
        next: 0,
        checked: 0,
    };
    let [lookup, prefetch, prefetched] = steps.calls()?;
    let work = work.unwrap_or_else(|| Duration::from_secs_f64(lookup.percentile_us(50.0) * 1e-6));
    let shared = std::cell::RefCell::new(&mut steps);
    let pairs = PairedTimes::alternate_for(
        time,
        3,
        |_| shared.borrow_mut().ahead(ahead as usize, work),
        |_| shared.borrow_mut().in_turn(work),
    )?;
    let hot_rows = setup.hot_rows();
    let checked = steps.checked;
    Ok(AheadResult { ahead, work, hot_rows, lookup, prefetch, prefetched, steps: pairs, checked })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_checked_ahead_and_in_turn() {
        let setup = LookupSetup { size: 8 << 20, dim: 128, alpha: 0.5, batch: 200, hot: 0.1, seed: 3 };
        for ahead in [1, 3] {
            let work = Some(Duration::from_micros(50));
            let result = run(&setup, TimingProfile::None, ahead, work, Duration::ZERO).unwrap();
            assert_eq!(result.checked, (4 * 2 + 3 * 2) * STEPS as u64 * 200);
            assert_eq!(result.lookup.count(), 4 * STEPS as u64);
            assert!(result.steps.ratio() > 0.0 && result.steps.pairs().len() == 3);
        }
        assert!(run(&setup, TimingProfile::None, 0, None, Duration::ZERO).is_err());
    }
}
