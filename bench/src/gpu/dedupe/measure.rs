//! Times of every way.

use anyhow::ensure;
use warprow_gpu::choose_dedupe;
use warprow_kernels::SMALL_IDS;
use warprow_lookup::DedupeMethod;
use warprow_workload::{TableContent, median, mix_all};

use super::fixture::{Code, Fixture, on_drives};
use super::{DedupeResult, DedupeSetup, WayTimes, name};
use crate::gpu::{Drawn, Request, Shape, Stream, us};

/// Batches whose uniques and inverse are compared, of each way.
const COMPARED: u32 = 2;
/// Rows of an answer that the processor computes too.
const SPOTS: u32 = 4;
/// Part of the GPU's free memory that a table and its batches may take.
const SHARE: f64 = 0.9;

/// Finds different rows among ids in every way. `note` is told what is left out.
pub fn measure(stream: &Stream, setup: &DedupeSetup, note: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<DedupeResult>> {
    setup.check()?;
    let code = Code::new(stream)?;
    let most = setup.ids.iter().copied().max().unwrap_or(1);
    let mut results = Vec::new();
    for &rows in &setup.rows {
        let (free, _) = stream.gpu().memory()?;
        let needed = Fixture::bytes(rows, most);
        if needed as f64 > free as f64 * SHARE {
            note(&format!("{rows} rows are left out: they need {needed} B of GPU memory, {free} are free"));
            continue;
        }
        let fixture = Fixture::new(&code, stream, rows, most, setup.seed)?;
        for &alpha in &setup.alphas {
            let drawn = Drawn::new(fixture.content, alpha)?;
            let seed = mix_all([setup.seed, rows, alpha.to_bits()]);
            let mut request = Request::new(stream, &[drawn], most, most, seed)?;
            for &ids in &setup.ids {
                results.push(batches(stream, &fixture, &mut request, (ids, alpha), setup.runs)?);
            }
        }
    }
    ensure!(!results.is_empty(), "no table fits the GPU's memory");
    Ok(results)
}

/// Batches of so many ids, in every way that takes them.
fn batches(
    stream: &Stream,
    fixture: &Fixture<'_>,
    request: &mut Request,
    (ids, alpha): (u64, f64),
    runs: u32,
) -> anyhow::Result<DedupeResult> {
    let rows = fixture.content.rows();
    let drives = on_drives(ids);
    request.reshape(Shape::rows(ids))?;
    let feature = fixture.describe(ids)?;
    let ways = [DedupeMethod::Block, DedupeMethod::Bitmap, DedupeMethod::Hash, DedupeMethod::Radix];
    let ways = ways.into_iter().filter(|&way| way != DedupeMethod::Block || ids <= SMALL_IDS);
    request.draw(stream)?;
    fixture.prove(request, &fixture.lookup(request, ids, DedupeMethod::Bitmap, feature))?;
    let mut times = Vec::new();
    let mut uniques = 0;
    let mut compared = 0;
    let before = request.checked;
    for way in ways {
        let lookup = fixture.lookup(request, ids, way, feature);
        let mut graph = fixture.graph(&lookup, way)?;
        for _ in 0..COMPARED {
            request.draw(stream)?;
            uniques = fixture.compare(request, &lookup, way)?;
            compared += ids + uniques;
            if !drives {
                request.check(stream, SPOTS)?;
            }
        }
        let mut whole = Vec::new();
        let mut unique = Vec::new();
        // The first is for warming up.
        for run in 0..=runs {
            request.draw(stream)?;
            let (took, ()) = stream.hidden(|| fixture.run(&mut graph, &lookup))?;
            let until = fixture.unique_ns()?;
            if !drives {
                request.check(stream, SPOTS)?;
            }
            if run > 0 {
                whole.push(us(took));
                unique.push(until as f64 / 1e3);
            }
        }
        times.push(WayTimes { way: name(way).to_owned(), us: median(whole), unique_us: median(unique) });
    }
    let keys = rows.next_multiple_of(warprow_kernels::abi::KEY_ALIGN);
    let chosen = name(choose_dedupe(ids, keys, ids.min(rows), stream.gpu().memory()?.1));
    let best =
        times.iter().min_by(|a, b| a.us.total_cmp(&b.us)).map_or(("none", 0.0), |times| (times.way.as_str(), times.us));
    let its = times.iter().find(|times| times.way == chosen).map_or(f64::NAN, |times| times.us);
    Ok(DedupeResult {
        tier: if drives { "drives" } else { "memory" }.to_owned(),
        rows,
        ids,
        alpha,
        uniques,
        best: best.0.to_owned(),
        over_best: its / best.1,
        ways: times,
        chosen: chosen.to_owned(),
        compared,
        rows_compared: request.checked - before,
    })
}
