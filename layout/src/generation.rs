//! A generation: one version of a model's tables, on chunks of its own.

use std::sync::Arc;

use uuid::Uuid;

use crate::error::VolumeError;
use crate::geometry::Geometry;
use crate::placement::{ChunkRef, Placement, RowAddress, RowPacking};
use crate::ranks::RankWidth;
use crate::table::{LbaRegion, MAX_NAME, StoredKeys, StoredRanks, Table, TableSpec};

/// Bytes of a stripe unit, unless rows are larger or a drive moves less in one command.
pub const DEFAULT_STRIPE_UNIT: u32 = 32 << 10;

/// Tables that a generation may have.
pub const MAX_TABLES: usize = 1 << 16;

/// Which of a drive's free chunks a generation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChunkSpread {
    /// The lowest: for drives that place by write order (flash).
    #[default]
    Packed,
    /// Evenly over all that are free: for drives where address is place (Optane).
    Whole,
}

/// A generation to be created.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationSpec {
    /// The model's name; 1 to [`MAX_NAME`] bytes. Several generations may have it: names of tables find the one that
    /// was shown last.
    pub name: String,
    /// The tables, at least one.
    pub tables: Vec<TableSpec>,
    /// Bytes of a stripe unit: a power of two, at least an LBA and the largest row, at most a chunk. `None`: 32 KiB, more
    /// for larger rows, less for drives that cannot transfer as much in one command.
    pub stripe_unit: Option<u32>,
    /// Which free chunks to take.
    pub span: ChunkSpread,
    /// The identity of the commit that will bring it. `None`: random.
    pub commit: Option<Uuid>,
    /// Whether the generation is on standby at first: names of tables do not find its tables before it is
    /// [switched](crate::Volume::switch) to.
    pub standby: bool,
}

impl GenerationSpec {
    /// A generation with the default stripe unit and span.
    pub fn new(name: impl Into<String>, tables: Vec<TableSpec>) -> Self {
        Self {
            name: name.into(),
            tables,
            stripe_unit: None,
            span: ChunkSpread::default(),
            commit: None,
            standby: false,
        }
    }
}

/// One version of a model's tables. A value never changes; a commit that changes a generation puts another value of the
/// same id into the catalogue.
///
/// A generation's chunks are not given to another generation while it is in the catalogue, nor afterwards while an [`Arc`] of it lives:
/// holding the `Arc` is what pins it. Whoever reads through its [`placement`](Self::placement) must hold one until the last
/// of its reads has left the drives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Never given twice in a store; later generations have higher ones.
    pub id: u64,
    /// The epoch whose commit brought it.
    pub epoch: u64,
    /// The model's name.
    pub name: String,
    /// The tables, in the order of the [`GenerationSpec`].
    pub tables: Vec<Table>,
    /// Where the LBAs of the generation's address space lie on the drives.
    pub placement: Arc<Placement>,
    /// The epoch in which the generation was last switched to; 0: it is on standby, and names of tables do not find its
    /// tables.
    pub shown: u64,
    /// Updates up to this sequence number are in the rows of the placement's chunks.
    pub base_sequence: u64,
    /// The log of later updates.
    pub log: Vec<LogChunk>,
}

/// A chunk of a generation's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogChunk {
    /// The chunk.
    pub chunk: ChunkRef,
    /// How many units count. `None`: the chunk is open, and its valid units from the first on count; only the last
    /// chunk of a log may be open.
    pub units: Option<u32>,
    /// The epoch of the commit that allotted it.
    pub epoch: u64,
    /// The identity of that commit.
    pub commit: Uuid,
    /// The sequence number of the chunk's first record.
    pub first: u64,
}

/// Bytes of a log chunk in the catalogue.
pub(crate) const LOG_ENTRY: u64 = 40;

/// Chunks that a log may have.
pub const MAX_LOG_CHUNKS: usize = 256;

impl Generation {
    /// The index of table `name`.
    pub fn table_index(&self, name: &str) -> Option<usize> {
        self.tables.iter().position(|table| table.name == name)
    }

    /// The table `name`.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// All chunks of the generation: those of its map and those of its log.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = ChunkRef> + '_ {
        self.placement.map().iter().copied().chain(self.log.iter().map(|log| log.chunk))
    }

    /// Where row `rank` of table `table` lies; `None` past the last table or row.
    #[inline]
    pub fn row(&self, table: usize, rank: u64) -> Option<RowAddress> {
        let table = self.tables.get(table)?;
        let (index, byte) = table.locate(rank)?;
        let (drive, lba) = self.placement.locate(index)?;
        Some(RowAddress { lba, drive, byte, lbas: table.packing.row_lbas() })
    }
}

