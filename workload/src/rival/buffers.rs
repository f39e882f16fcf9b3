//! The buffers that rivals are given.

use super::error::RivalError;

/// Refuses buffers that do not fit the ids.
pub(super) fn check(ids: &[i64], rows: &[u8], mask: &[u8], max_ids: usize, row_bytes: usize) -> Result<(), RivalError> {
    let ids = ids.len();
    let rows = rows.len();
    let mask = mask.len();
    match ids <= max_ids && rows == ids * row_bytes && mask == ids {
        true => Ok(()),
        false => Err(RivalError::Size { ids, rows, mask, max_ids, row_bytes }),
    }
}
