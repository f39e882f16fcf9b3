//! What a cache has, saved, so that it is there again after a restart.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use warprow_store::view::{TableIdentity, read_list, write_list};

use crate::cache_file::{CacheFileError, SavedCache, SavedTable};
use crate::error::GpuError;
use crate::executor::GpuExecutor;
use crate::row_names::RowNames;
use crate::warm::GpuWarmed;

/// What [`GpuExecutor::save_cache`] has saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuCacheSaved {
    /// Rows, of all tables.
    pub rows: u64,
    /// Tables that have some.
    pub tables: u64,
    /// Tables of which nothing was saved, because nobody knows what their rows are called: their keys are not stored, or
    /// they are attached from what is no file.
    pub unnamed: Vec<String>,
}

/// What [`GpuExecutor::warm_from`] has brought back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuCacheRestored {
    /// The tables that the store has, and the cache has lines for.
    pub tables: Vec<RestoredTable>,
    /// Tables of the file that the executor does not have, or of which it caches nothing: they were passed over.
    pub unknown: Vec<String>,
}

/// What became of one table's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoredTable {
    /// The table.
    pub table: String,
    /// Another generation of the table was saved, or its files have changed since. The ids were looked up all the same.
    pub is_older: bool,
    /// What the look-ups have come to.
    pub warmed: GpuWarmed,
}

impl GpuExecutor {
    /// Writes to the file `path` which rows the cache has, by their ids: pinned ones first, then those that were asked for
    /// most, where that is counted, then those that were used last. The file replaces one that is there, whole: after a
    /// crash there is the one before, or the new one. Look-ups go on meanwhile, and the list is a hint.
    ///
    /// It reads the order and the keys of tables from the drives. No stream may be being captured meanwhile.
    ///
    /// # Errors
    /// [`GpuError::NoCache`]; [`GpuError::CacheFile`] if the file cannot be written; what CUDA and drives say.
    pub fn save_cache(&self, path: impl AsRef<Path>) -> Result<GpuCacheSaved, GpuError> {
        let path = path.as_ref();
        let attached = &self.inner;
        let cache = attached.cache.get().ok_or(GpuError::NoCache)?;
        let view = attached.view();
        let mut numbers: HashMap<u32, Vec<u64>> = HashMap::new();
        for (range, number) in cache.held_rows()? {
            numbers.entry(range).or_default().push(number);
        }
        let mut report = GpuCacheSaved::default();
        let mut saved = SavedCache { store: attached.store.identity(), tables: Vec::new() };
        for table in view.tables.iter().filter(|table| table.cached != 0) {
            let Some(numbers) = numbers.remove(&table.cached) else { continue };
            let ranks = table.ranks_of_numbers(&numbers);
            let name = table.located.table().name.clone();
            let identity = attached.store.identity_of(&table.located);
            let names = RowNames::read(&attached.store, &table.located, true)?;
            let (Some(TableIdentity { generation, identity }), Some(mut ids)) = (identity, names.ids_of(&ranks)) else {
                report.unnamed.push(name);
                continue;
            };
            // A row may have two lines.
            let mut seen = HashSet::new();
            ids.retain(|&id| seen.insert(id));
            report.tables += 1;
            report.rows += ids.len() as u64;
            saved.tables.push(SavedTable { name, rows: table.located.table().rows, generation, identity, ids });
        }
        let failed = |source: CacheFileError| GpuError::CacheFile { path: path.to_owned(), source };
        match write_list(path, &saved.encode()) {
            Ok(true) => Ok(report),
            Ok(false) => Err(failed(CacheFileError::Taken)),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Looks up what [`save_cache`](Self::save_cache) has written to `path`, as [`warm`](Self::warm) does, table by table: as many
    /// of the first rows as the cache has lines. A list of another generation of a table is taken all the same, for popularity
    /// outlives generations; ids that the table lacks now are counted.
    ///
    /// # Errors
    /// [`GpuError::CacheFile`] if the file cannot be read, is no such file, is damaged, or is of another store: before anything is looked
    /// up. Those of `warm`: what was brought in before stays.
    pub fn warm_from(&self, path: impl AsRef<Path>) -> Result<GpuCacheRestored, GpuError> {
        let path = path.as_ref();
        let attached = &self.inner;
        let cache = attached.cache.get().ok_or(GpuError::NoCache)?;
        let failed = |source: CacheFileError| GpuError::CacheFile { path: path.to_owned(), source };
        let most = SavedCache::most_bytes(cache.statistics()?.lines);
        let bytes = read_list(path, most.saturating_add(1)).map_err(|error| failed(error.into()))?;
        let bytes = bytes.ok_or_else(|| failed(std::io::Error::from(std::io::ErrorKind::NotFound).into()))?;
        if bytes.len() as u64 > most {
            return Err(failed(CacheFileError::TooLong { most }));
        }
        let saved = SavedCache::decode(&bytes).map_err(failed)?;
        if saved.store != attached.store.identity() {
            return Err(failed(CacheFileError::OfAnotherStore));
        }
        let view = attached.view();
        let mut restored = GpuCacheRestored::default();
        for list in saved.tables {
            let known = view.tables.iter().find(|table| table.located.table().name == list.name && table.cached != 0);
            let Some(table) = known else {
                restored.unknown.push(list.name);
                continue;
            };
            let lines = usize::try_from(cache.lines_for(table.cache_lines())).unwrap_or(usize::MAX);
            let ids = list.ids.get(..lines).unwrap_or(&list.ids);
            let was = TableIdentity { generation: list.generation, identity: list.identity };
            let is_older = attached.store.identity_of(&table.located) != Some(was);
            let warmed = self.warm(&list.name, ids)?;
            restored.tables.push(RestoredTable { table: list.name, is_older, warmed });
        }
        Ok(restored)
    }
}
