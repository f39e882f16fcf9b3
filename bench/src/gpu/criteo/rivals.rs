//! The processor as a rival: the host executor on the same store, and all cores on a copy of everything.

use std::time::{Duration, Instant};

use anyhow::ensure;
use warprow_dma::{DmaMemory, MemoryKind};
use warprow_gpu_queues::PinnedMemory;
use warprow_lookup::{Batch, HostExecutor, HostOptions, LookupReport, Output, OutputRows, PlanOptions, Slot};
use warprow_store::Store;
use warprow_workload::{TableContent, available_memory};

use super::features::features;
use super::shapes::DIM;
use crate::fixtures::FixtureTable;
use crate::gpu::processor::{HostRows, gather, pool, share};
use crate::gpu::{Request, Shape, Stream};

/// A copy of all rows in DRAM, if memory has room for it.
pub(super) struct Everything {
    /// What `rows` point to.
    _memory: DmaMemory,
    rows: Vec<HostRows>,
}

impl Everything {
    /// `None`: memory has no room for it.
    pub(super) fn new(tables: &[FixtureTable]) -> anyhow::Result<Option<Self>> {
        let row_bytes = DIM as usize * 4;
        let bytes: u64 = tables.iter().map(|table| table.content.rows() * row_bytes as u64).sum();
        // What CUDA and outputs will still want.
        if bytes + (8 << 30) > available_memory().unwrap_or(0) {
            return Ok(None);
        }
        let memory = DmaMemory::allocate(usize::try_from(bytes)?, MemoryKind::Auto)?;
        let mut rows = Vec::new();
        let mut at = 0;
        for FixtureTable { content, .. } in tables {
            let begin = at;
            share(content.rows() as usize, 4096, |part| {
                let mut row = vec![0; row_bytes];
                for id in part {
                    content.fill(id as u64, &mut row);
                    memory.write(begin + id * row_bytes, &row);
                }
            });
            let here = memory.as_ptr().cast_const().wrapping_add(begin);
            rows.push(HostRows { on_gpu: 0, here, stride: row_bytes, row_bytes });
            at += content.rows() as usize * row_bytes;
        }
        Ok(Some(Self { _memory: memory, rows }))
    }

    /// All cores gather or sum into pinned memory, and that is copied to the GPU; by the clock.
    pub(super) fn answer(
        &self,
        stream: &Stream,
        request: &Request,
        shape: Shape,
        staging: &PinnedMemory,
    ) -> anyhow::Result<Duration> {
        let ids = request.ids()?;
        let began = Instant::now();
        match shape.pooled {
            false => gather(&self.rows, (shape.bags * shape.hot) as usize, &ids, staging),
            true => pool(&self.rows, shape.bags as usize, shape.hot as usize, &ids, staging),
        }
        // SAFETY: both have room for the answer, and it is waited for.
        unsafe { stream.copy(request.out_at(), staging.memory().as_ptr(), request.out_bytes() as usize)? };
        stream.wait()?;
        Ok(began.elapsed())
    }
}

/// The host executor on the store, with a slot for one look-up at a time.
pub(super) struct HostSide {
    slot: Slot,
    width: usize,
}

impl HostSide {
    /// With so many bytes of rows in DRAM.
    pub(super) fn new(
        store: &Store,
        tables: &[FixtureTable],
        hot: u64,
        dram: u64,
        options: PlanOptions,
    ) -> anyhow::Result<Self> {
        let host = HostExecutor::attach(store, HostOptions::default().with_dram_bytes(dram))?;
        let plan = host.plan(&features(tables, hot), options)?;
        Ok(Self { slot: plan.slot()?, width: plan.width() })
    }

    /// A look-up into ordinary memory.
    pub(super) fn lookup(&mut self, ids: &[i64], bags: u64, rows: &mut [f32]) -> anyhow::Result<LookupReport> {
        Ok(self.slot.lookup(&Batch::new(ids, bags as usize), &mut Output::new(OutputRows::F32(rows), self.width))?)
    }

    /// A look-up into pinned memory, and a copy to the GPU; by the clock.
    pub(super) fn answer(
        &mut self,
        stream: &Stream,
        request: &Request,
        shape: Shape,
        staging: &PinnedMemory,
    ) -> anyhow::Result<(Duration, LookupReport)> {
        let ids = request.ids()?;
        let bytes = request.out_bytes() as usize;
        ensure!(bytes <= staging.memory().len(), "{bytes} bytes of output have no room");
        let began = Instant::now();
        // SAFETY: the memory is this slice's alone until the copy begins, aligned, and long enough (checked).
        let rows = unsafe { std::slice::from_raw_parts_mut(staging.memory().as_ptr().cast::<f32>(), bytes / 4) };
        let report = self.lookup(&ids, shape.bags, rows)?;
        // SAFETY: both have room for the answer, and it is waited for.
        unsafe { stream.copy(request.out_at(), staging.memory().as_ptr(), bytes)? };
        stream.wait()?;
        Ok((began.elapsed(), report))
    }
}
