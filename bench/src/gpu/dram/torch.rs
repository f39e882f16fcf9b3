//! PyTorch as a rival, in a process of its own.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

const SCRIPT: &str = include_str!("torch.py");
/// How long the process may take.
const LIMIT: Duration = Duration::from_secs(600);

/// What it measured.
#[derive(Clone, Debug, Deserialize)]
pub struct Torch {
    /// Why it could not.
    missing: Option<String>,
    /// PyTorch's version.
    #[serde(default)]
    pub version: String,
    /// A line for each number of ids and exponent.
    #[serde(default)]
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
    let lines: Vec<_> = lines.iter().map(|(alpha, ids)| serde_json::json!({ "alpha": alpha, "ids": ids })).collect();
    let asked =
        serde_json::json!({ "rows": rows, "dim": dim, "runs": runs, "seed": seed & 0xffff_ffff, "lines": lines });
    let mut command = Command::new("python3");
    command.arg("-").arg(asked.to_string());
    let mut child = match command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Err(format!("python3 cannot be run: {error}"))),
    };
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends early says why below.
        let _ = stdin.write_all(SCRIPT.as_bytes());
    }
    let began = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if began.elapsed() > LIMIT => {
                child.kill()?;
                child.wait()?;
                bail!("PyTorch has not ended within {LIMIT:?}");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let (mut said, mut complaint) = (String::new(), String::new());
    child.stdout.take().map(|mut out| out.read_to_string(&mut said)).transpose()?;
    child.stderr.take().map(|mut err| err.read_to_string(&mut complaint)).transpose()?;
    if !status.success() {
        bail!("PyTorch has failed: {}", complaint.trim().lines().last().unwrap_or("it does not say why"));
    }
    let torch: Torch = serde_json::from_str(&said).with_context(|| format!("PyTorch's answer: {said}"))?;
    Ok(match &torch.missing {
        Some(missing) => Err(missing.clone()),
        None => Ok(torch),
    })
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
