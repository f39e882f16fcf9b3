//! Prepared look-ups: features resolved, buffers allocated, queue pairs taken.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use warprow_driver::DriverError;
use warprow_layout::Drive;

use super::{Attached, HostTable, Order};
use crate::feature::{Feature, PlanOptions};
use crate::host::adopt::Hosting;
use crate::host::slot::{Slot, State};
use crate::resolve::{Resolved, ResolvedFeature, ResolvedTable, handed_out, resolve};
use crate::stage::RouteTable;
use warprow_store::StoreError;
use warprow_store::view::Overlay;
use warprow_store::view::SparseIds;
use warprow_store::view::lock;

/// Look-ups of a list of features, prepared. Clones share its slots.
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
/// # let host = Host::attach(&store, HostOptions::default())?;
/// // Two features over one table, each summed over its bags: their columns lie side by side.
/// let features = ["seen", "bought"].map(|name| Feature::new(name, "user").pooling(Pooling::Sum));
/// let plan = host.plan(&features, PlanOptions::default().with_max(64, 1000).with_slots(2))?;
/// assert_eq!(plan.width(), 8);
/// let (_one, _other) = (plan.slot()?, plan.slot()?);       // one for each thread that looks up
/// assert!(matches!(plan.slot(), Err(StoreError::QueueBusy { slots: 2 })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) inner: Arc<Planned>,
}

/// A plan: its slots, and what their look-ups read at present.
#[derive(Debug)]
pub(crate) struct Planned {
    source: Vec<Feature>,
    options: PlanOptions,
    current: RwLock<Arc<Prepared>>,
    room: Room,
    /// Slots that nobody uses.
    idle: Mutex<Vec<State>>,
}

/// What a look-up reads, from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub host: Arc<Attached>,
    pub features: Vec<ResolvedFeature>,
    pub tables: Vec<ResolvedTable>,
    /// In the order of `tables`.
    pub routes: Vec<RouteTable>,
    /// Checksums of rows by rank, likewise; `None`: nothing is checked.
    pub crcs: Vec<Option<Arc<Vec<u32>>>>,
    /// What sparse ids are found by, likewise; `None`: ids are below the number of rows.
    pub sparse: Vec<Option<SparseIds>>,
    /// Updated rows of the generations that the tables are of.
    pub overlays: Vec<Arc<Overlay>>,
    pub options: PlanOptions,
    pub pooled: bool,
    /// Elements of an output row.
    pub width: usize,
    /// The latest generation read.
    pub generation: u64,
    /// Whether a feature is weighted.
    pub weighted: bool,
}

/// What the buffers of a plan's slots have room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Different rows on drives in one look-up.
    pub cold: usize,
}

impl Prepared {
    /// Resolves features against the tables of `host`, and reads their orders.
    fn new(host: Arc<Attached>, features: &[Feature], options: PlanOptions) -> Result<Self, StoreError> {
        let known = host.tables.iter().map(|table| table.located.table());
        let Resolved { features: planned, mut tables, pooled, width } = resolve(known, features, &options)?;
        // Rows of eight-bit floats that come out as such are copied: bytes.
        tables
            .iter_mut()
            .filter(|table| table.dtype == options.out)
            .for_each(|table| table.dtype = handed_out(table.dtype));
        let options = PlanOptions { out: handed_out(options.out), ..options };
        for table in &mut tables {
            table.default_byte = host.tables[table.given].default_byte;
        }
        let of_table = |table: &ResolvedTable| &host.tables[table.given];
        let orders = tables.iter().map(|table| host.order(of_table(table))).collect::<Result<Vec<_>, _>>()?;
        let mut overlays: Vec<Arc<Overlay>> = Vec::new();
        for (table, order) in tables.iter_mut().zip(&orders) {
            let known = overlays.iter().position(|it| Arc::ptr_eq(it, &order.overlay));
            let overlay = known.unwrap_or_else(|| {
                overlays.push(order.overlay.clone());
                overlays.len() - 1
            });
            table.overlay = (overlay as u16, host.tables[table.given].located.index as u32);
        }
        let of_table = |table: &ResolvedTable| &host.tables[table.given];
        Ok(Self {
            overlays,
            routes: orders.iter().zip(&tables).map(|(order, table)| route_of(of_table(table), order)).collect(),
            sparse: orders.iter().map(|order| order.sparse.clone()).collect(),
            crcs: orders.into_iter().map(|order| order.crcs).collect(),
            generation: tables.iter().map(|it| of_table(it).located.generation.id).max().unwrap_or(0),
            weighted: planned.iter().any(|feature| feature.weighted),
            features: planned,
            tables,
            options,
            pooled,
            width,
            host,
        })
    }

    /// The room that its look-ups need.
    fn room(&self) -> Room {
        let cold: u64 = self.tables.iter().zip(&self.routes).map(|(table, route)| table.rows - route.hot_rows).sum();
        Room {
            row_bytes: self.tables.iter().map(|table| table.row_bytes).max().unwrap_or(0),
            cold: usize::try_from(cold).unwrap_or(usize::MAX).min(self.options.max_ids),
        }
    }

