//! What the host knows of a cache of rows on a GPU (`cuda/cache.cuh`): where its parts lie, and which numbers belong to which tables. Plain arithmetic: it
//! calls nothing.

use crate::abi::{self, CACHE_TAG_BITS, CACHE_WAYS};

const LINE: u64 = 128;
/// Ranges that a cache has room for: of tables as they were prepared, of which the latest are used and some before are still read.
const CACHE_RANGES: u64 = 1024;
/// The most bits that numbers have. More tables of more versions than that nobody has.
const MOST_BITS: u32 = 48;
/// Versions of every table that must have numbers at one time.
const VERSIONS: u64 = 3;
/// Bytes of the counters of a set: 63 counters, and a count of additions.
const SKETCH_BYTES: usize = 64;
/// The most launches for which a line is held.
const MOST_HOLD: u64 = 64;

/// What a table asks of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheClaim {
    /// Bytes from one row to the next, a multiple of 16.
    pub stride: u32,
    /// All rows of the table.
    pub rows: u64,
    /// Rows that may be cached.
    pub cached: u64,
    /// Lines that it has to itself; `None`: it shares those of its length with others.
    pub share: Option<CacheShare>,
}

/// A table's own part of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShare {
    /// The number by which [`CacheLines::owner`] calls the table. No other has it.
    pub owner: u32,
    /// Bytes of its lines, with their words and counters.
    pub bytes: u64,
}

/// Which lines of a cache: those for rows of one length, or those of one table alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheLines {
    /// The table that has them to itself; `None`: all tables without lines of their own whose rows are so long.
    pub owner: Option<u32>,
    /// Bytes from one row to the next.
    pub stride: u32,
}

impl CacheLines {
    /// The lines that tables of one length share.
    pub fn shared(stride: u32) -> Self {
        Self { owner: None, stride }
    }
}

impl CacheClaim {
    fn lines(&self) -> CacheLines {
        CacheLines { owner: self.share.map(|share| share.owner), stride: self.stride }
    }
}

/// How a cache is cut into lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Bytes for all of it.
    pub bytes: u64,
    /// Different rows of a usual batch.
    pub batch_rows: u64,
    /// Slots that may use it.
    pub slots: u64,
    /// Whether it counts how often rows are asked for, which takes as many bytes as the words of lines.
    pub counts: bool,
}

impl CacheShape {
    /// Bytes that a line takes besides its row.
    fn beside_line(&self) -> u64 {
        if self.counts { 16 } else { 8 }
    }

    /// Bytes of a set of lines.
    fn set_bytes(&self, stride: u32) -> u64 {
        CACHE_WAYS * (u64::from(stride) + self.beside_line())
    }
}

/// A cache that has too few lines for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} B are too few for a cache, or a table's share of it: {needed} B would do")]
pub struct CacheTooSmall {
    /// What was given.
    pub bytes: u64,
    /// What would do.
    pub needed: u64,
    /// The table that has the share; `None`: the whole cache.
    pub owner: Option<u32>,
}

/// Lines for rows of one length, of several tables or of one.
#[derive(Clone, Copy, Debug)]
struct Pool {
    owner: Option<u32>,
    stride: u32,
    sets: u64,
    bits: u32,
    /// Words before this pool's among those of all pools.
    first_word: u64,
    /// Where its lines begin, from the base.
    lines: u64,
    /// Where its counters begin, from the base; 0: there are none.
    counters: u64,
}

impl Pool {
    fn new(lines: CacheLines, sets: u64, first_word: u64) -> Self {
        // So many numbers share a set at most that their images' lowest bits tell them apart.
        let bits = (sets.ilog2() + CACHE_TAG_BITS).min(MOST_BITS);
        Self { owner: lines.owner, stride: lines.stride, sets, bits, first_word, lines: 0, counters: 0 }
    }

    fn is(&self, lines: CacheLines) -> bool {
        (self.owner, self.stride) == (lines.owner, lines.stride)
    }
}

