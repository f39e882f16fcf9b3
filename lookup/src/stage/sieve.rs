//! Ids by tier, before anything else is known of them: what lies on drives must be asked for first.

use warprow_layout::Ranks;

use super::keys::{KEY_FOUND, KEY_MISSING, TABLE_SHIFT};
use super::route::{Location, RouteTable};

/// The keys of both tiers, in buffers that have room for all.
#[derive(Debug)]
pub struct Sieved<'a> {
    /// Positions of ids whose rows lie on drives, ascending.
    pub cold: &'a mut [u32],
    /// Their keys.
    pub cold_keys: &'a mut [u64],
    /// How many they are.
    pub cold_count: usize,
    /// Keys of rows in DRAM.
    pub hot_keys: &'a mut [u64],
    /// How many they are.
    pub hot_count: usize,
}

/// Sorts the keys of one feature, whose ids begin at position `first`, into tiers, and writes for each where its row lies:
/// in DRAM, missing, padding, or [`Location::COLD`]. Where the key is [`KEY_FOUND`], that has been written already.
///
/// `places` is as long as `keys`, and the buffers of `sieved` have room for them: else it panics.
pub fn sieve(table: &RouteTable, first: u32, keys: &[u64], places: &mut [Location], sieved: &mut Sieved<'_>) {
    match table.ranks.as_deref() {
        None => sieve_by(table, first, keys, places, sieved, |id| id),
        Some(Ranks::U32(ranks)) => sieve_by(table, first, keys, places, sieved, |id| {
            ranks.get(id as usize).map_or(u64::MAX, |&rank| rank.into())
        }),
        Some(Ranks::U64(ranks)) => {
            sieve_by(table, first, keys, places, sieved, |id| ranks.get(id as usize).copied().unwrap_or(u64::MAX))
        }
    }
}

#[inline(always)]
fn sieve_by(
    table: &RouteTable,
    first: u32,
    keys: &[u64],
    places: &mut [Location],
    sieved: &mut Sieved<'_>,
    rank_of: impl Fn(u64) -> u64,
) {
    let row_bytes = u64::from(table.packing.row_bytes());
    let (mut cold_count, mut hot_count) = (sieved.cold_count, sieved.hot_count);
    let (cold, cold_keys, hot_keys) = (&mut *sieved.cold, &mut *sieved.cold_keys, &mut *sieved.hot_keys);
    for ((id, &key), place) in (first..).zip(keys).zip(&mut places[..keys.len()]) {
        if key >= KEY_FOUND {
            match key {
                KEY_FOUND => {}
                KEY_MISSING => *place = Location::MISSING,
                _ => *place = Location::PADDING,
            }
            continue;
        }
        let rank = rank_of(key & ((1 << TABLE_SHIFT) - 1));
        let hot = rank < table.hot_rows;
        // Which tier it is cannot be predicted: both lists are written, and one grows.
        *place = if hot { Location::dram(table.dram_byte + rank * row_bytes) } else { Location::COLD };
        cold[cold_count] = id;
        cold_keys[cold_count] = key;
        cold_count += usize::from(!hot);
        hot_keys[hot_count] = key;
        hot_count += usize::from(hot);
    }
    (sieved.cold_count, sieved.hot_count) = (cold_count, hot_count);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
            hot_rows in prop_oneof![0u64..25, 475u64..505],
            ranks in 0u8..3,
        ) {
            let generation = &*GENERATION;
            let table = RouteTable {
                ranks: match ranks {
                    0 => None,
                    1 => Some(Arc::new(Ranks::U32((0..500).rev().collect()))),
                    _ => Some(Arc::new(Ranks::U64((0..500).rev().collect()))),
                },
                hot_rows,
                dram_byte: 640,
                packing: generation.tables[0].packing,
                first_lba: 0,
                placement: generation.placement.clone(),
            };
            let keys = features.concat();
            let mut places = vec![Location::FAILED; keys.len()];
            let (mut cold, mut cold_keys, mut hot_keys) = (vec![0; keys.len()], vec![0; keys.len()], vec![0; keys.len()]);
            let mut sieved = Sieved {
                cold: &mut cold,
                cold_keys: &mut cold_keys,
                cold_count: 0,
                hot_keys: &mut hot_keys,
                hot_count: 0,
            };
            let mut first = 0;
            for feature in &features {
                sieve(&table, first as u32, feature, &mut places[first..], &mut sieved);
                first += feature.len();
            }
            let (cold_count, hot_count) = (sieved.cold_count, sieved.hot_count);
            let (mut want_cold, mut want_hot) = (Vec::new(), Vec::new());
            for (id, &key) in (0u32..).zip(&keys) {
                let rank = if ranks == 0 { key } else { 499u64.wrapping_sub(key) };
                let want = match key {
                    KEY_MISSING => Location::MISSING,
                    KEY_PADDING => Location::PADDING,
                    _ if rank < hot_rows => {
                        want_hot.push(key);
                        Location::dram(640 + rank * 64)
                    }
                    _ => {
                        want_cold.push((id, key));
                        Location::COLD
                    }
                };
                prop_assert_eq!(places[id as usize], want);
            }
            let got: Vec<(u32, u64)> = cold[..cold_count].iter().copied().zip(cold_keys[..cold_count].iter().copied()).collect();
            prop_assert_eq!(got, want_cold);
            prop_assert_eq!(&hot_keys[..hot_count], want_hot);
        }
    }
}