    /// Why slots of `room`, made for look-ups like `before`, cannot do these.
    fn unfit(&self, before: &Self, room: Room) -> Option<String> {
        let shape = |it: &Self| it.features.iter().map(|feature| (feature.table, feature.dim)).collect::<Vec<_>>();
        let need = self.room();
        match () {
            () if shape(self) != shape(before) => Some("rows of a table have another number of elements".to_owned()),
            () if need.row_bytes > room.row_bytes => Some(format!(
                "a row has {} bytes, its buffers take {}: plan with PlanOptions::with_growth",
                need.row_bytes, room.row_bytes
            )),
            () if need.cold > room.cold => Some(format!(
                "{} rows of one look-up may lie on drives, its buffers take {}: plan with PlanOptions::with_growth",
                need.cold, room.cold
            )),
            () => None,
        }
    }
}

impl Plan {
    pub(crate) fn new(host: &Hosting, features: &[Feature], options: PlanOptions) -> Result<Self, StoreError> {
        let mut prepared = Arc::new(Prepared::new(host.current(), features, options.clone())?);
        let mut room = prepared.room();
        if options.growth {
            let widest = prepared.tables.iter().map(|table| table.dim * size_of::<f32>()).max().unwrap_or(0);
            room = Room { row_bytes: room.row_bytes.max(widest), cold: options.max_ids };
        }
        let slots = (0..options.slots).map(|made| State::new(&prepared, room, made)).collect::<Result<Vec<_>, _>>()?;
        let (source, idle) = (features.to_vec(), Mutex::new(slots));
        // The host may have adopted other tables meanwhile.
        loop {
            if let Some(mut plans) = host.plans_of(&prepared.host) {
                let current = RwLock::new(prepared);
                let inner = Arc::new(Planned { source, options, current, room, idle });
                plans.push(Arc::downgrade(&inner));
                return Ok(Self { inner });
            }
            let newer = Arc::new(Prepared::new(host.current(), features, options.clone())?);
            if let Some(why) = newer.unfit(&prepared, room) {
                return Err(StoreError::Unfit { why });
            }
            prepared = newer;
        }
    }

    /// Takes a slot, until it is dropped. `Err(QueueBusy)` if all are taken.
    pub fn slot(&self) -> Result<Slot, StoreError> {
        match lock(&self.inner.idle).pop() {
            Some(state) => Ok(Slot::new(self.inner.clone(), state)),
            None => Err(StoreError::QueueBusy { slots: self.inner.options.slots }),
        }
    }

    /// Elements of an output row: all features side by side if they are pooled, else the widest.
    pub fn width(&self) -> usize {
        self.inner.current().width
    }

    /// Whether its features are pooled.
    pub fn is_pooled(&self) -> bool {
        self.inner.current().pooled
    }

    /// Elements of an output row that belong to feature number `feature`; `None`: there is no such feature.
    pub fn columns(&self, feature: usize) -> Option<Range<usize>> {
        self.inner.current().features.get(feature).map(|feature| feature.column..feature.column + feature.dim)
    }

    /// The latest generation among those that it reads at present.
    pub fn generation(&self) -> u64 {
        self.inner.current().generation
    }

    /// Its options.
    pub fn options(&self) -> &PlanOptions {
        &self.inner.options
    }
}

impl Planned {
    /// What a look-up that begins now reads. Holding it pins its generations.
    #[inline]
    pub(crate) fn current(&self) -> Arc<Prepared> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same plan on other tables, if its slots can do that.
    pub(crate) fn on(&self, host: Arc<Attached>) -> Result<Arc<Prepared>, StoreError> {
        let prepared = Prepared::new(host, &self.source, self.options.clone())?;
        match prepared.unfit(&self.current(), self.room) {
            None => Ok(Arc::new(prepared)),
            Some(why) => Err(StoreError::Unfit { why }),
        }
    }

    /// Look-ups that begin from now on read `next`; what they read before.
    pub(crate) fn replace(&self, next: Arc<Prepared>) -> Arc<Prepared> {
        std::mem::replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), next)
    }

    /// Takes a slot back.
    pub(crate) fn give_back(&self, state: State) {
        lock(&self.idle).push(state);
    }
}

impl Prepared {
    pub(crate) fn table(&self, table: u16) -> &ResolvedTable {
        &self.tables[usize::from(table)]
    }

    pub(crate) fn host_table(&self, table: u16) -> &HostTable {
        &self.host.tables[self.table(table).given]
    }
}

fn route_of(source: &HostTable, order: &Order) -> RouteTable {
    let table = source.located.table();
    RouteTable {
        ranks: order.ranks.clone(),
        hot_rows: source.hot_rows,
        dram_byte: source.dram_byte,
        packing: table.packing,
        first_lba: table.rows_region.first_lba,
        placement: source.located.generation.placement.clone(),
    }
}

/// The error of a queue pair that could not be had for a plan.
pub(crate) fn queue_error(error: DriverError, plan: &Prepared, drive: &dyn Drive, free: u32) -> StoreError {
    match error {
        DriverError::NoQueueLeft { .. } => StoreError::Queues {
            drive: drive.name().to_owned(),
            slots: plan.options.slots,
            workers: plan.host.options.workers,
            free,
        },
        error => error.into(),
    }
}
