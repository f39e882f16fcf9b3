//! Look-ups by a host executor with a cache beside look-ups without one, at shares of hits that the batches set, on a drive with a real
//! one's timing.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context, ensure};
use warprow_lookup::HostOptions;
use warprow_soft_controller::TimingProfile;
use warprow_workload::{IdShuffle, Latencies, PairedTimes, SeededRandom};

use crate::Cores;
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::lookup::{LookupSetup, Ours, Race, TABLE};

/// Shares of a batch's rows that the cache has.
pub const SHARES: [f64; 3] = [0.0, 0.5, 0.9];
/// Batches of a turn.
const TURN: u64 = 4;
/// Of so many rows one is looked up again and again.
const HOT_OF: u64 = 32;
/// Bytes that lead to a row in the cache, rounded up.
const LINE_EXTRA: u64 = 128;

/// Batches of one share of hits.
#[derive(Debug)]
pub struct HostCacheShare {
    /// The share that the batches were made for.
    pub asked: f64,
    /// The share of rows that the cache had.
    pub found: f64,
    /// Ids a second, with the cache first.
    pub pairs: PairedTimes,
    /// Batches with the cache.
    pub with: Latencies,
    /// Batches without it.
    pub without: Latencies,
}

impl HostCacheShare {
    /// Microseconds that the cache saves of a batch, in the middle; negative: it costs them.
    pub fn saved_us(&self) -> f64 {
        self.without.percentile_us(50.0) - self.with.percentile_us(50.0)
    }
}

/// All shares.
#[derive(Debug)]
pub struct HostCacheResult {
    /// By share.
    pub shares: Vec<HostCacheShare>,
    /// Rows that the cache has room for.
    pub lines: u64,
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Rows compared.
    pub checked: u64,
    /// Whether the caller and the drive had a processor each.
    pub pinned: bool,
}

/// Batches of different ids, of which a share come from few rows, in turn, and the others were not looked up for long.
struct Mixture {
    hot: IdShuffle,
    hot_rows: u64,
    cold: IdShuffle,
    cold_rows: u64,
    hot_ids: usize,
    seed: u64,
}

impl Mixture {
    fn new(setup: &LookupSetup, share: f64) -> Self {
        let hot_rows = setup.rows() / HOT_OF;
        let cold_rows = setup.rows() - hot_rows;
        Self {
            hot: IdShuffle::new(hot_rows, setup.seed),
            hot_rows,
            cold: IdShuffle::new(cold_rows, setup.seed),
            cold_rows,
            hot_ids: (f64::from(setup.batch) * share) as usize,
            seed: setup.seed,
        }
    }

    fn fill(&self, number: u64, ids: &mut [i64]) {
        let all = ids.len() as u64;
        let hot_ids = self.hot_ids as u64;
        let id = |at: u64| match at.checked_sub(hot_ids) {
            None => self.hot.id((number.wrapping_mul(hot_ids) + at) % self.hot_rows),
            Some(at) => self.hot_rows + self.cold.id((number.wrapping_mul(all - hot_ids) + at) % self.cold_rows),
        };
        ids.iter_mut().zip(0..).for_each(|(place, at)| *place = id(at) as i64);
        let mut random = SeededRandom::new(self.seed ^ number);
        for at in (1..ids.len()).rev() {
            ids.swap(at, random.below(at as u64 + 1) as usize);
        }
    }
}

