//! An open store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, Weak};

use uuid::Uuid;

use crate::catalogue::Catalogue;
use crate::chunks::FreeChunks;
use crate::commit::{self, Target};
use crate::drive::Drive;
use crate::error::{Missing, VolumeError};
use crate::generation::{Generation, GenerationSpec, Plan};
use crate::geometry::Geometry;
use crate::superblock::Superblock;
use crate::transaction::Transaction;

/// An open store: its drives, and the generations on them. Cheap to clone; clones are the same volume.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub superblock: Superblock,
    pub drives: Vec<Option<Arc<dyn Drive>>>,
    pub positions: Vec<Option<usize>>,
    pub read_only: Option<String>,
    state: RwLock<State>,
    writing: AtomicBool,
}

struct State {
    epoch: u64,
    catalogue: Catalogue,
    /// Generations that were dropped while someone held them: their chunks stay taken until nobody does.
    dropped: Vec<Weak<Generation>>,
    poisoned: bool,
}

impl Volume {
    /// A volume of `drives` in member order; `positions` says where each stood when the volume was opened.
    pub(crate) fn new(
        superblock: Superblock,
        catalogue: Catalogue,
        drives: Vec<Option<Arc<dyn Drive>>>,
        positions: Vec<Option<usize>>,
        read_only: Option<String>,
    ) -> Self {
        let state = State { epoch: superblock.epoch, catalogue, dropped: Vec::new(), poisoned: false };
        let (state, writing) = (RwLock::new(state), AtomicBool::new(false));
        Self { shared: Arc::new(Shared { superblock, drives, positions, read_only, state, writing }) }
    }

    /// The store's identity.
    pub fn store(&self) -> Uuid {
        self.shared.superblock.store
    }

    /// Sizes and members.
    pub fn geometry(&self) -> &Geometry {
        &self.shared.superblock.geometry
    }

    /// The epoch of the last commit.
    pub fn epoch(&self) -> u64 {
        self.state().epoch
    }

    /// Why nothing can be written, if so.
    pub fn read_only(&self) -> Option<&str> {
        self.shared.read_only.as_deref()
    }

    /// The drive of member `member`, the index in a [`RowAddress`](crate::RowAddress) or an [`Extent`](crate::Extent); `None` if
    /// it is missing.
    pub fn drive(&self, member: u16) -> Option<&Arc<dyn Drive>> {
        self.shared.drives.get(usize::from(member))?.as_ref()
    }

    /// For each member the position that its drive had in the list given to [`open`](crate::open); `None` if it is missing.
    pub fn positions(&self) -> &[Option<usize>] {
        &self.shared.positions
    }

    /// Members that are missing.
    pub fn missing(&self) -> Vec<Missing> {
        missing(self.geometry(), |index| self.shared.drives.get(index).is_some_and(Option::is_some))
    }

    /// All generations, oldest first. Each `Arc` pins its chunks; see [`Generation`].
    pub fn generations(&self) -> Vec<Arc<Generation>> {
        self.state().catalogue.generations.clone()
    }

    /// The generation of that id.
    pub fn generation(&self, id: u64) -> Option<Arc<Generation>> {
        self.state().catalogue.generation(id).cloned()
    }

    /// The latest generation of that name.
    pub fn latest(&self, name: &str) -> Option<Arc<Generation>> {
        self.state().catalogue.generations.iter().rev().find(|generation| generation.name == name).cloned()
    }

    /// Free chunks of each member: neither of a generation, nor of a dropped one that is still held.
    pub fn free_chunks(&self) -> Vec<u64> {
        self.free().0.counts()
    }

    /// Begins a generation: finds chunks for it, and says where its rows will lie. Nothing is written yet.
    ///
    /// There is one transaction at a time. Dropped without a commit, it leaves no trace.
    pub fn begin(&self, spec: &GenerationSpec) -> Result<Transaction, VolumeError> {
        let writing = self.claim()?;
        Ok(Transaction::new(writing, self.place(spec)?, spec.commit))
    }

    /// Whether [`begin`](Self::begin) would find room for a generation, and a commit that supersedes `superseded` room for the
    /// catalogue. Nothing is changed; a volume that is open for reading will do.
    pub fn check(&self, spec: &GenerationSpec, superseded: &[u64]) -> Result<(), VolumeError> {
        let added = self.place(spec)?;
        let mut catalogue = self.state().catalogue.clone();
        catalogue.generations.retain(|generation| !superseded.contains(&generation.id));
        catalogue.generations.push(Arc::new(added));
        let (needed, capacity) = (catalogue.encode().len() as u64, self.geometry().catalogue_capacity());
        if needed > capacity { Err(VolumeError::CatalogueFull { needed, capacity }) } else { Ok(()) }
    }

    /// Finds chunks for a generation.
    fn place(&self, spec: &GenerationSpec) -> Result<Generation, VolumeError> {
        let drives = self.shared.drives.iter().flatten();
        let max_transfer = drives.map(|drive| drive.max_transfer()).min().unwrap_or(0);
        let geometry = self.geometry();
        let plan = Plan::new(spec, geometry, max_transfer)?;
        let (free, pinned) = self.free();
        let least = plan.units.div_ceil(geometry.chunk_size() >> plan.stripe_shift);
        if least > free.total() {
            let chunk_size = geometry.chunk_size();
            return Err(VolumeError::NoSpace { needed: least, free: free.total(), pinned, chunk_size });
        }
        // A generation that fits on fewer chunks than there are drives still uses all drives.
        let count = least.max(plan.units.min(free.members()));
        let placement = Arc::new(plan.placement(free.allocate(count, spec.span), geometry));
        let (id, epoch) = {
            let state = self.state();
            (state.catalogue.next_id, state.epoch + 1)
        };
        Ok(Generation { id, epoch, name: spec.name.clone(), tables: plan.tables, placement })
    }

