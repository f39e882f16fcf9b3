//! The host executor: hot rows in DRAM, the others read from drives by the CPU.

mod adopt;
mod check;
mod expand;
mod memory;
mod plan;
mod prefetch;
mod read;
mod rows_out;
mod slot;

pub use self::adopt::Upcoming;
pub use self::plan::Plan;
pub use self::slot::Slot;

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use warprow_layout::{Drive, Ranks};

use self::adopt::Hosting;
use self::memory::Memory;
use crate::feature::{Feature, PlanOptions};
use crate::merging::Merging;
use crate::report::{Metrics, Totals};
use crate::share::{Part, share};
use crate::stage::Joining;
use warprow_store::view::Overlay;
use warprow_store::view::SparseIds;
use warprow_store::view::{StoreView, TableVersion};
use warprow_store::{ReadCurve, Store, StoreError};

/// How look-ups run on the host.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
/// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// // Memory for 10 rows, every row from drives checked, and rows of neighbouring LBAs read by one command.
/// let options = HostOptions::default().with_dram_bytes(160).with_merging(Merging::Neighbours);
/// let host = Host::attach(&store, options)?;
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
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
/// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// // 100 rows of 16 bytes stay in memory.
/// let host = Host::attach(&store, HostOptions::default().with_dram_bytes(1600))?;
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
    pub store: StoreView,
    pub totals: Arc<Totals>,
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
    pub located: TableVersion,
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
            // It is damaged: this says how.
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

impl Host {
    /// Prepares look-ups of `store` by the host: fills the DRAM tier. Permutations are read when their tables are first planned for.
    pub fn attach(store: &Store, options: HostOptions) -> Result<Self, StoreError> {
        let out_of_range = |reason: &str| StoreError::PlanOptions { reason: reason.to_owned() };
        if options.workers == 0 || options.workers > 128 {
            return Err(out_of_range("a slot has 1 to 128 workers"));
        }
        if options.depth == 0 {
            return Err(out_of_range("a depth of 0 reads nothing"));
        }
        let store = store.view();
        let (tables, mut curves) = (store.tables(), options.merging.given(store.drives().len())?);
        if options.merging == Merging::Measured {
            store.watch()?;
            let timeout = options.timeout.unwrap_or(store.timeout());
            store.measure_reads(&tables, options.depth, timeout, &mut curves);
        }
        let attached = Attached::new(&store, tables, options, curves, Arc::default(), &mut |_| {})?;
        Ok(Self { inner: Arc::new(Hosting::new(attached)) })
    }

    /// The store.
    pub fn store(&self) -> Store {
        self.inner.current().store.store()
    }

    /// Totals over all look-ups of this host and its clones since it was attached.
    pub fn metrics(&self) -> Metrics {
        let attached = self.inner.current();
        let drives = attached.store.store().drive_states();
        let drives_failed = drives.iter().filter(|drive| drive.failure.is_some()).count() as u64;
        Metrics { drives_failed, ..attached.totals.snapshot() }
    }
}

impl Attached {
    /// Fills a DRAM tier for tables; tells of bytes read.
    pub(crate) fn new(
        store: &StoreView,
        located: Vec<TableVersion>,
        options: HostOptions,
        curves: Vec<Option<ReadCurve>>,
        totals: Arc<Totals>,
        read: &mut dyn FnMut(usize),
    ) -> Result<Arc<Self>, StoreError> {
        store.watch()?;
        let (located, overlays): (Vec<TableVersion>, Vec<_>) = store.with_overlays(located).into_iter().unzip();
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
            fill(store, table, &options, dram.bytes_mut(), read)?;
        }
        let joinings = options.merging.joinings(&curves, store.drives());
        Ok(Arc::new(Self { store: store.clone(), tables, dram, options, curves, joinings, totals }))
    }
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

impl Host {
    /// Prepares look-ups of `features`: reads their tables' permutations, takes queue pairs and allocates everything that look-ups
    /// of its slots will need.
    pub fn plan(&self, features: &[Feature], options: PlanOptions) -> Result<Plan, StoreError> {
        Plan::new(&self.inner, features, options)
    }

    /// The read curves that decide which rows share a command: drives by name, `None` where neighbours do.
    pub fn read_curves(&self) -> Vec<(String, Option<ReadCurve>)> {
        let attached = self.inner.current();
        let members = attached.store.drives().iter().zip(&attached.curves);
        members.filter_map(|(member, curve)| Some((member.as_ref()?.name().to_owned(), curve.clone()))).collect()
    }

    /// Rows of `table` in the DRAM tier: its hottest. `None`: there is no such table.
    pub fn hot_rows(&self, table: &str) -> Option<u64> {
        let attached = self.inner.current();
        attached.tables.iter().find(|it| it.located.table().name == table).map(|table| table.hot_rows)
    }
}