/// Looks up equal batches with the cache and without it, in turns, each share of hits for about `time`, on a drive with the timing of
/// `profile` whose rows are computed. No row is in a DRAM tier.
pub fn run(setup: &LookupSetup, profile: TimingProfile, time: Duration) -> anyhow::Result<HostCacheResult> {
    setup.check()?;
    let hot_rows = setup.rows() / HOT_OF;
    let batch = u64::from(setup.batch);
    ensure!(
        batch <= hot_rows,
        "batches of {batch} ids of {} rows: a table of {} rows or more is needed",
        setup.rows(),
        batch * HOT_OF
    );
    let cores = Cores::two();
    let fixture = Fixture { media: Media::Computed, profile, ..Fixture::default() };
    let store =
        fixture.store(&[FixtureTable::new(TABLE, setup.content())], cores.as_ref()).context("no computed drive")?;
    let cache_bytes = 2 * hot_rows * ((u64::from(setup.dim) * 4).next_multiple_of(64) + LINE_EXTRA);
    let mut with = Ours::attach(&store, setup, HostOptions::default().with_cache_bytes(cache_bytes))?;
    let mut without = Ours::attach(&store, setup, HostOptions::default())?;
    let race = RefCell::new(Race::new(setup, false)?);
    let mut shares = Vec::new();
    for (share, nth) in SHARES.into_iter().zip(0u64..) {
        with.host().clear_cache();
        let warm = Mixture::new(setup, 1.0);
        let mixture = Mixture::new(setup, share);
        let fill = |number: u64, ids: &mut [i64]| mixture.fill(number, ids);
        if share > 0.0 {
            // Rows that were asked for several times stay when others pass by.
            let rounds = 3 * hot_rows.div_ceil(batch);
            let warm = |number: u64, ids: &mut [i64]| warm.fill(number, ids);
            race.borrow_mut().turn_of(&warm, &mut with, 0, rounds, &mut Latencies::new())?;
        }
        let first = nth << 40;
        let mut unmeasured = Latencies::new();
        race.borrow_mut().turn_of(&fill, &mut with, first, TURN, &mut unmeasured)?;
        race.borrow_mut().turn_of(&fill, &mut without, first, TURN, &mut unmeasured)?;
        let counted = |ours: &Ours| ours.host().cache_statistics().map_or((0, 0), |it| (it.hits, it.misses));
        let before = counted(&with);
        let (mut cached, mut uncached) = (Latencies::new(), Latencies::new());
        let number = |pair: u32| first + (u64::from(pair) + 1) * TURN;
        let pairs = PairedTimes::alternate_for(
            time,
            3,
            |pair| race.borrow_mut().turn_of(&fill, &mut with, number(pair), TURN, &mut cached),
            |pair| race.borrow_mut().turn_of(&fill, &mut without, number(pair), TURN, &mut uncached),
        )?;
        let after = counted(&with);
        let (hits, misses) = (after.0 - before.0, after.1 - before.1);
        let found = hits as f64 / (hits + misses).max(1) as f64;
        shares.push(HostCacheShare { asked: share, found, pairs, with: cached, without: uncached });
    }
    let lines = with.host().cache_statistics().map_or(0, |statistics| statistics.lines);
    let checked = race.borrow().checked;
    Ok(HostCacheResult { shares, lines, cache_bytes, checked, pinned: cores.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: LookupSetup = LookupSetup { size: 8 << 20, dim: 128, alpha: 0.0, batch: 200, hot: 0.0, seed: 3 };

    #[test]
    fn batches_find_the_share_that_they_are_made_for() {
        let result = run(&SETUP, TimingProfile::None, Duration::ZERO).unwrap();
        assert!(result.lines >= 2 * 512, "{}", result.lines);
        assert_eq!(result.shares.len(), SHARES.len());
        for share in &result.shares {
            assert!((share.found - share.asked).abs() < 0.02, "{share:?}");
            assert!(share.pairs.pairs().len() == 3 && share.with.count() == 12 && share.without.count() == 12);
        }
        assert!(result.checked >= 3 * 2 * 4 * TURN * 200);
    }

    #[test]
    fn ids_of_a_batch_differ() {
        for share in SHARES {
            let mixture = Mixture::new(&SETUP, share);
            let mut ids = [0; 200];
            mixture.fill(7, &mut ids);
            assert_eq!(ids.iter().filter(|&&id| id < 512).count(), (200.0 * share) as usize);
            ids.sort_unstable();
            assert!(ids.windows(2).all(|two| two[0] < two[1]) && ids[199] < 16384);
        }
    }

    #[test]
    fn a_table_of_too_few_rows_is_refused() {
        let error = run(&LookupSetup { batch: 513, ..SETUP }, TimingProfile::None, Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("16416 rows"), "{error}");
    }
}
