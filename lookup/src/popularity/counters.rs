//! Counts of ids, by table.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, TryLockError};

use warprow_cache::FrequentKeys;
use warprow_store::StoreError;
use warprow_store::view::lock;

use super::counting::{CountingThread, IdFeed, Mailbox};
use super::options::CounterOptions;

/// Tries to leave ids in the mailbox, before they are kept for the next look-up.
const TRIES: u32 = 64;

/// A row that was looked up often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PopularRow {
    /// The id, or the key, an `i64` by its bits.
    pub id: u64,
    /// How many of the ids that were counted since were this one: too low by as much as memory was short, and halved from time to time.
    pub count: u64,
}

/// An id that was looked up: the number of its table among those that are counted, and the id, an `i64` by its bits.
pub type SampledId = (u16, u64);

/// Counts which rows of an executor's tables are looked up, by a thread of its own. Tables are known by their names, so that counts
/// outlive generations.
#[derive(Debug)]
pub struct RowCounters {
    options: CounterOptions,
    names: Vec<String>,
    tables: Arc<[Mutex<TableCounts>]>,
    mailbox: Arc<Mailbox>,
    _thread: CountingThread,
}

/// Counts of a table.
#[derive(Debug)]
pub(super) struct TableCounts {
    ids: FrequentKeys,
    /// Ids to count until all counts are halved; `None`: never.
    left: Option<u64>,
    period: u64,
}

impl TableCounts {
    pub(super) fn add(&mut self, id: u64) {
        self.ids.add(id);
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                *left = self.period;
                self.ids.halve();
            }
        }
    }
}

impl RowCounters {
    /// Counts for tables of these names.
    ///
    /// # Errors
    /// [`StoreError::ExecutorOptions`] for options that make no sense for so many tables; [`StoreError::Allocate`] if no thread can be
    /// had.
    pub fn new(options: CounterOptions, names: Vec<String>) -> Result<Self, StoreError> {
        Self::fed(options, names, Box::new(|_| 0))
    }

