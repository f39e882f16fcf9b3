//! Counts the different rows in memory that a batch wants. Nothing but the report needs the number.

use super::dedupe::{Deduping, KeyTable, begin};
use super::route::RowLocation;

/// The most bytes of a bitmap for each row in memory that a look-up wants. Clearing a longer bitmap takes more
/// time than the bitmap saves over a hash table.
const BITMAP_BYTES_PER_ROW: usize = 64;

/// The size of a bitmap that has one bit for each place in the DRAM tier where a row can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BitmapShape {
    /// A row that begins at byte b has bit b >> shift.
    shift: u32,
    words: usize,
}

impl BitmapShape {
    /// For a tier of `dram_bytes` bytes, whose shortest rows have `least_row_bytes`. Rows begin at least
    /// `least_row_bytes` from each other, so no two have the same bit.
    pub(crate) fn new(dram_bytes: usize, least_row_bytes: usize) -> Self {
        let shift = least_row_bytes.max(1).ilog2();
        Self { shift, words: (dram_bytes.saturating_sub(1) >> shift) / 64 + 1 }
    }

    /// How many words the bitmap has for at most `ids` ids; 0: the bitmap would be too long, and a hash table counts.
    pub(crate) fn words_for(self, ids: usize) -> usize {
        if self.words.saturating_mul(8) <= ids.saturating_mul(BITMAP_BYTES_PER_ROW) { self.words } else { 0 }
    }
}

/// The memory that counting works in. It has room for the largest batch.
#[derive(Debug)]
pub(crate) struct CountBuffers<'a> {
    /// The words of the bitmap; none where a bitmap would be too long.
    pub bitmap: &'a mut [u64],
    /// The hash table, which counts places that have no bit, and all places where there is no bitmap.
    pub table: &'a mut KeyTable,
    pub unique: &'a mut [u64],
    pub inverse: &'a mut [u32],
}

/// Counts the different places among [numbers](RowLocation::number) of places, which are given part by part.
#[derive(Debug)]
pub(crate) struct DistinctRows<'a> {
    buffers: CountBuffers<'a>,
    deduping: Deduping,
    /// Words of the bitmap that this look-up uses; 0: the hash table counts all places.
    words: usize,
    shift: u32,
    with_bits: usize,
}

impl<'a> DistinctRows<'a> {
    /// Begins to count at most `places` places. The lists and the table of `buffers` must have room for as many.
    pub(crate) fn new(buffers: CountBuffers<'a>, shape: BitmapShape, places: usize) -> Self {
        let words = shape.words_for(places);
        let words = if words <= buffers.bitmap.len() { words } else { 0 };
        buffers.bitmap[..words].fill(0);
        let deduping = begin(buffers.table, places);
        Self { buffers, deduping, words, shift: shape.shift, with_bits: 0 }
    }

    /// Adds places.
    pub(crate) fn add(&mut self, places: &[u64]) {
        let CountBuffers { bitmap, table, unique, inverse } = &mut self.buffers;
        if self.words == 0 {
            return self.deduping.add(table, places, unique, inverse);
        }
        let bitmap = &mut bitmap[..self.words];
        for place in places {
            let byte = RowLocation::byte_of_number(*place);
            let word = byte.and_then(|byte| bitmap.get_mut(byte >> self.shift >> 6).map(|word| (word, byte)));
            match word {
                Some((word, byte)) => {
                    let bit = byte >> self.shift & 63;
                    self.with_bits += usize::from(*word >> bit & 1 == 0);
                    *word |= 1 << bit;
                }
                // An updated row.
                None => self.deduping.add(table, std::slice::from_ref(place), unique, inverse),
            }
        }
    }

    /// How many different places have been added.
    pub(crate) fn count(&self) -> usize {
        self.with_bits + self.deduping.count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn counts_as_a_set_does_with_a_bitmap_and_without(
            row_bytes in 1usize..700,
            rows in proptest::collection::vec((any::<bool>(), 0u64..300), 0..400),
            parts in 1usize..50,
            bitmap in any::<bool>(),
        ) {
            let shape = BitmapShape::new(300 * row_bytes, row_bytes);
            let places: Vec<u64> = rows
                .iter()
                .map(|&(updated, row)| match updated {
                    true => RowLocation::updated(3, row as u32).number(),
                    false => RowLocation::dram(row * row_bytes as u64).number(),
                })
                .collect();
            let mut words = vec![u64::MAX; if bitmap { shape.words_for(400) } else { 0 }];
            let mut table = KeyTable::new(400);
            let mut unique = vec![0; 400];
            let mut inverse = vec![0; 400];
            let buffers = CountBuffers { bitmap: &mut words, table: &mut table, unique: &mut unique, inverse: &mut inverse };
            let mut distinct = DistinctRows::new(buffers, shape, places.len());
            places.chunks(parts).for_each(|part| distinct.add(part));
            prop_assert_eq!(distinct.count(), places.iter().collect::<HashSet<_>>().len());
        }
    }

    #[test]
    fn a_bitmap_is_no_longer_than_a_table() {
        let shape = BitmapShape::new(256 << 20, 512);
        assert_eq!((shape.shift, shape.words), (9, (512 << 10) / 64));
        // A batch of 4,096 has a bitmap of 64 bytes for each of its rows.
        let shape = BitmapShape::new(256 << 20, 128);
        assert_eq!((shape.shift, shape.words), (7, 4096 * 64 / 8));
        assert_eq!(shape.words_for(4096), shape.words);
        assert_eq!(shape.words_for(4095), 0);
        assert_eq!(BitmapShape::new(0, 0).words_for(1), 1);
    }
}
