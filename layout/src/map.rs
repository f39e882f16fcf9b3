//! What lies where on each drive, as runs from the drive's first LBA to its last.

use serde::Serialize;

use crate::block::UNIT;
use crate::generation::Generation;
use crate::geometry::{Geometry, METADATA_ALIGNMENT, remainder_end, units};
use crate::table::LbaRegion;
use crate::volume::Volume;

/// What lies on a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriveMap {
    /// The drive's member index.
    pub member: u16,
    /// The name under which it was opened; `None`: it is missing.
    pub drive: Option<String>,
    /// Bytes of the drive.
    pub bytes: u64,
    /// Everything from its first byte to its last, without gaps.
    pub runs: Vec<MapRun>,
}

/// A run of bytes on a drive that hold one kind of thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MapRun {
    /// First LBA.
    pub lba: u64,
    /// LBAs of the run.
    pub lbas: u64,
    /// What the run holds.
    pub what: MapKind,
    /// The generation that the run belongs to; `None`: to none.
    pub generation: Option<u64>,
}

/// What a run holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MapKind {
    /// Superblocks A and B, and the rest of the 64 KiB in which they lie.
    Superblocks,
    /// The two catalogue extents.
    Catalogue,
    /// Chunks of tables.
    Tables,
    /// Chunks of a log of updated rows.
    Log,
    /// Free chunks.
    Free,
    /// Space that is less than a chunk, and so not in use.
    Unused,
}

/// Where a table lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableMap {
    /// The table's generation.
    pub generation: u64,
    /// The table's name.
    pub table: String,
    /// Bytes on each member: rows, ranks, keys and checksums.
    pub bytes: Vec<u64>,
    /// The bytes of a chunk, from and to, in which the table lies, the same for every chunk of its generation. At
    /// either end of this range, some chunks hold neighbouring tables.
    pub in_chunk: (u64, u64),
    /// How many chunks of its generation hold any of it.
    pub chunks: u64,
    /// Where in its generation's chunks it lies, exactly: no two parts have bytes in common.
    pub parts: Vec<TablePart>,
}

/// A part of a table that lies in the same bytes of neighbouring chunks of its generation's chunk map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TablePart {
    /// Positions in the chunk map, from and to.
    pub chunks: (u64, u64),
    /// Bytes of each of these chunks, from and to.
    pub bytes: (u64, u64),
}

impl Volume {
    /// What lies where on each member that is not vacant, by the catalogue alone.
    pub fn map(&self) -> Vec<DriveMap> {
        let geometry = self.geometry();
        let generations = self.generations();
        let mut used: Vec<Vec<(u32, MapKind, u64)>> = vec![Vec::new(); geometry.members.len()];
        for generation in &generations {
            let tables = generation.placement.map().iter().map(|chunk| (*chunk, MapKind::Tables));
            let logs = generation.log.iter().map(|log| (log.chunk, MapKind::Log));
            for (chunk, kind) in tables.chain(logs) {
                if let Some(used) = used.get_mut(usize::from(chunk.drive())) {
                    used.push((chunk.chunk(), kind, generation.id));
                }
            }
        }
        let members = (0u16..).zip(&geometry.members).zip(used);
        let members = members.filter(|((_, member), _)| !member.vacant);
        members
            .map(|((index, member), mut used)| {
                used.sort_unstable_by_key(|&(chunk, ..)| chunk);
                DriveMap {
                    member: index,
                    drive: self.drive(index).map(|drive| drive.name().to_owned()),
                    bytes: member.lba_count << geometry.lba_shift,
                    runs: runs(geometry, member.lba_count, member.chunk_count, &used),
                }
            })
            .collect()
    }

    /// Where each table of each generation lies.
    pub fn table_map(&self) -> Vec<TableMap> {
        let members = self.geometry().members.len();
        let of = |generation: &Generation| {
            let tables = generation.tables.iter().map(|table| {
                let keys = table.keys.into_iter().flat_map(|keys| keys.regions());
                let regions = [Some(table.rows_region), table.ranks.map(|rank| rank.region), table.crc_region];
                let regions: Vec<LbaRegion> = regions.into_iter().flatten().chain(keys).collect();
                let (bytes, in_chunk) = spread(generation, &regions, members);
                let parts = parts(generation, &regions);
                let generation = generation.id;
                let table = table.name.clone();
                TableMap { generation, table, bytes, in_chunk, chunks: held(&parts), parts }
            });
            tables.collect::<Vec<_>>()
        };
        self.generations().iter().flat_map(|generation| of(generation)).collect()
    }
}