    /// As [`new`](Self::new), with ids that also come from elsewhere: `feed` gives those that are there, without waiting, and returns how
    /// many were lost since it was called before.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn fed(options: CounterOptions, names: Vec<String>, feed: Box<IdFeed>) -> Result<Self, StoreError> {
        // Numbers of tables are of 16 bits; look-ups take no more tables either.
        let names: Vec<String> = names.into_iter().take(usize::from(u16::MAX)).collect();
        let share = options.share(names.len())?;
        let table = || {
            let ids = FrequentKeys::new(share);
            let period = options.halved_after.unwrap_or(8 * ids.room() as u64);
            Mutex::new(TableCounts { ids, left: (period != 0).then_some(period), period })
        };
        let tables: Arc<[_]> = names.iter().map(|_| table()).collect();
        let mailbox = Arc::new(Mailbox::new(feed));
        let thread = CountingThread::start(mailbox.clone(), tables.clone()).map_err(|source| StoreError::Allocate {
            what: "a thread that counts rows",
            bytes: 0,
            source,
        })?;
        Ok(Self { options, names, tables, mailbox, _thread: thread })
    }

    /// The number of a table; `None`: it is not counted, because it came later under a name of its own.
    pub fn number(&self, table: &str) -> Option<u16> {
        self.names.iter().position(|name| name == table).map(|number| number as u16)
    }

    /// One id in so many is to be counted.
    pub fn every(&self) -> u32 {
        self.options.every
    }

    /// Takes sampled ids to be counted, without waiting for anybody; returns whether it did. What finds no room is lost.
    pub fn take(&self, sampled: &[SampledId]) -> bool {
        // Whoever has the mailbox locked copies some ids, or swaps two pointers.
        for _ in 0..TRIES {
            match self.mailbox.ids.try_lock() {
                Ok(mut ids) => {
                    let room = Mailbox::ROOM.saturating_sub(ids.len()).min(sampled.len());
                    ids.extend_from_slice(sampled.get(..room).unwrap_or_default());
                    self.lose(sampled.len() - room);
                    return true;
                }
                Err(TryLockError::Poisoned(_)) => return true,
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        false
    }

    /// Notes that so many sampled ids were not counted.
    pub fn lose(&self, ids: usize) {
        if ids > 0 {
            self.mailbox.lost.fetch_add(ids as u64, Ordering::Relaxed);
        }
    }

    /// How many sampled ids were not counted, because they came faster than the thread counts.
    pub fn lost(&self) -> u64 {
        self.mailbox.lost.load(Ordering::Relaxed)
    }

    /// The rows of `table` that were counted most often, at most `most` of them, the most popular first; of equal counts the lower id
    /// first. `None`: no such table is counted.
    pub fn popular(&self, table: &str, most: usize) -> Option<Vec<PopularRow>> {
        let counts = self.tables.get(usize::from(self.number(table)?))?;
        // What is in the mailbox counts too.
        self.mailbox.count(&self.tables);
        let mut rows: Vec<PopularRow> =
            lock(counts).ids.iter().map(|(id, count)| PopularRow { id, count: count.into() }).collect();
        let order = |row: &PopularRow| (std::cmp::Reverse(row.count), row.id);
        if most < rows.len() {
            rows.select_nth_unstable_by_key(most, order);
            rows.truncate(most);
        }
        rows.sort_unstable_by_key(order);
        Some(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(options: CounterOptions) -> RowCounters {
        RowCounters::new(options, vec!["a".to_owned(), "b".to_owned()]).unwrap()
    }

    #[test]
    fn counted_ids_come_back_the_most_popular_first() {
        let counters = counters(CounterOptions::new(1 << 20).with_every(1));
        for (id, times) in [(7, 3), (9, 5), (1 << 63, 4), (2, 3)] {
            (0..times).for_each(|_| assert!(counters.take(&[(1, id)])));
        }
        let rows = |most| -> Vec<(u64, u64)> {
            counters.popular("b", most).unwrap().iter().map(|row| (row.id, row.count)).collect()
        };
        assert_eq!(rows(10), [(9, 5), (1 << 63, 4), (2, 3), (7, 3)]);
        assert_eq!(rows(3), [(9, 5), (1 << 63, 4), (2, 3)]);
        assert_eq!(rows(0), []);
        assert_eq!(counters.popular("a", 10).unwrap(), []);
        assert_eq!((counters.popular("c", 10), counters.number("c"), counters.lost()), (None, None, 0));
    }

    #[test]
    fn counts_are_halved_and_memory_is_bounded() {
        let options = CounterOptions::new(2 * FrequentKeys::LEAST_BYTES).with_every(1).with_halved_after(100);
        let counters = counters(options);
        (0..150).for_each(|_| assert!(counters.take(&[(0, 3)])));
        assert_eq!(counters.popular("a", 1).unwrap()[0].count, 100);
        // Far more ids than there is room for, each once: one that comes often stays.
        for id in 0..50_000u64 {
            let mut taken = false;
            while !taken {
                taken = counters.take(&[(0, 1000 + id), (0, 5)]);
            }
            if id % 1000 == 0 {
                counters.popular("a", 0);
            }
        }
        let rows = counters.popular("a", usize::MAX).unwrap();
        assert!(rows[0].id == 5 && rows.len() <= 1024, "{} rows, {:?}", rows.len(), rows[0]);
    }

    #[test]
    fn too_little_memory_is_named() {
        let refused = RowCounters::new(CounterOptions::new(1000), vec!["a".to_owned()]);
        assert!(
            matches!(&refused, Err(StoreError::ExecutorOptions { reason }) if reason.contains("12288")),
            "{refused:?}"
        );
        let refused = RowCounters::new(CounterOptions::new(1 << 20).with_every(0), Vec::new());
        assert!(matches!(&refused, Err(StoreError::ExecutorOptions { .. })), "{refused:?}");
    }
}