/// The numbers of a table as it was prepared.
#[derive(Clone, Copy, Debug)]
struct Held {
    pool: usize,
    first: u64,
    rows: u64,
    /// Nobody looks for them any more, but lines may have their rows until a sweep.
    is_retired: bool,
}

/// Where the parts of a cache lie, and whose numbers are whose.
#[derive(Debug)]
pub struct CacheMap {
    base: u64,
    shape: CacheShape,
    pools: Vec<Pool>,
    words: u64,
    held: Vec<Option<Held>>,
    bytes: u64,
    hold: u64,
}

/// A range that a table was given: its number among [`abi::Cache::ranges`], from 1, and what stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenRange {
    /// [`abi::Table::cached`].
    pub number: u32,
    /// The range.
    pub range: abi::CacheRange,
}

/// The image of a number of so many bits: `spread_number` of `cuda/cache.cuh`.
fn spread_number(number: u64, bits: u32) -> u64 {
    let (mask, half) = ((1 << bits) - 1, bits.div_ceil(2));
    let mixed = (number ^ number >> half).wrapping_mul(FIRST) & mask;
    let mixed = (mixed ^ mixed >> half).wrapping_mul(SECOND) & mask;
    mixed ^ mixed >> half
}

/// The number that has that image.
fn gather_number(image: u64, bits: u32) -> u64 {
    let (mask, half) = ((1 << bits) - 1, bits.div_ceil(2));
    // The upper half of the bits was left as it was.
    let mixed = (image ^ image >> half).wrapping_mul(inverse(SECOND)) & mask;
    let mixed = (mixed ^ mixed >> half).wrapping_mul(inverse(FIRST)) & mask;
    mixed ^ mixed >> half
}

const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xbf58_476d_1ce4_e5b9;

/// What an odd number is multiplied with for 1.
const fn inverse(odd: u64) -> u64 {
    let mut found = odd;
    let mut step = 0;
    // Each step doubles the bits that are right, of which three are to begin with.
    while step < 5 {
        found = found.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(found)));
        step += 1;
    }
    found
}

