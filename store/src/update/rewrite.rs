//! Compaction where keys were created or removed: a generation is written anew, all of it, with tables that have the keys that are left.

use std::collections::HashMap;
use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};

use warprow_keys::{IndexOptions, KeyIndex, KeyList};
use warprow_layout::{
    CopiedRows, Extent, Generation, Placement, RankWidth, Ranks, RebuiltGeneration, RewritePermit, RowOrder, RowSource,
    Table, TableKeys, TableKeysError, TableSpec, VolumeError, row_crc,
};

use super::compact::of_copy;
use super::removed_ranks::RemovedRanks;
use super::replace::{change_crcs, change_rows};
use super::spec::{spec_anew, spec_of};
use super::state::{KeyedTables, created_rows};
use crate::bulk::{Bulk, Job, Purpose};
use crate::drive_access::lock;
use crate::load::{TableLoad, regions};
use crate::overlay::OverlaySnapshot;
use crate::sparse_ids::SparseIds;
use crate::table_version::TableVersion;
use crate::{Store, StoreError};

/// Bytes of rows that are read at once.
const WINDOW: usize = 16 << 20;
/// Bytes of memory for a table that is put in order.
const MEMORY: u64 = 256 << 20;

/// A generation that was written anew, and is not committed.
pub(super) struct Grown {
    pub rebuilt: RebuiltGeneration,
    /// Chunks that were written.
    pub chunks: usize,
    /// What finds the keys of tables that have others now.
    pub tables: HashMap<u32, SparseIds>,
}

/// A table that gets keys, or loses some.
struct Changing<'a> {
    index: usize,
    /// By rank, without those that were removed, then those that are new.
    keys: KeyList,
    /// Rows of those that are new, the last of all keys.
    created: Vec<(u64, &'a [u8])>,
    /// Ranks of those that were removed.
    removed: RemovedRanks,
    /// Whether rows lie in the order of slots.
    by_slot: bool,
    found: Arc<KeyIndex>,
}

impl Store {
    /// Writes a generation anew with all updates of `snapshot`. Created keys come behind the last rank, or where their slots are; of removed
    /// keys nothing is left, and rows behind theirs move up. Other tables are copied as they are.
    pub(super) fn write_anew(
        &self,
        found: &Arc<Generation>,
        snapshot: &OverlaySnapshot,
        keyed: &KeyedTables,
        rewriting: &RewritePermit,
    ) -> Result<Grown, StoreError> {
        let tables = found.tables.iter().enumerate();
        let changing = tables.map(|(index, table)| changing(snapshot, keyed, index, table));
        let changing: Vec<Changing<'_>> = changing.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        let all = changing.iter().map(|changing| changing.keyed(found)).collect::<Result<Vec<_>, _>>()?;
        let of = |index: usize| changing.iter().zip(&all).find(|(it, _)| it.index == index);
        let spec = |(index, table): (usize, &Table)| match of(index) {
            Some((changing, keyed)) => TableSpec {
                hot_rows: table.hot_rows - changing.removed.below(table.hot_rows),
                ..spec_of(table).keyed(keyed)
            },
            None => spec_of(table),
        };
        let specs: Vec<TableSpec> = found.tables.iter().enumerate().map(spec).collect();
        let mut spec = spec_anew(found);
        spec.tables.clone_from(&specs);
        let rebuilt = self.shared.volume.rebuild_claimed(rewriting.clone(), &spec);
        let mut rebuilt = rebuilt.map_err(|error| no_room(found.id, error))?;
        if rebuilt.before().base_sequence != found.base_sequence {
            return Err(VolumeError::Rewriting { generation: found.id }.into());
        }
        for ((index, table), spec) in found.tables.iter().enumerate().zip(&specs) {
            let located = TableVersion { generation: found.clone(), index };
            let updated = self.rows_by_rank(&located, snapshot)?;
            let Some((changing, keyed)) = of(index) else {
                rebuilt.transaction().copied(index, table)?;
                self.copy_table(&located, rebuilt.transaction().generation(), &updated)?;
                continue;
            };
            let crcs = self.shared.volume.read_row_crcs(found, index)?;
            let Changing { created, removed, .. } = changing;
            let source = Source { store: self, located, crcs, updated, created, removed, window: Mutex::default() };
            let load = TableLoad::new(spec, &source).with_keys(keyed);
            // In the order that the source has them in, rather than that of extents.
            let order = if changing.by_slot { None } else { Some(identity(keyed.len())) };
            let load = match &order {
                Some(order) => load.with_order(order),
                None => load,
            };
            self.write_one(rebuilt.transaction(), index, &load, MEMORY).map_err(of_source)?;
        }
        let chunks = rebuilt.transaction().generation().placement.map().len();
        let indexed = all.into_iter().map(|keyed| (keyed.index().clone(), keyed.ranks().cloned().map(Arc::new)));
        let indexed: Vec<_> = indexed.collect();
        let tables = changing.into_iter().zip(indexed).map(|(changing, (index, ranks))| {
            let stored = Some(Arc::new(by_rank(changing.keys, &index, ranks.is_some())));
            (changing.index as u32, SparseIds { index, stored, ranks })
        });
        let tables = tables.collect();
        Ok(Grown { rebuilt, chunks, tables })
    }

