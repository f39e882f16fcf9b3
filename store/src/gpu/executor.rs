//! The GPU executor on a store: its tables in GPU memory and DRAM.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use warprow_gpu_queues::{DeviceMemory, Gpu, Ladder, Registered};
use warprow_kernels::Kernels;
use warprow_kernels::abi::{KEY_ALIGN, element};
use warprow_keys::{KeyIndex, KeyKind};
use warprow_layout::{DType, Ranks, Table, VolumeError};

use super::GpuError;
use super::arrange::{Arrangement, LINE, Order, PlacedKeys};
use super::herald::Herald;
use super::plan::GpuPlan;
use crate::feature::{Feature, PlanOptions};
use crate::store::{Located, Shared};
use crate::update::is_updated;
use crate::{Store, StoreError};

/// Far more than a GPU runs at once.
const MOST_GATHERERS: u32 = 65_535;

/// Rows in pinned DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DramRows {
    /// The first, for the GPU.
    pub on_gpu: u64,
    /// The first, for this process.
    pub here: *const u8,
    /// Bytes from one to the next, a multiple of 16.
    pub stride: u32,
}

/// How look-ups run on a GPU.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Bytes of rows to keep in GPU memory: the hottest of all. Rows are padded to 16 B there and in DRAM, or to lines of 128 B if
    /// that costs at most a third more, and count as that.
    pub hbm_bytes: u64,
    /// Bytes of rows to keep in pinned DRAM: the next hottest.
    pub dram_bytes: u64,
    /// Queue pairs that a slot drives on every drive, each by a thread block of its own. Where one takes no more commands, until the
    /// next look-up that can start it anew, the others serve its rows.
    pub queue_sets: u32,
    /// Commands in flight on each of them, at most; rounded down to batches of 256, and at least one.
    pub depth: u32,
    /// Thread blocks that gather rows from DRAM; 0: as many as serve the bus best.
    pub gatherers: u32,
    /// Of plans without rows on drives, look-ups of up to so many ids read rows in DRAM where they lie; larger ones are
    /// deduplicated and put in the order of addresses first. `None`: what is never slower than a plain gather, on an H200. Where
    /// ids are uniform, a tenth of that is faster. Less than 8,192 are as many.
    pub direct_ids: Option<u64>,
    /// The longest wait for a read; `None`: as the store was opened.
    pub timeout: Option<Duration>,
    /// Ids of tables of sparse keys are compared with the keys stored beside the rows, which lie in GPU memory then, 8 B each. Without,
    /// one id in 2⁸, 2¹⁶ or 2³² that a table lacks gets the row of another, by the table's fingerprints.
    pub check_keys: bool,
    /// A host thread rings all doorbells for the GPU, also those that the GPU could reach itself.
    pub host_doorbells: bool,
}

impl Default for GpuOptions {
    /// All rows on drives, one queue set a slot, 768 commands in flight, the store's time-out.
    fn default() -> Self {
        Self {
            hbm_bytes: 0,
            dram_bytes: 0,
            queue_sets: 1,
            depth: 768,
            gatherers: 0,
            direct_ids: None,
            timeout: None,
            check_keys: false,
            host_doorbells: false,
        }
    }
}

impl GpuOptions {
    /// With so many bytes of rows in GPU memory.
    #[must_use]
    pub fn with_hbm_bytes(self, hbm_bytes: u64) -> Self {
        Self { hbm_bytes, ..self }
    }

    /// With so many bytes of rows in DRAM.
    #[must_use]
    pub fn with_dram_bytes(self, dram_bytes: u64) -> Self {
        Self { dram_bytes, ..self }
    }

    /// With so many queue sets a slot.
    #[must_use]
    pub fn with_queue_sets(self, queue_sets: u32) -> Self {
        Self { queue_sets, ..self }
    }

    /// With so many thread blocks that gather rows from DRAM.
    #[must_use]
    pub fn with_gatherers(self, gatherers: u32) -> Self {
        Self { gatherers, ..self }
    }

