//! Updates of rows: logged and durable first, then seen by every look-up that begins later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use warprow_layout::{Generation, Log, Patch, Update, VolumeError};

use crate::member::lock;
use crate::overlay::{Entry, Overlay};
use crate::store::{Located, Shared};
use crate::{Store, StoreError};

/// Updates of all generations of a store.
#[derive(Debug)]
pub(crate) struct Updates {
    of: Mutex<HashMap<u64, Arc<Updating>>>,
    /// Bytes that an overlay may take.
    bound: u64,
    /// Held, besides, by whoever reads tables without overlays; locked by updates that are under way.
    unfollowing: RwLock<Arc<()>>,
}

/// Updates of one generation.
#[derive(Debug)]
struct Updating(Mutex<Writer>);

#[derive(Debug)]
struct Writer {
    /// `None`: the store was opened for reading, or it was closed, to be opened again by the next update.
    log: Option<Log>,
    /// Of the generation as it is in the catalogue.
    current: Arc<Overlay>,
    /// Of the generation as it was before compactions, where somebody still reads it so.
    older: Vec<Weak<Overlay>>,
}

/// Updates that are put in at once when a log is replayed.
const REPLAYED: usize = 1024;

impl Updates {
    pub(crate) fn new(bound: u64) -> Self {
        Self { of: Mutex::default(), bound, unfollowing: RwLock::default() }
    }

    /// Closes all logs; updates open them again.
    pub(crate) fn close(&self) {
        lock(&self.of).values().for_each(|updating| lock(&updating.0).log = None);
    }

    /// To be held by a reader that does not follow updates: while it lives, there are none. Those under way have ended.
    pub(crate) fn unfollowing(&self) -> Arc<()> {
        self.unfollowing.write().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Writer {
    /// Takes the log of generation `generation`, opened if it was not, with everything that it has in the overlays. Where it is
    /// not put back, it is opened again by whoever comes next.
    fn take_log(&mut self, store: &Shared, generation: u64) -> Result<Log, StoreError> {
        if let Some(log) = self.log.take() {
            return Ok(log);
        }
        if let Some(reason) = store.volume.read_only() {
            return Err(VolumeError::ReadOnly { reason: reason.to_owned() }.into());
        }
        // What was in doubt when it was closed may turn out to be there.
        let (known, mut entries, mut rows) = (self.current.sequence(), Vec::new(), Vec::new());
        let log = store.volume.log(generation, |sequence, Update { table, key, row }| {
            if sequence > known {
                entries.push(Entry { table, key, sequence, begin: rows.len(), bytes: row.len() });
                rows.extend_from_slice(row);
            }
        })?;
        self.publish(&entries, &rows.into());
        Ok(log)
    }

    fn publish(&mut self, entries: &[Entry], rows: &Arc<[u8]>) {
        self.older.retain(|overlay| overlay.strong_count() > 0);
        self.older.iter().filter_map(Weak::upgrade).for_each(|older| older.publish(entries, rows));
        self.current.publish(entries, rows);
    }
}

impl Shared {
    /// The updated rows that belong over a generation's chunks. [`VolumeError::NoSuchGeneration`] if the catalogue no longer has
    /// it, or has it with other chunks, and nobody reads these any more.
    pub(crate) fn overlay(&self, generation: &Generation) -> Result<Arc<Overlay>, StoreError> {
        let updating = self.updating(generation.id)?;
        let writer = lock(&updating.0);
        let older = writer.older.iter().filter_map(Weak::upgrade);
        // An older one has all that a later one has, and more.
        let found = older.chain([writer.current.clone()]).filter(|it| it.base() <= generation.base_sequence).last();
        found.ok_or(StoreError::Volume(VolumeError::NoSuchGeneration { id: generation.id }))
    }

    /// A table with the updated rows that belong over it, as both are now, or as they were together a moment ago.
    pub(crate) fn with_overlay(&self, located: Located) -> (Located, Result<Arc<Overlay>, StoreError>) {
        let mut located = located;
        let mut overlay = self.overlay(&located.generation);
        // Each time a compaction came between: they take longer than this.
        for _ in 0..8 {
            if overlay.is_ok() {
                break;
            }
            let Some(now) = self.volume.generation(located.generation.id) else { break };
            overlay = self.overlay(&now);
            located.generation = now;
        }
        (located, overlay)
    }

    /// Replays the log, if that has not been done.
    fn updating(&self, generation: u64) -> Result<Arc<Updating>, StoreError> {
        let mut of = lock(&self.updates.of);
        if let Some(updating) = of.get(&generation) {
            return Ok(updating.clone());
        }
        let found = self.volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let overlay = Overlay::new(found.base_sequence);
        let (mut entries, mut rows) = (Vec::new(), Vec::new());
        let mut take = |sequence, update: Update<'_>| {
            let Update { table, key, row } = update;
            entries.push(Entry { table, key, sequence, begin: rows.len(), bytes: row.len() });
            rows.extend_from_slice(row);
            if entries.len() == REPLAYED {
                overlay.publish(&entries, &std::mem::take(&mut rows).into());
                entries.clear();
            }
        };
        let log = match self.volume.read_only() {
            None => Some(self.volume.log(generation, &mut take)?),
            Some(_) => {
                self.volume.read_log(&found, &mut take)?;
                None
            }
        };
        overlay.publish(&entries, &rows.into());
        let writer = Writer { log, current: Arc::new(overlay), older: Vec::new() };
        Ok(of.entry(generation).or_insert(Arc::new(Updating(Mutex::new(writer)))).clone())
    }
}

impl Store {
    /// Gives rows of a table other content, by id: `rows` has one row after another. When it returns, they are durable, and every
    /// look-up of the host executor that begins later reads them; none reads some of them without the others. Where an id comes
    /// twice, its last row counts. The sequence number of the last, which counts the updates of the generation.
    ///
    /// Refused, with nothing written: ids that the table does not have, rows of another size, more than
    /// [`overlay_bytes`](crate::OpenOptions::overlay_bytes) hold ([`StoreError::OverlayFull`]: compact), and anything while an
    /// executor on a GPU is attached, which does not follow updates. If a drive fails, the updates are in doubt
    /// ([`VolumeError::UpdateInDoubt`]).
    pub fn update(&self, table: &str, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
        self.update_located(&self.locate(table)?, ids, rows)
    }

