//! What finding different keys takes: memory, and numbers of `cuda/sort.cuh`.

use crate::abi::{KEY_ALIGN, KeyBitmap, KeySort, Lookup, UniqueRows};

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

/// Bytes of [`KeySort::state`] for so many words, in tiles of [`SORT_TILE`].
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

/// What a look-up's launches need memory for, at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct DedupeNeeds {
    /// Ids of a batch.
    pub ids: u64,
    /// Different rows of a batch.
    pub uniques: u64,
    /// Keys that have a bit, a multiple of [`KEY_ALIGN`]; 0: none has.
    pub bits: u64,
    /// Words that are sorted.
    pub words: u64,
    /// Slots of a hash table.
    pub slots: u64,
    /// Warps that count: [`LaunchShape::parts`](crate::LaunchShape::parts).
    pub parts: u32,
    /// Bytes from one staged row to the next, a multiple of 16.
    pub stride: u64,
}

/// Where the arrays begin with which launches find a batch's different rows, and bring them: bytes from the memory's begin.
#[derive(Clone, Copy, Debug, Default)]
pub struct DedupePlaces {
    bitmap: u64,
    summary: u64,
    base: u64,
    parts: u64,
    sorting: u64,
    words: u64,
    sorted: u64,
    slots: u64,
    numbers: u64,
    place: u64,
    unique: u64,
    status: u64,
    staging: u64,
}

impl DedupePlaces {
    /// `room` gives out bytes, aligned to 256, of memory that is zero before the first launch.
    pub fn new(needs: &DedupeNeeds, mut room: impl FnMut(u64) -> u64) -> Self {
        let &DedupeNeeds { ids, uniques, bits, words, slots, .. } = needs;
        Self {
            bitmap: room(bits / 8),
            summary: room(bits.div_ceil(32 * KEY_ALIGN) * 4),
            base: room(bits / KEY_ALIGN * 4),
            parts: room(u64::from(needs.parts) * 4),
            sorting: room(sorting_bytes(words)),
            words: room(words * 8),
            sorted: room(words * 8),
            slots: room(slots * 8),
            numbers: room(slots * 4),
            place: room(ids * 8),
            unique: room(uniques * 8),
            status: room(uniques),
            staging: room(uniques.saturating_mul(needs.stride)),
        }
    }

    /// The look-up with those places, in memory that begins at that address.
    #[must_use]
    pub fn of(&self, memory: u64, lookup: Lookup) -> Lookup {
        Lookup {
            bitmap: KeyBitmap {
                bits: memory + self.bitmap,
                summary: memory + self.summary,
                base: memory + self.base,
                parts: memory + self.parts,
            },
            sort: KeySort {
                state: memory + self.sorting,
                words: memory + self.words,
                sorted: memory + self.sorted,
                slots: memory + self.slots,
                numbers: memory + self.numbers,
                ..lookup.sort
            },
            unique: UniqueRows {
                places: memory + self.place,
                keys: memory + self.unique,
                status: memory + self.status,
                staging: memory + self.staging,
                ..lookup.unique
            },
            ..lookup
        }
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
