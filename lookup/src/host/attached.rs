//! Tables with their tiers, as a host reads them.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use warprow_layout::Ranks;
use warprow_store::view::{Overlay, SparseIds, StoreView, TableVersion, lock};
use warprow_store::{ReadCurve, StoreError};

use super::memory::Memory;
use super::options::HostOptions;
use super::row_cache::{CachedTable, Claim, RowCache};
use crate::report::Totals;
use crate::share::{MemoryClaim, share};
use crate::stage::{ChosenRanks, MergeRule};

/// Tables with their DRAM tier, all of which a host begins and ceases to read together.
#[derive(Debug)]
pub(crate) struct Attached {
    pub store: StoreView,
    pub totals: Arc<Totals>,
    pub tables: Vec<HostTable>,
    pub dram: Memory,
    /// Rows from drives that are kept; tables that are attached later by the same executor share it.
    pub cache: Option<Arc<RowCache>>,
    pub options: HostOptions,
    /// By member: the drive's read curve, if there is one and it is used, and the rule which reads share a command.
    pub curves: Vec<Option<ReadCurve>>,
    pub merge_rules: Box<[MergeRule]>,
}

/// A table with its place in the DRAM tier.
#[derive(Debug)]
pub(crate) struct HostTable {
    pub located: TableVersion,
    /// Rows that were updated; `None`: they could not be read, and plans for the table fail.
    overlay: Option<Arc<Overlay>>,
    order: OnceLock<Order>,
    /// How many rows are in the DRAM tier, from `dram_byte` on: those of the first ranks, unless others are `chosen`.
    pub hot_rows: u64,
    pub chosen: Option<Arc<ChosenRanks>>,
    pub dram_byte: u64,
    /// Where the default row is in the DRAM tier.
    pub default_byte: usize,
    /// Where rows from drives are kept; `None`: they are not.
    pub cached: Option<CachedTable>,
}

/// What is read of a table besides its rows, when a plan first needs the table. So damage of one table's order or keys
/// fails plans for that table alone.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// Id → rank; `None`: the id is the rank.
    pub ranks: Option<Arc<Ranks>>,
    /// Checksums of rows, by rank; `None`: they are not stored, or not to be checked.
    pub crcs: Option<Arc<Vec<u32>>>,
    /// Sparse id → key position; `None`: the table has no keys, and its ids are below the number of rows.
    pub sparse: Option<SparseIds>,
    /// Rows that were updated.
    pub overlay: Arc<Overlay>,
}

impl Attached {
    /// The order and checksums of a table's rows, read if they were not yet.
    pub(crate) fn order(&self, table: &HostTable) -> Result<Order, StoreError> {
        if let Some(order) = table.order.get() {
            return Ok(order.clone());
        }
        self.store.watch()?;
        let (store, located) = (&self.store, &table.located);
        let ranks = store.read_ranks(located)?.map(Arc::new);
        let sparse = match store.read_key_index(located)?.map(Arc::new) {
            Some(key_index) => {
                let stored = if self.options.check_keys { store.read_keys(located)? } else { None };
                if self.options.check_keys && stored.is_none() {
                    return Err(StoreError::KeysNotStored { table: table.located.table().name.clone() });
                }
                Some(SparseIds { index: key_index, stored: stored.map(Arc::new), ranks: ranks.clone() })
            }
            None => None,
        };
        let overlay = match &table.overlay {
            Some(overlay) => overlay.clone(),
            // The overlay is damaged: reading it again gives the error.
            None => store.overlay(&located.generation)?,
        };
        let crcs = row_crcs(&self.store, &table.located, &self.options)?.map(Arc::new);
        let order = Order { ranks, crcs, sparse, overlay };
        Ok(table.order.get_or_init(|| order).clone())
    }
}

fn row_crcs(store: &StoreView, located: &TableVersion, options: &HostOptions) -> Result<Option<Vec<u32>>, StoreError> {
    match options.check_rows {
        true => Ok(store.read_row_crcs(located)?),
        false => Ok(None),
    }
}

