//! Which rows are in memory, and where; which of them go for others. See `docs/passes.md`, "The cache".

use std::collections::BTreeMap;

use crate::bits::Bits;
use crate::options::CacheOptions;

/// No slot.
const NONE: u32 = u32::MAX;
/// The block of rows that were read for a pass that is no block.
const TRANSIENT: u32 = 0;
/// The block of rows that have slots of their own.
const OWN: u32 = 1;

/// The rows in memory. A row has one slot, or none; a slot belongs to one block, the latest that its row was put in.
#[derive(Debug)]
pub(crate) struct Cache {
    options: CacheOptions,
    /// By rank.
    slots: Vec<u32>,
    /// By slot: its row, the block, the latest pass that needed it.
    ranks: Vec<u32>,
    block: Vec<u32>,
    used: Vec<u32>,
    free: Bits,
    /// How many rows each block has.
    blocks: BTreeMap<u32, usize>,
    /// Blocks that made way for others, as `max_num_evict` counts them.
    evictions: u32,
}

/// What a pass finds and needs.
#[derive(Debug, Default)]
pub(crate) struct CacheChanges {
    /// Rows that were there.
    pub hits: u64,
    /// Rows that were not, ascending, and their slots: to be filled. They have them already.
    pub missing: Vec<(u32, u32)>,
    /// Rows that had to go.
    pub evicted: u64,
    /// Whether the pass is a block of the cache.
    pub inserted: bool,
    /// Rows for which there was no slot.
    pub without: u64,
}

impl Cache {
    /// The cache of a table of `rows` rows, with so many slots.
    pub(crate) fn new(options: CacheOptions, rows: usize, slots: usize) -> Self {
        let free = Bits::of(slots, 0..slots as u32);
        Self {
            options,
            slots: vec![NONE; rows],
            ranks: vec![NONE; slots],
            block: vec![TRANSIENT; slots],
            used: vec![0; slots],
            free,
            blocks: BTreeMap::new(),
            evictions: 0,
        }
    }

    /// Allows so many rows of the table.
    pub(crate) fn grow(&mut self, rows: usize) {
        self.slots.resize(rows.max(self.slots.len()), NONE);
    }

    #[inline]
    pub(crate) fn slot(&self, rank: u32) -> Option<u32> {
        self.slots.get(rank as usize).copied().filter(|&slot| slot != NONE)
    }

    /// Slots that rows are in.
    pub(crate) fn resident(&self) -> usize {
        self.ranks.len() - self.free.len()
    }

    /// Slots, with rows or without.
    pub(crate) fn slots_in_all(&self) -> usize {
        self.ranks.len()
    }

    /// Has so many slots.
    pub(crate) fn add_slots(&mut self, slots: usize) {
        self.free.grow(slots);
        for slot in self.ranks.len()..slots {
            self.ranks.push(NONE);
            self.block.push(TRANSIENT);
            self.used.push(0);
            self.free.insert(slot as u32);
        }
    }

    /// The row in a slot.
    pub(crate) fn rank(&self, slot: u32) -> u32 {
        self.ranks.get(slot as usize).copied().unwrap_or(NONE)
    }

    /// Blocks that made way for others to raise the hit rate.
    pub(crate) fn evictions(&self) -> u32 {
        self.evictions
    }

