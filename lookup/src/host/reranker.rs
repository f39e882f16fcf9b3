//! A DRAM tier that follows what is looked up: a thread lists the rows that look-ups ask for most, reads those that are not in DRAM
//! yet, and has the host go over to them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use warprow_store::view::lock;
use warprow_store::{KeyIndex, RerankOptions, StoreError};

use super::attached::{Attached, HostTable};
use super::current::Hosting;
use super::ending::Ending;
use super::executor::HostExecutor;
use crate::popularity::PopularRow;
use crate::prepare::PrepareOptions;

/// How a [`Reranker`] works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RerankerOptions {
    /// How long it rests between two rounds.
    pub interval: Duration,
    /// Bytes a second that it reads from drives and writes to them, at most. At most as many bytes of rows are exchanged in a round as
    /// this reads in an interval.
    pub bytes_per_second: u64,
    /// A row takes the place of another if it was counted so many times as often, at least 1, and twice at least.
    pub newcomer_factor: f64,
    /// How long a round waits for look-ups that began before, so that memory of the tier before is freed; else that is done later.
    pub patience: Duration,
}

impl Default for RerankerOptions {
    /// Each minute, 64 MiB a second; a newcomer has come a quarter more often.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(60),
            bytes_per_second: 64 << 20,
            newcomer_factor: 1.25,
            patience: Duration::from_secs(5),
        }
    }
}

impl RerankerOptions {
    /// Rests so long between two rounds.
    #[must_use]
    pub fn with_interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Reads and writes at most so many bytes a second.
    #[must_use]
    pub fn with_rate(self, bytes_per_second: u64) -> Self {
        Self { bytes_per_second, ..self }
    }

    /// Exchanges a row for one that was counted so many times as often.
    #[must_use]
    pub fn with_newcomer_factor(self, newcomer_factor: f64) -> Self {
        Self { newcomer_factor, ..self }
    }

    fn check(&self) -> Result<(), StoreError> {
        let refused = |reason: &str| Err(StoreError::ExecutorOptions { reason: reason.to_owned() });
        match () {
            () if self.newcomer_factor.is_nan() || self.newcomer_factor < 1.0 => {
                refused("a newcomer of a DRAM tier that follows has come 1.0 times as often as who leaves, or more")
            }
            () if self.bytes_per_second == 0 => {
                refused("at a rate of 0 bytes a second no DRAM tier follows: give it a rate")
            }
            () => Ok(()),
        }
    }
}

/// What a round of a [`Reranker`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RerankRound {
    /// Tables with another list now, and how many rows of each came to DRAM; as many left it. Empty: nothing was worth it, and
    /// nothing was written.
    pub moved: Vec<(String, u64)>,
}

impl RerankRound {
    /// Rows that came to DRAM, of all tables.
    pub fn rows(&self) -> u64 {
        self.moved.iter().map(|(_, rows)| rows).sum()
    }
}

/// A thread that has a host's DRAM tier follow what is looked up. When it is dropped, the round that runs is ended, and the thread.
#[derive(Debug)]
pub struct Reranker {
    ending: Arc<Ending>,
    thread: Option<JoinHandle<()>>,
}

impl HostExecutor {
    /// Has a thread look each [`interval`](RerankerOptions::interval) which rows were looked up most, list them for DRAM
    /// ([`Store::rerank`](warprow_store::Store::rerank)), read those that are not there yet, and have this host go over to them. Look-ups
    /// go on meanwhile, and none waits. `report` is called on that thread after each round. A round that fails, such as beside a
    /// load, leaves DRAM as it was; the next one is made after the next interval.
    ///
    /// Only tables of which some rows are in DRAM and some are not are followed; how much memory each table has stays as it is. While
    /// a round fills the tier, both tiers take memory.
    ///
    /// # Errors
    /// [`StoreError::ExecutorOptions`] if the host counts nothing, has a reranker already, or the options make no sense;
    /// [`StoreError::Allocate`] if no thread can be had.
    pub fn start_reranker(
        &self,
        options: &RerankerOptions,
        mut report: impl FnMut(Result<RerankRound, StoreError>) + Send + 'static,
    ) -> Result<Reranker, StoreError> {
        self.check_counted(options)?;
        let mut place = lock(&self.inner.reranking);
        if place.strong_count() > 0 {
            let reason = "the host has a reranker: drop it first".to_owned();
            return Err(StoreError::ExecutorOptions { reason });
        }
        let ending = Arc::<Ending>::default();
        let hosting: Weak<Hosting> = Arc::downgrade(&self.inner);
        let (options, on) = (options.clone(), ending.clone());
        let work = move || {
            while on.rest(options.interval) {
                // The host is not kept by what follows it.
                let Some(inner) = hosting.upgrade() else { return };
                let round = Self { inner }.round(&options, &on.over);
                if matches!(round, Err(StoreError::Interrupted)) {
                    continue;
                }
                if let Err(error) = &round {
                    tracing::warn!(%error, "a DRAM tier does not follow what is looked up");
                }
                report(round);
            }
        };
        let thread = std::thread::Builder::new().name("warprow-rerank".to_owned()).spawn(work);
        let thread = thread.map_err(|source| StoreError::Allocate {
            what: "a thread that lists rows for DRAM",
            bytes: 0,
            source,
        })?;
        *place = Arc::downgrade(&ending);
        Ok(Reranker { ending, thread: Some(thread) })
    }