/// Where rows begin in the DRAM tier: at cache lines, so that elements of every type are aligned.
const ALIGN: u64 = 64;

impl Attached {
    /// Fills a DRAM tier for the tables `located`, and makes a cache if `cache` is `None` and the options have one; calls `read` with the number of bytes that each step has read.
    pub(crate) fn new(
        store: &StoreView,
        located: Vec<TableVersion>,
        options: HostOptions,
        curves: Vec<Option<ReadCurve>>,
        totals: Arc<Totals>,
        cache: Option<Arc<RowCache>>,
        read: &mut dyn FnMut(usize),
    ) -> Result<Arc<Self>, StoreError> {
        store.watch()?;
        let (located, overlays): (Vec<TableVersion>, Vec<_>) = store.with_overlays(located).into_iter().unzip();
        let lists: Vec<Option<Vec<u64>>> = located.iter().map(|it| list_of(store, it, &options)).collect();
        let claims = located.iter().zip(&lists).map(|(it, list)| {
            let claim = MemoryClaim::of(it.table(), it.table().row_bytes());
            // Listed rows are those that are worth memory.
            list.as_ref().map_or(claim, |list| MemoryClaim { hint: (list.len() as u64).min(claim.rows), ..claim })
        });
        let hot = share(&claims.collect::<Vec<_>>(), options.dram_bytes);
        let mut bytes = 0u64;
        let mut place = |len: u64| {
            let begin = bytes.next_multiple_of(ALIGN);
            bytes = begin + len;
            begin
        };
        let mut tables = Vec::with_capacity(located.len());
        for (((located, overlay), hot_rows), list) in located.into_iter().zip(overlays).zip(hot).zip(lists) {
            let row_bytes = u64::from(located.table().row_bytes());
            let chosen = list.filter(|_| hot_rows != 0).map(|list| chosen(&located, &list, hot_rows)).transpose()?;
            let hot_rows = chosen.as_ref().map_or(hot_rows, |chosen| chosen.count());
            tables.push(HostTable {
                chosen,
                hot_rows,
                dram_byte: place(hot_rows * row_bytes),
                default_byte: place(row_bytes) as usize,
                order: OnceLock::new(),
                overlay,
                cached: None,
                located,
            });
        }
        let cache = match cache {
            None if options.cache_bytes != 0 => {
                let claims: Vec<_> = tables
                    .iter()
                    .map(|it: &HostTable| Claim { table: it.located.table(), hot_rows: it.hot_rows })
                    .collect();
                Some(Arc::new(RowCache::new(options.cache_bytes, &claims)?))
            }
            cache => cache,
        };
        if let Some(cache) = &cache {
            tables.iter_mut().for_each(|table| table.cached = cache.attach(table.located.table()));
        }
        let mut dram = Memory::new(bytes, "the DRAM tier")?;
        for table in &tables {
            fill(store, table, &options, dram.bytes_mut(), read)?;
        }
        let merge_rules = options.merging.merge_rules(&curves, store.drives());
        Ok(Arc::new(Self { store: store.clone(), tables, dram, cache, options, curves, merge_rules, totals }))
    }
}

/// The ranks of a table that are listed for DRAM; `None`: there is no list, or none that can be used.
fn list_of(store: &StoreView, located: &TableVersion, options: &HostOptions) -> Option<Vec<u64>> {
    if options.dram_bytes == 0 {
        return None;
    }
    store.dram_list(located).unwrap_or_else(|error| {
        // A list is a hint. Without it the first ranks are kept.
        tracing::warn!("{error}");
        None
    })
}

fn chosen(located: &TableVersion, list: &[u64], count: u64) -> Result<Arc<ChosenRanks>, StoreError> {
    let rows = located.table().rows;
    let lacking = || StoreError::Allocate {
        what: "the directory of chosen rows in DRAM",
        bytes: ChosenRanks::bytes(rows),
        source: std::io::ErrorKind::OutOfMemory.into(),
    };
    ChosenRanks::new(rows, list, count).map(Arc::new).ok_or_else(lacking)
}