    /// With rows in DRAM read where they lie up to so many ids.
    #[must_use]
    pub fn with_direct_ids(self, ids: u64) -> Self {
        Self { direct_ids: Some(ids), ..self }
    }

    /// With that limit for a read.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// With sparse keys compared with the stored ones.
    #[must_use]
    pub fn with_checked_keys(self) -> Self {
        Self { check_keys: true, ..self }
    }

    /// With all doorbells rung by a host thread (rung B′ of the ladder), or not.
    #[must_use]
    pub fn with_host_doorbells(self, host_doorbells: bool) -> Self {
        Self { host_doorbells, ..self }
    }
}

/// The GPU executor on a store, as its tables were when it was attached. It pins them.
#[derive(Debug, Clone)]
pub struct GpuExecutor {
    inner: Arc<Attached>,
}

#[derive(Debug)]
pub(crate) struct Attached {
    pub kernels: Kernels,
    pub store: Arc<Shared>,
    pub tables: Vec<GpuTable>,
    pub options: GpuOptions,
    /// Rows, default rows, permutations and chunk maps.
    pub constants: DeviceMemory,
    /// Rows in DRAM; `None` if there are none.
    pub dram: Option<Registered>,
    pub gpu: Arc<Gpu>,
    /// Wakes the drives' threads, where there are several drives and they have threads.
    herald: Option<Herald>,
    /// No row is updated meanwhile.
    _unfollowing: Arc<()>,
}

impl Attached {
    /// Doorbells will be stored soon. Drives that are no software do not need to know.
    pub(crate) fn wake_drives(&self) {
        match &self.herald {
            Some(herald) => herald.call(),
            None => wake(&self.store),
        }
    }
}

fn wake(store: &Shared) {
    store.members.iter().flatten().for_each(|member| member.controller().function().wake());
}

/// Emulated drives look for work for 5 ms after they were woken.
const LULL: Duration = Duration::from_millis(2);

/// Several drives' threads are woken by another thread than the caller's.
fn herald_of(store: &Arc<Shared>) -> Option<Herald> {
    let functions = store.members.iter().flatten().map(|member| member.controller().function());
    if functions.filter(|it| it.doorbell_memory().is_some()).count() < 2 {
        return None;
    }
    let store = store.clone();
    Herald::new("warprow-herald", LULL, move || wake(&store))
        .inspect_err(|error| tracing::warn!(%error, "callers of look-ups wake drives themselves"))
        .ok()
}

/// A table, ready for look-ups.
#[derive(Debug)]
pub(crate) struct GpuTable {
    pub located: Located,
    pub hbm_rows: u64,
    /// Ranks below this, and not in GPU memory, are in DRAM.
    pub dram_end: u64,
    /// Bytes from a row to the next in both.
    pub row_stride: u32,
    /// Where things begin in `constants`, and DRAM rows in `dram`.
    pub hbm: u64,
    pub default_row: u64,
    pub ranks: Option<(u64, u32)>,
    pub keys: Option<PlacedKeys>,
    pub map: u64,
    pub dram: u64,
    /// Why no look-up can find its rows: it lies nowhere then, and has no plan.
    pub damage: Option<Arc<VolumeError>>,
}

/// Bytes copied to the GPU at once.
const CHUNK: usize = 4 << 20;