/// The parts of a generation laid out in LBA space, before chunks are found for it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub tables: Vec<Table>,
    /// log₂ of the bytes in a stripe unit.
    pub stripe_shift: u32,
    /// Stripe units in all.
    pub units: u64,
}

impl Plan {
    /// Lays `spec` out for drives that can move `max_transfer` bytes in one command.
    pub(crate) fn new(spec: &GenerationSpec, geometry: &Geometry, max_transfer: usize) -> Result<Self, VolumeError> {
        let invalid = |reason: String| VolumeError::InvalidGeneration { name: spec.name.clone(), reason };
        if spec.name.is_empty() || spec.name.len() > MAX_NAME {
            return Err(invalid(format!("its name must have 1 to {MAX_NAME} bytes, not {}", spec.name.len())));
        }
        if spec.tables.is_empty() || spec.tables.len() > MAX_TABLES {
            return Err(invalid(format!("it must have 1 to {MAX_TABLES} tables, not {}", spec.tables.len())));
        }
        let lba_size = geometry.lba_size();
        let mut largest = lba_size;
        let mut names = std::collections::HashSet::new();
        for table in &spec.tables {
            largest = largest.max(table.check_row(lba_size, max_transfer)?);
            if !names.insert(&table.name) {
                return Err(table.invalid("there are two tables of that name"));
            }
        }
        let stripe_unit = match spec.stripe_unit {
            Some(unit) => unit,
            None => {
                let transfer = 1u32 << max_transfer.clamp(1, 1 << 30).ilog2();
                DEFAULT_STRIPE_UNIT.min(transfer).max(largest.next_power_of_two())
            }
        };
        if !stripe_unit.is_power_of_two() || stripe_unit < largest || u64::from(stripe_unit) > geometry.chunk_size() {
            return Err(invalid(format!(
                "a stripe unit of {stripe_unit} bytes is no power of two from {largest} (an LBA and the largest row) to {} (a \
                 chunk)",
                geometry.chunk_size()
            )));
        }
        let stripe_lbas = stripe_unit / lba_size;
        let mut units = 0u64;
        let mut region = |lbas: Option<u64>| {
            let count = lbas?.div_ceil(u64::from(stripe_lbas));
            let first = units;
            units = units.checked_add(count).filter(|units| units.checked_mul(u64::from(stripe_unit)).is_some())?;
            Some(LbaRegion { first_lba: first * u64::from(stripe_lbas), lbas: count * u64::from(stripe_lbas) })
        };
        let mut tables = Vec::with_capacity(spec.tables.len());
        for table in &spec.tables {
            let huge = || table.invalid("it passes 2⁶⁴ bytes");
            let packing = RowPacking::new(table.check()?, lba_size, stripe_lbas).ok_or_else(huge)?;
            let array = |width: u32| table.rows.checked_mul(u64::from(width)).map(|n| n.div_ceil(u64::from(lba_size)));
            let rows_region = region(packing.lbas(table.rows)).ok_or_else(huge)?;
            let width = RankWidth::for_rows(table.rows);
            let ranks = match table.permuted {
                true => {
                    let region = region(array(width.bytes())).ok_or_else(huge)?;
                    Some(StoredRanks { region, width, crc: 0 })
                }
                false => None,
            };
            let keys = match table.keys {
                Some(spec) => {
                    let index = region(Some(spec.index_bytes.div_ceil(u64::from(lba_size)))).ok_or_else(huge)?;
                    let keys = match spec.stored {
                        true => Some(region(array(8)).ok_or_else(huge)?),
                        false => None,
                    };
                    Some(StoredKeys { spec, index, index_crc: 0, keys, keys_crc: 0 })
                }
                None => None,
            };
            let crc_region = match table.row_crc {
                true => Some(region(array(4)).ok_or_else(huge)?),
                false => None,
            };
            tables.push(Table {
                name: table.name.clone(),
                rows: table.rows,
                dim: table.dim,
                dtype: table.dtype,
                hot_rows: table.hot_rows.min(table.rows),
                default_row: table.default_row.as_deref().map(Into::into),
                rows_region,
                ranks,
                keys,
                crc_region,
                packing,
            });
        }
        Ok(Self { tables, stripe_shift: stripe_unit.trailing_zeros(), units })
    }

    /// The placement over `map`.
    pub(crate) fn placement(&self, map: Vec<ChunkRef>, geometry: &Geometry) -> Placement {
        geometry.placement(map, self.stripe_shift)
    }
}
