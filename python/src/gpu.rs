//! The executor on a GPU, and its plans.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_gpu::GpuExecutor;
use warprow_lookup::PrepareOptions;
use warprow_modules::ModuleExecutor;

use crate::arrays::slice;
use crate::error::{of_gpu, of_module};
use crate::features::AttachArgs;
use crate::held::Held;
use crate::module::ModuleLookup;
use crate::report;

/// The number of GPUs; 0 also where there is no CUDA driver.
#[pyfunction]
pub(crate) fn gpu_count() -> u32 {
    warprow_gpu::Gpu::count()
}

/// Takes kernels from a folder where they lie compiled, if they are of this version.
#[pyfunction]
pub(crate) fn use_kernels(folder: PathBuf) {
    warprow_kernels::use_prebuilt(folder);
}

/// A table, whether its list is an older one, and what came of it.
type Restored<'py> = (String, bool, Bound<'py, PyDict>);

/// An executor on a GPU.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct Gpu {
    executor: Held<GpuExecutor>,
}

impl Gpu {
    pub(crate) fn attach(
        py: Python<'_>,
        store: &warprow_store::Store,
        device: u32,
        args: AttachArgs,
    ) -> PyResult<Self> {
        let options = args.options().on_gpu().map_err(of_module)?;
        let executor = py.detach(|| {
            let gpu = warprow_gpu::Gpu::open(device)?;
            GpuExecutor::attach(store, gpu, options)
        });
        Ok(Self { executor: Held::new("executor", executor.map_err(of_gpu)?) })
    }

    pub(crate) fn executor(&self) -> PyResult<GpuExecutor> {
        self.executor.get()
    }
}

#[pymethods]
impl Gpu {
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let executor = self.executor.take()?;
        py.detach(|| drop(executor));
        Ok(())
    }

    /// Look-ups of a module for torch.
    fn module(&self, text: &str) -> PyResult<ModuleLookup> {
        ModuleLookup::new(text, ModuleExecutor::Gpu(self.executor.get()?))
    }

    /// What the cache has done so far.
    fn cache_statistics<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let executor = self.executor.get()?;
        let found = py.detach(|| executor.cache_statistics()).map_err(of_gpu)?;
        found.map(|found| report::of_gpu_cache(py, &found)).transpose()
    }

    /// Empties the cache.
    fn clear_cache(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        let executor = self.executor.get()?;
        py.detach(|| executor.clear_cache(Duration::from_secs_f64(patience))).map_err(of_gpu)
    }

    /// Brings rows into the cache. `ids`: address and number of u64, keys by their bits, the hottest first.
    fn warm<'py>(&self, py: Python<'py>, table: &str, ids: (usize, usize)) -> PyResult<Bound<'py, PyDict>> {
        let executor = self.executor.get()?;
        // SAFETY: the Python half made the array for this call.
        let ids = unsafe { slice(ids.0, ids.1) };
        let warmed = py.detach(|| executor.warm(table, ids)).map_err(of_gpu)?;
        report::of_warmed(py, &warmed)
    }

    /// Brings rows into the cache, and has them stay. `ids` as for `warm`.
    fn pin<'py>(&self, py: Python<'py>, table: &str, ids: (usize, usize)) -> PyResult<Bound<'py, PyDict>> {
        let executor = self.executor.get()?;
        // SAFETY: the Python half made the array for this call.
        let ids = unsafe { slice(ids.0, ids.1) };
        let pinned = py.detach(|| executor.pin(table, ids)).map_err(of_gpu)?;
        report::of_pinned(py, &pinned)
    }

    /// Writes which rows the cache has: how many these are, and the tables of which nobody knows what rows are called.
    fn save_cache(&self, py: Python<'_>, path: PathBuf) -> PyResult<(u64, Vec<String>)> {
        let executor = self.executor.get()?;
        let saved = py.detach(|| executor.save_cache(&path)).map_err(of_gpu)?;
        Ok((saved.rows, saved.unnamed))
    }

    /// Brings these rows back: what came of each table, and the tables that the executor does not have.
    fn warm_from<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<(Vec<Restored<'py>>, Vec<String>)> {
        let executor = self.executor.get()?;
        let restored = py.detach(|| executor.warm_from(&path)).map_err(of_gpu)?;
        let tables = restored.tables.into_iter();
        let tables = tables.map(|it| Ok::<_, PyErr>((it.table, it.is_older, report::of_warmed(py, &it.warmed)?)));
        Ok((tables.collect::<PyResult<_>>()?, restored.unknown))
    }

    /// Lets rows go that stay in the cache: those of `ids`, or all.
    fn unpin(&self, py: Python<'_>, table: &str, ids: Option<(usize, usize)>) -> PyResult<u64> {
        let executor = self.executor.get()?;
        // SAFETY: the Python half made the array for this call.
        let ids = ids.map(|ids| unsafe { slice(ids.0, ids.1) });
        py.detach(|| executor.unpin(table, ids)).map_err(of_gpu)
    }

    /// The ids of a table that were looked up most, by their bits, and how often each was counted.
    fn popular(&self, py: Python<'_>, table: &str, most: usize) -> PyResult<Option<(Vec<u64>, Vec<u64>)>> {
        let executor = self.executor.get()?;
        let rows = py.detach(|| executor.popular(table, most));
        Ok(rows.map(|rows| rows.iter().map(|row| (row.id, row.count)).unzip()))
    }

    /// The epoch that look-ups note.
    fn touch_epoch(&self) -> PyResult<Option<u16>> {
        Ok(self.executor.get()?.touch_epoch())
    }

    fn set_touch_epoch(&self, py: Python<'_>, epoch: u16) -> PyResult<()> {
        let executor = self.executor.get()?;
        py.detach(|| executor.set_touch_epoch(epoch)).map_err(of_gpu)
    }

    /// Writes when keys were last touched to a file.
    fn save_touches(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let executor = self.executor.get()?;
        py.detach(|| executor.save_touches(&path)).map_err(of_gpu)
    }

    /// Rows of a table in GPU memory, and in DRAM.
    fn tiers(&self, table: &str) -> PyResult<Option<(u64, u64)>> {
        Ok(self.executor.get()?.tiers(table))
    }

    /// Prepares, switches the store if there is a generation to switch to, and adopts: what is refused is refused before the switch.
    fn adopt(&self, py: Python<'_>, generation: Option<u64>, patience: f64) -> PyResult<()> {
        let executor = self.executor.get()?;
        let options = generation.into_iter().fold(PrepareOptions::default(), PrepareOptions::with_generation);
        let adopted = py.detach(|| {
            let upcoming = executor.prepare(&options)?;
            generation.map_or(Ok(()), |id| executor.store().switch(id, false))?;
            executor.adopt(&upcoming, Duration::from_secs_f64(patience))
        });
        adopted.map_err(of_gpu)
    }
}