    /// Blocks that there are.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Finds slots for the rows of pass number `pass`, and decides whether it is a block. Rows that passes from `since` on need stay,
    /// and those in `pinned`: where there are too few slots, some rows get none.
    pub(crate) fn plan(&mut self, wanted: &Bits, pass: u32, since: u32, pinned: &Bits) -> CacheChanges {
        let mut planned = CacheChanges::default();
        if self.options.num_blocks == 0 {
            planned.evicted += self.evict_transient(since, pinned);
        }
        let mut hits = Vec::new();
        let mut missing = Vec::new();
        for rank in wanted.iter() {
            match self.slot(rank) {
                Some(slot) => hits.push(slot),
                None => missing.push(rank),
            }
        }
        planned.hits = hits.len() as u64;
        for &slot in &hits {
            if let Some(used) = self.used.get_mut(slot as usize) {
                *used = pass.max(*used);
            }
        }
        let rate = hits.len() as f64 / (wanted.len() as f64).max(1.0);
        // It was planned for before, when not all of it found room.
        let already = self.blocks.contains_key(&pass);
        planned.inserted = already || self.takes(rate);
        if planned.inserted && !already && self.blocks.len() >= self.options.num_blocks as usize {
            // The oldest block goes, but for what is needed.
            self.evictions += 1;
            if let Some((&oldest, _)) = self.blocks.iter().next() {
                planned.evicted += self.evict(usize::MAX, since, pinned, |block| block == oldest);
                self.dissolve(oldest);
            }
        }
        if planned.inserted {
            hits.iter().for_each(|&slot| self.move_to(slot, pass));
        }
        // What passes before left and is in no block goes first.
        planned.evicted += self.evict_transient(since, pinned);
        let short = |cache: &Self| missing.len().saturating_sub(cache.free.len());
        while short(self) > 0 {
            let Some(oldest) = self.blocks.keys().copied().find(|&block| block != pass) else { break };
            planned.evicted += self.evict(short(self), since, pinned, |block| block == oldest);
            // What is left of it is needed, or enough was won.
            if short(self) > 0 {
                self.dissolve(oldest);
            }
        }
        let slots: Vec<u32> = self.free.iter().take(missing.len()).collect();
        planned.without = (missing.len() - slots.len()) as u64;
        for (&rank, &slot) in missing.iter().zip(&slots) {
            self.free.remove(slot);
            self.place(rank, slot, pass);
            self.move_to(slot, if planned.inserted { pass } else { TRANSIENT });
        }
        planned.missing = missing.into_iter().zip(slots).collect();
        planned
    }

    /// What `plan` does, where every row has a slot of its own for good, which has the number of the row: nothing makes way, and all rows are one block.
    pub(crate) fn plan_own(&mut self, wanted: &Bits) -> CacheChanges {
        let mut planned = CacheChanges::default();
        if self.free.len() > 0 {
            for rank in wanted.iter().filter(|&rank| self.slot(rank).is_none()).collect::<Vec<_>>() {
                self.free.remove(rank);
                self.place(rank, rank, OWN);
                self.move_to(rank, OWN);
                planned.missing.push((rank, rank));
            }
        }
        planned.hits = (wanted.len() - planned.missing.len()) as u64;
        planned
    }

    /// Whether a pass with that hit rate becomes a block.
    fn takes(&self, rate: f64) -> bool {
        let CacheOptions { num_blocks, target_hit_rate, max_num_evict } = self.options;
        if self.blocks.len() < num_blocks as usize {
            return true;
        }
        num_blocks > 0 && rate < target_hit_rate && self.evictions < max_num_evict
    }

    fn place(&mut self, rank: u32, slot: u32, pass: u32) {
        let at = slot as usize;
        if let (Some(place), Some(of), Some(used)) =
            (self.slots.get_mut(rank as usize), self.ranks.get_mut(at), self.used.get_mut(at))
        {
            (*place, *of, *used) = (slot, rank, pass);
        }
    }

    /// Makes a row one of `block` rather than of its own.
    fn move_to(&mut self, slot: u32, block: u32) {
        let Some(own) = self.block.get_mut(slot as usize) else { return };
        let before = std::mem::replace(own, block);
        if before == block {
            return;
        }
        if let Some(rows) = self.blocks.get_mut(&before) {
            *rows -= 1;
            if *rows == 0 {
                self.blocks.remove(&before);
            }
        }
        if block != TRANSIENT {
            *self.blocks.entry(block).or_default() += 1;
        }
    }

