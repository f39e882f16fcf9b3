//! Mending metadata from its copies. See `docs/layout.md`, "Repair".

use std::sync::Arc;

use serde::Serialize;
use uuid::Uuid;

use crate::block::{self, BlockError, BlockId, Kind, PAYLOAD, UNIT};
use crate::catalogue;
use crate::commit::{self, Target};
use crate::drive::Drive;
use crate::error::{OpenError, VolumeError};
use crate::geometry::SuperblockCopy;
use crate::open::{Candidate, MetadataRepair, MetadataRepairKind, Survey, agreed, read_catalogue, refuse_lost};
use crate::probe::{SlotState, SuperblockProbe, probe};
use crate::superblock::Superblock;
use crate::units;
use crate::volume::Volume;

/// What has to be written to make a member's metadata whole.
pub(crate) struct Needed<'a> {
    candidate: &'a Candidate,
    catalogue: bool,
    /// Copies of superblocks to be written.
    copies: Vec<(SuperblockCopy, Superblock)>,
    /// Which end of the drive is written first: the end that lacks something that the other end has.
    first: SuperblockCopy,
}

impl<'a> Needed<'a> {
    /// What is mended on a member whenever a store is opened for writing.
    pub(crate) fn to_open(candidate: &'a Candidate, current: &Superblock, catalogue: bool) -> Self {
        let own = commit::for_member(current, candidate.newest.member);
        let mut copies = Vec::new();
        let slot = candidate.probe.slot(own.epoch);
        for (copy, state) in [SuperblockCopy::Start, SuperblockCopy::Tail].into_iter().zip(slot) {
            if state.superblock() != Some(&own) {
                copies.push((copy, own.clone()));
            }
        }
        // The tail of the other slot must be sound before a commit overwrites its start.
        if let [SlotState::Valid(start), tail] = candidate.probe.slot(own.epoch + 1)
            && tail.superblock() != Some(start)
        {
            copies.push((SuperblockCopy::Tail, (**start).clone()));
        }
        // What a drive spoils around a torn write lies at the same end.
        let first = if slot[0].superblock() == Some(&own) { SuperblockCopy::Tail } else { SuperblockCopy::Start };
        Self { candidate, catalogue, copies, first }
    }

    /// What [`to_open`](Self::to_open) mends, and whatever else is damaged. `before`: the superblock of the epoch before, from wherever it is whole.
    fn to_be_whole(
        candidate: &'a Candidate,
        current: &Superblock,
        catalogue: bool,
        before: Option<Superblock>,
    ) -> Self {
        let mut needed = Self::to_open(candidate, current, catalogue);
        match candidate.probe.slot(current.epoch + 1) {
            [SlotState::Bad(_) | SlotState::Empty, SlotState::Valid(tail)] => {
                needed.copies.push((SuperblockCopy::Start, (**tail).clone()));
            }
            [SlotState::Valid(_), _] => {}
            _ => needed.copies.extend(
                before
                    .into_iter()
                    .flat_map(|before| [(SuperblockCopy::Start, before.clone()), (SuperblockCopy::Tail, before)]),
            ),
        }
        needed
    }

    pub(crate) fn report(&self, epoch: u64) -> Vec<MetadataRepair> {
        let of = |kind| MetadataRepair { drive: self.candidate.name(), kind };
        if self.candidate.newest.epoch < epoch {
            return vec![of(MetadataRepairKind::RolledForward)];
        }
        let catalogue = self.catalogue.then_some(MetadataRepairKind::Catalogue);
        catalogue
            .into_iter()
            .chain(self.copies.iter().map(|(copy, _)| MetadataRepairKind::Superblock(*copy)))
            .map(of)
            .collect()
    }
}

