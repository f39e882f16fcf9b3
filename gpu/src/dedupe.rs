//! How the GPU executor finds the different rows among a batch's ids, and which way a plan takes.

use warprow_kernels::SMALL_IDS;
use warprow_kernels::abi;
use warprow_kernels::dedupe::{MOST_KEYS, WORD_BITS, slots_log2, sorting_bytes};
use warprow_lookup::DedupeMethod;

/// The most keys that a bitmap has bits for: a bitmap of 1 GiB.
pub(crate) const MOST_BITMAP_KEYS: u64 = 1 << 33;
/// If the fastest method takes more than 1/64 of the GPU's memory for a slot, a plan gets the method that takes least.
const SHARE: u64 = 64;

/// The method for batches of up to `ids` ids, in plans of up to `keys` rows outside GPU memory.
struct Crossover {
    ids: u64,
    keys: u64,
    dedupe: DedupeMethod,
}

/// The first entry that fits a plan's largest batch decides, for batches of more ids than one block takes. On an H200
/// the method takes at most 1.28 times as long as the best one, with uniform and with skewed ids, as `bench-dedupe`
/// found (docs/performance/notes-gpu.md).
const CROSSOVERS: [Crossover; 5] = [
    Crossover { ids: 1 << 15, keys: 1 << 24, dedupe: DedupeMethod::Radix },
    Crossover { ids: 1 << 15, keys: 1 << 28, dedupe: DedupeMethod::Bitmap },
    Crossover { ids: 1 << 22, keys: MOST_KEYS, dedupe: DedupeMethod::Radix },
    Crossover { ids: u64::MAX, keys: 1 << 28, dedupe: DedupeMethod::Bitmap },
    Crossover { ids: u64::MAX, keys: MOST_KEYS, dedupe: DedupeMethod::Radix },
];
/// From this many ids for each row on, most ids are repeats, and a hash table has least to do.
const REPEATS: u64 = 2;

/// What a plan's batches are, at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub ids: u64,
    /// A multiple of [`abi::KEY_ALIGN`].
    pub keys: u64,
    /// Different rows of a batch.
    pub uniques: u64,
}

/// The method of a plan on a GPU with `memory` bytes. The plan's largest batch has `ids` ids, which name at most
/// `uniques` different ones of the `keys` rows outside GPU memory. Benchmarks decide, and the memory that a method
/// takes.
pub fn choose_dedupe(ids: u64, keys: u64, uniques: u64, memory: u64) -> DedupeMethod {
    if ids <= SMALL_IDS { DedupeMethod::Block } else { DedupeMethod::of_many(Sizes { ids, keys, uniques }, memory) }
}

/// What a method of deduplication needs, and whether a plan can use it.
pub(crate) trait DedupeWay: Copy {
    /// The method that [`choose_dedupe`] chooses for launches of many ids, also if `sizes` has few.
    fn of_many(sizes: Sizes, memory: u64) -> Self;

    /// The method of plans none of whose launches has many ids: for no ids it takes the least memory.
    const NEVER: Self;

    /// Fails with the reason why the method cannot take batches of these sizes.
    fn check(self, sizes: Sizes) -> Result<(), String>;

    /// The number by which kernels know the method.
    fn code(self) -> u32;

    /// Words that are sorted, at most.
    fn words(self, sizes: Sizes) -> u64;

    /// Slots of the hash table; 0: the method has none.
    fn slots(self, sizes: Sizes) -> u64;

    /// Bytes of a slot that no other slot uses.
    fn bytes(self, sizes: Sizes) -> u64;
}

impl DedupeWay for DedupeMethod {
    fn of_many(sizes: Sizes, memory: u64) -> Self {
        let can = |method: &Self| method.check(sizes).is_ok();
        let least = || {
            let ways = [Self::Bitmap, Self::Hash, Self::Radix].into_iter().filter(can);
            ways.min_by_key(|way| way.bytes(sizes)).unwrap_or(Self::Bitmap)
        };
        let holds = |crossover: &&Crossover| {
            sizes.ids <= crossover.ids && sizes.keys <= crossover.keys && can(&crossover.dedupe)
        };
        let repeats = sizes.ids / REPEATS >= sizes.keys && can(&Self::Hash);
        let chosen = match repeats {
            true => Self::Hash,
            false => CROSSOVERS.iter().find(holds).map_or_else(least, |crossover| crossover.dedupe),
        };
        if chosen.bytes(sizes) > memory / SHARE { least() } else { chosen }
    }

    const NEVER: Self = Self::Hash;

    fn check(self, sizes: Sizes) -> Result<(), String> {
        let Sizes { ids, keys, uniques } = sizes;
        let most = |what: &str, given: u64, most: u64| match given <= most {
            true => Ok(()),
            false => Err(format!("{self:?} takes up to {most} {what}, the plan has {given}")),
        };
        match self {
            Self::Block => most("ids", ids, SMALL_IDS),
            Self::Bitmap => most("rows outside GPU memory", keys, MOST_BITMAP_KEYS),
            Self::Hash => most("different rows of a batch", uniques, 1 << (WORD_BITS - 1)),
            Self::Radix => most("ids", ids, (1 << WORD_BITS) - 1),
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::Block | Self::Bitmap => abi::dedupe::BITMAP,
            Self::Hash => abi::dedupe::HASH,
            Self::Radix => abi::dedupe::RADIX,
        }
    }

