//! The executor on the host, and its plans.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_lookup::{HostExecutor, PrepareOptions, RerankerOptions};
use warprow_modules::{HostSlots, ModuleExecutor};

use crate::error::{no_cache, of_module, of_store};
use crate::features::{AttachArgs, FeatureArgs, PlanArgs, features};
use crate::held::Held;
use crate::module::{BatchArgs, ModuleLookup, OutputArgs};
use crate::report;

/// An executor on the host.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct Host {
    executor: Held<HostExecutor>,
}

impl Host {
    pub(crate) fn attach(py: Python<'_>, store: &warprow_store::Store, args: AttachArgs) -> PyResult<Self> {
        let options = args.options().on_host().map_err(of_module)?;
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
        let (executor, features, options) = (self.executor.get()?, features(given)?, args.options()?);
        let raises_failed = args.raises_failed();
        let planned = py.detach(|| HostSlots::new(&executor, &features, (options, 0), raises_failed));
        Ok(HostPlan { inner: Held::new("plan", Arc::new(planned.map_err(of_module)?)) })
    }

    /// Look-ups of a module for torch.
    fn module(&self, text: &str) -> PyResult<ModuleLookup> {
        ModuleLookup::new(text, ModuleExecutor::Host(self.executor.get()?))
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let executor = self.executor.get()?;
        let totals = py.detach(|| executor.metrics());
        report::of_metrics(py, &totals)
    }

    /// What the cache has done so far.
    fn cache_statistics<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let executor = self.executor.get()?;
        executor.cache_statistics().map(|found| report::of_host_cache(py, &found)).transpose()
    }

    /// Empties the cache. Nothing is waited for.
    fn clear_cache(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        let _ = patience;
        let executor = self.executor.get()?;
        if executor.cache_statistics().is_none() {
            return Err(no_cache());
        }
        py.detach(|| executor.clear_cache());
        Ok(())
    }

    /// The ids of a table that were looked up most, by their bits, and how often each was counted.
    fn popular(&self, py: Python<'_>, table: &str, most: usize) -> PyResult<Option<(Vec<u64>, Vec<u64>)>> {
        let executor = self.executor.get()?;
        let rows = py.detach(|| executor.popular(table, most));
        Ok(rows.map(|rows| rows.iter().map(|row| (row.id, row.count)).unzip()))
    }

    /// Makes a round of a DRAM tier that follows what was counted: how many rows of which tables came to DRAM.
    fn rerank_by_counts(&self, py: Python<'_>, bytes_per_second: u64, seconds: f64) -> PyResult<Vec<(String, u64)>> {
        let executor = self.executor.get()?;
        let interval = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let options = RerankerOptions::default().with_rate(bytes_per_second).with_interval(interval);
        Ok(py.detach(|| executor.rerank_by_counts(&options)).map_err(of_store)?.moved)
    }

    /// The epoch that look-ups note.
    fn touch_epoch(&self) -> PyResult<Option<u16>> {
        Ok(self.executor.get()?.touch_epoch())
    }

    fn set_touch_epoch(&self, epoch: u16) -> PyResult<()> {
        self.executor.get()?.set_touch_epoch(epoch).map_err(of_store)
    }

    /// Writes when keys were last touched to a file.
    fn save_touches(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let executor = self.executor.get()?;
        py.detach(|| executor.save_touches(&path)).map_err(of_store)
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

/// A plan on the host, with its slots.
#[pyclass(frozen, weakref, module = "warprow._native")]
pub(crate) struct HostPlan {
    inner: Held<Arc<HostSlots>>,
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
        Ok(self.inner.get()?.plan().width())
    }

    /// For each feature its first column, and the one behind its last.
    fn columns(&self) -> PyResult<Vec<(usize, usize)>> {
        let plan = self.inner.get()?;
        Ok((0..).map_while(|feature| plan.plan().columns(feature)).map(|range| (range.start, range.end)).collect())
    }

    /// Looks a batch up.
    fn lookup(&self, py: Python<'_>, batch: BatchArgs, out: OutputArgs) -> PyResult<()> {
        let (plan, batch) = (self.inner.get()?, batch.batch()?);
        // SAFETY: the Python half has checked the arrays, and holds them until this returns.
        py.detach(|| unsafe { plan.lookup(&batch.on_host(), out.output()) }).map_err(of_module)
    }

    /// The report of the latest look-up that raised nothing.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let plan = self.inner.get()?;
        plan.latest().map(|latest| report::of_lookup(py, &latest)).transpose()
    }

    /// The name of the type of output elements.
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(self.inner.get()?.dtype().name())
    }
}