/// Brings every member to the current epoch, in the order of a commit: catalogues, superblocks at one end, at the other, each
/// durable before the next. Cut short at any point, it leaves a store that can be mended the same way again.
pub(crate) fn mend(needed: &[Needed<'_>], current: &Superblock, bytes: &[u8]) -> Result<(), OpenError> {
    let damaged: Vec<&Needed<'_>> = needed.iter().filter(|needed| needed.catalogue).collect();
    for needed in &damaged {
        let own = commit::for_member(current, needed.candidate.newest.member);
        commit::write_catalogue(&*needed.candidate.drive, &own, bytes)?;
    }
    commit::flush(&damaged.iter().map(|needed| needed.candidate.target()).collect::<Vec<_>>())?;
    for first in [true, false] {
        let mut written: Vec<Target<'_>> = Vec::new();
        for needed in needed {
            for (copy, superblock) in needed.copies.iter().filter(|(copy, _)| (*copy == needed.first) == first) {
                commit::write_superblock(&*needed.candidate.drive, superblock, *copy)?;
                written.push(needed.candidate.target());
            }
        }
        commit::flush(&written)?;
    }
    Ok(())
}

/// What is written to mend a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepairWrite {
    /// The drive.
    pub drive: String,
    /// The drive's member index.
    pub member: u16,
    /// First LBA.
    pub lba: u64,
    /// How many.
    pub lbas: u64,
    /// Which structure belongs there.
    pub what: RepairTarget,
    /// The epoch of that structure.
    pub epoch: u64,
    /// What stands there, in words.
    pub found: String,
    /// Where the copy comes from, in words.
    pub from: String,
    /// Whether this is no damage: a commit was cut off before it wrote this copy, or while it did. The next opening for
    /// writing mends it.
    pub unfinished: bool,
}

/// Which structure is mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RepairTarget {
    /// A superblock.
    Superblock(SuperblockCopy),
    /// The catalogue.
    Catalogue,
}

/// Everything that has to be written so that all copies of the metadata are whole. Making the proposal writes nothing.
pub struct RepairProposal {
    survey: Survey,
    /// For each candidate the superblock of the epoch before that it is given, and where that comes from.
    before: Vec<Option<(Superblock, String)>>,
    mends: Vec<RepairWrite>,
}

