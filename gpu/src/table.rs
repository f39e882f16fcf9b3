//! A table as a GPU reads it.

use std::sync::Arc;

use warprow_kernels::{CacheLines, abi};
use warprow_layout::VolumeError;
use warprow_lookup::executors::{ChosenRanks, NotedTable};
use warprow_store::StoreError;
use warprow_store::view::{Overlay, TableVersion};

use crate::error::GpuError;
use crate::table_abi::element_of;
use crate::touches::GpuTouched;

/// Where the index of a table's keys lies in `constants`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedKeys {
    /// The kernels' description of it.
    pub description: u64,
    pub index: u64,
    pub stored: Option<u64>,
}

/// Ranks of a table that a list has in DRAM.
#[derive(Clone, Debug)]
pub(crate) struct ListedRows {
    pub ranks: Arc<ChosenRanks>,
    /// Where their directory begins in `constants`.
    pub directory: u64,
}

/// A table, ready for look-ups.
#[derive(Debug)]
pub(crate) struct GpuTable {
    pub located: TableVersion,
    pub hbm_rows: u64,
    /// Ranks below this, and not in GPU memory, are in DRAM.
    pub dram_end: u64,
    /// Rows that lie in DRAM by a list, in the place of the first behind those in GPU memory.
    pub listed: Option<ListedRows>,
    /// Bytes from a row to the next in both.
    pub row_stride: u32,
    /// Where things begin in `constants`, and DRAM rows in `dram`.
    pub hbm: u64,
    pub default_row: u64,
    pub ranks: Option<(u64, u32)>,
    pub keys: Option<PlacedKeys>,
    pub crcs: Option<u64>,
    pub map: u64,
    pub dram: u64,
    /// Why no look-up can find its rows: it lies nowhere then, and has no plan.
    pub damage: Option<Arc<VolumeError>>,
    /// The table's number in the overlay on the GPU; 0: it has none.
    pub overlay: u32,
    /// The number of its range in the cache; 0: its rows are not cached.
    pub cached: u32,
    /// The number by which the cache calls it, if it has lines to itself.
    pub cache_owner: Option<u32>,
    /// Rows in DRAM are cached too, if `cached` is not 0.
    pub caches_dram: bool,
    /// The updated rows of the table, if the executor follows them.
    pub updated: Option<Arc<Overlay>>,
    /// Where touches of its keys are noted; `None`: they are not.
    pub touched: Option<Arc<GpuTouched>>,
    /// Why its updated rows cannot be had: it has no plan then.
    pub unread: Option<String>,
}

