//! How hot each row of a table is, and the order that follows.

use std::cmp::Reverse;

use warprow_layout::{RankError, Ranks};

use warprow_workload::mix;

use warprow_cache::FrequentKeys;

/// Counts from here on are sorted rather than counted.
const HIGH: usize = 1 << 16;

/// How often the rows of a table were looked up.
#[derive(Debug, Clone)]
pub enum RowCounts {
    /// A count for each row; saturates.
    Exact(Vec<u32>),
    /// Counts of the rows looked up most.
    Sketch {
        /// The counted rows.
        frequent: FrequentKeys,
        /// Rows of the table.
        rows: u64,
        /// Ids are keys, any of 64 bits.
        keyed: bool,
    },
}

impl RowCounts {
    /// Bytes that exact counts and the order made of them take for each row.
    pub const EXACT_BYTES: u64 = 8;

    /// Bytes that counting takes for each key if none is to be left out.
    pub const KEY_BYTES: u64 = 128;

    /// Counts of a table of `rows` rows that is looked up by keys, in `bytes` bytes.
    pub fn keyed(rows: u64, bytes: u64) -> Self {
        Self::Sketch { frequent: FrequentKeys::new(bytes / 4), rows, keyed: true }
    }

    /// Exact counts for `rows` rows where these and the order made of them take `bytes` at most, else those of the most frequent.
    pub fn new(rows: u64, bytes: u64) -> Self {
        match usize::try_from(rows) {
            Ok(len) if rows <= u64::from(u32::MAX) && rows.saturating_mul(Self::EXACT_BYTES) <= bytes => {
                Self::Exact(vec![0; len])
            }
            // Counts, twice when they are renewed, and the list made of them.
            _ => Self::Sketch { frequent: FrequentKeys::new(bytes / 4), rows, keyed: false },
        }
    }

    /// Counts a look-up of `id`; `false` if the table does not have it.
    #[inline]
    pub fn add(&mut self, id: i64) -> bool {
        match self {
            Self::Exact(counts) => match usize::try_from(id).ok().and_then(|id| counts.get_mut(id)) {
                Some(count) => {
                    *count = count.saturating_add(1);
                    true
                }
                None => false,
            },
            Self::Sketch { frequent, keyed: true, .. } => {
                frequent.add(id as u64);
                true
            }
            Self::Sketch { frequent, rows, .. } => match u64::try_from(id) {
                Ok(id) if id < *rows => {
                    frequent.add(id);
                    true
                }
                _ => false,
            },
        }
    }

    /// The rows that were looked up, by count, the highest first.
    pub fn classes(&self) -> Vec<CountClass> {
        let mut high = Vec::new();
        let mut rows = vec![0u64; HIGH];
        let mut note = |count: u32| match rows.get_mut(count as usize) {
            Some(rows) => *rows += 1,
            None => high.push(count),
        };
        match self {
            Self::Exact(counts) => counts.iter().for_each(|&count| note(count)),
            Self::Sketch { frequent, .. } => frequent.iter().for_each(|(_, count)| note(count)),
        }
        high.sort_unstable_by_key(|&count| Reverse(count));
        let mut all = classes(high.into_iter());
        for (count, rows) in rows.into_iter().enumerate().skip(1).rev().filter(|pair| pair.1 > 0) {
            let begin = all.last().map_or(0, |class| class.end);
            all.push(CountClass { count: count as u32, end: begin + rows });
        }
        all
    }

    /// By how much a count may be too low.
    pub fn error(&self) -> u64 {
        match self {
            Self::Exact(_) => 0,
            Self::Sketch { frequent, .. } => frequent.error(),
        }
    }
}

/// Rows of one count: they follow those of the class before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountClass {
    /// How often each was looked up; at least 1.
    pub count: u32,
    /// One past the rank of the last.
    pub end: u64,
}

