//! Row ids of the tokens of several sequences at once, on the host or on a GPU.

use std::sync::Arc;

use pyo3::prelude::*;
use warprow_gpu::{GpuNgramHash, GpuTokens, IdType};
use warprow_keys::TokenBatch;

use crate::arrays::{Integers, slice, slice_mut};
use crate::error::{invalid, of_gpu};
use crate::gpu::Gpu;
use crate::held::Held;
use crate::ngram::NgramHash;

/// The hash of a model's n-grams for some heads, where the ids are wanted: on a GPU, or on the host.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct NgramIds {
    hash: warprow_keys::NgramHash,
    on_gpu: Option<Held<Arc<GpuNgramHash>>>,
}

/// Tokens of several sequences: the tokens, where the sequences begin and the last one ends, and the tokens before each of them.
#[derive(Clone, FromPyObject)]
pub(crate) struct Tokens(Integers, Option<(usize, usize)>, Option<Integers>, bool);

#[pymethods]
impl NgramIds {
    /// `heads`: those whose ids are wanted, from one to before another.
    #[new]
    fn new(
        py: Python<'_>,
        hash: &NgramHash,
        gpu: Option<&Gpu>,
        heads: Option<(usize, usize)>,
        first_row: u64,
    ) -> PyResult<Self> {
        let mut chosen = hash.of_sequences()?.clone();
        if let Some((first, end)) = heads {
            chosen = chosen.with_heads(first..end).map_err(|error| invalid("heads", error.to_string()))?;
        }
        let hash = chosen.with_first_row(first_row).map_err(|error| invalid("first_row", error.to_string()))?;
        let on_gpu = gpu.map(|gpu| {
            let executor = gpu.executor()?;
            let made = py.detach(|| executor.ngram_hash(&hash)).map_err(of_gpu)?;
            PyResult::Ok(Held::new("hash", Arc::new(made)))
        });
        Ok(Self { on_gpu: on_gpu.transpose()?, hash })
    }

    /// Ids of a token.
    #[getter]
    fn heads(&self) -> usize {
        self.hash.columns().len()
    }

    /// Tokens before a sequence that its first n-grams have.
    #[getter]
    fn reach(&self) -> usize {
        self.hash.order() - 1
    }

    /// The rows of the whole table that the heads have.
    #[getter]
    fn rows(&self) -> (u64, u64) {
        let rows = self.hash.head_rows();
        (rows.start, rows.end)
    }

    /// Writes ids to `out`: on a GPU launches the kernel that does, or captures it.
    fn ids(&self, py: Python<'_>, stream: usize, tokens: Tokens, out: Integers) -> PyResult<()> {
        let Tokens(tokens, starts, history, newest_first) = tokens;
        let (tokens, out) = (tokens.given()?, out.given()?);
        let history = history.as_ref().map(Integers::given).transpose()?;
        let Some(on_gpu) = &self.on_gpu else {
            let place = |it: &warprow_modules::Integers| (it.at, it.len);
            let history = history.map_or((0, 0), |history| place(&history));
            let starts = starts.unwrap_or((0, 0));
            // SAFETY: the Python half has tensors of these types, and holds them for this call.
            let (batch, out) = unsafe {
                let (tokens, history) = (slice::<i64>(tokens.at, tokens.len), slice::<i64>(history.0, history.1));
                let starts = slice::<u32>(starts.0, starts.1);
                (TokenBatch { tokens, starts, history, newest_first }, slice_mut::<i64>(out.at, out.len))
            };
            let filled = py.detach(|| self.hash.ids(&batch, out));
            return filled.map_err(|error| invalid("tokens", error.to_string()));
        };
        let mut batch = GpuTokens::new(tokens.at as u64, tokens.of, tokens.len);
        if let Some((at, len)) = starts {
            batch = batch.with_starts(at as u64, len.saturating_sub(1) as u32);
        }
        if let Some(history) = history {
            batch = batch.with_history(history.at as u64, newest_first);
        }
        let (on_gpu, of): (_, IdType) = (on_gpu.get()?, out.of);
        // SAFETY: the Python half has checked the tensors, and the order of the stream keeps them while the kernel runs.
        py.detach(|| unsafe { on_gpu.launch(stream as _, &batch, out.at as u64, of) }).map_err(of_gpu)
    }
}
