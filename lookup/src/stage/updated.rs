//! Finds ids whose rows were updated. That is done before the tiers are looked at, because an updated row is read from
//! its overlay, wherever the stored row lies.

use super::created::CREATED_ROW;
use super::keys::{KEY_FOUND, KEY_PADDING, TABLE_SHIFT};
use super::route::RowLocation;
use super::split_tiers::TierSplit;
use warprow_store::view::OverlaySnapshot;

/// Finds updated rows among the keys of one feature, whose table is number `table` of the generation that `snapshot`
/// belongs to. For each updated row this writes its place in the overlay to `places`, adds the place to those of rows
/// in memory (`sieved.hot_places`), and replaces the key by [`KEY_FOUND`]. `overlay` is the overlay's number in its
/// plan; `created` says that keys may have been made by [`created`](super::created()).
pub(crate) fn updated(
    snapshot: &OverlaySnapshot,
    (overlay, table): (u16, u32),
    created: bool,
    keys: &mut [u64],
    places: &mut [RowLocation],
    sieved: &mut TierSplit<'_>,
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
            *place = RowLocation::updated(overlay, record);
            if let Some(hot) = sieved.hot_places.get_mut(sieved.hot_count) {
                *hot = place.number();
                sieved.hot_count += 1;
            }
            *key = KEY_FOUND;
        }
    }
}
