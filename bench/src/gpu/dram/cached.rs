//! Rows in DRAM of which a cache in GPU memory has some, against look-ups without it.

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use warprow_gpu::{CacheAdmission, GpuExecutor, GpuOptions};
use warprow_lookup::{DedupeMethod, Feature, PlanOptions, Pooling};
use warprow_store::Store;
use warprow_workload::{median, mix_all};

use super::setup::DramSetup;
use super::table::store;
use crate::gpu::{Drawn, Request, Shape, Stream, TimedLookup, us};

/// Look-ups by which a cache learns before it is measured.
const LEARNT_FROM: u32 = 64;

/// One way to look up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CachedWay {
    /// What tables call the way.
    pub way: String,
    /// Lines of the cache; 0: there is none.
    pub lines: u64,
    /// Median microseconds of the look-up as a graph, by the GPU, its launch hidden.
    pub lookup_us: f64,
    /// Median microseconds of its parts: ids to different rows, these rows into GPU memory, output. The first two are 0 where one kernel does all.
    pub parts_us: [f64; 3],
    /// The share of ids whose row lay in a line.
    pub hits: f64,
    /// Different rows that were read from DRAM, median; 0 where nobody looks for them.
    pub rows_read: u64,
    /// Rows compared.
    pub checked: u64,
}

/// One number of ids by one law.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CachedDram {
    /// Bytes of the table.
    pub size: u64,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Exponent of the power law.
    pub alpha: f64,
    /// Ids of a look-up.
    pub ids: u64,
    /// Without a cache, then with one.
    pub ways: Vec<CachedWay>,
}

/// An executor, and how its plans find different rows.
struct Way {
    name: &'static str,
    admission: Option<CacheAdmission>,
    dedupe: Option<DedupeMethod>,
}

const WAYS: [Way; 4] = [
    Way { name: "no cache", admission: None, dedupe: None },
    Way { name: "no cache, different rows first", admission: None, dedupe: Some(DedupeMethod::Radix) },
    Way { name: "cache", admission: Some(CacheAdmission::Always), dedupe: None },
    Way { name: "cache, sketch", admission: Some(CacheAdmission::Sketch), dedupe: None },
];

/// Looks up in a table of `setup`, all of which is in DRAM, without a cache and with one of bytes for `share` of its rows.
pub fn cached(stream: &Stream, setup: &DramSetup, share: f64) -> anyhow::Result<Vec<CachedDram>> {
    ensure!(share > 0.0 && share <= 1.0, "a cache for {share} of the rows: give a share from 0 to 1");
    let store = store(setup)?;
    let lines = setup.alphas.iter().flat_map(|&alpha| setup.counts.iter().map(move |&ids| (alpha, ids)));
    let mut results: Vec<CachedDram> = lines
        .map(|(alpha, ids)| CachedDram { size: setup.size, row_bytes: setup.row_bytes, alpha, ids, ways: Vec::new() })
        .collect();
    for way in WAYS {
        for result in &mut results {
            result.ways.push(measured(stream, setup, (&store, share), &way, (result.alpha, result.ids))?);
        }
    }
    Ok(results)
}

fn measured(
    stream: &Stream,
    setup: &DramSetup,
    (store, share): (&Store, f64),
    way: &Way,
    (alpha, ids): (f64, u64),
) -> anyhow::Result<CachedWay> {
    let mut options = GpuOptions::default().with_dram_bytes(u64::MAX / 2).with_gatherers(setup.gatherers);
    if let Some(admission) = way.admission {
        let bytes = (setup.size as f64 * share) as u64;
        options = options.with_cache_bytes(bytes).with_cached_dram().with_cache_admission(admission);
    }
    let executor = GpuExecutor::attach(store, stream.gpu().clone(), options)?;
    let mut options = PlanOptions::default().with_max(1, usize::try_from(ids)?);
    if let Some(dedupe) = way.dedupe {
        options = options.with_dedupe(dedupe);
    }
    let plan = executor.plan(&[Feature::new("f", "table").pooling(Pooling::None)], options)?;
    let drawn = Drawn::new(setup.content(), alpha)?;
    let mut request = Request::new(stream, &[drawn], ids, ids, mix_all([setup.seed, ids, alpha.to_bits()]))?;
    request.reshape(Shape::rows(ids))?;
    let timed = TimedLookup::new(&plan, stream, &request)?;
    let mut look_up = || {
        request.draw(stream)?;
        let found = timed.replayed(stream)?;
        request.check(stream, 4)?;
        anyhow::Ok(found)
    };
    for _ in 0..if way.admission.is_some() { LEARNT_FROM } else { 1 } {
        look_up()?;
    }
    let (mut times, mut parts, mut rows) = (Vec::new(), <[Vec<f64>; 3]>::default(), Vec::new());
    let (mut hits, mut all) = (0, 0);
    for _ in 0..setup.runs {
        let (took, report) = look_up()?;
        times.push(us(took));
        let of_parts = [report.prepare, report.fetch, report.expand];
        parts.iter_mut().zip(of_parts).for_each(|(part, time)| part.push(us(time)));
        rows.push(report.rows_dram as f64);
        (hits, all) = (hits + report.ids_cached, all + report.ids);
    }
    let statistics = executor.cache_statistics()?;
    ensure!(statistics.is_some() == way.admission.is_some(), "a cache that is not as it was asked for");
    Ok(CachedWay {
        way: way.name.to_owned(),
        lines: statistics.map_or(0, |statistics| statistics.lines),
        lookup_us: median(times),
        parts_us: parts.map(median),
        hits: hits as f64 / u64::max(all, 1) as f64,
        rows_read: median(rows) as u64,
        checked: request.checked,
    })
}
