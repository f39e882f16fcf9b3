//! Rows that are listed for DRAM: which of a table an executor keeps there, and reading them.

use std::sync::{Arc, Mutex, PoisonError};

use warprow_store::StoreError;
use warprow_store::view::{StoreView, TableVersion, lock};

use crate::prepare::ReadPacer;
use crate::stage::ChosenRanks;

/// The ranks of a table that are listed for DRAM, for an executor with so many bytes for rows there. `None`: there is no list, or none
/// that can be used.
pub fn usable_list(store: &StoreView, located: &TableVersion, dram_bytes: u64) -> Option<Vec<u64>> {
    if dram_bytes == 0 {
        return None;
    }
    store.dram_list(located).unwrap_or_else(|error| {
        // A list is a hint. Without it the first ranks are kept.
        tracing::warn!("{error}");
        None
    })
}

/// Chooses `count` of a table's ranks from `first` on: those that `list` begins with, and then the lowest.
///
/// # Errors
/// [`StoreError::Allocate`].
pub fn choose_ranks(
    located: &TableVersion,
    first: u64,
    list: &[u64],
    count: u64,
) -> Result<Arc<ChosenRanks>, StoreError> {
    let rows = located.table().rows;
    let lacking = || StoreError::Allocate {
        what: "the directory of chosen rows in DRAM",
        bytes: ChosenRanks::bytes(rows),
        source: std::io::ErrorKind::OutOfMemory.into(),
    };
    ChosenRanks::new(first..rows, list, count).map(Arc::new).ok_or_else(lacking)
}

/// Rows that are read, or copied, at once.
const AT_ONCE: usize = 1 << 16;

/// Where the rows of a table that are chosen for DRAM come from, and what they are compared with.
pub struct ChosenRows<'a> {
    /// The table.
    pub located: &'a TableVersion,
    /// Which rows.
    pub chosen: &'a ChosenRanks,
    /// Checksums of the table's rows by rank, if those that are read are to be compared.
    pub crcs: Option<&'a [u32]>,
    /// Rows by rank that need not be read, because another tier in memory has them.
    pub known: &'a (dyn Fn(u64) -> Option<&'a [u8]> + Sync),
}

impl ChosenRows<'_> {
    /// Hands each row, without updates, to `take` with its number among the chosen rows, in no particular order and on any thread. Rows
    /// that are not known are read from drives, as fast as `pace` lets them.
    ///
    /// # Errors
    /// The error of a row that is not what was written, unless an update overrides the row; [`StoreError::Interrupted`] if the pacer was
    /// stopped; errors of reading.
    pub fn read(
        &self,
        store: &StoreView,
        take: &(dyn Fn(u64, &[u8]) + Sync),
        pace: &ReadPacer,
    ) -> Result<(), StoreError> {
        let mut ranks = self.chosen.ranks();
        let mut first = 0;
        loop {
            let part: Vec<u64> = ranks.by_ref().take(AT_ONCE).collect();
            if part.is_empty() {
                return Ok(());
            }
            let mut unknown = Vec::new();
            for (place, &rank) in (first..).zip(&part) {
                match (self.known)(rank) {
                    Some(row) => take(place, row),
                    None => unknown.push((place, rank)),
                }
            }
            first += part.len() as u64;
            if pace.go_on().is_break() {
                return Err(StoreError::Interrupted);
            }
            if !unknown.is_empty() {
                self.read_unknown(store, &unknown, take, pace)?;
            }
        }
    }

    /// Reads rows, by their places and ranks.
    fn read_unknown(
        &self,
        store: &StoreView,
        unknown: &[(u64, u64)],
        take: &(dyn Fn(u64, &[u8]) + Sync),
        pace: &ReadPacer,
    ) -> Result<(), StoreError> {
        let ranks: Vec<u64> = unknown.iter().map(|&(_, rank)| rank).collect();
        let damaged = Mutex::new(Vec::new());
        let take = |position: usize, row: &[u8]| {
            let Some(&(place, rank)) = unknown.get(position) else { return };
            take(place, row);
            let stored = self.crcs.and_then(|crcs| crcs.get(rank as usize));
            if stored.is_some_and(|&stored| stored != warprow_layout::row_crc(rank, row)) {
                lock(&damaged).push(rank);
            }
        };
        match pace.rate() {
            Some(rate) => store.read_rows_slowly(self.located, &ranks, rate, &mut || pace.go_on(), &take)?,
            None => store.read_rows(self.located, &ranks, &take)?,
        }
        let damaged = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
        if damaged.is_empty() {
            return Ok(());
        }
        // What is stored in the place of an updated row does not matter.
        let overridden = store.overridden(self.located).unwrap_or_default();
        match damaged.iter().filter(|rank| !overridden.contains(rank)).min() {
            Some(&rank) => Err(store.damaged_row(self.located, rank)),
            None => Ok(()),
        }
    }
}
