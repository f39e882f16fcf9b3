//! What memory of several sizes would give: with the hottest rows of the past, and with a cache that follows what is looked up.

use serde::Serialize;
use warprow_cache::{Admission, Batch, Cache, Eviction, HitRate};
use warprow_gpu::gpu_row_bytes;

use crate::backtest::Backtest;
use crate::budget::{MemoryBudgets, TableHotness, allocate};
use crate::error::ProposalError;
use crate::options::{ProposalOptions, TableShape};
use crate::order::HotnessOrder;
use crate::progress::{ProposalWatch, Told};
use crate::propose::Proposer;
use crate::trace::{Bags, QueryTrace};

/// Lines of the row cache of a host executor begin at multiples of this.
const STEP: u64 = 64;
/// Lines of one length that it has at least: with fewer, rows of that length are not cached.
const LEAST_LINES: u128 = 64;

/// What look-ups of the part of a trace that was held out find in memory of several sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryRates {
    /// Ids of the part held out.
    pub ids: u64,
    /// Different rows of that part.
    pub different: u64,
    /// Different rows of its look-ups, each counted once a look-up.
    pub rows: u64,
    /// The share of its ids whose rows were looked up before it at all: what memory for all rows that are known by then would give.
    pub known: f64,
    /// For each size.
    pub rates: Vec<MemoryRate>,
}

/// Shares of ids in memory of one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryRate {
    /// Bytes.
    pub bytes: u64,
    /// With the hottest rows of the part learnt from in DRAM, as a host executor keeps them.
    pub dram: f64,
    /// With those rows in GPU memory, as a GPU executor keeps them.
    pub hbm: f64,
    /// With the row cache of a host executor, which has seen the part learnt from.
    pub cache: f64,
    /// Of different rows of look-ups, the share that the hottest rows in DRAM are.
    pub dram_rows: f64,
    /// Of different rows of look-ups, the share that the row cache has.
    pub cache_rows: f64,
}

/// What one size holds, and what it has met.
struct Held {
    bytes: u64,
    /// By table, ranks below which rows are in memory.
    dram: Vec<u64>,
    hbm: Vec<u64>,
    in_dram: HitRate,
    in_hbm: HitRate,
    in_cache: HitRate,
    /// A cache for each length of lines.
    caches: Vec<(u64, Cache)>,
}

/// What memory of each of these `sizes` would give to look-ups of `tables`, by `trace`, whose columns are theirs in the same order.
/// It is learnt from the first part and counted on the part held out ([`ProposalOptions::held_out`]).
pub fn memory_rates(
    tables: &[TableShape],
    trace: &mut QueryTrace<'_>,
    options: &ProposalOptions,
    sizes: &[u64],
    watch: &mut ProposalWatch<'_>,
) -> Result<MemoryRates, ProposalError> {
    let proposer = Proposer::new(tables, trace, options)?;
    let queries = trace.queries();
    let held_out = proposer.held_out(queries);
    let learnt = queries - held_out;
    let (orders, found) = proposer.orders(trace, 0..learnt, "learning", &mut Backtest::none(&proposer), watch)?;
    let mut held: Vec<Held> = sizes.iter().map(|&bytes| Held::new(bytes, &proposer, &orders, found.ids)).collect();
    let strides: Vec<u64> = proposer.row_bytes().map(|bytes| u64::from(bytes).next_multiple_of(STEP)).collect();
    let firsts: Vec<u64> = tables
        .iter()
        .scan(0u64, |next, table| {
            let first = *next;
            *next = next.wrapping_add(table.rows);
            Some(first)
        })
        .collect();
    let batch = usize::try_from(u64::from(options.batch).min(held_out)).unwrap_or(usize::MAX);
    let (mut ids, mut rows, mut known) = (0, 0, 0);
    let mut different = Vec::new();
    for (range, counts) in [(0..learnt, false), (learnt..queries, true)] {
        let mut told = Told::new(if counts { "testing" } else { "warming caches" }, range.clone(), watch);
        trace.replay(range, batch, &mut |first, bags| {
            for (at, ((bags, order), (&base, &stride))) in
                bags.iter().zip(&orders).zip(firsts.iter().zip(&strides)).enumerate()
            {
                let (batch, ranks) = batch_of(bags, order, base);
                if counts {
                    different.extend_from_slice(&batch.keys);
                    rows += batch.keys.len() as u64;
                    ids += batch.counts.iter().map(|&count| u64::from(count)).sum::<u64>();
                    let seen = ranks.iter().zip(&batch.counts).filter(|(rank, _)| **rank < order.seen());
                    known += seen.map(|(_, &count)| u64::from(count)).sum::<u64>();
                }
                held.iter_mut().for_each(|held| held.serve(at, stride, &batch, &ranks, counts));
            }
            // The list of different rows stays as long as they are.
            if counts && different.len() > 1 << 26 {
                different.sort_unstable();
                different.dedup();
            }
            told.at(first)
        })?;
    }
    different.sort_unstable();
    different.dedup();
    if ids == 0 {
        return Err(ProposalError::NothingInTables);
    }
    let rates = held.iter().map(Held::rate).collect();
    Ok(MemoryRates { ids, different: different.len() as u64, rows, known: known as f64 / ids as f64, rates })
}

