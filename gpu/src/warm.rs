//! Rows that are brought into the cache before anybody looks them up, and rows that stay there.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use warprow_store::StoreError;
use warprow_store::view::lock;

use crate::error::GpuError;
use crate::executor::GpuExecutor;
use crate::report::GpuReport;
use crate::row_cache::GpuCache;
use crate::row_names::RowNames;
use crate::table::GpuTable;
use crate::view::View;
use crate::warming::Warming;

/// Looks at a batch until the cache has all of it, or until looking again brings no more.
const LOOKS: u32 = 4;
/// Looks for rows that are to be pinned, besides those for which lines are held.
const PIN_LOOKS: u64 = 4;

/// What [`GpuExecutor::warm`] has come to. Each id is counted once, as often as it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuWarmed {
    /// Ids that were given.
    pub ids: u64,
    /// Ids whose row the cache had when the id was looked at last.
    pub cached: u64,
    /// Ids whose row lies in GPU memory or DRAM anyway: of a tier, updated, or of a created key. Of rows in DRAM that are cached
    /// ([`GpuOptions::cached_dram`](crate::GpuOptions::cached_dram)), those that found no line.
    pub in_memory: u64,
    /// Ids that the table does not have.
    pub missing: u64,
    /// Ids whose row found no line: all in which it may lie are pinned, or held for look-ups under way.
    pub left: u64,
}

/// What [`GpuExecutor::pin`] has come to, by different rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuPinned {
    /// Rows that are pinned now and were not before.
    pub pinned: u64,
    /// Rows that were pinned before.
    pub already: u64,
    /// Rows of tiers in GPU memory, or in DRAM where such rows are not cached, which stay there anyway.
    pub in_memory: u64,
    /// Different ids that the table does not have.
    pub missing: u64,
    /// Rows that found no line in the time there was, because look-ups under way hold all in which they may lie: pin them again.
    pub left: u64,
}

impl GpuExecutor {
    /// Brings rows of `table` into the cache: looks the ids up, the last first, so that the first are there at the end
    /// where not all have room. Each row that is read gets a line, whatever the cache's admission says, if lines of its set may
    /// be given away. `ids` are ids of the table, or keys by their bits, the hottest first. Look-ups go on meanwhile.
    ///
    /// It takes a slot's queue pairs on each drive for as long as it runs, and up to 128 MiB of GPU memory. No stream may be
    /// being captured meanwhile.
    ///
    /// # Errors
    /// [`GpuError::NoCache`]; [`GpuError::Unsupported`] if no row of the table is cached; those of
    /// [`plan`](Self::plan); [`GpuError::RowsFailed`] if rows could not be read. What was brought in before stays.
    pub fn warm(&self, table: &str, ids: &[u64]) -> Result<GpuWarmed, GpuError> {
        let (cache, view) = self.cached()?;
        let table = cached_table(&view, table)?;
        let attached = &self.inner;
        let names = RowNames::read(&attached.store, &table.located, attached.options.check_keys)?;
        let warming = Warming::new(attached, cache, table, names.id_type())?;
        // Of ids in DRAM, those of updated rows cannot come in; then looking again brings no more.
        let outside = |report: &GpuReport| report.ids_ssd + if table.caches_dram { report.ids_dram } else { 0 };
        let mut warmed = GpuWarmed::default();
        for batch in ids.rchunks(warming.most_ids()) {
            let mut report = warming.look(batch)?;
            for _ in 1..LOOKS {
                let before = outside(&report);
                if before == 0 {
                    break;
                }
                report = warming.look(batch)?;
                if outside(&report) >= before {
                    break;
                }
            }
            warmed.ids += report.ids;
            warmed.cached += report.ids_cached;
            warmed.in_memory += report.ids_hbm + report.ids_dram;
            warmed.missing += report.missing;
            warmed.left += report.ids_ssd;
        }
        Ok(warmed)
    }

