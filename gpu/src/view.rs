//! Tables as a GPU reads them: hottest rows in its memory, the next in DRAM, and what finds the others on drives.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_kernels::{Kernels, abi, crc};
use warprow_keys::{KeyIndex, KeyKind};
use warprow_layout::{Ranks, row_crc};

use crate::arrange::{Arrangement, LINE, Order, arrange};
use crate::error::GpuError;
use crate::options::GpuOptions;
use crate::overlay::{Following, GpuOverlay};
use crate::row_cache::{CachedRange, GpuCache, give_ranges};
use crate::second_tier::SecondTier;
use crate::table::{GpuTable, PlacedKeys};
use crate::touches::GpuTouches;
use warprow_lookup::executors::{ChosenRows, NotedTable, ReadPacer};
use warprow_store::StoreError;
use warprow_store::view::Overlay;
use warprow_store::view::{StoreView, TableVersion};

/// Tables at one time, with their places on the GPU. It pins them.
#[derive(Debug)]
pub(crate) struct View {
    pub tables: Vec<GpuTable>,
    /// Rows, default rows, permutations, key indices, checksums and chunk maps.
    pub constants: DeviceMemory,
    /// Rows in DRAM, or in another GPU's memory in its place; `None` if there are none.
    pub dram: Option<SecondTier>,
    pub lba_size: u32,
    /// Other views may take its place.
    pub follows: bool,
    /// Views in its place may have lists of rows in DRAM where this one has none.
    pub may_list: bool,
    /// Rows may be updated.
    pub updated: bool,
    /// Rows on drives may be cached.
    pub cached: bool,
    /// What keeps its updated rows in GPU memory.
    _following: Vec<Arc<Following>>,
    /// Numbers of its rows in the cache.
    _ranges: Vec<CachedRange>,
}

/// Bytes copied to the GPU at once.
const CHUNK: usize = 4 << 20;

/// What the views of an executor share.
pub(crate) struct Shared<'a> {
    pub kernels: &'a Arc<Kernels>,
    /// Made by the first view.
    pub cache: &'a OnceLock<Arc<GpuCache>>,
    /// Where touches are noted, if they are.
    pub touches: Option<&'a GpuTouches>,
    /// The view whose place this one is to take.
    pub before: Option<&'a View>,
}

