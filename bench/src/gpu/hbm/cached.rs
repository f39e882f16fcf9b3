//! Rows that lie in a cache, against rows that lie in GPU memory because they were known to be hot; and what a cache costs look-ups of which it has nothing.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use warprow_gpu::{CacheAdmission, GpuExecutor, GpuOptions, GpuPlan, GpuReport};
use warprow_layout::DType;
use warprow_lookup::{Feature, PlanOptions, Pooling};
use warprow_store::Store;
use warprow_workload::{ContentOracle, median, mix_all};

use super::{HbmSetup, HbmTimes};
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::gpu::{Drawn, Request, Shape, Stream, TimedLookup, us};

const SPOTS: u32 = 2;
/// Ids of look-ups that fill a cache.
const FILLING: u64 = 1 << 18;
/// Rows of the table of which the cache has nothing, and bytes of the cache.
const MISSED_ROWS: u64 = 1 << 21;
const MISSED_BYTES: u64 = 128 << 20;

/// One kind of look-up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CachedResult {
    /// Whether bags are summed.
    pub pooled: bool,
    /// Exponent of the power law.
    pub alpha: f64,
    /// Rows that were hot beforehand, read by one kernel.
    pub direct: HbmTimes,
    /// Rows that were hot beforehand, read by the kernels of plans that have rows on drives too.
    pub fixed: HbmTimes,
    /// Rows that look-ups have brought into a cache, which has all of them.
    pub cached: HbmTimes,
    /// As `cached`, but each hit moves a stamp, as in caches of few lines for their batches.
    pub renewed: HbmTimes,
    /// The share of ids that the cache had.
    pub hits: f64,
    /// The time of `fixed` by that of `cached`, as graphs.
    pub of_fixed: f64,
    /// The time of `direct` by that of `cached`, as graphs.
    pub of_direct: f64,
    /// Sums or rows compared.
    pub checked: u64,
}

/// Look-ups of which a cache has nothing, on drives that the GPU plays.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MissedResult {
    /// Ids, all different.
    pub ids: u64,
    /// Median microseconds of calls as their callers see them, without a cache and with one.
    pub us: [f64; 2],
    /// Median microseconds by the GPU's clock until the different rows were known, from then until they were there, and from then until
    /// the look-up ended: without a cache, and with one.
    #[serde(default)]
    pub stages: [[f64; 3]; 2],
    /// Ids that the cache had all the same.
    pub hits: u64,
    /// Rows compared.
    pub checked: u64,
}

/// Both.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheMeasured {
    /// Bytes of the cache that has all rows.
    pub bytes: u64,
    /// Lines of the cache.
    pub lines: u64,
    /// Hits alone.
    pub hits: Vec<CachedResult>,
    /// Misses alone.
    pub misses: Vec<MissedResult>,
}

/// Measures a cache of `bytes`, with that admission, for the rows of `setup`, which it has room for several times over.
pub fn measure(
    stream: &Stream,
    setup: &HbmSetup,
    (bytes, admission): (u64, CacheAdmission),
) -> anyhow::Result<CacheMeasured> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fixture = Fixture { drives: (cores / 2).clamp(1, 8) as u32, media: Media::Computed, ..Fixture::default() };
    let store = fixture.store(&[FixtureTable::new("table", setup.content())], None)?;
    let attach = |options| GpuExecutor::attach(&store, stream.gpu().clone(), options);
    let hot = GpuOptions::default().with_hbm_bytes(u64::MAX / 2);
    let direct = attach(hot.clone())?;
    let fixed = attach(hot.with_adopting())?;
    for executor in [&direct, &fixed] {
        ensure!(executor.tiers("table") == Some((setup.rows, 0)), "GPU memory does not hold the table");
    }
    let cached = attach(GpuOptions::default().with_cache_bytes(bytes).with_cache_admission(admission))?;
    // A cache that holds lines for no launch.
    let renewed = attach(GpuOptions::default().with_cache_bytes(bytes).with_cache_batch_rows(u64::MAX))?;
    fill(stream, setup, &cached)?;
    fill(stream, setup, &renewed)?;
    let mut hits = Vec::new();
    for pooled in [false, true] {
        for &alpha in &setup.alphas {
            let of = |executor, room| times(stream, setup, executor, (pooled, alpha), room);
            let (direct, _, direct_checked) = of(&direct, false)?;
            let (fixed, _, fixed_checked) = of(&fixed, true)?;
            let (cached, hits_of, checked) = of(&cached, false)?;
            let (renewed, _, renewed_checked) = of(&renewed, false)?;
            hits.push(CachedResult {
                pooled,
                alpha,
                hits: hits_of,
                of_fixed: fixed.graph / cached.graph,
                of_direct: direct.graph / cached.graph,
                checked: checked + fixed_checked + direct_checked + renewed_checked,
                direct,
                fixed,
                cached,
                renewed,
            });
        }
    }
    let lines = cached.cache_statistics()?.map_or(0, |statistics| statistics.lines);
    drop((direct, fixed, cached, renewed, store));
    Ok(CacheMeasured { bytes, lines, hits, misses: missed(stream, setup, admission)? })
}

fn plan(executor: &GpuExecutor, pooled: bool, (bags, ids): (u64, u64), adopt_room: bool) -> anyhow::Result<GpuPlan> {
    let pooling = if pooled { Pooling::Sum } else { Pooling::None };
    let options = PlanOptions::default().with_max(usize::try_from(bags)?, usize::try_from(ids)?);
    let options = if adopt_room { options.with_adopt_room() } else { options };
    Ok(executor.plan(&[Feature::new("f", "table").pooling(pooling)], options)?)
}