impl Store {
    /// Prepares look-ups on `gpu`: compiles the kernels (or takes them from a cache), and fills GPU memory and DRAM. A table whose
    /// permutation is damaged gets no place in either; only a plan over it fails.
    pub fn attach_gpu(&self, gpu: Arc<Gpu>, options: GpuOptions) -> Result<GpuExecutor, GpuError> {
        if options.queue_sets == 0 || options.queue_sets > 128 {
            return Err(GpuError::Unsupported("a slot has 1 to 128 queue sets".to_owned()));
        }
        if options.gatherers > MOST_GATHERERS {
            return Err(GpuError::Unsupported(format!("at most {MOST_GATHERERS} thread blocks gather rows")));
        }
        if self.shared.members.iter().any(Option::is_none) {
            return Err(GpuError::Unsupported("members are missing: the GPU reads only from whole stores".to_owned()));
        }
        // From here on there are none that it would not see.
        let unfollowing = self.shared.updates.unfollowing();
        if let Some(updated) = self.located().iter().find(|it| is_updated(&it.generation)) {
            return Err(GpuError::Unsupported(format!(
                "rows of generation {} were updated since it was loaded, which an executor on a GPU does not follow: compact it first",
                updated.generation.id
            )));
        }
        let kernels = Kernels::load(&gpu)?;
        let Arrangement { tables, orders, bytes, dram_bytes } = self.arrange(&options)?;
        let constants = DeviceMemory::new(&gpu, bytes.max(LINE))?;
        let dram = match dram_bytes {
            0 => None,
            bytes => Some(Registered::allocate(&gpu, bytes)?),
        };
        let (store, herald) = (self.shared.clone(), herald_of(&self.shared));
        let attached =
            Attached { kernels, store, tables, options, constants, dram, gpu, _unfollowing: unfollowing, herald };
        let sound = attached.tables.iter().zip(&orders).filter(|(table, _)| table.damage.is_none());
        for (table, order) in sound {
            self.fill_gpu(&attached, table, order)?;
        }
        Ok(GpuExecutor { inner: Arc::new(attached) })
    }