/// The different rows of a look-up, by numbers that no two tables share, and the rank of each.
pub(crate) fn batch_of(bags: &Bags, order: &HotnessOrder, base: u64) -> (Batch, Vec<u64>) {
    let mut ids = bags.ids.clone();
    ids.sort_unstable();
    let (mut batch, mut ranks) = (Batch::default(), Vec::new());
    for same in ids.chunk_by(|one, other| one == other) {
        let Some((&id, rank)) = same.first().and_then(|id| Some((id, order.rank(*id)?))) else { continue };
        batch.keys.push(base.wrapping_add(id as u64));
        batch.counts.push(u32::try_from(same.len()).unwrap_or(u32::MAX));
        ranks.push(rank);
    }
    (batch, ranks)
}

impl Held {
    fn new(bytes: u64, proposer: &Proposer<'_>, orders: &[HotnessOrder], ids: u64) -> Self {
        let heats = |in_memory: fn(u32) -> u32| {
            let tables = orders.iter().zip(proposer.row_bytes());
            tables.map(|(order, bytes)| TableHotness::new(order, in_memory(bytes).into())).collect::<Vec<_>>()
        };
        let dram = allocate(&heats(|bytes| bytes), MemoryBudgets { hbm: 0, dram: bytes }).hot;
        let hbm = allocate(&heats(gpu_row_bytes), MemoryBudgets { hbm: bytes, dram: 0 }).hbm;
        let caches = pools(bytes, proposer, |table| orders.get(table).map_or(0, HotnessOrder::rows));
        // More lines than there are ids never fill.
        let cache = |(stride, lines): (u64, usize)| {
            let lines = lines.min(usize::try_from(ids).unwrap_or(usize::MAX)).max(1);
            (stride, Cache::new(lines, Eviction::S3Fifo, Admission::Always))
        };
        let caches = caches.into_iter().filter(|pool| pool.1 > 0).map(cache).collect();
        let none = HitRate::default;
        Self { bytes, dram, hbm, in_dram: none(), in_hbm: none(), in_cache: none(), caches }
    }

    fn serve(&mut self, table: usize, stride: u64, batch: &Batch, ranks: &[u64], counts: bool) {
        let mut rate = HitRate::default();
        if let Some((_, cache)) = self.caches.iter_mut().find(|(it, _)| *it == stride) {
            rate.add(cache, batch);
        }
        if !counts {
            return;
        }
        add(&mut self.in_cache, rate);
        for (rate, hot) in [(&mut self.in_dram, &self.dram), (&mut self.in_hbm, &self.hbm)] {
            let hot = hot.get(table).copied().unwrap_or(0);
            for (&rank, &count) in ranks.iter().zip(&batch.counts) {
                let hit = rank < hot;
                let (ids, row) = (u64::from(count), 1);
                let hits = if hit { (ids, row) } else { (0, 0) };
                add(rate, HitRate { ids, id_hits: hits.0, rows: row, row_hits: hits.1 });
            }
        }
    }

    fn rate(&self) -> MemoryRate {
        MemoryRate {
            bytes: self.bytes,
            dram: self.in_dram.of_ids(),
            hbm: self.in_hbm.of_ids(),
            cache: self.in_cache.of_ids(),
            dram_rows: self.in_dram.of_rows(),
            cache_rows: self.in_cache.of_rows(),
        }
    }
}

pub(crate) fn add(to: &mut HitRate, more: HitRate) {
    to.ids += more.ids;
    to.id_hits += more.id_hits;
    to.rows += more.rows;
    to.row_hits += more.row_hits;
}

