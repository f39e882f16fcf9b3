//! Tables with their tiers, as a host reads them.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock};

use warprow_layout::{Ranks, Table};
use warprow_store::view::{Overlay, SparseIds, StoreView, TableVersion, lock};
use warprow_store::{ReadCurve, StoreError};

use super::memory::Memory;
use super::options::HostOptions;
use super::row_cache::{CachedTable, Claim, RowCache};
use crate::chosen_rows::{ChosenRows, choose_ranks, usable_list};
use crate::popularity::RowCounters;
use crate::prepare::ReadPacer;
use crate::report::Totals;
use crate::share::{MemoryClaim, share};
use crate::stage::{ChosenRanks, MergeRule};
use crate::touches::{NotedTable, TouchRecord, TouchedTable};

/// Tables with their DRAM tier, all of which a host begins and ceases to read together.
#[derive(Debug)]
pub(crate) struct Attached {
    pub store: StoreView,
    pub totals: Arc<Totals>,
    pub tables: Vec<HostTable>,
    pub dram: Memory,
    /// Rows from drives that are kept; tables that are attached later by the same executor share it.
    pub cache: Option<Arc<RowCache>>,
    /// Counts of what is looked up, if the options ask for them; tables that are attached later share them.
    pub counters: Option<Arc<RowCounters>>,
    /// When keys were last touched, if the options ask for it; tables that are attached later share it.
    pub touches: Option<Arc<TouchRecord>>,
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
    pub(super) overlay: Option<Arc<Overlay>>,
    order: OnceLock<Order>,
    /// How many rows are in the DRAM tier, from `dram_byte` on: those of the first ranks, unless others are `chosen`.
    pub hot_rows: u64,
    pub chosen: Option<Arc<ChosenRanks>>,
    pub dram_byte: u64,
    /// Where the default row is in the DRAM tier.
    pub default_byte: usize,
    /// Where rows from drives are kept; `None`: they are not.
    pub cached: Option<CachedTable>,
    /// The table's number among those that are counted; `None`: it is not.
    pub counted: Option<u16>,
    /// Where it is noted when the table's keys were last touched; `None`: it is not.
    pub touched: Option<Arc<TouchedTable>>,
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
    /// Fills a DRAM tier for the tables `located`. In the place of `before`, if there is one: whose cache, counts and totals stay, and
    /// whose DRAM tier has rows that need not be read again.
    pub(crate) fn new(
        store: &StoreView,
        located: Vec<TableVersion>,
        options: HostOptions,
        curves: Vec<Option<ReadCurve>>,
        before: Option<&Self>,
        pace: &mut ReadPacer,
    ) -> Result<Arc<Self>, StoreError> {
        store.watch()?;
        let (located, overlays): (Vec<TableVersion>, Vec<_>) = store.with_overlays(located).into_iter().unzip();
        let lists: Vec<Option<Vec<u64>>> =
            located.iter().map(|it| usable_list(store, it, options.dram_bytes)).collect();
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
        let counters = match (before, options.counters) {
            (Some(before), _) => before.counters.clone(),
            (None, Some(counted)) => {
                let names = located.iter().map(|it| it.table().name.clone()).collect();
                Some(Arc::new(RowCounters::new(counted, names)?))
            }
            (None, None) => None,
        };
        let touches = match (before, options.touch_epoch) {
            (Some(before), _) => before.touches.clone(),
            (None, Some(epoch)) => Some(Arc::new(TouchRecord::new(epoch, "HostOptions::touch_epoch")?)),
            (None, None) => None,
        };
        let noted_before = before.map(Self::noted).unwrap_or_default();
        let touched =
            |table: &Table| touches.as_ref().map_or(Ok(None), |touches| touches.of_table(table, &noted_before));
        let number = |name: &str| counters.as_ref().and_then(|counters| counters.number(name));
        let mut tables = Vec::with_capacity(located.len());
        for (((located, overlay), hot_rows), list) in located.into_iter().zip(overlays).zip(hot).zip(lists) {
            let row_bytes = u64::from(located.table().row_bytes());
            let chosen = list.filter(|_| hot_rows != 0);
            let chosen = chosen.map(|list| choose_ranks(&located, 0, &list, hot_rows)).transpose()?;
            let hot_rows = chosen.as_ref().map_or(hot_rows, |chosen| chosen.count());
            tables.push(HostTable {
                chosen,
                hot_rows,
                dram_byte: place(hot_rows * row_bytes),
                default_byte: place(row_bytes) as usize,
                order: OnceLock::new(),
                overlay,
                cached: None,
                counted: number(&located.table().name),
                touched: touched(located.table())?,
                located,
            });
        }
        if let Some(touches) = &touches {
            let noted: Vec<NotedTable<'_>> = tables.iter().map(HostTable::noted).collect();
            touches.leave(store, &noted_before, &noted)?;
        }
        let cache = match before.and_then(|before| before.cache.clone()) {
            None if options.cache_bytes != 0 || !options.cache_shares.is_empty() => {
                let claims: Vec<_> = tables
                    .iter()
                    .map(|it: &HostTable| Claim { table: it.located.table(), hot_rows: it.hot_rows })
                    .collect();
                Some(Arc::new(RowCache::new(options.cache_bytes, &options.cache_shares, &claims)?))
            }
            cache => cache,
        };
        if let Some(cache) = &cache {
            for table in &mut tables {
                let kept = before.and_then(|before| before.cached_of(cache, &table.located));
                table.cached = kept.or_else(|| cache.attach(table.located.table()));
            }
        }
        let mut dram = Memory::new(bytes, "the DRAM tier")?;
        for table in &tables {
            let known = before.and_then(|before| before.rows_of(&table.located));
            fill(store, table, &options, dram.bytes_mut(), known, pace)?;
        }
        let merge_rules = options.merging.merge_rules(&curves, store.drives());
        let totals = before.map(|before| before.totals.clone()).unwrap_or_default();
        Ok(Arc::new(Self {
            store: store.clone(),
            tables,
            dram,
            cache,
            counters,
            touches,
            options,
            curves,
            merge_rules,
            totals,
        }))
    }
}

