//! Rows of a table's source, whose checksums are noted on the way.

use std::sync::atomic::{AtomicU32, Ordering};

use warprow_layout::{Extent, LbaRegion, Ranks, RowSource, Table, VolumeError, row_crc};

use crate::attach::ranks;

/// A table's source as its loader sees it; notes every row's checksum on the way.
pub(super) struct ChecksummedRows<'a> {
    /// Where the rows come from.
    pub(super) source: &'a dyn RowSource,
    /// Id → rank, or key number → rank; `None`: the two are equal.
    placement: Option<&'a Ranks>,
    /// By rank; empty if none are stored.
    crcs: Vec<AtomicU32>,
}

impl<'a> ChecksummedRows<'a> {
    pub(super) fn new(source: &'a dyn RowSource, placement: Option<&'a Ranks>, table: &Table) -> Self {
        let count = if table.crc_region.is_some() { table.rows as usize } else { 0 };
        Self { source, placement, crcs: std::iter::repeat_with(|| AtomicU32::new(0)).take(count).collect() }
    }

    /// Notes the rows of an extent that has been written before.
    pub(super) fn note_extent(&self, table: &Table, extent: &Extent, lba_bytes: u32, content: &[u8]) {
        if self.crcs.is_empty() {
            return;
        }
        for (lba, bytes) in extent.pieces() {
            let content = content.get(bytes).unwrap_or_default();
            let first_lba = lba - table.rows_region.first_lba;
            let (first, end) = ranks(&table.packing, first_lba, content.len() as u64 / u64::from(lba_bytes));
            for rank in first..end.min(table.rows) {
                let (row_lba, byte) = table.packing.locate(rank);
                let begin = (row_lba - first_lba) as usize * lba_bytes as usize + byte as usize;
                if let Some(row) = content.get(begin..begin + table.row_bytes() as usize) {
                    self.note(rank, row);
                }
            }
        }
    }

    pub(super) fn note(&self, rank: u64, row: &[u8]) {
        if let Some(crc) = self.crcs.get(rank as usize) {
            crc.store(row_crc(rank, row), Ordering::Relaxed);
        }
    }

    /// The content of an extent of the checksums' region.
    pub(super) fn fill_crcs(&self, extent: &Extent, region: LbaRegion, lba_size: u32, buf: &mut [u8]) {
        for (lba, bytes) in extent.pieces() {
            let first = (lba - region.first_lba) as usize * (lba_size / 4) as usize;
            let crcs = self.crcs.iter().skip(first).map(|crc| crc.load(Ordering::Relaxed));
            let (slots, _) = buf.get_mut(bytes).unwrap_or_default().as_chunks_mut::<4>();
            slots.iter_mut().zip(crcs.chain(std::iter::repeat(0))).for_each(|(slot, crc)| *slot = crc.to_le_bytes());
        }
    }
}

impl RowSource for ChecksummedRows<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        self.source.read(first, row_bytes, rows)?;
        if !self.crcs.is_empty() {
            let rank_of = |id: u64| self.placement.map_or(Some(id), |ranks| ranks.get(id)).unwrap_or(u64::MAX);
            (first..).zip(rows.chunks_exact(row_bytes)).for_each(|(id, row)| self.note(rank_of(id), row));
        }
        Ok(())
    }

    fn is_computed(&self) -> bool {
        self.source.is_computed()
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        self.source.check(table)
    }
}