/// The rows of a table, the hottest first; rows of one count, and those never looked up, in the order of their ids.
#[derive(Debug, Clone)]
pub struct HotnessOrder {
    rows: u64,
    classes: Vec<CountClass>,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Exact {
        /// By id.
        ranks: Vec<u32>,
        /// By rank: the rows that were looked up.
        seen: Vec<u32>,
    },
    Listed {
        /// By rank.
        seen: Vec<u64>,
        /// Ids that have a rank in `seen`, ascending, with that rank.
        ranks: Vec<(u64, u32)>,
        /// Ids are keys, an `i64` by its bits.
        keyed: bool,
    },
}

impl HotnessOrder {
    /// The order by `counts`.
    pub fn new(counts: RowCounts) -> Self {
        match counts {
            RowCounts::Exact(counts) => Self::exact(counts),
            RowCounts::Sketch { frequent, rows, keyed } => Self::listed(&frequent, rows, keyed),
        }
    }

    fn exact(mut counts: Vec<u32>) -> Self {
        let mut places = vec![0usize; HIGH + 1];
        counts.iter().for_each(|&count| places[(count as usize).min(HIGH)] += 1);
        let unseen = places[0];
        let high = places[HIGH];
        let mut next = 0;
        for place in places.iter_mut().rev() {
            next += std::mem::replace(place, next);
        }
        let rows = counts.len();
        let mut seen = vec![0u32; rows - unseen];
        for (id, &count) in (0u32..).zip(&counts) {
            if let Some(slot) = (count != 0).then(|| seen.get_mut(places[(count as usize).min(HIGH)])).flatten() {
                *slot = id;
                places[(count as usize).min(HIGH)] += 1;
            }
        }
        let count_of = |id: u32| counts.get(id as usize).copied().unwrap_or(0);
        if let Some(high) = seen.get_mut(..high) {
            high.sort_by_key(|&id| Reverse(count_of(id)));
        }
        let classes = classes(seen.iter().map(|&id| count_of(id)));
        let mut behind = seen.len() as u32;
        for count in &mut counts {
            if *count == 0 {
                *count = behind;
                behind += 1;
            } else {
                *count = 0;
            }
        }
        let mut ranks = counts;
        for (rank, &id) in (0..).zip(&seen) {
            if let Some(slot) = ranks.get_mut(id as usize) {
                *slot = rank;
            }
        }
        Self { rows: rows as u64, classes, kind: Kind::Exact { ranks, seen } }
    }

    fn listed(frequent: &FrequentKeys, rows: u64, keyed: bool) -> Self {
        let mut kept: Vec<(u64, u32)> = frequent.iter().collect();
        kept.sort_unstable_by_key(|&(id, count)| (Reverse(count), id));
        // More keys than there are rows are not the table's, some of them.
        kept.truncate(usize::try_from(rows).unwrap_or(usize::MAX));
        let classes = classes(kept.iter().map(|&(_, count)| count));
        let seen: Vec<u64> = kept.iter().map(|&(id, _)| id).collect();
        Self { rows, classes, kind: Kind::Listed { ranks: places(&seen), seen, keyed } }
    }

    /// Rows of the table.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The rows that were looked up, by count, the highest first.
    pub fn classes(&self) -> &[CountClass] {
        &self.classes
    }

    /// Rows that were looked up, as far as known.
    pub fn seen(&self) -> u64 {
        self.classes.last().map_or(0, |class| class.end)
    }

    /// How often the row at `rank` was looked up when the order was made by counts.
    pub fn count(&self, rank: u64) -> u32 {
        self.classes.get(self.classes.partition_point(|class| class.end <= rank)).map_or(0, |class| class.count)
    }

