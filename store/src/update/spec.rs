//! What a generation is when it is written anew.

use std::collections::HashMap;

use super::key_changes::KeyChanges;
use warprow_keys::KeyIndex;
use warprow_layout::{Generation, GenerationSpec, Table, TableSpec};

/// Bytes by which an index of keys may be larger than its number of keys says.
const INDEX_MARGIN: u64 = 4 << 10;

/// The generation as it is, to be written anew.
pub(crate) fn spec_anew(found: &Generation) -> GenerationSpec {
    let specs: Vec<TableSpec> = found.tables.iter().map(spec_of).collect();
    let mut spec = GenerationSpec::new(&*found.name, specs);
    spec.stripe_unit = Some(found.placement.stripe_bytes() as u32);
    spec
}

/// The generation as it will be when keys, by table, have been brought into it and taken out of it; at least, for the size of an index
/// is known once it is built.
pub(crate) fn spec_changed(found: &Generation, changes: &HashMap<u32, KeyChanges>) -> GenerationSpec {
    let mut spec = spec_anew(found);
    for (index, table) in (0..).zip(&mut spec.tables) {
        if let Some(&changes) = changes.get(&index).filter(|changes| changes.any()) {
            change(table, changes);
        }
    }
    spec
}

/// A table with other keys.
fn change(table: &mut TableSpec, changes: KeyChanges) {
    let rows = changes.applied_to(table.rows);
    if let Some(keys) = &mut table.keys {
        let fingerprint = keys.fingerprint;
        let least = |rows| KeyIndex::least_bytes(rows, fingerprint);
        // As much beyond the least as its index takes now.
        let beyond = keys.index_bytes.saturating_sub(least(table.rows));
        keys.index_bytes = least(rows).saturating_add(beyond).saturating_add(INDEX_MARGIN);
    }
    table.rows = rows;
    table.hot_rows = table.hot_rows.min(rows);
}

/// A table like this one.
pub(crate) fn spec_of(table: &Table) -> TableSpec {
    TableSpec {
        permuted: table.ranks.is_some(),
        keys: table.keys.map(|keys| keys.spec),
        default_row: table.default_row.as_deref().map(<[u8]>::to_vec),
        hot_rows: table.hot_rows,
        row_crc: table.crc_region.is_some(),
        ..TableSpec::new(&*table.name, table.rows, table.dim, table.dtype)
    }
}
