//! What it costs a table to be one of 26.

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use warprow_gpu::GpuExecutor;
use warprow_layout::DType;
use warprow_lookup::{Feature, PlanOptions};
use warprow_workload::{ContentOracle, Latencies, SeededRandom, mix_all};

use super::latency::Tier;
use super::percentiles::Percentiles;
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::gpu::{Drawn, Request, Shape, Stream, TimedLookup};

/// Tables.
const PARTS: u64 = 26;
/// Elements of a row.
const DIM: u32 = 128;

/// How the ids of the second look-up lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// Over 26 tables, which together are as large as the one of the first.
    Over,
    /// All in one of the 26, the same as the first's; the others have none.
    Alone,
}

/// As many rows asked for of one table by itself as of 26.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SplitResult {
    /// Where all rows lie.
    pub tier: Tier,
    /// How ids lie in the 26.
    pub spread: Spread,
    /// Ids of a look-up.
    pub ids: u64,
    /// Kernels of both.
    pub kernels: [usize; 2],
    /// Of one table, as a graph, by the GPU, its launch hidden.
    pub one: Percentiles,
    /// Of 26.
    pub parts: Percentiles,
    /// Difference of the medians, microseconds.
    pub penalty_us: f64,
    /// Whether it is 3 us at most.
    pub met: bool,
    /// Rows compared.
    pub checked: u64,
}

/// One of the two: its request, and how it is looked up.
struct Side {
    timed: TimedLookup,
    request: Request,
    latencies: Latencies,
}

impl Side {
    /// `tables`: those with ids, the first of the plan's.
    fn new(
        stream: &Stream,
        executor: &GpuExecutor,
        plan: &[FixtureTable],
        tables: &[FixtureTable],
        ids: u64,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let features: Vec<Feature> = plan.iter().map(|table| Feature::new(&table.name, &table.name)).collect();
        let plan = executor.plan(&features, PlanOptions::default().with_max(ids as usize, ids as usize))?;
        let drawn = tables.iter().map(|table| Drawn::new(table.content, 0.0)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut request = Request::new(stream, &drawn, ids, ids, seed)?;
        request.reshape(Shape { bags: ids / tables.len() as u64, hot: 1, pooled: false })?;
        if features.len() > tables.len() {
            request.alone_among(stream.gpu(), features.len() as u64)?;
        }
        Ok(Self { timed: TimedLookup::new(&plan, stream, &request)?, request, latencies: Latencies::new() })
    }

    fn look_up(&mut self, stream: &Stream, ids: &[i64], counts: bool) -> anyhow::Result<()> {
        self.request.upload(stream, ids)?;
        let (took, _) = self.timed.replayed(stream)?;
        self.request.check(stream, 1)?;
        if counts {
            self.latencies.record(took);
        }
        Ok(())
    }
}

/// Measures with so many ids of each of 26 tables, `batches` of each, in GPU memory and in DRAM. `size`: bytes of the one table, and
/// of the 26 together.
pub fn split(
    stream: &Stream,
    size: u64,
    each: &[u64],
    batches: u64,
    seed: u64,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<SplitResult>> {
    let rows = size / (u64::from(DIM) * 4) / PARTS;
    ensure!(rows > 0, "{size} bytes are no rows for 26 tables");
    let whole = FixtureTable::new("whole", ContentOracle::new(seed, PARTS, rows * PARTS, DIM, DType::F32));
    let part = |i| FixtureTable::new(format!("part{i}"), ContentOracle::new(seed, i, rows, DIM, DType::F32));
    let parts: Vec<FixtureTable> = (0..PARTS).map(part).collect();
    let tables: Vec<FixtureTable> = parts.iter().chain([&whole]).cloned().collect();
    let store = Fixture { drives: 4, media: Media::Computed, ..Fixture::default() }.store(&tables, None)?;
    let mut results = Vec::new();
    for tier in Tier::ALL {
        let executor = GpuExecutor::attach(&store, stream.gpu().clone(), tier.options())?;
        for ids in each.iter().map(|each| each * PARTS) {
            note(&format!("{batches} batches of {ids} ids of one table and of 26, rows in {}", tier.name()));
            for spread in [Spread::Over, Spread::Alone] {
                let (one, with_ids) = match spread {
                    Spread::Over => (std::slice::from_ref(&whole), &parts[..]),
                    Spread::Alone => (&parts[..1], &parts[..1]),
                };
                let one = Side::new(stream, &executor, one, one, ids, seed)?;
                let parts = Side::new(stream, &executor, &parts, with_ids, ids, seed)?;
                results.push(duel(stream, one, parts, (tier, spread, rows, ids, batches, seed))?);
            }
        }
    }
    Ok(results)
}

fn duel(
    stream: &Stream,
    mut one: Side,
    mut parts: Side,
    (tier, spread, rows, ids, batches, seed): (Tier, Spread, u64, u64, u64, u64),
) -> anyhow::Result<SplitResult> {
    let mut random = SeededRandom::new(mix_all([seed, ids, tier as u64, spread as u64]));
    let warm_up = batches.min(50);
    let each = ids / PARTS;
    let mut fresh = vec![0i64; ids as usize];
    for batch in 0..batches + warm_up {
        // Fresh ones for each, or one would find the other's rows in caches.
        for is_one in [batch % 2 == 0, batch % 2 != 0] {
            for (id, i) in fresh.iter_mut().zip(0u64..) {
                // Row r of the n-th of 26 tables is row n · rows + r of the one.
                let first = if is_one && spread == Spread::Over { i / each * rows } else { 0 };
                *id = (first + random.below(rows)) as i64;
            }
            let side = if is_one { &mut one } else { &mut parts };
            side.look_up(stream, &fresh, batch >= warm_up)?;
        }
    }
    let times = [&one, &parts].map(|side| Percentiles::of(&side.latencies));
    let penalty_us = times[1].p50 - times[0].p50;
    Ok(SplitResult {
        tier,
        spread,
        ids,
        kernels: [one.timed.kernels(), parts.timed.kernels()],
        one: times[0],
        parts: times[1],
        penalty_us,
        met: penalty_us <= 3.0,
        checked: one.request.checked + parts.request.checked,
    })
}
