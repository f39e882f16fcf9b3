//! A slot's look-ups of one request, called and as a captured graph, in time by the GPU and by the clock.

use std::time::{Duration, Instant};

use anyhow::Context;
use warprow_gpu::{GpuPlan, GpuReport, GpuSlot, Ticket};

use super::{Graph, Request, Stream};

/// A slot, and a graph of its look-up.
#[derive(Debug)]
pub struct TimedLookup {
    // Dropped in this order: the slot's memory goes when nobody has its tickets and graphs.
    graph: Graph,
    captured: Ticket,
    slot: GpuSlot,
}

impl TimedLookup {
    /// Takes a slot of `plan`, and captures a look-up of `request` as it is shaped now.
    pub fn new(plan: &GpuPlan, stream: &Stream, request: &Request) -> anyhow::Result<Self> {
        let slot = plan.slot()?;
        let (batch, output) = request.batch();
        // SAFETY: the request's memory outlives the graph's launches, each of which is waited for.
        let (graph, captured) = stream.capture(|| Ok(unsafe { slot.lookup(stream.raw(), &batch, &output) }?))?;
        Ok(Self { graph, captured, slot })
    }

    /// Kernels of a look-up.
    pub fn kernels(&self) -> usize {
        self.graph.nodes()
    }

    /// A look-up that is called, timed by the GPU; the report, and how long the call kept its caller.
    pub fn called(&self, stream: &Stream, request: &Request) -> anyhow::Result<(Duration, GpuReport, Duration)> {
        let (took, (ticket, call)) = stream.hidden(|| self.call(stream, request))?;
        Ok((took, ticket.poll().context("the look-up has not ended")??, call))
    }

    /// A look-up that is called, from the call until its ticket says that it has ended, by the clock.
    pub fn called_seen(&self, stream: &Stream, request: &Request) -> anyhow::Result<(Duration, GpuReport)> {
        let (took, (ticket, _)) =
            stream.seen(|| self.call(stream, request), |(ticket, _)| Ok(ticket.poll().is_some()))?;
        Ok((took, ticket.poll().context("the look-up has not ended")??))
    }

    /// A launch of the graph, timed by the GPU.
    pub fn replayed(&self, stream: &Stream) -> anyhow::Result<(Duration, GpuReport)> {
        let (took, ()) = stream.hidden(|| stream.launch(&self.graph))?;
        Ok((took, self.captured.poll().context("the graph has not ended")??))
    }

    /// A launch of the graph, from the launch until its ticket says that it has ended, by the clock.
    pub fn replayed_seen(&self, stream: &Stream) -> anyhow::Result<(Duration, GpuReport)> {
        let before = self.captured.poll().transpose()?.map_or(0, |report| report.runs);
        let ended = || match self.captured.poll() {
            Some(Ok(report)) => report.runs > before,
            // An error is told below.
            Some(Err(_)) => true,
            None => false,
        };
        let (took, ()) = stream.seen(|| stream.launch(&self.graph), |()| Ok(ended()))?;
        Ok((took, self.captured.poll().context("the graph has not ended")??))
    }

    /// Launches a look-up; its ticket, and how long that took.
    pub fn call(&self, stream: &Stream, request: &Request) -> anyhow::Result<(Ticket, Duration)> {
        let (batch, output) = request.batch();
        let began = Instant::now();
        // SAFETY: the request's memory outlives the launch, which everybody here waits for.
        let ticket = unsafe { self.slot.lookup(stream.raw(), &batch, &output) }?;
        Ok((ticket, began.elapsed()))
    }

    /// Launches the graph.
    pub fn replay(&self, stream: &Stream) -> anyhow::Result<()> {
        stream.launch(&self.graph)
    }
}
