//! One table, sums of bags and rows as they are.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use serde_json::json;
use warprow_gpu::{GpuExecutor, GpuOptions};
use warprow_gpu_queues::DeviceMemory;
use warprow_lookup::{Feature, PlanOptions, Pooling};
use warprow_workload::{median, mix_all};

use super::{AIM, HbmSetup};
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::gpu::python::{ask, taking_part};
use crate::gpu::{Drawn, Request, Shape, Stream, TimedLookup, us};

const SCRIPT: &str = include_str!("torch.py");
/// How long PyTorch may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of a copy within GPU memory.
const COPIED: u64 = 1 << 30;
/// Rows, or sums, of each answer that the processor computes too.
const SPOTS: u32 = 2;

/// Median microseconds of look-ups.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HbmTimes {
    /// As a graph, by the GPU, its launch hidden.
    pub graph: f64,
    /// Called, by the GPU, its launches hidden.
    pub called: f64,
    /// As a graph, from its launch until its end is seen.
    pub graph_seen: f64,
    /// From the call until its end is seen.
    pub called_seen: f64,
}

/// PyTorch's, in the same ways; it waits for the device rather than for a ticket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TorchTimes {
    alpha: f64,
    pooled: bool,
    /// Bags or rows compared.
    checked: u64,
    /// Why there is no graph.
    pub graph_failed: Option<String>,
    /// As a graph, by the GPU.
    pub graph_us: Option<f64>,
    /// As a graph, seen.
    pub graph_seen_us: Option<f64>,
    /// Called, by the GPU, its launches hidden.
    pub called_us: f64,
    /// Called, seen.
    pub called_seen_us: f64,
}

#[derive(Deserialize)]
struct Torch {
    version: String,
    lines: Vec<TorchTimes>,
}

/// One kind of look-up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HbmResult {
    /// Whether bags are summed, against `embedding_bag`; else rows are looked up as they are, against `F.embedding`.
    pub pooled: bool,
    /// Exponent of the power law.
    pub alpha: f64,
    /// Ids.
    pub ids: u64,
    /// Kernels of a look-up.
    pub kernels: usize,
    /// Median microseconds.
    pub us: HbmTimes,
    /// Ids a second, as a graph.
    pub ids_per_second: f64,
    /// Bytes a second that it reads and writes, rows once for each id, as a graph.
    pub bytes_per_second: f64,
    /// The bandwidth divided by what a copy within GPU memory reads and writes. Rows that come again are in caches, so
    /// it may pass 1.
    pub share_of_copy: f64,
    /// PyTorch.
    pub torch: Option<TorchTimes>,
    /// PyTorch's shorter time by the GPU, by that of the graph.
    pub ratio: Option<f64>,
    /// The ratio of calls as their callers see them.
    pub ratio_seen: Option<f64>,
    /// Whether the first is what it shall be.
    pub met: Option<bool>,
    /// Bags or rows compared, PyTorch's included.
    pub checked: u64,
    /// Elements that the processor computed too.
    pub checked_by_cpu: u64,
}

/// Bytes a second that a copy within GPU memory reads and writes: twice as many as it copies.
pub fn copy_bytes_per_second(stream: &Stream, runs: u32) -> anyhow::Result<f64> {
    let from = DeviceMemory::new(stream.gpu(), COPIED)?;
    let to = DeviceMemory::new(stream.gpu(), COPIED)?;
    // Nothing that could be taken for zeros.
    let pattern: Vec<u8> = (0..4096u32).flat_map(|word| mix_all([word.into()]).to_le_bytes()).collect();
    let at = COPIED / 2;
    from.write(at, &pattern)?;
    let mut times = Vec::new();
    for run in 0..=runs.max(3) {
        // SAFETY: both are as long, and are there until the copy has been waited for.
        let copy = || unsafe { stream.copy_within(to.address(), from.address(), COPIED as usize) };
        let took = stream.hidden(copy)?.0;
        times.extend((run > 0).then_some(took.as_secs_f64()));
    }
    let mut copied = vec![0; pattern.len()];
    to.read(at, &mut copied)?;
    ensure!(copied == pattern, "a copy within GPU memory has brought something else");
    Ok(2.0 * COPIED as f64 / median(times))
}

