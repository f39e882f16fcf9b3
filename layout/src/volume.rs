//! An open store.

mod claims;
mod writing;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use uuid::Uuid;

use crate::catalogue::Catalogue;
use crate::chunks::FreeChunks;
use crate::drive::{Drive, DriveError};
use crate::error::{MissingMember, VolumeError};
use crate::generation::{ChunkSpread, Generation, GenerationSpec, Plan};
use crate::geometry::Geometry;
use crate::placement::ChunkRef;
use crate::superblock::Superblock;

pub(crate) use claims::{Claim, LogClaim, RewriteClaim};
pub(crate) use writing::Writing;

/// An open store: its drives, and the generations on them. A clone is cheap, and is the same volume.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
}

struct Shared {
    pub superblock: Superblock,
    pub drives: Vec<Option<Arc<dyn Drive>>>,
    pub positions: Vec<Option<usize>>,
    pub read_only: Option<String>,
    state: RwLock<State>,
    /// Whether somebody is bringing a generation.
    claimed: AtomicBool,
    /// Held by whoever commits.
    committing: Mutex<()>,
}

struct State {
    epoch: u64,
    catalogue: Catalogue,
    /// Generations that a commit dropped or changed, as they were before it, while somebody holds them: their chunks
    /// stay taken until nobody does.
    held: Vec<Weak<Generation>>,
    reserved: Vec<Weak<[ChunkRef]>>,
    /// Generations whose logs are open.
    logs: HashSet<u64>,
    /// A member that nobody is given chunks of.
    draining: Option<u16>,
    /// Whether nobody may begin to write, because the members are being changed, or were changed and another volume
    /// goes on.
    closed: bool,
    succeeded: bool,
    /// Generations that are being rewritten.
    rewriting: HashSet<u64>,
    /// Generations whose logs were opened for writing before.
    opened: HashSet<u64>,
    /// What the compactions of generations with logs need, by the generations' ids.
    kept: HashMap<u64, Kept>,
    poisoned: bool,
}

/// What the compaction of a generation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    /// Free chunks.
    chunks: u64,
    /// By how many chunks the generation has grown after that.
    growth: u64,
}

