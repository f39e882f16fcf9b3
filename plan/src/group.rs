//! Rows that are looked up together share LBAs.
//!
//! A greedy partition: pairs of rows of one query are counted, and joined in the order of their counts into groups that fit
//! an LBA (Kruskal's algorithm with a limit on the size). A larger gain of a pair is a read saved each time it comes, so
//! greed follows what is to be saved.

use std::cmp::Reverse;

use warprow_workload::{SeededRandom, mix_all};

use crate::order::HotnessOrder;
use warprow_cache::FrequentKeys;

/// Rows of a query up to which all pairs count.
const ALL: usize = 128;
/// With how many others each row of a longer query is paired.
const SOME: usize = 16;
/// LBAs that groups are put into at a time.
const OPEN: usize = 64;

/// Counts which rows come together.
#[derive(Debug)]
pub struct RowPairs<'a> {
    order: &'a HotnessOrder,
    /// Ranks that take part: behind those in memory, and looked up twice at least.
    ranks: std::ops::Range<u64>,
    pairs: FrequentKeys,
    of_query: Vec<u32>,
    seed: u64,
}

impl<'a> RowPairs<'a> {
    /// Counts for the rows from rank `first` on, in `bytes` bytes. `None`: there are none, or more than 2³².
    pub fn new(order: &'a HotnessOrder, first: u64, bytes: u64, seed: u64) -> Option<Self> {
        let twice = order.classes().iter().rfind(|class| class.count > 1).map_or(0, |class| class.end);
        let ranks = first..twice;
        let fits = ranks.end <= u64::from(u32::MAX) && ranks.end > ranks.start + 1;
        fits.then(|| Self { order, ranks, pairs: FrequentKeys::new(bytes), of_query: Vec::new(), seed })
    }

    /// Counts the pairs of query number `number`.
    pub fn query(&mut self, number: u64, ids: &[i64]) {
        let ranks = ids.iter().filter_map(|&id| self.order.rank(id)).filter(|rank| self.ranks.contains(rank));
        self.of_query.clear();
        self.of_query.extend(ranks.map(|rank| rank as u32));
        self.of_query.sort_unstable();
        self.of_query.dedup();
        let rows = &self.of_query[..];
        let mut add = |a: u32, b: u32| self.pairs.add(u64::from(a.min(b)) << 32 | u64::from(a.max(b)));
        if rows.len() <= ALL {
            for (at, &a) in rows.iter().enumerate() {
                rows.iter().skip(at + 1).for_each(|&b| add(a, b));
            }
            return;
        }
        // A large query reads most LBAs whatever lies in them: its pairs say less, and are counted as rarely.
        let mut random = SeededRandom::new(mix_all([self.seed, number]));
        for &a in rows {
            for _ in 0..SOME {
                let other = random.below(rows.len() as u64) as usize;
                rows.get(other).filter(|&&b| b != a).iter().for_each(|&&b| add(a, b));
            }
        }
    }

    /// The groups of two rows and more, with at most `size` each, as ranks of the order.
    pub fn groups(&self, size: u32) -> Vec<Vec<u32>> {
        let mut pairs: Vec<(u32, u64)> =
            self.pairs.iter().filter(|pair| pair.1 > 1).map(|(pair, count)| (count, pair)).collect();
        // Among pairs of one count, those of cold rows first: they share more of what they are looked up for.
        let rarity = |pair: u64| (pair >> 32) + (pair & 0xffff_ffff);
        pairs.sort_unstable_by_key(|&(count, pair)| (Reverse(count), Reverse(rarity(pair)), pair));
        let base = self.ranks.start;
        let rows = (self.ranks.end - base) as usize;
        let mut parents: Vec<u32> = (0..rows as u32).collect();
        let mut sizes = vec![1u32; rows];
        for (_, pair) in pairs {
            let place = |rank: u64| (rank - base) as u32;
            let a = root(&mut parents, place(pair >> 32));
            let b = root(&mut parents, place(pair & 0xffff_ffff));
            let joined = sizes[a as usize] + sizes[b as usize];
            if a != b && joined <= size {
                parents[b as usize] = a;
                sizes[a as usize] = joined;
            }
        }
        let mut members: Vec<(u32, u32)> = (0..rows as u32).map(|row| (root(&mut parents, row), row)).collect();
        members.retain(|&(root, _)| sizes[root as usize] > 1);
        members.sort_unstable();
        let groups = members.chunk_by(|a, b| a.0 == b.0);
        groups.map(|group| group.iter().map(|&(_, row)| base as u32 + row).collect()).collect()
    }

