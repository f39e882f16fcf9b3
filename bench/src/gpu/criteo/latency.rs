//! Small look-ups: how long one takes, and how long the longest.

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use warprow_gpu::GpuExecutor;
use warprow_gpu::GpuOptions;
use warprow_layout::DType;
use warprow_lookup::{Feature, PlanOptions};
use warprow_store::Store;
use warprow_workload::{ContentOracle, HistogramBar, IdShuffle, Latencies, TableContent};

use super::ids::different;
use super::percentiles::Percentiles;
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::gpu::{Drawn, Gather, Request, Shape, Stream, TimedLookup};

/// Elements of a row.
const DIM: u32 = 128;

/// Where all rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// GPU memory.
    Hbm,
    /// Pinned memory.
    Dram,
}

impl Tier {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Hbm, Self::Dram];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hbm => "GPU memory",
            Self::Dram => "DRAM",
        }
    }

    /// Options that put every row there.
    pub(super) fn options(self) -> GpuOptions {
        let all = u64::MAX / 2;
        match self {
            Self::Hbm => GpuOptions::default().with_hbm_bytes(all),
            Self::Dram => GpuOptions::default().with_dram_bytes(all),
        }
    }

    /// The aim, microseconds: 10 in GPU memory; 10 and what 33 million rows a second take in DRAM, 40 at most.
    fn aim(self, ids: u64) -> f64 {
        match self {
            Self::Hbm => 10.0,
            Self::Dram => (10.0 + ids as f64 / 33.0).min(40.0),
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct LatencySetup {
    /// Bytes of the table, rows of 512 B.
    pub size: u64,
    /// Different ids of a batch.
    pub ids: u64,
    /// Batches, each with fresh ids, for each way of measuring.
    pub batches: u64,
    /// Of contents and ids.
    pub seed: u64,
}

/// One tier.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LatencyResult {
    /// Where all rows lie.
    pub tier: Tier,
    /// Bytes of the table.
    pub size: u64,
    /// Different ids of a batch.
    pub ids: u64,
    /// Batches.
    pub batches: u64,
    /// Kernels of a look-up.
    pub kernels: usize,
    /// As a graph, by the GPU, its launch hidden.
    pub graph: Percentiles,
    /// As a graph, by the clock, from its launch until its ticket says that it has ended.
    pub graph_seen: Percentiles,
    /// A plain gather's graph in the same way as the first; of rows in DRAM.
    pub uva_graph: Option<Percentiles>,
    /// The aim, microseconds.
    pub aim_us: f64,
    /// Whether the graph's median, and its 99th percentile, are within it.
    pub met: [bool; 2],
    /// The graph's times.
    pub histogram: Vec<HistogramBar>,
    /// Rows compared.
    pub checked: u64,
}

/// Measures both tiers on one table.
pub fn latencies(
    stream: &Stream,
    setup: &LatencySetup,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<LatencyResult>> {
    let rows = setup.size / (u64::from(DIM) * 4);
    ensure!(setup.ids > 0 && setup.ids <= rows, "{} different ids of {rows}", setup.ids);
    let content = ContentOracle::new(setup.seed, 0, rows, DIM, DType::F32);
    let fixture = Fixture { drives: 4, media: Media::Computed, ..Fixture::default() };
    let store = fixture.store(&[FixtureTable::new("table", content)], None)?;
    let one = |tier: &Tier| {
        note(&format!("{} batches of {} ids, rows in {}", setup.batches, setup.ids, tier.name()));
        measure(stream, setup, &store, content, *tier)
    };
    Tier::ALL.iter().map(one).collect()
}

fn measure(
    stream: &Stream,
    setup: &LatencySetup,
    store: &Store,
    content: ContentOracle,
    tier: Tier,
) -> anyhow::Result<LatencyResult> {
    let executor = GpuExecutor::attach(store, stream.gpu().clone(), tier.options())?;
    let options = PlanOptions::default().with_max(setup.ids as usize, setup.ids as usize);
    let plan = executor.plan(&[Feature::new("f", "table")], options)?;
    let mut request = Request::new(stream, &[Drawn::new(content, 0.0)?], setup.ids, setup.ids, setup.seed)?;
    request.reshape(Shape { bags: setup.ids, hot: 1, pooled: false })?;
    let timed = TimedLookup::new(&plan, stream, &request)?;
    let row_bytes = u64::from(DIM) * 4;
    let gather = executor.dram_rows("table").map(|rows| Gather {
        table: rows.on_gpu,
        stride: rows.stride.into(),
        ids: request.ids_at(),
        out: request.out_at(),
        count: setup.ids,
        row_bytes,
    });
    ensure!(gather.is_some() == (tier == Tier::Dram), "rows are not in {}", tier.name());
    // SAFETY: the table has every row, the request room for all; both outlive the graph's launches.
    let plain =
        gather.map(|gather| stream.capture(|| unsafe { stream.kernels().gather(stream, &gather) })).transpose()?;
    let shuffle = IdShuffle::new(content.rows(), setup.seed);
    let mut ids = vec![0i64; setup.ids as usize];
    let mut hidden = Latencies::new();
    let mut seen = Latencies::new();
    let mut uva = Latencies::new();
    let warm_up = setup.batches.min(100);
    let mut number = 0;
    let mut fresh = |request: &mut Request| {
        different(&shuffle, number, &mut ids);
        number += 1;
        request.upload(stream, &ids)
    };
    for batch in 0..setup.batches + warm_up {
        let keep = |latencies: &mut Latencies, took| {
            if batch >= warm_up {
                latencies.record(took)
            }
        };
        fresh(&mut request)?;
        keep(&mut hidden, timed.replayed(stream)?.0);
        request.check(stream, 1)?;
        fresh(&mut request)?;
        keep(&mut seen, timed.replayed_seen(stream)?.0);
        request.check(stream, 1)?;
        if let Some((graph, ())) = &plain {
            fresh(&mut request)?;
            keep(&mut uva, stream.hidden(|| stream.launch(graph))?.0);
            request.check(stream, 1)?;
        }
    }
    let graph = Percentiles::of(&hidden);
    let aim_us = tier.aim(setup.ids);
    Ok(LatencyResult {
        tier,
        size: setup.size,
        ids: setup.ids,
        batches: hidden.count(),
        kernels: timed.kernels(),
        graph,
        graph_seen: Percentiles::of(&seen),
        uva_graph: plain.is_some().then(|| Percentiles::of(&uva)),
        aim_us,
        met: [graph.p50 <= aim_us, graph.p99 <= aim_us],
        histogram: hidden.bars(24),
        checked: request.checked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims() {
        assert_eq!(Tier::Hbm.aim(1000), 10.0);
        assert!((Tier::Dram.aim(330) - 20.0).abs() < 1e-9);
        assert_eq!(Tier::Dram.aim(100_000), 40.0);
    }
}
