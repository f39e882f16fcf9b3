//! Look-ups on the host whose rows are fetched ahead. A thread that belongs to the slot fetches them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::LookupReport;
use crate::batch::{Batch, Output};
use crate::error::{InvalidBatch, LookupError};
use crate::host::check::{check_batch, check_output};
use crate::host::counted::Counted;
use crate::host::expand::{Pooled, Routed, Staged, StagedRows, Unpooled};
use crate::host::prepared::Prepared;
use crate::host::read::{Meanwhile, read};
use crate::host::rows_out::PlainRows;
use crate::host::slot::Slot;
use crate::host::state::{Buffers, Done, Found, Sorted, State, Watch, count, with_rows};
use crate::report::Stage;
use crate::stage::OutputElement;
use warprow_store::view::OverlaySnapshot;

/// A batch whose rows are being fetched, or have been fetched, before its look-up.
#[derive(Debug)]
struct Ahead {
    /// The plan with the tables from which rows are fetched, and from which the look-up reads the others.
    plan: Arc<Prepared>,
    snapshots: Vec<Option<OverlaySnapshot>>,
    batch: usize,
    found: Found,
    sorted: Sorted,
    done: Done,
    /// If nothing was read: why not.
    refused: Option<LookupError>,
}

/// A slot's state, and the batch that the slot holds, if it holds one. While the slot's thread fetches, the thread has
/// both.
#[derive(Debug)]
pub(crate) struct Holding {
    /// `None` while the worker has it.
    state: Option<State>,
    /// The batch that the slot holds, once its rows were fetched. `None` while the worker has it, and if there is none.
    ahead: Option<Ahead>,
    worker: Option<Worker>,
}