    /// Lets rows go that are no block's.
    fn evict_transient(&mut self, since: u32, pinned: &Bits) -> u64 {
        match self.resident() > self.blocks.values().sum() {
            true => self.evict(usize::MAX, since, pinned, |block| block == TRANSIENT),
            false => 0,
        }
    }

    /// Lets so many rows go, of blocks that `of` names.
    fn evict(&mut self, most: usize, since: u32, pinned: &Bits, of: impl Fn(u32) -> bool) -> u64 {
        let mut gone = 0;
        for slot in 0..self.ranks.len() as u32 {
            if gone == most {
                break;
            }
            let at = slot as usize;
            let (Some(&rank), Some(&block), Some(&used)) = (self.ranks.get(at), self.block.get(at), self.used.get(at))
            else {
                break;
            };
            if rank != NONE && of(block) && used < since && !pinned.has(rank) {
                self.forget(rank);
                gone += 1;
            }
        }
        gone as u64
    }

    /// What is left of a block is no block's.
    fn dissolve(&mut self, block: u32) {
        if self.blocks.contains_key(&block) {
            let left = (0..self.block.len() as u32).filter(|&slot| self.block.get(slot as usize) == Some(&block));
            let left: Vec<u32> = left.collect();
            left.into_iter().for_each(|slot| self.move_to(slot, TRANSIENT));
        }
    }

    /// Lets a row go.
    pub(crate) fn forget(&mut self, rank: u32) {
        let Some(slot) = self.slot(rank) else { return };
        self.move_to(slot, TRANSIENT);
        if let (Some(place), Some(of)) = (self.slots.get_mut(rank as usize), self.ranks.get_mut(slot as usize)) {
            (*place, *of) = (NONE, NONE);
            self.free.insert(slot);
        }
    }

