//! Other chunks for a generation: copies, with rows changed on the way or not. See `docs/updates.md`, "Moving chunks".

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::chunks::FreeChunks;
use crate::drive::Drive;
use crate::error::VolumeError;
use crate::extent::Extent;
use crate::generation::Generation;
use crate::placement::{ChunkRef, Placement};
use crate::table::row_crc;
use crate::volume::{For, RewriteClaim, Volume, Writing};

/// A row that takes the place of the one of its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch<'a> {
    /// The table's index in its generation.
    pub table: u32,
    /// The row's rank.
    pub rank: u64,
    /// As many bytes as the table's rows have.
    pub row: &'a [u8],
}

/// Chunks that were written for a generation, and that it does not have yet.
pub struct Rewritten {
    pub(crate) writing: Writing,
    _rewriting: Rewriting,
    pub(crate) generation: Arc<Generation>,
    /// Chunks that were copied and committed before.
    before: usize,
    /// Where in the chunk map, and what: reserved.
    columns: Vec<usize>,
    chunks: Arc<[ChunkRef]>,
}

/// The right to give a generation other chunks: while one lives, or a copy of it, nobody else does.
#[derive(Clone)]
pub struct Rewriting(Arc<RewriteClaim>);

impl Rewriting {
    /// The generation that it is of.
    pub fn generation(&self) -> u64 {
        self.0.generation()
    }
}

impl std::fmt::Debug for Rewriting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rewriting").field(&self.0.generation()).finish()
    }
}

/// Bytes of a chunk, by where they begin in it.
pub(crate) type Edits<'a> = BTreeMap<usize, Edit<'a>>;

pub(crate) enum Edit<'a> {
    Row(&'a [u8]),
    Crc([u8; 4]),
}

impl Edit<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Row(row) => row,
            Self::Crc(crc) => crc,
        }
    }
}

impl Volume {
    /// The right to give a generation other chunks; [`VolumeError::Rewriting`] if somebody else has it.
    pub fn rewriting(&self, id: u64) -> Result<Rewriting, VolumeError> {
        Ok(Rewriting(Arc::new(self.claim_rewrite(id)?)))
    }

