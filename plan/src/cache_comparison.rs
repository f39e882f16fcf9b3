//! A row cache beside static tiers of the same bytes: which of them finds more of a trace's ids.

use serde::Serialize;

use crate::budget::MemoryBudgets;
use crate::error::ProposalError;
use crate::memory_rates::{least_bytes, memory_rates};
use crate::options::{GroupRows, ProposalOptions, TableShape};
use crate::progress::ProposalWatch;
use crate::propose::{Proposer, propose};
use crate::tier_proposal::HitInterval;
use crate::trace::QueryTrace;

/// What memory of one size finds as the row cache of a host executor, and as a DRAM tier of the rows that were hottest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CacheComparison {
    /// Bytes of memory; of a cache, lines and what leads to them count.
    pub bytes: u64,
    /// The share of the ids held out whose rows the cache has. It has seen the part learnt from, look-up by look-up.
    pub cache: f64,
    /// The share of the ids held out whose rows the tier has, which holds the hottest rows of the part learnt from.
    pub tier: f64,
    /// Of the different rows of the look-ups held out, the share that the cache has.
    pub cache_rows: f64,
    /// Of the different rows of the look-ups held out, the share that the tier has.
    pub tier_rows: f64,
    /// The interval of the tier's share in the queries that follow the trace.
    pub interval: Option<HitInterval>,
    /// Which of them is ahead by more than half the width of that interval.
    pub ahead: Ahead,
}

/// Which of two ways to use memory finds more ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ahead {
    /// The row cache.
    Cache,
    /// The static tier.
    Tier,
    /// Neither by more than the error.
    Neither,
}

impl CacheComparison {
    /// Half the width of the interval of the tier's share; `None`: it is not known.
    pub fn error(&self) -> Option<f64> {
        self.interval.map(|interval| (interval.high - interval.low) / 2.0)
    }
}

/// Compares a row cache of `bytes` bytes with a DRAM tier of as many, for look-ups of `tables`, by `trace`, whose columns are theirs in
/// the same order. Both learn from the first part, and are counted on the part held out ([`ProposalOptions::held_out`]). The budgets
/// in `options` do not matter.
///
/// # Errors
/// [`ProposalError::CacheTooSmall`] if an executor would refuse the cache.
pub fn compare_cache(
    tables: &[TableShape],
    trace: &mut QueryTrace<'_>,
    options: &ProposalOptions,
    bytes: u64,
    watch: &mut ProposalWatch<'_>,
) -> Result<CacheComparison, ProposalError> {
    let budgets = MemoryBudgets { hbm: 0, dram: bytes };
    let options = ProposalOptions { budgets, group: GroupRows::Off, ..options.clone() };
    let needed = least_bytes(&Proposer::new(tables, trace, &options)?);
    if bytes < needed {
        return Err(ProposalError::CacheTooSmall { bytes, needed });
    }
    let rates = memory_rates(tables, trace, &options, &[bytes], watch)?;
    let rate = rates.rates.first().ok_or(ProposalError::NothingInTables)?;
    let proposal = propose(tables, trace, &options, watch)?;
    let interval = proposal.tiers.expected.intervals.first().filter(|it| it.high - it.low < 1.0).copied();
    let compared = CacheComparison {
        bytes,
        cache: rate.cache,
        tier: rate.dram,
        cache_rows: rate.cache_rows,
        tier_rows: rate.dram_rows,
        interval,
        ahead: Ahead::Neither,
    };
    Ok(CacheComparison { ahead: ahead(compared.cache - compared.tier, compared.error()), ..compared })
}

