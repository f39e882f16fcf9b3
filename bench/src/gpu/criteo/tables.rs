//! Batches over all tables of a shape, on all three tiers.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use warprow_gpu::GpuExecutor;
use warprow_gpu::GpuOptions;
use warprow_gpu_queues::PinnedMemory;
use warprow_layout::DType;
use warprow_lookup::{PlanOptions, Stage};
use warprow_workload::units::bytes;
use warprow_workload::{ContentOracle, TableContent, median, mix_all};

use super::features::features;
use super::rivals::{Everything, HostSide};
use super::shapes::{DIM, Shape as Tables};
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::gpu::{Drawn, Request, Shape, Stream, TimedLookup, us};

/// What is measured.
#[derive(Clone, Debug)]
pub struct CriteoSetup {
    /// The publisher of the tables.
    pub shape: Tables,
    /// Tables have their published rows divided by this.
    pub scale: u64,
    /// The share of rows that is in memory, in GPU memory or DRAM: the hottest.
    pub memory: f64,
    /// Shares of rows that are in GPU memory, the hottest of those.
    pub hbm: Vec<f64>,
    /// Samples of a batch.
    pub batches: Vec<u64>,
    /// Ids of each table and sample: 1 is looked up as it is, more are summed.
    pub hot: Vec<u64>,
    /// Exponent of the power law.
    pub alpha: f64,
    /// Drives, each with a thread that answers.
    pub drives: u32,
    /// What they are made of.
    pub media: Media,
    /// Repetitions, each with fresh ids.
    pub runs: u32,
    /// Of contents and ids.
    pub seed: u64,
}

/// The host executor's times, median microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HostTimes {
    /// Look-up and the copy of its output to the GPU.
    pub all: f64,
    /// Stages of the look-up: dedupe, route, order, merge, read, expand.
    pub stages: [f64; 6],
}

/// One batch size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CriteoResult {
    /// The publisher of the tables; Criteo's of earlier versions, which had no others.
    #[serde(default)]
    pub shape: Tables,
    /// The published rows were divided by this.
    pub scale: u64,
    /// Share of rows in GPU memory.
    pub hbm: f64,
    /// Share of rows in memory.
    pub memory: f64,
    /// Samples.
    pub batch: u64,
    /// Ids of each table and sample.
    pub hot: u64,
    /// Ids in all.
    pub ids: u64,
    /// Ids whose rows are served from GPU memory, from DRAM and from drives: medians.
    pub ids_hbm: f64,
    /// See above.
    pub ids_dram: f64,
    /// See above.
    pub ids_ssd: f64,
    /// Read commands, median.
    pub commands: f64,
    /// Kernels of a look-up.
    pub kernels: usize,
    /// Median microseconds as a graph, by the GPU, its launch hidden.
    pub graph_us: f64,
    /// Median microseconds of a called look-up until its caller sees that it has ended.
    pub seen_us: f64,
    /// Median microseconds of the parts of the graph: ids to unique keys, rows into GPU memory, output.
    pub prepare_us: f64,
    /// See above.
    pub fetch_us: f64,
    /// See above.
    pub expand_us: f64,
    /// Ids a second, as a graph.
    pub ids_per_second: f64,
    /// Commands a second while rows were fetched.
    pub commands_per_second: f64,
    /// The host executor on the same store with as many rows in DRAM, and a copy.
    pub host: HostTimes,
    /// All cores on a copy of everything in DRAM, and a copy to the GPU: no drive, so an upper bound. None: memory does not hold it.
    pub cpu_us: Option<f64>,
    /// The host executor's time by that of the look-up as its caller sees it.
    pub ratio_host: f64,
    /// All cores' time by that of the look-up as its caller sees it.
    pub ratio_cpu: Option<f64>,
    /// Rows, or sums, compared.
    pub checked: u64,
}

impl CriteoResult {
    /// What its peer publishes of the shape, what was found here, and where the peer's way is the better one.
    pub fn words(&self) -> Option<String> {
        self.shape.words(self.scale, (self.seen_us, self.ids_per_second), self.ids_hbm / self.ids as f64)
    }
}

