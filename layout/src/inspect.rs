//! What `inspect` prints about a volume, in words and numbers.

use serde::Serialize;
use uuid::Uuid;

use crate::block::{UNIT, VERSION};
use crate::error::VolumeError;
use crate::generation::Generation;
use crate::ranks::RankWidth;
use crate::table::Table;
use crate::volume::Volume;

/// What there is in a store.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoreInspection {
    /// The store's identity.
    pub store: Uuid,
    /// Format version, `major.minor`.
    pub format_version: String,
    /// The store's epoch: one more than the commits since the store was made.
    pub epoch: u64,
    /// Why the store cannot be written; `None`: it can.
    pub read_only: Option<String>,
    /// Bytes of an LBA.
    pub lba_size: u32,
    /// Bytes of a chunk.
    pub chunk_size: u64,
    /// Bytes that the serialised catalogue has.
    pub catalogue_bytes: u64,
    /// Bytes that the serialised catalogue may have.
    pub catalogue_capacity: u64,
    /// The drives.
    pub members: Vec<MemberInspection>,
    /// The generations, oldest first.
    pub generations: Vec<GenerationInspection>,
}

/// A drive.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemberInspection {
    /// The member's identity.
    pub uuid: Uuid,
    /// The serial that it had when it was formatted.
    pub serial: String,
    /// The name under which it was opened; `None`: it is missing.
    pub drive: Option<String>,
    /// Bytes of the drive.
    pub bytes: u64,
    /// Chunks on the drive.
    pub chunks: u32,
    /// Chunks that a generation may be given.
    pub free_chunks: u64,
}

/// A generation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GenerationInspection {
    /// The generation's id.
    pub id: u64,
    /// The model's name.
    pub name: String,
    /// The epoch whose commit brought it.
    pub epoch: u64,
    /// Whether this generation, of all that have its name, was shown last, so that names of tables find its tables.
    pub latest: bool,
    /// The epoch in which it was last switched to; 0: standby.
    pub shown: u64,
    /// Bytes of a stripe unit.
    pub stripe_unit: u64,
    /// Chunks on each member.
    pub chunks: Vec<u64>,
    /// The member of each of its chunks, in the order of its chunk map.
    #[serde(skip)]
    pub chunk_members: Vec<u16>,
    /// Bytes of its chunks.
    pub bytes: u64,
    /// The generation's tables.
    pub tables: Vec<TableInspection>,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableInspection {
    /// The table's name.
    pub name: String,
    /// Rows of the table.
    pub rows: u64,
    /// Elements in a row.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: crate::DType,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Rows that share an LBA; 1 for larger ones.
    pub rows_per_lba: u32,
    /// LBAs to read for a row.
    pub lbas_per_row: u32,
    /// Entry width of its id → rank permutation; `None`: rank = id.
    pub ranks: Option<RankWidth>,
    /// The table's keys; `None`: it is looked up by ids from 0 on.
    pub keys: Option<KeysInspection>,
    /// How many of the first ranks are worth keeping in memory.
    pub hot_rows: u64,
    /// Whether rows have checksums.
    pub row_crc: bool,
    /// Whether the default row is another than zeros.
    pub default_row: bool,
    /// Bytes on the drives: rows, ranks, keys and checksums with their padding.
    pub bytes: u64,
}

/// A chunk of a generation's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogChunkInspection {
    /// The member that it lies on.
    pub member: u16,
    /// The name under which that member was opened; `None`: the member is missing.
    pub drive: Option<String>,
    /// Units of updates that count.
    pub units: u32,
    /// Bytes of these units.
    pub bytes: u64,
    /// Whether the catalogue says how many units count. The last chunk of a log may be open: then its whole units from
    /// the first on count.
    pub sealed: bool,
}

/// The keys of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeysInspection {
    /// Whether the keys are signed: `i64` rather than `u64`.
    pub signed: bool,
    /// Bits of the fingerprint by which foreign keys are told.
    pub fingerprint_bits: u32,
    /// Bytes of their index.
    pub index_bytes: u64,
    /// Whether the keys themselves are stored.
    pub stored: bool,
}

