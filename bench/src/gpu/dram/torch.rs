//! PyTorch as a rival, in a process of its own.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::gpu::python::ask;

const SCRIPT: &str = include_str!("torch.py");
/// How long the process may take.
const LIMIT: Duration = Duration::from_secs(600);

/// What it measured.
#[derive(Clone, Debug, Deserialize)]
pub struct Torch {
    /// PyTorch's version.
    pub version: String,
    /// A line for each number of ids and exponent.
    pub lines: Vec<TorchLine>,
}

/// One number of ids.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct TorchLine {
    /// Ids.
    pub ids: u64,
    /// Exponent of the power law.
    pub alpha: f64,
    /// Rows compared.
    pub checked: u64,
    /// Median microseconds of `F.embedding` and a copy of its output.
    pub embedding_us: f64,
    /// Median microseconds of `index_select` into a pinned tensor and a copy of that.
    pub index_us: f64,
}

/// Measures the (exponent, ids) of `lines` on a table of that shape. `Err` of a text: there is no PyTorch, or no GPU for it.
pub(super) fn measure(
    rows: u64,
    dim: u32,
    runs: u32,
    seed: u64,
    lines: &[(f64, u64)],
) -> anyhow::Result<Result<Torch, String>> {
    let lines: Vec<_> = lines.iter().map(|(alpha, ids)| json!({ "alpha": alpha, "ids": ids })).collect();
    let asked = json!({ "rows": rows, "dim": dim, "runs": runs, "seed": seed & 0xffff_ffff, "lines": lines });
    ask(SCRIPT, &asked, LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With PyTorch and a GPU its answer, else why there is none: in neither case a failure.
    #[test]
    fn it_measures_or_says_why_not() {
        match measure(1000, 16, 1, 1, &[(0.0, 10), (1.05, 100)]) {
            Ok(Ok(torch)) => assert_eq!(torch.lines.len(), 2),
            Ok(Err(missing)) => assert!(!missing.is_empty()),
            Err(error) => panic!("{error:#}"),
        }
    }
}
