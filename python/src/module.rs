//! Look-ups of modules for torch.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_modules::{
    ModuleAhead, ModuleBatch, ModuleError, ModuleExecutor, ModuleOutput, ModuleReport, ModuleSpec, operators, registry,
    set_interrupt,
};

use crate::arrays::Integers;
use crate::error::{invalid, of_module};
use crate::held::Held;
use crate::interrupt::{is_interrupted, note_raised};
use crate::report;

/// Makes the look-up of a text that no module has.
fn make(text: &str) -> Result<Arc<warprow_modules::ModuleLookup>, ModuleError> {
    let made = Python::attach(|py| {
        let made = py.import("warprow.torch._lookup")?.getattr("native_of_text")?.call1((text,))?;
        made.cast::<ModuleLookup>()?.get().inner.get()
    });
    made.map_err(|error| {
        let text = error.to_string();
        note_raised(error);
        ModuleError::Maker(text)
    })
}

/// Has waits end by Ctrl-C, and operators find the look-ups of this process.
pub(crate) fn prepare() {
    set_interrupt(is_interrupted);
    registry::set_maker(make);
}

/// The address of the table by which operators look up.
#[pyfunction]
pub(crate) fn operator_table() -> usize {
    std::ptr::from_ref(&operators::OPERATORS) as usize
}

/// Raises what this thread's latest call of an operator failed with, if that has this text.
#[pyfunction]
pub(crate) fn raise_operator_error(text: &str) -> PyResult<()> {
    match operators::take_error() {
        Some(error) if text.contains(&error.whole()) => Err(of_module(error)),
        _ => Ok(()),
    }
}

/// Ids, offsets and weights by address, and the number of bags of each feature.
#[derive(Clone, FromPyObject)]
pub(crate) struct BatchArgs(pub(crate) Integers, Option<Integers>, Option<usize>, usize);

impl BatchArgs {
    pub(crate) fn batch(&self) -> PyResult<ModuleBatch> {
        let Self(ids, offsets, weights, bags) = self;
        let offsets = offsets.as_ref().map(Integers::given).transpose()?;
        Ok(ModuleBatch { ids: ids.given()?, offsets, weights: *weights, bags: *bags })
    }
}

/// Address and number of the output's elements, and the address of the mask (a byte for each id).
#[derive(Clone, Copy, FromPyObject)]
pub(crate) struct OutputArgs(usize, usize, Option<usize>);

impl OutputArgs {
    pub(crate) fn output(self) -> ModuleOutput {
        ModuleOutput { rows: self.0, elements: self.1, mask: self.2 }
    }
}

/// Look-ups of a module: a plan that grows with its batches. On a GPU each stream that looks up has a slot of its own, and all captures
/// have one.
#[pyclass(frozen, weakref, module = "warprow._native")]
pub(crate) struct ModuleLookup {
    inner: Held<Arc<warprow_modules::ModuleLookup>>,
    number: i64,
}

/// A batch whose rows are fetched ahead.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct ModulePrefetched {
    /// For this process alone.
    held: Held<Arc<Mutex<Option<ModuleAhead>>>>,
}

impl ModuleLookup {
    /// Look-ups of what a text says, by an executor.
    pub(crate) fn new(text: &str, executor: ModuleExecutor) -> PyResult<Self> {
        // SAFETY: the Python half writes the address of a tensor that it holds, and takes no such text from another process.
        let made =
            ModuleSpec::parse(text).and_then(|spec| unsafe { warprow_modules::ModuleLookup::new(spec, executor) });
        let made = Arc::new(made.map_err(of_module)?);
        let number = registry::register(text, &made);
        Ok(Self { inner: Held::new("plan", made), number })
    }
}

#[pymethods]
impl ModuleLookup {
    /// Gives slots and queue pairs back, once what was launched has ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get()?;
        py.detach(|| inner.close());
        Ok(())
    }

    /// What operators call it.
    #[getter]
    fn number(&self) -> i64 {
        self.number
    }

    /// Looks a batch up. On a GPU it launches that on a stream, or captures it, and raises first what befell earlier look-ups.
    fn lookup(&self, py: Python<'_>, stream: usize, batch: BatchArgs, out: OutputArgs) -> PyResult<()> {
        let (inner, batch) = (self.inner.get()?, batch.batch()?);
        // SAFETY: the Python half has checked the tensors; it holds them until this returns, and on a GPU the order of the stream keeps
        // them while the look-up runs.
        py.detach(|| unsafe { inner.lookup(stream, &batch, out.output()) }).map_err(of_module)
    }

    /// Begins to fetch the rows of a batch. On a GPU: behind what the stream was given so far, and behind the rows of another
    /// batch that is fetched ahead, or captures that.
    #[pyo3(signature = (stream, batch, behind=None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        stream: usize,
        batch: BatchArgs,
        behind: Option<&ModulePrefetched>,
    ) -> PyResult<ModulePrefetched> {
        let (inner, batch) = (self.inner.get()?, batch.batch()?);
        let behind = behind.map(|other| other.held.get()).transpose()?;
        let prefetch = || {
            // What was looked up already is there.
            let other = behind.as_ref().map(|held| held.lock().unwrap_or_else(PoisonError::into_inner));
            // SAFETY: the Python half has checked the tensors, and holds them until the look-up.
            unsafe { inner.prefetch(stream, &batch, other.as_ref().and_then(|other| other.as_ref())) }
        };
        let held = py.detach(prefetch).map_err(of_module)?;
        Ok(ModulePrefetched { held: Held::new("plan", Arc::new(Mutex::new(Some(held)))) })
    }

    /// Waits until all look-ups have ended that no graph has, and raises what befell them and the runs of graphs that have ended.
    fn check(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        let inner = self.inner.get()?;
        py.detach(|| inner.check(Duration::from_secs_f64(patience))).map_err(of_module)
    }

    /// Starts queues that take no commands anew; whether there were any.
    fn recover(&self, py: Python<'_>) -> PyResult<bool> {
        let inner = self.inner.get()?;
        py.detach(|| inner.recover()).map_err(of_module)
    }

    /// Whether a graph has look-ups of the module.
    fn has_captures(&self, py: Python<'_>) -> PyResult<bool> {
        let inner = self.inner.get()?;
        Ok(py.detach(|| inner.has_captures()))
    }

    /// The report of the latest look-up that is known to have ended well.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let inner = self.inner.get()?;
        let latest = py.detach(|| inner.report());
        let told = latest.map(|latest| match latest {
            ModuleReport::Host(latest) => report::of_lookup(py, &latest),
            ModuleReport::Gpu(latest) => report::of_gpu_lookup(py, &latest),
        });
        told.transpose()
    }
}

#[pymethods]
impl ModulePrefetched {
    /// Looks up what was prefetched.
    fn lookup(&self, py: Python<'_>, stream: usize, out: OutputArgs) -> PyResult<()> {
        let held = self.held.get()?;
        let taken = held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let taken = taken.ok_or_else(|| invalid("prefetched", "it was looked up already: prefetch again"))?;
        // SAFETY: the Python half has checked the output; it holds it until this returns, and on a GPU the order of the stream keeps it
        // while the look-up runs.
        py.detach(|| unsafe { taken.lookup(stream, out.output()) }).map_err(of_module)
    }
}

impl Drop for ModulePrefetched {
    fn drop(&mut self) {
        let Ok(Some(held)) = self.held.take() else { return };
        if let Some(held) = held.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = Python::try_attach(|py| py.detach(move || held.forget()));
        }
    }
}
