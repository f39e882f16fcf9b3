//! Rows of every kind of elements in GPU memory and in DRAM.

use anyhow::{Context, ensure};
use warprow_gpu::{GpuExecutor, GpuOptions};
use warprow_layout::{DType, TableSpec};
use warprow_lookup::{Feature, PlanOptions, Pooling};
use warprow_workload::{median, mix_all};

use super::content::Rows;
use super::decoded::{Code, Decoded, prove};
use super::request::request;
use super::results::ElementResult;
use super::setup::ElementSetup;
use crate::fixtures::Fixture;
use crate::gpu::{Shape, Stream, TimedLookup, us};

/// Looks up in tables of each kind of elements, one after another.
pub fn elements(
    stream: &Stream,
    setup: &ElementSetup,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<ElementResult>> {
    setup.check()?;
    let code = Code::new(stream)?;
    prove(stream, &code)?;
    let mut results: Vec<ElementResult> = Vec::new();
    for &dtype in &setup.elements {
        note(&format!("rows of {dtype}"));
        for result in table(stream, setup, &code, dtype).with_context(|| format!("rows of {dtype}"))? {
            let is_f32 = |unpacked: &&ElementResult| {
                unpacked.elements == "f32" && unpacked.tier == result.tier && unpacked.pooled == result.pooled
            };
            let f32s = if result.elements == "f32" {
                Some(result.us)
            } else {
                results.iter().find(is_f32).map(|result| result.us)
            };
            results.push(ElementResult { of_f32: f32s.map(|f32s| result.us / f32s), ..result });
        }
    }
    Ok(results)
}

fn table(stream: &Stream, setup: &ElementSetup, code: &Code, dtype: DType) -> anyhow::Result<Vec<ElementResult>> {
    let rows = Rows::new(setup.seed, setup.rows, setup.dim, dtype).context("no such rows")?;
    let spec = TableSpec::new("table", setup.rows, setup.dim, dtype);
    let drives = std::thread::available_parallelism().map_or(1, |cores| usize::from(cores) / 2).clamp(1, 8);
    // At worst half of every LBA is empty.
    let each = 2 * setup.rows * rows.row_bytes() as u64 / drives as u64 + (128 << 20);
    let fixture = Fixture { drives: drives as u32, ..Fixture::default() };
    let (store, _drives) = fixture.load(&[(spec, &rows)], each.next_multiple_of(1 << 20), None)?;
    let counts = (setup.rows, u64::from(setup.dim));
    let mut decoded = Decoded::new(stream, code, &rows, counts, setup.seed)?;
    let mut results = Vec::new();
    for (tier, options, held) in [
        ("hbm", GpuOptions::default().with_hbm_bytes(u64::MAX / 2), (setup.rows, 0)),
        ("dram", GpuOptions::default().with_dram_bytes(u64::MAX / 2), (0, setup.rows)),
    ] {
        let executor = GpuExecutor::attach(&store, stream.gpu().clone(), options)?;
        ensure!(executor.tiers("table") == Some(held), "{tier} does not hold the table");
        for pooled in [false, true] {
            results.push(kind(stream, setup, &executor, &mut decoded, (dtype, rows.row_bytes()), (tier, pooled))?);
        }
    }
    Ok(results)
}

fn kind(
    stream: &Stream,
    setup: &ElementSetup,
    executor: &GpuExecutor,
    decoded: &mut Decoded<'_>,
    (dtype, row_bytes): (DType, usize),
    (tier, pooled): (&'static str, bool),
) -> anyhow::Result<ElementResult> {
    let ids = setup.ids();
    let pooling = if pooled { Pooling::Sum } else { Pooling::None };
    let options = PlanOptions::default().with_max(usize::try_from(setup.bags)?, usize::try_from(ids)?);
    let plan = executor.plan(&[Feature::new("f", "table").pooling(pooling)], options)?;
    let shape = if pooled { Shape { bags: setup.bags, hot: setup.hot, pooled } } else { Shape::rows(ids) };
    let seed = mix_all([setup.seed, dtype as u64, pooled.into(), tier.len() as u64]);
    let mut request = request(stream, (setup.rows, setup.dim), setup.alpha, shape, seed)?;
    let timed = TimedLookup::new(&plan, stream, &request)?;
    let mut times = Vec::new();
    let before = (decoded.checked, decoded.spots);
    // The first is for warming up.
    for run in 0..=setup.runs {
        request.draw(stream)?;
        let (took, _) = timed.replayed(stream)?;
        decoded.check(&request, shape)?;
        times.extend((run > 0).then_some(us(took)));
    }
    let us = median(times);
    let bytes = ids * row_bytes as u64 + request.out_bytes();
    Ok(ElementResult {
        elements: dtype.name().to_owned(),
        row_bytes: row_bytes as u64,
        tier: tier.to_owned(),
        pooled,
        ids,
        kernels: timed.kernels(),
        us,
        of_f32: None,
        ids_per_second: ids as f64 / us * 1e6,
        bytes_per_second: bytes as f64 / us * 1e6,
        checked: decoded.checked - before.0,
        checked_by_cpu: decoded.spots - before.1,
    })
}
