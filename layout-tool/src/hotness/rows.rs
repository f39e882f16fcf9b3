//! Which row of a table an id or a key is.

use warprow_keys::{KeyIndex, KeyKind, KeySource};

use crate::failure::Failure;
use crate::keyed::of_keys;

/// Which row is whose.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// So many, by ids from 0 on.
    Ids(u64),
    /// By keys: their index, and the keys in the order of the rows.
    Keys(&'a KeyIndex, &'a dyn KeySource),
    /// By keys, each row by the position that this index gives its key.
    Positions(&'a KeyIndex),
}

impl Rows<'_> {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Ids(rows) => *rows,
            Self::Keys(index, _) | Self::Positions(index) => index.len(),
        }
    }

    /// Replaces keys by where they are counted; `u64::MAX` for those that the table does not have.
    pub(super) fn place(&self, keys: &[u64], signed: bool, places: &mut Vec<u64>) {
        places.clear();
        match self {
            Self::Ids(rows) => {
                let below = |key: u64| if key < *rows && !(signed && key > i64::MAX as u64) { key } else { u64::MAX };
                places.extend(keys.iter().map(|&key| below(key)));
            }
            Self::Keys(index, _) | Self::Positions(index) => {
                places.resize(keys.len(), u64::MAX);
                index.positions(keys, places);
                // The same bits are another number where only one side has a sign.
                if signed != (index.kind() == KeyKind::I64) {
                    for (place, _) in places.iter_mut().zip(keys).filter(|(_, key)| **key > i64::MAX as u64) {
                        *place = u64::MAX;
                    }
                }
            }
        }
    }

    /// The rows of `keys`, without those that the table does not have.
    pub fn rows_of(&self, table: &str, keys: &[u64]) -> Result<Vec<u64>, Failure> {
        let Self::Keys(index, all) = self else { return Ok(keys.to_vec()) };
        let slots: Vec<u64> = index.place(*all, 0).map_err(|error| of_keys(table, &error))?;
        let mut rows = vec![u64::MAX; slots.len()];
        for (row, slot) in (0..).zip(slots) {
            if let Some(place) = usize::try_from(slot).ok().and_then(|slot| rows.get_mut(slot)) {
                *place = row;
            }
        }
        let mut found = vec![u64::MAX; keys.len()];
        index.positions(keys, &mut found);
        // A key that is none of the table's may have the slot of one that is: whoever comes first.
        let mut taken = vec![false; rows.len()];
        found.retain(|&slot| {
            let place = usize::try_from(slot).ok().and_then(|slot| taken.get_mut(slot));
            place.is_some_and(|taken| !std::mem::replace(taken, true))
        });
        Ok(found.into_iter().filter_map(|slot| rows.get(slot as usize).copied()).collect())
    }

    /// Counts by row, of those where [`place`](Self::place) counts.
    pub(super) fn by_row(&self, table: &str, counts: Vec<u64>) -> Result<Vec<u64>, Failure> {
        let Self::Keys(index, keys) = self else { return Ok(counts) };
        let slots: Vec<u64> = index.place(*keys, 0).map_err(|error| of_keys(table, &error))?;
        Ok(slots.into_iter().map(|slot| counts.get(slot as usize).copied().unwrap_or(0)).collect())
    }
}
