//! The host executor: hot rows in DRAM, the others read from drives by the CPU.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use warprow_layout::{Drive, Ranks, Table};

use crate::feature::{Feature, PlanOptions};
use crate::hosting::Hosting;
use crate::measure;
use crate::memory::Memory;
use crate::merging::Merging;
use crate::overlay::Overlay;
use crate::plan::Plan;
use crate::stage::{Joining, SparseIds};
use crate::store::{Located, Shared};
use crate::{ReadCurve, Store, StoreError};

/// How look-ups run on the host.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
/// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// // Memory for 10 rows, every row from drives checked, and rows of neighbouring LBAs read by one command.
/// let options = HostOptions::default().with_dram_bytes(160).with_merging(Merging::Neighbours);
/// let host = store.attach_host(options)?;
/// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
/// let ids: Vec<i64> = (0..100).collect();
/// let mut rows = vec![0.0f32; 400];
/// let report = plan.slot()?.lookup(&Batch::new(&ids, 100), &mut Output::new(Rows::F32(&mut rows), 4))?;
/// assert!(rows.iter().enumerate().all(|(at, &x)| x == at as f32));
/// assert_eq!((report.rows_dram, report.rows_ssd, report.commands), (10, 90, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostOptions {
    /// Bytes of rows to keep in DRAM. Tables share it: first each gets what its `hot_rows` ask for, then what is left goes
    /// by size. Always the hottest ranks of a table.
    pub dram_bytes: u64,
    /// Queue pairs that a slot keeps busy on every drive. One reaches the bandwidth of a drive; a controller that serves
    /// each queue by a thread or a core of its own may gain from more.
    pub workers: u32,
    /// Commands in flight on each queue pair, at most.
    pub depth: u32,
    /// The longest wait for a read; `None`: as the store was opened.
    pub timeout: Option<Duration>,
    /// Check every row that is read from a drive against its checksum, where the table has them: four bytes of memory a row,
    /// and a CRC32C for each read.
    pub check_rows: bool,
    /// Compare every sparse id with the stored one, which takes eight bytes of memory a row: a foreign id is then missing for certain.
    /// Else one in 2⁸, 2¹⁶ or 2³² gets some row, by its table's fingerprints. A table that does not store its ids is refused.
    pub check_keys: bool,
    /// Which rows on drives share a read command.
    pub merging: Merging,
}

impl Default for HostOptions {
    /// No DRAM tier, one worker, 1,023 commands in flight, the store's time-out, no checks, neighbouring
    /// rows in one command.
    fn default() -> Self {
        let merging = Merging::default();
        Self { dram_bytes: 0, workers: 1, depth: 1023, timeout: None, check_rows: false, check_keys: false, merging }
    }
}

impl HostOptions {
    /// With a DRAM tier of that size.
    #[must_use]
    pub fn with_dram_bytes(self, dram_bytes: u64) -> Self {
        Self { dram_bytes, ..self }
    }

    /// With that many queue pairs per slot and drive.
    #[must_use]
    pub fn with_workers(self, workers: u32) -> Self {
        Self { workers, ..self }
    }

    /// With that many commands in flight.
    #[must_use]
    pub fn with_depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }

    /// With that limit for a read.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// With every sparse id compared with the stored one.
    #[must_use]
    pub fn with_checked_keys(self) -> Self {
        Self { check_keys: true, ..self }
    }

    /// With rows sharing commands like that.
    #[must_use]
    pub fn with_merging(self, merging: Merging) -> Self {
        Self { merging, ..self }
    }

    /// With every row checked.
    #[must_use]
    pub fn with_checked_rows(self) -> Self {
        Self { check_rows: true, ..self }
    }
}

