//! Which rows are to stay in a cache on a GPU, as the host has them: a set of lines has room for so many. Plain bookkeeping: it calls nothing.

use std::collections::{HashMap, HashSet};

use crate::abi::CACHE_WAYS;
use crate::row_cache::CacheMap;

/// Rows of one set that may be pinned. Two lines are left: a launch that runs may hold one of them, and another row then gets the other.
const MOST: u8 = CACHE_WAYS as u8 - 2;

/// Sets of lines would have more pinned rows than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rows} rows, the first of rank {first}, find {} of their set's {} lines pinned", MOST, CACHE_WAYS)]
pub struct NoRoomForPins {
    /// Rows that find no room in their sets.
    pub rows: u64,
    /// The rank of the first of them.
    pub first: u64,
}

/// The pinned rows of a cache.
#[derive(Debug, Default)]
pub struct CachePins {
    /// Ranks by their range's number.
    rows: HashMap<u32, HashSet<u64>>,
    /// Pinned rows by set.
    sets: HashMap<u64, u8>,
}

impl CachePins {
    /// Rows that may be pinned in a set of lines.
    pub const MOST: u8 = MOST;

    /// Which of these different ranks are not pinned yet.
    ///
    /// # Errors
    /// [`NoRoomForPins`] if sets have no room for all of them, in the order of `ranks`.
    pub fn new_ones(&self, map: &CacheMap, range: u32, ranks: &[u64]) -> Result<Vec<u64>, NoRoomForPins> {
        let held = self.rows.get(&range);
        let fresh: Vec<u64> =
            ranks.iter().copied().filter(|rank| held.is_none_or(|held| !held.contains(rank))).collect();
        let mut more: HashMap<u64, u8> = HashMap::new();
        let mut without = None::<NoRoomForPins>;
        for &rank in &fresh {
            let Some(set) = map.set_of(range, rank) else { continue };
            let count = more.entry(set).or_insert_with(|| self.sets.get(&set).copied().unwrap_or(0));
            if *count < MOST {
                *count += 1;
            } else {
                without.get_or_insert(NoRoomForPins { rows: 0, first: rank }).rows += 1;
            }
        }
        without.map_or(Ok(fresh), Err)
    }

    /// A row is pinned now.
    pub fn add(&mut self, map: &CacheMap, range: u32, rank: u64) {
        if let Some(set) = map.set_of(range, rank)
            && self.rows.entry(range).or_default().insert(rank)
        {
            *self.sets.entry(set).or_default() += 1;
        }
    }

    /// A row is not pinned any more; whether it was.
    pub fn remove(&mut self, map: &CacheMap, range: u32, rank: u64) -> bool {
        let was = self.rows.get_mut(&range).is_some_and(|held| held.remove(&rank));
        if let Some(set) = map.set_of(range, rank).filter(|_| was)
            && let Some(count) = self.sets.get_mut(&set)
        {
            *count -= 1;
            if *count == 0 {
                self.sets.remove(&set);
            }
        }
        was
    }

    /// The pinned ranks of a range.
    pub fn of(&self, range: u32) -> Vec<u64> {
        self.rows.get(&range).into_iter().flatten().copied().collect()
    }

    /// Ranges with pinned rows that nobody looks for any more.
    pub fn retired(&self, map: &CacheMap) -> Vec<u32> {
        let pinned = self.rows.iter().filter(|(_, ranks)| !ranks.is_empty());
        pinned.map(|(&range, _)| range).filter(|&range| map.is_retired(range)).collect()
    }

    /// How many rows are pinned.
    pub fn count(&self) -> u64 {
        self.rows.values().map(|ranks| ranks.len() as u64).sum()
    }

    /// No line has a row any more.
    pub fn swept(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row_cache::{CacheClaim, CacheLines, CacheShape};

    #[test]
    fn sets_have_room_for_so_many_and_get_it_back() {
        let claim = CacheClaim { stride: 64, rows: 5000, cached: 5000, share: None };
        let shape = CacheShape { bytes: 1 << 18, batch_rows: 64, slots: 16, counts: false };
        let mut map = CacheMap::new(0, shape, &[claim]).unwrap();
        let range = map.give(CacheLines::shared(64), 5000).unwrap().number;
        let mut by_set: HashMap<u64, Vec<u64>> = HashMap::new();
        (0..5000).for_each(|rank| by_set.entry(map.set_of(range, rank).unwrap()).or_default().push(rank));
        assert!(by_set.len() as u64 <= map.lines() / CACHE_WAYS && map.set_of(range, 5000).is_none());
        let ranks = by_set.into_values().find(|ranks| ranks.len() > 7).unwrap();
        let mut pins = CachePins::default();
        let most = usize::from(CachePins::MOST);
        // In a batch, and one after the other.
        let refused = pins.new_ones(&map, range, &ranks[..most + 2]).unwrap_err();
        assert_eq!(refused, NoRoomForPins { rows: 2, first: ranks[most] });
        assert_eq!(pins.count(), 0);
        for &rank in &ranks[..most] {
            assert_eq!(pins.new_ones(&map, range, &[rank]), Ok(vec![rank]));
            pins.add(&map, range, rank);
        }
        // What is pinned counts once.
        assert_eq!(pins.new_ones(&map, range, &ranks[..most]), Ok(vec![]));
        let refused = pins.new_ones(&map, range, &[ranks[0], ranks[most]]);
        assert_eq!(refused, Err(NoRoomForPins { rows: 1, first: ranks[most] }));
        assert!(pins.remove(&map, range, ranks[2]) && !pins.remove(&map, range, ranks[2]));
        assert_eq!(pins.new_ones(&map, range, &[ranks[most]]), Ok(vec![ranks[most]]));
        assert_eq!((pins.count(), pins.of(range).len()), (most as u64 - 1, most - 1));
        assert_eq!(pins.retired(&map), [0u32; 0]);
        map.retire(range);
        assert_eq!(pins.retired(&map), [range]);
        pins.swept();
        assert_eq!((pins.count(), pins.retired(&map).len()), (0, 0));
    }
}
