use std::collections::HashSet;

/// Ids as a file has them, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedKeys {
    /// Signed, 32 or 64 bits.
    Signed(Vec<i64>),
    /// Unsigned, 32 or 64 bits.
    Unsigned(Vec<u64>),
}

/// How the keys of a trace become ids of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KeyMapping {
    /// A key is the id. Those that the table does not have are missing ids.
    #[default]
    Strict,
    /// The n-th smallest distinct key is id n. Keys beyond the table's rows are missing ids.
    Dense,
    /// The key modulo the number of rows, never negative.
    Modulo,
}

/// Keys mapped to ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedKeys {
    /// The ids, in the trace's order. Unsigned keys past `i64::MAX` stay missing: they appear as `i64::MAX`.
    pub ids: Vec<i64>,
    /// Distinct keys.
    pub distinct: u64,
    /// Ids that the table does not have, repeats counted.
    pub missing: u64,
}

impl RecordedKeys {
    /// Number of keys.
    pub fn len(&self) -> usize {
        match self {
            Self::Signed(keys) => keys.len(),
            Self::Unsigned(keys) => keys.len(),
        }
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids of a table with `rows` rows that these keys stand for.
    pub fn map(self, mapping: KeyMapping, rows: u64) -> MappedKeys {
        match self {
            Self::Signed(keys) => map(&keys, mapping, rows, |key| key, |key| i128::from(key).rem_euclid(rows.into())),
            Self::Unsigned(keys) => {
                let id = |key| i64::try_from(key).unwrap_or(i64::MAX);
                map(&keys, mapping, rows, id, |key| i128::from(key).rem_euclid(rows.into()))
            }
        }
    }
}

fn map<K: Copy + Ord + std::hash::Hash>(
    keys: &[K],
    mapping: KeyMapping,
    rows: u64,
    strict: impl Fn(K) -> i64,
    modulo: impl Fn(K) -> i128,
) -> MappedKeys {
    let mut sorted: Vec<K> = keys.iter().copied().collect::<HashSet<_>>().into_iter().collect();
    sorted.sort_unstable();
    let ids: Vec<i64> = match mapping {
        KeyMapping::Strict => keys.iter().map(|&key| strict(key)).collect(),
        // Every key is in `sorted`.
        KeyMapping::Dense => keys.iter().map(|key| sorted.binary_search(key).unwrap_or(usize::MAX) as i64).collect(),
        KeyMapping::Modulo if rows == 0 => vec![0; keys.len()],
        KeyMapping::Modulo => keys.iter().map(|&key| modulo(key) as i64).collect(),
    };
    let missing = ids.iter().filter(|&&id| u64::try_from(id).map_or(true, |id| id >= rows)).count() as u64;
    MappedKeys { ids, distinct: sorted.len() as u64, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_keys() {
        let keys = RecordedKeys::Signed(vec![-3, 7, 1000, 7, 2]);
        let mapped = |mapping| keys.clone().map(mapping, 10);
        assert_eq!(mapped(KeyMapping::Strict), MappedKeys { ids: vec![-3, 7, 1000, 7, 2], distinct: 4, missing: 2 });
        assert_eq!(mapped(KeyMapping::Dense), MappedKeys { ids: vec![0, 2, 3, 2, 1], distinct: 4, missing: 0 });
        assert_eq!(mapped(KeyMapping::Modulo), MappedKeys { ids: vec![7, 7, 0, 7, 2], distinct: 4, missing: 0 });
    }

    #[test]
    fn hashes_keep_all_their_bits() {
        let keys = RecordedKeys::Unsigned(vec![u64::MAX, u64::MAX - 1, 5]);
        let strict = keys.clone().map(KeyMapping::Strict, 10);
        assert_eq!((strict.missing, strict.ids), (2, vec![i64::MAX, i64::MAX, 5]));
        assert_eq!(keys.clone().map(KeyMapping::Dense, 2), MappedKeys { ids: vec![2, 1, 0], distinct: 3, missing: 1 });
        assert_eq!(keys.map(KeyMapping::Modulo, 10).ids, [5, 4, 5]);
    }

    #[test]
    fn an_empty_table_misses_everything() {
        for mapping in [KeyMapping::Strict, KeyMapping::Dense, KeyMapping::Modulo] {
            assert_eq!(RecordedKeys::Signed(vec![0, 1]).map(mapping, 0).missing, 2);
        }
    }
}
