//! Loading a table: large writes in the order of the drives, filled from rows in the order of their ids.

use std::fs::File;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::error::VolumeError;
use crate::extent::Extent;
use crate::keyed::TableKeys;
use crate::placement::{Placement, Run};
use crate::ranks::Ranks;
use crate::table::{LbaRegion, Table, row_crc};

/// Where the rows of a table come from. Rows are numbered by id, or by key number where the table has keys. If several
/// threads use the loader, they call this from several threads.
pub trait RowSource: Sync {
    /// Fills `rows`, a whole number of rows of `row_bytes`, with the rows from id `first` on. Never called for rows
    /// past the last.
    ///
    /// An error ends the load: nothing of it is committed.
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()>;

    /// Whether rows take time to be computed, rather than to be read. Rows of different extents are then computed on
    /// several threads.
    fn is_computed(&self) -> bool {
        false
    }

    /// Fails if rows may have changed since the first one was read. It is called after the last row was read, before
    /// anything is committed. If rows are read for that, `read` is called with the number of bytes since its last call,
    /// and may end the check: the error is then of the kind [`Interrupted`](std::io::ErrorKind::Interrupted).
    fn unchanged(&self, read: &mut dyn FnMut(u64) -> ControlFlow<()>) -> std::io::Result<()> {
        let _ = read;
        Ok(())
    }

    /// Where the `count` rows from id `first` on stand in files, byte for byte: calls `each` with the file, the first
    /// byte and the number of bytes of each stretch of them, in their order. It is not called for rows that stand in no
    /// file. Rows that are put together ([`stored_bytes`](Self::stored_bytes)) have the stretches of their first part, then
    /// those of the next.
    fn stretches(&self, first: u64, count: u64, row_bytes: usize, each: &mut dyn FnMut(&File, u64, u64)) {
        let _ = (first, count, row_bytes, each);
    }

    /// Bytes that each row has in its [`stretches`](Self::stretches), where rows are put together of several parts; `None`: the
    /// stretches are the rows.
    fn stored_bytes(&self) -> Option<usize> {
        None
    }

    /// Where rows are put together: makes `rows`, those from id `first` on, of `stored`, what their stretches hold, one
    /// behind the other.
    fn assemble(&self, first: u64, row_bytes: usize, stored: &[u8], rows: &mut [u8]) -> std::io::Result<()> {
        let _ = (first, row_bytes, stored, rows);
        Err(std::io::Error::other("its rows are not put together"))
    }

    /// Fails if this is no source of `table`, because it has not as many rows.
    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        let _ = table;
        Ok(())
    }
}

impl<S: RowSource + ?Sized> RowSource for &S {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        (**self).read(first, row_bytes, rows)
    }

    fn is_computed(&self) -> bool {
        (**self).is_computed()
    }

    fn unchanged(&self, read: &mut dyn FnMut(u64) -> ControlFlow<()>) -> std::io::Result<()> {
        (**self).unchanged(read)
    }

    fn stretches(&self, first: u64, count: u64, row_bytes: usize, each: &mut dyn FnMut(&File, u64, u64)) {
        (**self).stretches(first, count, row_bytes, each);
    }

    fn stored_bytes(&self) -> Option<usize> {
        (**self).stored_bytes()
    }

    fn assemble(&self, first: u64, row_bytes: usize, stored: &[u8], rows: &mut [u8]) -> std::io::Result<()> {
        (**self).assemble(first, row_bytes, stored, rows)
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        (**self).check(table)
    }
}

/// Rows one after another without padding, such as a memory-mapped tensor.
impl RowSource for [u8] {
    #[inline]
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        let begin = first as usize * row_bytes;
        rows.copy_from_slice(&self[begin..begin + rows.len()]);
        Ok(())
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        let expected = table.rows.saturating_mul(u64::from(table.row_bytes()));
        let given = self.len() as u64;
        if given != expected {
            return Err(VolumeError::Length { what: "the table's source", expected, given });
        }
        Ok(())
    }
}

/// Rows one after another without padding, as a slice of bytes has them: a load borrows the vector as it is.
impl RowSource for Vec<u8> {
    #[inline]
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        self[..].read(first, row_bytes, rows)
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        self[..].check(table)
    }
}

/// The writes that load one table: its rows, its ranks, its keys and its checksums.
///
/// Neither reads nor writes drives; may be shared between threads that fill buffers for different extents.
pub struct TableWrites<'a, S: RowSource + ?Sized> {
    table: Table,
    placement: Arc<Placement>,
    source: &'a S,
    /// The permutation that is stored: id → rank, or key position → rank where the table has keys.
    id_to_rank: Option<&'a Ranks>,
    /// Rank → number of the row in the source.
    rank_to_id: Option<Ranks>,
    keyed: Option<&'a TableKeys<'a>>,
}

impl<'a, S: RowSource + ?Sized> TableWrites<'a, S> {
    pub(crate) fn new(table: Table, placement: Arc<Placement>, source: &'a S, ranks: Option<&'a Ranks>) -> Self {
        Self { table, placement, source, id_to_rank: ranks, rank_to_id: ranks.map(Ranks::inverse), keyed: None }
    }

    pub(crate) fn keyed(table: Table, placement: Arc<Placement>, source: &'a S, keyed: &'a TableKeys<'a>) -> Self {
        let rank_to_id = keyed.placement().map(Ranks::inverse);
        Self { table, placement, source, id_to_rank: keyed.ranks(), rank_to_id, keyed: Some(keyed) }
    }

