//! Ids whose rows were updated: they are found before anything is asked where rows lie.

use super::created::CREATED_ROW;
use super::keys::{KEY_FOUND, KEY_PADDING, TABLE_SHIFT};
use super::route::Location;
use super::sieve::Sieved;
use warprow_store::view::Snapshot;

/// For the keys of one feature, of table number `table` of the generation that `snapshot` is of: where a row was updated, writes
/// its place, notes the key with those of rows in DRAM, and makes it [`KEY_FOUND`]. `overlay` is the overlay's number in its plan;
/// `created`: keys were made by [`created`](super::created()).
pub(crate) fn updated(
    snapshot: &Snapshot,
    (overlay, table): (u16, u32),
    created: bool,
    keys: &mut [u64],
    places: &mut [Location],
    sieved: &mut Sieved<'_>,
) {
    for (key, place) in keys.iter_mut().zip(places) {
        if *key >= KEY_PADDING {
            continue;
        }
        let row = *key & ((1 << TABLE_SHIFT) - 1);
        let record = match created && row & CREATED_ROW != 0 {
            true => Some(row as u32),
            false => snapshot.find(table, row),
        };
        if let Some(record) = record {
            *place = Location::updated(overlay, record);
            if let Some(hot) = sieved.hot_keys.get_mut(sieved.hot_count) {
                *hot = *key;
                sieved.hot_count += 1;
            }
            *key = KEY_FOUND;
        }
    }
}
