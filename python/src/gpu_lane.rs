//! Slots of a plan on a GPU, one for each stream, and what is known of the look-ups that they launched.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use warprow_gpu::{GpuBatch, GpuError, GpuExecutor, GpuOutput, GpuPlan, GpuReport, GpuSlot, PrefetchedBatch, Ticket};
use warprow_lookup::{Feature, PlanOptions};

use crate::error::{Kind, of_gpu, raise, raise_with};

/// The most streams that have a slot each.
const STREAMS: usize = 4;
/// The most look-ups of a slot that are under way.
const UNDER_WAY: usize = 8;
/// The longest wait for a look-up to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A slot, the stream that uses it, and the tickets of its look-ups, the oldest first.
pub(crate) struct Lane {
    slot: GpuSlot,
    stream: usize,
    tickets: VecDeque<Ticket>,
}

/// A look-up in a graph, and the number of its runs that were told.
struct Captured {
    ticket: Ticket,
    told: u64,
}

/// Which failures of a report are raised as exceptions.
#[derive(Clone, Copy)]
pub(crate) struct Raises {
    /// Ids that are missing.
    pub(crate) missing: bool,
    /// Rows that could not be read.
    pub(crate) failed: bool,
}

/// All slots. A lock is held while a look-up is launched; nobody waits for the GIL with it.
pub(crate) struct Lanes {
    executor: GpuExecutor,
    features: Vec<Feature>,
    options: PlanOptions,
    raises: Raises,
    plan: GpuPlan,
    state: Mutex<State>,
}

struct State {
    eager: Vec<Lane>,
    /// Of all captures.
    capturing: GpuSlot,
    captured: Vec<Captured>,
    /// Slots for batches that are fetched ahead.
    ahead: Vec<Lane>,
    latest: Option<GpuReport>,
}

/// What becomes an exception when no lock is held any more: who makes one waits for the GIL.
pub(crate) enum Trouble {
    Gpu(GpuError),
    /// Ids that their tables do not have.
    Missing(Box<GpuReport>),
    /// Something waited too long.
    Busy(&'static str),
    /// A signal's handler has raised.
    Raised(PyErr),
}

impl From<GpuError> for Trouble {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

impl Trouble {
    /// The exception.
    pub(crate) fn raise(self) -> PyErr {
        match self {
            Self::Gpu(error) => of_gpu(error),
            Self::Raised(error) => error,
            Self::Busy(what) => raise(Kind::QueueBusy, what.to_owned()),
            Self::Missing(report) => {
                let first = report.first_missing;
                let named = first
                    .map_or(String::new(), |it| format!(", the first is id {} at position {}", it.id, it.position));
                let text = format!("{} of {} ids are missing from their tables{named}", report.missing, report.ids);
                raise_with(Kind::MissingIds, text, |details| {
                    details.set_item("count", report.missing)?;
                    details.set_item("positions", first.iter().map(|it| it.position).collect::<Vec<_>>())?;
                    details.set_item("id", first.map(|it| it.id))
                })
            }
        }
    }
}

type Outcome = Option<Result<GpuReport, GpuError>>;

impl Lanes {
    pub(crate) fn new(
        executor: GpuExecutor,
        features: Vec<Feature>,
        (options, ahead): (PlanOptions, u32),
        raises: Raises,
    ) -> Result<Self, GpuError> {
        // Beside the slots for batches that are fetched ahead, one is for eager calls and one for captures.
        let planned = options.clone().with_slots(ahead + 2);
        let plan = executor.plan(&features, planned)?;
        let lane = |slot| Lane { slot, stream: usize::MAX, tickets: VecDeque::new() };
        let capturing = plan.slot()?;
        let eager = vec![lane(plan.slot()?)];
        let ahead = (0..ahead).map(|_| plan.slot().map(lane)).collect::<Result<_, _>>()?;
        let state = Mutex::new(State { eager, capturing, captured: Vec::new(), ahead, latest: None });
        let mut options = options.with_slots(1);
        options.prefetch = false;
        Ok(Self { executor, features, options, raises, plan, state })
    }

    pub(crate) fn width(&self) -> usize {
        self.plan.width()
    }

    /// The number of features.
    pub(crate) fn features(&self) -> usize {
        self.features.len()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.plan.generation()
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
    ) -> Result<(), Trouble> {
        if captured {
            let mut state = self.lock();
            // SAFETY: the caller's promise.
            let ticket = unsafe { state.capturing.lookup(stream as _, batch, out) }?;
            state.captured.push(Captured { ticket, told: 0 });
            return Ok(());
        }
        let end = Instant::now() + PATIENCE;
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
            self.pause(end)?;
        }
    }

