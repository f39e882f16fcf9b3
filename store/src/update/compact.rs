//! Compaction: updates brought from the log into the chunks of their generation.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use warprow_layout::{
    Generation, Log, LogUsage, Placement, RebuiltGeneration, RewritePermit, RewrittenChunks, RowPatch, VolumeError,
};

use super::desk::LOG_OF_MEMORY;
use super::key_changes::KeyChanges;
use super::rewrite::no_room;
use super::spec::spec_changed;
use super::state::{KeyedTables, Updating};
use crate::StoreError;
use crate::drive_access::lock;
use crate::overlay::OverlaySnapshot;
use crate::store::Store;

impl Store {
    /// Brings the updates of a generation into its chunks: copies the chunks that hold updated rows, with these rows in
    /// them, and commits the copies without the log. Returns how many chunks were copied. Updates go on meanwhile, and
    /// are seen; only the commit makes them wait. It takes as many free chunks as it copies, or goes in steps where
    /// fewer are free and nobody else reads the generation. The chunks that were copied are free again when nobody
    /// reads them any more: hosts go on with them, and with the updated rows in memory, until they call
    /// `HostExecutor::prepare` and `HostExecutor::adopt`.
    ///
    /// Rows that are copied are compared with their checksums, where their table has them. One that does not match ends the compaction
    /// ([`StoreError::RowDamaged`] names the drive and the row), and the generation stays as it was: otherwise a row that was
    /// read wrong once would be wrong for good. If the row is damaged on the drive, an update of this row goes before the next compaction.
    ///
    /// Keys that were created since come into their tables, behind the last rank, and those that were removed leave them,
    /// with their rows. For that the whole generation is written anew under its id, into as many free chunks as it takes,
    /// with other indexes for these tables. This reads and writes all of the generation, and twice each table that is put
    /// in order and has more than 256 MiB of rows; so create and remove many keys at a time.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use warprow_lookup::*;
    /// # use warprow_store::*;
    /// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
    /// # let store = FormatProposal::new(&[device.clone()], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    /// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    /// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
    /// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// store.update("user", &[5], &[0; 16])?;
    /// let id = store.generations()[0].id;
    /// let needs = store.compaction_needs(id)?;
    /// assert!(needs.has_room() && !needs.rewrites);
    /// assert_eq!(store.compact(id)? as u64, needs.chunks);
    /// assert_eq!(store.pending_updates(id)?, None);
    /// store.scan("user", 5..6, &mut |_, row| {
    ///     assert_eq!(row, [0; 16]);
    ///     ControlFlow::Continue(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self, generation: u64) -> Result<usize, StoreError> {
        self.shared.watch()?;
        // Before anything is sealed, and until it is committed: nobody else changes what the updates are brought into.
        let rewriting = self.shared.volume.rewriting(generation)?;
        let updating = self.shared.updates.updating(&self.shared.volume, generation)?;
        let (sequence, snapshot, keyed) = {
            let mut writer = lock(&updating.0);
            let mut log = writer.take_log(&self.shared.volume, generation)?;
            let snapshot = writer.current.snapshot();
            let room = self.make_room_to_compact(&rewriting, &mut log, snapshot.as_ref());
            let sequence = if room.is_ok() && snapshot.is_some() { log.seal() } else { 0 };
            writer.log = Some(log);
            room?;
            (sequence, snapshot, writer.keyed.clone())
        };
        let Some(snapshot) = snapshot else { return Ok(0) };
        let compacted = self.compact_up_to(&updating, &rewriting, sequence, &snapshot, &keyed);
        if compacted.is_err() {
            updating.unseal(sequence);
        }
        compacted
    }

    /// Brings the updates of a snapshot, which are those up to `sequence`, into chunks.
    fn compact_up_to(
        &self,
        updating: &Updating,
        rewriting: &RewritePermit,
        sequence: u64,
        snapshot: &OverlaySnapshot,
        keyed: &KeyedTables,
    ) -> Result<usize, StoreError> {
        let volume = &self.shared.volume;
        let generation = rewriting.generation();
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let (chunks, written, grown) = if !KeyChanges::of_all(Some(snapshot), &found).is_empty() {
            let anew = self.write_anew(&found, snapshot, keyed, rewriting)?;
            (anew.chunks, Written::Anew(anew.rebuilt), anew.tables)
        } else {
            let patches = self.patches(&found, snapshot)?;
            let before = Arc::downgrade(&found.placement);
            // Its chunks are free when they are replaced, and nobody reads it.
            drop(found);
            let rewritten = volume.rewrite_in_steps(rewriting, &patches).map_err(of_copy)?;
            (rewritten.chunks(), Written::Copied(rewritten, before), HashMap::new())
        };
        self.shared.watch()?;
        let mut writer = lock(&updating.0);
        let mut log = writer.take_log(&self.shared.volume, generation)?;
        let compacted = match written {
            Written::Anew(rebuilt) => log.replace(sequence, rebuilt),
            Written::Copied(rewritten, before) => log.compact(sequence, rewritten).inspect(|after| {
                self.shared.updates.kinship.note(&before, &after.placement);
            }),
        };
        writer.log = Some(log);
        let compacted = compacted?;
        writer.compacted(sequence, grown);
        writer.count_changes(volume, &compacted)?;
        Ok(chunks)
    }

    /// The latest row of each id that a snapshot has, by ranks.
    fn patches<'a>(&self, found: &Generation, snapshot: &'a OverlaySnapshot) -> Result<Vec<RowPatch<'a>>, StoreError> {
        let mut patches = Vec::new();
        for (index, table) in (0u32..).zip(&found.tables) {
            let mut rows = snapshot.rows(index).peekable();
            if rows.peek().is_none() {
                continue;
            }
            let ranks = self.shared.volume.read_ranks(found, index as usize)?;
            for (id, row) in rows {
                let rank = ranks.as_ref().map_or(Some(id), |ranks| ranks.get(id));
                let rank = rank.ok_or_else(|| StoreError::NoSuchRow {
                    table: table.name.clone(),
                    rows: table.rows,
                    ids: vec![id],
                })?;
                patches.push(RowPatch { table: index, rank, row });
            }
        }
        Ok(patches)
    }

    /// Refuses a compaction for which there is certainly no room, and makes some where the log can take less.
    fn make_room_to_compact(
        &self,
        rewriting: &RewritePermit,
        log: &mut Log,
        snapshot: Option<&OverlaySnapshot>,
    ) -> Result<(), StoreError> {
        let Some(snapshot) = snapshot else { return Ok(()) };
        let refused = match self.check_compaction(rewriting.generation(), snapshot) {
            Err(refused @ (StoreError::NoRoomToGrow { .. } | StoreError::Volume(VolumeError::NoSpace { .. }))) => {
                refused
            }
            other => return other,
        };
        match log.repack(rewriting)? {
            0 => Err(refused),
            _ => self.check_compaction(rewriting.generation(), snapshot),
        }
    }

    fn check_compaction(&self, generation: u64, snapshot: &OverlaySnapshot) -> Result<(), StoreError> {
        let volume = &self.shared.volume;
        let found = volume.generation(generation).ok_or(VolumeError::NoSuchGeneration { id: generation })?;
        let changes = KeyChanges::of_all(Some(snapshot), &found);
        if !changes.is_empty() {
            let checked = volume.check_anew(&spec_changed(&found, &changes), &[generation]);
            return checked.map_err(|error| no_room(generation, error));
        }
        match volume.free_chunks().iter().any(|&free| free > 0) {
            true => Ok(()),
            false => Err(volume.no_space(1).into()),
        }
    }

    /// Whether the log of a generation is several times as long as what memory keeps of its updates may be: opening the store reads all
    /// of it, and a compaction would win much.
    pub fn is_log_long(&self, generation: u64) -> Result<bool, StoreError> {
        let usage = self.log_usage(generation)?;
        Ok(usage.bytes >= self.shared.updates.bound.saturating_mul(LOG_OF_MEMORY))
    }

    /// How much of its chunks the log of a generation has used.
    pub fn log_usage(&self, generation: u64) -> Result<LogUsage, StoreError> {
        let updating = self.shared.updates.updating(&self.shared.volume, generation)?;
        let mut writer = lock(&updating.0);
        let log = writer.take_log(&self.shared.volume, generation)?;
        let usage = log.usage();
        writer.log = Some(log);
        Ok(usage?)
    }

    /// Forgets the updates of a generation that is gone.
    pub(crate) fn forget_updates(&self, generation: u64) {
        lock(&self.shared.updates.of).remove(&generation);
    }
}

/// What stops a copy.
pub(super) fn of_copy(error: VolumeError) -> StoreError {
    match error {
        VolumeError::RowDamaged { table, rank, drive } => StoreError::RowDamaged { table, rank, drive },
        error => error.into(),
    }
}

/// Chunks that a compaction wrote and has not committed.
enum Written {
    /// Copies of the chunks that hold updated rows, and the map of those of before.
    Copied(RewrittenChunks, Weak<Placement>),
    /// All chunks of the generation, written anew.
    Anew(RebuiltGeneration),
}