    /// Copies the chunks of a generation that hold rows of `patches`, with these rows, and their checksums, in the place of the
    /// stored ones; later patches of a row count. Readers are not concerned, and nothing has changed, until
    /// [`Log::compact`](crate::Log::compact) takes the copies up; dropped, they are free again.
    pub fn rewrite(&self, id: u64, patches: &[Patch<'_>]) -> Result<Rewritten, VolumeError> {
        let rewriting = self.rewriting(id)?;
        let generation = self.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        let edits = edits(&generation, patches)?;
        let members = members(&generation, edits.keys());
        self.rewrite_claimed(rewriting, generation, &edits, edits.len(), |free| free.near(&members))
    }

    /// As [`rewrite`](Self::rewrite), of a generation that `rewriting` is of, with updates that its log has: where fewer chunks are
    /// free than are to be copied, and nobody else reads the generation, it copies as many as are free, commits the generation with
    /// these, and goes on with those that are free then. One free chunk is enough.
    ///
    /// A row that is in its chunk early is right: the log still has it, and is replayed over it. Cut short, it goes on with the
    /// chunks that lack something.
    pub fn rewrite_in_steps(&self, rewriting: &Rewriting, patches: &[Patch<'_>]) -> Result<Rewritten, VolumeError> {
        let id = rewriting.generation();
        let find = || self.generation(id).ok_or(VolumeError::NoSuchGeneration { id });
        let mut edits = {
            let generation = find()?;
            edits(&generation, patches)?
        };
        let (mut stepped, mut before) = (false, 0);
        loop {
            let generation = find()?;
            let free: u64 = self.free_chunks().iter().sum();
            let all = edits.len();
            // The catalogue's, and this one. Chunks that others read are not free when they are replaced.
            let read = Arc::strong_count(&generation) > 2 || !stepped && self.earlier_holders(id) > 0;
            if all as u64 <= free || free == 0 || read {
                let members = members(&generation, edits.keys());
                let near = |free: &FreeChunks| free.near(&members);
                let last = self.rewrite_claimed(rewriting.clone(), generation, &edits, all, near)?;
                return Ok(Rewritten { before, ..last });
            }
            if !stepped {
                // What an earlier run that was cut short has copied.
                let mut left = BTreeMap::new();
                for (column, edits) in std::mem::take(&mut edits) {
                    if self.lacks(&generation, column, &edits)? {
                        left.insert(column, edits);
                    }
                }
                (edits, stepped) = (left, true);
                continue;
            }
            let next = edits.keys().nth(free as usize).copied().unwrap_or(usize::MAX);
            let later = edits.split_off(&next);
            let now = std::mem::replace(&mut edits, later);
            let members = members(&generation, now.keys());
            let copied =
                self.rewrite_claimed(rewriting.clone(), generation, &now, now.len(), |free| free.near(&members))?;
            before += copied.chunks();
            copied.commit(|_| ())?;
        }
    }

    /// Whether a chunk of a generation has other bytes than `edits` say.
    fn lacks(&self, generation: &Generation, column: usize, edits: &Edits<'_>) -> Result<bool, VolumeError> {
        let placement = &generation.placement;
        let Some(&chunk) = placement.map().get(column) else { return Ok(false) };
        let (drive, lba_size) = (self.present(chunk.drive())?, placement.lba_size() as usize);
        for (&place, edit) in edits {
            let (first, end) = (place / lba_size, (place + edit.bytes().len()).div_ceil(lba_size));
            let mut bytes = vec![0; (end - first) * lba_size];
            drive.read(placement.chunk_lba(chunk) + first as u64, &mut bytes)?;
            let begin = place - first * lba_size;
            if bytes.get(begin..begin + edit.bytes().len()) != Some(edit.bytes()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes a free chunk for each one of a generation that holds one of `lbas`, of the generation's address space. Nothing is copied:
    /// that is for the caller, who copies each extent that has a [`target`](Rewritten::target), through any queue and with what
    /// it changes on the way, before [`Log::compact`](crate::Log::compact) takes the copies up. For more rows than
    /// [`rewrite`](Self::rewrite) is made for.
    pub fn begin_rewrite(&self, id: u64, lbas: impl IntoIterator<Item = u64>) -> Result<Rewritten, VolumeError> {
        let rewriting = self.rewriting(id)?;
        let generation = self.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        let writing = self.writing()?;
        let placement = &generation.placement;
        let all = placement.map().len();
        let mut wanted = vec![false; all];
        let mut left = all;
        for lba in lbas {
            let past = VolumeError::OutOfRange { first: lba, end: lba.saturating_add(1), lbas: placement.lbas() };
            let (column, _) = placement.column(lba).ok_or(past)?;
            if let Some(wanted) = wanted.get_mut(column).filter(|wanted| !**wanted) {
                (*wanted, left) = (true, left - 1);
            }
            if left == 0 {
                break;
            }
        }
        let columns: Vec<usize> = (0..all).filter(|&column| wanted.get(column) == Some(&true)).collect();
        let members: Vec<u16> = columns.iter().filter_map(|&it| Some(placement.map().get(it)?.drive())).collect();
        let (chunks, ..) = self.reserve(columns.len() as u64, For::Keeps, |free, _| free.near(&members))?;
        Ok(Rewritten { writing, _rewriting: rewriting, generation, before: 0, columns, chunks })
    }

    /// Copies the chunks of a generation that `edits` names, with these edits, to the chunks that `pick` takes, of which there have to be `least`: as many as these are.
    pub(crate) fn rewrite_columns(
        &self,
        id: u64,
        edits: &BTreeMap<usize, Edits<'_>>,
        least: usize,
        pick: impl FnOnce(&FreeChunks) -> Vec<ChunkRef>,
    ) -> Result<Rewritten, VolumeError> {
        let rewriting = self.rewriting(id)?;
        let generation = self.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        self.rewrite_claimed(rewriting, generation, edits, least, pick)
    }

    fn rewrite_claimed(
        &self,
        rewriting: Rewriting,
        generation: Arc<Generation>,
        edits: &BTreeMap<usize, Edits<'_>>,
        least: usize,
        pick: impl FnOnce(&FreeChunks) -> Vec<ChunkRef>,
    ) -> Result<Rewritten, VolumeError> {
        let placement = &generation.placement;
        let writing = self.writing()?;
        let mut columns: Vec<usize> = edits.keys().copied().collect();
        let (chunks, ..) = self.reserve(least as u64, For::Compaction, |free, _| pick(free))?;
        columns.truncate(chunks.len());
        for ((&column, &to), edits) in columns.iter().zip(&*chunks).zip(edits.values()) {
            if let Some(&from) = placement.map().get(column) {
                self.copy(placement, from, to, edits)?;
            }
        }
        Ok(Rewritten { writing, _rewriting: rewriting, generation, before: 0, columns, chunks })
    }

    /// Copies a chunk.
    fn copy(&self, placement: &Placement, from: ChunkRef, to: ChunkRef, edits: &Edits<'_>) -> Result<(), VolumeError> {
        let (source, target) = (self.present(from.drive())?, self.present(to.drive())?);
        let (stripe, lba_size) = (placement.stripe_bytes() as usize, placement.lba_size() as usize);
        // Whole stripe units: no row lies in two of them.
        let most = source.max_transfer().min(target.max_transfer());
        let mut buf = vec![0; (most / stripe * stripe).max(stripe).min(self.geometry().chunk_size() as usize)];
        let commands = |drive: &Arc<dyn Drive>| (drive.max_transfer() / lba_size * lba_size).max(lba_size);
        let size = self.geometry().chunk_size() as usize;
        for begin in (0..size).step_by(buf.len()) {
            let length = buf.len().min(size - begin);
            let part = buf.get_mut(..length).unwrap_or_default();
            let at = |chunk: ChunkRef| placement.chunk_lba(chunk) + (begin / lba_size) as u64;
            let step = commands(source);
            for (index, part) in part.chunks_mut(step).enumerate() {
                source.read(at(from) + (index * step / lba_size) as u64, part)?;
            }
            for (&place, edit) in edits.range(begin..begin + length) {
                let bytes = edit.bytes();
                let old = part.get_mut(place - begin..).and_then(|part| part.get_mut(..bytes.len()));
                old.unwrap_or_default().copy_from_slice(bytes);
            }
            let step = commands(target);
            for (index, part) in part.chunks(step).enumerate() {
                target.write(at(to) + (index * step / lba_size) as u64, part)?;
            }
        }
        Ok(())
    }
}

/// What is to be changed in each chunk of a generation, by its entry in the chunk map.
fn edits<'a>(generation: &Generation, patches: &[Patch<'a>]) -> Result<BTreeMap<usize, Edits<'a>>, VolumeError> {
    let placement = &generation.placement;
    let mut edits: BTreeMap<usize, Edits<'a>> = BTreeMap::new();
    for patch in patches {
        let no_table = || VolumeError::NoSuchTable { generation: generation.name.clone(), table: patch.table as usize };
        let table = generation.tables.get(patch.table as usize).ok_or_else(no_table)?;
        let (expected, given) = (u64::from(table.row_bytes()), patch.row.len() as u64);
        if expected != given {
            return Err(VolumeError::Length { what: "a row to be changed", expected, given });
        }
        let past =
            || VolumeError::OutOfRange { first: patch.rank, end: patch.rank.saturating_add(1), lbas: placement.lbas() };
        let mut put = |(lba, byte): (u64, u32), edit| {
            let (column, begin) = placement.column(lba).ok_or_else(past)?;
            edits.entry(column).or_default().insert(begin + byte as usize, edit);
            Ok::<_, VolumeError>(())
        };
        put(table.locate(patch.rank).ok_or_else(past)?, Edit::Row(patch.row))?;
        if let Some(place) = table.locate_crc(patch.rank, placement.lba_size()) {
            put(place, Edit::Crc(row_crc(patch.rank, patch.row).to_le_bytes()))?;
        }
    }
    Ok(edits)
}

/// The members on which these entries of a generation's chunk map lie.
fn members<'a>(generation: &Generation, columns: impl Iterator<Item = &'a usize>) -> Vec<u16> {
    columns.filter_map(|&column| Some(generation.placement.map().get(column)?.drive())).collect()
}

impl Rewritten {
    /// Chunks that were copied.
    pub fn chunks(&self) -> usize {
        self.before + self.columns.len()
    }

