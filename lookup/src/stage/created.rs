//! Finds sparse ids that updates created after their table was written. The key index does not have them, and may take
//! one for another id with the same fingerprint; so created ids are looked for in the overlay, and the result overrides
//! that of the index.

use warprow_keys::KeyKind;

use super::keys::{Id, KEY_MISSING, KEY_PADDING, KeyCounts, TABLE_SHIFT};
use warprow_store::view::{CREATED, OverlaySnapshot};

/// The bit that marks a key of a created id. The bits below are then not a row, but the number of the overlay's record
/// that has the row. No table with an index has so many rows that it would need this bit.
pub(crate) const CREATED_ROW: u64 = 1 << (TABLE_SHIFT - 1);

/// A feature's table: its number in the plan, its index in the generation that the snapshot belongs to, and the kind of
/// its ids.
pub(crate) type CreatedIn = (u16, u32, KeyKind);

/// Corrects `keys`, which [`sparse_keys`](super::sparse_keys) made of one feature's ids: replaces the keys of ids that
/// updates created, and takes these ids out of `counts`, where they were counted as missing or as padding.
pub(crate) fn created<I: Id>(
    ids: &[I],
    (table, index, kind): CreatedIn,
    snapshot: &OverlaySnapshot,
    padding: Option<i128>,
    read_padding: bool,
    keys: &mut [u64],
    counts: &mut KeyCounts,
) {
    let base = u64::from(table) << TABLE_SHIFT;
    // If one type is signed and the other is not, numbers with the upper bit set are no keys.
    let foreign = if (kind == KeyKind::I64) == I::SIGNED { 0 } else { 1 << 63 };
    let padding = padding.and_then(I::raw_of);
    for (key, id) in keys.iter_mut().zip(ids) {
        let raw = id.raw();
        if raw & foreign != 0 || padding == Some(raw) && !read_padding {
            continue;
        }
        let Some(record) = snapshot.find(index | CREATED, raw) else { continue };
        match *key {
            KEY_PADDING => counts.padding -= 1,
            KEY_MISSING => counts.missing -= 1,
            // The index had taken the id for another one with the same fingerprint.
            _ => {}
        }
        *key = base | CREATED_ROW | u64::from(record);
    }
}
