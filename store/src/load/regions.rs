//! Where what belongs to a table lies.

use warprow_layout::{LbaRegion, Placement, Table};

/// Where a table's ranks and keys lie.
pub(super) fn arrays(table: &Table) -> impl Iterator<Item = LbaRegion> + use<> {
    let keys = table.keys.into_iter().flat_map(|keys| [Some(keys.index), keys.keys]).flatten();
    table.ranks.map(|ranks| ranks.region).into_iter().chain(keys)
}

/// Extents that the rows of tables are written in, at most: each holds a stripe unit or a part of one that no other has.
pub(super) fn most_extents(placement: &Placement, tables: &[Table]) -> u64 {
    let unit = (placement.stripe_bytes() / u64::from(placement.lba_size())).max(1);
    tables.iter().map(|table| table.rows_region.lbas / unit + 2).sum()
}

/// Where all that a table has lies, in one order for all tables of a shape.
pub(crate) fn regions(table: &Table) -> impl Iterator<Item = LbaRegion> + use<> {
    std::iter::once(table.rows_region).chain(arrays(table)).chain(table.crc_region)
}
