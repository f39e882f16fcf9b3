//! The catalogue: all generations of a store, serialised, and the blocks that carry it.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use uuid::Uuid;
use warprow_keys::{FingerprintWidth, KeyKind};

use crate::block::{self, BlockError, BlockId, Kind, PAYLOAD, UNIT};
use crate::codec::{Ended, Reader, Writer};
use crate::dtype::DType;
use crate::error::{CatalogueError, VolumeError};
use crate::generation::{Generation, LogChunk, MAX_LOG_CHUNKS, MAX_TABLES};
use crate::geometry::Geometry;
use crate::key_spec::KeySpec;
use crate::placement::{ChunkRef, RowPacking};
use crate::ranks::RankWidth;
use crate::superblock::Superblock;
use crate::table::{LbaRegion, StoredKeys, StoredRanks, Table};

/// All generations of a store at one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Catalogue {
    /// The id that the next generation will get. All generations have lower ids.
    pub next_id: u64,
    /// The generations, in the order of their ids.
    pub generations: Vec<Arc<Generation>>,
}

/// Flags of a table record.
const ROW_CRC: u8 = 1 << 0;
const DEFAULT_ROW: u8 = 1 << 1;

/// Added to the kind of ranking of a table that has keys: older versions refuse it as unknown.
const KEYED: u8 = 4;

impl Catalogue {
    /// The byte string that goes into the blocks.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.next_id);
        out.u32(self.generations.len() as u32);
        for generation in &self.generations {
            out.record(|out| {
                let placement = &generation.placement;
                out.u64(generation.id);
                out.u64(generation.epoch);
                out.u32(placement.map().len() as u32);
                out.u32(generation.tables.len() as u32);
                out.u8(placement.stripe_bytes().trailing_zeros() as u8);
                out.u8(0);
                out.u16(generation.name.len() as u16);
                out.bytes(generation.name.as_bytes());
                placement.map().iter().for_each(|chunk| out.u32(chunk.0));
                generation.tables.iter().for_each(|table| out.record(|out| encode_table(out, table)));
                encode_log(out, generation);
            });
        }
        out.0
    }

    /// The catalogue of a store of that geometry in `bytes`, which may be anything.
    pub fn decode(bytes: &[u8], geometry: &Geometry) -> Result<Self, CatalogueError> {
        let mut input = Reader::new(bytes);
        let next_id = input.u64()?;
        let count = input.u32()?;
        let mut catalogue = Self { next_id, generations: Vec::new() };
        let mut taken = HashSet::new();
        for _ in 0..count {
            let generation = decode_generation(&mut input, geometry, &mut taken)?;
            let previous = catalogue.generations.last();
            if generation.id >= next_id || previous.is_some_and(|previous| previous.id >= generation.id) {
                return Err(CatalogueError::Id { id: generation.id });
            }
            catalogue.generations.push(Arc::new(generation));
        }
        Ok(catalogue)
    }

    /// Takes the generation of that id out.
    pub(crate) fn remove(&mut self, id: u64) -> Result<Arc<Generation>, VolumeError> {
        let at = self
            .generations
            .iter()
            .position(|generation| generation.id == id)
            .ok_or(VolumeError::NoSuchGeneration { id })?;
        Ok(self.generations.remove(at))
    }

    /// Puts another version of a generation into its place.
    pub(crate) fn change<T>(
        &mut self,
        id: u64,
        change: impl FnOnce(&mut Generation) -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        let entry = self.generations.iter_mut().find(|generation| generation.id == id);
        let entry = entry.ok_or(VolumeError::NoSuchGeneration { id })?;
        let mut changed = Generation::clone(entry);
        let result = change(&mut changed)?;
        *entry = Arc::new(changed);
        Ok(result)
    }

    /// The names of tables by which a table is found: those of all shown generations.
    pub(crate) fn shown_tables(&self) -> BTreeSet<String> {
        let shown = self.generations.iter().filter(|generation| generation.shown != 0);
        shown.flat_map(|generation| &generation.tables).map(|table| table.name.clone()).collect()
    }

    /// The names of tables that find a table of that generation: where several generations have a table of that name,
    /// the name finds the table of the one that was shown last.
    pub(crate) fn found_tables(&self, id: u64) -> Vec<String> {
        let Some(of) = self.generation(id).filter(|of| of.shown != 0) else { return Vec::new() };
        let later = self.generations.iter().filter(|generation| (generation.shown, generation.id) > (of.shown, of.id));
        let hidden: HashSet<&str> = later.flat_map(|generation| &generation.tables).map(|table| &*table.name).collect();
        let found = of.tables.iter().filter(|table| !hidden.contains(&*table.name));
        found.map(|table| table.name.clone()).collect()
    }

    /// The generation of that id.
    pub fn generation(&self, id: u64) -> Option<&Arc<Generation>> {
        self.generations.iter().find(|generation| generation.id == id)
    }
}