impl CacheMap {
    /// A cache in `shape.bytes` of memory at `base`, for rows as `claims` say. Each table with a share has so many bytes to itself. Rows of one
    /// length of all others share lines; lengths share the rest of the bytes as their cached rows would fill them. Where tables have shares,
    /// lengths for which the rest is too little have no lines.
    ///
    /// # Errors
    /// [`CacheTooSmall`] if a length, or a table by its share, would have less than a set of lines, or more rows than its lines can tell apart;
    /// if the shares come to more than what the bytes have room for.
    pub fn new(base: u64, shape: CacheShape, claims: &[CacheClaim]) -> Result<Self, CacheTooSmall> {
        let mut all: Vec<CacheLines> = claims.iter().filter(|claim| claim.cached > 0).map(CacheClaim::lines).collect();
        all.sort_unstable();
        all.dedup();
        let of = |lines: CacheLines| claims.iter().filter(move |claim| claim.lines() == lines);
        let filled = |lines: CacheLines| {
            let rows: u64 = of(lines).map(|claim| claim.cached).fold(0, u64::saturating_add);
            u128::from(rows) * u128::from(u64::from(lines.stride) + shape.beside_line())
        };
        let share_of = |lines: CacheLines| of(lines).find_map(|claim| claim.share).map(|share| share.bytes);
        let own = all.iter().filter_map(|&lines| share_of(lines)).fold(0, u64::saturating_add);
        let has_shares = all.iter().any(|lines| lines.owner.is_some());
        let all_shared = all.iter().filter(|lines| lines.owner.is_none()).map(|&lines| filled(lines));
        let all_shared = all_shared.sum::<u128>().max(1);
        let fixed = Self::fixed(shape.slots) + all.len() as u64 * 2 * LINE;
        let too_small = |needed: u64| CacheTooSmall { bytes: shape.bytes, needed, owner: None };
        let least = fixed.saturating_add(own);
        if has_shares && shape.bytes < least {
            return Err(too_small(least));
        }
        // So many bytes that `sets` sets of that length are its part.
        let for_sets = |lines: CacheLines, sets: u64| {
            let part = filled(lines).max(1);
            let bytes = u128::from(sets) * u128::from(shape.set_bytes(lines.stride)) * all_shared;
            u64::try_from(bytes.div_ceil(part)).unwrap_or(u64::MAX).saturating_add(fixed)
        };
        let rest = shape.bytes.saturating_sub(least);
        let (mut pools, mut words) = (Vec::new(), 0);
        for &lines in &all {
            let share = share_of(lines);
            let bytes = share.unwrap_or((u128::from(rest) * filled(lines) / all_shared) as u64);
            let sets = bytes / shape.set_bytes(lines.stride);
            let rows: u64 = of(lines).map(|claim| claim.rows).fold(0, u64::saturating_add);
            let numbers = rows.saturating_mul(VERSIONS);
            let least = numbers.div_ceil(1 << CACHE_TAG_BITS).next_power_of_two();
            if sets < least || numbers > 1 << MOST_BITS {
                match share {
                    Some(bytes) => {
                        let needed = least.saturating_mul(shape.set_bytes(lines.stride));
                        return Err(CacheTooSmall { bytes, needed, owner: lines.owner });
                    }
                    None if has_shares => continue,
                    None => return Err(too_small(for_sets(lines, least))),
                }
            }
            pools.push(Pool::new(lines, sets, words));
            words += sets * CACHE_WAYS;
        }
        let counters = (Self::fixed(shape.slots) + words * 8).next_multiple_of(LINE);
        let mut bytes = counters + if shape.counts { (words * 8).next_multiple_of(LINE) } else { 0 };
        for pool in &mut pools {
            if shape.counts {
                pool.counters = counters + pool.first_word * 8;
            }
            pool.lines = bytes;
            bytes = (bytes + pool.sets * CACHE_WAYS * u64::from(pool.stride)).next_multiple_of(LINE);
        }
        let fewest = pools.iter().map(|pool| pool.sets * CACHE_WAYS).min().unwrap_or(0);
        let hold = (fewest / shape.batch_rows.max(1).saturating_mul(8)).min(MOST_HOLD);
        Ok(Self { base, shape, pools, words, held: Vec::new(), bytes, hold })
    }

    /// Bytes before the words: the header, the horizons of launches, the ranges.
    fn fixed(slots: u64) -> u64 {
        Self::ranges_from_base(slots) + (CACHE_RANGES * size_of::<abi::CacheRange>() as u64).next_multiple_of(LINE)
    }

    fn ranges_from_base(slots: u64) -> u64 {
        size_of::<abi::Cache>() as u64 + (slots * 8).next_multiple_of(LINE)
    }

    /// Bytes of memory that it takes, from its base; all but the lines is zero to begin with, and then [`header`](Self::header) is written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes from its base that are zero to begin with.
    pub fn zeroed(&self) -> u64 {
        let begin = Self::fixed(self.shape.slots);
        self.pools.iter().map(|pool| pool.lines).min().unwrap_or(begin).max(begin + self.words * 8)
    }

    /// What lies at its base.
    pub fn header(&self) -> abi::Cache {
        abi::Cache {
            clock: self.hold + 1,
            ranges: self.base + Self::ranges_from_base(self.shape.slots),
            running: self.base + size_of::<abi::Cache>() as u64,
            running_count: self.shape.slots,
            hold: self.hold,
            ..abi::Cache::default()
        }
    }

    /// Launches for which a line that was used is held.
    pub fn hold(&self) -> u64 {
        self.hold
    }

    /// Lines of all lengths and tables.
    pub fn lines(&self) -> u64 {
        self.words
    }

    /// How many lines these are; `None`: there are none.
    pub fn lines_for(&self, lines: CacheLines) -> Option<u64> {
        self.pools.iter().find(|pool| pool.is(lines)).map(|pool| pool.sets * CACHE_WAYS)
    }

    /// Bytes that these lines take, with their words and counters. 0: there are none.
    pub fn bytes_of(&self, lines: CacheLines) -> u64 {
        self.bytes_for(lines, self.lines_for(lines).unwrap_or(0))
    }

