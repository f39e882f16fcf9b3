//! Finds where the rows of ids lie, of a table whose ids are the numbers of its rows, and of which no row was updated.

use warprow_dma::prefetch::prefetch;
use warprow_layout::Ranks;
use zerocopy::{Immutable, IntoBytes};

use super::keys::{Id, KeyCounts, MAX_ROWS, TABLE_SHIFT};
use super::route::{RouteTable, RowLocation};
use super::split_tiers::TierSplit;

/// How many ids before its turn the rank of an id is brought towards the caches.
const AHEAD: usize = 32;

/// Finds where the rows of one feature's ids lie, which begin at position `first`, of the table number `table.0` of a
/// plan, with `table.1` rows. It does in one pass what [`keys`](super::keys()) and then
/// [`split_tiers`](super::split_tiers()) would do, and makes keys of ids on drives alone. `padding` is the id that
/// stands for none, and whether its row is read nevertheless, if the table has it.
///
/// # Panics
/// If `places` is shorter than `ids`, or the buffers of `tiers` have no room for all ids.
pub(crate) fn locate<I: Id>(
    ids: &[I],
    first: u32,
    table: (u16, u64),
    route: &RouteTable,
    padding: (Option<i128>, bool),
    places: &mut [RowLocation],
    tiers: &mut TierSplit<'_>,
) -> KeyCounts {
    let each = Each { ids, first, table, route, padding };
    match (route.ranks.as_deref(), route.chosen.as_deref()) {
        (None, None) => each.locate(places, tiers, |id| id, |_| {}),
        (None, Some(chosen)) => each.locate(places, tiers, |id| chosen.place(id), |id| chosen.expect(id)),
        (Some(Ranks::U32(ranks)), None) => each.locate(places, tiers, |id| rank(ranks, id), |id| expect(ranks, id)),
        (Some(Ranks::U32(ranks)), Some(chosen)) => {
            each.locate(places, tiers, |id| chosen.place(rank(ranks, id)), |id| expect(ranks, id))
        }
        (Some(Ranks::U64(ranks)), None) => each.locate(places, tiers, |id| rank(ranks, id), |id| expect(ranks, id)),
        (Some(Ranks::U64(ranks)), Some(chosen)) => {
            each.locate(places, tiers, |id| chosen.place(rank(ranks, id)), |id| expect(ranks, id))
        }
    }
}

/// The rank of `id`; if there is none, one that no row has.
#[inline(always)]
fn rank<R: Copy + Into<u64>>(ranks: &[R], id: u64) -> u64 {
    ranks.get(id as usize).map_or(u64::MAX, |&rank| rank.into())
}

/// Has the rank of `id` brought towards the caches. Ids are scattered over the table.
#[inline(always)]
fn expect<R: IntoBytes + Immutable>(ranks: &[R], id: u64) {
    if let Some(rank) = ranks.get(id as usize) {
        prefetch(rank.as_bytes());
    }
}

struct Each<'a, I> {
    ids: &'a [I],
    first: u32,
    table: (u16, u64),
    route: &'a RouteTable,
    padding: (Option<i128>, bool),
}