/// Units of a log chunk that is open.
const OPEN: u32 = u32::MAX;

fn encode_log(out: &mut Writer, generation: &Generation) {
    out.u64(generation.shown);
    out.u64(generation.base_sequence);
    out.u32(generation.log.len() as u32);
    out.u32(0);
    for log in &generation.log {
        out.u32(log.chunk.0);
        out.u32(log.units.unwrap_or(OPEN));
        out.u64(log.epoch);
        out.bytes(log.commit.as_bytes());
        out.u64(log.first);
    }
}

fn encode_table(out: &mut Writer, table: &Table) {
    out.u8(table.dtype as u8);
    let ranking = match &table.ranks {
        None => 0,
        Some(StoredRanks { width: RankWidth::U32, .. }) => 1,
        Some(StoredRanks { width: RankWidth::U64, .. }) => 2,
    };
    out.u8(ranking | if table.keys.is_some() { KEYED } else { 0 });
    let row_crc = if table.crc_region.is_some() { ROW_CRC } else { 0 };
    out.u8(row_crc | if table.default_row.is_some() { DEFAULT_ROW } else { 0 });
    out.u8(0);
    out.u32(table.dim);
    out.u64(table.rows);
    out.u64(table.hot_rows);
    out.u64(table.rows_region.first_lba);
    out.u64(table.ranks.map_or(0, |ranks| ranks.region.first_lba));
    out.u64(table.crc_region.map_or(0, |region| region.first_lba));
    out.u32(table.ranks.map_or(0, |ranks| ranks.crc));
    out.u32(table.row_bytes());
    out.u16(table.name.len() as u16);
    out.bytes(table.name.as_bytes());
    if let Some(row) = &table.default_row {
        out.bytes(row);
    }
    if let Some(StoredKeys { spec, index, index_crc, keys, keys_crc }) = &table.keys {
        out.u8(match spec.kind {
            KeyKind::U64 => 0,
            KeyKind::I64 => 1,
        });
        out.u8(spec.fingerprint.bits() as u8);
        out.u8(spec.stored.into());
        out.u8(0);
        out.u32(*index_crc);
        out.u64(spec.index_bytes);
        out.u64(index.first_lba);
        out.u64(keys.map_or(0, |region| region.first_lba));
        out.u32(*keys_crc);
    }
}

fn name(input: &mut Reader<'_>) -> Result<String, CatalogueError> {
    let length = input.u16()?;
    let bytes = input.bytes(usize::from(length))?;
    match std::str::from_utf8(bytes) {
        Ok(name) if (1..=crate::table::MAX_NAME).contains(&name.len()) => Ok(name.to_owned()),
        _ => Err(CatalogueError::Name { bytes: bytes.to_vec() }),
    }
}

/// A length-prefixed record. What a newer minor version has appended to it stays unread.
fn record<'a>(input: &mut Reader<'a>) -> Result<Reader<'a>, Ended> {
    let length = input.u32()?;
    Ok(Reader::new(input.bytes(length as usize)?))
}

