//! Finding a store on the drives given, and finishing what a power cut interrupted.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::block::{BlockError, PAYLOAD, VERSION};
use crate::catalogue::{self, Catalogue};
use crate::commit::{self, Target};
use crate::drive::Drive;
use crate::error::{MissingMember, OpenError};
use crate::generation::Generation;
use crate::geometry::{Geometry, SuperblockCopy};
use crate::probe::{SlotState, SuperblockProbe, probe};
use crate::removed;
use crate::repair::{self, Needed};
use crate::superblock::Superblock;
use crate::units;
use crate::volume::{Volume, missing};

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreAccess {
    /// Reading and writing. All members must be there; what a power cut left unfinished is finished.
    #[default]
    ReadWrite,
    /// Reading. All members must be there; nothing is written.
    ReadOnly,
    /// Reading, even if members are missing. Nothing is written.
    Degraded,
}

/// Whether all members are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreState {
    /// All members are there.
    Healthy,
    /// Members are missing. Rows on them cannot be read, and nothing can be written.
    Degraded {
        /// The members that are missing.
        missing: Vec<MissingMember>,
    },
}

/// An opened store.
#[derive(Debug)]
pub struct OpenedVolume {
    /// The store.
    pub volume: Volume,
    /// Whether all members are there.
    pub state: StoreState,
    /// What was found unfinished or damaged. It has been repaired if the store was opened for writing.
    pub repairs: Vec<MetadataRepair>,
}

/// Metadata of one member that was not as it should be; another copy was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataRepair {
    /// The drive.
    pub drive: String,
    /// Which metadata it was.
    pub kind: MetadataRepairKind,
}

/// Which metadata of a member was not as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetadataRepairKind {
    /// The member was one epoch behind: a commit was interrupted.
    RolledForward,
    /// A copy of the superblock was missing or damaged.
    Superblock(SuperblockCopy),
    /// The catalogue was damaged.
    Catalogue,
}

/// One drive given to [`open`], and what its superblocks say.
pub(crate) struct Candidate {
    pub drive: Arc<dyn Drive>,
    pub position: usize,
    /// The drive's incarnation, from before the drive was read.
    pub incarnation: u64,
    pub probe: SuperblockProbe,
    pub newest: Superblock,
}

impl Candidate {
    pub(crate) fn new(drive: Arc<dyn Drive>, position: usize) -> Result<Self, OpenError> {
        let incarnation = drive.incarnation();
        let (probe, newest) = newest(&*drive)?;
        Ok(Self { drive, position, incarnation, probe, newest })
    }

    pub(crate) fn name(&self) -> String {
        self.drive.name().to_owned()
    }

    pub(crate) fn target(&self) -> Target<'_> {
        Target { member: self.newest.member, drive: &*self.drive, incarnation: self.incarnation }
    }
}

/// Opens the store that lies on `drives`, in any order.
///
/// The store is at the highest epoch that any member shows. A member that is one epoch behind has everything of the
/// store's epoch but its superblock, which is written now; a member that lacks more is refused as an old copy. If the
/// store is opened for writing, everything that was read is made durable first: it may so far be in a drive's cache
/// only, where a process that was killed left it.
pub fn open<D: Drive + 'static>(drives: Vec<D>, access: StoreAccess) -> Result<OpenedVolume, OpenError> {
    let mut candidates = Vec::with_capacity(drives.len());
    for (position, drive) in drives.into_iter().enumerate() {
        candidates.push(Candidate::new(Arc::new(drive), position)?);
    }
    let survey = Survey::new(candidates, access == StoreAccess::Degraded, refuse_lost)?;
    let Survey { candidates, current, missing, damaged, bytes, catalogue } = survey;
    let needed: Vec<Needed> =
        candidates.iter().zip(&damaged).map(|(it, damaged)| Needed::to_open(it, &current, damaged.is_some())).collect();
    if access == StoreAccess::ReadWrite {
        commit::flush(&candidates.iter().map(Candidate::target).collect::<Vec<_>>())?;
        repair::mend(&needed, &current, &bytes)?;
    }
    let repairs = needed.iter().flat_map(|needed| needed.report(current.epoch)).collect();
    let read_only = match access {
        StoreAccess::ReadWrite => None,
        _ if missing.is_empty() => Some("it was opened for reading only".to_owned()),
        _ => Some("members are missing, and writing needs all of them".to_owned()),
    };
    let members = by_member(&candidates, &current.geometry);
    let positions = members.iter().map(|member| member.map(|candidate| candidate.position)).collect();
    let drives = members.iter().map(|member| member.map(|candidate| candidate.drive.clone())).collect();
    let volume = Volume::new(current, catalogue, drives, positions, read_only);
    let state = if missing.is_empty() { StoreState::Healthy } else { StoreState::Degraded { missing } };
    Ok(OpenedVolume { volume, state, repairs })
}

