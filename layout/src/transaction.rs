//! A generation that is being written.

use std::sync::Arc;

use uuid::Uuid;

use crate::error::VolumeError;
use crate::generation::{Generation, GenerationSpec};
use crate::keyed::TableKeys;
use crate::load::{RowSource, TableWrites};
use crate::ranks::Ranks;
use crate::rewrite::RewritePermit;
use crate::table::Table;
use crate::volume::{Claim, For, Reserved, Volume, Writing};

/// A generation that is being written: chunks are reserved for it, and nobody sees it before [`commit`](Self::commit).
///
/// Write the rows of every table, as its [`loader`](Self::loader) plans them or by the addresses of
/// [`generation`](Self::generation), through any queue. When all writes have *completed*, commit.
pub struct Transaction {
    writing: Writing,
    _claim: Claim,
    /// Keeps the chunks reserved until the catalogue has them, or they are given up.
    _reserved: Reserved,
    generation: Generation,
    standby: bool,
    /// The identity of the commit; `None`: random.
    id: Option<Uuid>,
    /// Tables whose ranks and keys were given.
    ranked: Vec<bool>,
    superseded: Vec<u64>,
}

impl Transaction {
    fn new(
        (writing, claim, reserved): (Writing, Claim, Reserved),
        generation: Generation,
        spec: &GenerationSpec,
    ) -> Self {
        let ranked = vec![false; generation.tables.len()];
        let standby = spec.standby;
        let id = spec.commit;
        Self { writing, _claim: claim, _reserved: reserved, generation, standby, id, ranked, superseded: Vec::new() }
    }

