//! Finds sparse ids that were removed since their table was written. The key index has them still; what an overlay says
//! overrides that.

use super::created::CREATED_ROW;
use super::keys::{Id, KEY_FOUND, KEY_MISSING, KEY_PADDING, KeyCounts, TABLE_SHIFT};
use warprow_store::view::OverlaySnapshot;

/// Corrects `keys` of one feature's ids, whose table is number `table` of the generation that `snapshot` belongs to, after
/// [`created`](super::created()): removed ids become missing, or padding, as ids that the table never had, and are added to
/// `counts`.
pub(crate) fn removed<I: Id>(
    ids: &[I],
    table: u32,
    snapshot: &OverlaySnapshot,
    padding: Option<i128>,
    keys: &mut [u64],
    counts: &mut KeyCounts,
) {
    let padding = padding.and_then(I::raw_of);
    for (key, id) in keys.iter_mut().zip(ids).filter(|(key, _)| **key < KEY_FOUND) {
        let row = *key & ((1 << TABLE_SHIFT) - 1);
        let record = match row & CREATED_ROW != 0 {
            true => Some(row as u32),
            false => snapshot.find(table, row),
        };
        if !record.is_some_and(|record| snapshot.is_removal(record)) {
            continue;
        }
        match padding == Some(id.raw()) {
            true => (*key, counts.padding) = (KEY_PADDING, counts.padding + 1),
            false => (*key, counts.missing) = (KEY_MISSING, counts.missing + 1),
        }
    }
}