/// What the drives say together: that they are members of one store, at which epoch it is, and its catalogue.
pub(crate) struct Survey {
    pub candidates: Vec<Candidate>,
    pub current: Superblock,
    pub missing: Vec<MissingMember>,
    /// What is wrong with each candidate's catalogue.
    pub damaged: Vec<Option<Damage>>,
    /// The serialised catalogue, from the first drive that has it whole.
    pub bytes: Vec<u8>,
    pub catalogue: Catalogue,
}

impl Survey {
    /// `lost` fails if a newer epoch may have been committed of which no superblock is left.
    pub(crate) fn new(
        candidates: Vec<Candidate>,
        degraded: bool,
        lost: impl FnOnce(&[Candidate], &Superblock) -> Result<(), OpenError>,
    ) -> Result<Self, OpenError> {
        let current = agreed(&candidates)?;
        let geometry = &current.geometry;
        for candidate in &candidates {
            check_size(candidate, &current)?;
        }
        let members = by_member(&candidates, geometry);
        let missing = missing(geometry, |index| members.get(index).is_some_and(Option::is_some));
        if !missing.is_empty() && !degraded {
            return Err(OpenError::MissingMember { store: current.store, missing });
        }
        lost(&candidates, &current)?;

        let mut catalogues: Vec<Result<Vec<u8>, Damage>> = candidates
            .iter()
            .map(|candidate| read_catalogue(&*candidate.drive, &commit::for_member(&current, candidate.newest.member)))
            .collect();
        for (candidate, catalogue) in candidates.iter().zip(&catalogues) {
            let its_epoch = candidate.newest.epoch;
            if its_epoch < current.epoch && (catalogue.is_err() || its_epoch + 1 < current.epoch) {
                return Err(OpenError::StaleMember { drive: candidate.name(), its_epoch, epoch: current.epoch });
            }
        }
        let damaged: Vec<Option<Damage>> =
            catalogues.iter().map(|catalogue| catalogue.as_ref().err().copied()).collect();
        let Some(bytes) = catalogues.iter_mut().find_map(|catalogue| catalogue.as_mut().ok().map(std::mem::take))
        else {
            let (block, source) = damaged.iter().flatten().copied().next().unwrap_or((0, BlockError::Unreadable));
            let drive = candidates.first().map(Candidate::name).unwrap_or_default();
            return Err(OpenError::CatalogueDamaged { epoch: current.epoch, drive, block, source });
        };
        let catalogue = Catalogue::decode(&bytes, geometry)
            .map_err(|source| OpenError::CatalogueInvalid { epoch: current.epoch, source })?;
        Ok(Self { candidates, current, missing, damaged, bytes, catalogue })
    }
}

/// The newest superblock of drives that are members of one store, each once.
pub(crate) fn agreed(candidates: &[Candidate]) -> Result<Superblock, OpenError> {
    refuse_duplicates(candidates)?;
    refuse_strangers(candidates)?;
    agree(candidates)
}

fn by_member<'a>(candidates: &'a [Candidate], geometry: &Geometry) -> Vec<Option<&'a Candidate>> {
    let mut members: Vec<Option<&Candidate>> = vec![None; geometry.members.len()];
    for candidate in candidates {
        if let Some(member) = members.get_mut(usize::from(candidate.newest.member)) {
            *member = Some(candidate);
        }
    }
    members
}

/// The newest superblock of a drive.
fn newest(drive: &dyn Drive) -> Result<(SuperblockProbe, Superblock), OpenError> {
    let found = probe(drive)?;
    let name = || drive.name().to_owned();
    let bad = || {
        found.states().filter_map(|state| match state {
            SlotState::Bad(error) => Some(*error),
            _ => None,
        })
    };
    // One newer superblock is enough: what the others say is then out of date.
    if let Some((found_major, found_minor)) = bad().find_map(|error| match error {
        BlockError::Version { major, minor } => Some((major, minor)),
        _ => None,
    }) {
        let (known_major, known_minor) = VERSION;
        return Err(OpenError::NewerVersion { drive: name(), found_major, found_minor, known_major, known_minor });
    }
    if let Some(superblock) = found.newest() {
        let superblock = superblock.clone();
        return Ok((found, superblock));
    }
    let torn = bad().find(|error| !matches!(error, BlockError::NoMagic | BlockError::Unreadable));
    Err(match torn {
        Some(reason) => OpenError::TornSuperblock { drive: name(), reason },
        None => match removed::store_of(drive) {
            Some(store) => OpenError::RemovedMember { drive: name(), store },
            None => OpenError::NotWarprow { drive: name() },
        },
    })
}

fn refuse_duplicates(candidates: &[Candidate]) -> Result<(), OpenError> {
    let mut seen = HashMap::new();
    for candidate in candidates {
        let member = candidate.newest.own().map_or(Uuid::nil(), |own| own.uuid);
        if let Some(first) = seen.insert((candidate.newest.store, member), candidate.name()) {
            return Err(OpenError::DuplicateMember { first, second: candidate.name(), member });
        }
    }
    Ok(())
}