/// The rows of a table that a DRAM tier has.
#[derive(Clone, Copy)]
struct KnownRows<'a> {
    table: &'a HostTable,
    bytes: &'a [u8],
}

impl<'a> KnownRows<'a> {
    fn get(&self, rank: u64) -> Option<&'a [u8]> {
        let row_bytes = self.table.located.table().row_bytes() as usize;
        let place = self.table.place(rank)? as usize;
        self.bytes.get(place * row_bytes..)?.get(..row_bytes)
    }
}

impl HostTable {
    fn noted(&self) -> NotedTable<'_> {
        NotedTable { located: &self.located, overlay: self.overlay.as_deref(), touched: self.touched.as_ref() }
    }

    /// The place of a rank's row among those in the DRAM tier; `None`: it is not there.
    pub(crate) fn place(&self, rank: u64) -> Option<u64> {
        match &self.chosen {
            Some(chosen) => Some(chosen.place(rank)).filter(|&place| place != u64::MAX),
            None => (rank < self.hot_rows).then_some(rank),
        }
    }
}

impl Attached {
    /// The tables, for the record of touches.
    pub(super) fn noted(&self) -> Vec<NotedTable<'_>> {
        self.tables.iter().map(HostTable::noted).collect()
    }

    /// The rows in DRAM of a table, if it is stored here as it is in `located`: then their content is as well.
    fn rows_of(&self, located: &TableVersion) -> Option<KnownRows<'_>> {
        let table = self.same(located)?;
        Some(KnownRows { table, bytes: self.dram.bytes().get(table.dram_byte as usize..)? })
    }

    /// Where rows of a table are cached, if it is stored here as it is in `located`, and its ids are the same rows: then rows that were kept
    /// are those of the adopted table as well. After a compaction those are which no update has changed.
    fn cached_of(&self, cache: &RowCache, located: &TableVersion) -> Option<CachedTable> {
        let index = |version: &TableVersion| version.table().keys.as_ref().map(|keys| keys.index_crc);
        if let Some(table) = self.same(located) {
            return table.cached.clone().filter(|_| index(&table.located) == index(located));
        }
        self.tables.iter().find_map(|table| {
            let (cached, overlay) = (table.cached.as_ref()?, table.overlay.as_ref()?);
            let changed = self.store.changed_rows(&table.located, overlay, located)?;
            cache.attach_changed(cached, &changed)
        })
    }

    /// The table that is stored here as it is in `located`.
    fn same(&self, located: &TableVersion) -> Option<&HostTable> {
        let is_same = |version: &TableVersion| {
            let (a, b) = (&version.generation, &located.generation);
            // While this lives, nobody else gets these chunks, and rows in them are not rewritten.
            (a.id, version.index) == (b.id, located.index) && a.placement == b.placement
        };
        self.tables.iter().find(|table| is_same(&table.located))
    }
}

/// Reads a table's hot rows into `dram`, and sets its default row. Rows that are known are not read.
fn fill(
    store: &StoreView,
    table: &HostTable,
    options: &HostOptions,
    dram: &mut [u8],
    known: Option<KnownRows<'_>>,
    pace: &mut ReadPacer,
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
    let chosen = match (&table.chosen, known) {
        (Some(chosen), _) => Some(chosen.clone()),
        // The first ranks, some of which are known.
        (None, Some(_)) => Some(choose_ranks(&table.located, 0, &[], table.hot_rows)?),
        (None, None) => None,
    };
    if let Some(chosen) = chosen {
        let hot = Mutex::new(hot);
        let take = |place: u64, row: &[u8]| {
            let begin = place as usize * row_bytes;
            if let Some(place) = lock(&hot).get_mut(begin..).and_then(|hot| hot.get_mut(..row_bytes)) {
                place.copy_from_slice(row);
            }
        };
        let known = &|rank| known?.get(rank);
        let rows = ChosenRows { located: &table.located, chosen: &chosen, crcs: crcs.as_deref(), known };
        return rows.read(store, &take, pace);
    }
    store.scan(&table.located, 0..table.hot_rows, &mut |rank, row| {
        pace.read(row.len());
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