/// The host executor on a store, as its tables were when it was attached, or as it last [adopted](Host::adopt) them. It pins
/// them: replaced tables stay readable until the last host, plan and look-up that use them are gone.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
/// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// // 100 rows of 16 bytes stay in memory.
/// let host = store.attach_host(HostOptions::default().with_dram_bytes(1600))?;
/// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
/// let mut rows = [0.0f32; 8];
/// let report = plan.slot()?.lookup(&Batch::new(&[3i64, 999], 2), &mut Output::new(Rows::F32(&mut rows), 4))?;
/// assert_eq!(rows, [12.0, 13.0, 14.0, 15.0, 3996.0, 3997.0, 3998.0, 3999.0]);
/// assert_eq!((report.rows_dram, report.rows_ssd), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Host {
    pub(crate) inner: Arc<Hosting>,
}

/// Tables with their tiers, which a host takes up and puts away as one.
#[derive(Debug)]
pub(crate) struct Attached {
    pub store: Arc<Shared>,
    pub tables: Vec<HostTable>,
    pub dram: Memory,
    pub options: HostOptions,
    /// Read curves by member, as far as they are known and used, and which reads share a command.
    pub curves: Vec<Option<ReadCurve>>,
    pub joinings: Box<[Joining]>,
}

/// A table, ready for look-ups.
#[derive(Debug)]
pub(crate) struct HostTable {
    pub located: Located,
    /// Rows that were updated; `None`: they could not be read, and so nothing of the table is.
    overlay: Option<Arc<Overlay>>,
    order: OnceLock<Order>,
    /// Ranks below this are in the DRAM tier, from `dram_byte` on.
    pub hot_rows: u64,
    pub dram_byte: u64,
    /// Where the default row is in the DRAM tier.
    pub default_byte: usize,
}

/// What is read of a table besides its rows, when it is first planned for: what is damaged then harms no other table.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// Id → rank; `None`: the id is the rank.
    pub ranks: Option<Arc<Ranks>>,
    /// By rank; `None`: not stored, or not to be checked.
    pub crcs: Option<Arc<Vec<u32>>>,
    /// Sparse id → slot; `None`: ids are below the number of rows.
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
        let Located { generation, index } = &table.located;
        let volume = &self.store.volume;
        let ranks = volume.read_ranks(generation, *index)?.map(Arc::new);
        let sparse = match volume.read_key_index(generation, *index)?.map(Arc::new) {
            Some(key_index) => {
                let stored = if self.options.check_keys { volume.read_keys(generation, *index)? } else { None };
                if self.options.check_keys && stored.is_none() {
                    return Err(StoreError::KeysNotStored { table: table.located.table().name.clone() });
                }
                Some(SparseIds { index: key_index, stored: stored.map(Arc::new), ranks: ranks.clone() })
            }
            None => None,
        };
        let overlay = match &table.overlay {
            Some(overlay) => overlay.clone(),
            // It is damaged: this says how.
            None => self.store.overlay(generation)?,
        };
        let crcs = row_crcs(&self.store, &table.located, &self.options)?.map(Arc::new);
        let order = Order { ranks, crcs, sparse, overlay };
        Ok(table.order.get_or_init(|| order).clone())
    }
}

fn row_crcs(store: &Shared, located: &Located, options: &HostOptions) -> Result<Option<Vec<u32>>, StoreError> {
    match options.check_rows {
        true => Ok(store.volume.read_row_crcs(&located.generation, located.index)?),
        false => Ok(None),
    }
}

/// Where rows begin in the DRAM tier: at cache lines, so that elements of every type are aligned.
const ALIGN: u64 = 64;

impl Store {
    /// Prepares look-ups by the host: fills the DRAM tier. Permutations are read when their tables are first planned for.
    pub fn attach_host(&self, options: HostOptions) -> Result<Host, StoreError> {
        let out_of_range = |reason: &str| StoreError::PlanOptions { reason: reason.to_owned() };
        if options.workers == 0 || options.workers > 128 {
            return Err(out_of_range("a slot has 1 to 128 workers"));
        }
        if options.depth == 0 {
            return Err(out_of_range("a depth of 0 reads nothing"));
        }
        let members = &self.shared.members;
        let (located, mut curves) = (self.located(), options.merging.given(members.len())?);
        if options.merging == Merging::Measured {
            self.shared.watch()?;
            let timeout = options.timeout.unwrap_or(self.shared.driving.timeout);
            self.measure(&located, (options.depth, timeout), &mut curves);
        }
        let attached = self.attach(located, options, curves, &mut |_| {})?;
        Ok(Host { inner: Arc::new(Hosting::new(attached)) })
    }