/// Looks up in a table of `setup`, all of which is in GPU memory. `note` is told what is left out.
pub fn measure(
    stream: &Stream,
    setup: &HbmSetup,
    copy: f64,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<HbmResult>> {
    setup.check()?;
    let kinds: Vec<(bool, f64)> =
        [true, false].into_iter().flat_map(|pooled| setup.alphas.iter().map(move |&alpha| (pooled, alpha))).collect();
    // Before there is a table of ours: GPU memory need not hold both.
    let torch = ask_torch(setup, &kinds, note)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fixture = Fixture { drives: (cores / 2).clamp(1, 8) as u32, media: Media::Computed, ..Fixture::default() };
    let store = fixture.store(&[FixtureTable::new("table", setup.content())], None)?;
    let executor =
        GpuExecutor::attach(&store, stream.gpu().clone(), GpuOptions::default().with_hbm_bytes(u64::MAX / 2))?;
    ensure!(executor.tiers("table") == Some((setup.rows, 0)), "GPU memory does not hold the table");
    let one = |(pooled, alpha): (bool, f64)| {
        let theirs = torch.iter().find(|line| line.pooled == pooled && line.alpha == alpha);
        kind(stream, setup, &executor, (pooled, alpha), copy, theirs)
    };
    kinds.into_iter().map(one).collect()
}

fn kind(
    stream: &Stream,
    setup: &HbmSetup,
    executor: &GpuExecutor,
    (pooled, alpha): (bool, f64),
    copy: f64,
    torch: Option<&TorchTimes>,
) -> anyhow::Result<HbmResult> {
    let bags = setup.bags;
    let hot = setup.hot;
    let ids = setup.bags * setup.hot;
    let (pooling, out_rows) = if pooled { (Pooling::Sum, bags) } else { (Pooling::None, ids) };
    let options = PlanOptions::default().with_max(usize::try_from(bags)?, usize::try_from(ids)?);
    let plan = executor.plan(&[Feature::new("f", "table").pooling(pooling)], options)?;
    let drawn = Drawn::new(setup.content(), alpha)?;
    let seed = mix_all([setup.seed, alpha.to_bits(), pooled.into()]);
    let mut request = Request::new(stream, &[drawn], ids, out_rows, seed)?;
    request.reshape(if pooled { Shape { bags, hot, pooled } } else { Shape::rows(ids) })?;
    let timed = TimedLookup::new(&plan, stream, &request)?;
    let mut samples: [Vec<f64>; 4] = Default::default();
    // The first is for warming up.
    for run in 0..=setup.runs {
        let mut once = |measure: &dyn Fn(&Request) -> anyhow::Result<Duration>| -> anyhow::Result<f64> {
            request.draw(stream)?;
            let took = measure(&request)?;
            request.check(stream, SPOTS)?;
            Ok(us(took))
        };
        let all = [
            once(&|_| Ok(timed.replayed(stream)?.0))?,
            once(&|request| Ok(timed.called(stream, request)?.0))?,
            once(&|_| Ok(timed.replayed_seen(stream)?.0))?,
            once(&|request| Ok(timed.called_seen(stream, request)?.0))?,
        ];
        if run > 0 {
            samples.iter_mut().zip(all).for_each(|(samples, sample)| samples.push(sample));
        }
    }
    let [graph, called, graph_seen, called_seen] = samples.map(median);
    let us = HbmTimes { graph, called, graph_seen, called_seen };
    let row_bytes = u64::from(setup.dim) * 4;
    let bytes = ids * (row_bytes + 8) + request.out_bytes();
    let bytes_per_second = bytes as f64 / graph * 1e6;
    let best = |torch: &TorchTimes| torch.graph_us.map_or(torch.called_us, |graph| graph.min(torch.called_us));
    let ratio = torch.map(|torch| best(torch) / graph);
    Ok(HbmResult {
        pooled,
        alpha,
        ids,
        kernels: timed.kernels(),
        us,
        ids_per_second: ids as f64 / graph * 1e6,
        bytes_per_second,
        share_of_copy: bytes_per_second / copy,
        ratio,
        ratio_seen: torch.map(|torch| torch.called_seen_us / called_seen),
        met: ratio.map(|ratio| ratio >= AIM),
        checked: request.checked + torch.map_or(0, |torch| torch.checked),
        checked_by_cpu: request.spots,
        torch: torch.cloned(),
    })
}

fn ask_torch(setup: &HbmSetup, kinds: &[(bool, f64)], note: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<TorchTimes>> {
    let lines: Vec<_> = kinds.iter().map(|(pooled, alpha)| json!({ "alpha": alpha, "pooled": pooled })).collect();
    let asked = json!({
        "rows": setup.rows,
        "dim": setup.dim,
        "bags": setup.bags,
        "hot": setup.hot,
        "runs": setup.runs,
        "seed": setup.seed & 0xffff_ffff,
        "lines": lines,
    });
    let torch = taking_part(setup.torch, || ask::<Torch>(SCRIPT, &asked, LIMIT), |torch| &torch.version, note)?;
    let lines = torch.map_or_else(Vec::new, |torch| torch.lines);
    for line in &lines {
        if let Some(failed) = &line.graph_failed {
            note(&format!("PyTorch's call could not be captured in a graph: {failed}"));
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::python::Asked;

    /// With PyTorch and a GPU its answer, else why there is none: in neither case a failure.
    #[test]
    fn pytorch_measures_or_it_is_said_why_not() {
        let setup =
            HbmSetup { rows: 1000, dim: 16, bags: 4, hot: 8, alphas: vec![0.0], runs: 1, seed: 1, torch: Asked::Auto };
        let mut notes = Vec::new();
        let kinds = [(true, 0.0), (false, 0.0)];
        let lines = ask_torch(&setup, &kinds, &mut |text| notes.push(text.to_owned())).unwrap();
        assert!(notes.iter().any(|note| note.starts_with("PyTorch ")), "{notes:?}");
        assert!(lines.is_empty() || lines.len() == 2, "{lines:?}");
        assert!(!notes.iter().any(|note| note.contains("failed")), "{notes:?}");
    }
}
