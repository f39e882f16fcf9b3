//! Makes keys of sparse ids, by the key index of their table.

use warprow_keys::{KeyIndex, KeyKind};
use warprow_store::view::SparseIds;

use super::keys::{Id, KEY_MISSING, KEY_PADDING, KeyCounts, TABLE_SHIFT};

/// How many ids the index is asked for at once.
const BLOCK: usize = 128;

/// Writes to `keys` the keys of one feature's ids, which are sparse ids of the table with index `table`, as
/// [`keys`](super::keys()) does for a table without an index. In such a key, the key position that the index gives the
/// id takes the place of the row.
pub fn sparse_keys<I: Id>(
    ids: &[I],
    table: u16,
    sparse: &SparseIds,
    padding: Option<i128>,
    read_padding: bool,
    keys: &mut [u64],
) -> KeyCounts {
    let base = u64::from(table) << TABLE_SHIFT;
    // If one of the two types, of ids and of stored keys, is signed and the other is not, numbers with the upper bit
    // set are no keys.
    let signed = sparse.index.kind() == KeyKind::I64;
    let foreign = if signed == I::SIGNED { 0 } else { 1 << 63 };
    let padding = padding.and_then(I::raw_of);
    let mut counts = KeyCounts::default();
    let mut raws = [0; BLOCK];
    let mut slots = [0; BLOCK];
    for (ids, keys) in ids.chunks(BLOCK).zip(keys.chunks_mut(BLOCK)) {
        let raws = &mut raws[..ids.len()];
        let slots = &mut slots[..ids.len()];
        raws.iter_mut().zip(ids).for_each(|(raw, id)| *raw = id.raw());
        sparse.index.positions(raws, slots);
        for ((key, &raw), &slot) in keys.iter_mut().zip(&*raws).zip(&*slots) {
            let found = slot != KeyIndex::ABSENT && raw & foreign == 0 && sparse.is_stored(slot, raw);
            let padded = padding == Some(raw);
            let skipped = padded && !(read_padding && found);
            let read = if found { base | slot } else { KEY_MISSING };
            *key = if skipped { KEY_PADDING } else { read };
            counts.missing += usize::from(!found && !padded);
            counts.padding += usize::from(skipped);
        }
    }
    counts
}

/// Writes the mask of one feature's ids, of which [`sparse_keys`] made `keys`: 1 where the table has the row and the id
/// is no padding, else 0.
pub fn sparse_mask<I: Id>(ids: &[I], keys: &[u64], padding: Option<i128>, mask: &mut [u8]) {
    let padding = padding.and_then(I::raw_of);
    for ((mask, &id), &key) in mask.iter_mut().zip(ids).zip(keys) {
        *mask = u8::from(key < KEY_PADDING && padding != Some(id.raw()));
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use warprow_keys::{FingerprintWidth, IndexOptions};
    use warprow_layout::Ranks;

    use super::*;

    fn sparse(numbers: &[i128], signed: bool, stored: bool) -> SparseIds {
        let bits: Vec<u64> = numbers.iter().map(|&number| number as u64).collect();
        let signed_bits: Vec<i64> = bits.iter().map(|&key| key as i64).collect();
        // Foreign ids pass eight bits now and then, and must be told by comparison.
        let width = if stored { FingerprintWidth::Bits8 } else { FingerprintWidth::Bits32 };
        let options = IndexOptions::default().with_fingerprint(width).with_threads(1);
        let go_on = &mut |_| ControlFlow::Continue(());
        let index = match signed {
            true => KeyIndex::build(&signed_bits[..], &options, go_on),
            false => KeyIndex::build(&bits[..], &options, go_on),
        };
        let index = Arc::new(index.unwrap());
        let slots = Ranks::from_u32(index.place(&bits[..], 1).unwrap()).unwrap();
        // Rows lie as the numbers come.
        let ranks = slots.inverse();
        SparseIds { index, stored: stored.then(|| Arc::new(bits)), ranks: Some(Arc::new(ranks)) }
    }

    fn check<I: Id + Into<i128>>(
        ids: &[I],
        numbers: &[i128],
        sparse: &SparseIds,
        padding: Option<i128>,
        read_padding: bool,
    ) {
        let mut got = vec![7; ids.len()];
        let mut flags = vec![7; ids.len()];
        let counts = sparse_keys(ids, 3, sparse, padding, read_padding, &mut got);
        sparse_mask(ids, &got, padding, &mut flags);
        let mut missing = 0;
        let mut padded = 0;
        for ((&id, &key), &flag) in ids.iter().zip(&got).zip(&flags) {
            let id: i128 = id.into();
            let position = numbers.iter().position(|&number| number == id);
            let is_padding = padding == Some(id);
            match position {
                Some(position) if !is_padding || read_padding => {
                    assert_eq!(key >> TABLE_SHIFT, 3, "id {id}");
                    let rank = sparse.ranks.as_ref().unwrap().get(key & ((1 << TABLE_SHIFT) - 1));
                    assert_eq!(rank, Some(position as u64), "id {id}");
                }
                _ if is_padding => assert_eq!(key, KEY_PADDING, "id {id}"),
                _ => assert_eq!(key, KEY_MISSING, "id {id}"),
            }
            assert_eq!(flag, u8::from(position.is_some() && !is_padding), "id {id}");
            missing += usize::from(position.is_none() && !is_padding);
            padded += usize::from(is_padding && !(read_padding && position.is_some()));
        }
        assert_eq!(counts, KeyCounts { missing, padding: padded });
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn keys_follow_the_rules(
            numbers in proptest::collection::hash_set(prop_oneof![
                -3i64..12, any::<i64>(), Just(i64::MIN), Just(i64::MAX), Just(-1)], 1..300),
            asked in proptest::collection::vec(any::<proptest::sample::Index>(), 0..300),
            foreign in proptest::collection::vec(prop_oneof![-5i64..15, any::<i64>()], 0..300),
            padding in proptest::option::of(-4i64..12),
            signed: bool,
            stored: bool,
            read_padding: bool,
        ) {
            let bits: Vec<i64> = numbers.into_iter().collect();
            let numbers: Vec<i128> =
                bits.iter().map(|&key| if signed { key.into() } else { i128::from(key as u64) }).collect();
            let sparse = sparse(&numbers, signed, stored);
            let ids: Vec<i64> = asked.iter().map(|at| *at.get(&bits)).chain(foreign).collect();
            // The same bits as numbers of every type: what is no number of the table's kind is missing.
            for padding in [padding.map(i128::from), padding.map(|padding| i128::from(padding as u64))] {
                check(&ids, &numbers, &sparse, padding, read_padding);
                check(&ids.iter().map(|&id| id as i32).collect::<Vec<_>>(), &numbers, &sparse, padding, read_padding);
                check(&ids.iter().map(|&id| id as u32).collect::<Vec<_>>(), &numbers, &sparse, padding, read_padding);
                check(&ids.iter().map(|&id| id as u64).collect::<Vec<_>>(), &numbers, &sparse, padding, read_padding);
            }
        }
    }
}