fn decode_generation(
    input: &mut Reader<'_>,
    geometry: &Geometry,
    taken: &mut HashSet<ChunkRef>,
) -> Result<Generation, CatalogueError> {
    let mut input = record(input)?;
    let id = input.u64()?;
    let epoch = input.u64()?;
    let chunks = input.u32()?;
    let tables = input.u32()?;
    let stripe_shift = input.u8()?;
    input.u8()?;
    let name = name(&mut input)?;
    let bad = |what| CatalogueError::Generation { id, what };
    if !(geometry.lba_shift..=geometry.chunk_shift).contains(&stripe_shift) {
        return Err(bad("its stripe unit is none from an LBA to a chunk"));
    }
    if chunks == 0 || u64::from(chunks) > geometry.total_chunks() || chunks as usize > input.left() / 4 {
        return Err(bad("it has no chunks, or more than there are"));
    }
    // A log may have a place behind the last chunk of a drive, of so many units.
    let mut own = |chunk: ChunkRef, units: Option<u32>| {
        let remainder = geometry.remainder(chunk.drive()).filter(|pair| pair.0 == chunk);
        let fits = units.zip(remainder).is_some_and(|(units, (_, room))| u64::from(units) <= room);
        if !geometry.is_chunk(chunk) && !fits {
            return Err(bad("one of its chunks is on no drive"));
        }
        if !taken.insert(chunk) {
            return Err(bad("one of its chunks has another owner"));
        }
        Ok(chunk)
    };
    let mut map = Vec::with_capacity(chunks as usize);
    for _ in 0..chunks {
        map.push(own(ChunkRef(input.u32()?), None)?);
    }
    let placement = geometry.placement(map, u32::from(stripe_shift));
    if tables == 0 || tables as usize > MAX_TABLES {
        return Err(bad("it has no tables, or too many"));
    }
    let mut generation = Generation {
        id,
        epoch,
        name,
        tables: Vec::new(),
        placement: Arc::new(placement),
        shown: epoch,
        base_sequence: 0,
        log: Vec::new(),
    };
    let mut regions = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tables {
        let table = decode_table(&mut record(&mut input)?, &generation, &mut regions)?;
        if !names.insert(table.name.clone()) {
            return Err(bad("two of its tables have the same name"));
        }
        generation.tables.push(table);
    }
    regions.sort_unstable_by_key(|region: &LbaRegion| region.first_lba);
    if regions.windows(2).any(|pair| pair[0].end().is_none_or(|end| end > pair[1].first_lba)) {
        return Err(bad("its tables overlap"));
    }
    // A record of version 1 ends here.
    if input.left() > 0 {
        (generation.shown, generation.base_sequence) = (input.u64()?, input.u64()?);
        generation.log = decode_log(&mut input, geometry, generation.base_sequence, own)?.map_err(bad)?;
    }
    Ok(generation)
}

/// `own` is called for each chunk of the record, and fails if the chunk has an owner already or is on no member.
fn decode_log(
    input: &mut Reader<'_>,
    geometry: &Geometry,
    base: u64,
    mut own: impl FnMut(ChunkRef, Option<u32>) -> Result<ChunkRef, CatalogueError>,
) -> Result<Result<Vec<LogChunk>, &'static str>, CatalogueError> {
    let count = input.u32()? as usize;
    input.u32()?;
    if count > MAX_LOG_CHUNKS {
        return Ok(Err("its log has too many chunks"));
    }
    let mut log: Vec<LogChunk> = Vec::with_capacity(count);
    for index in 0..count {
        let chunk = ChunkRef(input.u32()?);
        let units = Some(input.u32()?).filter(|&units| units != OPEN);
        let chunk = own(chunk, units)?;
        let epoch = input.u64()?;
        let commit = Uuid::from_bytes(input.array()?);
        let first = input.u64()?;
        if units.map_or(index + 1 < count, |units| u64::from(units) > geometry.chunk_units()) {
            return Ok(Err("a chunk of its log has more units than there are, or is open and not the last"));
        }
        if first <= base || log.last().is_some_and(|before| before.first > first) {
            return Ok(Err("the sequence of its log does not ascend"));
        }
        log.push(LogChunk { chunk, units, epoch, commit, first });
    }
    Ok(Ok(log))
}

