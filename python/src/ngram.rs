//! Row ids of tokens, for n-gram tables.

use pyo3::prelude::*;
use warprow_keys::{NgramModel, TextHash};

use crate::arrays::{slice, slice_mut};
use crate::error::invalid;

/// The hash of a model's n-grams, for tokens of its tokenizer.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct NgramHash(TextHash);

impl NgramHash {
    /// The hash of sequences that the caller tells apart.
    pub(crate) fn of_sequences(&self) -> PyResult<&warprow_keys::NgramHash> {
        match (self.0.end(), self.0.hash().rules().stop) {
            (Some(end), None) => Err(invalid(
                "hash",
                format!(
                    "it ends texts at token {end}, which is not in the model's rules: make it without end=, and give starts"
                ),
            )),
            _ => Ok(self.0.hash()),
        }
    }
}

#[pymethods]
impl NgramHash {
    /// `words`: address and number of u32.
    #[new]
    fn new(model: &str, words: Option<(usize, usize)>, end: Option<u32>) -> PyResult<Self> {
        let model = NgramModel::named(model).map_err(|error| invalid("model", error.to_string()))?;
        let argument = if words.is_some() { "words" } else { "end" };
        // SAFETY: the Python half made the array for this call.
        let words = words.map(|(address, len)| unsafe { slice::<u32>(address, len) }.into());
        model.text(words, end).map(Self).map_err(|error| invalid(argument, error.to_string()))
    }

    #[getter]
    fn heads(&self) -> usize {
        self.0.heads()
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.0.hash().rows()
    }

    /// Fills `out` (address and number of i64) with the ids of `tokens` (address and number of i64), which follow those of `history`.
    fn ids(
        &self,
        py: Python<'_>,
        history: (usize, usize),
        tokens: (usize, usize),
        out: (usize, usize),
    ) -> PyResult<()> {
        // SAFETY: the Python half made the arrays for this call.
        let (history, tokens, out) = unsafe {
            (slice::<i64>(history.0, history.1), slice::<i64>(tokens.0, tokens.1), slice_mut::<i64>(out.0, out.1))
        };
        let filled = py.detach(|| {
            // Texts begin anew with each call.
            let (mut text, mut ids) = (self.0.clone(), Vec::new());
            text.push(history, &mut ids)?;
            ids.clear();
            text.push(tokens, &mut ids)?;
            out.iter_mut().zip(ids).for_each(|(place, id)| *place = id);
            Ok::<_, warprow_keys::NgramError>(())
        });
        filled.map_err(|error| invalid("tokens", error.to_string()))
    }
}
