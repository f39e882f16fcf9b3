//! Reading a generation in bulk.

use std::ops::Range;
use std::sync::Arc;

use warprow_keys::KeyIndex;

use crate::drive::Drive;
use crate::error::VolumeError;
use crate::extent::Extent;
use crate::generation::Generation;
use crate::ranks::Ranks;
use crate::table::{LbaRegion, Table};
use crate::volume::Volume;

/// Plans the reads that fetch a range of ranks, as [`TableWrites`](crate::TableWrites) plans writes. It holds, and so pins, the
/// generation.
#[derive(Debug, Clone)]
pub struct RowReader {
    generation: Arc<Generation>,
    table: usize,
    ranks: Range<u64>,
}

impl RowReader {
    /// Reads ranks `ranks` (cut to those that there are) of table `table`; `None` if there is no such table.
    pub fn new(generation: Arc<Generation>, table: usize, ranks: Range<u64>) -> Option<Self> {
        let rows = generation.tables.get(table)?.rows;
        Some(Self { generation, table, ranks: ranks.start.min(rows)..ranks.end.min(rows) })
    }

    /// The reads, each of at most `max_bytes`, but at least one stripe unit.
    pub fn extents(&self, max_bytes: usize) -> impl Iterator<Item = Extent> + '_ {
        let placement = &self.generation.placement;
        let region = self.table().and_then(|table| {
            let first = table.locate(self.ranks.start)?.0;
            let last = table.locate(self.ranks.end.checked_sub(1).filter(|last| *last >= self.ranks.start)?)?.0;
            let first_lba = first & !(placement.stripe_lbas() - 1);
            Some(LbaRegion { first_lba, lbas: last + 1 - first_lba })
        });
        region.into_iter().flat_map(move |region| placement.extents(region, max_bytes))
    }

    /// Hands the rows in `buf`, read from `extent`, to `row` with their ranks. Rows of the extent outside the range are left out.
    pub fn rows(&self, extent: &Extent, buf: &[u8], mut row: impl FnMut(u64, &[u8])) -> Result<(), VolumeError> {
        let expected = extent.bytes as u64;
        let given = buf.len() as u64;
        if given != expected {
            return Err(VolumeError::Length { what: "the extent's buffer", expected, given });
        }
        let Some(table) = self.table() else { return Ok(()) };
        for (lba, bytes) in extent.pieces() {
            let (Some(lba), Some(unit)) = (lba.checked_sub(table.rows_region.first_lba), buf.get(bytes)) else {
                continue;
            };
            for run in table.packing.runs(lba, unit.len(), table.rows) {
                let rows = unit[run.begin..run.begin + run.bytes].chunks_exact(table.row_bytes() as usize);
                let ranked = (run.rank..).zip(rows).filter(|(rank, _)| self.ranks.contains(rank));
                ranked.for_each(|(rank, bytes)| row(rank, bytes));
            }
        }
        Ok(())
    }

    fn table(&self) -> Option<&Table> {
        self.generation.tables.get(self.table)
    }
}

impl Volume {
    /// Reads one row into `row`, through the drives' own synchronous calls.
    pub fn read_row(
        &self,
        generation: &Generation,
        table: usize,
        rank: u64,
        row: &mut [u8],
    ) -> Result<(), VolumeError> {
        let entry = table_of(generation, table)?;
        let expected = u64::from(entry.row_bytes());
        let given = row.len() as u64;
        if given != expected {
            return Err(VolumeError::Length { what: "the row's buffer", expected, given });
        }
        let Some(address) = generation.row(table, rank) else {
            return Err(VolumeError::OutOfRange { first: rank, end: rank.saturating_add(1), lbas: entry.rows });
        };
        let drive = self.present(address.drive)?;
        let mut lbas = vec![0; address.lbas as usize * generation.placement.lba_size() as usize];
        read(&**drive, address.lba, &mut lbas)?;
        let begin = address.byte as usize;
        row.copy_from_slice(&lbas[begin..begin + row.len()]);
        Ok(())
    }

    /// Reads a table's id → rank permutation and verifies it; `None` if ids are ranks.
    pub fn read_ranks(&self, generation: &Generation, table: usize) -> Result<Option<Ranks>, VolumeError> {
        let entry = table_of(generation, table)?;
        let Some(stored) = entry.ranks else { return Ok(None) };
        let bytes = self.read_array(generation, stored.region, entry.rank_bytes())?;
        entry.decode_ranks(&bytes)
    }

    /// Reads the index of a table's keys and verifies it; `None` if the table is looked up by ids. The index gives key
    /// positions; the permutation that [`read_ranks`](Self::read_ranks) reads has the rank of each position, as it has
    /// the rank of each id of other tables.
    pub fn read_key_index(&self, generation: &Generation, table: usize) -> Result<Option<KeyIndex>, VolumeError> {
        let entry = table_of(generation, table)?;
        let Some(stored) = entry.keys else { return Ok(None) };
        entry.decode_key_index(self.read_array(generation, stored.index, stored.spec.index_bytes)?)
    }

    /// Reads a table's keys, by rank, and verifies their checksum; `None` if none are stored. An `i64` is its bits.
    pub fn read_keys(&self, generation: &Generation, table: usize) -> Result<Option<Vec<u64>>, VolumeError> {
        let entry = table_of(generation, table)?;
        let Some(region) = entry.keys.and_then(|stored| stored.keys) else { return Ok(None) };
        entry.decode_keys(&self.read_array(generation, region, entry.rows * 8)?)
    }