    /// Copies a table's constants, and reads its rows of both tiers.
    fn fill_gpu(&self, attached: &Attached, table: &GpuTable, order: &Order) -> Result<(), GpuError> {
        let constants = &attached.constants;
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
            constants.write(placed.description, placed.for_kernels(index, constants.address()).as_bytes())?;
        }
        let map: Vec<u8> = table.located.generation.placement.map().iter().flat_map(|it| it.0.to_le_bytes()).collect();
        constants.write(table.map, &map)?;
        if let Some(default) = table.located.table().default_row.as_deref() {
            constants.write(table.default_row, default)?;
        }
        let stride = table.row_stride as usize;
        let mut padded = vec![0; stride];
        let mut writer = Writer::new(constants, table.hbm);
        let mut failed = None;
        // Rows come in runs, and the runs in any order.
        self.scan_located(&table.located, 0..table.hbm_rows, &mut |rank, row| {
            if let Some(place) = padded.get_mut(..row.len()) {
                place.copy_from_slice(row);
            }
            let to = table.hbm + rank * u64::from(table.row_stride);
            failed = writer.go_on_at(to).and_then(|()| writer.push(&padded)).err();
            if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .or_else(|error| if failed.is_some() { Ok(()) } else { Err(error) })?;
        if let Some(failed) = failed {
            return Err(failed);
        }
        writer.finish()?;
        if let Some(dram) = &attached.dram {
            self.scan_located(&table.located, table.hbm_rows..table.dram_end, &mut |rank, row| {
                let begin = table.dram as usize + (rank - table.hbm_rows) as usize * stride;
                dram.memory().write(begin, row);
                ControlFlow::Continue(())
            })?;
        }
        Ok(())
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

impl GpuExecutor {
    /// Prepares look-ups of `features`: takes queue pairs and allocates everything that look-ups of its slots will need.
    pub fn plan(&self, features: &[Feature], options: PlanOptions) -> Result<GpuPlan, GpuError> {
        GpuPlan::new(self.inner.clone(), features, options)
    }

    /// The rows of `table` that are in DRAM. `None`: there is none. For measuring against what reads them in other ways; valid
    /// while this lives.
    pub fn dram_rows(&self, table: &str) -> Option<DramRows> {
        let mut tables = self.inner.tables.iter();
        let table = tables.find(|it| it.located.table().name == table && it.dram_end > it.hbm_rows)?;
        let dram = self.inner.dram.as_ref()?;
        Some(DramRows {
            on_gpu: dram.address() + table.dram,
            here: dram.memory().as_ptr().cast_const().wrapping_add(table.dram as usize),
            stride: table.row_stride,
        })
    }

    /// Where rings, doorbells and rows of its plans live, for each drive, and why nowhere better.
    pub fn ladder(&self) -> Ladder {
        let members = self.inner.store.members.iter().flatten();
        let functions = members.map(|member| &**member.controller().function());
        match self.inner.options.host_doorbells {
            true => Ladder::with_host_doorbells(Ok(&self.inner.gpu), functions),
            false => Ladder::choose(Ok(&self.inner.gpu), functions),
        }
    }

    /// Rows of `table` in GPU memory and in DRAM: its hottest. `None`: there is no such table.
    pub fn tiers(&self, table: &str) -> Option<(u64, u64)> {
        let mut tables = self.inner.tables.iter();
        let table = tables.find(|it| it.located.table().name == table)?;
        Some((table.hbm_rows, table.dram_end - table.hbm_rows))
    }
}

impl PlacedKeys {
    /// The description of `index`, which lies among the constants at `base`.
    fn for_kernels(&self, index: &KeyIndex, base: u64) -> warprow_kernels::abi::KeyIndex {
        let parts = index.parts();
        warprow_kernels::abi::KeyIndex {
            keys: parts.keys,
            seed: parts.seed,
            parts: parts.parts,
            pilots: base + self.index + parts.pilots,
            stand_ins: base + self.index + parts.stand_ins,
            fingerprints: base + self.index + parts.fingerprints,
            stored: self.stored.map_or(0, |stored| base + stored),
            buckets: parts.buckets,
            slots: parts.slots,
            stand_in_bytes: parts.stand_in_bytes,
            fingerprint_bytes: parts.fingerprint_bytes,
            is_signed: (index.kind() == KeyKind::I64).into(),
            unused: 0,
        }
    }
}

impl GpuTable {
    /// Fails if no look-up can find its rows, or compare its keys where that is wanted.
    pub(crate) fn check(&self, check_keys: bool) -> Result<(), GpuError> {
        let table = || self.located.table().name.clone();
        match &self.damage {
            Some(source) => Err(GpuError::TableDamaged { table: table(), source: source.clone() }),
            None if check_keys && self.keys.is_some_and(|keys| keys.stored.is_none()) => {
                Err(StoreError::KeysNotStored { table: table() }.into())
            }
            None => Ok(()),
        }
    }

    /// As the kernels have it, with its keys from `dram_key` and `ssd_key` on.
    pub(crate) fn for_kernels(&self, attached: &Attached, dram_key: u64, ssd_key: u64) -> warprow_kernels::abi::Table {
        let (table, placement) = (self.located.table(), &self.located.generation.placement);
        let constants = attached.constants.address();
        let packing = table.packing;
        warprow_kernels::abi::Table {
            rows: table.rows,
            hbm_rows: self.hbm_rows,
            dram_end: self.dram_end,
            dram_key,
            ssd_key,
            hbm: constants + self.hbm,
            dram: attached.dram.as_ref().map_or(0, |dram| dram.address() + self.dram),
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
        }
    }
}

/// Keys that a range of rows takes.
pub(crate) fn keys_of(rows: u64) -> u64 {
    rows.next_multiple_of(KEY_ALIGN)
}

pub(crate) fn element_of(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => element::F32,
        DType::F16 => element::F16,
        DType::BF16 => element::BF16,
        DType::I8 => element::I8,
        // Plans of tables of the others are refused: nothing is widened from this.
        DType::U8 | DType::F8E4M3 | DType::F8E5M2 | DType::Q8 | DType::Q4 => element::U8,
    }
}

/// Whether the GPU can read rows of `table` from drives with the two pages that a command has.
pub(crate) fn landing_stride(table: &Table, lba: u32) -> Result<u32, String> {
    let bytes = table.packing.row_lbas() * lba;
    match bytes.next_power_of_two() {
        stride if stride <= 8192 => Ok(stride.max(lba)),
        _ => Err(format!(
            "rows of {} B of table {:?} are too long for the GPU: 8 KiB at most",
            table.row_bytes(),
            table.name
        )),
    }
}