    /// Where the rows come from.
    pub fn source(&self) -> &'a S {
        self.source
    }

    /// The writes, each of at most `max_bytes`, but at least one stripe unit; see [`Placement::extents`].
    pub fn extents(&self, max_bytes: usize) -> impl Iterator<Item = Extent> + use<'_, S> {
        self.regions().flat_map(move |region| self.placement.extents(region, max_bytes))
    }

    /// Bytes that all extents together write.
    pub fn bytes(&self) -> u64 {
        self.regions().map(|region| region.lbas).sum::<u64>() * u64::from(self.placement.lba_size())
    }

    fn regions(&self) -> impl Iterator<Item = LbaRegion> + use<S> {
        let ranks = self.table.ranks.map(|ranks| ranks.region);
        let keys = self.table.keys.into_iter().flat_map(|keys| keys.regions());
        [Some(self.table.rows_region), ranks].into_iter().flatten().chain(keys).chain(self.table.crc_region)
    }

    /// Writes the content of `extent`, one of this loader's, into `buf` of its length. Every byte is written; padding is zero.
    pub fn fill(&self, extent: &Extent, buf: &mut [u8]) -> Result<(), VolumeError> {
        let expected = extent.bytes as u64;
        let given = buf.len() as u64;
        if given != expected {
            return Err(VolumeError::Length { what: "the extent's buffer", expected, given });
        }
        for (lba, bytes) in extent.pieces() {
            let Some(out) = buf.get_mut(bytes) else { continue };
            let within = |region: LbaRegion| lba.checked_sub(region.first_lba).filter(|lba| *lba < region.lbas);
            if let Some(lba) = within(self.table.rows_region) {
                self.fill_rows(lba, out)?;
            } else if let Some((stored, lba)) = self.table.ranks.and_then(|rank| Some((rank, within(rank.region)?))) {
                let entries_per_lba = u64::from(self.placement.lba_size() / stored.width.bytes());
                match self.id_to_rank {
                    Some(ranks) => ranks.encode(lba * entries_per_lba, out),
                    None => out.fill(0),
                }
            } else if let Some((keyed, lba)) = self.keyed.zip(self.table.keys.and_then(|keys| within(keys.index))) {
                keyed.fill_index(lba * u64::from(self.placement.lba_size()), out);
            } else if let Some((keyed, lba)) =
                self.keyed.zip(self.table.keys.and_then(|keys| keys.keys).and_then(within))
            {
                let filled = keyed.fill_keys(lba * u64::from(self.placement.lba_size() / 8), out);
                filled.map_err(|source| VolumeError::Source { table: self.table.name.clone(), source })?;
            } else if let Some(lba) = self.table.crc_region.and_then(within) {
                self.fill_crcs(lba * u64::from(self.placement.lba_size() / 4), out)?;
            } else {
                return Err(VolumeError::OutOfRange { first: lba, end: lba + 1, lbas: self.placement.lbas() });
            }
        }
        Ok(())
    }

    /// A stripe unit of rows, beginning at LBA `lba` of their region.
    fn fill_rows(&self, lba: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let runs = || self.table.packing.runs(lba, out.len(), self.table.rows);
        if self.source.is_computed() && self.rank_to_id.is_none() && runs().nth(1).is_some() {
            return self.fill_computed(runs().collect(), out);
        }
        let mut filled = 0;
        for run in runs() {
            out[filled..run.begin].fill(0);
            filled = run.begin + run.bytes;
            self.read_ranks(run.rank, &mut out[run.begin..filled])?;
        }
        out[filled..].fill(0);
        Ok(())
    }

    /// Fills `out` with rows that are computed. All are asked for in one call: their ranks are consecutive, and each call has its
    /// price.
    fn fill_computed(&self, runs: Vec<Run>, out: &mut [u8]) -> Result<(), VolumeError> {
        let mut rows = vec![0; runs.iter().map(|run| run.bytes).sum()];
        if let Some(first) = runs.first() {
            self.read_ranks(first.rank, &mut rows)?;
        }
        out.fill(0);
        let mut rows = &rows[..];
        for run in runs {
            let (these, others) = rows.split_at(run.bytes);
            out[run.begin..][..run.bytes].copy_from_slice(these);
            rows = others;
        }
        Ok(())
    }

    /// The checksums of the rows from `rank` on.
    fn fill_crcs(&self, rank: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let row_bytes = self.table.row_bytes() as usize;
        let rows_at_once = (65536 / row_bytes).max(1);
        let mut rows = vec![0; rows_at_once * row_bytes];
        let (slots, _) = out.as_chunks_mut::<4>();
        for (first, slots) in (rank..).step_by(rows_at_once).zip(slots.chunks_mut(rows_at_once)) {
            let count = self.table.rows.saturating_sub(first).min(slots.len() as u64) as usize;
            let rows = &mut rows[..count * row_bytes];
            if count > 0 {
                self.read_ranks(first, rows)?;
            }
            let crcs = (first..).zip(rows.chunks_exact(row_bytes)).map(|(rank, row)| row_crc(rank, row).to_le_bytes());
            slots.iter_mut().zip(crcs).for_each(|(slot, crc)| *slot = crc);
            slots[count..].fill([0; 4]);
        }
        Ok(())
    }

    /// The rows from `rank` on.
    fn read_ranks(&self, rank: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let row_bytes = self.table.row_bytes() as usize;
        let rows = out.chunks_exact_mut(row_bytes);
        let read = |(row, id): (&mut [u8], u64)| self.source.read(id, row_bytes, row);
        match &self.rank_to_id {
            None => self.source.read(rank, row_bytes, out),
            Some(Ranks::U32(ids)) => rows.zip(ids[rank as usize..].iter().map(|&id| id.into())).try_for_each(read),
            Some(Ranks::U64(ids)) => rows.zip(ids[rank as usize..].iter().copied()).try_for_each(read),
        }
        .map_err(|source| VolumeError::Source { table: self.table.name.clone(), source })
    }
}