/// Reads a table's hot rows into `dram`, and sets its default row.
fn fill(
    store: &StoreView,
    table: &HostTable,
    options: &HostOptions,
    dram: &mut [u8],
    read: &mut dyn FnMut(usize),
) -> Result<(), StoreError> {
    let row_bytes = table.located.table().row_bytes() as usize;
    let default = table.located.table().default_row.as_deref();
    if let (Some(default), Some(place)) = (default, dram.get_mut(table.default_byte..)) {
        place.iter_mut().zip(default).for_each(|(place, &byte)| *place = byte);
    }
    if table.hot_rows == 0 {
        return Ok(());
    }
    let hot = dram.get_mut(table.dram_byte as usize..).unwrap_or_default();
    let crcs = row_crcs(store, &table.located, options)?;
    let (mut damaged, mut overridden) = (None, None);
    let mut is_overridden = |rank: u64| {
        let find = || store.overridden(&table.located).unwrap_or_default();
        overridden.get_or_insert_with(find).contains(&rank)
    };
    if let Some(chosen) = &table.chosen {
        return fill_chosen(store, &table.located, chosen, crcs.as_deref(), hot, read);
    }
    store.scan(&table.located, 0..table.hot_rows, &mut |rank, row| {
        read(row.len());
        if let Some(place) = hot.get_mut(rank as usize * row_bytes..).and_then(|hot| hot.get_mut(..row_bytes)) {
            place.copy_from_slice(row);
        }
        let stored = crcs.as_ref().and_then(|crcs| crcs.get(rank as usize));
        match stored.is_some_and(|&stored| stored != warprow_layout::row_crc(rank, row)) && !is_overridden(rank) {
            false => ControlFlow::Continue(()),
            true => {
                damaged = Some(rank);
                ControlFlow::Break(())
            }
        }
    })?;
    match damaged {
        None => Ok(()),
        Some(rank) => Err(store.damaged_row(&table.located, rank)),
    }
}

/// Rows that are read at once: between two such readings a rate is kept.
const AT_ONCE: usize = 1 << 16;

/// Reads the chosen rows of a table into `hot`, one behind the other by rank.
fn fill_chosen(
    store: &StoreView,
    located: &TableVersion,
    chosen: &ChosenRanks,
    crcs: Option<&[u32]>,
    hot: &mut [u8],
    read: &mut dyn FnMut(usize),
) -> Result<(), StoreError> {
    let row_bytes = located.table().row_bytes() as usize;
    let mut ranks = chosen.ranks();
    for hot in hot.chunks_mut(AT_ONCE * row_bytes) {
        let part: Vec<u64> = ranks.by_ref().take(AT_ONCE).collect();
        if part.is_empty() {
            break;
        }
        let (hot, damaged) = (Mutex::new(hot), Mutex::new(Vec::new()));
        store.read_rows(located, &part, &|position, row| {
            let rank = part.get(position).copied().unwrap_or(u64::MAX);
            if let Some(place) = lock(&hot).get_mut(position * row_bytes..).and_then(|hot| hot.get_mut(..row_bytes)) {
                place.copy_from_slice(row);
            }
            let stored = crcs.and_then(|crcs| crcs.get(rank as usize));
            if stored.is_some_and(|&stored| stored != warprow_layout::row_crc(rank, row)) {
                lock(&damaged).push(rank);
            }
        })?;
        part.iter().for_each(|_| read(row_bytes));
        let damaged = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
        if damaged.is_empty() {
            continue;
        }
        // What is stored in the place of an updated row does not matter.
        let overridden = store.overridden(located).unwrap_or_default();
        if let Some(&rank) = damaged.iter().filter(|rank| !overridden.contains(rank)).min() {
            return Err(store.damaged_row(located, rank));
        }
    }
    Ok(())
}