    /// Bytes that `count` such lines would take, in whole sets, with their words and counters.
    pub fn bytes_for(&self, lines: CacheLines, count: u64) -> u64 {
        count.div_ceil(CACHE_WAYS).saturating_mul(self.shape.set_bytes(lines.stride))
    }

    /// Bytes of all lines that single tables have to themselves.
    pub fn own_bytes(&self) -> u64 {
        let own = self.pools.iter().filter(|pool| pool.owner.is_some());
        own.map(|pool| pool.sets * self.shape.set_bytes(pool.stride)).sum()
    }

    /// The words of all lines: where they lie, and how many there are.
    pub fn words(&self) -> (u64, u64) {
        (self.base + Self::fixed(self.shape.slots), self.words)
    }

    /// Where a range stands, from the base.
    pub fn range_from_base(&self, number: u32) -> u64 {
        let before = u64::from(number).saturating_sub(1) * size_of::<abi::CacheRange>() as u64;
        Self::ranges_from_base(self.shape.slots) + before
    }

    /// Where a line begins, from the base, by its number among all lines.
    pub fn line_from_base(&self, index: u64) -> Option<u64> {
        let pool = self.pools.iter().rfind(|pool| pool.first_word <= index)?;
        (index < self.words).then(|| pool.lines + (index - pool.first_word) * u64::from(pool.stride))
    }

    /// Numbers for the rows of a table that has these lines, which no row had since the cache was swept. `None`: none are free, or there are no such
    /// lines.
    pub fn give(&mut self, lines: CacheLines, rows: u64) -> Option<GivenRange> {
        let pool = self.pools.iter().position(|pool| pool.is(lines))?;
        let it = *self.pools.get(pool)?;
        let mut taken: Vec<(u64, u64)> =
            self.held.iter().flatten().filter(|held| held.pool == pool).map(|held| (held.first, held.rows)).collect();
        taken.sort_unstable();
        let mut first = 0;
        for (begin, count) in taken {
            if begin - first >= rows {
                break;
            }
            first = begin + count;
        }
        if (1u64 << it.bits) - first < rows {
            return None;
        }
        let held = Held { pool, first, rows, is_retired: false };
        let index = match self.held.iter().position(Option::is_none) {
            Some(free) => free,
            None if (self.held.len() as u64) < CACHE_RANGES => {
                self.held.push(None);
                self.held.len() - 1
            }
            None => return None,
        };
        *self.held.get_mut(index)? = Some(held);
        let range = abi::CacheRange {
            first,
            words: self.words().0 + it.first_word * 8,
            lines: self.base + it.lines,
            sets: it.sets,
            bits: it.bits,
            stride: it.stride,
            sketch: if it.counters == 0 { 0 } else { self.base + it.counters },
        };
        Some(GivenRange { number: index as u32 + 1, range })
    }

    /// The set in which a row may lie, by its number among those of all lengths. `None`: nobody has the range, or it has no such rank.
    pub fn set_of(&self, number: u32, rank: u64) -> Option<u64> {
        let held = self.held.get((number as usize).wrapping_sub(1))?.as_ref()?;
        let pool = self.pools.get(held.pool)?;
        let image = spread_number(held.first + rank, pool.bits);
        let set = (u128::from(image) * u128::from(pool.sets)) >> pool.bits;
        (rank < held.rows).then_some(pool.first_word / CACHE_WAYS + set as u64)
    }

    /// Whether a range was retired, and lines may still have its rows.
    pub fn is_retired(&self, number: u32) -> bool {
        self.held.get((number as usize).wrapping_sub(1)).is_some_and(|held| held.is_some_and(|held| held.is_retired))
    }

    /// The counters of all sets, in the order of the words: where they begin, from the base, and their bytes; 0: nobody counts.
    pub fn counters(&self) -> (u64, u64) {
        match self.pools.first() {
            Some(pool) if pool.counters != 0 => (pool.counters, self.words * 8),
            _ => (0, 0),
        }
    }