    /// What reads cost each drive, in the order of members: measured within 50 ms a drive, on LBAs that hold rows, or 100 ms, all over a
    /// drive where the store has none. `None`: a drive is missing, failed, or was too slow to tell.
    pub fn measure_reads(&self) -> Result<Vec<Option<ReadCurve>>, StoreError> {
        self.shared.watch()?;
        let (located, driving) = (self.located(), &self.shared.driving);
        let mut curves = vec![None; self.shared.members.len()];
        self.measure(&located, (measure::DEPTH, driving.timeout), &mut curves);
        if located.is_empty() {
            for (member, curve) in self.shared.members.iter().zip(&mut curves) {
                let Some(member) = member else { continue };
                *curve = measure::measure_empty(member, (measure::DEPTH, driving.timeout), &*driving.clock)
                    .inspect_err(|error| tracing::warn!("{}: its reads could not be measured: {error}", member.name()))
                    .unwrap_or_default();
            }
        }
        Ok(curves)
    }

    /// Measures all drives, one after another, with so many commands in flight and that limit for a read.
    pub(crate) fn measure(&self, located: &[Located], how: (u32, Duration), curves: &mut [Option<ReadCurve>]) {
        for ((drive, member), curve) in (0u16..).zip(&self.shared.members).zip(curves) {
            let Some(member) = member else { continue };
            match measure::measure((drive, member), located, how, &*self.shared.driving.clock) {
                Ok(measured) => *curve = measured,
                // Look-ups will meet it too, and bring the drive back.
                Err(error) => tracing::warn!("{}: its read curve could not be measured: {error}", member.name()),
            }
            if let Some(curve) = curve {
                tracing::debug!("{}: {curve}", member.name());
            }
        }
    }

    /// Fills a DRAM tier for tables; tells of bytes read.
    pub(crate) fn attach(
        &self,
        located: Vec<Located>,
        options: HostOptions,
        curves: Vec<Option<ReadCurve>>,
        read: &mut dyn FnMut(usize),
    ) -> Result<Arc<Attached>, StoreError> {
        self.shared.watch()?;
        let (located, overlays): (Vec<Located>, Vec<_>) = self.shared.with_overlays(located).into_iter().unzip();
        let parts: Vec<Part> = located.iter().map(|it| Part::of(it.table(), it.table().row_bytes())).collect();
        let hot = share(&parts, options.dram_bytes);
        let mut bytes = 0u64;
        let mut place = |len: u64| {
            let begin = bytes.next_multiple_of(ALIGN);
            bytes = begin + len;
            begin
        };
        let mut tables = Vec::with_capacity(located.len());
        for ((located, overlay), hot_rows) in located.into_iter().zip(overlays).zip(hot) {
            let row_bytes = u64::from(located.table().row_bytes());
            tables.push(HostTable {
                hot_rows,
                dram_byte: place(hot_rows * row_bytes),
                default_byte: place(row_bytes) as usize,
                order: OnceLock::new(),
                overlay,
                located,
            });
        }
        let mut dram = Memory::new(bytes, "the DRAM tier")?;
        for table in &tables {
            self.fill(table, &options, dram.bytes_mut(), read)?;
        }
        let store = self.shared.clone();
        let joinings = options.merging.joinings(&curves, &store.members);
        Ok(Arc::new(Attached { store, tables, dram, options, curves, joinings }))
    }

