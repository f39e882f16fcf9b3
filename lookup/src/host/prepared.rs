//! Features resolved against the tables that a host reads.

use std::sync::Arc;

use warprow_driver::DriverError;
use warprow_layout::Drive;
use warprow_store::StoreError;
use warprow_store::view::{Overlay, SparseIds};

use super::attached::{Attached, HostTable, Order};
use crate::feature::{Feature, PlanOptions};
use crate::resolve::{Resolved, ResolvedFeature, ResolvedTable, output_type, resolve};
use crate::stage::{BitmapShape, RouteTable};

/// A plan's features resolved against the tables of a host. A look-up reads one value of this type from its beginning
/// to its end, so that it sees the tables of one moment.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub host: Arc<Attached>,
    pub features: Vec<ResolvedFeature>,
    pub tables: Vec<ResolvedTable>,
    /// Where the rows of each table lie, in the order of `tables`.
    pub routes: Vec<RouteTable>,
    /// Checksums of each table's rows, by rank, in the order of `tables`; `None`: the table's rows are not checked.
    pub crcs: Vec<Option<Arc<Vec<u32>>>>,
    /// The key index of each table, in the order of `tables`; `None`: the table has no keys, and its ids are below the
    /// number of rows.
    pub sparse: Vec<Option<SparseIds>>,
    /// Updated rows of the generations that the tables are of.
    pub overlays: Vec<Arc<Overlay>>,
    pub options: PlanOptions,
    /// The shape of the bitmap that different rows in DRAM are counted in.
    pub row_bits: BitmapShape,
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
    pub(super) fn new(host: Arc<Attached>, features: &[Feature], options: PlanOptions) -> Result<Self, StoreError> {
        let known = host.tables.iter().map(|table| table.located.table());
        let Resolved { features: planned, mut tables, pooled, width } = resolve(known, features, &options)?;
        // Eight-bit floats that the output has as eight-bit floats are copied as bytes.
        tables
            .iter_mut()
            .filter(|table| table.dtype == options.out)
            .for_each(|table| table.dtype = output_type(table.dtype));
        let options = PlanOptions { out: output_type(options.out), ..options };
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
        let row_bits =
            BitmapShape::new(host.dram.bytes().len(), tables.iter().map(|table| table.row_bytes).min().unwrap_or(1));
        let of_table = |table: &ResolvedTable| &host.tables[table.given];
        Ok(Self {
            row_bits,
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

    /// The room that look-ups need.
    pub(super) fn room(&self) -> Room {
        let cold: u64 = self.tables.iter().zip(&self.routes).map(|(table, route)| table.rows - route.hot_rows).sum();
        Room {
            row_bytes: self.tables.iter().map(|table| table.row_bytes).max().unwrap_or(0),
            cold: usize::try_from(cold).unwrap_or(usize::MAX).min(self.options.max_ids),
        }
    }

    /// Why slots that have `room`, and were made for look-ups of `before`, cannot do look-ups of `self`; `None`: they
    /// can.
    pub(super) fn unfit(&self, before: &Self, room: Room) -> Option<String> {
        let shape = |it: &Self| it.features.iter().map(|feature| (feature.table, feature.dim)).collect::<Vec<_>>();
        let need = self.room();
        match () {
            () if shape(self) != shape(before) => Some("rows of a table have another number of elements".to_owned()),
            () if need.row_bytes > room.row_bytes => Some(format!(
                "a row has {} bytes, its buffers take {}: plan with PlanOptions::with_adopt_room",
                need.row_bytes, room.row_bytes
            )),
            () if need.cold > room.cold => Some(format!(
                "{} rows of one look-up may lie on drives, its buffers take {}: plan with PlanOptions::with_adopt_room",
                need.cold, room.cold
            )),
            () => None,
        }
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
        chosen: source.chosen.clone(),
        dram_byte: source.dram_byte,
        packing: table.packing,
        first_lba: table.rows_region.first_lba,
        placement: source.located.generation.placement.clone(),
    }
}

/// The error for a plan that could not get a queue pair on `drive`, when it had got `free` of them.
pub(crate) fn queue_error(error: DriverError, plan: &Prepared, drive: &dyn Drive, free: u32) -> StoreError {
    match error {
        DriverError::NoQueueLeft { .. } => StoreError::Queues {
            drive: drive.name().to_owned(),
            slots: plan.options.slots,
            queue_pairs: plan.host.options.queue_pairs,
            free,
        },
        error => error.into(),
    }
}