    /// How much a row is used whose line's word that is: whether it is pinned, how often it was asked for by `counters`, and its
    /// stamp. `index`: the word's number among all words.
    pub fn use_of(&self, index: u64, word: u64, counters: &[u8]) -> (bool, u8, u64) {
        let set = (index / CACHE_WAYS) as usize * SKETCH_BYTES;
        let tag = word >> abi::CACHE_STAMP_BITS & ((1 << CACHE_TAG_BITS) - 1);
        let hash = tag.wrapping_mul(FIRST);
        let places = (0..4).map(|i| (hash >> (40 + 6 * i)) as u32 as usize % (SKETCH_BYTES - 1));
        let counts = places.map(|place| counters.get(set + place).copied().unwrap_or(0));
        (word >> 62 & 1 != 0, counts.min().unwrap_or(0), word & ((1 << abi::CACHE_STAMP_BITS) - 1))
    }

    /// Nobody looks for rows of a range any more. It is given again after a sweep.
    pub fn retire(&mut self, number: u32) {
        if let Some(Some(held)) = self.held.get_mut((number as usize).wrapping_sub(1)) {
            held.is_retired = true;
        }
    }

    /// Whether a sweep would free ranges.
    pub fn has_retired(&self) -> bool {
        self.held.iter().flatten().any(|held| held.is_retired)
    }

    /// No line has a row any more.
    pub fn swept(&mut self) {
        self.held.iter_mut().filter(|held| held.is_some_and(|held| held.is_retired)).for_each(|held| *held = None);
    }