    /// Makes one round of a [`Reranker`] now, on this thread.
    ///
    /// # Errors
    /// [`StoreError::ExecutorOptions`] if the host counts nothing, or the options make no sense; what
    /// [`Store::rerank`](warprow_store::Store::rerank), [`prepare`](Self::prepare) and [`adopt`](Self::adopt) say, with DRAM as it was.
    pub fn rerank_by_counts(&self, options: &RerankerOptions) -> Result<RerankRound, StoreError> {
        self.check_counted(options)?;
        self.round(options, &Arc::default())
    }

    fn check_counted(&self, options: &RerankerOptions) -> Result<(), StoreError> {
        if self.inner.current().counters.is_none() {
            let reason = "the host counts no look-ups: attach it with HostOptions::with_counters".to_owned();
            return Err(StoreError::ExecutorOptions { reason });
        }
        options.check()
    }

    /// A round, which ends soon once `stop` is true.
    fn round(&self, options: &RerankerOptions, stop: &Arc<AtomicBool>) -> Result<RerankRound, StoreError> {
        let before = self.inner.current();
        let mut round = RerankRound::default();
        let interval = options.interval.as_secs_f64().max(1.0);
        let mut bytes = (options.bytes_per_second as f64 * interval) as u64;
        for table in &before.tables {
            let row_bytes = u64::from(table.located.table().row_bytes()).max(1);
            let Some((list, moved)) = before.exchange(table, options.newcomer_factor, bytes / row_bytes)? else {
                continue;
            };
            bytes = bytes.saturating_sub(moved * row_bytes);
            if stop.load(Ordering::Relaxed) {
                return Err(StoreError::Interrupted);
            }
            let name = &table.located.table().name;
            let rerank = RerankOptions::new(name).with_ranks(&list).with_rate(options.bytes_per_second);
            before.store.store().rerank(&rerank)?;
            round.moved.push((name.clone(), moved));
        }
        if round.moved.is_empty() {
            return Ok(round);
        }
        let prepare = PrepareOptions::default().with_rate(options.bytes_per_second);
        let upcoming = self.prepare_after(&before, &prepare, prepare.pace().until(stop.clone()))?;
        self.adopt_after(Some(&before), upcoming, options.patience)?;
        Ok(round)
    }
}

impl Attached {
    /// Which rows of a table are to be in DRAM, the most popular first, and how many of them are not there yet, at most `most`;
    /// `None`: those that are there.
    fn exchange(&self, table: &HostTable, factor: f64, most: u64) -> Result<Option<(Vec<u64>, u64)>, StoreError> {
        let (rows, hot) = (table.located.table().rows, table.hot_rows);
        let Some(counters) = self.counters.as_ref().filter(|_| 0 < hot && hot < rows && most > 0) else {
            return Ok(None);
        };
        let Some(popular) = counters.popular(&table.located.table().name, usize::MAX) else { return Ok(None) };
        let counts = self.by_rank(table, &popular)?;
        let mut newcomers: Vec<(u64, u64)> = counts
            .iter()
            .filter(|&(&rank, _)| table.place(rank).is_none())
            .map(|(&rank, &count)| (rank, count))
            .collect();
        newcomers.sort_unstable_by_key(|&(rank, count)| (Reverse(count), rank));
        let mut members: Vec<(u64, u64)> = match &table.chosen {
            Some(chosen) => chosen.ranks().map(|rank| (rank, 0)).collect(),
            None => (0..hot).map(|rank| (rank, 0)).collect(),
        };
        members.iter_mut().for_each(|(rank, count)| *count = counts.get(rank).copied().unwrap_or(0));
        // Those that came least often leave first; of several those of the highest ranks, which were hottest least.
        members.sort_unstable_by_key(|&(rank, count)| (count, Reverse(rank)));
        let is_worth = |newcomer: u64, leaver: u64| newcomer >= 2 && newcomer as f64 >= leaver as f64 * factor;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let pairs = members.iter_mut().zip(&newcomers).take(most);
        let mut moved = 0;
        for (member, newcomer) in pairs.take_while(|(member, newcomer)| is_worth(newcomer.1, member.1)) {
            *member = *newcomer;
            moved += 1;
        }
        if moved == 0 {
            return Ok(None);
        }
        members.sort_unstable_by_key(|&(rank, count)| (Reverse(count), rank));
        Ok(Some((members.into_iter().map(|(rank, _)| rank).collect(), moved)))
    }

    /// The counts of popular rows by their ranks, without those that the table does not have.
    fn by_rank(&self, table: &HostTable, popular: &[PopularRow]) -> Result<HashMap<u64, u64>, StoreError> {
        let order = self.order(table)?;
        let ids: Vec<u64> = popular.iter().map(|row| row.id).collect();
        let positions = match &order.sparse {
            Some(sparse) => sparse.positions_of(&ids),
            None => ids,
        };
        let rows = table.located.table().rows;
        let rank_of = |position: u64| match &order.ranks {
            _ if position == KeyIndex::ABSENT || position >= rows => None,
            Some(ranks) => ranks.get(position),
            None => Some(position),
        };
        let pairs = positions.into_iter().zip(popular);
        Ok(pairs.filter_map(|(position, row)| Some((rank_of(position)?, row.count))).collect())
    }
}

impl Drop for Reranker {
    fn drop(&mut self) {
        self.ending.end();
        let Some(thread) = self.thread.take() else { return };
        // Dropped by what it calls itself, it ends when that returns.
        if thread.thread().id() != std::thread::current().id() {
            // What it panicked with was told where it did.
            let _ = thread.join();
        }
    }
}
