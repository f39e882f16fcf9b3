//! What finding different keys takes, where it is not by a bit for each: `cuda/sort.cuh`.

/// Bits of a word below its key: uniques' slots, or positions.
pub const WORD_BITS: u32 = 30;
/// Most keys there may be.
pub const MOST_KEYS: u64 = 1 << (64 - WORD_BITS);

/// Bytes of `Sorting`.
const SORTING: u64 = 5152;
/// Words of a tile.
pub const SORT_TILE: u64 = 4096;
/// Bytes of a tile's states.
const STATES: u64 = 2048;

/// Bytes of `Lookup::sorting` for so many words, in tiles of [`SORT_TILE`].
pub const fn sorting_bytes(words: u64) -> u64 {
    SORTING + words.div_ceil(SORT_TILE) * STATES
}

/// log₂ of the slots that a hash table has for so many different keys: at most half of them are taken.
pub const fn slots_log2(uniques: u64) -> u32 {
    match uniques {
        0..=1 => 1,
        _ => (2 * uniques - 1).ilog2() + 1,
    }
}

/// Sweeps that bring words in the order of their keys, where there are so many keys: one for each byte of the highest.
pub const fn sweeps(keys: u64) -> u32 {
    match keys {
        0..=1 => 1,
        _ => (keys - 1).ilog2() / 8 + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_twice_as_many_as_keys() {
        for uniques in (0..3000).chain([1 << 28, (1 << 28) - 1, (1 << 28) + 1]) {
            let slots = 1u64 << slots_log2(uniques);
            assert!(slots >= 2 * uniques && slots <= (4 * uniques).max(2), "{uniques}: {slots}");
        }
    }

    #[test]
    fn sweeps_are_as_many_as_bytes() {
        for (keys, wanted) in
            [(0, 1), (1, 1), (256, 1), (257, 2), (1 << 16, 2), ((1 << 16) + 1, 3), (1 << 32, 4), (MOST_KEYS, 5)]
        {
            assert_eq!(sweeps(keys), wanted, "{keys}");
        }
    }

    #[test]
    fn bytes_are_those_of_the_sources() {
        let source = include_str!("../cuda/sort.cuh");
        let sources = [
            format!("sizeof(Sorting) == {SORTING}"),
            format!("WORD_BITS = {WORD_BITS};"),
            format!("#define SORT_ITEMS {}\n", SORT_TILE / 256),
            "tile * (2 * DIGITS)".to_owned(),
        ];
        for text in sources {
            assert!(source.contains(&text), "{text}");
        }
        assert_eq!(STATES, 2 * 256 * 4);
    }
}
