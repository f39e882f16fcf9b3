//! Rows on drives, compared with their checksums as they arrive, and not.

use anyhow::{Context, ensure};
use warprow_gpu::GpuExecutor;
use warprow_gpu::GpuOptions;
use warprow_layout::{DType, TableSpec};
use warprow_lookup::{Feature, PlanOptions};
use warprow_store::Store;
use warprow_workload::{ContentOracle, TableContent, median, mix_all};

use super::results::ChecksumResult;
use super::setup::ChecksumSetup;
use crate::Cores;
use crate::fixtures::Fixture;
use crate::gpu::{Drawn, Request, Shape, Stream, TimedLookup, us};
use crate::ssd::Drives;

/// Rows of each answer that the processor computes too.
const SPOTS: u32 = 4;

/// Looks up rows of each length, by turns unchecked and checked, on the same drives.
pub fn checksums(
    stream: &Stream,
    setup: &ChecksumSetup,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<ChecksumResult>> {
    setup.check()?;
    let cores = Cores::each(setup.drives as usize);
    if cores.is_none() {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        note(&format!("{} drives take a core each, and there are {all} for all: do not trust these", setup.drives));
    }
    let mut results = Vec::new();
    for &row_bytes in &setup.row_bytes {
        let content = ContentOracle::new(setup.seed, 0, setup.size / u64::from(row_bytes), row_bytes / 4, DType::F32);
        let spec = TableSpec { row_crc: true, ..TableSpec::new("table", content.rows(), row_bytes / 4, DType::F32) };
        // At worst half of every LBA is empty; the checksums are 4 B a row.
        let bytes = 2 * setup.size + content.rows() * 4;
        let each = bytes / u64::from(setup.drives) + (128 << 20);
        let fixture = Fixture { drives: setup.drives, disorder: true, ..Fixture::default() };
        let (store, drives) = fixture.load(&[(spec, &content)], each.next_multiple_of(1 << 20), cores.as_ref())?;
        let drives = Drives::new(drives);
        for &count in &setup.counts {
            let result = line(stream, setup, &store, &drives, (content, count));
            results.push(result.with_context(|| format!("{count} rows of {row_bytes} bytes"))?);
        }
    }
    Ok(results)
}

fn line(
    stream: &Stream,
    setup: &ChecksumSetup,
    store: &Store,
    drives: &Drives,
    (content, count): (ContentOracle, u64),
) -> anyhow::Result<ChecksumResult> {
    let mut request = Request::new(stream, &[Drawn::new(content, 0.0)?], count, count, mix_all([setup.seed, count]))?;
    request.reshape(Shape::rows(count))?;
    let executor = |check_rows: bool| {
        let mut options = GpuOptions::default();
        options.check_rows = check_rows;
        let executor = GpuExecutor::attach(store, stream.gpu().clone(), options)?;
        let options = PlanOptions::default().with_max(1, usize::try_from(count)?);
        let plan = executor.plan(&[Feature::new("f", "table")], options)?;
        let timed = TimedLookup::new(&plan, stream, &request)?;
        anyhow::Ok((timed, plan, executor))
    };
    let both = [executor(false)?, executor(true)?];
    let (mut seen, mut fetch): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
    let mut commands = Vec::new();
    // The first is for warming up.
    for run in 0..=setup.runs {
        for (at, (timed, ..)) in both.iter().enumerate() {
            request.draw(stream)?;
            drives.begin();
            let (took, report) = timed.called_seen(stream, &request)?;
            let window = drives.end()?;
            request.check(stream, SPOTS)?;
            ensure!(report.damaged == 0 && report.anomalies == 0, "rows or completions that are wrong: {report:?}");
            let sent = report.commands;
            let done = window.completions;
            ensure!(sent == done, "{sent} commands were sent, and drives completed {done}");
            if run > 0 {
                seen[at].push(us(took));
                fetch[at].push(us(report.fetch));
                commands.push(sent as f64);
            }
        }
    }
    let seen_us = seen.map(median);
    let fetch_us = fetch.map(median);
    Ok(ChecksumResult {
        row_bytes: content.dim() * 4,
        ids: count,
        drives: setup.drives,
        commands: median(commands) as u64,
        seen_us,
        fetch_us,
        ratio: seen_us[1] / seen_us[0],
        checked: request.checked,
    })
}