fn tables(setup: &CriteoSetup) -> Vec<FixtureTable> {
    let table = |(index, rows): (u64, u64)| {
        let rows = (rows / setup.scale.max(1)).max(3);
        let content = ContentOracle::new(setup.seed, index, rows, DIM, DType::F32);
        let hot_rows = (rows as f64 * setup.memory).ceil() as u64;
        FixtureTable { hot_rows: hot_rows.min(rows), ..FixtureTable::new(format!("cat{index}"), content) }
    };
    (0..).zip(setup.shape.rows()).map(table).collect()
}

/// Looks up batches of all sizes with all shares in GPU memory. `note` is told where it is, and what is left out.
pub fn run(stream: &Stream, setup: &CriteoSetup, note: &mut dyn FnMut(&str)) -> anyhow::Result<Vec<CriteoResult>> {
    ensure!((0.0..=1.0).contains(&setup.memory), "a share of {} in memory: 0 to 1", setup.memory);
    ensure!(
        setup.hbm.iter().all(|hbm| (0.0..=setup.memory).contains(hbm)),
        "GPU memory holds part of what memory does"
    );
    ensure!(setup.hot.iter().chain(&setup.batches).all(|&count| count > 0), "batches and bags have an id at least");
    let tables = tables(setup);
    let most = setup.batches.iter().copied().max().context("no batches")?;
    let rows: u64 = tables.iter().map(|table| table.content.rows()).sum();
    let hot_bytes: u64 = tables.iter().map(|table| table.hot_rows * u64::from(DIM) * 4).sum();
    let count = tables.len() as u64;
    let size = bytes(rows * 512);
    note(&format!("{count} tables, {rows} rows, {size}, of which {} in memory", bytes(hot_bytes)));
    let fixture = Fixture { drives: setup.drives, media: setup.media, disorder: true, ..Fixture::default() };
    let store = fixture.store(&tables, None)?;
    let everything = Everything::new(&tables)?;
    if everything.is_none() {
        note("memory does not hold a copy of everything: all cores on that do not take part; choose a larger --scale");
    }
    let drawn =
        tables.iter().map(|table| Drawn::new(table.content, setup.alpha)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut results = Vec::new();
    for &hot in &setup.hot {
        let pooled = hot > 1;
        let most_ids = most * count * hot;
        let plan_options = PlanOptions::default().with_max(most as usize, most_ids as usize);
        let mut request = Request::new(stream, &drawn, most_ids, most * count, mix_all([setup.seed, hot]))?;
        let staging = PinnedMemory::allocate(stream.gpu(), most * count * u64::from(DIM) * 4)?;
        let mut host = HostSide::new(&store, &tables, hot, hot_bytes, plan_options.clone())?;
        for &hbm in &setup.hbm {
            // As much in both together, whatever the GPU has of it.
            let hbm_bytes = (hot_bytes as f64 * hbm / setup.memory.max(f64::MIN_POSITIVE)) as u64;
            // Of shares that are rounded a row would be left for the drives.
            let dram_bytes = if setup.memory < 1.0 { hot_bytes - hbm_bytes } else { u64::MAX / 2 };
            let options = GpuOptions::default().with_hbm_bytes(hbm_bytes).with_dram_bytes(dram_bytes);
            let executor = GpuExecutor::attach(&store, stream.gpu().clone(), options)?;
            let plan = executor.plan(&features(&tables, hot), plan_options.clone())?;
            for &batch in &setup.batches {
                note(&format!("{} of {hbm} in GPU memory, batches of {batch}", if pooled { "sums" } else { "rows" }));
                let shape = Shape { bags: batch, hot, pooled };
                request.reshape(shape)?;
                let timed = TimedLookup::new(&plan, stream, &request)?;
                let checked = request.checked;
                let mut samples: [Vec<f64>; 10] = Default::default();
                let mut by_host_us = Vec::new();
                let mut stages = [(); 6].map(|()| Vec::new());
                let mut cpu = Vec::new();
                // The first is for warming up.
                for run in 0..=setup.runs {
                    request.draw(stream)?;
                    let (took, report) = timed.replayed(stream)?;
                    request.check(stream, 4)?;
                    request.draw(stream)?;
                    let (seen, _) = timed.called_seen(stream, &request)?;
                    request.check(stream, 4)?;
                    // The others are much slower: fewer of theirs are enough.
                    let rivals = run % 3 == 1 || run == 0;
                    if rivals {
                        request.draw(stream)?;
                        let (host_took, host_report) = host.answer(stream, &request, shape, &staging)?;
                        request.check(stream, 4)?;
                        if run > 0 {
                            by_host_us.push(us(host_took));
                            stages.iter_mut().zip(host_report.stages).for_each(|(all, stage)| all.push(us(stage)));
                        }
                    }
                    if let Some(everything) = everything.as_ref().filter(|_| rivals) {
                        request.draw(stream)?;
                        let took = everything.answer(stream, &request, shape, &staging)?;
                        request.check(stream, 4)?;
                        cpu.extend((run > 0).then(|| us(took)));
                    }
                    if run > 0 {
                        let rate = match report.commands {
                            0 => 0.0,
                            commands => commands as f64 / report.fetch.as_secs_f64(),
                        };
                        let counts = [report.ids_hbm, report.ids_dram, report.ids_ssd, report.commands]
                            .map(|number| number as f64);
                        let parts = [took, seen, report.prepare, report.fetch, report.expand].map(us);
                        let all = counts.into_iter().chain(parts).chain([rate]);
                        samples.iter_mut().zip(all).for_each(|(samples, sample)| samples.push(sample));
                    }
                }
                let [ids_hbm, ids_dram, ids_ssd, commands, graph_us, seen_us, prepare_us, fetch_us, expand_us, rate] =
                    samples.map(median);
                let cpu_us = Some(median(cpu)).filter(|time| time.is_finite());
                let host = HostTimes { all: median(by_host_us), stages: stages.map(median) };
                results.push(CriteoResult {
                    shape: setup.shape,
                    scale: setup.scale,
                    hbm,
                    memory: setup.memory,
                    batch,
                    hot,
                    ids: request.count(),
                    ids_hbm,
                    ids_dram,
                    ids_ssd,
                    commands,
                    kernels: timed.kernels(),
                    graph_us,
                    seen_us,
                    prepare_us,
                    fetch_us,
                    expand_us,
                    ids_per_second: request.count() as f64 / graph_us * 1e6,
                    commands_per_second: rate,
                    host,
                    cpu_us,
                    ratio_host: host.all / seen_us,
                    ratio_cpu: cpu_us.map(|time| time / seen_us),
                    checked: request.checked - checked,
                });
            }
        }
    }
    Ok(results)
}

/// Names of the host executor's stages, in their order.
pub(super) fn stage_names() -> String {
    Stage::ALL.map(Stage::name).join(" + ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_scaled_and_never_empty() {
        let setup = CriteoSetup {
            shape: Tables::Criteo,
            scale: 1000,
            memory: 0.05,
            hbm: vec![0.0],
            batches: vec![256],
            hot: vec![1],
            alpha: 1.05,
            drives: 1,
            media: Media::Computed,
            runs: 1,
            seed: 1,
        };
        let tables = tables(&setup);
        assert_eq!(tables.len(), 26);
        assert_eq!((tables[0].content.rows(), tables[0].hot_rows), (40_000, 2000));
        assert_eq!((tables[5].content.rows(), tables[5].hot_rows), (3, 1));
        // What the GPU's look-ups are measured on answers on the host, too.
        let store = Fixture { media: Media::Computed, ..Fixture::default() }.store(&tables, None).unwrap();
        let mut host = HostSide::new(&store, &tables, 1, 1 << 20, PlanOptions::default().with_max(8, 208)).unwrap();
        let ids: Vec<i64> = (0..208).map(|i| (i * 37 % tables[i as usize / 8].content.rows()) as i64).collect();
        let mut rows = vec![0f32; 208 * 128];
        host.lookup(&ids, 8, &mut rows).unwrap();
        for (i, (row, &id)) in rows.chunks(128).zip(&ids).enumerate() {
            let mut wanted = vec![0; 512];
            tables[i / 8].content.fill(id as u64, &mut wanted);
            assert!(zerocopy::IntoBytes::as_bytes(row) == wanted, "id {id} of table {}", i / 8);
        }
    }
}
