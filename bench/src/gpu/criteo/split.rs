//! What it costs that ids are spread over 26 tables.

use serde::Serialize;
use warprow_layout::DType;
use warprow_store::{Feature, PlanOptions};
use warprow_workload::{Latencies, Oracle, Random, mix_all};

use super::{Percentiles, Tier};
use crate::beds::{Bed, BedTable, Media};
use crate::gpu::{Drawn, Looker, Request, Shape, Stream};

/// Tables.
const PARTS: u64 = 26;
/// Elements of a row.
const DIM: u32 = 128;

/// The same rows asked for of one table and of 26.
#[derive(Clone, Debug, Serialize)]
pub struct SplitResult {
    /// Where all rows lie.
    pub tier: Tier,
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

/// Measures with so many ids of each of 26 tables, `batches` of each, in GPU memory and in DRAM. `size`: bytes of rows.
pub fn split(
    stream: &Stream,
    size: u64,
    each: &[u64],
    batches: u64,
    seed: u64,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<SplitResult>> {
    let rows = (size / (u64::from(DIM) * 4) / PARTS).max(1);
    let whole = BedTable::new("whole", Oracle::new(seed, PARTS, rows * PARTS, DIM, DType::F32));
    let part = |i| BedTable::new(format!("part{i}"), Oracle::new(seed, i, rows, DIM, DType::F32));
    let parts: Vec<BedTable> = (0..PARTS).map(part).collect();
    let tables: Vec<BedTable> = parts.iter().chain([&whole]).cloned().collect();
    let store = Bed { drives: 4, media: Media::Computed, ..Bed::default() }.store(&tables, None)?;
    let drawn = |table: &BedTable| Drawn::new(table.content, 0.0);
    let mut results = Vec::new();
    for tier in Tier::ALL {
        let executor = store.attach_gpu(stream.gpu().clone(), tier.options())?;
        for &each in each {
            let ids = each * PARTS;
            note(&format!("{batches} batches of {ids} ids of one table and of 26, rows in {}", tier.name()));
            let options = PlanOptions::default().with_max(ids as u32, ids as usize);
            let plan_one = executor.plan(&[Feature::new("whole", "whole")], options.clone())?;
            let features: Vec<Feature> = parts.iter().map(|table| Feature::new(&table.name, &table.name)).collect();
            let plan_parts = executor.plan(&features, options)?;
            let all = parts.iter().map(drawn).collect::<anyhow::Result<Vec<_>>>()?;
            let mut of_one = Request::new(stream, &[drawn(&whole)?], ids, ids, seed)?;
            let mut of_parts = Request::new(stream, &all, ids, ids, seed)?;
            of_one.reshape(Shape { bags: ids, hot: 1, pooled: false })?;
            of_parts.reshape(Shape { bags: each, hot: 1, pooled: false })?;
            let look_one = Looker::new(&plan_one, stream, &of_one)?;
            let look_parts = Looker::new(&plan_parts, stream, &of_parts)?;
            let mut random = Random::new(mix_all([seed, each, tier as u64]));
            let (mut one, mut parts) = (Latencies::new(), Latencies::new());
            let warm_up = batches.min(50);
            for batch in 0..batches + warm_up {
                // Fresh ones for each, or one would find the other's rows in caches.
                for is_one in [batch % 2 == 0, batch % 2 != 0] {
                    let ids = (0..ids).map(|i| (i / each, random.below(rows)));
                    let (request, looker, latencies, ids): (_, _, _, Vec<i64>) = match is_one {
                        true => {
                            let ids = ids.map(|(part, row)| (part * rows + row) as i64);
                            (&mut of_one, &look_one, &mut one, ids.collect())
                        }
                        false => (&mut of_parts, &look_parts, &mut parts, ids.map(|(_, row)| row as i64).collect()),
                    };
                    request.upload(stream, &ids)?;
                    let (took, _) = looker.replayed(stream)?;
                    request.check(stream, 1)?;
                    if batch >= warm_up {
                        latencies.record(took);
                    }
                }
            }
            let (one, parts) = (Percentiles::of(&one), Percentiles::of(&parts));
            let penalty_us = parts.p50 - one.p50;
            results.push(SplitResult {
                tier,
                ids,
                kernels: [look_one.kernels(), look_parts.kernels()],
                one,
                parts,
                penalty_us,
                met: penalty_us <= 3.0,
                checked: of_one.checked + of_parts.checked,
            });
        }
    }
    Ok(results)
}
