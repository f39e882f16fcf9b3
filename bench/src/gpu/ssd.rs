//! Rows on drives, for a GPU: by its own thread blocks, and by threads that copy to it.

use std::time::Instant;

use warprow_gpu::{GpuExecutor, GpuOptions, GpuPlan};
use warprow_gpu_queues::{Gpu, PinnedMemory};
use warprow_lookup::{Feature, PlanOptions};
use warprow_store::Store;
use warprow_workload::mix_all;

use super::{Drawn, Request, Shape, Stream, TimedLookup};
use crate::processor_time;
use crate::ssd::{Contender, GpuWay, Ground, Landing, Means, SsdSetup, TABLE, Taken, Team};

/// Rows of each answer that the processor computes too.
const SPOTS: u32 = 4;

/// Rows end up in GPU memory, whoever drives the look-up.
#[derive(Debug)]
pub struct GpuGround<'s> {
    stream: &'s Stream,
    seed: u64,
    contenders: u64,
}

impl<'s> GpuGround<'s> {
    /// Ids by the setup's seed.
    pub fn new(stream: &'s Stream, setup: &SsdSetup) -> Self {
        Self { stream, seed: setup.seed, contenders: 0 }
    }

    /// A batch of `count` ids, other ids for each contender.
    fn request(&mut self, setup: &SsdSetup, count: u64) -> anyhow::Result<Request> {
        self.contenders += 1;
        let seed = mix_all([self.seed, self.contenders, 0x55d]);
        let mut request = Request::new(self.stream, &[Drawn::new(setup.content(), setup.alpha)?], count, count, seed)?;
        request.reshape(Shape::rows(count))?;
        Ok(request)
    }
}

impl Ground for GpuGround<'_> {
    fn by_gpu<'a>(
        &'a mut self,
        setup: &'a SsdSetup,
        store: &'a Store,
        count: u64,
        way: GpuWay,
    ) -> anyhow::Result<Option<Box<dyn Contender + 'a>>> {
        let mut options = GpuOptions::default().with_queue_sets(way.sets).with_queue_memory(way.memory);
        options.one_kernel_ids = way.kernels.one_kernel_ids();
        options.depth = setup.depth.unwrap_or(options.depth);
        let merging = setup.merging.clone().unwrap_or(options.merging.clone());
        let options = options.with_merging(merging).with_ablations(way.ablations);
        let executor = GpuExecutor::attach(store, self.stream.gpu().clone(), options)?;
        let options = PlanOptions::default().with_max(1, usize::try_from(count)?);
        let plan = executor.plan(&[Feature::new("f", TABLE)], options)?;
        let request = self.request(setup, count)?;
        let timed = TimedLookup::new(&plan, self.stream, &request)?;
        Ok(Some(Box::new(Blocks { timed, request, stream: self.stream, _plan: plan, _executor: executor })))
    }

    fn by_threads<'a>(
        &'a mut self,
        setup: &'a SsdSetup,
        means: Means<'_>,
        count: u64,
        by: u32,
    ) -> anyhow::Result<Box<dyn Contender + 'a>> {
        let gpu = self.stream.gpu();
        let dim = setup.dim as usize;
        let team = Team::new(means, TABLE, dim, count, by, |rows| Staging::new(gpu, rows * dim))?;
        Ok(Box::new(Threads { team, request: self.request(setup, count)?, stream: self.stream, dim }))
    }
}

/// Look-ups that thread blocks drive.
struct Blocks<'a> {
    // Dropped in this order: the slot's memory goes when nobody has its tickets and graphs.
    timed: TimedLookup,
    request: Request,
    stream: &'a Stream,
    _plan: GpuPlan,
    _executor: GpuExecutor,
}

impl Contender for Blocks<'_> {
    fn prepare(&mut self) -> anyhow::Result<()> {
        self.request.draw(self.stream)
    }

    fn look_up(&mut self) -> anyhow::Result<Taken> {
        let call = || {
            let before = processor_time::of_this_thread()?;
            let (ticket, _) = self.timed.call(self.stream, &self.request)?;
            Ok((ticket, processor_time::of_this_thread()? - before))
        };
        let (seen, (ticket, caller)) = self.stream.seen(call, |(ticket, _)| Ok(ticket.poll().is_some()))?;
        let report = ticket.poll().ok_or_else(|| anyhow::anyhow!("the look-up has not ended"))??;
        anyhow::ensure!(report.anomalies == 0, "{} completions that nobody waited for", report.anomalies);
        let stages = Some([report.prepare, report.fetch, report.expand]);
        Ok(Taken { seen, caller, commands: report.commands, stages })
    }

    fn check(&mut self) -> anyhow::Result<u64> {
        let before = self.request.checked;
        self.request.check(self.stream, SPOTS)?;
        Ok(self.request.checked - before)
    }
}

/// Pinned memory that rows are looked up into, before they are copied.
struct Staging(PinnedMemory);

impl Staging {
    fn new(gpu: &std::sync::Arc<Gpu>, elements: usize) -> anyhow::Result<Self> {
        Ok(Self(PinnedMemory::allocate(gpu, elements.max(1) as u64 * 4)?))
    }
}

impl Landing for Staging {
    fn rows(&mut self) -> &mut [f32] {
        let memory = self.0.memory();
        // SAFETY: the memory is this one's alone, no device writes to it, and what copies it is waited for before this is asked for again;
        // it is aligned to pages, and floats have no invalid bits.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast(), memory.len() / 4) }
    }
}

/// Look-ups that threads drive, and copies of what they bring.
struct Threads<'a> {
    team: Team<Staging>,
    request: Request,
    stream: &'a Stream,
    dim: usize,
}

impl Contender for Threads<'_> {
    fn prepare(&mut self) -> anyhow::Result<()> {
        self.request.draw(self.stream)?;
        self.team.deal(&self.request.ids()?);
        Ok(())
    }

    fn look_up(&mut self) -> anyhow::Result<Taken> {
        let stream = self.stream;
        let to = self.request.out_at();
        let row_bytes = self.dim * 4;
        let began = Instant::now();
        let before = processor_time::of_this_thread()?;
        let commands = self.team.look_up(self.dim, |first, count, staging| {
            if count == 0 {
                return Ok(());
            }
            let from = staging.0.memory().as_ptr().cast_const();
            // SAFETY: the output has room for all rows, the part for its own, and both are waited for below.
            unsafe { stream.copy(to + (first * row_bytes) as u64, from, count * row_bytes) }
        });
        // Whatever has become of the look-up: parts may be on their way.
        stream.wait()?;
        let commands = commands?;
        let caller = processor_time::of_this_thread()? - before;
        Ok(Taken { seen: began.elapsed(), caller, commands, stages: None })
    }

    fn check(&mut self) -> anyhow::Result<u64> {
        let before = self.request.checked;
        self.request.check(self.stream, SPOTS)?;
        Ok(self.request.checked - before)
    }
}
