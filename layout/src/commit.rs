//! The writes of a commit, in their order. See `docs/layout.md`, "Commit".

use crate::block::UNIT;
use crate::catalogue;
use crate::drive::{Drive, DriveError, WritesLost};
use crate::geometry::SuperblockCopy;
use crate::superblock::Superblock;
use crate::units;

/// A member whose drive is written to, and the drive's incarnation when the writing began.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// The member's index.
    pub member: u16,
    pub drive: &'a dyn Drive,
    pub incarnation: u64,
}

/// The members of a store that are written to: in a commit all of them.
pub(crate) type Targets<'a> = &'a [Target<'a>];

impl<'a> Target<'a> {
    /// The drive as it is now.
    pub(crate) fn new(member: u16, drive: &'a dyn Drive) -> Self {
        Self { member, drive, incarnation: drive.incarnation() }
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.drive.flush()?;
        // Asked after the flush: no reset from the first write to here.
        match self.drive.incarnation() == self.incarnation {
            true => Ok(()),
            false => Err(DriveError::new(self.drive.name(), "flush", WritesLost)),
        }
    }
}

/// Makes everything written since the targets were made durable, on every drive.
pub(crate) fn flush(targets: Targets<'_>) -> Result<(), DriveError> {
    targets.iter().try_for_each(Target::flush)
}

/// The superblock `superblock` as member `index` carries it.
pub(crate) fn for_member(superblock: &Superblock, member: u16) -> Superblock {
    Superblock { member, ..superblock.clone() }
}

/// Writes the serialised catalogue into the extent of the superblock's epoch, on one member.
pub(crate) fn write_catalogue(drive: &dyn Drive, own: &Superblock, bytes: &[u8]) -> Result<(), DriveError> {
    let Some(member) = own.own() else { return Ok(()) };
    let id = catalogue::first_block(own, member.uuid);
    let blocks: Vec<[u8; UNIT]> = catalogue::blocks(bytes, id).collect();
    units::write(drive, id.address, &blocks)
}

/// Writes one copy of a superblock.
pub(crate) fn write_superblock(drive: &dyn Drive, own: &Superblock, copy: SuperblockCopy) -> Result<(), DriveError> {
    match own.encode(copy) {
        Some((unit, block)) => units::write(drive, unit, &[block]),
        None => Ok(()),
    }
}

/// Step 2: the catalogue of the superblock's epoch, on all members, durable.
pub(crate) fn catalogues(targets: Targets<'_>, superblock: &Superblock, bytes: &[u8]) -> Result<(), DriveError> {
    for target in targets {
        write_catalogue(target.drive, &for_member(superblock, target.member), bytes)?;
    }
    flush(targets)
}

/// Step 3: the superblock over the older slot of all members, durable; then over its tail copy, durable. The store has
/// moved to the new epoch as soon as one member shows it.
///
/// The tail copies wait for the flush: a slot is never in doubt in both copies at once.
pub(crate) fn superblocks(targets: Targets<'_>, superblock: &Superblock) -> Result<(), DriveError> {
    for copy in [SuperblockCopy::Start, SuperblockCopy::Tail] {
        for target in targets {
            write_superblock(target.drive, &for_member(superblock, target.member), copy)?;
        }
        flush(targets)?;
    }
    Ok(())
}