    /// The generation as it will be: tables and placement.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Plans the writes of table `table`: rows from `source`, by id; id → rank from `ranks`, if the table was declared permuted.
    /// Checksums of ranks and rows are written as well.
    ///
    /// The loader has a placement of its own, so it may outlive the transaction; it is of no use then.
    pub fn loader<'a, S: RowSource + ?Sized>(
        &mut self,
        table: usize,
        source: &'a S,
        ranks: Option<&'a Ranks>,
    ) -> Result<TableWrites<'a, S>, VolumeError> {
        let generation = &mut self.generation;
        let no_table = || VolumeError::NoSuchTable { generation: generation.name.clone(), table };
        let Some(entry) = generation.tables.get_mut(table) else { return Err(no_table()) };
        if entry.keys.is_some() {
            return Err(VolumeError::KeysNotGiven { table: entry.name.clone() });
        }
        let given = ranks.map_or(0, Ranks::len);
        if ranks.is_some() != entry.ranks.is_some() || ranks.is_some() && given != entry.rows {
            let permuted = entry.ranks.is_some();
            return Err(VolumeError::RanksMismatch { table: entry.name.clone(), rows: entry.rows, permuted, given });
        }
        source.check(entry)?;
        if let (Some(ranks), Some(stored)) = (ranks, &mut entry.ranks) {
            stored.crc = ranks.crc();
        }
        if let Some(ranked) = self.ranked.get_mut(table) {
            *ranked = true;
        }
        Ok(TableWrites::new(entry.clone(), generation.placement.clone(), source, ranks))
    }

    /// Plans the writes of keyed table `table`: rows from `source`, in the order of the keys. Checksums are written as well.
    pub fn keyed_loader<'a, S: RowSource + ?Sized>(
        &mut self,
        table: usize,
        source: &'a S,
        keyed: &'a TableKeys<'a>,
    ) -> Result<TableWrites<'a, S>, VolumeError> {
        let generation = &mut self.generation;
        let no_table = || VolumeError::NoSuchTable { generation: generation.name.clone(), table };
        let Some(entry) = generation.tables.get_mut(table) else { return Err(no_table()) };
        let name = || entry.name.clone();
        let fits = entry.rows == keyed.len() && entry.ranks.is_some() == keyed.ranks().is_some();
        let Some(stored) = entry.keys.as_mut().filter(|stored| fits && stored.spec == keyed.spec()) else {
            return Err(VolumeError::KeysMismatch { table: name() });
        };
        stored.index_crc = keyed.index().checksum();
        stored.keys_crc =
            keyed.keys_crc().map_err(|source| VolumeError::Source { table: entry.name.clone(), source })?;
        source.check(entry)?;
        if let (Some(ranks), Some(stored)) = (keyed.ranks(), &mut entry.ranks) {
            stored.crc = ranks.crc();
        }
        if let Some(ranked) = self.ranked.get_mut(table) {
            *ranked = true;
        }
        Ok(TableWrites::keyed(entry.clone(), generation.placement.clone(), source, keyed))
    }

    /// Declares that table `table` will be a copy of `from`, a table of another generation, with the ranks and keys of
    /// `from`. The caller is to write into each region of the table what is in the same region of `from`, from its
    /// beginning on; only rows and their checksums may differ.
    pub fn copied(&mut self, table: usize, from: &Table) -> Result<(), VolumeError> {
        let generation = &mut self.generation;
        let no_table = || VolumeError::NoSuchTable { generation: generation.name.clone(), table };
        let Some(entry) = generation.tables.get_mut(table) else { return Err(no_table()) };
        let shape = |table: &Table| {
            let ranks = table.ranks.map(|ranks| (ranks.region.lbas, ranks.width));
            let keys = table.keys.map(|keys| (keys.spec, keys.index.lbas, keys.keys.map(|keys| keys.lbas)));
            (table.rows, table.packing, table.rows_region.lbas, ranks, keys, table.crc_region.map(|crcs| crcs.lbas))
        };
        if shape(entry) != shape(from) {
            let reason = format!("it has not the shape of table {:?}, of which it is to be a copy", from.name);
            return Err(VolumeError::InvalidTable { table: entry.name.clone(), reason });
        }
        let regions = (entry.ranks.map(|rank| rank.region), entry.keys.map(|key| (key.index, key.keys)));
        (entry.ranks, entry.keys) = (from.ranks, from.keys);
        if let (Some(ranks), Some(region)) = (&mut entry.ranks, regions.0) {
            ranks.region = region;
        }
        if let (Some(stored), Some((index, keys))) = (&mut entry.keys, regions.1) {
            (stored.index, stored.keys) = (index, keys);
        }
        if let Some(ranked) = self.ranked.get_mut(table) {
            *ranked = true;
        }
        Ok(())
    }

    /// Also drops generation `id` in the same commit, because this one replaces it.
    pub fn supersede(&mut self, id: u64) {
        self.superseded.push(id);
    }

    /// Makes the generation part of the store, atomically and durably. All its writes must have completed.
    ///
    /// The generation's `Arc` pins its chunks; see [`Generation`].
    pub fn commit(self) -> Result<Arc<Generation>, VolumeError> {
        self.commit_superseding(|_| Ok(Vec::new())).map(|(generation, _)| generation)
    }

    /// As [`commit`](Self::commit), and drops the generations that `choose` names by their ids. `choose` is given the
    /// generations that there are, oldest first; no other commit comes between its choice and this one. Returns the
    /// generation, and the ids of those that were dropped.
    pub fn commit_superseding<E: From<VolumeError>>(
        self,
        choose: impl FnOnce(&[Arc<Generation>]) -> Result<Vec<u64>, E>,
    ) -> Result<(Arc<Generation>, Vec<u64>), E> {
        self.check()?;
        self.writing.commit(true, self.id, |catalogue, commit| {
            let superseded = [self.superseded, choose(&catalogue.generations)?].concat();
            for &id in &superseded {
                catalogue.remove(id)?;
            }
            let epoch = commit.epoch;
            let shown = if self.standby { 0 } else { commit.epoch };
            let generation = Arc::new(Generation { epoch, shown, ..self.generation });
            catalogue.next_id = generation.id + 1;
            catalogue.generations.push(generation.clone());
            Ok((generation, superseded))
        })
    }
}