/// Looks each row up, until the cache has them.
fn fill(stream: &Stream, setup: &HbmSetup, executor: &GpuExecutor) -> anyhow::Result<()> {
    let plan = plan(executor, false, (1, FILLING), false)?;
    let mut request = Request::new(stream, &[Drawn::new(setup.content(), 0.0)?], FILLING, FILLING, setup.seed)?;
    request.reshape(Shape::rows(FILLING))?;
    let timed = TimedLookup::new(&plan, stream, &request)?;
    for _ in 0..2 {
        for first in (0..setup.rows).step_by(FILLING as usize) {
            let ids: Vec<i64> = (first..first + FILLING).map(|id| (id % setup.rows) as i64).collect();
            request.upload(stream, &ids)?;
            timed.replayed(stream)?;
            request.check(stream, SPOTS)?;
        }
    }
    Ok(())
}

/// Times, the share of ids that were cached, and how many sums or rows were compared.
fn times(
    stream: &Stream,
    setup: &HbmSetup,
    executor: &GpuExecutor,
    (pooled, alpha): (bool, f64),
    adopt_room: bool,
) -> anyhow::Result<(HbmTimes, f64, u64)> {
    let (bags, hot, ids) = (setup.bags, setup.hot, setup.bags * setup.hot);
    let plan = plan(executor, pooled, (bags, ids), adopt_room)?;
    let seed = mix_all([setup.seed, alpha.to_bits(), pooled.into()]);
    let out = if pooled { bags } else { ids };
    let mut request = Request::new(stream, &[Drawn::new(setup.content(), alpha)?], ids, out, seed)?;
    request.reshape(if pooled { Shape { bags, hot, pooled } } else { Shape::rows(ids) })?;
    let timed = TimedLookup::new(&plan, stream, &request)?;
    let mut samples: [Vec<f64>; 4] = Default::default();
    let (mut found, mut all) = (0, 0);
    for run in 0..=setup.runs {
        let mut once = |way: usize| -> anyhow::Result<f64> {
            request.draw(stream)?;
            let (took, report) = match way {
                0 => timed.replayed(stream)?,
                1 => timed.called(stream, &request).map(|(took, report, _)| (took, report))?,
                2 => timed.replayed_seen(stream)?,
                _ => timed.called_seen(stream, &request)?,
            };
            (found, all) = (found + report.ids_cached, all + report.ids);
            request.check(stream, SPOTS)?;
            Ok(us(took))
        };
        let took = [once(0)?, once(1)?, once(2)?, once(3)?];
        if run > 0 {
            samples.iter_mut().zip(took).for_each(|(samples, sample)| samples.push(sample));
        }
    }
    let [graph, called, graph_seen, called_seen] = samples.map(median);
    let hits = found as f64 / all.max(1) as f64;
    Ok((HbmTimes { graph, called, graph_seen, called_seen }, hits, request.checked))
}

/// Look-ups of other rows each time, with and without a cache by turns.
fn missed(stream: &Stream, setup: &HbmSetup, admission: CacheAdmission) -> anyhow::Result<Vec<MissedResult>> {
    let content = ContentOracle::new(setup.seed, 0, MISSED_ROWS, setup.dim, DType::F32);
    let fixture = Fixture { drives: 4, media: Media::Played, ..Fixture::default() };
    let store: Store = fixture.store(&[FixtureTable::new("table", content)], None)?;
    let attach = |options| GpuExecutor::attach(&store, stream.gpu().clone(), options);
    let cached = GpuOptions::default().with_cache_bytes(MISSED_BYTES).with_cache_admission(admission);
    let executors = [attach(GpuOptions::default())?, attach(cached)?];
    let mut results = Vec::new();
    let mut next = 0;
    for ids in [1024, 4096, 16_384, 1 << 16] {
        let mut request = Request::new(stream, &[Drawn::new(content, 0.0)?], ids, ids, setup.seed)?;
        request.reshape(Shape::rows(ids))?;
        let plans = [&executors[0], &executors[1]].map(|executor| plan(executor, false, (1, ids), false));
        let [without, with] = plans;
        let (without, with) = (without?, with?);
        let timed = [TimedLookup::new(&without, stream, &request)?, TimedLookup::new(&with, stream, &request)?];
        let (mut samples, mut hits): ([Vec<f64>; 2], u64) = Default::default();
        let mut stages: [[Vec<f64>; 3]; 2] = Default::default();
        for run in 0..=setup.runs {
            for ((timed, samples), stages) in timed.iter().zip(&mut samples).zip(&mut stages) {
                // In the order of a stride that leaves no row out.
                let of = |number: u64| ((next + number).wrapping_mul(0x9e37_79b1) % MISSED_ROWS) as i64;
                let drawn: Vec<i64> = (0..ids).map(of).collect();
                next += ids;
                request.upload(stream, &drawn)?;
                let (took, report): (Duration, GpuReport) = timed.called_seen(stream, &request)?;
                request.check(stream, SPOTS)?;
                if run > 0 {
                    samples.push(us(took));
                    let times = [report.prepare, report.fetch, report.expand];
                    stages.iter_mut().zip(times).for_each(|(stage, time)| stage.push(us(time)));
                    hits += report.ids_cached;
                }
            }
        }
        let stages = stages.map(|stages| stages.map(median));
        results.push(MissedResult { ids, us: samples.map(median), stages, hits, checked: request.checked });
    }
    Ok(results)
}
