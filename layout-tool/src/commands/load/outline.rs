//! The shape of a table before its rows are looked at: what the room that it takes is reckoned from.

use warprow_keys::KeySource;
use warprow_layout::TableSpec;

use super::arguments::LoadArgs;
use crate::failure::Failure;
use crate::keyed::RowNames;
use crate::select::Chosen;

/// The table as it will be, without its default row.
pub(super) fn outline(args: &LoadArgs, chosen: &Chosen<'_>, permuted: bool) -> Result<TableSpec, Failure> {
    let table = chosen.table;
    let spec = TableSpec::new(&chosen.name, table.rows, table.dim, args.to.unwrap_or(table.dtype));
    Ok(TableSpec { permuted, row_crc: args.row_crc, ..spec })
}

/// With the index that it gets if it is looked up by keys, as small as that can be, and with what lies beside it.
pub(super) fn with_index(args: &LoadArgs, whose: &RowNames<'_>, spec: TableSpec) -> TableSpec {
    let RowNames::Keys(keys) = whose else { return spec };
    // Slots of keys have ranks.
    TableSpec { permuted: true, ..spec }.with_least_keys(keys.kind(), args.fingerprint, !args.forget_keys)
}
