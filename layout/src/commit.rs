//! The writes of a commit, in their order. See `docs/layout.md`, "Commit".

use crate::block::UNIT;
use crate::catalogue;
use crate::drive::{Drive, DriveError};
use crate::geometry::Copy;
use crate::superblock::Superblock;
use crate::units;

/// The members of a store that are written to: all of them, in the order of their indices.
pub(crate) type Members<'a> = &'a [&'a dyn Drive];

/// Makes everything written so far durable on every drive.
pub(crate) fn flush(drives: Members<'_>) -> Result<(), DriveError> {
    drives.iter().try_for_each(|drive| drive.flush())
}

/// The superblock `superblock` as member `index` carries it.
pub(crate) fn for_member(superblock: &Superblock, index: usize) -> Superblock {
    Superblock { member: index as u16, ..superblock.clone() }
}

/// Writes the serialised catalogue into the extent of the superblock's epoch, on one member.
pub(crate) fn write_catalogue(drive: &dyn Drive, own: &Superblock, bytes: &[u8]) -> Result<(), DriveError> {
    let Some(member) = own.own() else { return Ok(()) };
    let id = catalogue::first_block(own.store, member.uuid, own.epoch, &own.geometry);
    let blocks: Vec<[u8; UNIT]> = catalogue::blocks(bytes, id).collect();
    units::write(drive, id.address, &blocks)
}

/// Writes one copy of a superblock.
pub(crate) fn write_superblock(drive: &dyn Drive, own: &Superblock, copy: Copy) -> Result<(), DriveError> {
    match own.encode(copy) {
        Some((unit, block)) => units::write(drive, unit, &[block]),
        None => Ok(()),
    }
}

/// Step 2: the catalogue of the superblock's epoch, on all members, durable.
pub(crate) fn catalogues(drives: Members<'_>, superblock: &Superblock, bytes: &[u8]) -> Result<(), DriveError> {
    for (index, &drive) in drives.iter().enumerate() {
        write_catalogue(drive, &for_member(superblock, index), bytes)?;
    }
    flush(drives)
}

/// Step 3: the superblock over the older slot of all members, durable; then over its tail copy, durable. The store has
/// moved to the new epoch as soon as one member shows it.
///
/// The tail copies wait for the flush: a slot is never in doubt in both copies at once.
pub(crate) fn superblocks(drives: Members<'_>, superblock: &Superblock) -> Result<(), DriveError> {
    for copy in [Copy::Start, Copy::Tail] {
        for (index, &drive) in drives.iter().enumerate() {
            write_superblock(drive, &for_member(superblock, index), copy)?;
        }
        flush(drives)?;
    }
    Ok(())
}
