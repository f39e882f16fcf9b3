//! Updates that only a log has: how many, where they are, and what bringing them into chunks would take.

use serde::Serialize;
use warprow_layout::{Generation, LogChunkInspection, VolumeError};

use super::key_changes::KeyChanges;
use super::spec::spec_changed;
use crate::drive_access::lock;
use crate::overlay::OverlaySnapshot;
use crate::{Store, StoreError};

/// Updates of a generation that its chunks do not have yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingUpdates {
    /// The generation's id.
    pub generation: u64,
    /// Updates in its log, of one row or key each. A row that was updated twice counts twice.
    pub updates: u64,
    /// The tables that they change.
    pub tables: Vec<PendingTable>,
    /// The log's chunks, in their order.
    pub log: Vec<LogChunkInspection>,
    /// What a compaction would do now.
    pub compaction: CompactionNeeds,
}

/// Updates of a table that its chunks do not have yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingTable {
    /// The table's name.
    pub table: String,
    /// Different rows of the table that have other content.
    pub rows: u64,
    /// Keys that were created, which the table does not have yet.
    pub created: u64,
    /// Keys that were removed, which the table has until a compaction.
    pub removed: u64,
}

/// What a compaction of a generation would do, and what it would need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CompactionNeeds {
    /// Whether the whole generation would be written anew, since keys were created or removed; else chunks with updated rows are copied.
    pub rewrites: bool,
    /// Chunks that would be copied, or written.
    pub chunks: u64,
    /// Chunks that have to be free for that. Where keys were created or removed, at least: the size of their index is known once it is built.
    /// Else one, for it goes in steps where fewer are free than are copied; but all at once where somebody reads the generation.
    pub needs: u64,
    /// Chunks that are free.
    pub free: u64,
    /// Chunks more that would be free once the log's records are packed closer, which a compaction does first where too few are free
    /// and nobody else reads the generation; 0 where enough are, or where that would win none.
    pub packs: u64,
    /// Chunks that would be free again afterwards, when nobody reads them any more: the old ones, and those of the log.
    pub frees: u64,
}

impl CompactionNeeds {
    /// Whether there are as many free chunks as needed, or will be once the log is packed.
    pub fn has_room(&self) -> bool {
        self.needs <= self.free.saturating_add(self.packs)
    }
}

impl Store {
    /// The updates of generation `id` that only its log has, and what [`compact`](Self::compact) would do with them; `None`: there is
    /// no log. The log is read, unless an update or a look-up has done so before; and the orders and keys of the tables concerned,
    /// as an update or a compaction does.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// store.update("user", &[5, 6, 5], &[0; 48])?;
    /// let id = store.generations()[0].id;
    /// let pending = store.pending_updates(id)?.ok_or("nothing is pending")?;
    /// assert_eq!((pending.updates, pending.tables[0].rows), (3, 2));
    /// println!("{} chunks would be copied, {} are free", pending.compaction.chunks, pending.compaction.free);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pending_updates(&self, id: u64) -> Result<Option<PendingUpdates>, StoreError> {
        let volume = &self.shared.volume;
        let found = volume.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        if found.log.is_empty() {
            return Ok(None);
        }
        self.shared.watch()?;
        let updating = self.shared.updates.updating(&self.shared.volume, id)?;
        let current = lock(&updating.0).current.clone();
        let snapshot = current.snapshot();
        let tables = (0u32..).zip(&found.tables).map(|(index, table)| {
            let rows = snapshot.as_ref().map_or(0, |snapshot| snapshot.rows(index).count() as u64);
            let changes = snapshot.as_ref().map_or(KeyChanges::default(), |snapshot| KeyChanges::of(snapshot, index));
            PendingTable { table: table.name.clone(), rows, created: changes.created, removed: changes.removed }
        });
        Ok(Some(PendingUpdates {
            generation: id,
            updates: current.sequence().saturating_sub(found.base_sequence),
            tables: tables.filter(|table| table.rows + table.created + table.removed > 0).collect(),
            log: volume.inspect_log(&found)?,
            compaction: self.needs(&found, snapshot.as_ref())?,
        }))
    }

    /// What [`compact`](Self::compact) of generation `id` would do now, and how many free chunks it would need. Nothing is written.
    pub fn compaction_needs(&self, id: u64) -> Result<CompactionNeeds, StoreError> {
        let found = self.shared.volume.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        if found.log.is_empty() {
            return self.needs(&found, None);
        }
        self.shared.watch()?;
        let updating = self.shared.updates.updating(&self.shared.volume, id)?;
        let snapshot = lock(&updating.0).current.snapshot();
        self.needs(&found, snapshot.as_ref())
    }

    /// What a compaction of `found` would do and need, if `snapshot` has the updates that its log has.
    fn needs(&self, found: &Generation, snapshot: Option<&OverlaySnapshot>) -> Result<CompactionNeeds, StoreError> {
        let volume = &self.shared.volume;
        let free = volume.free_chunks().iter().sum();
        let log = found.log.len() as u64;
        let none = CompactionNeeds { rewrites: false, chunks: 0, needs: 0, free, packs: 0, frees: log };
        let Some(snapshot) = snapshot else { return Ok(none) };
        let changes = KeyChanges::of_all(Some(snapshot), found);
        let needs = match !changes.is_empty() {
            true => {
                let spec = spec_changed(found, &changes);
                let (needs, chunks) = volume.chunks_to_write(&spec)?;
                let frees = log + found.placement.map().len() as u64;
                CompactionNeeds { rewrites: true, chunks, needs, frees, ..none }
            }
            false => {
                let chunks = volume.chunks_to_copy(found, self.ranks_of_updated(found, snapshot)?)?;
                CompactionNeeds { chunks, needs: chunks.min(1), frees: log + chunks, ..none }
            }
        };
        // As the compaction does: it looks at its log where too few are free.
        let packs = if needs.needs > free { volume.chunks_to_repack(found)? } else { 0 };
        Ok(CompactionNeeds { packs, ..needs })
    }

    /// The tables, by their indices, and the ranks of the rows that updates gave other content.
    fn ranks_of_updated(&self, found: &Generation, snapshot: &OverlaySnapshot) -> Result<Vec<(u32, u64)>, StoreError> {
        let mut ranks = Vec::new();
        for index in (0u32..).take(found.tables.len()) {
            let mut rows = snapshot.rows(index).peekable();
            if rows.peek().is_some() {
                let order = self.shared.volume.read_ranks(found, index as usize)?;
                let rank_of = |id| order.as_ref().map_or(Some(id), |order| order.get(id));
                ranks.extend(rows.filter_map(|(id, _)| Some((index, rank_of(id)?))));
            }
        }
        Ok(ranks)
    }
}