    /// The order in which each of `groups` shares an LBA of `size` rows, as far as there are rows to fill the LBAs with. Hot
    /// groups come first; the first of these ranks must be at the begin of an LBA.
    pub fn arrange(&self, mut groups: Vec<Vec<u32>>, size: u32) -> HotnessOrder {
        let heat = |group: &[u32]| {
            let sum: f64 = group.iter().map(|&rank| f64::from(self.order.count(rank.into()))).sum();
            sum / group.len() as f64
        };
        let seen = self.order.seen();
        let mut alone = vec![true; (seen - self.ranks.start) as usize];
        for &rank in groups.iter().flatten() {
            alone[(u64::from(rank) - self.ranks.start) as usize] = false;
        }
        let mut singles = (self.ranks.start..seen).zip(&alone).filter(|pair| *pair.1).map(|pair| pair.0).peekable();
        // Of about one heat in the order of their ids, as rows that are alone are: ids that are near are often asked for
        // together, and neighbouring LBAs are read by one command.
        groups.sort_by_cached_key(|group| {
            let first = group.iter().filter_map(|&rank| self.order.id(rank.into())).min();
            (Reverse(heat(group) as u64), first)
        });
        let mut blocks: Vec<Vec<u64>> = Vec::new();
        let size = size.max(1) as usize;
        let mut open: Vec<usize> = Vec::new();
        for group in &groups {
            // Hotter rows that are alone come before it.
            let heat = heat(group);
            while singles.peek().is_some_and(|&rank| f64::from(self.order.count(rank)) > heat) {
                let block: Vec<u64> = singles.by_ref().take(size).collect();
                blocks.push(block);
            }
            let room = |at: &usize| size - blocks.get(*at).map_or(size, Vec::len);
            let best = open.iter().copied().filter(|at| room(at) >= group.len()).min_by_key(room);
            let at = best.unwrap_or_else(|| {
                blocks.push(Vec::new());
                open.push(blocks.len() - 1);
                blocks.len() - 1
            });
            if let Some(block) = blocks.get_mut(at) {
                block.extend(group.iter().map(|&rank| u64::from(rank)));
            }
            open.retain(|&at| blocks.get(at).is_some_and(|block| block.len() < size));
            if open.len() > OPEN {
                open.remove(0);
            }
        }
        let mut ids = Vec::with_capacity(alone.len());
        for mut block in blocks {
            let room = size.saturating_sub(block.len());
            block.extend(singles.by_ref().take(room));
            ids.extend(block.into_iter().filter_map(|rank| self.order.id(rank)));
        }
        ids.extend(singles.filter_map(|rank| self.order.id(rank)));
        self.order.rearranged(self.ranks.start, &ids)
    }

    /// Whether only the most frequent pairs could be counted.
    pub fn error(&self) -> u64 {
        self.pairs.error()
    }
}

/// The root of a row, with paths halved.
fn root(parents: &mut [u32], mut row: u32) -> u32 {
    while parents[row as usize] != row {
        let above = parents[parents[row as usize] as usize];
        parents[row as usize] = above;
        row = above;
    }
    row
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::order::RowCounts;
    use crate::trace::{Bags, GeneratedQueries, IdPattern, QuerySource};
    use warprow_workload::PowerLaw;

    /// The share of the pairs of rows of known groups, among rows that were looked up twice, that share an LBA.
    fn recall(size: u64, noise: u64, bytes: u64, seed: u64) -> f64 {
        let rows = 40_000;
        let groups = 2000;
        let law = PowerLaw::new(groups, 0.7).unwrap();
        let mut trace = GeneratedQueries::new(IdPattern::Groups { law, size, noise }, rows, 30_000, 0, seed);
        let mut bags = Bags::default();
        trace.read(30_000, std::slice::from_mut(&mut bags)).unwrap();
        let mut counts = RowCounts::new(rows, u64::MAX);
        assert!(bags.ids.iter().all(|&id| counts.add(id)));
        let order = HotnessOrder::new(counts);
        let mut pairs = RowPairs::new(&order, 0, bytes, seed).unwrap();
        bags.queries().enumerate().for_each(|(number, ids)| pairs.query(number as u64, ids));
        let arranged = pairs.arrange(pairs.groups(8), 8);
        // Nothing is lost.
        let all: HashSet<u64> = arranged.ids().collect();
        assert_eq!(all, order.ids().collect::<HashSet<u64>>());
        let mut blocks: HashMap<u64, u64> = HashMap::new();
        blocks.extend(arranged.ids().enumerate().map(|(rank, id)| (id, rank as u64 / 8)));
        let mut together = 0;
        let mut wanted = 0;
        for group in 0..groups {
            let ids: Vec<u64> = trace.group(group, size).collect();
            for (at, a) in ids.iter().enumerate() {
                for b in &ids[at + 1..] {
                    if order.count(order.rank(*a as i64).unwrap()) >= 4 {
                        wanted += 1;
                        together += u32::from(blocks.get(a) == blocks.get(b));
                    }
                }
            }
        }
        f64::from(together) / f64::from(wanted.max(1))
    }

    #[test]
    fn known_groups_are_found() {
        for (size, noise) in [(4, 0), (4, 8), (8, 8), (2, 4)] {
            let found = recall(size, noise, 64 << 20, 7);
            println!("groups of {size} with {noise} rows of noise: recall {found:.3}");
            assert!(found > 0.95, "groups of {size}, {noise} rows of noise: {found}");
        }
        // With room for a fraction of the pairs, the frequent ones are found all the same.
        let found = recall(4, 8, 4 << 20, 7);
        println!("in 4 MiB: recall {found:.3}");
        assert!(found > 0.5, "{found}");
    }
}
