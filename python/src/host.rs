//! The executor on the host, and its plans.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_lookup::executors::output_type;
use warprow_lookup::{Batch, HostExecutor, HostOptions, LookupError, LookupReport, Output, Plan, PrepareOptions, Slot};

use crate::arrays::{Integers, dtype, output_rows, slice, slice_mut};
use crate::error::{Kind, of_lookup, of_store, raise};
use crate::features::{FeatureArgs, PlanArgs, features};
use crate::held::Held;
use crate::pool::Pool;
use crate::report;
use crate::store::busy;

/// How long a call waits for a slot.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits between two looks for signals.
const GLANCE: Duration = Duration::from_millis(50);

/// Options of an executor on the host: `(dram_bytes, check_rows, check_keys, timeout)`.
#[derive(FromPyObject)]
pub(crate) struct HostArgs(u64, bool, bool, Option<f64>);

/// An executor on the host.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct Host {
    executor: Held<HostExecutor>,
}

impl Host {
    pub(crate) fn attach(py: Python<'_>, store: &warprow_store::Store, args: HostArgs) -> PyResult<Self> {
        let HostArgs(dram_bytes, check_rows, check_keys, timeout) = args;
        let mut options = HostOptions::default().with_dram_bytes(dram_bytes);
        (options.check_rows, options.check_keys) = (check_rows, check_keys);
        options.timeout = timeout.map(Duration::from_secs_f64);
        let executor = py.detach(|| HostExecutor::attach(store, options)).map_err(of_store)?;
        Ok(Self { executor: Held::new("executor", executor) })
    }
}

#[pymethods]
impl Host {
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let executor = self.executor.take()?;
        py.detach(|| drop(executor));
        Ok(())
    }

    fn plan(&self, py: Python<'_>, given: Vec<FeatureArgs>, args: PlanArgs) -> PyResult<HostPlan> {
        let (executor, features, options) = (self.executor.get()?, features(&given)?, args.options()?);
        let planned = py.detach(|| {
            let plan = executor.plan(&features, options)?;
            let mut slots = (0..plan.options().slots).map(|_| plan.slot()).collect::<Result<Vec<_>, _>>()?;
            let ahead = slots.split_off(slots.len().saturating_sub(args.prefetch as usize));
            Ok((plan, slots, ahead))
        });
        let (plan, slots, ahead) = planned.map_err(of_store)?;
        let dtype = output_type(plan.options().out);
        let inner = Arc::new(Planned {
            plan,
            slots: Pool::new(slots),
            ahead: Pool::new(ahead),
            latest: Mutex::default(),
            dtype,
            raises_failed: args.raises_failed(),
        });
        Ok(HostPlan { inner: Held::new("plan", inner) })
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let executor = self.executor.get()?;
        let totals = py.detach(|| executor.metrics());
        report::of_metrics(py, &totals)
    }

    /// Rows of a table that lie in DRAM.
    fn dram_rows(&self, table: &str) -> PyResult<Option<u64>> {
        Ok(self.executor.get()?.hot_rows(table))
    }

    /// Prepares, switches the store if there is a generation to switch to, and adopts: what is refused is refused before the switch.
    fn adopt(&self, py: Python<'_>, generation: Option<u64>, patience: f64) -> PyResult<bool> {
        let executor = self.executor.get()?;
        let options = generation.into_iter().fold(PrepareOptions::default(), PrepareOptions::with_generation);
        let adopted = py.detach(|| {
            let upcoming = executor.prepare(&options)?;
            generation.map_or(Ok(()), |id| executor.store().switch(id, false))?;
            executor.adopt(upcoming, Duration::from_secs_f64(patience))
        });
        adopted.map_err(of_store)
    }
}

struct Planned {
    plan: Plan,
    slots: Pool<Slot>,
    /// For batches that are fetched ahead.
    ahead: Pool<Slot>,
    latest: Mutex<Option<LookupReport>>,
    dtype: warprow_layout::DType,
    /// Whether rows that could not be read are an error.
    raises_failed: bool,
}

/// A plan on the host, with its slots.
#[pyclass(frozen, weakref, module = "warprow._native")]
pub(crate) struct HostPlan {
    inner: Held<Arc<Planned>>,
}

/// Ids, offsets and weights by address, and the number of bags of each feature.
#[derive(Clone, FromPyObject)]
pub(crate) struct BatchArgs(
    pub(crate) Integers,
    pub(crate) Option<Integers>,
    pub(crate) Option<usize>,
    pub(crate) usize,
);

impl BatchArgs {
    /// The batch, in this process.
    ///
    /// # Safety
    /// All addresses are right, and nobody writes there while the result lives.
    unsafe fn batch<'a>(&self) -> PyResult<Batch<'a>> {
        let Self(ids, offsets, weights, bags) = self;
        // SAFETY: the caller's promise. There is a weight for each id.
        unsafe {
            let batch = Batch::new(ids.ids()?, *bags);
            let batch = match offsets {
                Some(offsets) => batch.with_offsets(offsets.ids()?),
                None => batch,
            };
            Ok(weights.iter().fold(batch, |batch, &weights| batch.with_weights(slice(weights, ids.1))))
        }
    }
}