impl RepairProposal {
    /// Finds what is damaged on `drives`, which may be given in any order, and where a whole copy of it is. Nothing is
    /// written.
    ///
    /// All members have to be there. Unlike [`open`](crate::open), this takes
    /// - a drive without a whole superblock for the member as which its catalogue proves it: every block of the current
    ///   epoch's bears that member's identity and its own checksum;
    /// - a store of which both copies of the other superblock slot are lost on every member, if on every member the other
    ///   catalogue extent still begins with the epoch before. A newer commit would have overwritten that, and made that durable,
    ///   before its first superblock.
    ///
    /// What would be a guess is refused: [`OpenError::Unidentified`], [`OpenError::LostSuperblock`],
    /// [`OpenError::CatalogueDamaged`], and all that [`open`](crate::open) refuses besides.
    pub fn new<D: Drive + 'static>(drives: Vec<D>) -> Result<Self, OpenError> {
        Self::of(drives.into_iter().map(|drive| Arc::new(drive) as Arc<dyn Drive>), false)
    }

    fn of(drives: impl Iterator<Item = Arc<dyn Drive>>, degraded: bool) -> Result<Self, OpenError> {
        let mut candidates = Vec::new();
        let mut headless = Vec::new();
        for (position, drive) in drives.enumerate() {
            match Candidate::new(drive.clone(), position) {
                Ok(candidate) => candidates.push(candidate),
                Err(
                    error @ (OpenError::TornSuperblock { .. } | OpenError::NotWarprow { .. } | OpenError::Drive(_)),
                ) => headless.push((drive, position, error)),
                Err(error) => return Err(error),
            }
        }
        if candidates.is_empty() {
            return Err(headless.into_iter().next().map_or(OpenError::NoDrives, |(.., error)| error));
        }
        if !headless.is_empty() {
            let current = agreed(&candidates)?;
            for (drive, position, error) in headless {
                candidates.push(identify(drive, position, &current, &candidates, error)?);
            }
            candidates.sort_by_key(|candidate| candidate.position);
        }
        let survey = Survey::new(candidates, degraded, |candidates, current| match refuse_lost(candidates, current) {
            Err(_) if candidates.iter().all(|candidate| proves_last(candidate, current)) => Ok(()),
            other => other,
        })?;
        let before = survey.candidates.iter().map(|candidate| before(candidate, &survey)).collect();
        let mut plan = Self { survey, before, mends: Vec::new() };
        plan.mends =
            plan.needed().iter().zip(&plan.before).flat_map(|(it, before)| plan.mends_of(it, before)).collect();
        Ok(plan)
    }

    /// The store.
    pub fn store(&self) -> Uuid {
        self.survey.current.store
    }

    /// The epoch at which the store is.
    pub fn epoch(&self) -> u64 {
        self.survey.current.epoch
    }

    /// What will be written; empty: every copy is whole.
    pub fn writes(&self) -> &[RepairWrite] {
        &self.mends
    }

    /// Writes what the proposal says. If power is cut meanwhile, a new proposal goes on from there.
    pub fn apply(&self) -> Result<(), OpenError> {
        // What was read may be in a drive's cache only.
        commit::flush(&self.survey.candidates.iter().map(Candidate::target).collect::<Vec<_>>())?;
        mend(&self.needed(), &self.survey.current, &self.survey.bytes)
    }

    fn needed(&self) -> Vec<Needed<'_>> {
        let Survey { candidates, current, damaged, .. } = &self.survey;
        let before = self.before.iter().map(|before| before.as_ref().map(|(superblock, _)| superblock.clone()));
        let all = candidates.iter().zip(damaged).zip(before);
        all.map(|((it, damaged), before)| Needed::to_be_whole(it, current, damaged.is_some(), before)).collect()
    }

    fn mends_of(&self, needed: &Needed<'_>, before: &Option<(Superblock, String)>) -> Vec<RepairWrite> {
        let Survey { candidates, current, damaged, .. } = &self.survey;
        let candidate = needed.candidate;
        let per_unit = UNIT as u64 / u64::from(current.geometry.lba_size());
        let mend = |unit: u64, units: u64, what, epoch, found, from: String, unfinished| RepairWrite {
            drive: candidate.name(),
            member: candidate.newest.member,
            lba: unit * per_unit,
            lbas: units * per_unit,
            what,
            epoch,
            found,
            from,
            unfinished,
        };
        let mut mends = Vec::new();
        if needed.catalogue {
            let whole = candidates.iter().zip(damaged).find(|(_, damaged)| damaged.is_none());
            let found = damaged_words(candidates, damaged, candidate);
            let units = u64::from(current.catalogue_bytes).div_ceil(PAYLOAD as u64);
            let from = whole.map(|(it, _)| it.name()).unwrap_or_default();
            mends.push(mend(
                current.geometry.catalogue_unit(current.epoch),
                units,
                RepairTarget::Catalogue,
                current.epoch,
                found,
                from,
                false,
            ));
        }
        for (copy, superblock) in &needed.copies {
            let Some((unit, _)) = superblock.encode(*copy) else { continue };
            let states = candidate.probe.slot(superblock.epoch);
            let (state, twin) = match copy {
                SuperblockCopy::Start => (states[0], states[1]),
                SuperblockCopy::Tail => (states[1], states[0]),
            };
            let found = match state {
                SlotState::Empty => "zeros".to_owned(),
                SlotState::Bad(error) => error.to_string(),
                SlotState::Valid(found) => format!("epoch {}", found.epoch),
            };
            let from = if twin.superblock() == Some(superblock) {
                let end = if *copy == SuperblockCopy::Start { "end" } else { "start" };
                format!("its copy at the drive's {end}")
            } else if superblock.epoch == current.epoch {
                let other = candidates
                    .iter()
                    .find(|candidate| candidate.newest == commit::for_member(current, candidate.newest.member));
                other.map(|candidate| candidate.name()).unwrap_or_default()
            } else {
                before.as_ref().map(|(_, from)| from.clone()).unwrap_or_default()
            };
            let unfinished = self.survey.is_unfinished(candidate, *copy, superblock.epoch);
            mends.push(mend(unit, 1, RepairTarget::Superblock(*copy), superblock.epoch, found, from, unfinished));
        }
        mends
    }
}

