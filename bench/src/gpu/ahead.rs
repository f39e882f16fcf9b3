//! Look-ups of rows on drives that are fetched ahead, beside a model's work on the GPU, against look-ups one after the other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use warprow_gpu::GpuExecutor;
use warprow_gpu::{GpuOptions, GpuSlot, PrefetchedBatch, Ticket};
use warprow_gpu_queues::DeviceMemory;
use warprow_layout::DType;
use warprow_lookup::{Feature, PlanOptions};
use warprow_workload::{ContentOracle, IdShuffle, Latencies, PairedTimes};

use super::criteo::{Percentiles, different};
use super::{Drawn, Request, Shape, Stream, us};
use crate::fixtures::{Fixture, FixtureTable, Media};

/// Elements of a row.
const DIM: u32 = 128;
/// Steps that are timed together. A slot has eight tickets.
const STEPS: usize = 16;
/// What a model writes at a time.
const WORK: usize = 256 << 20;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct AheadSetup {
    /// Bytes of the table, rows of 512 B, all on drives.
    pub size: u64,
    /// Different ids of a batch.
    pub ids: u64,
    /// Drives.
    pub drives: u32,
    /// Pairs of turns of 16 steps, and batches for each call by itself.
    pub runs: u32,
    /// Of contents and ids.
    pub seed: u64,
}

/// A look-up and a model's work, ahead and in turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AheadResult {
    /// Different ids of a batch.
    pub ids: u64,
    /// Drives.
    pub drives: u32,
    /// A look-up, by the GPU, its launch hidden.
    pub lookup: Percentiles,
    /// What is left of it when its rows have been fetched, in the same way.
    pub prefetched: Percentiles,
    /// How long a prefetch keeps its caller.
    pub call: Percentiles,
    /// The model's work, by the GPU, microseconds.
    pub work_us: f64,
    /// A step of a look-up and the work, one after the other: median, microseconds.
    pub in_turn_us: f64,
    /// Microseconds of a step with the next batch fetched meanwhile.
    pub ahead_us: f64,
    /// Steps a second, ahead to in turn: the median of pairs, the least and the most.
    pub ratio: [f64; 3],
    /// Rows compared.
    pub checked: u64,
}

struct Steps<'a> {
    stream: &'a Stream,
    /// Where batches come from.
    loader: Stream,
    slots: Vec<GpuSlot>,
    requests: Vec<Request>,
    shuffle: IdShuffle,
    ids: Vec<i64>,
    next: u64,
    written: DeviceMemory,
    /// Times that the model writes.
    work: u32,
}

impl Steps<'_> {
    /// Fresh ids, and nothing of an answer.
    fn draw(&mut self) -> anyhow::Result<()> {
        for request in &mut self.requests {
            different(&self.shuffle, self.next, &mut self.ids);
            self.next += 1;
            request.upload(self.stream, &self.ids)?;
        }
        Ok(())
    }

    fn check(&mut self) -> anyhow::Result<()> {
        self.requests.iter_mut().try_for_each(|request| request.check(self.stream, 1))
    }

    fn of(&self, step: usize) -> anyhow::Result<(&GpuSlot, &Request)> {
        let slot = self.slots.get(step % self.slots.len().max(1)).context("no slot")?;
        Ok((slot, self.requests.get(step).context("no such step")?))
    }

    fn lookup(&self, step: usize) -> anyhow::Result<Ticket> {
        let (slot, request) = self.of(step)?;
        let (batch, output) = request.batch();
        // SAFETY: the request's memory outlives the launch, which everybody here waits for.
        Ok(unsafe { slot.lookup(self.stream.raw(), &batch, &output) }?)
    }

    fn prefetch(&self, step: usize) -> anyhow::Result<PrefetchedBatch> {
        let (slot, request) = self.of(step)?;
        // SAFETY: as above.
        Ok(unsafe { slot.prefetch(self.loader.raw(), &request.batch().0) }?)
    }

    fn lookup_prefetched(&self, step: usize, prefetched: PrefetchedBatch) -> anyhow::Result<Ticket> {
        let (slot, request) = self.of(step)?;
        // SAFETY: as above.
        Ok(unsafe { slot.lookup_prefetched(prefetched, self.stream.raw(), &request.batch().1) }?)
    }

    /// What a model does with the rows.
    fn model(&self) -> anyhow::Result<()> {
        // SAFETY: the memory is this one's, and lives on.
        (0..self.work).try_for_each(|_| unsafe { self.stream.set(self.written.address(), 1, WORK) })
    }

    fn ended(&self, tickets: Vec<Ticket>) -> anyhow::Result<()> {
        for ticket in tickets {
            ticket.poll().context("the look-up has not ended")??;
        }
        Ok(())
    }

    /// Steps a second from `began` until the last has ended, with every row compared behind them.
    fn rate(&mut self, began: Instant, tickets: Vec<Ticket>) -> anyhow::Result<f64> {
        self.stream.wait()?;
        let took = began.elapsed();
        self.ended(tickets)?;
        self.check()?;
        Ok(STEPS as f64 / took.as_secs_f64())
    }

    /// Steps a second, one after the other.
    fn in_turn(&mut self) -> anyhow::Result<f64> {
        self.draw()?;
        let began = Instant::now();
        let mut tickets = Vec::with_capacity(STEPS);
        for step in 0..STEPS {
            tickets.push(self.lookup(step)?);
            self.model()?;
        }
        self.rate(began, tickets)
    }

    /// The steps with each batch fetched a step ahead, the first included.
    fn ahead(&mut self) -> anyhow::Result<f64> {
        self.draw()?;
        let began = Instant::now();
        let mut tickets = Vec::with_capacity(STEPS);
        let mut held = VecDeque::new();
        for step in 0..=STEPS {
            if step < STEPS {
                held.push_back(self.prefetch(step)?);
            }
            if let Some(before) = step.checked_sub(1) {
                let prefetched = held.pop_front().context("nothing was prefetched")?;
                tickets.push(self.lookup_prefetched(before, prefetched)?);
                self.model()?;
            }
        }
        self.rate(began, tickets)
    }

    /// Each by itself: look-ups, what is left of prefetched ones, prefetches' calls.
    fn calls(&mut self, turns: u32) -> anyhow::Result<[Latencies; 3]> {
        let [mut lookup, mut prefetched, mut call] = [(); 3].map(|()| Latencies::new());
        for _ in 0..turns {
            self.draw()?;
            for step in 0..STEPS {
                let (took, ticket) = self.stream.hidden(|| self.lookup(step))?;
                self.ended(vec![ticket])?;
                lookup.record(took);
            }
            self.check()?;
            self.draw()?;
            for step in 0..STEPS {
                let began = Instant::now();
                let held = self.prefetch(step)?;
                call.record(began.elapsed());
                while !held.is_fetched()? {
                    std::thread::yield_now();
                }
                let (took, ticket) = self.stream.hidden(|| self.lookup_prefetched(step, held))?;
                self.ended(vec![ticket])?;
                prefetched.record(took);
            }
            self.check()?;
        }
        Ok([lookup, prefetched, call])
    }
}