    /// The row that a word's line has: its range's number, and its rank in the range. `index`: the word's number among all words. `None`:
    /// no row is published there, or nobody looks for it any more.
    pub fn row_of(&self, index: u64, word: u64) -> Option<(u32, u64)> {
        let at = self.pools.iter().rposition(|pool| pool.first_word <= index)?;
        let pool = self.pools.get(at)?;
        if word >> 63 == 0 {
            return None;
        }
        let set = u128::from((index - pool.first_word) / CACHE_WAYS);
        let (sets, tags) = (u128::from(pool.sets), 1u64 << CACHE_TAG_BITS);
        // The images of numbers of a set follow each other.
        let first = (set << pool.bits).div_ceil(sets) as u64;
        let tag = word >> abi::CACHE_STAMP_BITS & (tags - 1);
        let image = first + (tag.wrapping_sub(first) & (tags - 1));
        if image >> pool.bits != 0 || (u128::from(image) * sets) >> pool.bits != set {
            return None;
        }
        let number = gather_number(image, pool.bits);
        let mut held = (1..).zip(&self.held).filter_map(|(index, held)| Some((index, held.as_ref()?)));
        held.find(|(_, held)| {
            held.pool == at && !held.is_retired && (held.first..held.first + held.rows).contains(&number)
        })
        .map(|(index, held)| (index, number - held.first))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const SHAPE: CacheShape = CacheShape { bytes: 1 << 20, batch_rows: 64, slots: 100, counts: false };

    fn claim(stride: u32, rows: u64) -> CacheClaim {
        CacheClaim { stride, rows, cached: rows, share: None }
    }

    fn own(owner: u32, stride: u32, rows: u64, bytes: u64) -> CacheClaim {
        CacheClaim { share: Some(CacheShare { owner, bytes }), ..claim(stride, rows) }
    }

    fn shared(stride: u32) -> CacheLines {
        CacheLines::shared(stride)
    }

    #[test]
    fn numbers_and_images_are_one_to_one() {
        for bits in [3, 8, 13] {
            let images: HashSet<u64> = (0..1 << bits).map(|number| spread_number(number, bits)).collect();
            assert!(images.len() == 1 << bits && images.iter().all(|image| image >> bits == 0), "{bits}");
        }
        let mut rng = fastrand::Rng::with_seed(7);
        for bits in (1..=MOST_BITS).cycle().take(2000) {
            let number = rng.u64(..) & ((1 << bits) - 1);
            assert_eq!(gather_number(spread_number(number, bits), bits), number, "{bits} bits");
        }
    }

    #[test]
    fn constants_are_those_of_the_sources() {
        let source = include_str!("../cuda/cache.cuh");
        let constants = format!(
            "CACHE_STAMP_BITS = {}, CACHE_TAG_BITS = {CACHE_TAG_BITS}, CACHE_WAYS = {CACHE_WAYS};",
            abi::CACHE_STAMP_BITS
        );
        assert!(source.contains(&constants), "{constants}");
        for number in [FIRST, SECOND] {
            assert!(source.contains(&format!("{number:#x}ull")), "{number:#x}");
        }
    }

    #[test]
    fn parts_do_not_overlap_and_fit() {
        let shapes = [(1 << 20, &[64u32][..]), (3_000_000, &[16, 512]), (1 << 24, &[16, 128, 4096])];
        for ((bytes, strides), counts) in shapes.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
            let mut claims: Vec<CacheClaim> = strides.iter().map(|&stride| claim(stride, 10_000)).collect();
            // A table of the first length has a share, and one of a length that no other has.
            claims.extend([own(1, strides[0], 9000, bytes / 5), own(0, 48, 700, bytes / 7)]);
            let shape = CacheShape { bytes, counts, ..SHAPE };
            let map = CacheMap::new(1 << 30, shape, &claims).unwrap();
            let header = map.header();
            let mut parts = vec![
                (1 << 30, size_of::<abi::Cache>() as u64),
                (header.running, header.running_count * 8),
                (header.ranges, CACHE_RANGES * size_of::<abi::CacheRange>() as u64),
                (map.words().0, map.lines() * 8),
            ];
            if counts {
                let counters = |pool: &Pool| (map.base + pool.counters, pool.sets * 64);
                parts.extend(map.pools.iter().map(counters).filter(|part| part.1 > 0));
                assert!(
                    map.pools.iter().all(|pool| pool.counters > 0 && pool.counters + pool.sets * 64 <= map.zeroed())
                );
            }
            parts.extend(map.pools.iter().map(|pool| (map.base + pool.lines, pool.sets * 8 * u64::from(pool.stride))));
            assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{parts:x?}");
            assert!(parts.iter().all(|(begin, _)| begin % 64 == 0), "{parts:x?}");
            assert!(map.pools.iter().all(|pool| pool.lines.is_multiple_of(LINE)), "{parts:x?}");
            let end = parts.last().map(|(begin, len)| begin + len).unwrap();
            assert!(end <= (1 << 30) + map.bytes() && map.bytes() <= bytes, "{} of {bytes}", map.bytes());
            // Nearly all of it is lines.
            let each = |pool: &Pool| u64::from(pool.stride) + shape.beside_line();
            let lines: u64 = map.pools.iter().map(|pool| pool.sets * 8 * each(pool)).sum();
            assert!(lines + (1 << 17) > bytes, "{lines} of {bytes}");
        }
    }

    #[test]
    fn what_is_too_small_says_what_would_do() {
        for claims in [vec![claim(512, 1 << 30)], vec![claim(64, 1000), claim(2048, 1 << 28)]] {
            let too_small = CacheMap::new(0, CacheShape { bytes: 200_000, ..SHAPE }, &claims).unwrap_err();
            CacheMap::new(0, CacheShape { bytes: too_small.needed, ..SHAPE }, &claims).unwrap();
            let less = CacheMap::new(0, CacheShape { bytes: too_small.needed * 9 / 10, ..SHAPE }, &claims);
            assert!(less.is_err(), "{less:?}");
        }
        assert!(CacheMap::new(0, CacheShape { bytes: 1000, ..SHAPE }, &[claim(16, 1)]).is_err());
    }