impl Survey {
    /// Whether a copy of the superblock of `epoch` that is not as it should be is what a commit leaves that was cut off: an intact
    /// one of the epoch that it overwrites, or a torn one where something else shows that there was such a commit.
    fn is_unfinished(&self, candidate: &Candidate, copy: SuperblockCopy, epoch: u64) -> bool {
        let [start, tail] = candidate.probe.slot(epoch);
        let torn = |state: &SlotState| match state {
            SlotState::Bad(BlockError::Unreadable | BlockError::Misplaced { .. } | BlockError::Version { .. }) => false,
            state => matches!(state, SlotState::Bad(_)),
        };
        if epoch != self.current.epoch {
            // The next one: its catalogue is durable before its first superblock is written.
            let begun =
                || other_catalogue(candidate, &self.current).is_some_and(|id| id.epoch == self.current.epoch + 1);
            return copy == SuperblockCopy::Start && torn(start) && begun();
        }
        let is_before = |candidate: &Candidate, state: &SlotState| is_before(&self.current, candidate, state);
        let is_old = |candidate: &Candidate| is_before(candidate, candidate.probe.slot(epoch)[1]);
        match copy {
            // Tail copies are written when all at the start are durable.
            SuperblockCopy::Start => is_old(candidate) && (torn(start) || is_before(candidate, start)),
            SuperblockCopy::Tail => is_old(candidate) || torn(tail) && self.candidates.iter().any(is_old),
        }
    }
}

/// Whether `state`, found in the slot of the superblock `current`, is what stood there before `current` was written.
fn is_before(current: &Superblock, candidate: &Candidate, state: &SlotState) -> bool {
    let epoch = current.epoch;
    match state {
        SlotState::Valid(found) => found.epoch + 2 == epoch,
        // The slot was never written before: the store is new, or the member, which came with this epoch or the one before.
        SlotState::Empty => {
            let other = candidate.probe.slot(epoch + 1).into_iter().all(|state| *state == SlotState::Empty);
            other || epoch == 2 || current.members_epoch + 1 == epoch
        }
        SlotState::Bad(_) => false,
    }
}

impl Volume {
    /// Reads every copy of the superblocks and of the catalogue, on the members that are there, and says which are not
    /// whole: damaged, or left so by a commit that was cut off ([`RepairWrite::unfinished`]). It reads between two
    /// commits, and holds new ones off meanwhile. A [`RepairProposal`] mends the copies, once the store is closed.
    pub fn damaged_metadata(&self) -> Result<Vec<RepairWrite>, VolumeError> {
        let _between_commits = self.committing();
        if self.has_successor() {
            return Err(VolumeError::MembersChanged);
        }
        let plan = RepairProposal::of(self.drives().iter().flatten().cloned(), true);
        Ok(plan.map_err(|source| VolumeError::Metadata { source: Box::new(source) })?.mends)
    }
}

impl std::fmt::Debug for RepairProposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepairProposal")
            .field("store", &self.store())
            .field("mends", &self.mends)
            .finish_non_exhaustive()
    }
}

fn damaged_words(candidates: &[Candidate], damaged: &[Option<crate::open::Damage>], candidate: &Candidate) -> String {
    let at = candidates.iter().position(|other| other.position == candidate.position);
    let damage = at.and_then(|at| damaged.get(at).copied().flatten());
    damage.map(|(block, error)| format!("block {block}: {error}")).unwrap_or_default()
}

