//! Rows that go over to other chunks as they are, compared with their checksums on the way.

use crate::error::VolumeError;
use crate::generation::Generation;
use crate::table::{Table, row_crc};
use crate::volume::Volume;

/// Compares rows that were read to be copied with the checksums that are stored for them: a copy of a row that was read wrong would
/// take the place of the right one. Rows of tables without checksums pass.
pub struct CopiedRows<'a> {
    volume: &'a Volume,
    generation: &'a Generation,
    /// By table: the stripe unit of checksums that was read last.
    read: Vec<Option<ReadCrcs>>,
}

struct ReadCrcs {
    /// In the generation's address space.
    unit: u64,
    bytes: Vec<u8>,
}

impl<'a> CopiedRows<'a> {
    /// Checks rows of `generation`, whose checksums are read through the drives' own synchronous calls.
    pub fn new(volume: &'a Volume, generation: &'a Generation) -> Self {
        let read = generation.tables.iter().map(|_| None).collect();
        Self { volume, generation, read }
    }

    /// Checks the rows in `unit`, which was read from the stripe unit that begins at LBA `lba` of the generation.
    /// `is_replaced` says whether the row of a table (by its index) and rank is not copied, because another takes its place.
    ///
    /// # Errors
    /// [`VolumeError::RowDamaged`] of the first row that does not match; [`VolumeError::Drive`] if checksums cannot be read.
    pub fn check(
        &mut self,
        lba: u64,
        unit: &[u8],
        is_replaced: &dyn Fn(usize, u64) -> bool,
    ) -> Result<(), VolumeError> {
        let generation = self.generation;
        let has = |table: &Table| {
            let region = table.rows_region;
            table.crc_region.is_some() && (region.first_lba..region.first_lba + region.lbas).contains(&lba)
        };
        let Some(index) = generation.tables.iter().position(has) else { return Ok(()) };
        let Some(table) = generation.tables.get(index) else { return Ok(()) };
        for run in table.packing.runs(lba - table.rows_region.first_lba, unit.len(), table.rows) {
            let rows = unit.get(run.begin..run.begin + run.bytes).unwrap_or_default();
            for (rank, row) in (run.rank..).zip(rows.chunks_exact(table.row_bytes() as usize)) {
                let is_whole = self.crc(index, table, rank)? == Some(row_crc(rank, row));
                if !is_whole && !is_replaced(index, rank) {
                    return Err(self.damaged(table, lba, rank));
                }
            }
        }
        Ok(())
    }

    /// The checksum that is stored for a row.
    fn crc(&mut self, index: usize, table: &Table, rank: u64) -> Result<Option<u32>, VolumeError> {
        let placement = &self.generation.placement;
        let Some((lba, byte)) = table.locate_crc(rank, placement.lba_size()) else { return Ok(None) };
        let unit = lba & !(placement.stripe_lbas() - 1);
        let Some(held) = self.read.get_mut(index) else { return Ok(None) };
        if held.as_ref().is_none_or(|held| held.unit != unit) {
            let past = VolumeError::OutOfRange { first: unit, end: lba + 1, lbas: placement.lbas() };
            let extent = placement.run(unit, placement.stripe_lbas()).ok_or(past)?;
            let mut bytes = vec![0; extent.bytes];
            crate::read::read(&**self.volume.present(extent.drive)?, extent.lba, &mut bytes)?;
            *held = Some(ReadCrcs { unit, bytes });
        }
        let begin = ((lba - unit) * u64::from(placement.lba_size())) as usize + byte as usize;
        let crc = held.as_ref().and_then(|held| held.bytes.get(begin..)?.first_chunk());
        Ok(crc.map(|&crc| u32::from_le_bytes(crc)))
    }

    fn damaged(&self, table: &Table, lba: u64, rank: u64) -> VolumeError {
        let drive = self.generation.placement.locate(lba).map(|(member, _)| self.volume.present(member));
        match drive {
            Some(Ok(drive)) => {
                VolumeError::RowDamaged { table: table.name.clone(), rank, drive: drive.name().to_owned() }
            }
            Some(Err(error)) => error,
            None => VolumeError::OutOfRange { first: lba, end: lba + 1, lbas: self.generation.placement.lbas() },
        }
    }
}

impl std::fmt::Debug for CopiedRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopiedRows").field("generation", &self.generation.id).finish_non_exhaustive()
    }
}