    /// Brings rows of `table` into the cache as [`warm`](Self::warm) does, and has them stay until [`unpin`](Self::unpin).
    ///
    /// Of the 8 lines in which a row may lie, 6 may be pinned, and which rows share lines is as good as random: up to 3% of
    /// the cache's lines, it is unlikely that rows are refused. Who must keep more keeps it in GPU memory by [`GpuOptions::with_hbm_rows`](crate::GpuOptions::with_hbm_rows).
    ///
    /// Pins are of rows of the tables that are read now. After [`adopt`](Self::adopt) pin anew; the lines that
    /// were pinned for tables which nobody reads any more are given back then, or when tables are prepared. A row that was updated
    /// is found updated. [`clear_cache`](Self::clear_cache), and tables that are prepared when the cache has no numbers left,
    /// empty pinned lines too.
    ///
    /// # Errors
    /// [`GpuError::CachePinsFull`] if too many rows of one set would be pinned, before anything is changed; those of `warm`:
    /// what was pinned before the error stays.
    pub fn pin(&self, table: &str, ids: &[u64]) -> Result<GpuPinned, GpuError> {
        let (cache, view) = self.cached()?;
        let table = cached_table(&view, table)?;
        let attached = &self.inner;
        let names = RowNames::read(&attached.store, &table.located, attached.options.check_keys)?;
        let mut report = GpuPinned::default();
        let mut seen = HashSet::new();
        let ids: Vec<u64> = ids.iter().copied().filter(|&id| seen.insert(id)).collect();
        // By the row's number in the cache the id that named it first.
        let (mut ids_of, mut numbers) = (HashMap::new(), Vec::new());
        for (rank, &id) in names.ranks_of(&ids).into_iter().zip(&ids) {
            match rank {
                None => report.missing += 1,
                Some(rank) => match table.cache_number(rank) {
                    None => report.in_memory += 1,
                    Some(number) => {
                        if ids_of.insert(number, id).is_none() {
                            numbers.push(number);
                        }
                    }
                },
            }
        }
        let _one_at_a_time = lock(&cache.pinning);
        cache.let_retired_go(&mut lock(&cache.state))?;
        let id_of = |number: &u64| ids_of.get(number).copied().unwrap_or(*number);
        let fresh = cache.to_pin(table.cached, &numbers).map_err(|full| GpuError::CachePinsFull {
            table: table.located.table().name.clone(),
            rows: full.rows,
            first: id_of(&full.first),
        })?;
        report.already = (numbers.len() - fresh.len()) as u64;
        if fresh.is_empty() {
            return Ok(report);
        }
        let warming = Warming::new(attached, cache, table, names.id_type())?;
        let looks = cache.hold() + PIN_LOOKS;
        for batch in fresh.chunks(warming.most_ids()) {
            let mut left = batch.to_vec();
            for _ in 0..looks {
                warming.look(&left.iter().map(id_of).collect::<Vec<u64>>())?;
                let found = cache.pin(table.cached, &left)?;
                let mut found = found.into_iter();
                left.retain(|_| !found.next().unwrap_or(false));
                if left.is_empty() {
                    break;
                }
            }
            report.pinned += (batch.len() - left.len()) as u64;
            report.left += left.len() as u64;
        }
        Ok(report)
    }

    /// Lets rows of `table` go that [`pin`](Self::pin) keeps: those of `ids`, or, without, all of them. They stay until others
    /// take their lines. How many rows these were.
    ///
    /// # Errors
    /// [`GpuError::NoCache`]; [`GpuError::Unsupported`] if no row of the table is cached; what CUDA says.
    pub fn unpin(&self, table: &str, ids: Option<&[u64]>) -> Result<u64, GpuError> {
        let (cache, view) = self.cached()?;
        let table = cached_table(&view, table)?;
        let _one_at_a_time = lock(&cache.pinning);
        let mut numbers = cache.pinned(table.cached);
        if let Some(ids) = ids.filter(|_| !numbers.is_empty()) {
            let attached = &self.inner;
            let names = RowNames::read(&attached.store, &table.located, attached.options.check_keys)?;
            let ranks = names.ranks_of(ids).into_iter().flatten();
            let named: HashSet<u64> = ranks.filter_map(|rank| table.cache_number(rank)).collect();
            numbers.retain(|number| named.contains(number));
        }
        cache.unpin(table.cached, &numbers)
    }

    fn cached(&self) -> Result<(&Arc<GpuCache>, Arc<View>), GpuError> {
        Ok((self.inner.cache.get().ok_or(GpuError::NoCache)?, self.inner.view()))
    }
}

/// The table of that name, if its rows are cached.
fn cached_table<'a>(view: &'a View, name: &str) -> Result<&'a GpuTable, GpuError> {
    let named = view.tables.iter().find(|table| table.located.table().name == name);
    let table = named.ok_or_else(|| StoreError::NoSuchTable {
        table: name.to_owned(),
        known: view.tables.iter().map(|table| table.located.table().name.clone()).collect(),
    })?;
    table.check(false)?;
    match table.cached {
        0 => Err(GpuError::Unsupported(format!(
            "no row of table {name:?} is cached: all lie in GPU memory or DRAM, or the cache has no lines for them"
        ))),
        _ => Ok(table),
    }
}