/// Who asks for chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// A compaction, or a move, which give back as many chunks as they take: these may have all free chunks.
    Compaction,
    /// Somebody who keeps the chunks: the chunks that compactions need are left free.
    Keeps,
    /// The log of that generation: the chunks that compactions need are left free, those that this generation's
    /// compaction needs too.
    Log(u64),
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
        let state = State {
            epoch: superblock.epoch,
            catalogue,
            held: Vec::new(),
            reserved: Vec::new(),
            logs: HashSet::new(),
            draining: None,
            closed: false,
            succeeded: false,
            rewriting: HashSet::new(),
            opened: HashSet::new(),
            kept: HashMap::new(),
            poisoned: false,
        };
        let state = RwLock::new(state);
        let claimed = AtomicBool::new(false);
        let committing = Mutex::new(());
        Self { shared: Arc::new(Shared { superblock, drives, positions, read_only, state, claimed, committing }) }
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

    /// Why nothing can be written; `None`: writes are allowed.
    pub fn read_only(&self) -> Option<&str> {
        self.shared.read_only.as_deref()
    }

    /// Whether it may be written to: it was not opened for reading only, no commit is in doubt, its members were not changed.
    pub fn is_writable(&self) -> bool {
        self.writing().is_ok()
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
    pub fn missing(&self) -> Vec<MissingMember> {
        missing(self.geometry(), |index| self.shared.drives.get(index).is_some_and(Option::is_some))
    }

    /// All generations, oldest first. Each `Arc` pins its chunks; see [`Generation`].
    pub fn generations(&self) -> Vec<Arc<Generation>> {
        self.state().catalogue.generations.clone()
    }

    /// How many hold generation `id` as it was before a commit changed it; there may be more.
    pub fn earlier_holders(&self, id: u64) -> usize {
        let held: Vec<Arc<Generation>> = self.state().held.iter().filter_map(Weak::upgrade).collect();
        held.iter().filter(|earlier| earlier.id == id).map(|earlier| Arc::strong_count(earlier) - 1).sum()
    }

    /// The generation of that id.
    pub fn generation(&self, id: u64) -> Option<Arc<Generation>> {
        self.state().catalogue.generation(id).cloned()
    }

    /// The generation of that name that was shown last; `None` if all of that name are on standby.
    pub fn latest(&self, name: &str) -> Option<Arc<Generation>> {
        let state = self.state();
        let shown =
            state.catalogue.generations.iter().filter(|generation| generation.name == name && generation.shown != 0);
        shown.max_by_key(|generation| (generation.shown, generation.id)).cloned()
    }

    /// Free chunks of each member. A chunk is free if no generation has it, no dropped or changed generation that is
    /// still held had it, and nothing is being written to it.
    pub fn free_chunks(&self) -> Vec<u64> {
        self.state().free(self.geometry()).0.counts()
    }

    /// Says how many free chunks a compaction of generation `id` needs, while its log has updates, and by how many chunks it grows: so
    /// many are left by loads, by logs and by members that leave. One, where nothing was said.
    pub fn keep_for_compaction(&self, id: u64, chunks: u64, growth: u64) {
        self.state_mut().kept.insert(id, Kept { chunks: chunks.max(1), growth });
    }

    /// Chunks that are left for compactions, out of those that are free; 0 if no generation has a log.
    pub fn kept_for_compaction(&self) -> u64 {
        let state = self.state();
        state.kept(None, state.free(self.geometry()).0.total())
    }

    /// The error for somebody who needs `needed` chunks for a compaction and does not find them.
    pub fn no_space(&self, needed: u64) -> VolumeError {
        let (free, pinned) = self.state().free(self.geometry());
        let chunk_size = self.geometry().chunk_size();
        VolumeError::NoSpace { needed, free: free.total(), kept: 0, pinned, chunk_size }
    }

    /// Whether this volume opens that generation's log for the first time.
    pub(crate) fn is_first_log(&self, generation: u64) -> bool {
        self.state_mut().opened.insert(generation)
    }

    /// Whether [`begin`](Self::begin) would find room for a generation, and a commit that supersedes `superseded` room for the
    /// catalogue. Nothing is changed; a volume that is open for reading will do.
    pub fn check(&self, spec: &GenerationSpec, superseded: &[u64]) -> Result<(), VolumeError> {
        self.check_for(spec, superseded, For::Keeps)
    }

    /// As [`check`](Self::check), for a compaction that writes a generation anew and may have all free chunks.
    pub fn check_anew(&self, spec: &GenerationSpec, superseded: &[u64]) -> Result<(), VolumeError> {
        self.check_for(spec, superseded, For::Compaction)
    }

    fn check_for(&self, spec: &GenerationSpec, superseded: &[u64], whom: For) -> Result<(), VolumeError> {
        let added = self.place(spec, whom)?.0;
        let mut catalogue = self.state().catalogue.clone();
        catalogue.generations.retain(|generation| !superseded.contains(&generation.id));
        catalogue.generations.push(Arc::new(added));
        let needed = catalogue.encode().len() as u64;
        let capacity = self.geometry().catalogue_capacity();
        if needed > capacity { Err(VolumeError::CatalogueFull { needed, capacity }) } else { Ok(()) }
    }

    fn plan(&self, spec: &GenerationSpec) -> Result<Plan, VolumeError> {
        let drives = self.shared.drives.iter().flatten();
        let max_transfer = drives.map(|drive| drive.max_transfer()).min().unwrap_or(0);
        Plan::new(spec, self.geometry(), max_transfer)
    }

    /// Finds chunks for a generation.
    pub(crate) fn place(&self, spec: &GenerationSpec, whom: For) -> Result<(Generation, Reserved), VolumeError> {
        let geometry = self.geometry();
        let plan = self.plan(spec)?;
        let least = plan.units.div_ceil(geometry.chunk_size() >> plan.stripe_shift);
        let (reserved, id, epoch) = self.reserve(least, whom, |free, most| {
            // A generation that fits on fewer chunks than there are drives still uses all drives.
            free.allocate(least.max(plan.units.min(free.members()).min(most)), spec.span)
        })?;
        let placement = Arc::new(plan.placement(reserved.to_vec(), geometry));
        let name = spec.name.clone();
        let shown = if spec.standby { 0 } else { epoch };
        let tables = plan.tables;
        let generation = Generation { id, epoch, name, tables, placement, shown, base_sequence: 0, log: Vec::new() };
        Ok((generation, reserved))
    }

    /// Reserves chunks that `pick` chooses from the free ones; `pick` is told how many it may take, which is at least
    /// `least`, else this fails. Also returns the id and the epoch that the next generation will get.
    pub(crate) fn reserve(
        &self,
        least: u64,
        whom: For,
        pick: impl FnOnce(&FreeChunks, u64) -> Vec<ChunkRef>,
    ) -> Result<(Reserved, u64, u64), VolumeError> {
        let geometry = self.geometry();
        let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.poisoned {
            return Err(VolumeError::Poisoned);
        }
        // Another volume gives them away.
        if state.closed || state.succeeded {
            return Err(VolumeError::MembersChanged);
        }
        state.reserved.retain(|reserved| reserved.strong_count() > 0);
        let (free, pinned) = state.free(geometry);
        let kept = match whom {
            For::Compaction => 0,
            For::Keeps => state.kept(None, free.total()),
            For::Log(generation) => state.kept(Some(generation), free.total()),
        };
        let most = free.total().saturating_sub(kept);
        if least > most {
            let free = free.total();
            let chunk_size = geometry.chunk_size();
            return Err(match whom {
                For::Log(generation) => {
                    VolumeError::NoLogSpace { generation, needed: least, free, kept, pinned, chunk_size }
                }
                _ => VolumeError::NoSpace { needed: least, free, kept, pinned, chunk_size },
            });
        }
        let reserved: Reserved = pick(&free, most).into();
        state.reserved.push(Arc::downgrade(&reserved));
        Ok((reserved, state.catalogue.next_id, state.epoch + 1))
    }

    /// Reserves chunks for a log, first of the members with most free chunks.
    pub(crate) fn reserve_for_log(&self, generation: u64, count: u64) -> Result<Reserved, VolumeError> {
        match count {
            0 => Ok(Vec::new().into()),
            _ => Ok(self.reserve(count, For::Log(generation), |free, _| free.allocate(count, ChunkSpread::Packed))?.0),
        }
    }

    /// Takes the largest place behind the last chunk of a drive that nobody has, with its units.
    pub(crate) fn reserve_remainder(&self) -> Option<(Reserved, u64)> {
        let mut state = self.state_mut();
        let (place, units) = state.remainder(self.geometry())?;
        let reserved: Reserved = vec![place].into();
        state.reserved.push(Arc::downgrade(&reserved));
        Some((reserved, units))
    }

    /// The largest place behind the last chunk of a drive that nobody has, with its units. It is not taken.
    pub(crate) fn remainder(&self) -> Option<(ChunkRef, u64)> {
        self.state().remainder(self.geometry())
    }

    /// Whether somebody is giving that generation other chunks.
    pub fn is_rewriting(&self, generation: u64) -> bool {
        self.state().rewriting.contains(&generation)
    }

    /// Takes a generation out of the catalogue. Its chunks can be given away once nobody holds its `Arc`.
    pub fn drop_generation(&self, id: u64) -> Result<(), VolumeError> {
        self.writing()?.commit(false, None, |catalogue, _| catalogue.remove(id).map(drop))
    }

    /// Takes a generation out of the catalogue if none of its tables is found by name: else [`VolumeError::Shown`].
    pub fn drop_hidden(&self, id: u64) -> Result<(), VolumeError> {
        self.writing()?.commit(false, None, |catalogue, _| {
            let tables = catalogue.found_tables(id);
            match tables.is_empty() {
                true => catalogue.remove(id).map(drop),
                false => Err(VolumeError::Shown { id, tables }),
            }
        })
    }

    /// Shows generation `id` in one commit: from then on names of tables find its tables. All other generations of its
    /// name become standby. If a table's name would find nothing any more, this fails unless `allow_vanishing` is set.
    pub fn switch(&self, id: u64, allow_vanishing: bool) -> Result<Arc<Generation>, VolumeError> {
        self.writing()?.commit(false, None, |catalogue, commit| {
            let before = catalogue.shown_tables();
            let name = catalogue.generation(id).ok_or(VolumeError::NoSuchGeneration { id })?.name.clone();
            for generation in catalogue.generations.iter_mut().filter(|generation| generation.name == name) {
                let shown = if generation.id == id { commit.epoch } else { 0 };
                if generation.shown != shown {
                    *generation = Arc::new(Generation { shown, ..Generation::clone(generation) });
                }
            }
            let after = catalogue.shown_tables();
            let tables: Vec<String> = before.difference(&after).cloned().collect();
            if !tables.is_empty() && !allow_vanishing {
                return Err(VolumeError::TablesVanish { id, tables });
            }
            catalogue.generation(id).cloned().ok_or(VolumeError::NoSuchGeneration { id })
        })
    }

    /// Bytes of the serialised catalogue.
    pub(crate) fn catalogue_bytes(&self) -> u64 {
        self.state().catalogue.encode().len() as u64
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.shared.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.shared.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn drives(&self) -> &[Option<Arc<dyn Drive>>] {
        &self.shared.drives
    }

    pub(crate) fn committing(&self) -> MutexGuard<'_, ()> {
        self.shared.committing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the members were changed, so that another volume goes on.
    pub(crate) fn has_successor(&self) -> bool {
        self.state().succeeded
    }

    /// The id of a dropped or changed generation of which somebody still reads chunks on `member`.
    pub(crate) fn held_on(&self, member: u16) -> Option<u64> {
        let held: Vec<_> = self.state().held.iter().filter_map(Weak::upgrade).collect();
        held.iter()
            .find(|generation| generation.chunks().any(|chunk| chunk.drive() == member))
            .map(|generation| generation.id)
    }

    /// The superblock and the catalogue that change the members to those of `geometry`, and nothing else.
    pub(crate) fn next_superblock(&self, geometry: Geometry) -> Result<(Superblock, Vec<u8>), VolumeError> {
        let state = self.state();
        let bytes = state.catalogue.encode();
        let needed = bytes.len() as u64;
        let capacity = geometry.catalogue_capacity();
        if needed > capacity {
            return Err(VolumeError::CatalogueFull { needed, capacity });
        }
        let superblock = Superblock {
            epoch: state.epoch + 1,
            commit: Uuid::new_v4(),
            catalogue_bytes: bytes.len() as u32,
            catalogue_crc: crc32c::crc32c(&bytes),
            members_epoch: state.epoch + 1,
            geometry,
            ..self.shared.superblock.clone()
        };
        Ok((superblock, bytes))
    }

    /// The volume with other members, once their superblocks are written.
    pub(crate) fn succeeded_by(
        &self,
        superblock: Superblock,
        drives: Vec<Option<Arc<dyn Drive>>>,
        done: Result<(), DriveError>,
    ) -> Result<Self, VolumeError> {
        let mut state = self.state_mut();
        if let Err(source) = done {
            state.poisoned = true;
            return Err(VolumeError::Indeterminate { epoch: superblock.epoch, source });
        }
        state.succeeded = true;
        let positions = drives.iter().zip(self.positions().iter().chain(std::iter::repeat(&None)));
        let positions = positions.map(|(drive, position)| position.filter(|_| drive.is_some())).collect();
        let next = Self::new(superblock, state.catalogue.clone(), drives, positions, None);
        {
            let mut next = next.state_mut();
            next.held.clone_from(&state.held);
            next.opened.clone_from(&state.opened);
            next.kept.clone_from(&state.kept);
        }
        Ok(next)
    }
}

impl State {
    /// Chunks that compactions need, of generations with logs and of `also`, one after the other: as many as one of them takes, and by how
    /// many the others have grown before it. Where so many are not free, they cannot be kept, and one is, for those that take no more.
    fn kept(&self, also: Option<u64>, free: u64) -> u64 {
        let logged = self
            .catalogue
            .generations
            .iter()
            .filter(|generation| !generation.log.is_empty() || Some(generation.id) == also);
        let needs =
            logged.map(|generation| self.kept.get(&generation.id).copied().unwrap_or(Kept { chunks: 1, growth: 0 }));
        let needs: Vec<Kept> = needs.collect();
        let growth: u64 = needs.iter().map(|need| need.growth).sum();
        let most = needs.iter().map(|need| need.chunks + growth - need.growth).max().unwrap_or(0);
        if most <= free { most } else { most.min(1) }
    }

    /// The largest place behind the last chunk of a drive that nobody has, with its units.
    fn remainder(&self, geometry: &Geometry) -> Option<(ChunkRef, u64)> {
        let reserved: Vec<Reserved> = self.reserved.iter().filter_map(Weak::upgrade).collect();
        let logs = self.catalogue.generations.iter().flat_map(|generation| &generation.log).map(|log| log.chunk);
        let taken: HashSet<ChunkRef> = logs.chain(reserved.iter().flat_map(|chunks| chunks.iter().copied())).collect();
        let members = 0..geometry.members.len() as u16;
        let free = members.filter_map(|member| geometry.remainder(member)).filter(|pair| !taken.contains(&pair.0));
        free.max_by_key(|pair| pair.1).filter(|pair| pair.1 > 0)
    }

    /// What can be given away, and how many chunks more are only held by readers.
    fn free(&self, geometry: &Geometry) -> (FreeChunks, u64) {
        let counts: Vec<u32> = geometry.members.iter().map(|member| member.chunk_count).collect();
        let held: Vec<Arc<Generation>> = self.held.iter().filter_map(Weak::upgrade).collect();
        let reserved: Vec<Reserved> = self.reserved.iter().filter_map(Weak::upgrade).collect();
        let taken = || {
            let of_catalogue = self.catalogue.generations.iter().flat_map(|generation| generation.chunks());
            of_catalogue.chain(reserved.iter().flat_map(|chunks| chunks.iter().copied()))
        };
        let mut counts = counts;
        if let Some(draining) = self.draining.and_then(|member| counts.get_mut(usize::from(member))) {
            *draining = 0;
        }
        let used: HashSet<ChunkRef> = taken().collect();
        let pinned: HashSet<ChunkRef> =
            held.iter().flat_map(|generation| generation.chunks()).filter(|chunk| !used.contains(chunk)).collect();
        let count = pinned.len() as u64;
        (FreeChunks::new(&counts, used.into_iter().chain(pinned)), count)
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("store", &self.store()).field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

/// The members of `geometry` that are not `present`.
pub(crate) fn missing(geometry: &Geometry, present: impl Fn(usize) -> bool) -> Vec<MissingMember> {
    let members = geometry.members.iter().enumerate().filter(|&(index, member)| !member.vacant && !present(index));
    members
        .map(|(index, member)| MissingMember { index: index as u16, uuid: member.uuid, serial: member.serial.clone() })
        .collect()
}

/// Chunks that are written to before the catalogue has them: nobody else is given them.
pub(crate) type Reserved = Arc<[ChunkRef]>;
