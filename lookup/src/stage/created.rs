//! Sparse ids that were created since their table was written: found by themselves, before anybody believes a fingerprint.

use warprow_keys::KeyKind;

use super::keys::{Id, KEY_MISSING, KEY_PADDING, KeyCounts, TABLE_SHIFT};
use warprow_store::view::{CREATED, Snapshot};

/// In a key: what is below is no row of its table, but the number of the record that has it. No table with an index has as many.
pub(crate) const CREATED_ROW: u64 = 1 << (TABLE_SHIFT - 1);

/// A feature's table: its number in the plan, its index in the generation that the snapshot is of, the kind of its ids.
pub(crate) type CreatedIn = (u16, u32, KeyKind);

/// For ids of one feature, of which [`sparse_keys`](super::sparse_keys) made `keys` and counted what is missing: makes those that were
/// created anew, and counts again.
pub(crate) fn created<I: Id>(
    ids: &[I],
    (table, index, kind): CreatedIn,
    snapshot: &Snapshot,
    padding: Option<i128>,
    read_padding: bool,
    keys: &mut [u64],
    counts: &mut KeyCounts,
) {
    let base = u64::from(table) << TABLE_SHIFT;
    // Numbers that the other kind cannot hold have the upper bit.
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
            // A fingerprint that passes falsely.
            _ => {}
        }
        *key = base | CREATED_ROW | u64::from(record);
    }
}
