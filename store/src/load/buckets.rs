//! Rows that come in the order of their ids, to be written in the order of their ranks.
//!
//! A table that fits in memory is put in order there. A larger one is cut into *buckets* of consecutive ranks that do: its
//! rows are first written to their bucket's place on the drives, as they come; then each bucket is read, put in order and
//! written again. All transfers are large; no other place is needed. Rows that come in the order of their ranks need none of that:
//! each bucket of them, a small one, is written while the next is read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

use warprow_dma::DmaMemory;
use warprow_layout::{Extent, LbaRegion, Placement, Ranks, RowSource, Table, VolumeError};

use super::checksummed_rows::ChecksummedRows;
use super::load_writer::LoadWriter;
use crate::StoreError;

/// Bytes of rows that are asked of a source at once.
const STREAM: usize = 1 << 20;
/// Threads that put rows in order, at most: memory is busy with fewer.
const THREADS: usize = 8;

/// The rows of some ranks, in their order, one after another.
pub(super) struct Bucket {
    pub(super) number: u64,
    /// Of the kind that threads can share: several put rows in order.
    rows: DmaMemory,
}

pub(super) struct Buckets<'a> {
    table: &'a Table,
    placement: &'a Placement,
    /// The rank of each row; `None`: they come in the order of their ranks.
    ranks: Option<&'a Ranks>,
    /// Rows in a stripe unit.
    unit_rows: u64,
    /// Stripe units of a bucket.
    units: u64,
}

impl<'a> Buckets<'a> {
    /// Buckets of at most `memory` bytes each, but of a stripe unit at least.
    pub(super) fn new(table: &'a Table, placement: &'a Placement, ranks: Option<&'a Ranks>, memory: u64) -> Self {
        let packing = &table.packing;
        let groups = placement.stripe_lbas() / u64::from(packing.group_lbas()).max(1);
        let unit_rows = (groups * packing.group_rows().divisor()).max(1);
        let units = (memory / (unit_rows * u64::from(packing.row_bytes()))).max(1);
        Self { table, placement, ranks, unit_rows, units }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.table.rows.div_ceil(self.rows())
    }

    /// Rows of each but the last.
    fn rows(&self) -> u64 {
        self.units.saturating_mul(self.unit_rows)
    }

    /// Whether rows come in the order of their ranks: each bucket's when those before it have come.
    pub(super) fn in_turn(&self) -> bool {
        self.ranks.is_none()
    }

    fn rank(&self, id: u64) -> u64 {
        self.ranks.map_or(Some(id), |ranks| ranks.get(id)).unwrap_or(u64::MAX)
    }

    /// Where a bucket lies.
    pub(super) fn region(&self, bucket: u64) -> LbaRegion {
        let whole = self.table.rows_region;
        let lbas = self.units.saturating_mul(self.placement.stripe_lbas());
        let begin = bucket.saturating_mul(lbas).min(whole.lbas);
        LbaRegion { first_lba: whole.first_lba + begin, lbas: lbas.min(whole.lbas - begin) }
    }

    /// Byte within a stripe unit at which its row `index` begins.
    fn offset(&self, index: u64) -> usize {
        let (lba, byte) = self.table.packing.locate(index);
        lba as usize * self.placement.lba_size() as usize + byte as usize
    }

    fn row_bytes(&self) -> usize {
        self.table.row_bytes() as usize
    }