    /// Takes a generation out of the catalogue. Its chunks can be given away once nobody holds its `Arc`.
    pub fn drop_generation(&self, id: u64) -> Result<(), VolumeError> {
        self.claim()?.commit(None, &[id], None)
    }

    /// Bytes of the serialised catalogue.
    pub(crate) fn catalogue_bytes(&self) -> u64 {
        self.state().catalogue.encode().len() as u64
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.shared.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What can be given away, and how many chunks more are only held by readers.
    fn free(&self) -> (FreeChunks, u64) {
        let state = self.state();
        let counts: Vec<u32> = self.geometry().members.iter().map(|member| member.chunk_count).collect();
        let held: Vec<Arc<Generation>> = state.dropped.iter().filter_map(Weak::upgrade).collect();
        let chunks = |generation: &Arc<Generation>| generation.placement.map().to_vec();
        let pinned = held.iter().map(|generation| generation.placement.map().len() as u64).sum();
        (FreeChunks::new(&counts, state.catalogue.generations.iter().chain(&held).flat_map(chunks)), pinned)
    }

    fn claim(&self) -> Result<Writing, VolumeError> {
        if let Some(reason) = &self.shared.read_only {
            return Err(VolumeError::ReadOnly { reason: reason.clone() });
        }
        if self.state().poisoned {
            return Err(VolumeError::Poisoned);
        }
        match self.shared.writing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                let incarnations = self.shared.drives.iter().flatten().map(|drive| drive.incarnation()).collect();
                Ok(Writing { volume: self.clone(), incarnations })
            }
            Err(_) => Err(VolumeError::Busy),
        }
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("store", &self.store()).field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

/// The members of `geometry` that are not `present`.
pub(crate) fn missing(geometry: &Geometry, present: impl Fn(usize) -> bool) -> Vec<Missing> {
    let members = geometry.members.iter().enumerate().filter(|&(index, _)| !present(index));
    members
        .map(|(index, member)| Missing { index: index as u16, uuid: member.uuid, serial: member.serial.clone() })
        .collect()
}

/// The right to write, of which a volume has one.
pub(crate) struct Writing {
    pub(crate) volume: Volume,
    /// Of every drive, from before the first write.
    incarnations: Vec<u64>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.volume.shared.writing.store(false, Ordering::Release);
    }
}

impl Writing {
    /// Moves the store to the next epoch: with `added`, whose data has been written, and without `dropped`.
    ///
    /// A failure before the first superblock is written leaves the store as it was; that a drive was reset since the writing
    /// began is one, for then it may have lost data that its flush does not speak of. Later a failure poisons the volume: some
    /// members may show the new epoch, and a second attempt would write another catalogue where theirs lies.
    pub(crate) fn commit(
        self,
        added: Option<Arc<Generation>>,
        dropped: &[u64],
        id: Option<Uuid>,
    ) -> Result<(), VolumeError> {
        let shared = &self.volume.shared;
        let drives = shared.drives.iter().flatten().zip(&self.incarnations);
        let targets: Vec<Target<'_>> =
            drives.map(|(drive, &incarnation)| Target { drive: &**drive, incarnation }).collect();
        let (epoch, mut catalogue) = {
            let state = self.volume.state();
            (state.epoch + 1, state.catalogue.clone())
        };
        for &id in dropped {
            catalogue.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?;
        }
        let (gone, kept): (Vec<_>, Vec<_>) =
            catalogue.generations.into_iter().partition(|generation| dropped.contains(&generation.id));
        catalogue.generations = kept;
        // A generation's data is durable before a catalogue speaks of it.
        if let Some(added) = added {
            catalogue.next_id = added.id + 1;
            catalogue.generations.push(added);
            commit::flush(&targets)?;
        }
        let bytes = catalogue.encode();
        let (needed, capacity) = (bytes.len() as u64, shared.superblock.geometry.catalogue_capacity());
        if needed > capacity {
            return Err(VolumeError::CatalogueFull { needed, capacity });
        }
        let superblock = Superblock {
            epoch,
            commit: id.unwrap_or_else(Uuid::new_v4),
            catalogue_bytes: bytes.len() as u32,
            catalogue_crc: crc32c::crc32c(&bytes),
            ..shared.superblock.clone()
        };
        commit::catalogues(&targets, &superblock, &bytes)?;
        let done = commit::superblocks(&targets, &superblock);
        let mut state = shared.state.write().unwrap_or_else(PoisonError::into_inner);
        if let Err(source) = done {
            state.poisoned = true;
            return Err(VolumeError::Indeterminate { epoch, source });
        }
        state.epoch = epoch;
        state.catalogue = catalogue;
        state.dropped.retain(|generation| generation.strong_count() > 0);
        state.dropped.extend(gone.iter().map(Arc::downgrade));
        Ok(())
    }
}
