//! A table in DRAM, and look-ups in it.

use anyhow::Context;
use warprow_gpu::{GpuExecutor, GpuOptions, GpuPlan};
use warprow_lookup::{Feature, PlanOptions, Pooling};
use warprow_store::Store;

use super::setup::DramSetup;
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::gpu::Stream;
use crate::gpu::processor::HostRows;

/// A store whose only table will be in DRAM. The drive's rows are computed, so that memory holds them once.
pub(super) fn store(setup: &DramSetup) -> anyhow::Result<Store> {
    setup.check()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fixture = Fixture { drives: (cores / 2).clamp(1, 8) as u32, media: Media::Computed, ..Fixture::default() };
    fixture.store(&[FixtureTable::new("table", setup.content())], None)
}

/// The table in DRAM, where it lies, and a plan of look-ups in it.
pub(super) struct DramTable {
    pub(super) executor: GpuExecutor,
    pub(super) plan: GpuPlan,
    pub(super) rows: HostRows,
}

impl DramTable {
    pub(super) fn new(store: &Store, stream: &Stream, setup: &DramSetup, most: u64) -> anyhow::Result<Self> {
        let mut options = GpuOptions::default().with_dram_bytes(u64::MAX / 2).with_gatherers(setup.gatherers);
        options.direct_ids = setup.direct_ids;
        let executor = GpuExecutor::attach(store, stream.gpu().clone(), options)?;
        let feature = Feature::new("f", "table").pooling(Pooling::None);
        let plan = executor.plan(&[feature], PlanOptions::default().with_max(1, most as usize))?;
        let found = executor.dram_rows("table").context("no rows in DRAM")?;
        let row_bytes = setup.row_bytes as usize;
        let on_gpu = found.on_gpu;
        let here = found.here;
        let stride = found.stride as usize;
        let rows = HostRows { on_gpu, here, stride, row_bytes };
        Ok(Self { executor, plan, rows })
    }
}
