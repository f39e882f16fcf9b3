//! The executor on a GPU, and its plans.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_gpu::GpuExecutor;
use warprow_lookup::PrepareOptions;
use warprow_modules::ModuleExecutor;

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
pub(crate) fn use_kernels(folder: std::path::PathBuf) {
    warprow_kernels::use_prebuilt(folder);
}

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