/// The slot's thread, which fetches rows.
#[derive(Debug)]
struct Worker {
    jobs: Option<SyncSender<(State, Ahead)>>,
    done: Mutex<Receiver<(State, Ahead)>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn spawn() -> std::io::Result<Self> {
        let (jobs, to_do) = sync_channel::<(State, Ahead)>(1);
        let (finished, done) = sync_channel(1);
        let work = move || {
            for (mut state, mut ahead) in to_do {
                state.fetch(&mut ahead);
                if finished.send((state, ahead)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("warprow-prefetch".to_owned()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), done: Mutex::new(done), thread: Some(thread) })
    }

    /// Waits until the thread has fetched what it was given, and takes that back; `None`: the thread has panicked.
    fn collect(&mut self) -> Option<(State, Ahead)> {
        self.done.get_mut().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    /// Takes back what the thread was given, if it has fetched that.
    fn poll(&mut self) -> Option<(State, Ahead)> {
        self.done.get_mut().unwrap_or_else(PoisonError::into_inner).try_recv().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Holding {
    pub(crate) fn new(state: State) -> Self {
        Self { state: Some(state), ahead: None, worker: None }
    }

    /// The state of a slot that holds no batch.
    pub(crate) fn idle(&mut self) -> Result<&mut State, LookupError> {
        match (&mut self.state, &self.ahead) {
            (Some(state), None) => Ok(state),
            _ => Err(LookupError::SlotHoldsBatch),
        }
    }

    /// Takes the state out, when the slot is dropped. Waits for the worker if that has it.
    pub(crate) fn take(&mut self) -> Option<State> {
        if self.state.is_none() {
            let (state, _) = self.worker.as_mut()?.collect()?;
            self.state = Some(state);
        }
        self.worker = None;
        self.state.take()
    }

    /// Has `ahead` fetched, by the slot's thread if there can be one.
    fn fetch(&mut self, mut ahead: Ahead) {
        if self.worker.is_none() {
            let spawned = Worker::spawn();
            self.worker = spawned
                .inspect_err(|error| tracing::warn!(%error, "no thread to prefetch with: its callers wait instead"))
                .ok();
        }
        let Some(mut state) = self.state.take() else { return };
        if let Some(jobs) = self.worker.as_ref().and_then(|worker| worker.jobs.as_ref()) {
            match jobs.send((state, ahead)) {
                Ok(()) => return,
                // The worker's thread has ended.
                Err(back) => (state, ahead) = back.0,
            }
        }
        state.fetch(&mut ahead);
        (self.state, self.ahead) = (Some(state), Some(ahead));
    }

    /// Waits until what is being fetched is there.
    fn settle(&mut self) {
        let (None, Some(worker)) = (&self.state, &mut self.worker) else { return };
        match worker.collect() {
            Some((state, ahead)) => (self.state, self.ahead) = (Some(state), Some(ahead)),
            // The thread has panicked: the panic goes on here, as it would have without a thread.
            None => match worker.thread.take().map(JoinHandle::join) {
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                _ => unreachable!("a thread that was given work ends with it, or panics"),
            },
        }
    }
}

impl State {
    /// Reads the rows of a batch that lie on drives to where `ahead` finds them.
    fn fetch(&mut self, ahead: &mut Ahead) {
        let Ahead { plan, snapshots, batch, found, sorted, done, refused } = ahead;
        let mut watch = Watch::new(plan);
        if let Err(error) = self.ready(&watch) {
            *refused = Some(error);
            return;
        }
        *sorted = self.sort(plan, found, &mut watch);
        let (routed, buffers) = self.split(plan, snapshots, *batch, sorted);
        let (clock, commands) = (plan.host.store.clock(), routed.commands);
        let Buffers { lanes, landings, hot_places, counting, staging, staged_bytes, .. } = buffers;
        let staged = Staged { routed, staging, staged_bytes };
        let mut work = Counted::new(staged, clock, hot_places, plan.row_bits, counting);
        let reading = read(lanes, commands, landings, clock, &mut work);
        let hot_rows = work.count();
        let routed = work.work.routed;
        let (failed, damaged) = (routed.failed, routed.damaged);
        *done = Done { reading, hot_rows, counting: work.time, damaged, positions: Vec::new() };
        sorted.failed = failed;
    }
}

/// The stage *expand* when all rows are in memory or staging. Returns the positions of ids whose row failed.
fn expand<O: OutputElement>(mut routed: Routed<'_>, buffers: Buffers<'_>, rows: &mut [O], stride: usize) -> Vec<usize> {
    let Buffers { staging, staged_bytes, sum, deferred, mut positions, .. } = buffers;
    let failed = |id| positions.push(id);
    routed.settle();
    if routed.plan.pooled {
        let mut work = Pooled::new(routed, rows, stride, staging, staged_bytes, sum, deferred);
        while work.step() {}
        work.finish(failed);
    } else {
        let staged = StagedRows { bytes: staging.bytes(), stride: staged_bytes };
        let width = routed.plan.width;
        let mut work = Unpooled::of_staged(routed, PlainRows { rows, stride, width }, staged);
        while work.step() {}
        work.finish(failed);
    }
    positions
}

impl Slot {
    /// Begins to fetch the rows of a batch from drives, for [`lookup_prefetched`](Self::lookup_prefetched). A thread
    /// that belongs to the slot reads them while the caller does something else. When this returns, the memory that
    /// `batch` borrows is the caller's again: the slot has copied what it needs. Until that look-up, or
    /// [`forget_prefetched`](Self::forget_prefetched), the slot does nothing else; as many batches can be fetched ahead
    /// as a plan has slots. The plan must have been made with
    /// [`PlanOptions::with_prefetch`](crate::PlanOptions::with_prefetch).
    ///
    /// The batch is looked up in the tables as they are at this call: with the updates that were made before, and in
    /// the generation that was adopted before, whatever happens until [`lookup_prefetched`](Self::lookup_prefetched).
    /// The tables are pinned until then.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// # let host = HostExecutor::attach(&store, HostOptions::default())?;
    /// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default().with_prefetch())?;
    /// let mut slot = plan.slot()?;
    /// slot.prefetch(&Batch::new(&[2i64, 1], 2))?;
    /// // Something else is done while drives read.
    /// let mut rows = [0.0f32; 8];
    /// slot.lookup_prefetched(&mut Output::new(OutputRows::F32(&mut rows), 4))?;
    /// assert_eq!(rows, [8.0, 9.0, 10.0, 11.0, 4.0, 5.0, 6.0, 7.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup) for a batch that does not fit the plan, and for missing ids that are
    /// errors; [`LookupError::PrefetchNotPlanned`]; [`LookupError::SlotHoldsBatch`] if the slot holds a batch already.
    /// If a drive fails, [`lookup_prefetched`](Self::lookup_prefetched) returns the error.
    pub fn prefetch(&mut self, batch: &Batch<'_>) -> Result<(), LookupError> {
        let state = self.holding.idle()?;
        let plan = self.plan.current();
        if !plan.options.prefetch {
            return Err(LookupError::PrefetchNotPlanned);
        }
        check_batch(&plan, batch, &mut state.bags)?;
        let mut snapshots = std::mem::take(&mut state.snapshots);
        snapshots.extend(plan.overlays.iter().map(|overlay| overlay.snapshot()));
        let found = state.find(&plan, &snapshots, batch, &mut Watch::new(&plan));
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let refused = Err(error);
                count(&plan, &refused);
                snapshots.clear();
                state.snapshots = snapshots;
                return refused.map(drop);
            }
        };
        let mut kept = std::mem::take(&mut state.kept);
        state.mask(&plan, batch, &mut kept.mask);
        if let Some(weights) = batch.weights {
            kept.weights.iter_mut().zip(weights).for_each(|(kept, &weight)| *kept = weight);
        }
        state.kept = kept;
        let (sorted, done) = Default::default();
        self.holding.fetch(Ahead { plan, snapshots, batch: batch.batch, found, sorted, done, refused: None });
        Ok(())
    }

    /// Looks up the batch that was prefetched: waits until its rows were fetched, and gives what
    /// [`lookup`](Self::lookup) would have given when [`prefetch`](Self::prefetch) was called. The report counts what
    /// both calls did.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup); [`LookupError::NothingPrefetched`] if the slot holds no batch. If the
    /// output does not fit the plan, the slot keeps the batch, and the call can be repeated with another output.
    pub fn lookup_prefetched(&mut self, out: &mut Output<'_>) -> Result<LookupReport, LookupError> {
        self.holding.settle();
        let (Some(state), Some(ahead)) = (&mut self.holding.state, &mut self.holding.ahead) else {
            return Err(LookupError::NothingPrefetched);
        };
        let ids = ahead.found.report.ids as usize;
        check_output(&ahead.plan, (ids, ahead.batch), out)?;
        let stride = out.row_stride;
        let slices = out.rows.slices().map_err(InvalidBatch::from)?;
        let Some(Ahead { plan, mut snapshots, batch, found, sorted, mut done, refused }) = self.holding.ahead.take()
        else {
            return Err(LookupError::NothingPrefetched);
        };
        let mut report = found.report;
        let result = match refused {
            Some(error) => Err(error),
            None => {
                let mut watch = Watch::new(&plan);
                let kept = std::mem::take(&mut state.kept);
                if let Some(mask) = &mut out.mask {
                    mask.iter_mut().zip(kept.mask.iter().take(ids)).for_each(|(mask, &kept)| *mask = kept);
                }
                let weights = if plan.weighted { kept.weights.get(..ids) } else { None };
                let (routed, buffers) = state.split(&plan, &snapshots, batch, &sorted);
                let routed = Routed { weights, ..routed };
                done.positions = with_rows!(slices, rows => expand(routed, buffers, rows, stride));
                state.kept = kept;
                report.stages[Stage::Expand as usize] = watch.lap();
                done.report(&plan, &sorted, report, out.mask.as_deref_mut())
            }
        };
        snapshots.clear();
        state.snapshots = snapshots;
        count(&plan, &result);
        result
    }

    /// Whether all reads of the prefetched batch have ended, so that [`lookup_prefetched`](Self::lookup_prefetched)
    /// would not wait. `false` also if the slot holds no batch.
    pub fn is_fetched(&mut self) -> bool {
        if self.holding.state.is_none()
            && let Some((state, ahead)) = self.holding.worker.as_mut().and_then(Worker::poll)
        {
            (self.holding.state, self.holding.ahead) = (Some(state), Some(ahead));
        }
        self.holding.ahead.is_some()
    }

    /// Gives up the batch that was prefetched. Returns whether there was one. Waits for the batch's reads that are
    /// under way. These reads do not count in [`LookupMetrics`](crate::LookupMetrics).
    pub fn forget_prefetched(&mut self) -> bool {
        self.holding.settle();
        let Some(Ahead { mut snapshots, .. }) = self.holding.ahead.take() else { return false };
        snapshots.clear();
        if let Some(state) = &mut self.holding.state {
            state.snapshots = snapshots;
        }
        true
    }
}
