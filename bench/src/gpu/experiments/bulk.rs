//! Bulk copies: from pinned memory into shared memory, and from there into GPU memory.

use anyhow::ensure;

use super::BulkPoint;
use super::fixture::{Fixture, KeysAt};
use crate::gpu::Stream;
use crate::gpu::module::{Kernel, Module};

pub(in crate::gpu) const SOURCE: &str = include_str!("../cuda/bulk.cu");

/// Since which compute capability there are bulk copies.
pub(super) const BULK_SINCE: (u32, u32) = (9, 0);
/// Threads of a block.
const WARP: u32 = 32;
/// Stages of a block, as in bulk.cu; two are not on their way while one is waited for.
const STAGES: u32 = 4;
/// Most shared memory of a block: a GPU of compute capability 9.0 has 227 KiB.
const MOST_SHARED: u32 = 160 << 10;
/// Least bytes of a stage: with less there is no point in its barrier.
const LEAST_STAGE: u32 = 1 << 10;

/// The kernel.
#[derive(Debug)]
pub(super) struct Bulk {
    module: Module,
    gather: Kernel,
}

impl Bulk {
    pub(super) fn new(stream: &Stream) -> anyhow::Result<Self> {
        let module = Module::new(stream.gpu(), SOURCE, &[])?;
        let gather = module.kernel(c"bulk_gather")?;
        module.allow_shared(gather, MOST_SHARED)?;
        Ok(Self { module, gather })
    }

    /// Launches it.
    pub(super) fn gather(
        &self,
        stream: &Stream,
        fixture: &Fixture<'_>,
        keys: KeysAt,
        by: &BulkPoint,
    ) -> anyhow::Result<()> {
        let row_bytes = u64::from(fixture.row_bytes());
        ensure!(by.each <= 128 && by.shared >= STAGES * by.each * fixture.row_bytes(), "no such way: {by:?}");
        let parameters = [fixture.table(), keys.at, fixture.out(), keys.count, row_bytes, u64::from(by.each)];
        // SAFETY: the table has every key's row, the output room for all; rows and addresses are multiples of 16, and there is shared
        // memory for all stages.
        unsafe { self.module.launch_with(self.gather, stream, (by.blocks, WARP, by.shared), parameters) }
    }
}

/// Ways to begin copies of such rows on a GPU of so many multiprocessors, without times.
pub(super) fn points(sms: u32, row_bytes: u32) -> Vec<BulkPoint> {
    let blocks = [16, 8, 4, 2, 1].map(|part| (sms / part).max(1));
    let ways = [2, 8, 32, 128].map(|each| BulkPoint {
        blocks: 0,
        each,
        in_flight: each * (STAGES - 2),
        shared: STAGES * each * row_bytes,
        us: f64::NAN,
    });
    let fits = |way: &BulkPoint| way.shared <= MOST_SHARED && way.each * row_bytes >= LEAST_STAGE;
    let ways = ways.into_iter().filter(fits);
    ways.flat_map(|way| blocks.map(|blocks| BulkPoint { blocks, ..way })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_ways_that_fit() {
        for row_bytes in (16..=4096).step_by(16) {
            let points = points(132, row_bytes);
            assert!(!points.is_empty(), "rows of {row_bytes}");
            for point in points {
                assert!(point.shared <= 227 << 10 && point.each <= 128 && point.blocks >= 1, "{row_bytes}: {point:?}");
                // A barrier counts fewer bytes than 2^20.
                assert!(point.each * row_bytes < 1 << 20);
            }
        }
        assert_eq!(points(132, 128).iter().map(|point| point.blocks).min(), Some(8));
        assert_eq!(points(1, 128).iter().map(|point| point.blocks).min(), Some(1));
    }

    #[test]
    fn the_kernel_has_as_many_stages() {
        assert!(SOURCE.contains(&format!("constexpr u32 STAGES = {STAGES};")));
    }
}
