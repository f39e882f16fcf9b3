//! Slots of a plan on a GPU, one for each stream, and what is known of the look-ups that they launched.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use warprow_gpu::{
    GpuBatch, GpuError, GpuExecutor, GpuOutput, GpuPlan, GpuReport, GpuSlot, PrefetchedBatch, ResidentScales, Ticket,
};
use warprow_lookup::{Feature, MissingPolicy, PlanOptions};

use crate::error::{ModuleError, Patience};

/// The most streams that have a slot each.
const STREAMS: usize = 4;
/// The most look-ups of a slot that are under way.
const UNDER_WAY: usize = 8;
/// The longest wait for a look-up to end.
const PATIENCE: Duration = Duration::from_secs(60);

const UNENDED: &str =
    "look-ups that were launched before did not end in time: synchronise, and look at what the stream waits for";

/// Waits a little.
fn pause(patience: &Patience) -> Result<(), ModuleError> {
    std::thread::sleep(Duration::from_micros(20));
    patience.check()
}

/// A slot, the stream that uses it, and the tickets of its look-ups, the oldest first.
pub struct Lane {
    slot: GpuSlot,
    stream: usize,
    tickets: VecDeque<Ticket>,
}

/// A look-up that graphs have, and the number of its runs whose report was taken.
struct Captured {
    ticket: Ticket,
    runs: u64,
}

/// A batch whose rows are fetched ahead, and the slot that holds it.
pub enum Ahead {
    /// Outside of captures.
    Eager(Lane, PrefetchedBatch),
    /// In a capture.
    Captured(GpuSlot, PrefetchedBatch),
}

/// All slots. A lock is held while a look-up is launched; nobody asks for interrupts with it.
pub struct Lanes {
    executor: GpuExecutor,
    features: Vec<Feature>,
    /// Scales that lie in memory.
    scales: Vec<ResidentScales>,
    options: PlanOptions,
    /// Whether rows that could not be read are an error.
    raises_failed: bool,
    plan: GpuPlan,
    state: Mutex<State>,
}

struct State {
    eager: Vec<Lane>,
    /// The slot of all captures.
    capturing: GpuSlot,
    captured: Vec<Captured>,
    /// Slots for batches that are fetched ahead.
    ahead: Vec<Lane>,
    /// Slots for batches that are fetched ahead in captures.
    capturing_ahead: Vec<GpuSlot>,
    /// What befell a look-up whose graph is gone, until somebody checks.
    untold: Option<GpuError>,
    latest: Option<GpuReport>,
}

impl State {
    fn note_captured(&mut self, ticket: Ticket) {
        self.forget_gone();
        self.captured.push(Captured { ticket, runs: 0 });
    }

    /// Lets the tickets go whose graphs are destroyed.
    fn forget_gone(&mut self) {
        let untold = &mut self.untold;
        self.captured.retain(|it| {
            let is_kept = it.ticket.has_graph();
            if !is_kept && let Err(error) = it.ticket.check() {
                untold.get_or_insert(error);
            }
            is_kept
        });
    }
}

impl Lanes {
    /// # Safety
    /// Scales stay where they are for as long as this lives, and graphs with its look-ups.
    pub(crate) unsafe fn new(
        executor: GpuExecutor,
        features: Vec<Feature>,
        scales: Vec<ResidentScales>,
        (options, ahead): (PlanOptions, u32),
        raises_failed: bool,
    ) -> Result<Self, GpuError> {
        // Beside the slots for batches that are fetched ahead, in captures and outside, one is for eager calls and one for captures.
        let planned = options.clone().with_slots(ahead.saturating_mul(2).saturating_add(2));
        // SAFETY: the caller's promise.
        let plan = unsafe { executor.plan_with_scales(&features, planned, &scales) }?;
        let lane = |slot| Lane { slot, stream: usize::MAX, tickets: VecDeque::new() };
        let state = State {
            eager: vec![lane(plan.slot()?)],
            capturing: plan.slot()?,
            captured: Vec::new(),
            ahead: (0..ahead).map(|_| plan.slot().map(lane)).collect::<Result<_, _>>()?,
            capturing_ahead: (0..ahead).map(|_| plan.slot()).collect::<Result<_, _>>()?,
            untold: None,
            latest: None,
        };
        let mut options = options.with_slots(1);
        options.prefetch = false;
        Ok(Self { executor, features, scales, options, raises_failed, plan, state: Mutex::new(state) })
    }

    pub(crate) fn width(&self) -> usize {
        self.plan.width()
    }

