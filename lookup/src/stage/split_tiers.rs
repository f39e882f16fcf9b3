//! Divides ids by tier, before any other stage: rows on drives must be asked for first.

use warprow_layout::Ranks;

use super::keys::{KEY_FOUND, KEY_MISSING, TABLE_SHIFT};
use super::route::{RouteTable, RowLocation};

/// The ids on drives and the rows in memory, in buffers that have room for all ids of a batch.
#[derive(Debug)]
pub struct TierSplit<'a> {
    /// Positions of ids whose rows lie on drives, ascending.
    pub cold: &'a mut [u32],
    /// The keys of the ids in `cold`.
    pub cold_keys: &'a mut [u64],
    /// How many entries of `cold` and `cold_keys` are in use.
    pub cold_count: usize,
    /// Where rows in memory lie: the numbers of their places (`RowLocation::number`), one for each id.
    pub hot_places: &'a mut [u64],
    /// How many entries of `hot_places` are in use.
    pub hot_count: usize,
}

/// Divides the keys of one feature, whose ids begin at position `first`, by tier, and writes to `places` where the row
/// of each lies: in DRAM, missing, padding, or on a drive ([`RowLocation::COLD`]). Where a key is [`KEY_FOUND`], its
/// place has been written before, and stays.
///
/// # Panics
/// If `places` is shorter than `keys`, or the buffers of `sieved` have no room for all keys.
pub fn split_tiers(
    table: &RouteTable,
    first: u32,
    keys: &[u64],
    places: &mut [RowLocation],
    sieved: &mut TierSplit<'_>,
) {
    match table.chosen.as_deref() {
        None => by_ranks(table, first, keys, places, sieved, |rank| rank),
        Some(chosen) => by_ranks(table, first, keys, places, sieved, |rank| chosen.place(rank)),
    }
}

#[inline(always)]
fn by_ranks(
    table: &RouteTable,
    first: u32,
    keys: &[u64],
    places: &mut [RowLocation],
    sieved: &mut TierSplit<'_>,
    place_of: impl Fn(u64) -> u64,
) {
    match table.ranks.as_deref() {
        None => sieve_by(table, first, keys, places, sieved, place_of),
        Some(Ranks::U32(ranks)) => sieve_by(table, first, keys, places, sieved, |id| {
            place_of(ranks.get(id as usize).map_or(u64::MAX, |&rank| rank.into()))
        }),
        Some(Ranks::U64(ranks)) => sieve_by(table, first, keys, places, sieved, |id| {
            place_of(ranks.get(id as usize).copied().unwrap_or(u64::MAX))
        }),
    }
}

/// `place_of` gives the number of a row's place in DRAM, by its id: `hot_rows` or more if the row has none.
#[inline(always)]
fn sieve_by(
    table: &RouteTable,
    first: u32,
    keys: &[u64],
    places: &mut [RowLocation],
    sieved: &mut TierSplit<'_>,
    place_of: impl Fn(u64) -> u64,
) {
    let row_bytes = u64::from(table.packing.row_bytes());
    let mut cold_count = sieved.cold_count;
    let mut hot_count = sieved.hot_count;
    let cold = &mut *sieved.cold;
    let cold_keys = &mut *sieved.cold_keys;
    let hot_places = &mut *sieved.hot_places;
    for ((id, &key), place) in (first..).zip(keys).zip(&mut places[..keys.len()]) {
        if key >= KEY_FOUND {
            match key {
                KEY_FOUND => {}
                KEY_MISSING => *place = RowLocation::MISSING,
                _ => *place = RowLocation::PADDING,
            }
            continue;
        }
        let in_dram = place_of(key & ((1 << TABLE_SHIFT) - 1));
        let hot = in_dram < table.hot_rows;
        // The processor cannot predict the tier of a row. So there is no branch: both lists are written, and one of
        // them grows.
        *place = if hot { RowLocation::dram(table.dram_byte + in_dram * row_bytes) } else { RowLocation::COLD };
        cold[cold_count] = id;
        cold_keys[cold_count] = key;
        cold_count += usize::from(!hot);
        hot_places[hot_count] = place.number();
        hot_count += usize::from(hot);
    }
    (sieved.cold_count, sieved.hot_count) = (cold_count, hot_count);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::chosen::ChosenRanks;
    use super::super::keys::KEY_PADDING;
    use super::super::route::tests::GENERATION;
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn every_id_is_in_one_tier(
            features in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![0u64..25, 475u64..500, Just(KEY_MISSING), Just(KEY_PADDING)], 0..50), 0..5),
            hot_rows in prop_oneof![0u64..25, 475u64..500],
            ranks in 0u8..3,
            listed in proptest::option::of(proptest::collection::btree_set(prop_oneof![0u64..25, 475u64..500], 0..40)),
        ) {
            let generation = &*GENERATION;
            let (list, hot_rows) = match &listed {
                Some(set) => (set.iter().copied().collect(), set.len() as u64),
                None => ((0..hot_rows).collect::<Vec<u64>>(), hot_rows),
            };
            let table = RouteTable {
                ranks: match ranks {
                    0 => None,
                    1 => Some(Arc::new(Ranks::U32((0..500).rev().collect()))),
                    _ => Some(Arc::new(Ranks::U64((0..500).rev().collect()))),
                },
                hot_rows,
                chosen: listed.as_ref().map(|_| Arc::new(ChosenRanks::new(0..500, &list, hot_rows).unwrap())),
                dram_byte: 640,
                packing: generation.tables[0].packing,
                first_lba: 0,
                placement: generation.placement.clone(),
            };
            let keys = features.concat();
            let mut places = vec![RowLocation::FAILED; keys.len()];
            let mut cold = vec![0; keys.len()];
            let mut cold_keys = vec![0; keys.len()];
            let mut hot_places = vec![0; keys.len()];
            let mut sieved = TierSplit {
                cold: &mut cold,
                cold_keys: &mut cold_keys,
                cold_count: 0,
                hot_places: &mut hot_places,
                hot_count: 0,
            };
            let mut first = 0;
            for feature in &features {
                split_tiers(&table, first as u32, feature, &mut places[first..], &mut sieved);
                first += feature.len();
            }
            let cold_count = sieved.cold_count;
            let hot_count = sieved.hot_count;
            let mut want_cold = Vec::new();
            let mut want_hot = Vec::new();
            for (id, &key) in (0u32..).zip(&keys) {
                let rank = if ranks == 0 { key } else { 499u64.wrapping_sub(key) };
                let want = match (key, list.binary_search(&rank)) {
                    (KEY_MISSING, _) => RowLocation::MISSING,
                    (KEY_PADDING, _) => RowLocation::PADDING,
                    (_, Ok(place)) => {
                        want_hot.push(640 + place as u64 * 64);
                        RowLocation::dram(640 + place as u64 * 64)
                    }
                    (_, Err(_)) => {
                        want_cold.push((id, key));
                        RowLocation::COLD
                    }
                };
                prop_assert_eq!(places[id as usize], want);
            }
            let got: Vec<(u32, u64)> = cold[..cold_count].iter().copied().zip(cold_keys[..cold_count].iter().copied()).collect();
            prop_assert_eq!(got, want_cold);
            prop_assert_eq!(&hot_places[..hot_count], want_hot);
        }
    }
}