    /// The rank of `id`; `None` if the table does not have it.
    #[inline]
    pub fn rank(&self, id: i64) -> Option<u64> {
        match &self.kind {
            Kind::Exact { ranks, .. } => usize::try_from(id).ok().and_then(|id| ranks.get(id)).map(|&rank| rank.into()),
            Kind::Listed { seen, ranks, keyed: true } => {
                let key = id as u64;
                let others = self.rows - seen.len() as u64;
                match ranks.binary_search_by_key(&key, |&(key, _)| key) {
                    Ok(at) => ranks.get(at).map(|&(_, rank)| rank.into()),
                    // Where the others lie nobody knows: anywhere behind.
                    Err(_) => mix(key).checked_rem(others).map(|nth| seen.len() as u64 + nth),
                }
            }
            Kind::Listed { seen, ranks, .. } => {
                let id = u64::try_from(id).ok().filter(|&id| id < self.rows)?;
                Some(match ranks.binary_search_by_key(&id, |&(id, _)| id) {
                    Ok(at) => ranks.get(at).map_or(0, |&(_, rank)| rank.into()),
                    // Ids that are not in the list follow it in their order.
                    Err(before) => seen.len() as u64 + id - before as u64,
                })
            }
        }
    }

    /// The id at `rank`, of the rows that were looked up.
    pub fn id(&self, rank: u64) -> Option<u64> {
        let rank = usize::try_from(rank).ok()?;
        match &self.kind {
            Kind::Exact { seen, .. } => seen.get(rank).map(|&id| id.into()),
            Kind::Listed { seen, .. } => seen.get(rank).copied(),
        }
    }

    /// The ids of the rows that were looked up, by rank.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        (0..self.seen()).map(|rank| self.id(rank).unwrap_or(0)).collect::<Vec<_>>().into_iter()
    }

    /// Whether every row has a count, and so every id a rank in a table.
    pub fn is_exact(&self) -> bool {
        matches!(self.kind, Kind::Exact { .. })
    }

    /// This order, but with the rows from rank `first` to the last that was looked up in the order of `ids`, which holds the same rows
    /// and no others. The [classes](Self::classes) are then those of before.
    pub(crate) fn rearranged(&self, first: u64, ids: &[u64]) -> Self {
        let mut order = self.clone();
        match &mut order.kind {
            Kind::Exact { ranks, seen } => {
                for (rank, &id) in (first..).zip(ids) {
                    if let (Some(place), Some(slot)) = (seen.get_mut(rank as usize), ranks.get_mut(id as usize)) {
                        (*place, *slot) = (id as u32, rank as u32);
                    }
                }
            }
            Kind::Listed { seen, ranks, .. } => {
                for (rank, &id) in (first..).zip(ids) {
                    if let Some(place) = seen.get_mut(rank as usize) {
                        *place = id;
                    }
                }
                *ranks = places(seen);
            }
        }
        order
    }

    /// Whether ids are keys.
    pub fn is_keyed(&self) -> bool {
        matches!(self.kind, Kind::Listed { keyed: true, .. })
    }

    /// The permutation id → rank, for loading; of keys there is none.
    pub fn ranks(&self) -> Result<Ranks, RankError> {
        match &self.kind {
            Kind::Exact { ranks, .. } => Ranks::from_u32(ranks.clone()),
            Kind::Listed { seen, .. } => ranks_of(self.rows, seen.iter().copied()),
        }
    }
}

/// The permutation id → rank of `rows` rows that has `first` at the first ranks, and the others behind in the order of their
/// ids.
pub fn ranks_of(rows: u64, first: impl ExactSizeIterator<Item = u64>) -> Result<Ranks, RankError> {
    let unplaced = u64::MAX;
    let len = usize::try_from(rows).unwrap_or(0);
    let mut behind = first.len() as u64;
    let mut ranks = vec![unplaced; len];
    for (rank, id) in (0..).zip(first) {
        match usize::try_from(id).ok().and_then(|id| ranks.get_mut(id)) {
            Some(slot) if *slot == unplaced => *slot = rank,
            Some(_) => return Err(RankError::Duplicate { id, rank }),
            None => return Err(RankError::OutOfRange { id, rank, rows }),
        }
    }
    for slot in ranks.iter_mut().filter(|slot| **slot == unplaced) {
        *slot = behind;
        behind += 1;
    }
    Ranks::from_u64(ranks)
}

fn classes(counts: impl Iterator<Item = u32>) -> Vec<CountClass> {
    let mut classes: Vec<CountClass> = Vec::new();
    for (rank, count) in (0..).zip(counts) {
        match classes.last_mut() {
            Some(class) if class.count == count => class.end = rank + 1,
            _ => classes.push(CountClass { count, end: rank + 1 }),
        }
    }
    classes
}