impl View {
    /// The tables, for the record of touches.
    pub(crate) fn noted(&self) -> Vec<NotedTable<'_>> {
        self.tables.iter().map(GpuTable::noted).collect()
    }

    /// Of the tables in `located`: reads what they need, as fast as `pace` lets it. With updated rows in
    /// `overlay`, if there is one.
    pub(crate) fn new(
        store: &StoreView,
        located: Vec<TableVersion>,
        gpu: &Arc<Gpu>,
        options: &GpuOptions,
        overlay: Option<&Arc<GpuOverlay>>,
        Shared { kernels, cache, touches, before }: Shared<'_>,
        pace: &mut ReadPacer,
    ) -> Result<Self, GpuError> {
        let overlaid = |version: TableVersion| match overlay {
            Some(_) => {
                let (located, overlay) = store.with_overlay(version);
                (located, Some(overlay))
            }
            None => (version, None),
        };
        let (located, overlays): (Vec<TableVersion>, Vec<_>) = located.into_iter().map(overlaid).unzip();
        let Arrangement { mut tables, orders, bytes, dram_bytes } = arrange(store, &located, options)?;
        let _ranges = give_ranges(cache, (gpu, kernels), &mut tables, options)?;
        let constants = DeviceMemory::new(gpu, bytes.max(LINE))?;
        let dram = match dram_bytes {
            0 => None,
            bytes => Some(SecondTier::new(gpu, bytes, options.peer_gpu)?),
        };
        let lba_size = store.lba_size();
        let follows = options.adopting;
        let may_list = follows && options.dram_bytes != 0;
        let updated = overlay.is_some();
        let cached = cache.get().is_some();
        let _following = Vec::new();
        let mut view =
            Self { tables, constants, dram, lba_size, follows, may_list, updated, cached, _following, _ranges };
        if let Some(touches) = touches {
            let before = before.into_iter().flat_map(|before| &before.tables);
            let before: Vec<_> = before.map(|table| (table.noted(), table.touched.as_ref())).collect();
            for table in view.tables.iter_mut().filter(|table| table.keys.is_some()) {
                table.touched = touches.of_table(table.located.table(), &before)?;
            }
        }
        let sound = view.tables.iter().zip(&orders).filter(|(table, _)| table.damage.is_none());
        for (table, order) in sound {
            view.fill(store, table, order, touches, pace)?;
        }
        if let Some(dram) = &mut view.dram {
            dram.finish()?;
        }
        if let Some(overlay) = overlay {
            view.follow(overlay, overlays)?;
        }
        if let (Some(touches), Some(before)) = (touches, before) {
            touches.record().leave(store, &before.noted(), &view.noted())?;
        }
        Ok(view)
    }

    /// Follows the updates of its tables from now on; what was updated before is there then.
    fn follow(
        &mut self,
        on: &Arc<GpuOverlay>,
        overlays: Vec<Option<Result<Arc<Overlay>, StoreError>>>,
    ) -> Result<(), GpuError> {
        // Tables of one generation are followed together: an update is of all or none of them.
        let mut generations: Vec<(Arc<Overlay>, Vec<usize>)> = Vec::new();
        for (number, (table, overlay)) in self.tables.iter_mut().zip(overlays).enumerate() {
            match overlay {
                Some(Ok(overlay)) => match generations.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &overlay)) {
                    Some((_, tables)) => tables.push(number),
                    None => generations.push((overlay, vec![number])),
                },
                Some(Err(error)) => table.unread = Some(error.to_string()),
                None => {}
            }
        }
        for (overlay, tables) in generations {
            let of = |&number: &usize| {
                let located = &self.tables.get(number)?.located;
                Some((located.index as u32, located.table().row_bytes()))
            };
            let indices: Vec<(u32, u32)> = tables.iter().filter_map(of).collect();
            let (following, numbers) = on.follow(&overlay, &indices)?;
            for (&table, number) in tables.iter().zip(numbers) {
                if let Some(table) = self.tables.get_mut(table) {
                    (table.overlay, table.updated) = (number, Some(overlay.clone()));
                }
            }
            self._following.push(following);
        }
        Ok(())
    }

    /// Copies a table's constants, and reads its rows of both tiers.
    fn fill(
        &self,
        store: &StoreView,
        table: &GpuTable,
        order: &Order,
        touches: Option<&GpuTouches>,
        pace: &mut ReadPacer,
    ) -> Result<(), GpuError> {
        let constants = &self.constants;
        if let (Some((begin, _)), Some(ranks)) = (table.ranks, &order.ranks) {
            let mut writer = Writer::new(constants, begin);
            (0..ranks.len()).filter_map(|id| ranks.get(id)).try_for_each(|rank| match ranks {
                Ranks::U32(_) => writer.push(&(rank as u32).to_le_bytes()),
                Ranks::U64(_) => writer.push(&rank.to_le_bytes()),
            })?;
            writer.finish()?;
        }
        if let (Some(placed), Some(index)) = (table.keys, &order.index) {
            constants.write(placed.index, index.as_bytes())?;
            if let (Some(begin), Some(stored)) = (placed.stored, &order.stored) {
                let mut writer = Writer::new(constants, begin);
                stored.iter().try_for_each(|key| writer.push(&key.to_le_bytes()))?;
                writer.finish()?;
            }
            let touched = match (&table.touched, touches) {
                (Some(touched), Some(touches)) => [touched.address(), touches.epoch_at()],
                _ => [0, 0],
            };
            let described = placed.for_kernels(index, constants.address(), touched);
            constants.write(placed.description, described.as_bytes())?;
        }
        let map: Vec<u8> =
            table.located.generation.placement.map().iter().flat_map(|chunk| chunk.0.to_le_bytes()).collect();
        constants.write(table.map, &map)?;
        if let Some(default) = table.located.table().default_row.as_deref() {
            constants.write(table.default_row, default)?;
        }
        if let (Some(begin), Some(crcs)) = (table.crcs, &order.crcs) {
            let mut writer = Writer::new(constants, begin);
            writer.push(&crc::row_constants(table.located.table().row_bytes()))?;
            let cold = crcs.get(table.dram_end as usize..).unwrap_or_default();
            cold.iter().try_for_each(|crc| writer.push(&crc.to_le_bytes()))?;
            writer.finish()?;
        }
        let mut damaged = None;
        let is_sound = |rank: u64, row: &[u8]| {
            let stored = order.crcs.as_ref().and_then(|crcs| crcs.get(rank as usize));
            stored.is_none_or(|&stored| stored == row_crc(rank, row))
        };
        let stride = table.row_stride as usize;
        let mut padded = vec![0; stride];
        let mut writer = Writer::new(constants, table.hbm);
        let mut failed = None;
        // Rows come in runs, and the runs in any order.
        store
            .scan(&table.located, 0..table.hbm_rows, &mut |rank, row| {
                if !is_sound(rank, row) {
                    damaged = Some(rank);
                    return ControlFlow::Break(());
                }
                if let Some(place) = padded.get_mut(..row.len()) {
                    place.copy_from_slice(row);
                }
                pace.read(row.len());
                let to = table.hbm + rank * u64::from(table.row_stride);
                failed = writer.go_on_at(to).and_then(|()| writer.push(&padded)).err();
                if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .or_else(|error| if failed.is_some() { Ok(()) } else { Err(error) })?;
        if let Some(failed) = failed {
            return Err(failed);
        }
        writer.finish()?;
        if let Some(listed) = &table.listed {
            let mut writer = Writer::new(constants, listed.directory);
            let mut blocks = listed.ranks.blocks().map(|(below, bits)| abi::ListedBlock { below, bits });
            blocks.try_for_each(|block| writer.push(block.as_bytes()))?;
            writer.finish()?;
        }
        let dram = self.dram.as_ref().and_then(SecondTier::filled);
        if let (Some(listed), Some(dram)) = (&table.listed, dram) {
            let take = |place: u64, row: &[u8]| dram.write(table.dram as usize + place as usize * stride, row);
            let (located, chosen, crcs) = (&table.located, &*listed.ranks, order.crcs.as_deref());
            ChosenRows { located, chosen, crcs, known: &|_| None }.read(store, &take, pace)?;
        } else if let Some(dram) = dram {
            store.scan(&table.located, table.hbm_rows..table.dram_end, &mut |rank, row| {
                if !is_sound(rank, row) {
                    damaged = Some(rank);
                    return ControlFlow::Break(());
                }
                let begin = table.dram as usize + (rank - table.hbm_rows) as usize * stride;
                dram.write(begin, row);
                pace.read(row.len());
                ControlFlow::Continue(())
            })?;
        }
        match damaged {
            None => Ok(()),
            Some(rank) => Err(store.damaged_row(&table.located, rank).into()),
        }
    }
}

/// Copies to the GPU in large pieces.
struct Writer<'a> {
    memory: &'a DeviceMemory,
    at: u64,
    pending: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(memory: &'a DeviceMemory, at: u64) -> Self {
        Self { memory, at, pending: Vec::new() }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), GpuError> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= CHUNK { self.finish() } else { Ok(()) }
    }

    /// What is pushed next goes to byte `at`.
    fn go_on_at(&mut self, at: u64) -> Result<(), GpuError> {
        if self.at + self.pending.len() as u64 != at {
            self.finish()?;
            self.at = at;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), GpuError> {
        self.memory.write(self.at, &self.pending)?;
        self.at += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

impl PlacedKeys {
    /// The description of `index`, which lies among the constants at `base`, with touches noted at the first of the addresses in the epoch
    /// at the second.
    fn for_kernels(&self, index: &KeyIndex, base: u64, [touched, epoch]: [u64; 2]) -> abi::KeyIndex {
        let parts = index.parts();
        abi::KeyIndex {
            keys: parts.keys,
            seed: parts.seed,
            parts: parts.parts,
            pilots: base + self.index + parts.pilots,
            remap: base + self.index + parts.remap,
            fingerprints: base + self.index + parts.fingerprints,
            stored: self.stored.map_or(0, |stored| base + stored),
            buckets: parts.buckets,
            slots: parts.slots,
            remap_bytes: parts.remap_bytes,
            fingerprint_bytes: parts.fingerprint_bytes,
            is_signed: (index.kind() == KeyKind::I64).into(),
            unused: 0,
            touched,
            epoch,
        }
    }
}