    #[test]
    fn a_table_with_a_share_has_lines_of_its_own() {
        let claims = [claim(64, 5000), own(7, 64, 3000, 300_000), claim(256, 700), own(2, 128, 100, 80_000)];
        let map = CacheMap::new(0, SHAPE, &claims).unwrap();
        let lines_of = |owner: u32, stride: u32| CacheLines { owner: Some(owner), stride };
        let count = |lines| map.lines_for(lines).unwrap();
        // The most sets for which the share has room.
        assert_eq!(count(lines_of(7, 64)), 300_000 / (8 * (64 + 8)) * 8);
        assert_eq!(count(lines_of(2, 128)), 80_000 / (8 * (128 + 8)) * 8);
        assert_eq!(map.bytes_of(lines_of(7, 64)), 300_000 / 576 * 576);
        assert_eq!(map.own_bytes(), 300_000 / 576 * 576 + 80_000 / 1088 * 1088);
        assert_eq!(map.bytes_for(lines_of(7, 64), 9), 2 * 576);
        for none in [lines_of(7, 128), lines_of(2, 64), lines_of(1, 64), shared(128)] {
            assert_eq!((map.lines_for(none), map.bytes_of(none)), (None, 0), "{none:?}");
        }
        // The others have what they would have of a cache of the rest, but for what leads to the lines of shares.
        let rest = SHAPE.bytes - 380_000 - 2 * 2 * LINE;
        let others = CacheMap::new(0, CacheShape { bytes: rest, ..SHAPE }, &[claims[0], claims[2]]).unwrap();
        for lines in [shared(64), shared(256)] {
            assert_eq!(map.lines_for(lines), others.lines_for(lines), "{lines:?}");
        }
        assert_eq!(map.hold(), count(lines_of(2, 128)) / (8 * SHAPE.batch_rows));
    }

    #[test]
    fn shares_that_leave_nothing_leave_other_tables_without_lines() {
        let claims = [claim(64, 5000), own(0, 64, 5000, 100_000), own(1, 64, 5000, 200_000)];
        let too_small = CacheMap::new(0, CacheShape { bytes: 300_000, ..SHAPE }, &claims).unwrap_err();
        assert!(too_small.owner.is_none() && (350_000..360_000).contains(&too_small.needed), "{too_small:?}");
        let less = CacheMap::new(0, CacheShape { bytes: too_small.needed - 1, ..SHAPE }, &claims).unwrap_err();
        assert_eq!(less, CacheTooSmall { bytes: too_small.needed - 1, ..too_small });
        let mut map = CacheMap::new(0, CacheShape { bytes: too_small.needed, ..SHAPE }, &claims).unwrap();
        assert!(map.lines_for(shared(64)).is_none() && map.give(shared(64), 5000).is_none());
        assert!([0, 1].into_iter().all(|owner| map.lines_for(CacheLines { owner: Some(owner), stride: 64 }).is_some()));
    }

    #[test]
    fn a_share_that_is_too_small_says_what_would_do() {
        for (stride, rows) in [(64, 10), (512, 1 << 30)] {
            let of = |bytes| CacheMap::new(0, CacheShape { bytes: 1 << 30, ..SHAPE }, &[own(4, stride, rows, bytes)]);
            let too_small = of(100).unwrap_err();
            assert_eq!((too_small.owner, too_small.bytes), (Some(4), 100));
            let less = of(too_small.needed - 1).unwrap_err();
            assert_eq!((less.owner, less.needed), (Some(4), too_small.needed));
            of(too_small.needed).unwrap();
        }
    }

    #[test]
    fn a_word_leads_to_its_row() {
        const OWN: CacheLines = CacheLines { owner: Some(3), stride: 64 };
        let claims = [claim(64, 5000), claim(256, 700), own(3, 64, 5000, 1 << 17)];
        let mut map = CacheMap::new(0, SHAPE, &claims).unwrap();
        let given = [(shared(64), 5000), (shared(64), 3000), (shared(256), 700), (OWN, 5000), (OWN, 2000)]
            .map(|(lines, rows)| map.give(lines, rows).unwrap());
        let mut seen = HashSet::new();
        for it in given {
            let rows = map.held[it.number as usize - 1].unwrap().rows;
            for rank in 0..rows {
                let image = spread_number(it.range.first + rank, it.range.bits);
                let set = ((u128::from(image) * u128::from(it.range.sets)) >> it.range.bits) as u64;
                let tag = image & ((1 << CACHE_TAG_BITS) - 1);
                let index = (it.range.words - map.words().0) / 8 + set * CACHE_WAYS + rank % CACHE_WAYS;
                let word = 1 << 63 | tag << abi::CACHE_STAMP_BITS | 17;
                assert_eq!(map.row_of(index, word), Some((it.number, rank)));
                assert_eq!(map.set_of(it.number, rank), Some(index / CACHE_WAYS));
                assert_eq!(map.row_of(index, word & !(1 << 63)), None);
                assert!(seen.insert((it.range.words, set, tag)), "two rows have set {set} and tag {tag}");
            }
        }
    }

