//! The executor on a GPU, and its plans.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_gpu::{BatchLen, GpuBatch, GpuExecutor, GpuOptions, GpuOutput};
use warprow_lookup::{Feature, PlanOptions, PrepareOptions};

use crate::error::{invalid, of_gpu};
use crate::features::{FeatureArgs, PlanArgs, features};
use crate::gpu_lane::{Ahead, Lanes, Trouble};
use crate::held::Held;
use crate::host::{BatchArgs, OutputArgs};
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

/// Options of an executor on a GPU, by their names in `GpuOptions`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GpuArgs {
    device: u32,
    hbm_bytes: u64,
    dram_bytes: u64,
    check_rows: bool,
    check_keys: bool,
    overlay_bytes: u64,
    adopting: bool,
    timeout: Option<f64>,
}

/// An executor on a GPU.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct Gpu {
    executor: Held<GpuExecutor>,
}

impl Gpu {
    pub(crate) fn attach(py: Python<'_>, store: &warprow_store::Store, args: GpuArgs) -> PyResult<Self> {
        let options = GpuOptions::default().with_hbm_bytes(args.hbm_bytes).with_dram_bytes(args.dram_bytes);
        let mut options = args.timeout.map(Duration::from_secs_f64).into_iter().fold(options, GpuOptions::with_timeout);
        (options.check_rows, options.check_keys) = (args.check_rows, args.check_keys);
        (options.overlay_bytes, options.adopting) = (args.overlay_bytes, args.adopting);
        let executor = py.detach(|| {
            let gpu = warprow_gpu::Gpu::open(args.device)?;
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

    fn plan(&self, py: Python<'_>, given: Vec<FeatureArgs>, args: PlanArgs) -> PyResult<GpuPlan> {
        let (executor, features, options) = (self.executor.get()?, features(&given)?, args.options()?);
        let raises_failed = args.raises_failed();
        let planned =
            py.detach(|| Planned::new(executor, features, (options, args.prefetch), raises_failed)).map_err(of_gpu)?;
        Ok(GpuPlan { inner: Held::new("plan", Arc::new(planned)) })
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

/// What a plan looks up, and the lanes that do.
pub(crate) struct Planned {
    lanes: Lanes,
    width: usize,
    generation: u64,
}

impl Planned {
    fn new(
        executor: GpuExecutor,
        features: Vec<Feature>,
        (options, ahead): (PlanOptions, u32),
        raises_failed: bool,
    ) -> Result<Self, warprow_gpu::GpuError> {
        let lanes = Lanes::new(executor, features, (options, ahead), raises_failed)?;
        let (width, generation) = (lanes.width(), lanes.generation());
        Ok(Self { lanes, width, generation })
    }
}

/// A plan on a GPU. Each stream that looks up with it has a slot of its own, and all captures have one.
#[pyclass(frozen, weakref, module = "warprow._native")]
pub(crate) struct GpuPlan {
    inner: Held<Arc<Planned>>,
}

/// A batch whose rows are fetched ahead, and the slot that holds it.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct GpuPrefetched {
    plan: Arc<Planned>,
    held: Mutex<Option<Ahead>>,
}

/// Addresses on the GPU as a batch.
fn batch(args: &BatchArgs, features: usize) -> PyResult<GpuBatch> {
    let BatchArgs(ids, offsets, weights, bags) = args;
    let bags =
        u32::try_from(*bags).map_err(|_| invalid("input", format!("{bags} bags are too many: split the batch")))?;
    let batch = GpuBatch::new(ids.0 as u64, BatchLen::Host(ids.1), bags).with_id_type(ids.id_type()?);
    let batch = match offsets {
        Some(offsets) => {
            let batch = batch.with_offsets(offsets.0 as u64, offsets.id_type()?);
            let bags = features * args.3;
            match offsets.1.checked_sub(bags) {
                Some(0) => batch.without_end(),
                Some(1) => batch,
                _ => {
                    let text = format!("{} offsets, where {bags} bags have as many, or one more", offsets.1);
                    return Err(invalid("offsets", text));
                }
            }
        }
        None => batch,
    };
    Ok(weights.iter().fold(batch, |batch, &weights| batch.with_weights(weights as u64)))
}

fn output(args: OutputArgs, width: usize) -> GpuOutput {
    let output = GpuOutput::new(args.0 as u64, width);
    args.2.iter().fold(output, |output, &mask| output.with_mask(mask as u64))
}

#[pymethods]
impl GpuPlan {
    /// Gives slots and queue pairs back, once what was launched has ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let plan = self.inner.take()?;
        py.detach(|| drop(plan));
        Ok(())
    }

    /// Elements of an output row.
    fn width(&self) -> PyResult<usize> {
        Ok(self.inner.get()?.width)
    }

    /// The latest generation that the plan's tables belonged to when it was made.
    fn generation(&self) -> PyResult<u64> {
        Ok(self.inner.get()?.generation)
    }

    /// Launches a look-up on a stream, or captures it. Raises first what befell earlier look-ups of this plan.
    fn lookup(&self, py: Python<'_>, stream: usize, captured: bool, args: BatchArgs, out: OutputArgs) -> PyResult<()> {
        let plan = self.inner.get()?;
        let (batch, output) = (batch(&args, plan.lanes.features())?, output(out, plan.width));
        // SAFETY: the Python half has checked the tensors; the order of the stream keeps them while the look-up runs.
        py.detach(|| unsafe { plan.lanes.lookup(stream, captured, &batch, &output) }).map_err(Trouble::raise)
    }

    /// Begins to fetch the rows of a batch, behind what the stream was given so far, or captures that.
    fn prefetch(&self, py: Python<'_>, stream: usize, captured: bool, args: BatchArgs) -> PyResult<GpuPrefetched> {
        let plan = self.inner.get()?;
        let batch = batch(&args, plan.lanes.features())?;
        // SAFETY: the Python half has checked the tensors, and holds them until the look-up.
        let held = py.detach(|| unsafe { plan.lanes.prefetch(stream, captured, &batch) }).map_err(Trouble::raise)?;
        Ok(GpuPrefetched { plan, held: Mutex::new(Some(held)) })
    }

    /// Looks up a batch that was prefetched, on a stream.
    fn lookup_prefetched(
        &self,
        py: Python<'_>,
        stream: usize,
        prefetched: &GpuPrefetched,
        out: OutputArgs,
    ) -> PyResult<()> {
        let plan = self.inner.get()?;
        if !Arc::ptr_eq(&plan, &prefetched.plan) {
            return Err(invalid("prefetched", "it was prefetched by another plan: look it up there"));
        }
        let output = output(out, plan.width);
        py.detach(|| {
            let held = prefetched.held.lock().unwrap_or_else(PoisonError::into_inner).take();
            let held = held.ok_or_else(|| invalid("prefetched", "it was looked up already: prefetch again"))?;
            // SAFETY: the Python half has checked the output; the order of the stream keeps it while the look-up runs.
            unsafe { plan.lanes.lookup_prefetched(stream, held, &output) }.map_err(Trouble::raise)
        })
    }

    /// Waits until all look-ups have ended that no graph has, and raises what befell them and the runs of graphs that have ended.
    fn check(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        let plan = self.inner.get()?;
        py.detach(|| plan.lanes.check(Duration::from_secs_f64(patience))).map_err(Trouble::raise)
    }

    /// Starts queues that take no commands anew; whether there were any.
    fn recover(&self, py: Python<'_>) -> PyResult<bool> {
        let plan = self.inner.get()?;
        py.detach(|| plan.lanes.recover()).map_err(of_gpu)
    }

    /// Whether a graph has look-ups of the plan.
    fn has_captures(&self, py: Python<'_>) -> PyResult<bool> {
        let plan = self.inner.get()?;
        Ok(py.detach(|| plan.lanes.has_captures()))
    }

    /// The report of the latest look-up that is known to have ended well.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let plan = self.inner.get()?;
        py.detach(|| plan.lanes.latest()).map(|latest| report::of_gpu_lookup(py, &latest)).transpose()
    }
}

impl Drop for GpuPrefetched {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(held) = held {
            let plan = self.plan.clone();
            Python::attach(|py| py.detach(|| plan.lanes.forget(held)));
        }
    }
}