/// Address and number of the output's elements, and the address of the mask (a byte for each id).
#[derive(Clone, Copy, FromPyObject)]
pub(crate) struct OutputArgs(pub(crate) usize, usize, pub(crate) Option<usize>);

/// Rows that were fetched ahead, and the slot that holds them.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct HostPrefetched {
    plan: Arc<Planned>,
    slot: Mutex<Option<Slot>>,
    ids: usize,
}

impl Planned {
    fn with_slot<T>(&self, work: impl FnOnce(&mut Slot) -> T) -> PyResult<T> {
        let end = Instant::now() + PATIENCE;
        let mut slot = loop {
            if let Some(slot) = self.slots.take(GLANCE) {
                break slot;
            }
            Python::attach(|py| py.check_signals())?;
            if Instant::now() > end {
                return Err(busy("no slot of the plan came free in 60 s"));
            }
        };
        let done = work(&mut slot);
        self.slots.give(slot);
        Ok(done)
    }

    /// Calls `work` with the output.
    ///
    /// # Safety
    /// The addresses are right, and nobody else uses that memory while this runs.
    unsafe fn filled(
        &self,
        out: OutputArgs,
        ids: usize,
        work: impl FnOnce(&mut Output<'_>) -> PyResult<Result<LookupReport, LookupError>>,
    ) -> PyResult<LookupReport> {
        // SAFETY: the caller's promise.
        let (rows, mask) =
            unsafe { (output_rows(out.0, out.1, self.dtype)?, out.2.map(|address| slice_mut::<u8>(address, ids))) };
        let mut output = Output::new(rows, self.plan.width());
        output.mask = mask;
        let report = match work(&mut output)? {
            Err(LookupError::RowsFailed { report, .. }) if !self.raises_failed => *report,
            done => done.map_err(of_lookup)?,
        };
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        Ok(report)
    }
}

#[pymethods]
impl HostPlan {
    /// Gives slots and queue pairs back.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let plan = self.inner.take()?;
        py.detach(|| drop(plan));
        Ok(())
    }

    /// Elements of an output row.
    fn width(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.plan.width())
    }

    /// For each feature its first column, and the one behind its last.
    fn columns(&self) -> PyResult<Vec<(usize, usize)>> {
        let plan = self.inner.get()?;
        Ok((0..).map_while(|feature| plan.plan.columns(feature)).map(|range| (range.start, range.end)).collect())
    }

    fn generation(&self) -> PyResult<u64> {
        Ok(self.inner.get()?.plan.generation())
    }

    /// Looks a batch up.
    fn lookup(&self, py: Python<'_>, batch: BatchArgs, out: OutputArgs) -> PyResult<()> {
        let plan = self.inner.get()?;
        let ids = batch.0.1;
        // SAFETY: the Python half has checked the arrays, and holds them until this returns.
        py.detach(|| unsafe {
            let batch = batch.batch()?;
            plan.filled(out, ids, |output| plan.with_slot(|slot| slot.lookup(&batch, output))).map(drop)
        })
    }

    /// Begins to fetch the rows of a batch. The batch is the caller's again when this returns.
    fn prefetch(&self, py: Python<'_>, batch: BatchArgs) -> PyResult<HostPrefetched> {
        let plan = self.inner.get()?;
        let ids = batch.0.1;
        py.detach(|| {
            // SAFETY: the Python half has checked the arrays, and holds them until this returns.
            let batch = unsafe { batch.batch()? };
            let mut slot = plan.ahead.take(Duration::ZERO).ok_or_else(|| {
                raise(Kind::Busy, "as many batches are prefetched as was planned: look one up first".to_owned())
            })?;
            if let Err(error) = slot.prefetch(&batch) {
                plan.ahead.give(slot);
                return Err(of_lookup(error));
            }
            Ok(HostPrefetched { plan: plan.clone(), slot: Mutex::new(Some(slot)), ids })
        })
    }

    /// Looks up a batch that was prefetched.
    fn lookup_prefetched(&self, py: Python<'_>, prefetched: &HostPrefetched, out: OutputArgs) -> PyResult<()> {
        let plan = self.inner.get()?;
        if !Arc::ptr_eq(&plan, &prefetched.plan) {
            return Err(crate::error::invalid("prefetched", "it was prefetched by another plan: look it up there"));
        }
        py.detach(|| {
            let slot = prefetched.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            let mut slot =
                slot.ok_or_else(|| crate::error::invalid("prefetched", "it was looked up already: prefetch again"))?;
            // SAFETY: the Python half has checked the output, and holds it until this returns.
            let done = unsafe { plan.filled(out, prefetched.ids, |output| Ok(slot.lookup_prefetched(output))) };
            plan.ahead.give(slot);
            done.map(drop)
        })
    }

    /// The report of the latest look-up that raised nothing.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let plan = self.inner.get()?;
        let latest = *plan.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.map(|latest| report::of_lookup(py, &latest)).transpose()
    }

    /// The name of the type of output elements.
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(dtype(self.inner.get()?.dtype.name())?.name())
    }
}

impl Drop for HostPrefetched {
    fn drop(&mut self) {
        let slot = self.slot.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut slot) = slot {
            let plan = self.plan.clone();
            Python::attach(|py| {
                py.detach(|| {
                    let _ = slot.forget_prefetched();
                    plan.ahead.give(slot);
                });
            });
        }
    }
}