fn decode_table(
    input: &mut Reader<'_>,
    generation: &Generation,
    regions: &mut Vec<LbaRegion>,
) -> Result<Table, CatalogueError> {
    let dtype = input.u8()?;
    let rank_kind = input.u8()?;
    let flags = input.u8()?;
    input.u8()?;
    let dim = input.u32()?;
    let rows = input.u64()?;
    let hot_rows = input.u64()?;
    let rows_lba = input.u64()?;
    let ranks_lba = input.u64()?;
    let crc_lba = input.u64()?;
    let ranks_crc = input.u32()?;
    let row_bytes = input.u32()?;
    let name = name(input)?;
    let bad = |what| CatalogueError::Table { generation: generation.id, table: name.clone(), what };
    let dtype = DType::from_code(dtype).ok_or_else(|| bad("its element type is unknown"))?;
    let placement = &generation.placement;
    if rows == 0 || hot_rows > rows {
        return Err(bad("it has no rows, or more hot ones than rows"));
    }
    if dtype.row_bytes(dim) != Some(row_bytes) {
        return Err(bad("the bytes of a row are not those of its elements"));
    }
    let packing = RowPacking::new(row_bytes, placement.lba_size(), placement.stripe_lbas() as u32)
        .ok_or_else(|| bad("a row is empty or larger than a stripe unit"))?;
    let mut region = |first_lba: u64, lbas: Option<u64>| {
        let lbas = lbas.and_then(|lbas| lbas.checked_next_multiple_of(placement.stripe_lbas()));
        let region = lbas.map(|lbas| LbaRegion { first_lba, lbas });
        let region = region.filter(|region| region.end().is_some_and(|end| end <= placement.lbas()));
        match region.filter(|region| region.first_lba % placement.stripe_lbas() == 0) {
            Some(region) => {
                regions.push(region);
                Ok(region)
            }
            None => Err(bad("it does not lie within its generation's chunks, at a stripe unit")),
        }
    };
    let array = |width: u32| rows.checked_mul(u64::from(width)).map(|b| b.div_ceil(u64::from(placement.lba_size())));
    let rows_region = region(rows_lba, packing.lbas(rows))?;
    let width = match rank_kind & !KEYED {
        0 => None,
        1 if RankWidth::for_rows(rows) == RankWidth::U32 => Some(RankWidth::U32),
        2 => Some(RankWidth::U64),
        _ => return Err(bad("its kind of ranking is unknown")),
    };
    let ranks = match width {
        Some(width) => {
            let region = region(ranks_lba, array(width.bytes()))?;
            Some(StoredRanks { region, width, crc: ranks_crc })
        }
        None => None,
    };
    let crc_region = if flags & ROW_CRC != 0 { Some(region(crc_lba, array(4))?) } else { None };
    let default_row = match flags & DEFAULT_ROW != 0 {
        true => Some(input.bytes(row_bytes as usize)?.into()),
        false => None,
    };
    let keys = match rank_kind & KEYED != 0 {
        true => {
            let kind = input.u8()?;
            let bits = input.u8()?;
            let stored = input.u8()?;
            input.u8()?;
            let index_crc = input.u32()?;
            let index_bytes = input.u64()?;
            let index_lba = input.u64()?;
            let keys_lba = input.u64()?;
            let keys_crc = input.u32()?;
            let kind = match kind {
                0 => KeyKind::U64,
                1 => KeyKind::I64,
                _ => return Err(bad("its kind of keys is unknown")),
            };
            let fingerprint = FingerprintWidth::from_bits(bits.into());
            let fingerprint = fingerprint.ok_or_else(|| bad("its fingerprints have none of 8, 16 and 32 bits"))?;
            let stored = match stored {
                0 => false,
                1 => true,
                _ => return Err(bad("whether its keys are stored is unknown")),
            };
            let index_lbas = index_bytes.div_ceil(u64::from(placement.lba_size()));
            let index = region(index_lba, Some(index_lbas).filter(|&lbas| lbas > 0))?;
            let keys = if stored { Some(region(keys_lba, array(8))?) } else { None };
            let spec = KeySpec { index_bytes, kind, fingerprint, stored };
            Some(StoredKeys { spec, index, index_crc, keys, keys_crc })
        }
        false => None,
    };
    Ok(Table { name, rows, dim, dtype, hot_rows, default_row, rows_region, ranks, keys, crc_region, packing })
}

/// The blocks of a serialised catalogue of at most 2³² − 1 bytes, for one member, in the order of their units.
pub(crate) fn blocks(bytes: &[u8], id: BlockId) -> impl Iterator<Item = [u8; UNIT]> + '_ {
    bytes.chunks(PAYLOAD).enumerate().map(move |(index, payload)| {
        block::seal(&BlockId { address: id.address + index as u64, index: index as u32, ..id }, payload)
    })
}

/// The identity of a member's first catalogue block.
pub(crate) fn first_block(own: &Superblock, member: Uuid) -> BlockId {
    let Superblock { store, epoch, commit, ref geometry, .. } = *own;
    BlockId { kind: Kind::Catalogue, address: geometry.catalogue_unit(epoch), epoch, index: 0, store, member, commit }
}

/// Puts the serialised catalogue together again from its units; `Err` names the first bad block.
pub(crate) fn assemble(units: &[[u8; UNIT]], id: BlockId) -> Result<Vec<u8>, (u32, BlockError)> {
    let mut bytes = Vec::with_capacity(units.len() * PAYLOAD);
    for (index, unit) in (0..).zip(units) {
        let id = BlockId { address: id.address + u64::from(index), index, ..id };
        bytes.extend_from_slice(block::open_expecting(unit, &id).map_err(|error| (index, error))?);
    }
    Ok(bytes)
}