/// Fails if drives of several stores were given. The store that is meant is the one with most of the drives; of
/// several, one that is complete; of several, the first drive's.
fn refuse_strangers(candidates: &[Candidate]) -> Result<(), OpenError> {
    let of = |store: Uuid| candidates.iter().filter(move |candidate| candidate.newest.store == store);
    let complete =
        |candidate: &Candidate| of(candidate.newest.store).count() >= candidate.newest.geometry.members.len();
    let meant =
        candidates.iter().rev().max_by_key(|candidate| (of(candidate.newest.store).count(), complete(candidate)));
    let Some(meant) = meant else { return Err(OpenError::NoDrives) };
    let store = meant.newest.store;
    match candidates.iter().find(|candidate| candidate.newest.store != store) {
        None => Ok(()),
        Some(stranger) => {
            let drive = stranger.name();
            let its_store = stranger.newest.store;
            let missing = missing(&meant.newest.geometry, |index| {
                of(store).any(|candidate| usize::from(candidate.newest.member) == index)
            });
            Err(match missing.is_empty() {
                true => OpenError::ForeignMember { drive, its_store, store },
                false => OpenError::SwappedMember { drive, its_store, store, missing },
            })
        }
    }
}

/// The newest superblock of all, on whose geometry the others must agree.
fn agree(candidates: &[Candidate]) -> Result<Superblock, OpenError> {
    let newest = candidates.iter().max_by_key(|candidate| candidate.newest.epoch).ok_or(OpenError::NoDrives)?;
    for candidate in candidates {
        let ours = &newest.newest;
        let theirs = &candidate.newest;
        let same_commit = ours.epoch != theirs.epoch
            || (ours.commit, ours.catalogue_bytes, ours.catalogue_crc)
                == (theirs.commit, theirs.catalogue_bytes, theirs.catalogue_crc);
        // The list of members may have changed in between; the sizes never do.
        let same_list = ours.epoch != theirs.epoch || ours.geometry == theirs.geometry;
        let sizes = |superblock: &Superblock| Geometry { members: Vec::new(), ..superblock.geometry.clone() };
        if sizes(ours) != sizes(theirs) || !same_list || !same_commit {
            return Err(OpenError::Disagreement { first: newest.name(), second: candidate.name() });
        }
        let listed = ours.geometry.members.get(usize::from(theirs.member)).filter(|listed| !listed.vacant);
        if listed.map(|listed| listed.uuid) != theirs.own().map(|own| own.uuid) {
            return Err(OpenError::RemovedMember { drive: candidate.name(), store: ours.store });
        }
    }
    Ok(newest.newest.clone())
}

fn check_size(candidate: &Candidate, current: &Superblock) -> Result<(), OpenError> {
    let drive = &candidate.drive;
    let geometry = &current.geometry;
    if drive.lba_size() != geometry.lba_size() {
        let lba_size = drive.lba_size();
        let formatted = geometry.lba_size();
        return Err(OpenError::LbaSizeChanged { drive: candidate.name(), lba_size, formatted });
    }
    let formatted = candidate.newest.own().map_or(0, |own| own.lba_count);
    if drive.lba_count() < formatted {
        return Err(OpenError::Shrunk { drive: candidate.name(), lba_count: drive.lba_count(), formatted });
    }
    Ok(())
}

/// Fails if a newer epoch may have been committed of which no superblock is left.
///
/// One member that still has an older superblock, intact, in the slot of the next epoch proves that there was no such
/// commit.
pub(crate) fn refuse_lost(candidates: &[Candidate], current: &Superblock) -> Result<(), OpenError> {
    let epoch = current.epoch;
    match candidates.first() {
        Some(first) if candidates.iter().all(|candidate| candidate.probe.lost_beside(epoch)) => {
            Err(OpenError::LostSuperblock { drive: first.name(), epoch })
        }
        _ => Ok(()),
    }
}

/// The bad block, and what is wrong with it.
pub(crate) type Damage = (u32, BlockError);

/// The generations in the catalogue that `superblock` means, as `drive`, which has the superblock, has it; `None` if
/// that catalogue is damaged. This is for a look at one drive by itself: the store need not be complete, and the drive
/// may have another LBA format than it had.
pub fn generations_on(drive: &dyn Drive, superblock: &Superblock) -> Option<Vec<Arc<Generation>>> {
    let bytes = read_catalogue(drive, superblock).ok()?;
    Some(Catalogue::decode(&bytes, &superblock.geometry).ok()?.generations)
}

/// The serialised catalogue that the superblock `own` means, as its `drive` has it.
pub(crate) fn read_catalogue(drive: &dyn Drive, own: &Superblock) -> Result<Vec<u8>, Damage> {
    let member = own.own().map_or(Uuid::nil(), |own| own.uuid);
    let id = catalogue::first_block(own, member);
    let count = (own.catalogue_bytes as usize).div_ceil(PAYLOAD);
    let units = units::read(drive, id.address, count).map_err(|_| (0, BlockError::Unreadable))?;
    let bytes = catalogue::assemble(&units, id)?;
    if bytes.len() != own.catalogue_bytes as usize || crc32c::crc32c(&bytes) != own.catalogue_crc {
        return Err((0, BlockError::Inconsistent { what: "it is not the catalogue that the superblock means" }));
    }
    Ok(bytes)
}
