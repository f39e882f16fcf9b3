//! One table against everybody.

use serde::{Deserialize, Serialize};
use warprow_gpu_queues::PinnedMemory;
use warprow_workload::{median, mix_all};

use super::presets::runs_of;
use super::rivals::{BatchCopy, BatchRefused, MOST_COPIES, gather_and_copy};
use super::setup::DramSetup;
use super::table::{DramTable, store};
use super::torch::{self, TorchLine};
use crate::gpu::python::taking_part;
use crate::gpu::{Drawn, Gather, Request, Shape, Stream, TimedLookup, us};

/// Bytes of output that are measured, at most.
const MOST_OUTPUT: u64 = 8 << 30;

/// Median microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Times {
    /// The look-up as a graph, by the GPU, its launch hidden.
    pub lookup_graph: f64,
    /// The plain gather as a graph, by the GPU, its launch hidden.
    pub uva_graph: f64,
    /// The look-up, called, by the GPU, its launches hidden.
    pub lookup_called: f64,
    /// The plain gather, launched, by the GPU, its launch hidden.
    pub uva_launched: f64,
    /// The graph, from its launch until the ticket is seen to have ended.
    pub lookup_graph_seen: f64,
    /// The gather's graph, from its launch until the stream is seen to have ended.
    pub uva_graph_seen: f64,
    /// The look-up, from the call until the ticket is seen to have ended.
    pub lookup_called_seen: f64,
    /// The gather, from its launch until the stream is seen to have ended.
    pub uva_launched_seen: f64,
    /// What the call keeps its caller, of the look-up.
    pub lookup_call: f64,
    /// Parts of the look-up that was called: ids to unique keys, rows into GPU memory, output.
    pub prepare: f64,
    /// See above.
    pub fetch: f64,
    /// See above.
    pub expand: f64,
    /// All cores gather into pinned memory, and that is copied; by the clock.
    pub cpu: f64,
    /// `cuMemcpyBatchAsync`, by the clock, descriptors included; none above 100,000 rows or where the driver has none.
    pub batch_copy: Option<f64>,
}

/// One number of ids.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DramResult {
    /// Bytes of the table.
    pub size: u64,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Exponent of the power law.
    pub alpha: f64,
    /// Ids of a look-up.
    pub ids: u64,
    /// Different rows among them, median; 0 where the executor does not look for them.
    pub unique: u64,
    /// Kernels of a look-up.
    pub kernels: usize,
    /// Median microseconds.
    pub us: Times,
    /// Bytes of output a second, of the look-up as a graph.
    pub bytes_per_second: f64,
    /// Rows a second, of the look-up as a graph.
    pub rows_per_second: f64,
    /// Microseconds by which the look-up passes max(1.1 × UVA, UVA + 3 us), both as graphs with hidden launches; negative: it does not.
    pub over_limit_graph_us: f64,
    /// Microseconds by which the look-up passes that limit, called and launched with hidden launches.
    pub over_limit_called_us: f64,
    /// Whether neither passes it.
    pub met: bool,
    /// Time of the plain gather by that of the look-up: as graphs, and called.
    pub ratio_uva_graph: f64,
    /// See above.
    pub ratio_uva_called: f64,
    /// Time of all cores and a copy by that of the look-up as it is seen by its caller.
    pub ratio_cpu: f64,
    /// Time of `cuMemcpyBatchAsync` by the same.
    pub ratio_batch_copy: Option<f64>,
    /// PyTorch's median microseconds: `F.embedding` and a copy.
    pub torch_embedding_us: Option<f64>,
    /// PyTorch's median microseconds: `index_select` into a pinned tensor and a copy.
    pub torch_index_us: Option<f64>,
    /// PyTorch's better time by that of the look-up as it is seen by its caller.
    pub ratio_torch: Option<f64>,
    /// Rows compared, all of every answer.
    pub checked: u64,
    /// Rows among them that the processor computed too.
    pub checked_by_cpu: u64,
}

/// By how much a look-up passes the limit that plain gathering sets, microseconds.
pub(super) fn over_limit(lookup: f64, uva: f64) -> f64 {
    lookup - (1.1 * uva).max(uva + 3.0)
}