    /// The same, of a table of generation `generation`, which may stand by.
    pub fn update_generation(&self, generation: u64, table: &str, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
        self.update_located(&self.locate_in(generation, table)?, ids, rows)
    }

    pub(crate) fn locate_in(&self, id: u64, table: &str) -> Result<Located, StoreError> {
        let generation = self.shared.volume.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        match generation.table_index(table) {
            Some(index) => Ok(Located { generation, index }),
            None => Err(StoreError::NoSuchTable {
                table: table.to_owned(),
                known: generation.tables.iter().map(|table| table.name.clone()).collect(),
            }),
        }
    }

    fn update_located(&self, located: &Located, ids: &[u64], rows: &[u8]) -> Result<u64, StoreError> {
        let (table, index) = (located.table(), located.index as u32);
        let row_bytes = table.row_bytes() as usize;
        if table.keys.is_some() {
            return Err(StoreError::UpdateKeyed { table: table.name.clone() });
        }
        if ids.len().checked_mul(row_bytes) != Some(rows.len()) {
            let (table, ids) = (table.name.clone(), ids.len());
            return Err(StoreError::UpdateRows { table, ids, row_bytes, given: rows.len() });
        }
        let absent: Vec<u64> = ids.iter().copied().filter(|&id| id >= table.rows).take(10).collect();
        if !absent.is_empty() {
            return Err(StoreError::NoSuchRow { table: table.name.clone(), rows: table.rows, ids: absent });
        }
        let unfollowing = self.shared.updates.unfollowing.read().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(&unfollowing) > 1 {
            return Err(StoreError::Unfollowing { table: table.name.clone() });
        }
        self.shared.watch()?;
        let updating = self.shared.updating(located.generation.id)?;
        let mut writer = lock(&updating.0);
        let bound = self.shared.updates.bound;
        writer.older.retain(|overlay| overlay.strong_count() > 0);
        let older = writer.older.iter().filter_map(Weak::upgrade).map(|overlay| overlay.bytes());
        let bytes = older.max().unwrap_or(0).max(writer.current.bytes()) + Overlay::bytes_of(ids.len(), rows.len());
        if bytes > bound {
            return Err(StoreError::OverlayFull { generation: located.generation.id, bytes, bound });
        }
        let mut log = writer.take_log(&self.shared, located.generation.id)?;
        let updates: Vec<Update<'_>> =
            ids.iter().zip(rows.chunks_exact(row_bytes)).map(|(&key, row)| Update { table: index, key, row }).collect();
        let before = log.sequence();
        let appended = log.append(&updates);
        // Of those that came before a failure, some may be durable: they count.
        let durable = (log.sequence() - before) as usize;
        let entry = |(position, &key): (usize, &u64)| Entry {
            table: index,
            key,
            sequence: before + 1 + position as u64,
            begin: position * row_bytes,
            bytes: row_bytes,
        };
        let entries: Vec<Entry> = ids.iter().take(durable).enumerate().map(entry).collect();
        let rows: Arc<[u8]> = rows.into();
        writer.publish(&entries, &rows);
        writer.log = Some(log);
        Ok(appended?)
    }