    /// All rows of the source, each with its rank. Asks for them in the order of their ids, and gives them to `take` in
    /// whatever order its callers, one or several threads with the same `next`, come to it. `taken` hears how many were
    /// taken at once, and may end it for all.
    fn stream(
        &self,
        source: &dyn RowSource,
        next: &Mutex<u64>,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
        mut taken: impl FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let row_bytes = self.row_bytes();
        let mut rows = vec![0; (STREAM / row_bytes).max(1) * row_bytes];
        let lock = || next.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut next = lock();
            let first = *next;
            let count = (self.table.rows - first).min((rows.len() / row_bytes) as u64) as usize;
            if count == 0 {
                return Ok(());
            }
            let rows = &mut rows[..count * row_bytes];
            let read = source.read(first, row_bytes, rows);
            // After a failure nobody goes on.
            *next = if read.is_ok() { first + count as u64 } else { self.table.rows };
            drop(next);
            read.map_err(|source| VolumeError::Source { table: self.table.name.clone(), source })?;
            for (id, row) in (first..).zip(rows.chunks_exact(row_bytes)) {
                take(self.rank(id), row)?;
            }
            taken(count as u64).inspect_err(|_| *lock() = self.table.rows)?;
        }
    }

    /// Gives all rows of the source to `put`, each with its rank, on several threads. `gathered` hears on the calling one how
    /// many bytes of them there were since it was last called, and may end it.
    fn stream_in_parallel(
        &self,
        source: &dyn RowSource,
        put: &(impl Fn(u64, &[u8]) + Sync),
        gathered: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let next = Mutex::new(0);
        let done = AtomicU64::new(0);
        let run = |tell: &mut dyn FnMut(u64) -> Result<(), StoreError>| {
            let take = |rank: u64, row: &[u8]| {
                put(rank, row);
                Ok(())
            };
            self.stream(source, &next, take, |rows| {
                done.fetch_add(rows * self.row_bytes() as u64, Ordering::Relaxed);
                tell(rows)
            })
        };
        let bytes = self.table.rows * self.row_bytes() as u64;
        let useful = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        std::thread::scope(|scope| {
            let others = (1..useful as u64).take_while(|thread| thread * (STREAM as u64) < bytes);
            // Without a thread the others do its work.
            let others =
                others.filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, || run(&mut |_| Ok(()))).ok());
            let others: Vec<_> = others.collect();
            let mine = run(&mut |_| gathered(done.swap(0, Ordering::Relaxed)));
            others.into_iter().fold(mine, |all, thread| match thread.join() {
                Ok(theirs) => all.and(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        gathered(done.into_inner())
    }

    /// Writes every row to its bucket, if there is more than one, in the order in which they come; but for buckets that are `whole`.
    pub(super) fn partition(
        &self,
        source: &dyn RowSource,
        writer: &mut LoadWriter<'_, '_>,
        whole: &[bool],
    ) -> Result<(), StoreError> {
        if self.count() < 2 {
            return Ok(());
        }
        let row_bytes = self.row_bytes();
        // Each bucket's unfinished stripe unit, and the rows that have come.
        let unit_bytes = self.placement.stripe_bytes() as usize;
        let mut open: Vec<(Vec<u8>, u64)> = (0..self.count()).map(|_| (vec![0; unit_bytes], 0)).collect();
        let mut write = |bucket: u64, unit: u64, content: &[u8]| match whole.get(bucket as usize) {
            Some(true) => Ok(()),
            _ => self.write_unit(bucket, unit, content, writer),
        };
        let take = |rank: u64, row: &[u8]| {
            let bucket = rank / self.rows();
            let Some((content, come)) = open.get_mut(bucket as usize) else { return Ok(()) };
            let begin = self.offset(*come % self.unit_rows);
            if let Some(place) = content.get_mut(begin..begin + row_bytes) {
                place.copy_from_slice(row);
            }
            *come += 1;
            if come.is_multiple_of(self.unit_rows) {
                write(bucket, *come / self.unit_rows - 1, content)?;
            }
            Ok(())
        };
        self.stream(source, &Mutex::new(0), take, |_| Ok(()))?;
        for (bucket, (content, come)) in (0..).zip(&open) {
            if !come.is_multiple_of(self.unit_rows) {
                write(bucket, come / self.unit_rows, content)?;
            }
        }
        writer.finish()
    }

    /// Begins to write stripe unit `unit` of a bucket.
    fn write_unit(
        &self,
        bucket: u64,
        unit: u64,
        content: &[u8],
        writer: &mut LoadWriter<'_, '_>,
    ) -> Result<(), StoreError> {
        let lbas = self.placement.stripe_lbas();
        let region = LbaRegion { first_lba: self.region(bucket).first_lba + unit * lbas, lbas };
        self.placement.extents(region, content.len()).try_for_each(|extent| {
            writer.write(None, extent, |extent, buf| {
                debug_assert_eq!(extent.bytes, content.len(), "a stripe unit is one extent");
                buf.copy_from_slice(content);
                Ok(())
            })
        })
    }

    /// A bucket's rows in the order of their ranks: from the source if there is but one bucket, else from the drives. Their checksums
    /// are noted.
    pub(super) fn gather(
        &self,
        bucket: u64,
        source: &ChecksummedRows<'_>,
        writer: &mut LoadWriter<'_, '_>,
    ) -> Result<Bucket, StoreError> {
        let first_rank = bucket * self.rows();
        let count = self.rows().min(self.table.rows - first_rank);
        let row_bytes = self.row_bytes();
        let len = usize::try_from(count * row_bytes as u64).unwrap_or(usize::MAX);
        let rows = allocate(len)?;
        let put = |rank: u64, row: &[u8]| {
            source.note(rank, row);
            let begin = rank.wrapping_sub(first_rank).saturating_mul(row_bytes as u64) as usize;
            if rows.contains(begin, row.len()) {
                rows.write(begin, row);
            }
        };
        if self.count() < 2 {
            self.stream_in_parallel(source.source, &put, &mut |bytes| writer.meter().gathered(bytes))?;
            return Ok(Bucket { number: bucket, rows });
        }
        // Rows came in the order of their ids; the ranks in that order tell which is which.
        let here = first_rank..first_rank + count;
        let come: Vec<u64> = (0..self.table.rows).map(|id| self.rank(id)).filter(|rank| here.contains(rank)).collect();
        let region = self.region(bucket);
        writer.read(self.placement.extents(region, writer.extent_bytes()), |extent, buf, meter| {
            let mut rows = 0;
            for (lba, bytes) in extent.pieces() {
                let unit = (lba - region.first_lba) / self.placement.stripe_lbas();
                let content = buf.get(bytes).unwrap_or_default();
                let ranks = come.iter().skip((unit * self.unit_rows) as usize);
                for (index, &rank) in (0..self.unit_rows).zip(ranks) {
                    let begin = self.offset(index);
                    put(rank, content.get(begin..begin + row_bytes).unwrap_or_default());
                    rows += 1;
                }
            }
            meter.gathered(rows * row_bytes as u64)
        })?;
        Ok(Bucket { number: bucket, rows })
    }

    /// Reads the buckets `wanted` on a thread of its own, one ahead of the one that `take` has: for sources whose rows come in turn.
    /// The rows are read through `source`, which notes them.
    pub(super) fn each_in_turn(
        &self,
        source: &dyn RowSource,
        wanted: &[u64],
        mut take: impl FnMut(&Bucket) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (full, buckets) = sync_channel(1);
        let (used, empty) = sync_channel(2);
        for _ in 0..wanted.len().min(2) {
            let bytes = self.rows().min(self.table.rows) * self.row_bytes() as u64;
            // There is room for both.
            let _ = used.send(allocate(usize::try_from(bytes).unwrap_or(usize::MAX))?);
        }
        std::thread::scope(|scope| {
            let read = move || {
                for (&number, rows) in wanted.iter().zip(empty) {
                    let bucket = self.read(number, source, rows);
                    let failed = bucket.is_err();
                    // Nobody listens any longer after a failure.
                    if full.send(bucket).is_err() || failed {
                        return;
                    }
                }
            };
            std::thread::Builder::new().spawn_scoped(scope, read).map_err(|source| StoreError::Allocate {
                what: "a thread that reads rows",
                bytes: 0,
                source,
            })?;
            // Ended, whatever happens, before the thread is waited for.
            for bucket in buckets {
                let bucket = bucket?;
                take(&bucket)?;
                // Behind the last but one nobody wants it.
                let _ = used.send(bucket.rows);
            }
            drop(used);
            Ok(())
        })
    }

    /// A bucket of rows that come in turn.
    fn read(&self, number: u64, source: &dyn RowSource, rows: DmaMemory) -> Result<Bucket, StoreError> {
        let first = number * self.rows();
        let row_bytes = self.row_bytes();
        let count = self.rows().min(self.table.rows - first);
        let at_once = (STREAM / row_bytes).max(1) as u64;
        let mut some = vec![0; at_once.min(count) as usize * row_bytes];
        for begin in (0..count).step_by(at_once as usize) {
            let some = &mut some[..at_once.min(count - begin) as usize * row_bytes];
            let read = source.read(first + begin, row_bytes, some);
            read.map_err(|source| VolumeError::Source { table: self.table.name.clone(), source })?;
            rows.write(begin as usize * row_bytes, some);
        }
        Ok(Bucket { number, rows })
    }

    /// The content of an extent of a bucket's region.
    pub(super) fn fill(&self, bucket: &Bucket, extent: &Extent, buf: &mut [u8]) {
        let region = self.region(bucket.number);
        let row_bytes = self.row_bytes();
        let is_dense = self.table.packing.is_dense();
        let rows = self.rows().min(self.table.rows - bucket.number * self.rows());
        for (lba, bytes) in extent.pieces() {
            let unit = (lba - region.first_lba) / self.placement.stripe_lbas();
            let first = unit * self.unit_rows;
            let content = buf.get_mut(bytes).unwrap_or_default();
            let here = rows.saturating_sub(first).min(self.unit_rows);
            let begin = first as usize * row_bytes;
            if is_dense && here as usize * row_bytes >= content.len() {
                bucket.rows.read(begin, content);
                continue;
            }
            content.fill(0);
            for index in 0..here {
                let place = self.offset(index);
                if let Some(place) = content.get_mut(place..place + row_bytes) {
                    bucket.rows.read(begin + index as usize * row_bytes, place);
                }
            }
        }
    }
}

fn allocate(len: usize) -> Result<DmaMemory, StoreError> {
    DmaMemory::allocate(len, warprow_dma::MemoryKind::Anonymous).map_err(|error| StoreError::Allocate {
        what: "putting rows in order",
        bytes: len as u64,
        source: std::io::Error::new(error.source.kind(), error),
    })
}