/// Who takes part, in the order of [`Times`].
const SAMPLES: usize = 14;

/// Looks up in a table of `setup`, all of which is in DRAM, and lets the rivals do the same. `note` is told what is left out.
pub fn measure(stream: &Stream, setup: &DramSetup, note: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<DramResult>> {
    setup.check()?;
    let row_bytes = u64::from(setup.row_bytes);
    let (counts, left_out): (Vec<u64>, Vec<u64>) =
        setup.counts.iter().partition(|&&count| count > 0 && count * row_bytes <= MOST_OUTPUT);
    if !left_out.is_empty() {
        note(&format!("left out: {left_out:?} ids, whose output would be empty or larger than 8 GiB"));
    }
    let lines: Vec<(f64, u64)> =
        setup.alphas.iter().flat_map(|&alpha| counts.iter().map(move |&count| (alpha, count))).collect();
    let Some(most) = counts.iter().copied().max() else { return Ok(Vec::new()) };
    // Before there is a table of ours: memory need not hold both.
    let torch = ask_torch(setup, &lines, note)?;
    let store = store(setup)?;
    let mut batch_copy = BatchCopy::find(stream.gpu())?;
    if batch_copy.is_none() {
        note("the driver has no cuMemcpyBatchAsync: it does not take part");
    }
    let table = DramTable::new(&store, stream, setup, most)?;
    let staging = PinnedMemory::allocate(stream.gpu(), most * row_bytes)?;
    let mut results = Vec::new();
    for (alpha, count) in lines {
        let drawn = Drawn::new(setup.content(), alpha)?;
        let mut request = Request::new(stream, &[drawn], count, count, mix_all([setup.seed, count, alpha.to_bits()]))?;
        request.reshape(Shape::rows(count))?;
        let timed = TimedLookup::new(&table.plan, stream, &request)?;
        let gather = Gather {
            table: table.rows.on_gpu,
            stride: table.rows.stride as u64,
            ids: request.ids_at(),
            out: request.out_at(),
            count,
            row_bytes,
        };
        // SAFETY: the table has every row that is drawn, the request room for all; both outlive the launches.
        let plain = || unsafe { stream.kernels().gather(stream, &gather) };
        let (plain_graph, ()) = stream.capture(plain)?;
        let mut samples: [Vec<f64>; SAMPLES] = Default::default();
        let mut unique = Vec::new();
        // The first of each is for warming up.
        for run in 0..=runs_of(setup.runs, count) {
            let mut once = |measure: &mut dyn FnMut(&Request) -> anyhow::Result<f64>| -> anyhow::Result<f64> {
                request.draw(stream)?;
                let took = measure(&request)?;
                request.check(stream, 4)?;
                Ok(took)
            };
            let mut parts = [0.0; 4];
            let mut different = 0;
            let done = |(): &()| stream.is_done();
            let all: [Option<f64>; SAMPLES - 4] = [
                Some(once(&mut |_| Ok(us(timed.replayed(stream)?.0)))?),
                Some(once(&mut |_| Ok(us(stream.hidden(|| stream.launch(&plain_graph))?.0)))?),
                Some(once(&mut |request| {
                    let (took, report, call) = timed.called(stream, request)?;
                    parts = [call, report.prepare, report.fetch, report.expand].map(us);
                    different = report.rows_dram;
                    Ok(us(took))
                })?),
                Some(once(&mut |_| Ok(us(stream.hidden(plain)?.0)))?),
                Some(once(&mut |_| Ok(us(timed.replayed_seen(stream)?.0)))?),
                Some(once(&mut |_| Ok(us(stream.seen(|| stream.launch(&plain_graph), done)?.0)))?),
                Some(once(&mut |request| Ok(us(timed.called_seen(stream, request)?.0)))?),
                Some(once(&mut |_| Ok(us(stream.seen(plain, done)?.0)))?),
                Some(once(&mut |request| Ok(us(gather_and_copy(stream, &table.rows, request, &staging)?)))?),
                // A copy for each row takes long: a third of the repetitions are enough.
                match batch_copy.filter(|_| count <= MOST_COPIES && (run == 0 || run % 3 == 1)) {
                    None => None,
                    Some(copies) => {
                        let taken = once(&mut |request| Ok(us(copies.copy(stream, &table.rows, request)?)));
                        match taken {
                            Ok(time) => Some(time),
                            Err(error) if error.is::<BatchRefused>() => {
                                note(&format!("{error}: it does not take part"));
                                batch_copy = None;
                                None
                            }
                            Err(error) => return Err(error),
                        }
                    }
                },
            ];
            if run > 0 {
                let all = all.into_iter().chain(parts.map(Some));
                samples.iter_mut().zip(all).for_each(|(samples, sample)| samples.extend(sample));
                unique.push(different as f64);
            }
        }
        let torch = torch.iter().find(|line| line.ids == count && line.alpha == alpha);
        let samples = samples.map(|samples| Some(median(samples)).filter(|median| median.is_finite()));
        results.push(result(setup, alpha, &request, timed.kernels(), median(unique), samples, torch));
    }
    drop(table.executor);
    Ok(results)
}

fn ask_torch(setup: &DramSetup, lines: &[(f64, u64)], note: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<TorchLine>> {
    let measure = || torch::measure(setup.rows(), setup.row_bytes / 4, setup.runs.min(7), setup.seed, lines);
    Ok(taking_part(setup.torch, measure, |torch| &torch.version, note)?.map_or_else(Vec::new, |torch| torch.lines))
}

fn result(
    setup: &DramSetup,
    alpha: f64,
    request: &Request,
    kernels: usize,
    unique: f64,
    samples: [Option<f64>; SAMPLES],
    torch: Option<&TorchLine>,
) -> DramResult {
    let [graph, uva_graph, called, uva, graph_seen, uva_graph_seen, called_seen, uva_seen, cpu, batch_copy, parts @ ..] =
        samples;
    let [lookup_call, prepare, fetch, expand] = parts.map(|part| part.unwrap_or(f64::NAN));
    let some = |time: Option<f64>| time.unwrap_or(f64::NAN);
    let us = Times {
        lookup_graph: some(graph),
        uva_graph: some(uva_graph),
        lookup_called: some(called),
        uva_launched: some(uva),
        lookup_graph_seen: some(graph_seen),
        uva_graph_seen: some(uva_graph_seen),
        lookup_called_seen: some(called_seen),
        uva_launched_seen: some(uva_seen),
        lookup_call,
        prepare,
        fetch,
        expand,
        cpu: some(cpu),
        batch_copy,
    };
    let ids = request.count();
    let over_graph = over_limit(us.lookup_graph, us.uva_graph);
    let over_called = over_limit(us.lookup_called, us.uva_launched);
    DramResult {
        size: setup.size,
        row_bytes: setup.row_bytes,
        alpha,
        ids,
        unique: unique as u64,
        kernels,
        us,
        bytes_per_second: request.out_bytes() as f64 / us.lookup_graph * 1e6,
        rows_per_second: ids as f64 / us.lookup_graph * 1e6,
        over_limit_graph_us: over_graph,
        over_limit_called_us: over_called,
        met: over_graph <= 0.0 && over_called <= 0.0,
        ratio_uva_graph: us.uva_graph / us.lookup_graph,
        ratio_uva_called: us.uva_launched / us.lookup_called,
        ratio_cpu: us.cpu / us.lookup_graph_seen,
        ratio_batch_copy: us.batch_copy.map(|time| time / us.lookup_graph_seen),
        torch_embedding_us: torch.map(|line| line.embedding_us),
        torch_index_us: torch.map(|line| line.index_us),
        ratio_torch: torch.map(|line| line.embedding_us.min(line.index_us) / us.lookup_graph_seen),
        checked: request.checked + torch.map_or(0, |line| line.checked),
        checked_by_cpu: request.spots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_looser_of_a_tenth_and_three_microseconds() {
        assert_eq!(over_limit(13.0, 10.0), 0.0);
        assert!(over_limit(13.1, 10.0) > 0.0);
        assert!(over_limit(109.9, 100.0) < 0.0 && over_limit(110.1, 100.0) > 0.0);
    }
}