/// Makes a candidate of a drive without a whole superblock: the member that its catalogue proves it to be.
fn identify(
    drive: Arc<dyn Drive>,
    position: usize,
    current: &Superblock,
    known: &[Candidate],
    error: OpenError,
) -> Result<Candidate, OpenError> {
    let incarnation = drive.incarnation();
    let taken = |index: usize| known.iter().any(|candidate| usize::from(candidate.newest.member) == index);
    let missing = crate::volume::missing(&current.geometry, taken);
    if drive.lba_size() == current.geometry.lba_size() {
        for missing in &missing {
            let own = commit::for_member(current, missing.index);
            if read_catalogue(&*drive, &own).is_ok() {
                let bad = || [SlotState::Empty, SlotState::Empty];
                let probe = probe(&*drive).unwrap_or(SuperblockProbe { start: bad(), tail: bad() });
                return Ok(Candidate { drive, position, incarnation, probe, newest: own });
            }
        }
    }
    Err(match (error, missing.is_empty()) {
        (error @ OpenError::Drive(_), _) | (error, true) => error,
        _ => OpenError::Unidentified { drive: drive.name().to_owned(), store: current.store, missing },
    })
}

/// The first block of a member's other catalogue extent: the epoch and the commit that it is of.
fn other_catalogue(candidate: &Candidate, current: &Superblock) -> Option<BlockId> {
    let member = candidate.newest.own()?.uuid;
    let address = current.geometry.catalogue_unit(current.epoch + 1);
    let units = units::read(&*candidate.drive, address, 1).ok()?;
    let found = block::open(units.first()?).ok()?;
    let block::Block { epoch, commit, .. } = found;
    let id = BlockId { kind: Kind::Catalogue, address, epoch, index: 0, store: current.store, member, commit };
    block::open_expecting(units.first()?, &id).ok().map(|_| id)
}

/// Whether no epoch after the current one can have been committed, by this member's other catalogue extent.
fn proves_last(candidate: &Candidate, current: &Superblock) -> bool {
    other_catalogue(candidate, current).is_some_and(|id| id.epoch + 1 == current.epoch)
}

/// The superblock of the epoch before, for a candidate that lost both copies, and where it comes from: another member's; else
/// what its own catalogue of that epoch tells.
fn before(candidate: &Candidate, survey: &Survey) -> Option<(Superblock, String)> {
    let Survey { candidates, current, .. } = survey;
    let epoch = current.epoch.checked_sub(1).filter(|&epoch| epoch > 0)?;
    let own = candidate.newest.own()?;
    for other in candidates {
        let valid = other.probe.slot(epoch).into_iter().filter_map(SlotState::superblock);
        for superblock in valid.filter(|superblock| superblock.epoch == epoch && superblock.store == current.store) {
            let copy = commit::for_member(superblock, candidate.newest.member);
            if copy
                .own()
                .is_some_and(|member| member.uuid == own.uuid && !member.vacant && member.lba_count == own.lba_count)
            {
                return Some((copy, other.name()));
            }
        }
    }
    let id = other_catalogue(candidate, current).filter(|id| id.epoch == epoch)?;
    let mut bytes = Vec::new();
    for index in 0..current.geometry.catalogue_units {
        let id = BlockId { address: id.address + u64::from(index), index, ..id };
        let units = units::read(&*candidate.drive, id.address, 1).ok()?;
        let Ok(part) = catalogue::assemble(&units, id) else { break };
        bytes.extend_from_slice(&part);
        if part.len() < PAYLOAD {
            break;
        }
    }
    let superblock = Superblock {
        epoch,
        commit: id.commit,
        catalogue_bytes: bytes.len() as u32,
        catalogue_crc: crc32c::crc32c(&bytes),
        members_epoch: if current.members_epoch > epoch { 0 } else { current.members_epoch },
        ..commit::for_member(current, candidate.newest.member)
    };
    Some((superblock, "its catalogue of that epoch".to_owned()))
}
