//! What a look-up costs the thread that calls it.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use warprow_gpu::GpuExecutor;
use warprow_gpu::GpuOptions;
use warprow_layout::DType;
use warprow_lookup::{Feature, PlanOptions};
use warprow_workload::{ContentOracle, Latencies};

use super::percentiles::Percentiles;
use crate::fixtures::{Fixture, FixtureTable};
use crate::gpu::{Drawn, Request, Shape, Stream, TimedLookup, us};
use crate::processor_time::of_this_thread as thread_time;

/// Elements of a row.
const DIM: u32 = 128;
/// Bytes of the table.
const SIZE: u64 = 256 << 20;

/// One way through the executor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallResult {
    /// What is looked up.
    pub what: String,
    /// Ids of a look-up.
    pub ids: u64,
    /// Kernels of a look-up.
    pub kernels: usize,
    /// Calls of each kind.
    pub calls: u64,
    /// Processor time of a call, mean over all, microseconds, by the clock of the thread.
    pub call_cpu_us: f64,
    /// Duration of a call, by the clock.
    pub call: Percentiles,
    /// Processor time of a graph's launch, mean.
    pub graph_cpu_us: f64,
    /// Duration of a graph's launch.
    pub graph: Percentiles,
    /// What reading the thread's clock costs, microseconds: part of both means.
    pub clock_us: f64,
    /// Whether a call takes 10 us of processor time at most.
    pub met: bool,
    /// Rows compared.
    pub checked: u64,
}

/// Calls, and launches of a graph: one at a time, each waited for.
pub fn calls(stream: &Stream, count: u64, seed: u64, note: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<CallResult>> {
    let content = ContentOracle::new(seed, 0, SIZE / (u64::from(DIM) * 4), DIM, DType::F32);
    // Threads that answer are others than the caller's.
    let fixture = Fixture { drives: 4, ..Fixture::default() };
    let store = fixture.store(&[FixtureTable::new("table", content)], None)?;
    let none = GpuOptions::default();
    let cases = [
        ("rows in GPU memory", none.clone().with_hbm_bytes(u64::MAX / 2), 1000),
        ("rows in DRAM", none.clone().with_dram_bytes(u64::MAX / 2), 1000),
        ("rows on drives", none.clone(), 1000),
        ("rows on drives, more ids", none, 9000),
    ];
    let begin = Instant::now();
    (0..1000).try_for_each(|_| thread_time().map(|_| ()))?;
    let clock_us = us(begin.elapsed()) / 1000.0;
    let mut results = Vec::new();
    for (what, options, ids) in cases {
        note(&format!("{count} calls, {what}"));
        let executor = GpuExecutor::attach(&store, stream.gpu().clone(), options)?;
        let plan = executor
            .plan(&[Feature::new("f", "table")], PlanOptions::default().with_max(ids as usize, ids as usize))?;
        let mut request = Request::new(stream, &[Drawn::new(content, 0.0)?], ids, ids, seed)?;
        request.reshape(Shape { bags: ids, hot: 1, pooled: false })?;
        let timed = TimedLookup::new(&plan, stream, &request)?;
        let mut call = Latencies::new();
        let mut graph = Latencies::new();
        let mut call_cpu = Duration::ZERO;
        let mut graph_cpu = Duration::ZERO;
        let warm_up = count.min(50);
        for number in 0..count + warm_up {
            request.draw(stream)?;
            let before = thread_time()?;
            let (ticket, took) = timed.call(stream, &request)?;
            let cpu = thread_time()? - before;
            stream.wait()?;
            ticket.poll().ok_or_else(|| anyhow::anyhow!("the look-up has not ended"))??;
            drop(ticket);
            request.check(stream, 0)?;
            request.draw(stream)?;
            let before = thread_time()?;
            let began = Instant::now();
            timed.replay(stream)?;
            let replay = began.elapsed();
            let replay_cpu = thread_time()? - before;
            stream.wait()?;
            request.check(stream, 1)?;
            if number >= warm_up {
                call.record(took);
                graph.record(replay);
                call_cpu += cpu;
                graph_cpu += replay_cpu;
            }
        }
        let call_cpu_us = us(call_cpu) / count as f64;
        results.push(CallResult {
            what: what.to_owned(),
            ids,
            kernels: timed.kernels(),
            calls: count,
            call_cpu_us,
            call: Percentiles::of(&call),
            graph_cpu_us: us(graph_cpu) / count as f64,
            graph: Percentiles::of(&graph),
            clock_us,
            met: call_cpu_us <= 10.0,
            checked: request.checked,
        });
    }
    Ok(results)
}
