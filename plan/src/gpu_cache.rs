//! A cache in GPU memory beside rows in GPU memory that were chosen beforehand, of the same bytes.

use std::ops::Range;

use serde::Serialize;
use warprow_cache::{Admission, Batch, HitRate, SetCache, SetEviction};
use warprow_gpu::{CacheAdmission, GpuCacheLines, GpuError, GpuOptions, gpu_row_bytes};

use crate::backtest::Backtest;
use crate::budget::{MemoryBudgets, TableHotness, allocate};
use crate::cache_comparison::{Ahead, ahead};
use crate::error::ProposalError;
use crate::memory_rates::{add, batch_of};
use crate::options::{GroupRows, ProposalOptions, TableShape};
use crate::order::HotnessOrder;
use crate::progress::{ProposalWatch, Told};
use crate::propose::{Proposer, propose};
use crate::tier_proposal::HitInterval;
use crate::trace::QueryTrace;

/// What GPU memory of one size finds as the cache of a GPU executor, and with the rows that were hottest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GpuCacheComparison {
    /// Bytes of GPU memory; of a cache, lines, what leads to them, and counters count.
    pub bytes: u64,
    /// The least bytes that an executor takes for a cache of these tables, and of batches as large as the trace's.
    pub least: u64,
    /// The share of the ids held out whose rows a cache has that keeps each row which was read, and gives away what was used least
    /// lately. It has seen the part learnt from, look-up by look-up.
    pub always: f64,
    /// The share with counters, that keeps what is asked for oftener than the row whose line it would get.
    pub sketch: f64,
    /// The share of the ids held out whose rows lie in GPU memory, where the hottest rows of the part learnt from lie.
    pub tier: f64,
    /// Of the different rows of the look-ups held out, the share that the first cache has.
    pub always_rows: f64,
    /// Of the different rows of the look-ups held out, the share that the cache with counters has.
    pub sketch_rows: f64,
    /// Of the different rows of the look-ups held out, the share that the tier has.
    pub tier_rows: f64,
    /// The interval of the tier's share in the queries that follow the trace.
    pub interval: Option<HitInterval>,
    /// Whether the better of the two caches is ahead by more than half the width of that interval.
    pub ahead: Ahead,
}

impl GpuCacheComparison {
    /// The share of ids of the better cache.
    pub fn cache(&self) -> f64 {
        self.always.max(self.sketch)
    }

    /// Half the width of the interval of the tier's share; `None`: it is not known.
    pub fn error(&self) -> Option<f64> {
        self.interval.map(|interval| (interval.high - interval.low) / 2.0)
    }
}

/// Compares the cache of a GPU executor with rows in GPU memory of as many bytes, for look-ups of `tables`, by `trace`, whose columns are
/// theirs in the same order. Both learn from the first part, and are counted on the part held out ([`ProposalOptions::held_out`]). The
/// cache has the sets, lines and policies of the device, with [`GpuOptions::cache_batch_rows`] as they are by default. The budgets in
/// `options` do not matter.
///
/// # Errors
/// [`ProposalError::CacheTooSmall`] if an executor would refuse the cache, or a plan for look-ups as large as the trace's.
pub fn compare_gpu_cache(
    tables: &[TableShape],
    trace: &mut QueryTrace<'_>,
    options: &ProposalOptions,
    bytes: u64,
    watch: &mut ProposalWatch<'_>,
) -> Result<GpuCacheComparison, ProposalError> {
    let budgets = MemoryBudgets { hbm: bytes, dram: 0 };
    let options = ProposalOptions { budgets, group: GroupRows::Off, ..options.clone() };
    let proposer = Proposer::new(tables, trace, &options)?;
    let queries = trace.queries();
    let learnt = queries - proposer.held_out(queries);
    let mut replayed = Replayed::new(&proposer, bytes)?;
    let (orders, found) = proposer.orders(trace, 0..learnt, "learning", &mut Backtest::none(&proposer), watch)?;
    replayed.begin(&proposer, &orders, found.ids);
    replayed.replay((0..learnt, false), &orders, trace, watch)?;
    replayed.replay((learnt..queries, true), &orders, trace, watch)?;
    let least = replayed.least(bytes)?;
    if replayed.tier.ids == 0 {
        return Err(ProposalError::NothingInTables);
    }
    let proposal = propose(tables, trace, &options, watch)?;
    let interval = proposal.tiers.expected.intervals.first().filter(|it| it.high - it.low < 1.0).copied();
    let [always, sketch] = &replayed.caches;
    let compared = GpuCacheComparison {
        bytes,
        least,
        always: always.rate.of_ids(),
        sketch: sketch.rate.of_ids(),
        tier: replayed.tier.of_ids(),
        always_rows: always.rate.of_rows(),
        sketch_rows: sketch.rate.of_rows(),
        tier_rows: replayed.tier.of_rows(),
        interval,
        ahead: Ahead::Neither,
    };
    Ok(GpuCacheComparison { ahead: ahead(compared.cache() - compared.tier, compared.error()), ..compared })
}