    fn words(self, sizes: Sizes) -> u64 {
        match self {
            Self::Block | Self::Bitmap => 0,
            Self::Hash => sizes.uniques,
            Self::Radix => sizes.ids,
        }
    }

    fn slots(self, sizes: Sizes) -> u64 {
        if self == Self::Hash { 1 << slots_log2(sizes.uniques) } else { 0 }
    }

    fn bytes(self, sizes: Sizes) -> u64 {
        let words = self.words(sizes);
        match self {
            Self::Block => 0,
            Self::Bitmap => sizes.keys / 8 + sizes.keys.div_ceil(32768) * 4 + sizes.keys / 1024 * 4,
            Self::Hash | Self::Radix => sorting_bytes(words) + 16 * words + 12 * self.slots(sizes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: u64 = 140 << 30;

    fn of(ids: u64, keys: u64) -> Sizes {
        Sizes { ids, keys, uniques: ids.min(keys) }
    }

    #[test]
    fn few_ids_are_one_blocks() {
        assert_eq!(choose_dedupe(SMALL_IDS, 1 << 30, SMALL_IDS, H200), DedupeMethod::Block);
        assert_eq!(choose_dedupe(SMALL_IDS + 1, 1 << 28, SMALL_IDS + 1, H200), DedupeMethod::Bitmap);
    }

    #[test]
    fn a_plan_gets_what_its_rows_allow() {
        for (ids, keys, wanted) in [
            (100_000, 1024, DedupeMethod::Hash),
            (100_000, 1 << 16, DedupeMethod::Radix),
            (30_000, 1 << 24, DedupeMethod::Radix),
            (30_000, 1 << 28, DedupeMethod::Bitmap),
            (30_000, 1 << 30, DedupeMethod::Radix),
            (1 << 21, 1 << 20, DedupeMethod::Hash),
            (1 << 21, 1 << 30, DedupeMethod::Radix),
            (10_000_000, 1 << 28, DedupeMethod::Bitmap),
            (10_000_000, 1 << 30, DedupeMethod::Radix),
            (100_000, MOST_KEYS, DedupeMethod::Radix),
        ] {
            assert_eq!(DedupeMethod::of_many(of(ids, keys), H200), wanted, "{ids} ids, {keys} keys");
        }
        // More different rows than words can name slots.
        assert_eq!(DedupeMethod::of_many(of(1 << 30, 1 << 29), 1 << 50), DedupeMethod::Hash);
        assert_eq!(DedupeMethod::of_many(of((1 << 30) - 1, MOST_KEYS), 1 << 50), DedupeMethod::Radix);
    }

    #[test]
    fn a_small_gpu_is_not_filled_with_bits() {
        let sizes = of(65_536, 1 << 32);
        assert_eq!(DedupeMethod::Bitmap.bytes(sizes), (1 << 29) + (1 << 19) + (1 << 24));
        assert_eq!(DedupeMethod::of_many(sizes, 16 << 30), DedupeMethod::Radix);
        // Enough for the bits, not for the table.
        let many = of(10_000_000, 1 << 28);
        assert_eq!(DedupeMethod::of_many(many, 80 << 30), DedupeMethod::Bitmap);
        assert_eq!(DedupeMethod::of_many(of(10_000_000, 4_000_000), 8 << 30), DedupeMethod::Bitmap);
        // Where all others take more, the bits are what is left.
        assert_eq!(DedupeMethod::of_many(of(1 << 28, 1 << 26), 1 << 20), DedupeMethod::Bitmap);
    }

    #[test]
    fn bytes_by_id_are_what_the_documentation_says() {
        for ids in [1u64 << 16, (1 << 16) + 1, 1 << 20, 3 << 20] {
            let sizes = of(ids, 1 << 32);
            let each = |method: DedupeMethod| method.bytes(sizes) as f64 / ids as f64;
            assert!((40.0..65.0).contains(&each(DedupeMethod::Hash)), "{ids}: {}", each(DedupeMethod::Hash));
            assert!((16.0..17.0).contains(&each(DedupeMethod::Radix)), "{ids}: {}", each(DedupeMethod::Radix));
        }
    }

    #[test]
    fn what_cannot_be_says_why() {
        let refused = |method: DedupeMethod, sizes| method.check(sizes).unwrap_err();
        assert!(refused(DedupeMethod::Block, of(8193, 1024)).contains("8192 ids"));
        assert!(refused(DedupeMethod::Bitmap, of(1, MOST_KEYS)).contains("rows outside"));
        assert!(refused(DedupeMethod::Hash, of(1 << 30, MOST_KEYS)).contains("different"));
        assert!(refused(DedupeMethod::Radix, of(1 << 30, MOST_KEYS)).contains("1073741823 ids"));
        assert!(
            [DedupeMethod::Bitmap, DedupeMethod::Hash, DedupeMethod::Radix]
                .iter()
                .all(|method| method.check(of(1 << 20, 1 << 30)).is_ok())
        );
    }
}