/// The runs of a member with chunks `used`, ascending.
fn runs(geometry: &Geometry, lba_count: u64, chunk_count: u32, used: &[(u32, MapKind, u64)]) -> Vec<MapRun> {
    let per_unit = UNIT as u64 / u64::from(geometry.lba_size());
    let chunk_units = geometry.chunk_units();
    let mut runs: Vec<MapRun> = Vec::new();
    let mut to = |unit: u64, what, generation| {
        let begin = runs.last().map_or(0, |last| last.lba + last.lbas);
        let end = (unit * per_unit).min(lba_count);
        match runs.last_mut().filter(|last| (last.what, last.generation) == (what, generation)) {
            _ if begin >= end => {}
            Some(last) => last.lbas += end - begin,
            None => runs.push(MapRun { lba: begin, lbas: end - begin, what, generation }),
        }
    };
    to(METADATA_ALIGNMENT, MapKind::Superblocks, None);
    to(METADATA_ALIGNMENT + 2 * u64::from(geometry.catalogue_units), MapKind::Catalogue, None);
    to(geometry.first_chunk_unit, MapKind::Unused, None);
    let chunk = |chunk: u64| geometry.first_chunk_unit + chunk * chunk_units;
    let all = units(lba_count, geometry.lba_size());
    for &(number, kind, generation) in used {
        to(chunk(number.into()), MapKind::Free, None);
        let end = chunk(u64::from(number) + 1);
        // What a log has behind the last chunk ends before the tail superblocks.
        let end = if number < chunk_count { end } else { end.min(remainder_end(all)) };
        to(end, kind, Some(generation));
    }
    to(chunk(chunk_count.into()), MapKind::Free, None);
    to(all.saturating_sub(2), MapKind::Unused, None);
    to(all, MapKind::Superblocks, None);
    to(all + 1, MapKind::Unused, None);
    runs
}

/// Where regions lie in the chunks of their generation. A generation's stripe units go over all its chunks in turn, so what is contiguous
/// among them has three parts at most: the end of one turn, whole turns, and the beginning of another.
fn parts(generation: &Generation, regions: &[LbaRegion]) -> Vec<TablePart> {
    let placement = &generation.placement;
    let shift = placement.stripe_lba_shift();
    let unit = placement.stripe_bytes();
    let columns = (placement.map().len() as u64).max(1);
    let mut runs: Vec<(u64, u64)> = regions
        .iter()
        .map(|region| (region.first_lba >> shift, (region.first_lba + region.lbas) >> shift))
        .filter(|(from, to)| from < to)
        .collect();
    runs.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
    for (from, to) in runs {
        match joined.last_mut().filter(|last| last.1 == from) {
            Some(last) => last.1 = to,
            None => joined.push((from, to)),
        }
    }
    let mut parts = Vec::new();
    for (from, to) in joined {
        let mut at = from;
        while at < to {
            let turn = at / columns;
            let column = at % columns;
            let (last, turns) = match (to - at) / columns {
                whole if column == 0 && whole > 0 => (columns, whole),
                _ => (columns.min(column + (to - at)), 1),
            };
            parts.push(TablePart { chunks: (column, last), bytes: (turn * unit, (turn + turns) * unit) });
            at += (last - column) * turns;
        }
    }
    parts
}

/// How many chunks hold any of these parts.
fn held(parts: &[TablePart]) -> u64 {
    let mut chunks: Vec<(u64, u64)> = parts.iter().map(|part| part.chunks).collect();
    chunks.sort_unstable();
    let mut count = 0;
    let mut end = 0;
    for (from, to) in chunks {
        count += to.saturating_sub(from.max(end));
        end = end.max(to);
    }
    count
}

/// Bytes of regions on each member, and the bytes of each chunk between the first and the last of them.
fn spread(generation: &Generation, regions: &[LbaRegion], members: usize) -> (Vec<u64>, (u64, u64)) {
    let placement = &generation.placement;
    let map = placement.map();
    let shift = placement.stripe_lba_shift();
    let unit = placement.stripe_bytes();
    let columns = (map.len() as u64).max(1);
    let mut of_member = vec![0u64; members];
    let on = |chunk: &crate::ChunkRef| usize::from(chunk.drive());
    map.iter().for_each(|chunk| of_member.iter_mut().skip(on(chunk)).take(1).for_each(|number| *number += 1));
    let mut bytes = vec![0u64; members];
    let mut from = u64::MAX;
    let mut to = 0;
    for region in regions {
        let first = region.first_lba >> shift;
        let count = region.lbas >> shift;
        let whole = count / columns;
        let rest = count % columns;
        bytes.iter_mut().zip(&of_member).for_each(|(bytes, columns)| *bytes += columns * whole * unit);
        for offset in 0..rest {
            let chunk = map.get(((first + offset) % columns) as usize);
            chunk
                .into_iter()
                .for_each(|chunk| bytes.iter_mut().skip(on(chunk)).take(1).for_each(|number| *number += unit));
        }
        if count > 0 {
            (from, to) = (from.min(first / columns * unit), to.max((first + count).div_ceil(columns) * unit));
        }
    }
    (bytes, (from.min(to), to))
}