/// A cache with one of the device's policies.
struct DeviceCache {
    lines: GpuCacheLines,
    /// By bytes of a line.
    pools: Vec<(u32, SetCache)>,
    eviction: SetEviction,
    rate: HitRate,
}

/// What a replay of a trace meets.
struct Replayed {
    batch: usize,
    /// By table: bytes of its rows in GPU memory, the number of its first row, and ranks below which rows lie there.
    tables: Vec<(u32, u64, u64)>,
    bytes: u64,
    caches: [DeviceCache; 2],
    tier: HitRate,
    /// By bytes of a line, the most different rows of a look-up.
    most_rows: Vec<(u32, u64)>,
    shapes: Vec<(u32, u64)>,
}

impl Replayed {
    fn new(proposer: &Proposer<'_>, bytes: u64) -> Result<Self, ProposalError> {
        let shapes: Vec<(u32, u64)> =
            proposer.row_bytes().zip(proposer.shapes).map(|(bytes, shape)| (bytes, shape.rows)).collect();
        let cache = |admission, eviction| {
            let lines = lines_of(bytes, admission, &shapes)?;
            Ok::<_, ProposalError>(DeviceCache { lines, pools: Vec::new(), eviction, rate: HitRate::default() })
        };
        // Counters take room, so that this is the one that is refused first.
        let sketch = cache(CacheAdmission::Sketch, SetEviction::Sketch)?;
        let caches = [cache(CacheAdmission::Always, SetEviction::Lru)?, sketch];
        let mut next = 0u64;
        let tables = shapes.iter().map(|&(bytes, rows)| {
            let first = next;
            next = next.wrapping_add(rows);
            (gpu_row_bytes(bytes), first, 0)
        });
        let tables: Vec<_> = tables.collect();
        let most_rows =
            caches.first().map_or(Vec::new(), |cache| cache.lines.pools.iter().map(|it| (it.0, 0)).collect());
        let batch = usize::try_from(proposer.options.batch).unwrap_or(usize::MAX);
        Ok(Self { batch, tables, bytes, caches, tier: HitRate::default(), most_rows, shapes })
    }

    /// Fills the tier with the hottest rows, and makes the caches, of no more lines than ids could need.
    fn begin(&mut self, proposer: &Proposer<'_>, orders: &[HotnessOrder], ids: u64) {
        let heats: Vec<_> = orders
            .iter()
            .zip(proposer.row_bytes())
            .map(|(order, bytes)| TableHotness::new(order, gpu_row_bytes(bytes).into()))
            .collect();
        let hot = allocate(&heats, MemoryBudgets { hbm: self.bytes, dram: 0 }).hbm;
        self.tables.iter_mut().zip(hot).for_each(|(table, hot)| table.2 = hot);
        // With 16 lines for each id, hardly a set has more rows than lines.
        let enough = ids.saturating_mul(16).max(1 << 16);
        for cache in &mut self.caches {
            let (ways, hold, eviction) = (cache.lines.ways as usize, cache.lines.hold, cache.eviction);
            let pool = |&(stride, lines): &(u32, u64)| {
                let lines = usize::try_from(lines.min(enough)).unwrap_or(usize::MAX);
                (stride, SetCache::new(lines, ways, eviction, Admission::Always, hold))
            };
            cache.pools = cache.lines.pools.iter().map(pool).collect();
        }
    }

    fn replay(
        &mut self,
        (range, counts): (Range<u64>, bool),
        orders: &[HotnessOrder],
        trace: &mut QueryTrace<'_>,
        watch: &mut ProposalWatch<'_>,
    ) -> Result<(), ProposalError> {
        let mut told = Told::new(if counts { "testing" } else { "warming caches" }, range.clone(), watch);
        trace.replay(range, self.batch, &mut |first, bags| {
            // Tables whose lines are alike are looked up by one launch.
            let mut launches: Vec<(u32, Batch)> = self.most_rows.iter().map(|it| (it.0, Batch::default())).collect();
            for ((bags, order), &(stride, base, hot)) in bags.iter().zip(orders).zip(&self.tables) {
                let (batch, ranks) = batch_of(bags, order, base);
                if counts {
                    for (&rank, &count) in ranks.iter().zip(&batch.counts) {
                        let (ids, is_hit) = (u64::from(count), u64::from(rank < hot));
                        add(&mut self.tier, HitRate { ids, id_hits: ids * is_hit, rows: 1, row_hits: is_hit });
                    }
                }
                if let Some((_, launch)) = launches.iter_mut().find(|launch| launch.0 == stride) {
                    launch.keys.extend(batch.keys);
                    launch.counts.extend(batch.counts);
                }
            }
            for ((stride, batch), most) in launches.iter().zip(&mut self.most_rows) {
                most.1 = most.1.max(batch.keys.len() as u64);
                for cache in &mut self.caches {
                    let mut rate = HitRate::default();
                    if let Some((_, pool)) = cache.pools.iter_mut().find(|pool| pool.0 == *stride) {
                        rate.add(pool, batch);
                    }
                    if counts {
                        add(&mut cache.rate, rate);
                    }
                }
            }
            told.at(first)
        })
    }