    #[test]
    fn what_is_used_most_is_known_by_its_word_and_its_counters() {
        let mut counters = vec![0u8; 3 * SKETCH_BYTES];
        let (tag, stamp) = (0x00ab_cdef, 77);
        let word = |flags: u64| flags << 62 | tag << abi::CACHE_STAMP_BITS | stamp;
        let map = CacheMap::new(0, CacheShape { counts: true, ..SHAPE }, &[claim(64, 5000)]).unwrap();
        assert_eq!(map.use_of(9, word(2), &counters), (false, 0, stamp));
        // The counters of set 1: the row's count is the lowest of its four.
        counters[SKETCH_BYTES..2 * SKETCH_BYTES].fill(5);
        assert_eq!(map.use_of(9, word(3), &counters), (true, 5, stamp));
        let hash = tag.wrapping_mul(FIRST);
        let place = (hash >> (40 + 6)) as u32 as usize % 63;
        counters[SKETCH_BYTES + place] = 2;
        assert_eq!(map.use_of(15, word(2), &counters).1, 2);
        assert_eq!((map.use_of(16, word(2), &counters).1, map.use_of(9, word(2), &[]).1), (0, 0));
        let (begin, bytes) = map.counters();
        assert_eq!((begin, bytes), (map.pools[0].counters, map.lines() * 8));
        assert_eq!(CacheMap::new(0, SHAPE, &[claim(64, 5000)]).unwrap().counters(), (0, 0));
        let source = include_str!("../cuda/cache.cuh");
        for text in ["hash >> (40 + 6 * i)) % SKETCH_COUNTERS", "SKETCH_BYTES = 64", "SKETCH_HASHES = 4"] {
            assert!(source.contains(text), "{text}");
        }
    }

    #[test]
    fn numbers_are_given_again_after_a_sweep_alone() {
        let rows = 1 << 25;
        let mut map = CacheMap::new(0, SHAPE, &[claim(512, rows)]).unwrap();
        let mut given = Vec::new();
        while let Some(it) = map.give(shared(512), rows) {
            given.push(it);
        }
        assert!(given.len() as u64 >= VERSIONS, "{given:?}");
        let mut firsts: Vec<u64> = given.iter().map(|it| it.range.first).collect();
        firsts.sort_unstable();
        assert!(firsts.windows(2).all(|pair| pair[1] - pair[0] >= rows), "{firsts:?}");
        assert!(!map.has_retired());
        map.retire(given[1].number);
        assert!(map.has_retired() && map.give(shared(512), rows).is_none());
        assert!(map.is_retired(given[1].number) && !map.is_retired(given[0].number) && !map.is_retired(0));
        map.swept();
        assert_eq!(map.give(shared(512), rows), Some(given[1]));
        assert!(map.give(shared(512), rows).is_none() && map.give(shared(64), 1).is_none());
    }

    #[test]
    fn lines_are_held_for_as_many_launches_as_an_eighth_of_them_has_batches() {
        let hold =
            |batch_rows| CacheMap::new(0, CacheShape { batch_rows, ..SHAPE }, &[claim(64, 1000)]).unwrap().hold();
        assert_eq!((hold(1 << 20), hold(1), hold(0)), (0, 64, 64));
        assert!((1..64).contains(&hold(200)), "{}", hold(200));
    }
}