    /// Reads the checksums of a table's rows ([`row_crc`](crate::row_crc)), by rank; `None` if none are stored.
    pub fn read_row_crcs(&self, generation: &Generation, table: usize) -> Result<Option<Vec<u32>>, VolumeError> {
        let entry = table_of(generation, table)?;
        let Some(region) = entry.crc_region else { return Ok(None) };
        let bytes = self.read_array(generation, region, entry.rows * 4)?;
        Ok(Some(bytes.as_chunks().0.iter().map(|&crc| u32::from_le_bytes(crc)).collect()))
    }

    /// The first `bytes` bytes of `region`, which must hold as many.
    fn read_array(&self, generation: &Generation, region: LbaRegion, bytes: u64) -> Result<Vec<u8>, VolumeError> {
        let placement = &generation.placement;
        let lba_size = u64::from(placement.lba_size());
        let mut array = vec![0; bytes as usize];
        let mut buf = Vec::new();
        for extent in placement.extents(LbaRegion { lbas: bytes.div_ceil(lba_size), ..region }, 1 << 20) {
            buf.resize(extent.bytes, 0);
            read(&**self.present(extent.drive)?, extent.lba, &mut buf)?;
            for (lba, piece) in extent.pieces() {
                let begin = ((lba - region.first_lba) * lba_size) as usize;
                let out = array.get_mut(begin..).unwrap_or(&mut []);
                let length = out.len().min(piece.len());
                out[..length].copy_from_slice(&buf[piece][..length]);
            }
        }
        Ok(array)
    }

    pub(crate) fn present(&self, member: u16) -> Result<&Arc<dyn Drive>, VolumeError> {
        match self.drive(member) {
            Some(drive) => Ok(drive),
            None => {
                let missing = self.missing().into_iter().find(|missing| missing.index == member);
                Err(missing.map_or(VolumeError::NoSuchMember { index: member }, |missing| VolumeError::MemberMissing {
                    missing,
                }))
            }
        }
    }
}

/// What the arrays of a table say, once they are read. Each has its checksum in the catalogue.
impl Table {
    /// Bytes of the table's id → rank permutation; 0: it has none.
    pub fn rank_bytes(&self) -> u64 {
        self.ranks.map_or(0, |stored| self.rows * u64::from(stored.width.bytes()))
    }

    /// Reads the table's id → rank permutation out of [`rank_bytes`](Self::rank_bytes) bytes, and verifies it; `None`: the table
    /// has none.
    pub fn decode_ranks(&self, bytes: &[u8]) -> Result<Option<Ranks>, VolumeError> {
        let Some(stored) = self.ranks else { return Ok(None) };
        let found = crc32c::crc32c(bytes);
        if found != stored.crc {
            return Err(VolumeError::RanksDamaged { table: self.name.clone(), expected: stored.crc, found });
        }
        let ranks = Ranks::decode(bytes, stored.width)
            .map_err(|source| VolumeError::RanksInvalid { table: self.name.clone(), source })?;
        Ok(Some(ranks))
    }

    /// The index of the table's keys in `bytes`, verified; `None`: the table has no keys.
    pub fn decode_key_index(&self, bytes: Vec<u8>) -> Result<Option<KeyIndex>, VolumeError> {
        let Some(stored) = self.keys else { return Ok(None) };
        let name = || self.name.clone();
        // The catalogue vouches for the header, and the header for all else.
        let found = crc32c::crc32c(bytes.get(..warprow_keys::HEADER_BYTES).unwrap_or(&bytes));
        if found != stored.index_crc {
            let expected = stored.index_crc;
            return Err(VolumeError::KeysDamaged { table: name(), what: "key index", expected, found });
        }
        let index = KeyIndex::from_bytes(bytes)
            .map_err(|source| VolumeError::KeysInvalid { table: name(), source: Some(source) })?;
        let spec = &stored.spec;
        match (index.len(), index.kind(), index.fingerprint()) == (self.rows, spec.kind, spec.fingerprint) {
            true => Ok(Some(index)),
            false => Err(VolumeError::KeysInvalid { table: name(), source: None }),
        }
    }

    /// Reads the table's keys, by rank, out of `bytes`, and verifies them; `None`: none are stored.
    pub fn decode_keys(&self, bytes: &[u8]) -> Result<Option<Vec<u64>>, VolumeError> {
        let Some(stored) = self.keys.filter(|stored| stored.keys.is_some()) else { return Ok(None) };
        let found = crc32c::crc32c(bytes);
        if found != stored.keys_crc {
            let expected = stored.keys_crc;
            return Err(VolumeError::KeysDamaged { table: self.name.clone(), what: "array of keys", expected, found });
        }
        Ok(Some(bytes.as_chunks().0.iter().map(|&key| u64::from_le_bytes(key)).collect()))
    }
}

fn table_of(generation: &Generation, table: usize) -> Result<&Table, VolumeError> {
    generation.tables.get(table).ok_or_else(|| VolumeError::NoSuchTable { generation: generation.name.clone(), table })
}

/// Reads whole LBAs in as many commands as the drive needs.
pub(crate) fn read(drive: &dyn Drive, lba: u64, buf: &mut [u8]) -> Result<(), VolumeError> {
    let lba_size = drive.lba_size() as usize;
    let most = (drive.max_transfer() / lba_size).max(1);
    for (first, part) in (lba..).step_by(most).zip(buf.chunks_mut(most * lba_size)) {
        drive.read(first, part)?;
    }
    Ok(())
}