/// Steps of a look-up and a model's work that takes about as long, the rows on drives that permute completions.
pub fn ahead(stream: &Stream, setup: &AheadSetup, note: &mut dyn FnMut(&str)) -> anyhow::Result<AheadResult> {
    let AheadSetup { size, ids, drives, runs, seed } = *setup;
    let rows = size / (u64::from(DIM) * 4);
    ensure!(ids > 0 && ids <= rows, "{ids} different ids of {rows}");
    note(&format!("{runs} turns of {STEPS} batches of {ids} ids, rows on {drives} drives, ahead and in turn"));
    let content = ContentOracle::new(seed, 0, rows, DIM, DType::F32);
    let fixture = Fixture { drives, media: Media::Computed, disorder: true, ..Fixture::default() };
    let store = fixture.store(&[FixtureTable::new("table", content)], None)?;
    let executor = GpuExecutor::attach(&store, stream.gpu().clone(), GpuOptions::default())?;
    let options = PlanOptions::default().with_max(ids as usize, ids as usize).with_slots(2).with_prefetch();
    let plan = executor.plan(&[Feature::new("f", "table")], options)?;
    let request = || {
        let mut request = Request::new(stream, &[Drawn::new(content, 0.0)?], ids, ids, seed)?;
        request.reshape(Shape { bags: ids, hot: 1, pooled: false })?;
        anyhow::Ok(request)
    };
    let mut steps = Steps {
        stream,
        loader: Stream::new(stream.kernels())?,
        slots: vec![plan.slot()?, plan.slot()?],
        requests: (0..STEPS).map(|_| request()).collect::<anyhow::Result<_>>()?,
        shuffle: IdShuffle::new(rows, seed),
        ids: vec![0; ids as usize],
        next: 0,
        written: DeviceMemory::new(stream.gpu(), WORK as u64)?,
        work: 8,
    };
    steps.calls(1)?;
    let [lookup, prefetched, call] = steps.calls(runs)?;
    let eight = stream.hidden(|| steps.model())?.0;
    let wanted = Duration::from_secs_f64(lookup.percentile_us(50.0) * 1e-6);
    steps.work = (wanted.as_secs_f64() / eight.as_secs_f64() * 8.0).round().clamp(1.0, 10_000.0) as u32;
    let work = stream.hidden(|| steps.model())?.0;
    let shared = std::cell::RefCell::new(&mut steps);
    let pairs = PairedTimes::alternate(runs, |_| shared.borrow_mut().ahead(), |_| shared.borrow_mut().in_turn())?;
    let (least, most) = pairs.ratio_range();
    Ok(AheadResult {
        ids,
        drives,
        lookup: Percentiles::of(&lookup),
        prefetched: Percentiles::of(&prefetched),
        call: Percentiles::of(&call),
        work_us: us(work),
        in_turn_us: 1e6 / pairs.median_b(),
        ahead_us: 1e6 / pairs.median_a(),
        ratio: [pairs.ratio(), least, most],
        checked: steps.requests.iter().map(|request| request.checked).sum(),
    })
}