/// Which is ahead, where a cache's share is larger than a tier's by `by`, and the tier's has that error.
pub(crate) fn ahead(by: f64, error: Option<f64>) -> Ahead {
    match error {
        Some(error) if by > error => Ahead::Cache,
        Some(error) if -by > error => Ahead::Tier,
        _ => Ahead::Neither,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use warprow_layout::DType;

    use super::*;
    use crate::HostCosts;
    use crate::trace::{Bags, RecordedQueries};

    /// Compares 256 rows of memory, and the cache's lines for somewhat fewer, on 20,000 queries of four ids each of 10,000 rows.
    fn compared_with(
        bytes: u64,
        seed: u64,
        id: impl Fn(u32, &mut fastrand::Rng) -> u32,
    ) -> Result<CacheComparison, ProposalError> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bags = Bags::default();
        for query in 0..20_000 {
            (0..4).for_each(|_| bags.ids.push(id(query, &mut random) as _));
            bags.end_query();
        }
        let shape = TableShape { name: "t".to_owned(), rows: 10_000, dim: 64, dtype: DType::F32, index_bytes: None };
        let source = Box::new(RecordedQueries::new(&bags, 0..20_000)) as _;
        let mut trace = QueryTrace::new(vec![(vec!["t".to_owned()], source)]).unwrap();
        let options =
            ProposalOptions { batch: 8, memory: 1 << 20, costs: HostCosts::default(), ..ProposalOptions::default() };
        compare_cache(&[shape], &mut trace, &options, bytes, &mut |_| ControlFlow::Continue(()))
    }

    fn compared(seed: u64, id: impl Fn(u32, &mut fastrand::Rng) -> u32) -> CacheComparison {
        compared_with(256 * 256, seed, id).unwrap()
    }

    #[test]
    fn caches_that_no_executor_takes_are_not_compared() {
        let even = |_, random: &mut fastrand::Rng| random.u32(..10_000);
        let refused = compared_with(1000, 1, even).unwrap_err();
        let ProposalError::CacheTooSmall { bytes: 1000, needed } = refused else { panic!("{refused}") };
        // 64 lines, and what leads to them.
        assert!((64 * 256..64 * 256 + 8192).contains(&needed), "{needed}");
        compared_with(needed, 1, even).unwrap();
        assert!(compared_with(needed - 1, 1, even).is_err());
    }

    #[test]
    fn a_cache_is_ahead_where_popularity_moves_on_and_a_tier_where_it_stays() {
        // The 100 rows that are asked for move on with every tenth of the trace: what was hot is never asked for again.
        let drifting = compared(1, |query, random| query / 2000 * 100 + random.u32(..100));
        assert!(drifting.cache > 0.8 && drifting.tier < 0.5, "{drifting:?}");
        // Half of the ids are of 240 rows, evenly, and half of all rows: rows that come once push hot ones out of a cache.
        let steady = compared(2, |_, random| if random.bool() { random.u32(..240) } else { random.u32(..10_000) });
        assert!((0.45..0.56).contains(&steady.tier) && steady.cache < steady.tier, "{steady:?}");
        assert_eq!(steady.ahead, Ahead::Tier, "{steady:?}");
        assert!(steady.error().is_some_and(|error| steady.tier - steady.cache > error));
        // Nothing is popular: each has what it holds of all rows.
        let even = compared(3, |_, random| random.u32(..10_000));
        assert!((even.cache - even.tier).abs() < 0.02 && even.ahead != Ahead::Cache, "{even:?}");
        // With a hot set that changes by a hundredth at a time, the error is known, and the cache is ahead by more.
        let slow = compared(4, |query, random| query / 100 + random.u32(..150));
        assert_eq!(slow.ahead, Ahead::Cache, "{slow:?}");
    }

    #[test]
    fn what_is_ahead_by_less_than_the_error_is_not_ahead() {
        let error = Some(0.25);
        assert_eq!(
            [0.5, 0.25, -0.25, -0.5].map(|by| ahead(by, error)),
            [Ahead::Cache, Ahead::Neither, Ahead::Neither, Ahead::Tier]
        );
        assert_eq!([1.0, -1.0].map(|by| ahead(by, None)), [Ahead::Neither; 2]);
    }
}