    /// Copies a table region by region to where the same one of `to` lies, with rows, and their checksums, changed on the way. Rows that
    /// stay as they are are compared with their checksums.
    fn copy_table(
        &self,
        located: &TableVersion,
        to: &Generation,
        updated: &HashMap<u64, Vec<u8>>,
    ) -> Result<(), StoreError> {
        let table = located.table();
        let from = &*located.generation.placement;
        let target = &*to.placement;
        let copy = to.tables.get(located.index).ok_or(VolumeError::NoSuchGeneration { id: to.id })?;
        let bulk = |purpose, placement: &Placement| {
            Bulk::new(purpose, &self.shared.members, placement.stripe_bytes() as usize, &self.shared.driving)
        };
        let mut read = bulk(Purpose::Read, from)?;
        let mut write = bulk(Purpose::Load, target)?;
        let mut ranks: Vec<u64> = updated.keys().copied().collect();
        ranks.sort_unstable();
        let fill = |position: usize, row: &mut [u8]| {
            if let Some(updated) = ranks.get(position).and_then(|rank| updated.get(rank)) {
                row.copy_from_slice(updated);
            }
        };
        let mut row = vec![0; table.row_bytes() as usize];
        let mut plain = Vec::new();
        let mut rows = CopiedRows::new(&self.shared.volume, &located.generation);
        let is_replaced = |_: usize, rank: u64| updated.contains_key(&rank);
        for (region, copied) in regions(table).zip(regions(copy)) {
            let mut take = |extent: &Extent, bytes: &[u8]| {
                plain.clear();
                plain.extend_from_slice(bytes);
                for (lba, piece) in extent.pieces() {
                    let lbas = piece.len() as u64 / u64::from(from.lba_size());
                    let Some(piece) = plain.get_mut(piece) else { continue };
                    rows.check(lba, piece, &is_replaced).map_err(of_copy)?;
                    change_rows(table, from, lba, piece, &ranks, &fill);
                    change_crcs(table, from, lba, piece, &ranks, &fill, &mut row);
                    let first = copied.first_lba + (lba - region.first_lba);
                    let past = VolumeError::OutOfRange { first, end: first.saturating_add(lbas), lbas: target.lbas() };
                    let mut put = |_: &Extent, out: &mut [u8]| {
                        out.copy_from_slice(piece);
                        Ok(())
                    };
                    write.submit(target.run(first, lbas).ok_or(past)?, &mut Job::Write(&mut put))?;
                }
                Ok(())
            };
            let extents = from.extents(region, read.extent_bytes());
            read.run(extents, Job::Read(&mut take))?;
        }
        write.finish(&mut Job::Write(&mut |_, _| Ok(())))
    }
}

/// What becomes of table number `index`, if keys of it were created or removed.
fn changing<'a>(
    snapshot: &'a OverlaySnapshot,
    keyed: &KeyedTables,
    index: usize,
    table: &Table,
) -> Result<Option<Changing<'a>>, StoreError> {
    let created = created_rows(snapshot, index as u32);
    let mut removed = snapshot.removed(index as u32).peekable();
    if created.is_empty() && removed.peek().is_none() {
        return Ok(None);
    }
    let missing = || StoreError::NotUpdatable { table: table.name.clone() };
    let known = keyed.0.get(&(index as u32)).ok_or_else(missing)?;
    let stored = known.stored.as_ref().ok_or_else(missing)?;
    let rank_of = |slot: u64| known.ranks.as_ref().map_or(Some(slot), |ranks| ranks.get(slot));
    let removed = RemovedRanks::new(removed.filter_map(rank_of).collect());
    let left = (0..).zip(&**stored).filter(|&(rank, _)| !removed.has(rank)).map(|(_, &key)| key);
    let keys = left.chain(created.iter().map(|(key, _)| *key)).collect();
    let keys = KeyList { keys, kind: known.index.kind() };
    let by_slot = table.ranks.is_none();
    Ok(Some(Changing { index, keys, created, removed, by_slot, found: known.index.clone() }))
}