    /// The least bytes that an executor takes for look-ups of as many different rows as were met.
    fn least(&self, bytes: u64) -> Result<u64, ProposalError> {
        let fits = |bytes: u64| match lines_of(bytes, CacheAdmission::Sketch, &self.shapes) {
            Ok(lines) => lines.pools.iter().zip(&self.most_rows).all(|(pool, most)| pool.1 >= most.1),
            Err(_) => false,
        };
        let (mut too_few, mut enough) = (0, 1u64 << 16);
        while !fits(enough) {
            if enough > 1 << 60 {
                return Err(ProposalError::CacheTooSmall { bytes, needed: u64::MAX });
            }
            (too_few, enough) = (enough, enough * 2);
        }
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            if fits(middle) { enough = middle } else { too_few = middle }
        }
        if enough > bytes { Err(ProposalError::CacheTooSmall { bytes, needed: enough }) } else { Ok(enough) }
    }
}

/// The lines that an executor would make of so many bytes.
fn lines_of(bytes: u64, admission: CacheAdmission, shapes: &[(u32, u64)]) -> Result<GpuCacheLines, ProposalError> {
    let options = GpuOptions::default().with_cache_bytes(bytes).with_cache_admission(admission);
    GpuCacheLines::of(&options, shapes).map_err(|error| match error {
        GpuError::CacheTooSmall { bytes, needed } => ProposalError::CacheTooSmall { bytes, needed },
        other => ProposalError::Option { option: "gpu-cache", reason: other.to_string() },
    })
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use warprow_layout::DType;

    use super::*;
    use crate::HostCosts;
    use crate::trace::{Bags, RecordedQueries};

    const QUERIES: u32 = 20_000;

    /// Compares `bytes` on 20,000 queries of four ids each of 10,000 rows of 256 B, in look-ups of eight queries.
    fn compared(
        bytes: u64,
        seed: u64,
        id: impl Fn(u32, &mut fastrand::Rng) -> u32,
    ) -> Result<GpuCacheComparison, ProposalError> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bags = Bags::default();
        for query in 0..QUERIES {
            (0..4).for_each(|_| bags.ids.push(id(query, &mut random) as _));
            bags.end_query();
        }
        let shape = TableShape { name: "t".to_owned(), rows: 10_000, dim: 64, dtype: DType::F32, index_bytes: None };
        let source = Box::new(RecordedQueries::new(&bags, 0..QUERIES as usize)) as _;
        let mut trace = QueryTrace::new(vec![(vec!["t".to_owned()], source)]).unwrap();
        let options =
            ProposalOptions { batch: 8, memory: 1 << 20, costs: HostCosts::default(), ..ProposalOptions::default() };
        compare_gpu_cache(&[shape], &mut trace, &options, bytes, &mut |_| ControlFlow::Continue(()))
    }

    /// Bytes for about so many lines of rows of 256 B.
    fn lines(count: u64) -> u64 {
        58_200 + count * (256 + 16)
    }

    #[test]
    fn a_cache_is_ahead_where_popularity_moves_on_and_a_tier_where_it_stays() {
        let drifting = compared(lines(256), 1, |query, random| query / 2000 * 100 + random.u32(..100)).unwrap();
        assert!(drifting.always > 0.8 && drifting.sketch > 0.8 && drifting.tier < 0.6, "{drifting:?}");
        let steady =
            |_, random: &mut fastrand::Rng| if random.bool() { random.u32(..240) } else { random.u32(..10_000) };
        let steady = compared(lines(256), 2, steady).unwrap();
        // Counters keep the hot rows where rows come by that are wanted once.
        assert!(steady.sketch > steady.always + 0.05 && steady.tier > steady.always, "{steady:?}");
        assert_ne!(steady.ahead, Ahead::Cache, "{steady:?}");
        // What the memory holds of all rows, if nothing is popular.
        let even = compared(lines(1000), 3, |_, random| random.u32(..10_000)).unwrap();
        assert!((even.always - 0.1).abs() < 0.03 && (even.sketch - 0.1).abs() < 0.03, "{even:?}");
        assert_ne!(even.ahead, Ahead::Cache, "{even:?}");
    }

    #[test]
    fn caches_that_no_executor_takes_are_not_compared() {
        let even = |_, random: &mut fastrand::Rng| random.u32(..10_000);
        let refused = compared(10_000, 1, even).unwrap_err();
        let ProposalError::CacheTooSmall { bytes: 10_000, needed } = refused else { panic!("{refused}") };
        // That is enough for a cache, and not for the 32 different rows of a look-up.
        let refused = compared(needed, 1, even).unwrap_err();
        let ProposalError::CacheTooSmall { needed: least, .. } = refused else { panic!("{refused}") };
        assert!(least > needed);
        let least_cache = compared(least, 1, even).unwrap();
        assert_eq!(least_cache.least, least, "{least_cache:?}");
        assert!(compared(least - 1, 1, even).is_err());
    }
}