    /// Whether a stream is being captured in a graph.
    pub(crate) fn is_captured(&self, stream: usize) -> Result<bool, ModuleError> {
        Ok(self.executor.is_captured(stream as _)?)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Launches a look-up, or captures it. What befell earlier ones is raised first.
    ///
    /// # Safety
    /// As of [`GpuSlot::lookup`].
    pub(crate) unsafe fn lookup(
        &self,
        stream: usize,
        captured: bool,
        batch: &GpuBatch,
        out: &GpuOutput,
    ) -> Result<(), ModuleError> {
        if captured {
            let mut state = self.lock();
            // SAFETY: the caller's promise.
            let ticket = unsafe { state.capturing.lookup(stream as _, batch, out) }?;
            state.note_captured(ticket);
            return Ok(());
        }
        let patience = Patience::new(PATIENCE, UNENDED);
        loop {
            let mut state = self.lock();
            self.poll(&mut state)?;
            if let Some(lane) = self.lane(&mut state, stream)? {
                // SAFETY: the caller's promise.
                let ticket = unsafe { lane.slot.lookup(stream as _, batch, out) }?;
                lane.tickets.push_back(ticket);
                return Ok(());
            }
            drop(state);
            pause(&patience)?;
        }
    }

    /// The slot for a stream; `None`: all are taken, or too many of its look-ups are under way.
    fn lane<'a>(&self, state: &'a mut State, stream: usize) -> Result<Option<&'a mut Lane>, GpuError> {
        let own = state.eager.iter().position(|lane| lane.stream == stream);
        let unused = || state.eager.iter().position(|lane| lane.stream == usize::MAX);
        let index = match own.or_else(unused) {
            Some(index) => index,
            None if state.eager.len() < STREAMS => {
                // SAFETY: the promise of whoever made this.
                let plan =
                    unsafe { self.executor.plan_with_scales(&self.features, self.options.clone(), &self.scales) }?;
                let slot = plan.slot()?;
                state.eager.push(Lane { slot, stream, tickets: VecDeque::new() });
                state.eager.len() - 1
            }
            // A stream that has gone, perhaps.
            None => match state.eager.iter().position(|lane| lane.tickets.is_empty()) {
                Some(index) => index,
                None => return Ok(None),
            },
        };
        let lane = state.eager.get_mut(index).filter(|lane| lane.tickets.len() < UNDER_WAY);
        let Some(lane) = lane else { return Ok(None) };
        lane.stream = stream;
        Ok(Some(lane))
    }

    /// Takes the reports of look-ups that have ended; raises the first failure among them.
    fn poll(&self, state: &mut State) -> Result<(), ModuleError> {
        let State { eager, ahead, latest, .. } = state;
        for lane in eager.iter_mut().chain(ahead) {
            while let Some(outcome) = lane.tickets.front().and_then(Ticket::poll) {
                lane.tickets.pop_front();
                self.told(outcome, latest)?;
            }
        }
        Ok(())
    }

    /// Notes a report; raises what it says.
    fn told(&self, outcome: Result<GpuReport, GpuError>, latest: &mut Option<GpuReport>) -> Result<(), ModuleError> {
        let report = match outcome {
            Err(GpuError::RowsFailed { report, .. }) if !self.raises_failed => *report,
            outcome => outcome?,
        };
        *latest = Some(report);
        // Where rows failed as well, the GPU tells that alone.
        match report.first_missing {
            Some(first) if self.options.missing == MissingPolicy::Error => {
                Err(GpuError::MissingIds { missing: report.missing, first, report: Box::new(report) }.into())
            }
            _ => Ok(()),
        }
    }

    /// Waits until all look-ups have ended that no graph has, and raises what befell them, and what befell runs of graphs: of those that
    /// have ended by now and that no call before told of.
    pub(crate) fn check(&self, patience: Duration) -> Result<(), ModuleError> {
        let patience = Patience::new(patience, UNENDED);
        loop {
            let mut state = self.lock();
            self.poll(&mut state)?;
            if state.eager.iter().chain(&state.ahead).all(|lane| lane.tickets.is_empty()) {
                break;
            }
            drop(state);
            pause(&patience)?;
        }
        let mut state = self.lock();
        state.forget_gone();
        let State { captured, latest, untold, .. } = &mut *state;
        if let Some(error) = untold.take() {
            self.told(Err(error), latest)?;
        }
        for it in captured {
            match it.ticket.check() {
                Err(error) => self.told(Err(error), latest)?,
                Ok(()) => {
                    if let Some(Ok(report)) = it.ticket.poll()
                        && report.runs != it.runs
                    {
                        (it.runs, *latest) = (report.runs, Some(report));
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins to fetch the rows of a batch ahead, behind those of another one that is fetched ahead, or captures that.
    ///
    /// # Safety
    /// As of [`GpuSlot::prefetch`].
    pub(crate) unsafe fn prefetch(
        &self,
        stream: usize,
        captured: bool,
        batch: &GpuBatch,
        behind: Option<&Ahead>,
    ) -> Result<Ahead, ModuleError> {
        const TAKEN: &str = "as many batches are prefetched as was planned: look one up first";
        let prefetch = |slot: &GpuSlot| match behind {
            // SAFETY: the caller's promise.
            None => unsafe { slot.prefetch(stream as _, batch) },
            Some(Ahead::Eager(_, before) | Ahead::Captured(_, before)) => {
                // SAFETY: the caller's promise.
                unsafe { slot.prefetch_behind(stream as _, batch, before) }
            }
        };
        if captured {
            let mut state = self.lock();
            for index in 0..state.capturing_ahead.len() {
                let Some(slot) = state.capturing_ahead.get(index) else { break };
                match prefetch(slot) {
                    Ok(prefetched) => return Ok(Ahead::Captured(state.capturing_ahead.swap_remove(index), prefetched)),
                    // Another capture has it.
                    Err(GpuError::SlotHoldsBatch | GpuError::Busy(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            return Err(ModuleError::Busy(TAKEN));
        }
        let patience = Patience::new(PATIENCE, UNENDED);
        loop {
            let mut state = self.lock();
            self.poll(&mut state)?;
            if state.ahead.is_empty() {
                return Err(ModuleError::Busy(TAKEN));
            }
            let is_free = |lane: &Lane| lane.tickets.len() < UNDER_WAY;
            if let Some(index) = state.ahead.iter().position(is_free) {
                let lane = state.ahead.swap_remove(index);
                return match prefetch(&lane.slot) {
                    Ok(prefetched) => Ok(Ahead::Eager(lane, prefetched)),
                    Err(error) => {
                        state.ahead.push(lane);
                        Err(error.into())
                    }
                };
            }
            // The GPU is behind with the look-ups of lanes whose batch nobody holds.
            drop(state);
            pause(&patience)?;
        }
    }

    /// Looks up what was fetched ahead, or captures that.
    ///
    /// # Safety
    /// As of [`GpuSlot::lookup_prefetched`].
    pub(crate) unsafe fn lookup_prefetched(
        &self,
        stream: usize,
        held: Ahead,
        out: &GpuOutput,
    ) -> Result<(), ModuleError> {
        match held {
            Ahead::Eager(mut lane, prefetched) => {
                // SAFETY: the caller's promise.
                let launched = unsafe { lane.slot.lookup_prefetched(prefetched, stream as _, out) };
                let launched = launched.map(|ticket| lane.tickets.push_back(ticket));
                self.lock().ahead.push(lane);
                Ok(launched?)
            }
            Ahead::Captured(slot, prefetched) => {
                // SAFETY: the caller's promise.
                let captured = unsafe { slot.lookup_prefetched(prefetched, stream as _, out) };
                let mut state = self.lock();
                state.capturing_ahead.push(slot);
                captured.map(|ticket| state.note_captured(ticket))?;
                Ok(())
            }
        }
    }

    /// Forgets a batch that was fetched ahead. (A capture cannot be ended well after that.)
    pub(crate) fn forget(&self, held: Ahead) {
        match held {
            Ahead::Eager(lane, prefetched) => {
                drop(prefetched);
                self.lock().ahead.push(lane);
            }
            Ahead::Captured(slot, prefetched) => {
                drop(prefetched);
                self.lock().capturing_ahead.push(slot);
            }
        }
    }

    /// Starts queues that take no commands anew. Whether there were any.
    pub(crate) fn recover(&self) -> Result<bool, GpuError> {
        let state = self.lock();
        let lanes = state.eager.iter().chain(&state.ahead).map(|lane| &lane.slot);
        let slots = lanes.chain([&state.capturing]).chain(&state.capturing_ahead);
        slots.map(GpuSlot::recover).try_fold(false, |any, recovered| Ok(any | recovered?))
    }

    /// Whether a graph has look-ups of the plan.
    pub(crate) fn has_captures(&self) -> bool {
        let mut state = self.lock();
        state.forget_gone();
        !state.captured.is_empty() || state.untold.is_some()
    }

    pub(crate) fn latest(&self) -> Option<GpuReport> {
        self.lock().latest
    }
}