    /// The updated rows of a table, if any: by rank, as of now.
    pub(crate) fn updated_by_rank(
        &self,
        located: &Located,
        overlay: &Overlay,
    ) -> Result<HashMap<u64, Vec<u8>>, StoreError> {
        let Some(snapshot) = overlay.snapshot() else { return Ok(HashMap::new()) };
        let mut rows = snapshot.rows(located.index as u32).peekable();
        if rows.peek().is_none() {
            return Ok(HashMap::new());
        }
        let ranks = self.shared.volume.read_ranks(&located.generation, located.index)?;
        let rank_of = |id: u64| ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id));
        Ok(rows.filter_map(|(id, row)| Some((rank_of(id)?, row.to_vec()))).collect())
    }

    /// Brings the updates of a generation into its chunks: copies those that hold updated rows, with these, and commits them without
    /// the log. Updates go on meanwhile, and are seen; only the commit makes them wait. Needs as many free chunks as are copied, which
    /// the old ones become when nobody reads them any more: hosts go on with them, and with their updated rows in memory, until they
    /// [`prepare`](crate::Host::prepare) and [`adopt`](crate::Host::adopt) anew. How many chunks were copied.
    pub fn compact(&self, generation: u64) -> Result<usize, StoreError> {
        self.shared.watch()?;
        let volume = &self.shared.volume;
        let updating = self.shared.updating(generation)?;
        let (sequence, snapshot) = {
            let mut writer = lock(&updating.0);
            let mut log = writer.take_log(&self.shared, generation)?;
            let sequence = log.seal();
            writer.log = Some(log);
            (sequence, writer.current.snapshot())
        };
        let Some(snapshot) = snapshot else { return Ok(0) };
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let mut patches = Vec::new();
        for (index, table) in (0u32..).zip(&found.tables) {
            let mut rows = snapshot.rows(index).peekable();
            if rows.peek().is_none() {
                continue;
            }
            let ranks = volume.read_ranks(&found, index as usize)?;
            for (id, row) in rows {
                let rank = ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id));
                let rank = rank.ok_or_else(|| StoreError::NoSuchRow {
                    table: table.name.clone(),
                    rows: table.rows,
                    ids: vec![id],
                })?;
                patches.push(Patch { table: index, rank, row });
            }
        }
        let rewritten = volume.rewrite(generation, &patches)?;
        let chunks = rewritten.chunks();
        self.shared.watch()?;
        let mut writer = lock(&updating.0);
        let mut log = writer.take_log(&self.shared, generation)?;
        let compacted = log.compact(sequence, rewritten);
        writer.log = Some(log);
        compacted?;
        let left = Arc::new(writer.current.after(sequence));
        let before = std::mem::replace(&mut writer.current, left);
        writer.older.push(Arc::downgrade(&before));
        Ok(chunks)
    }

    /// Forgets the updates of a generation that is gone.
    pub(crate) fn forget_updates(&self, generation: u64) {
        lock(&self.shared.updates.of).remove(&generation);
    }
}

/// Whether a generation has updates that only an overlay shows.
pub(crate) fn is_updated(generation: &Generation) -> bool {
    !generation.log.is_empty()
}