    /// Reads a table's hot rows into `dram`, and sets its default row.
    fn fill(
        &self,
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
        let crcs = row_crcs(&self.shared, &table.located, options)?;
        let (mut damaged, mut overridden) = (None, None);
        let mut is_overridden = |rank: u64| {
            let find = || self.shared.overridden(&table.located).unwrap_or_default();
            overridden.get_or_insert_with(find).contains(&rank)
        };
        self.scan_located(&table.located, 0..table.hot_rows, &mut |rank, row| {
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
            Some(rank) => Err(self.shared.damaged_row(&table.located, rank)),
        }
    }
}

impl Host {
    /// Prepares look-ups of `features`: reads their tables' permutations, takes queue pairs and allocates everything that look-ups
    /// of its slots will need.
    pub fn plan(&self, features: &[Feature], options: PlanOptions) -> Result<Plan, StoreError> {
        Plan::new(&self.inner, features, options)
    }

    /// The read curves that decide which rows share a command: drives by name, `None` where neighbours do.
    pub fn read_curves(&self) -> Vec<(String, Option<ReadCurve>)> {
        let attached = self.inner.current();
        let members = attached.store.members.iter().zip(&attached.curves);
        members.filter_map(|(member, curve)| Some((member.as_ref()?.name().to_owned(), curve.clone()))).collect()
    }

    /// Rows of `table` in the DRAM tier: its hottest. `None`: there is no such table.
    pub fn hot_rows(&self, table: &str) -> Option<u64> {
        let attached = self.inner.current();
        attached.tables.iter().find(|it| it.located.table().name == table).map(|table| table.hot_rows)
    }
}

/// Rows of a table that memory may be given to, from some rank on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub rows: u64,
    /// How many of them the table's hint asks for.
    pub hint: u64,
    /// What one takes.
    pub row_bytes: u64,
}

impl Part {
    /// All rows of a table.
    pub(crate) fn of(table: &Table, row_bytes: u32) -> Self {
        Self { rows: table.rows, hint: table.hot_rows.min(table.rows), row_bytes: row_bytes.into() }
    }

    fn bytes(&self, rows: u64) -> u64 {
        rows.saturating_mul(self.row_bytes)
    }
}

/// How many rows of each part `budget` bytes hold: what the hints ask for, cut in proportion if that is too much; what is left by the
/// bytes of the other rows.
pub(crate) fn share(parts: &[Part], budget: u64) -> Vec<u64> {
    let hinted = parts.iter().map(|it| it.bytes(it.hint)).fold(0, u64::saturating_add);
    let left = budget.saturating_sub(hinted);
    let others = parts.iter().map(|it| it.bytes(it.rows - it.hint)).fold(0, u64::saturating_add);
    parts.iter().map(|it| scaled(it.hint, budget, hinted) + scaled(it.rows - it.hint, left, others)).collect()
}

/// Of `rows`, as many as `part` is of `whole`.
pub(crate) fn scaled(rows: u64, part: u64, whole: u64) -> u64 {
    match whole <= part {
        true => rows,
        false => (u128::from(rows) * u128::from(part) / u128::from(whole.max(1))) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_layout::{DType, Region, RowPacking};

    fn table(rows: u64, dim: u32, hot_rows: u64) -> Table {
        Table {
            name: String::new(),
            rows,
            dim,
            dtype: DType::F32,
            hot_rows,
            default_row: None,
            rows_region: Region { first_lba: 0, lbas: 0 },
            ranks: None,
            keys: None,
            crc_region: None,
            packing: RowPacking::new(dim * 4, 512, 64).unwrap(),
        }
    }

    #[test]
    fn hints_come_first() {
        let tables = [table(1000, 128, 100), table(1000, 16, 0)];
        let parts: Vec<Part> = tables.iter().map(|it| Part::of(it, it.row_bytes())).collect();
        let share = |budget| share(&parts, budget);
        assert_eq!(share(0), [0, 0]);
        assert_eq!(share(512 * 50), [50, 0]);
        assert_eq!(share(512 * 100), [100, 0]);
        // 900 · 512 B and 1000 · 64 B remain.
        assert_eq!(share(512 * 100 + (900 * 512 + 1000 * 64) / 2), [550, 500]);
        assert_eq!(share(u64::MAX), [1000, 1000]);
    }
}