impl GpuTable {
    /// The table, for the record of touches.
    pub(crate) fn noted(&self) -> NotedTable<'_> {
        NotedTable {
            located: &self.located,
            overlay: self.updated.as_deref(),
            touched: self.touched.as_ref().map(|noted| &noted.touched),
        }
    }

    /// Fails if no look-up can find its rows, or compare its keys where that is wanted.
    pub(crate) fn check(&self, check_keys: bool) -> Result<(), GpuError> {
        let table = || self.located.table().name.clone();
        match &self.damage {
            Some(source) => Err(GpuError::TableDamaged { table: table(), source: source.clone() }),
            None if check_keys && self.keys.is_some_and(|keys| keys.stored.is_none()) => {
                Err(StoreError::KeysNotStored { table: table() }.into())
            }
            None => match &self.unread {
                Some(why) => Err(GpuError::Unsupported(why.clone())),
                None => Ok(()),
            },
        }
    }

    /// Rows in DRAM.
    pub(crate) fn dram_rows(&self) -> u64 {
        match &self.listed {
            Some(listed) => listed.ranks.count(),
            None => self.dram_end - self.hbm_rows,
        }
    }

    /// Whether the row of a rank lies in GPU memory or in DRAM.
    pub(crate) fn is_in_memory(&self, rank: u64) -> bool {
        rank < self.dram_end || self.listed.as_ref().is_some_and(|listed| listed.ranks.contains(rank))
    }

    /// The number of a rank's row among those of the table's range in the cache; `None`: the row stays where it is.
    pub(crate) fn cache_number(&self, rank: u64) -> Option<u64> {
        if !self.is_in_memory(rank) {
            return Some(rank);
        }
        let in_dram = self.caches_dram && rank >= self.hbm_rows;
        in_dram.then(|| match &self.listed {
            Some(listed) => self.located.table().rows + listed.ranks.place(rank),
            None => rank,
        })
    }

    /// The ranks whose rows have these numbers.
    pub(crate) fn ranks_of_numbers(&self, numbers: &[u64]) -> Vec<u64> {
        let rows = self.located.table().rows;
        let listed: Vec<u64> = match &self.listed {
            Some(listed) if numbers.iter().any(|&number| number >= rows) => listed.ranks.ranks().collect(),
            _ => Vec::new(),
        };
        let rank = |&number: &u64| match number.checked_sub(rows) {
            Some(place) => listed.get(place as usize).copied(),
            None => Some(number),
        };
        numbers.iter().filter_map(rank).collect()
    }

    /// How many numbers its rows have in the cache.
    pub(crate) fn cache_numbers(&self) -> u64 {
        let listed = self.listed.as_ref().filter(|_| self.caches_dram);
        self.located.table().rows + listed.map_or(0, |listed| listed.ranks.count())
    }

    /// The lines of the cache in which its rows may lie.
    pub(crate) fn cache_lines(&self) -> CacheLines {
        CacheLines { owner: self.cache_owner, stride: self.row_stride }
    }

    /// Rows that may be cached.
    pub(crate) fn cacheable_rows(&self) -> u64 {
        match &self.listed {
            None if self.caches_dram => self.cold_rows() + self.dram_rows(),
            // Listed rows have keys on drives too.
            _ => self.cold_rows(),
        }
    }

    /// Rows on drives that have keys as such; listed rows have both keys.
    pub(crate) fn cold_rows(&self) -> u64 {
        self.located.table().rows - self.dram_end
    }

    /// As the kernels have it, with its keys from `dram_key` and `ssd_key` on: its constants lie behind `constants`,
    /// its rows in DRAM behind `dram`.
    pub(crate) fn for_kernels(&self, constants: u64, dram: Option<u64>, dram_key: u64, ssd_key: u64) -> abi::Table {
        let table = self.located.table();
        let placement = &self.located.generation.placement;
        let packing = table.packing;
        abi::Table {
            rows: table.rows,
            hbm_rows: self.hbm_rows,
            dram_end: self.dram_end,
            dram_key,
            ssd_key,
            hbm: constants + self.hbm,
            dram: dram.map_or(0, |dram| dram + self.dram),
            default_row: constants + self.default_row,
            ranks: self.ranks.map_or(0, |(begin, _)| constants + begin),
            rank_bytes: self.ranks.map_or(4, |(_, width)| width),
            element: element_of(table.dtype),
            dim: table.dim,
            row_bytes: table.row_bytes(),
            row_stride: self.row_stride,
            row_lbas: packing.row_lbas(),
            group_rows: packing.group_rows().divisor(),
            group_lbas: packing.group_lbas(),
            step_lbas: packing.step_lbas(),
            step_bytes: if packing.step_lbas() == 0 { table.row_bytes() } else { 0 },
            stripe_shift: placement.stripe_lba_shift(),
            first_lba: table.rows_region.first_lba,
            map: constants + self.map,
            base_lba: placement.base_lba(),
            keys: self.keys.map_or(0, |keys| constants + keys.description),
            chunks: placement.map().len() as u32,
            chunk_shift: placement.chunk_lba_shift(),
            crcs: self.crcs.map_or(0, |begin| constants + begin),
            overlay: self.overlay,
            cached: self.cached,
            caches_dram: (self.caches_dram && self.cached != 0).into(),
            listed: self.listed.as_ref().map_or(0, |listed| constants + listed.directory),
            ..abi::Table::default()
        }
    }
}