/// Lines of the row cache of a host executor in `bytes` bytes, by the bytes of a line; 0: rows of that length are not cached. Tables
/// whose lines have one length share them; those of different lengths share the memory by their bytes.
fn pools(bytes: u64, proposer: &Proposer<'_>, rows: impl Fn(usize) -> u64) -> Vec<(u64, usize)> {
    let mut wanted: Vec<(u64, u128)> = Vec::new();
    for (table, bytes) in proposer.row_bytes().enumerate() {
        let stride = u64::from(bytes).next_multiple_of(STEP);
        let all = u128::from(rows(table)) * u128::from(stride);
        match wanted.iter_mut().find(|(it, _)| *it == stride) {
            Some((_, bytes)) => *bytes += all,
            None => wanted.push((stride, all)),
        }
    }
    let sum: u128 = wanted.iter().map(|&(_, bytes)| bytes).sum();
    let pool = |(stride, all): (u64, u128)| {
        let rows = all / u128::from(stride);
        let found = lines(u128::from(bytes) * all / sum.max(1), stride, rows);
        (stride, if (found as u128) < rows.min(LEAST_LINES) { 0 } else { found })
    };
    wanted.into_iter().map(pool).collect()
}

/// The least bytes of which the row cache of a host executor has lines at all.
pub(crate) fn least_bytes(proposer: &Proposer<'_>) -> u64 {
    let rows = |table: usize| proposer.shapes.get(table).map_or(0, |shape| shape.rows);
    let fits = |bytes: u64| pools(bytes, proposer, rows).iter().any(|pool| pool.1 > 0);
    let (mut too_few, mut enough) = (0, 1u64 << 12);
    while !fits(enough) && enough < 1 << 60 {
        (too_few, enough) = (enough, enough * 2);
    }
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if fits(middle) { enough = middle } else { too_few = middle }
    }
    enough
}

/// Lines of `stride` bytes that fit `bytes`, with what leads to them; `rows` at most.
fn lines(bytes: u128, stride: u64, rows: u128) -> usize {
    let needs = |lines: usize| {
        lines as u128 * u128::from(stride) + Cache::bytes(lines, Eviction::S3Fifo, Admission::Always) as u128
    };
    let (mut fits, mut too_many) = (0, usize::try_from(rows.min(1 << 31)).unwrap_or(0) + 1);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if needs(middle) <= bytes { fits = middle } else { too_many = middle }
    }
    fits
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use warprow_layout::DType;

    use super::*;
    use crate::HostCosts;
    use crate::trace::RecordedQueries;

    #[test]
    fn memory_holds_what_the_past_says_and_a_cache_what_came_last() {
        // Of 100 queries the first 80 ask for rows 0 to 9 in turns, and row 10 each time; the last 20 ask for row 10, and for rows 20 to 24
        // in turns, which nobody asked for before.
        let mut bags = Bags::default();
        for query in 0..100 {
            bags.ids.extend([10, if query < 80 { query % 10 } else { 20 + query % 5 }]);
            bags.end_query();
        }
        let shape = TableShape { name: "t".to_owned(), rows: 1000, dim: 64, dtype: DType::F32, index_bytes: None };
        let source = Box::new(RecordedQueries::new(&bags, 0..100)) as _;
        let mut trace = QueryTrace::new(vec![(vec!["t".to_owned()], source)]).unwrap();
        let options =
            ProposalOptions { batch: 1, memory: 1 << 20, costs: HostCosts::NONE, ..ProposalOptions::default() };
        let sizes = [256, 256 * 11, 1 << 20];
        let rates = memory_rates(&[shape], &mut trace, &options, &sizes, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((rates.ids, rates.different, rates.rows, rates.known), (40, 6, 40, 0.5));
        // The hottest row takes half of the look-ups; memory for all rows has all.
        assert_eq!(rates.rates.iter().map(|rate| rate.dram).collect::<Vec<_>>(), [0.5, 0.5, 1.0]);
        assert_eq!(rates.rates.iter().map(|rate| rate.hbm).collect::<Vec<_>>(), [0.5, 0.5, 1.0]);
        assert!(rates.rates.iter().all(|rate| rate.dram == rate.dram_rows && rate.cache == rate.cache_rows));
        // A cache of enough lines misses each of the five new rows once.
        assert_eq!(rates.rates[2].cache, 35.0 / 40.0);
        assert!(rates.rates[0].cache <= 0.5);
    }

    #[test]
    fn lines_fit_with_what_leads_to_them() {
        assert_eq!(lines(0, 64, 10), 0);
        assert_eq!(lines(u128::MAX, 64, 10), 10);
        let fitting = lines(1 << 20, 320, u128::MAX);
        let needs = |lines: usize| lines * 320 + Cache::bytes(lines, Eviction::S3Fifo, Admission::Always);
        assert!(needs(fitting) <= 1 << 20 && needs(fitting + 1) > 1 << 20);
    }
}
