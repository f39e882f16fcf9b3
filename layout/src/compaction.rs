//! What a compaction takes, told before it begins.

use std::collections::BTreeSet;

use crate::error::VolumeError;
use crate::generation::{Generation, GenerationSpec, Plan};
use crate::volume::Volume;

impl Volume {
    /// How many chunks of a generation [`rewrite`](Self::rewrite) copies to bring `rows` into them, each row by its table's index and
    /// its rank: those that hold these rows, or their checksums. It needs as many free chunks.
    pub fn chunks_to_copy(
        &self,
        generation: &Generation,
        rows: impl IntoIterator<Item = (u32, u64)>,
    ) -> Result<u64, VolumeError> {
        let placement = &generation.placement;
        let all = placement.map().len();
        let mut columns = BTreeSet::new();
        for (index, rank) in rows {
            if columns.len() == all {
                break;
            }
            let name = || generation.name.clone();
            let number = index as usize;
            let table = generation.tables.get(number);
            let table = table.ok_or_else(|| VolumeError::NoSuchTable { generation: name(), table: number })?;
            let past = || VolumeError::OutOfRange { first: rank, end: rank.saturating_add(1), lbas: placement.lbas() };
            let (row, _) = table.locate(rank).ok_or_else(past)?;
            columns.insert(placement.column(row).ok_or_else(past)?.0);
            if let Some((crc, _)) = table.locate_crc(rank, placement.lba_size()) {
                columns.insert(placement.column(crc).ok_or_else(past)?.0);
            }
        }
        Ok(columns.len() as u64)
    }

    /// How many chunks have to be free for [`begin`](Self::begin), or [`rebuild`](Self::rebuild), to find room for a generation, and how
    /// many it then takes, since one that fits on fewer chunks than there are drives uses all drives that have any.
    pub fn chunks_to_write(&self, spec: &GenerationSpec) -> Result<(u64, u64), VolumeError> {
        let max_transfer = self.drives().iter().flatten().map(|drive| drive.max_transfer()).min().unwrap_or(0);
        let plan = Plan::new(spec, self.geometry(), max_transfer)?;
        let needed = plan.units.div_ceil(self.geometry().chunk_size() >> plan.stripe_shift);
        let members = self.free_chunks().iter().filter(|&&free| free > 0).count() as u64;
        Ok((needed, needed.max(plan.units.min(members))))
    }
}