    /// Panics unless each row has one slot at most, each slot one row, and the blocks the rows that they say.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut taken = 0;
        for (rank, &slot) in self.slots.iter().enumerate().filter(|(_, slot)| **slot != NONE) {
            assert_eq!(self.ranks[slot as usize], rank as u32);
            assert!(!self.free.has(slot));
            taken += 1;
        }
        assert_eq!(taken, self.resident());
        assert_eq!(self.ranks.iter().filter(|rank| **rank != NONE).count(), taken);
        let mut blocks = BTreeMap::new();
        for (slot, &block) in self.block.iter().enumerate().filter(|(_, block)| **block != TRANSIENT) {
            assert_ne!(self.ranks[slot], NONE);
            *blocks.entry(block).or_default() += 1;
        }
        assert_eq!(blocks, self.blocks);
        assert!(self.blocks.len() <= self.options.num_blocks as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn bits(rows: usize, ranks: impl IntoIterator<Item = u32>) -> Bits {
        Bits::of(rows, ranks)
    }

    /// The three phases: insertion, updating, freezing.
    #[test]
    fn the_phases_are_those_of_the_options() {
        let options = CacheOptions { num_blocks: 2, target_hit_rate: 0.5, max_num_evict: 1 };
        let mut cache = Cache::new(options, 100, 60);
        let none = Bits::new(100);
        let mut pass = |number: u32, ranks: std::ops::Range<u32>| {
            let planned = cache.plan(&bits(100, ranks), number, number, &none);
            cache.check();
            (planned.hits, planned.missing.len(), planned.inserted, cache.blocks())
        };
        assert_eq!(pass(1, 0..10), (0, 10, true, 1), "there is an empty block");
        assert_eq!(pass(2, 5..15), (5, 5, true, 2), "and another; what both have is the later's");
        assert_eq!(pass(3, 5..16), (10, 1, false, 2), "the hit rate is above the target");
        assert_eq!(pass(4, 40..50), (0, 10, true, 2), "it is not: the oldest goes");
        assert_eq!(pass(5, 0..10), (5, 5, false, 2), "0 to 4 have gone; but no more may go");
        assert_eq!(pass(6, 40..50), (10, 0, false, 2), "frozen as it is");
    }

    /// Whatever was forgotten and came later.
    #[test]
    fn own_slots_are_those_of_the_rank() {
        let options = CacheOptions { num_blocks: 1, target_hit_rate: 0.0, max_num_evict: 0 };
        let mut cache = Cache::new(options, 100, 100);
        let plan = |cache: &mut Cache, ranks: &[u32]| {
            let planned = cache.plan_own(&bits(200, ranks.iter().copied()));
            cache.check();
            assert!(planned.missing.iter().all(|(rank, slot)| rank == slot) && planned.without == 0);
            (planned.hits, planned.missing.iter().map(|pair| pair.0).collect::<Vec<_>>())
        };
        let all: Vec<u32> = (0..100).collect();
        assert_eq!(plan(&mut cache, &all), (0, all.clone()));
        assert_eq!(plan(&mut cache, &all), (100, vec![]));
        cache.grow(110);
        cache.add_slots(110);
        [3, 50].into_iter().for_each(|rank| cache.forget(rank));
        // Neither of what is free before it.
        assert_eq!(plan(&mut cache, &[4, 107]), (1, vec![107]));
        assert_eq!(plan(&mut cache, &[3, 4, 50, 105]), (1, vec![3, 50, 105]));
        assert_eq!((cache.resident(), cache.blocks()), (102, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, rng_seed: RngSeed::Fixed(0x5eed), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_row_is_there_once(
            num_blocks in 0u32..5, target in 0.0f64..1.0, max_num_evict in 0u32..10, slots in 20usize..90,
            passes in prop::collection::vec(prop::collection::vec(0u32..80, 0..20), 1..30),
            pin in prop::collection::vec(any::<bool>(), 80),
        ) {
            let options = CacheOptions { num_blocks, target_hit_rate: target, max_num_evict };
            let mut cache = Cache::new(options, 80, slots);
            let mut evictions = 0;
            let mut last = Bits::new(80);
            for (number, ranks) in (1..).zip(passes) {
                let wanted = bits(80, ranks);
                let pinned = bits(80, (0..80).filter(|&rank| pin[rank as usize] && number % 2 == 0));
                let before: Vec<u32> = (0..80).filter(|&rank| cache.slot(rank).is_some()).collect();
                // As a prefetch: what the pass before needs stays.
                let since = number - 1;
                let planned = cache.plan(&wanted, number, since, &pinned);
                cache.check();
                if num_blocks > 0 {
                    prop_assert_eq!(planned.hits as usize, before.iter().filter(|&&rank| wanted.has(rank)).count());
                }
                prop_assert_eq!(planned.hits as usize + planned.missing.len() + planned.without as usize, wanted.len());
                for rank in before {
                    // Without blocks a pass begins with nothing.
                    let stays = pinned.has(rank) || last.has(rank) || wanted.has(rank) && num_blocks > 0;
                    prop_assert!(cache.slot(rank).is_some() || !stays);
                }
                // What is no block's is of this pass or the one before, or cannot go.
                let kept = (0..80).filter_map(|rank| Some((rank, cache.slot(rank)?)));
                for (rank, slot) in kept.filter(|&(_, slot)| cache.block[slot as usize] == TRANSIENT) {
                    let needed = cache.used[slot as usize] >= since;
                    prop_assert!(needed || pinned.has(rank), "rank {rank}");
                }
                if pinned.len() == 0 {
                    prop_assert!(planned.without == 0 || last.len() + wanted.len() > slots);
                }
                prop_assert!(cache.evictions() >= evictions && cache.evictions() <= max_num_evict);
                evictions = cache.evictions();
                // What has no slot is staged once more, when nothing is in its way.
                if planned.without > 0 {
                    let again = cache.plan(&wanted, number, number, &Bits::new(80));
                    prop_assert_eq!(again.without, 0);
                    cache.check();
                }
                last = wanted;
            }
        }
    }
}