    /// The generation as it is before it has them: what is copied from. Holding it pins its chunks.
    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// Where an extent of the generation is to be copied to; `None`: its chunk stays.
    pub fn target(&self, extent: &Extent) -> Option<Extent> {
        let placement = &self.generation.placement;
        let (column, _) = placement.column(extent.first_lba())?;
        let chunk = self.chunks.get(self.columns.binary_search(&column).ok()?)?;
        let within = extent.lba.checked_sub(placement.chunk_lba(*placement.map().get(column)?))?;
        Some(extent.moved_to(chunk.drive(), placement.chunk_lba(*chunk) + within))
    }

    /// Commits the generation with its new chunks, and as `change` makes it besides.
    pub(crate) fn commit(self, change: impl FnOnce(&mut Generation)) -> Result<Arc<Generation>, VolumeError> {
        let Self { writing, generation, columns, chunks, .. } = &self;
        let geometry = writing.volume.geometry();
        let id = generation.id;
        writing.commit(true, None, |catalogue, _| {
            catalogue.change(id, |changed| {
                // Nobody else rewrites it: the map is still the one that was copied from.
                let mut map = changed.placement.map().to_vec();
                for (&column, &chunk) in columns.iter().zip(&**chunks) {
                    if let Some(entry) = map.get_mut(column) {
                        *entry = chunk;
                    }
                }
                let stripe_shift = changed.placement.stripe_bytes().trailing_zeros();
                changed.placement = Arc::new(geometry.placement(map, stripe_shift));
                change(changed);
                Ok(())
            })?;
            catalogue.generation(id).cloned().ok_or(VolumeError::NoSuchGeneration { id })
        })
    }
}

impl std::fmt::Debug for Rewritten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rewritten").field("generation", &self.generation.id).field("columns", &self.columns).finish()
    }
}