fn places(seen: &[u64]) -> Vec<(u64, u32)> {
    let mut ranks: Vec<(u64, u32)> = seen.iter().copied().zip(0..).collect();
    ranks.sort_unstable();
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn the_order_is_that_of_hotness(
            lookups in proptest::collection::vec(0i64..300, 0..2000),
            often in proptest::option::of(0i64..300),
        ) {
            let mut exact = RowCounts::new(300, u64::MAX);
            let mut sketch = RowCounts::new(300, 8 * 299);
            let kinds = matches!((&exact, &sketch), (RowCounts::Exact(_), RowCounts::Sketch { .. }));
            prop_assert!(kinds);
            let often = often.map_or(vec![], |id| vec![id; HIGH + 5]);
            for &id in lookups.iter().chain(&often) {
                prop_assert!(exact.add(id) && sketch.add(id));
            }
            prop_assert!(![-1, 300].into_iter().any(|id| exact.add(id) || sketch.add(id)));
            let histograms = [exact.classes(), sketch.classes()];
            let counts = match &exact { RowCounts::Exact(counts) => counts.clone(), RowCounts::Sketch { .. } => vec![] };
            let wide: Vec<u64> = counts.iter().map(|&count| count.into()).collect();
            let want = Ranks::by_hotness(&wide);
            // The list is of the rows that were looked up, of which there are few enough.
            prop_assert_eq!(sketch.error(), 0);
            for (order, histogram) in [HotnessOrder::new(exact), HotnessOrder::new(sketch)].into_iter().zip(histograms) {
                prop_assert_eq!(order.classes(), histogram);
                prop_assert_eq!(order.ranks().unwrap(), want.clone());
                for id in 0..300 {
                    let rank = order.rank(id).unwrap();
                    prop_assert_eq!(Some(rank), want.get(id as u64));
                    prop_assert_eq!(order.count(rank), counts[id as usize]);
                    prop_assert_eq!(order.id(rank), (rank < order.seen()).then_some(id as u64));
                }
                prop_assert_eq!((order.rank(-1), order.rank(300)), (None, None));
                prop_assert_eq!(order.seen(), counts.iter().filter(|&&count| count > 0).count() as u64);
                let first = order.seen() / 3;
                let mut ids: Vec<u64> = order.ids().skip(first as usize).collect();
                ids.reverse();
                let turned = order.rearranged(first, &ids);
                prop_assert!((0..first).all(|rank| turned.id(rank) == order.id(rank)));
                prop_assert!((first..).zip(&ids).all(|(rank, &id)| turned.rank(id as i64) == Some(rank)));
                prop_assert_eq!(turned.ranks().unwrap(), ranks_of(300, turned.ids()).unwrap());
            }
        }
    }

    #[test]
    fn keys_have_ranks_by_hotness_and_others_lie_behind() {
        let mut counts = RowCounts::keyed(10, 10 * RowCounts::KEY_BYTES);
        let keys = [i64::MIN, -1, 1 << 60, 7, 7, -1, 7];
        assert!(keys.iter().all(|&key| counts.add(key)) && counts.error() == 0);
        let order = HotnessOrder::new(counts);
        assert!(order.is_keyed() && !order.is_exact());
        let ranks = [7, -1, 1 << 60, i64::MIN].map(|key| order.rank(key));
        // Of one count by their bits.
        assert_eq!(ranks, [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(order.ids().collect::<Vec<_>>(), [7, u64::MAX, 1 << 60, 1 << 63]);
        assert!((100..200).all(|key| (4..10).contains(&order.rank(key).unwrap())));
        assert!(order.ranks().is_err());
    }

    #[test]
    fn lists_that_are_no_order_are_refused() {
        assert!(matches!(ranks_of(3, [1, 1].into_iter()), Err(RankError::Duplicate { id: 1, rank: 1 })));
        assert!(matches!(ranks_of(3, [3].into_iter()), Err(RankError::OutOfRange { id: 3, .. })));
    }
}