impl Transaction {
    /// Refuses a commit of tables whose ranks or keys were not given.
    fn check(&self) -> Result<(), VolumeError> {
        let mut tables = self.generation.tables.iter().zip(&self.ranked).filter(|(_, ranked)| !**ranked);
        match tables.find(|(table, _)| table.ranks.is_some() || table.keys.is_some()) {
            None => Ok(()),
            Some((table, _)) if table.ranks.is_some() => Err(VolumeError::RanksNotGiven { table: table.name.clone() }),
            Some((table, _)) => Err(VolumeError::KeysNotGiven { table: table.name.clone() }),
        }
    }
}

/// A generation that is being written anew as a whole: with other rows, keys and chunks, under the same id. Nothing
/// changes for readers until [`Log::replace`](crate::Log::replace) commits it. If it is dropped instead, its new chunks
/// are free again.
pub struct RebuiltGeneration {
    transaction: Transaction,
    before: Arc<Generation>,
    _rewriting: RewritePermit,
}

impl Volume {
    /// Begins a generation: finds chunks for it, and says where its rows will lie. Nothing is written yet.
    ///
    /// There is one transaction at a time. A transaction that is dropped without a commit leaves no trace.
    pub fn begin(&self, spec: &GenerationSpec) -> Result<Transaction, VolumeError> {
        let writing = self.writing()?;
        let claim = self.claim()?;
        let (generation, reserved) = self.place(spec, For::Keeps)?;
        Ok(Transaction::new((writing, claim, reserved), generation, spec))
    }

    /// As [`begin`](Self::begin), for a compaction.
    fn begin_anew(&self, spec: &GenerationSpec) -> Result<Transaction, VolumeError> {
        let writing = self.writing()?;
        let claim = self.claim()?;
        let (generation, reserved) = self.place(spec, For::Compaction)?;
        Ok(Transaction::new((writing, claim, reserved), generation, spec))
    }

    /// Begins to write generation `id` anew: finds chunks for the tables of `spec`, which must have the generation's
    /// name. Until the result is committed or dropped, nobody else gives the generation other chunks, and nobody loads
    /// another generation. Updates go on into the generation's log.
    pub fn rebuild(&self, id: u64, spec: &GenerationSpec) -> Result<RebuiltGeneration, VolumeError> {
        self.rebuild_claimed(self.rewriting(id)?, spec)
    }

    /// As [`rebuild`](Self::rebuild), for the generation of the permit `rewriting`.
    pub fn rebuild_claimed(
        &self,
        rewriting: RewritePermit,
        spec: &GenerationSpec,
    ) -> Result<RebuiltGeneration, VolumeError> {
        let id = rewriting.generation();
        let before = self.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        if before.name != spec.name {
            let reason = format!("it is to be generation {id} of {:?} anew", before.name);
            return Err(VolumeError::InvalidGeneration { name: spec.name.clone(), reason });
        }
        let mut transaction = self.begin_anew(spec)?;
        transaction.generation.id = id;
        Ok(RebuiltGeneration { transaction, before, _rewriting: rewriting })
    }
}

impl RebuiltGeneration {
    /// The transaction that says where the generation's rows are to be written, and gives the loaders that write them.
    pub fn transaction(&mut self) -> &mut Transaction {
        &mut self.transaction
    }

    /// The generation as it was before. Holding it pins its chunks.
    pub fn before(&self) -> &Arc<Generation> {
        &self.before
    }

    /// The generation's id.
    pub fn id(&self) -> u64 {
        self.before.id
    }

    /// Commits the generation as it was written, and with what `change` changes besides.
    pub(crate) fn commit(self, change: impl FnOnce(&mut Generation)) -> Result<Arc<Generation>, VolumeError> {
        let Self { transaction, before, .. } = &self;
        transaction.check()?;
        let id = before.id;
        transaction.writing.commit(true, None, |catalogue, _| {
            catalogue.change(id, |changed| {
                changed.tables.clone_from(&transaction.generation.tables);
                changed.placement = transaction.generation.placement.clone();
                change(changed);
                Ok(())
            })?;
            catalogue.generation(id).cloned().ok_or(VolumeError::NoSuchGeneration { id })
        })
    }
}

impl std::fmt::Debug for RebuiltGeneration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RebuiltGeneration").field("generation", &self.transaction.generation).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("generation", &self.generation).finish_non_exhaustive()
    }
}