    /// The slot for a stream; `None`: all are taken, or too many of its look-ups are under way.
    fn lane<'a>(&self, state: &'a mut State, stream: usize) -> Result<Option<&'a mut Lane>, GpuError> {
        let own = state.eager.iter().position(|lane| lane.stream == stream);
        let unused = || state.eager.iter().position(|lane| lane.stream == usize::MAX);
        let index = match own.or_else(unused) {
            Some(index) => index,
            None if state.eager.len() < STREAMS => {
                let slot = self.executor.plan(&self.features, self.options.clone())?.slot()?;
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

    /// Waits a little.
    fn pause(&self, end: Instant) -> Result<(), Trouble> {
        if Instant::now() > end {
            return Err(Trouble::Busy(
                "look-ups that were launched before did not end in 60 s: synchronise, and look at what the stream waits for",
            ));
        }
        std::thread::sleep(Duration::from_micros(20));
        Python::attach(|py| py.check_signals()).map_err(Trouble::Raised)
    }

    /// Takes the reports of look-ups that have ended; raises the first failure among them.
    fn poll(&self, state: &mut State) -> Result<(), Trouble> {
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
    fn told(&self, outcome: Result<GpuReport, GpuError>, latest: &mut Option<GpuReport>) -> Result<(), Trouble> {
        let report = match outcome {
            Err(GpuError::RowsFailed { report, .. }) if !self.raises.failed => *report,
            outcome => outcome?,
        };
        *latest = Some(report);
        if self.raises.missing && report.missing > 0 { Err(Trouble::Missing(Box::new(report))) } else { Ok(()) }
    }

    /// Waits until all look-ups have ended, and raises what befell them: also what befell the latest run of each graph.
    pub(crate) fn check(&self, patience: Duration) -> Result<(), Trouble> {
        let end = Instant::now() + patience;
        loop {
            let mut state = self.lock();
            self.poll(&mut state)?;
            if state.eager.iter().chain(&state.ahead).all(|lane| lane.tickets.is_empty()) {
                break;
            }
            drop(state);
            self.pause(end)?;
        }
        let mut state = self.lock();
        let State { captured, latest, .. } = &mut *state;
        for it in captured {
            let outcome: Outcome = it.ticket.poll();
            let runs = match &outcome {
                Some(Ok(report)) => report.runs,
                Some(Err(GpuError::RowsFailed { report, .. })) => report.runs,
                _ => 0,
            };
            match outcome {
                // Each run is told once.
                Some(outcome) if runs == 0 || runs != it.told => {
                    it.told = runs;
                    self.told(outcome, latest)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Begins to fetch the rows of a batch ahead.
    ///
    /// # Safety
    /// As of [`GpuSlot::prefetch`].
    pub(crate) unsafe fn prefetch(&self, stream: usize, batch: &GpuBatch) -> Result<(Lane, PrefetchedBatch), Trouble> {
        let mut state = self.lock();
        self.poll(&mut state)?;
        let is_free = |lane: &Lane| lane.tickets.len() < UNDER_WAY;
        let Some(index) = state.ahead.iter().position(is_free) else {
            return Err(Trouble::Busy("as many batches are prefetched as was planned: look one up first"));
        };
        let lane = state.ahead.swap_remove(index);
        // SAFETY: the caller's promise.
        match unsafe { lane.slot.prefetch(stream as _, batch) } {
            Ok(prefetched) => Ok((lane, prefetched)),
            Err(error) => {
                state.ahead.push(lane);
                Err(error.into())
            }
        }
    }

    /// Looks up what was fetched ahead.
    ///
    /// # Safety
    /// As of [`GpuSlot::lookup_prefetched`].
    pub(crate) unsafe fn lookup_prefetched(
        &self,
        stream: usize,
        (mut lane, prefetched): (Lane, PrefetchedBatch),
        out: &GpuOutput,
    ) -> Result<(), Trouble> {
        // SAFETY: the caller's promise.
        let launched = unsafe { lane.slot.lookup_prefetched(prefetched, stream as _, out) };
        let launched = launched.map(|ticket| lane.tickets.push_back(ticket));
        self.give_back(lane);
        Ok(launched?)
    }

    /// Gives a slot back whose batch was looked up, or forgotten.
    pub(crate) fn give_back(&self, lane: Lane) {
        self.lock().ahead.push(lane);
    }

    /// Starts queues that take no commands anew.
    pub(crate) fn recover(&self) -> Result<bool, GpuError> {
        let state = self.lock();
        let slots = state.eager.iter().chain(&state.ahead).map(|lane| &lane.slot).chain([&state.capturing]);
        slots.map(GpuSlot::recover).try_fold(false, |any, recovered| Ok(any | recovered?))
    }

    /// Lets the tickets of captured look-ups go, how many: what their graphs need the graphs keep.
    pub(crate) fn forget_captures(&self) -> Result<usize, GpuError> {
        let mut state = self.lock();
        let forgotten = state.captured.len();
        state.captured.clear();
        Ok(forgotten)
    }

    pub(crate) fn has_captures(&self) -> bool {
        !self.lock().captured.is_empty()
    }

    pub(crate) fn latest(&self) -> Option<GpuReport> {
        self.lock().latest
    }
}
