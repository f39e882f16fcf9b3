//! Makes keys of ids. A key is a number of 64 bits that names a row among all tables of a plan. (It is not the sparse
//! key by which a user names a row.)

/// A key is its table's index in the plan, shifted left by this many bits, plus the row (in a table with sparse keys,
/// the key position).
pub const TABLE_SHIFT: u32 = 48;
/// The most rows that a table of a plan may have.
pub const MAX_ROWS: u64 = 1 << TABLE_SHIFT;
/// The key of an id that its table does not have.
pub const KEY_MISSING: u64 = u64::MAX;
/// The key of a padding id that is not to be read.
pub const KEY_PADDING: u64 = u64::MAX - 1;

/// The key of an id whose row has been found already.
pub const KEY_FOUND: u64 = u64::MAX - 2;

/// An integer that ids are given as.
pub trait Id: Copy {
    /// Whether the type can hold negative numbers.
    const SIGNED: bool;

    /// The id as an unsigned number. For a negative id that is 2⁶⁴ more than the id, which is no row of any table.
    fn raw(self) -> u64;

    /// What [`raw`](Self::raw) is for `id`; `None` if this type cannot hold it.
    fn raw_of(id: i128) -> Option<u64>;
}

macro_rules! id {
    ($($type:ty),*) => {$(
        impl Id for $type {
            const SIGNED: bool = <$type>::MIN != 0;

            #[inline(always)]
            fn raw(self) -> u64 {
                // Sign-extends signed types.
                self as i64 as u64
            }

            fn raw_of(id: i128) -> Option<u64> {
                <$type>::try_from(id).ok().map(Id::raw)
            }
        }
    )*};
}
id!(i32, i64, u32, u64);

/// How many ids of a feature have no row to be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyCounts {
    /// Ids that the table does not have.
    pub missing: usize,
    /// Padding ids that are not read.
    pub padding: usize,
}

/// Writes to `keys` the keys of one feature's ids, which are ids of the table with index `table`. The table has `rows`
/// rows.
///
/// An id is compared with `padding` before anything else. With `read_padding` (in unpooled look-ups), a padding id that
/// the table has gets the key of its row nevertheless.
pub fn keys<I: Id>(
    ids: &[I],
    table: u16,
    rows: u64,
    padding: Option<i128>,
    read_padding: bool,
    keys: &mut [u64],
) -> KeyCounts {
    let base = u64::from(table) << TABLE_SHIFT;
    let rows = rows.min(MAX_ROWS);
    let mut counts = KeyCounts::default();
    match padding.and_then(I::raw_of) {
        None => {
            for (key, &id) in keys.iter_mut().zip(ids) {
                let raw = id.raw();
                let found = raw < rows;
                *key = if found { base | raw } else { KEY_MISSING };
                counts.missing += usize::from(!found);
            }
        }
        Some(padding) => {
            for (key, &id) in keys.iter_mut().zip(ids) {
                let raw = id.raw();
                let found = raw < rows;
                let padded = raw == padding;
                let skipped = padded && !(read_padding && found);
                let read = if found { base | raw } else { KEY_MISSING };
                *key = if skipped { KEY_PADDING } else { read };
                counts.missing += usize::from(!found && !padded);
                counts.padding += usize::from(skipped);
            }
        }
    }
    counts
}

/// Writes the mask of one feature's ids: 1 where the table has the row and the id is no padding, else 0.
pub fn mask<I: Id>(ids: &[I], rows: u64, padding: Option<i128>, mask: &mut [u8]) {
    let masked = mask.iter_mut().zip(ids);
    match padding.and_then(I::raw_of) {
        None => masked.for_each(|(mask, &id)| *mask = u8::from(id.raw() < rows)),
        Some(padding) => masked.for_each(|(mask, &id)| *mask = u8::from(id.raw() < rows && id.raw() != padding)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    /// What one id becomes, by the words of the specification.
    fn naive(id: i128, table: u16, rows: u64, padding: Option<i128>, read_padding: bool) -> (u64, u8) {
        let found = (0..i128::from(rows)).contains(&id);
        let key = (u64::from(table) << TABLE_SHIFT) + if found { id as u64 } else { 0 };
        match (padding == Some(id), found) {
            (true, true) if read_padding => (key, 0),
            (true, _) => (KEY_PADDING, 0),
            (false, true) => (key, 1),
            (false, false) => (KEY_MISSING, 0),
        }
    }

    fn check<I: Id + Into<i128>>(ids: &[I], table: u16, rows: u64, padding: Option<i128>, read_padding: bool) {
        let mut got = vec![7; ids.len()];
        let mut flags = vec![7; ids.len()];
        let counts = keys(ids, table, rows, padding, read_padding, &mut got);
        mask(ids, rows, padding, &mut flags);
        let want: Vec<_> = ids.iter().map(|&id| naive(id.into(), table, rows, padding, read_padding)).collect();
        assert_eq!(got, want.iter().map(|want| want.0).collect::<Vec<_>>());
        assert_eq!(flags, want.iter().map(|want| want.1).collect::<Vec<_>>());
        let count = |key| got.iter().filter(|&&got| got == key).count();
        assert_eq!(counts, KeyCounts { missing: count(KEY_MISSING), padding: count(KEY_PADDING) });
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn keys_follow_the_rules(
            ids in proptest::collection::vec(prop_oneof![-3i64..12, any::<i64>()], 0..60),
            table: u16,
            rows in 1u64..10,
            padding in proptest::option::of(-3i128..12),
            read_padding: bool,
        ) {
            check(&ids, table, rows, padding, read_padding);
            check(&ids.iter().map(|&id| id as i32).collect::<Vec<_>>(), table, rows, padding, read_padding);
            check(&ids.iter().map(|&id| id as u32).collect::<Vec<_>>(), table, rows, padding, read_padding);
            check(&ids.iter().map(|&id| id as u64).collect::<Vec<_>>(), table, rows, padding, read_padding);
        }
    }

    #[test]
    fn huge_unsigned_ids_are_no_negative_padding() {
        check(&[u64::MAX, 1 << 63, 3], 2, 4, Some(-1), true);
        check(&[u64::MAX, 1 << 63, 3], 2, 4, Some(u64::MAX.into()), false);
        check(&[-1i64, 3], 2, 4, Some(u64::MAX.into()), false);
        check(&[-1i32, 3], 2, 4, Some(-1), false);
    }
}