impl TableInspection {
    fn new(table: &Table, lba_size: u32) -> Self {
        let regions = [Some(table.rows_region), table.ranks.map(|ranks| ranks.region), table.crc_region];
        let keys = table.keys.into_iter().flat_map(|keys| keys.regions());
        Self {
            name: table.name.clone(),
            rows: table.rows,
            dim: table.dim,
            dtype: table.dtype,
            row_bytes: table.row_bytes(),
            rows_per_lba: table.packing.rows_per_lba(),
            lbas_per_row: table.packing.row_lbas(),
            ranks: table.ranks.map(|ranks| ranks.width),
            keys: table.keys.map(|keys| KeysInspection {
                signed: keys.spec.kind == warprow_keys::KeyKind::I64,
                fingerprint_bits: keys.spec.fingerprint.bits(),
                index_bytes: keys.spec.index_bytes,
                stored: keys.spec.stored,
            }),
            hot_rows: table.hot_rows,
            row_crc: table.crc_region.is_some(),
            default_row: table.default_row.as_deref().is_some_and(|row| row.iter().any(|&byte| byte != 0)),
            bytes: regions.into_iter().flatten().chain(keys).map(|region| region.lbas * u64::from(lba_size)).sum(),
        }
    }
}

impl Volume {
    /// The chunks of a generation's log, in their order. Reads the last one, unless the catalogue has its length.
    pub fn inspect_log(&self, generation: &Generation) -> Result<Vec<LogChunkInspection>, VolumeError> {
        let chunk = |log: &crate::LogChunk| {
            let units = match log.units {
                Some(units) => units,
                None => self.read_stream(generation, log)?.units,
            };
            let member = log.chunk.drive();
            Ok(LogChunkInspection {
                member,
                drive: self.drive(member).map(|drive| drive.name().to_owned()),
                units,
                bytes: u64::from(units) * UNIT as u64,
                sealed: log.units.is_some(),
            })
        };
        generation.log.iter().map(chunk).collect()
    }

    /// What there is in this store.
    pub fn inspect(&self) -> StoreInspection {
        let geometry = self.geometry();
        let generations = self.generations();
        let free = self.free_chunks();
        let members =
            (0u16..).zip(&geometry.members).zip(free).map(|((index, member), free_chunks)| MemberInspection {
                uuid: member.uuid,
                serial: member.serial.clone(),
                drive: self.drive(index).map(|drive| drive.name().to_owned()),
                bytes: member.lba_count << geometry.lba_shift,
                chunks: member.chunk_count,
                free_chunks,
            });
        let per_member = |map: &[crate::ChunkRef]| {
            (0..geometry.members.len() as u16)
                .map(|member| map.iter().filter(|chunk| chunk.drive() == member).count() as u64)
                .collect()
        };
        StoreInspection {
            store: self.store(),
            format_version: format!("{}.{}", VERSION.0, VERSION.1),
            epoch: self.epoch(),
            read_only: self.read_only().map(str::to_owned),
            lba_size: geometry.lba_size(),
            chunk_size: geometry.chunk_size(),
            catalogue_bytes: self.catalogue_bytes(),
            catalogue_capacity: geometry.catalogue_capacity(),
            members: members.collect(),
            generations: generations
                .iter()
                .map(|generation| GenerationInspection {
                    id: generation.id,
                    name: generation.name.clone(),
                    epoch: generation.epoch,
                    latest: generation.shown != 0
                        && !generations
                            .iter()
                            .any(|other| other.name == generation.name && other.shown > generation.shown),
                    shown: generation.shown,
                    stripe_unit: generation.placement.stripe_bytes(),
                    chunks: per_member(generation.placement.map()),
                    chunk_members: generation.placement.map().iter().map(|chunk| chunk.drive()).collect(),
                    bytes: generation.placement.lbas() << geometry.lba_shift,
                    tables: generation
                        .tables
                        .iter()
                        .map(|table| TableInspection::new(table, geometry.lba_size()))
                        .collect(),
                })
                .collect(),
        }
    }
}