impl Changing<'_> {
    /// Where the rows of its keys go, by an index of all of them.
    fn keyed(&self, generation: &Generation) -> Result<TableKeys<'_>, StoreError> {
        let options = IndexOptions::default().with_fingerprint(self.found.fingerprint());
        let index = KeyIndex::build(&self.keys, &options, &mut |_| ControlFlow::Continue(()));
        let order = if self.by_slot { RowOrder::Positions } else { RowOrder::Given };
        let keyed = index.map_err(TableKeysError::from);
        let keyed = keyed.and_then(|index| TableKeys::new(Arc::new(index), &self.keys, order, true));
        keyed.map_err(|source| {
            let table = generation.tables.get(self.index).map(|table| table.name.clone());
            StoreError::Keys { table: table.unwrap_or_default(), source }
        })
    }
}

/// The keys by rank, which is their order, or that of slots.
fn by_rank(keys: KeyList, index: &KeyIndex, ranked: bool) -> Vec<u64> {
    let keys = keys.keys;
    if ranked {
        return keys;
    }
    let mut slots = vec![0; keys.len()];
    index.positions(&keys, &mut slots);
    let mut sorted = vec![0; keys.len()];
    for (&slot, &key) in slots.iter().zip(&keys) {
        if let Some(place) = sorted.get_mut(slot as usize) {
            *place = key;
        }
    }
    sorted
}

/// What a generation that has no room to be written anew is told as.
pub(super) fn no_room(generation: u64, error: VolumeError) -> StoreError {
    match error {
        VolumeError::NoSpace { needed, free, chunk_size, .. } => {
            StoreError::NoRoomToGrow { generation, needed, free, chunk_size }
        }
        error => error.into(),
    }
}

fn identity(rows: u64) -> Ranks {
    match RankWidth::for_rows(rows) {
        RankWidth::U32 => Ranks::U32((0..rows).map(|rank| rank as u32).collect()),
        RankWidth::U64 => Ranks::U64((0..rows).collect()),
    }
}

/// What [`Source`] met, rather than a file that cannot be read.
fn of_source(error: StoreError) -> StoreError {
    match error {
        StoreError::Volume(VolumeError::Source { table, source }) => match source.downcast::<StoreError>() {
            Ok(met) => met,
            Err(source) => VolumeError::Source { table, source }.into(),
        },
        error => error,
    }
}

/// The rows of a table by rank, as they are updated, without those that were removed, and then those that were created. Read in
/// their order.
struct Source<'a> {
    store: &'a Store,
    located: TableVersion,
    /// Of the rows as they are stored.
    crcs: Option<Vec<u32>>,
    updated: HashMap<u64, Vec<u8>>,
    created: &'a [(u64, &'a [u8])],
    removed: &'a RemovedRanks,
    window: Mutex<(Range<u64>, Vec<u8>)>,
}

impl Source<'_> {
    /// The rows from `first` on, of which there are as many as fit.
    fn rows(&self, ranks: Range<u64>, row_bytes: usize, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let first = ranks.start;
        out.resize((ranks.end - first) as usize * row_bytes, 0);
        let mut damaged = None;
        self.store.scan_version(&self.located, ranks, &mut |rank, row| {
            // Its new checksum would say that it is whole.
            let crc = self.crcs.as_ref().and_then(|crcs| crcs.get(rank as usize));
            let is_wrong = crc.is_some_and(|&crc| crc != row_crc(rank, row));
            if is_wrong && !self.updated.contains_key(&rank) && !self.removed.has(rank) {
                damaged = Some(rank);
                return ControlFlow::Break(());
            }
            let row = self.updated.get(&rank).map_or(row, |updated| &updated[..]);
            let begin = (rank - first) as usize * row_bytes;
            if let Some(place) = out.get_mut(begin..begin + row_bytes).filter(|place| place.len() == row.len()) {
                place.copy_from_slice(row);
            }
            ControlFlow::Continue(())
        })?;
        match damaged {
            None => Ok(()),
            Some(rank) => Err(self.store.shared.damaged_row(&self.located, rank)),
        }
    }
}

impl RowSource for Source<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        let stored = self.located.table().rows;
        let mut window = lock(&self.window);
        let (range, held) = &mut *window;
        for (rank, out) in (first..).zip(rows.chunks_exact_mut(row_bytes)) {
            let rank = self.removed.rank_before(rank);
            let row = match rank.checked_sub(stored) {
                Some(position) => self.created.get(position as usize).map(|(_, row)| *row),
                None => {
                    if !range.contains(&rank) {
                        let next = rank..stored.min(rank + (WINDOW / row_bytes).max(1) as u64);
                        *range = 0..0;
                        self.rows(next.clone(), row_bytes, held).map_err(io::Error::other)?;
                        *range = next;
                    }
                    let begin = (rank - range.start) as usize * row_bytes;
                    held.get(begin..begin + row_bytes)
                }
            };
            out.copy_from_slice(row.filter(|row| row.len() == row_bytes).ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(())
    }
}