impl<I: Id> Each<'_, I> {
    /// `place_of` gives the number of a row's place in DRAM, by its id: `hot_rows` or more if the row has none.
    #[inline(always)]
    fn locate(
        self,
        places: &mut [RowLocation],
        tiers: &mut TierSplit<'_>,
        place_of: impl Fn(u64) -> u64,
        expect: impl Fn(u64),
    ) -> KeyCounts {
        let Self { ids, first, table: (table, rows), route, padding: (padding, read_padding) } = self;
        let (base, rows) = (u64::from(table) << TABLE_SHIFT, rows.min(MAX_ROWS));
        let row_bytes = u64::from(route.packing.row_bytes());
        let padding = padding.and_then(I::raw_of);
        let mut counts = KeyCounts::default();
        let (mut cold_count, mut hot_count) = (tiers.cold_count, tiers.hot_count);
        let (cold, cold_keys, hot_places) = (&mut *tiers.cold, &mut *tiers.cold_keys, &mut *tiers.hot_places);
        for (at, (&id, place)) in ids.iter().zip(&mut places[..ids.len()]).enumerate() {
            if let Some(later) = ids.get(at + AHEAD) {
                expect(later.raw());
            }
            let raw = id.raw();
            let found = raw < rows;
            // Nearly every id is found, and no padding: the processor predicts that.
            if !found || padding == Some(raw) {
                let padded = padding == Some(raw);
                if padded && !(read_padding && found) {
                    *place = RowLocation::PADDING;
                    counts.padding += 1;
                    continue;
                }
                if !found {
                    *place = RowLocation::MISSING;
                    counts.missing += 1;
                    continue;
                }
            }
            let in_dram = place_of(raw);
            let hot = in_dram < route.hot_rows;
            // The processor cannot predict the tier of a row. So there is no branch: both lists are written, and one of
            // them grows.
            *place = if hot { RowLocation::dram(route.dram_byte + in_dram * row_bytes) } else { RowLocation::COLD };
            cold[cold_count] = first + at as u32;
            cold_keys[cold_count] = base | raw;
            cold_count += usize::from(!hot);
            hot_places[hot_count] = place.number();
            hot_count += usize::from(hot);
        }
        (tiers.cold_count, tiers.hot_count) = (cold_count, hot_count);
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::chosen::ChosenRanks;
    use super::super::keys::keys;
    use super::super::route::tests::GENERATION;
    use super::super::split_tiers::split_tiers;
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    /// The buffers of a [`TierSplit`], with room for `ids` ids.
    struct Lists {
        cold: Vec<u32>,
        cold_keys: Vec<u64>,
        hot_places: Vec<u64>,
    }

    /// Places, positions and keys of ids on drives, numbers of places in memory, and what is missing or padding.
    type Found = (Vec<RowLocation>, Vec<u32>, Vec<u64>, Vec<u64>, Vec<KeyCounts>);

    /// Finds the features of a batch one after another, each by `find`.
    fn found<I>(
        features: &[Vec<I>],
        mut find: impl FnMut(&[I], u32, &mut [RowLocation], &mut TierSplit<'_>) -> KeyCounts,
    ) -> Found {
        let ids = features.iter().map(Vec::len).sum();
        let mut lists = Lists { cold: vec![7; ids], cold_keys: vec![7; ids], hot_places: vec![7; ids] };
        let mut tiers = TierSplit {
            cold: &mut lists.cold,
            cold_keys: &mut lists.cold_keys,
            cold_count: 0,
            hot_places: &mut lists.hot_places,
            hot_count: 0,
        };
        let (mut places, mut counts, mut first) = (vec![RowLocation::FAILED; ids], Vec::new(), 0);
        for feature in features {
            counts.push(find(feature, first as u32, &mut places[first..][..feature.len()], &mut tiers));
            first += feature.len();
        }
        let (cold, hot) = (tiers.cold_count, tiers.hot_count);
        lists.cold.truncate(cold);
        lists.cold_keys.truncate(cold);
        lists.hot_places.truncate(hot);
        (places, lists.cold, lists.cold_keys, lists.hot_places, counts)
    }

    fn check<I: Id>(features: &[Vec<I>], route: &RouteTable, rows: u64, padding: (Option<i128>, bool)) {
        let got =
            found(features, |ids, first, places, tiers| locate(ids, first, (9, rows), route, padding, places, tiers));
        let want = found(features, |ids, first, places, tiers| {
            let mut keys_of = vec![0; ids.len()];
            let counts = keys(ids, 9, rows, padding.0, padding.1, &mut keys_of);
            split_tiers(route, first, &keys_of, places, tiers);
            counts
        });
        assert_eq!(got, want);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn one_pass_finds_what_keys_and_tiers_find(
            features in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![-3i64..25, 475i64..505, any::<i64>()], 0..80), 0..5),
            rows in prop_oneof![1u64..25, Just(500)],
            hot_rows in prop_oneof![0u64..25, 475u64..505],
            padding in proptest::option::of(prop_oneof![-3i128..25, 495i128..505]),
            read_padding: bool,
            ranks in 0u8..3,
            listed in proptest::option::of(proptest::collection::vec(prop_oneof![0u64..25, 475u64..500], 0..40)),
        ) {
            let generation = &*GENERATION;
            let chosen = listed.map(|list| Arc::new(ChosenRanks::new(0..500, &list, list.len() as u64).unwrap()));
            let route = RouteTable {
                ranks: match ranks {
                    0 => None,
                    1 => Some(Arc::new(Ranks::U32((0..500).rev().collect()))),
                    _ => Some(Arc::new(Ranks::U64((0..500).rev().collect()))),
                },
                hot_rows: chosen.as_ref().map_or(hot_rows, |chosen| chosen.count()),
                chosen,
                dram_byte: 640,
                packing: generation.tables[0].packing,
                first_lba: 0,
                placement: generation.placement.clone(),
            };
            let padding = (padding, read_padding);
            check(&features, &route, rows, padding);
            let as_type = |cast: fn(i64) -> i32| features.iter().map(|ids| ids.iter().map(|&id| cast(id)).collect()).collect::<Vec<Vec<i32>>>();
            check(&as_type(|id| id as i32), &route, rows, padding);
            let unsigned: Vec<Vec<u64>> = features.iter().map(|ids| ids.iter().map(|&id| id as u64).collect()).collect();
            check(&unsigned, &route, rows, padding);
            let short: Vec<Vec<u32>> = features.iter().map(|ids| ids.iter().map(|&id| id as u32).collect()).collect();
            check(&short, &route, rows, padding);
        }
    }

    #[test]
    fn ranks_too_few_for_the_rows_are_on_drives_and_no_place_in_memory() {
        let generation = &*GENERATION;
        let route = RouteTable {
            ranks: Some(Arc::new(Ranks::U32(vec![1, 0]))),
            hot_rows: 500,
            chosen: None,
            dram_byte: 0,
            packing: generation.tables[0].packing,
            first_lba: 0,
            placement: generation.placement.clone(),
        };
        let (places, cold, ..) = found(&[vec![0i64, 1, 2, 499, 500]], |ids, first, places, tiers| {
            locate(ids, first, (0, 500), &route, (None, true), places, tiers)
        });
        assert_eq!(places[..2], [RowLocation::dram(64), RowLocation::dram(0)]);
        assert_eq!(places[2..], [RowLocation::COLD, RowLocation::COLD, RowLocation::MISSING]);
        assert_eq!(cold, [2, 3]);
    }
}
