//! Giving a generation other chunks: copies of its own, with or without rows that change on the way. See
//! `docs/updates.md`, "Moving chunks".

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::chunks::FreeChunks;
use crate::copied_rows::CopiedRows;
use crate::drive::Drive;
use crate::error::VolumeError;
use crate::extent::Extent;
use crate::generation::Generation;
use crate::placement::ChunkRef;
use crate::table::row_crc;
use crate::volume::{For, RewriteClaim, Volume, Writing};

/// A row that takes the place of the present row of its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPatch<'a> {
    /// The table's index in its generation.
    pub table: u32,
    /// The row's rank.
    pub rank: u64,
    /// As many bytes as the table's rows have.
    pub row: &'a [u8],
}

/// Chunks that were written for a generation, but are not part of it yet.
pub struct RewrittenChunks {
    pub(crate) writing: Writing,
    _rewriting: RewritePermit,
    pub(crate) generation: Arc<Generation>,
    /// How many chunks were copied and committed before these.
    before: usize,
    /// Where in the chunk map, and what: reserved.
    columns: Vec<usize>,
    chunks: Arc<[ChunkRef]>,
}

/// The right to give a generation other chunks: while one lives, or a copy of it, nobody else does.
#[derive(Clone)]
pub struct RewritePermit(Arc<RewriteClaim>);

impl RewritePermit {
    /// The generation whose chunks may be given up for others.
    pub fn generation(&self) -> u64 {
        self.0.generation()
    }
}

impl std::fmt::Debug for RewritePermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RewritePermit").field(&self.0.generation()).finish()
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
    pub fn rewriting(&self, id: u64) -> Result<RewritePermit, VolumeError> {
        Ok(RewritePermit(Arc::new(self.claim_rewrite(id)?)))
    }

    /// Copies the chunks of a generation that hold rows of `patches`. The copies have these rows, and their checksums,
    /// in the place of the stored ones; of several patches of a row the last counts. All other rows are compared with their
    /// checksums ([`VolumeError::RowDamaged`]). Nothing changes for readers until
    /// [`Log::compact`](crate::Log::compact) gives the generation the copies. If the result is dropped instead, the
    /// chunks are free again.
    pub fn rewrite(&self, id: u64, patches: &[RowPatch<'_>]) -> Result<RewrittenChunks, VolumeError> {
        let rewriting = self.rewriting(id)?;
        let generation = self.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        let edits = edits(&generation, patches)?;
        let members = members(&generation, edits.keys());
        self.rewrite_claimed(rewriting, generation, &edits, edits.len(), Rows::Checked, |free| free.near(&members))
    }

    /// As [`rewrite`](Self::rewrite), for the generation of the permit `rewriting`; the log of the generation must
    /// still have all updates in `patches`. If fewer chunks are free than are to be copied, and nobody else reads the
    /// generation, this copies as many chunks as are free, commits the generation with the copies, and goes on with the
    /// chunks that are free then. One free chunk is enough.
    ///
    /// A row that is in its chunk before the last commit does no harm, because the log still has the row and is
    /// replayed over it. If this is cut short, the next call goes on with the chunks that still lack a row.
    pub fn rewrite_in_steps(
        &self,
        rewriting: &RewritePermit,
        patches: &[RowPatch<'_>],
    ) -> Result<RewrittenChunks, VolumeError> {
        let id = rewriting.generation();
        let find = || self.generation(id).ok_or(VolumeError::NoSuchGeneration { id });
        let mut edits = {
            let generation = find()?;
            edits(&generation, patches)?
        };
        let mut stepped = false;
        let mut before = 0;
        loop {
            let generation = find()?;
            let free: u64 = self.free_chunks().iter().sum();
            let all = edits.len();
            // The catalogue's, and this one. Chunks that others read are not free when they are replaced.
            let read = Arc::strong_count(&generation) > 2 || !stepped && self.earlier_holders(id) > 0;
            if all as u64 <= free || free == 0 || read {
                let members = members(&generation, edits.keys());
                let near = |free: &FreeChunks| free.near(&members);
                let last = self.rewrite_claimed(rewriting.clone(), generation, &edits, all, Rows::Checked, near)?;
                return Ok(RewrittenChunks { before, ..last });
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
            let near = |free: &FreeChunks| free.near(&members);
            let copied = self.rewrite_claimed(rewriting.clone(), generation, &now, now.len(), Rows::Checked, near)?;
            before += copied.chunks();
            copied.commit(|_| ())?;
        }
    }

    /// Whether a chunk of a generation has other bytes than `edits` say.
    fn lacks(&self, generation: &Generation, column: usize, edits: &Edits<'_>) -> Result<bool, VolumeError> {
        let placement = &generation.placement;
        let Some(&chunk) = placement.map().get(column) else { return Ok(false) };
        let drive = self.present(chunk.drive())?;
        let lba_size = placement.lba_size() as usize;
        for (&place, edit) in edits {
            let first = place / lba_size;
            let end = (place + edit.bytes().len()).div_ceil(lba_size);
            let mut bytes = vec![0; (end - first) * lba_size];
            drive.read(placement.chunk_lba(chunk) + first as u64, &mut bytes)?;
            let begin = place - first * lba_size;
            if bytes.get(begin..begin + edit.bytes().len()) != Some(edit.bytes()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reserves a free chunk for each chunk of a generation that holds one of `lbas`, which are LBAs of the
    /// generation's address space. The caller does the copying: it copies each extent that has a
    /// [`target`](RewrittenChunks::target), through any queue and with its own changes, before
    /// [`Log::compact`](crate::Log::compact) gives the generation the copies. This is for more rows than
    /// [`rewrite`](Self::rewrite) takes at once.
    pub fn begin_rewrite(&self, id: u64, lbas: impl IntoIterator<Item = u64>) -> Result<RewrittenChunks, VolumeError> {
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
        let members: Vec<u16> =
            columns.iter().filter_map(|&column| Some(placement.map().get(column)?.drive())).collect();
        let (chunks, ..) = self.reserve(columns.len() as u64, For::Keeps, |free, _| free.near(&members))?;
        Ok(RewrittenChunks { writing, _rewriting: rewriting, generation, before: 0, columns, chunks })
    }

    /// Copies chunks of a generation that `edits` names, with these edits, to the free chunks that `pick` chooses: as
    /// many as it chooses. Fails if fewer than `least` chunks are free. Damaged rows go over as damaged as they are: a drive has to
    /// be left whatever it has become.
    pub(crate) fn rewrite_columns(
        &self,
        id: u64,
        edits: &BTreeMap<usize, Edits<'_>>,
        least: usize,
        pick: impl FnOnce(&FreeChunks) -> Vec<ChunkRef>,
    ) -> Result<RewrittenChunks, VolumeError> {
        let rewriting = self.rewriting(id)?;
        let generation = self.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        self.rewrite_claimed(rewriting, generation, edits, least, Rows::AsTheyAre, pick)
    }

    fn rewrite_claimed(
        &self,
        rewriting: RewritePermit,
        generation: Arc<Generation>,
        edits: &BTreeMap<usize, Edits<'_>>,
        least: usize,
        rows: Rows,
        pick: impl FnOnce(&FreeChunks) -> Vec<ChunkRef>,
    ) -> Result<RewrittenChunks, VolumeError> {
        let placement = &generation.placement;
        let writing = self.writing()?;
        let mut columns: Vec<usize> = edits.keys().copied().collect();
        let (chunks, ..) = self.reserve(least as u64, For::Compaction, |free, _| pick(free))?;
        columns.truncate(chunks.len());
        let mut checked = (rows == Rows::Checked).then(|| CopiedRows::new(self, &generation));
        for ((&column, &to), edits) in columns.iter().zip(&*chunks).zip(edits.values()) {
            if let Some(&from) = placement.map().get(column) {
                let check = checked.as_mut().map(|rows| (rows, column));
                self.copy(&generation, (from, to), edits, check)?;
            }
        }
        Ok(RewrittenChunks { writing, _rewriting: rewriting, generation, before: 0, columns, chunks })
    }

    /// Copies a chunk, which has its place in the chunk map beside who checks its rows.
    fn copy(
        &self,
        generation: &Generation,
        (from, to): (ChunkRef, ChunkRef),
        edits: &Edits<'_>,
        mut check: Option<(&mut CopiedRows<'_>, usize)>,
    ) -> Result<(), VolumeError> {
        let placement = &*generation.placement;
        let is_replaced = |table: usize, rank: u64| {
            let at = generation.tables.get(table).and_then(|table| table.locate(rank));
            let place = at.and_then(|(lba, byte)| Some(placement.column(lba)?.1 + byte as usize));
            place.is_some_and(|place| edits.contains_key(&place))
        };
        let source = self.present(from.drive())?;
        let target = self.present(to.drive())?;
        let stripe = placement.stripe_bytes() as usize;
        let lba_size = placement.lba_size() as usize;
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
            if let Some((rows, column)) = &mut check {
                for (row, unit) in (begin / stripe..).zip(part.chunks(stripe)) {
                    rows.check(placement.unit_lba(*column, row as u64), unit, &is_replaced)?;
                }
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

/// What becomes of rows that a copy of a chunk takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// They are compared with their checksums.
    Checked,
    /// They are copied whatever they are.
    AsTheyAre,
}

/// What is to be changed in each chunk of a generation, by its entry in the chunk map.
fn edits<'a>(generation: &Generation, patches: &[RowPatch<'a>]) -> Result<BTreeMap<usize, Edits<'a>>, VolumeError> {
    let placement = &generation.placement;
    let mut edits: BTreeMap<usize, Edits<'a>> = BTreeMap::new();
    for patch in patches {
        let no_table = || VolumeError::NoSuchTable { generation: generation.name.clone(), table: patch.table as usize };
        let table = generation.tables.get(patch.table as usize).ok_or_else(no_table)?;
        let expected = u64::from(table.row_bytes());
        let given = patch.row.len() as u64;
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

impl RewrittenChunks {
    /// Chunks that were copied.
    pub fn chunks(&self) -> usize {
        self.before + self.columns.len()
    }

    /// The generation with the chunks that are copied. Holding it pins these chunks.
    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// Where an extent of the generation is to be copied to; `None`: its chunk is not replaced.
    pub fn target(&self, extent: &Extent) -> Option<Extent> {
        let placement = &self.generation.placement;
        let (column, _) = placement.column(extent.first_lba())?;
        let chunk = self.chunks.get(self.columns.binary_search(&column).ok()?)?;
        let within = extent.lba.checked_sub(placement.chunk_lba(*placement.map().get(column)?))?;
        Some(extent.moved_to(chunk.drive(), placement.chunk_lba(*chunk) + within))
    }

    /// Commits the generation with its new chunks, and with what `change` changes besides.
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

impl std::fmt::Debug for RewrittenChunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RewrittenChunks")
            .field("generation", &self.generation.id)
            .field("columns", &self.columns)
            .finish()
    }
}
