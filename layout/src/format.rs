//! Making a store.

use uuid::Uuid;

use crate::block::{PAYLOAD, UNIT};
use crate::catalogue::Catalogue;
use crate::commit::{self, Target};
use crate::drive::{Drive, DriveError};
use crate::error::StoreFormatError;
use crate::geometry::{
    CHUNK_SHIFTS, Geometry, LBA_SHIFTS, MAX_MEMBERS, MAX_SERIAL, METADATA_ALIGNMENT, Member, SuperblockCopy,
    superblock_unit, units,
};
use crate::placement::ChunkRef;
use crate::probe::probe;
use crate::superblock::Superblock;

/// How to format. The default suits any drive.
#[derive(Debug, Clone, Default)]
pub struct FormatOptions {
    /// Bytes of a chunk: a power of two from 1 MiB to 64 MiB. `None`: a 4096th of the smallest drive, within these limits.
    pub chunk_size: Option<u64>,
    /// Bytes for the serialised catalogue, besides those that chunk maps can need: a table takes 64 B, its name, and
    /// its default row. `None`: from 64 KiB to 1 MiB by the drives' size.
    pub catalogue_slack: Option<u32>,
    /// The store's identity; members' identities follow from it. `None`: random.
    pub store: Option<Uuid>,
    /// Overwrite drives that carry a store.
    pub overwrite: bool,
}

/// Makes an empty store on `drives`; their order becomes the order of the members.
///
/// Everything on the drives is lost. What was there before stays untouched until all checks have passed.
pub fn format<D: Drive>(drives: &[D], options: &FormatOptions) -> Result<Superblock, StoreFormatError> {
    let targets: Vec<Target<'_>> = (0..).zip(drives).map(|(member, drive)| Target::new(member, drive)).collect();
    let drives: Vec<&dyn Drive> = targets.iter().map(|target| target.drive).collect();
    let geometry = plan(&drives, options)?;
    if !options.overwrite {
        for &drive in &drives {
            let found = probe(drive)?;
            if found.has_magic() {
                let store = found.newest().map(|superblock| superblock.store);
                return Err(StoreFormatError::AlreadyFormatted { drive: drive.name().to_owned(), store });
            }
        }
    }
    let bytes = Catalogue::default().encode();
    let store = options.store.unwrap_or_else(Uuid::new_v4);
    let superblock = Superblock {
        store,
        epoch: 1,
        commit: store,
        member: 0,
        catalogue_bytes: bytes.len() as u32,
        catalogue_crc: crc32c::crc32c(&bytes),
        members_epoch: 1,
        geometry,
    };
    let superblock = with_member_ids(superblock, options.store.is_some());
    drives.iter().try_for_each(|&drive| empty_slots(drive))?;
    commit::flush(&targets)?;
    commit::catalogues(&targets, &superblock, &bytes)?;
    commit::superblocks(&targets, &superblock)?;
    Ok(superblock)
}

/// Gives the members identities: random ones, or ones that follow from the store's.
fn with_member_ids(mut superblock: Superblock, derived: bool) -> Superblock {
    for (index, member) in (1u128..).zip(&mut superblock.geometry.members) {
        member.uuid = match derived {
            true => Uuid::from_u128(superblock.store.as_u128() ^ (index << 64 | index)),
            false => Uuid::new_v4(),
        };
    }
    superblock
}

/// Checks the drives and divides them up. Members have no identity yet.
fn plan(drives: &[&dyn Drive], options: &FormatOptions) -> Result<Geometry, StoreFormatError> {
    let first = match drives {
        [first, ..] if drives.len() <= MAX_MEMBERS => first,
        _ => return Err(StoreFormatError::DriveCount { given: drives.len() }),
    };
    let lba_size = first.lba_size();
    for (index, drive) in drives.iter().enumerate() {
        let name = || drive.name().to_owned();
        let size = drive.lba_size();
        if !size.is_power_of_two() || !LBA_SHIFTS.contains(&(size.trailing_zeros() as u8)) {
            return Err(StoreFormatError::LbaSize { drive: name(), lba_size: size });
        }
        if size != lba_size {
            let first = first.name().to_owned();
            return Err(StoreFormatError::MixedLbaSizes { first, first_size: lba_size, drive: name(), lba_size: size });
        }
        if drives.iter().take(index).any(|other| other.name() == drive.name()) {
            return Err(StoreFormatError::Twice { drive: name() });
        }
    }
    let sizes: Vec<u64> = drives.iter().map(|drive| units(drive.lba_count(), lba_size)).collect();
    let smallest = sizes.iter().copied().min().unwrap_or(0).saturating_mul(UNIT as u64);
    let chunk_shift = match options.chunk_size {
        Some(size) if size.is_power_of_two() && CHUNK_SHIFTS.contains(&(size.trailing_zeros() as u8)) => {
            size.trailing_zeros() as u8
        }
        Some(chunk_size) => return Err(StoreFormatError::ChunkSize { chunk_size }),
        None => {
            let share = (smallest / 4096).checked_next_power_of_two().unwrap_or(u64::MAX / 2 + 1);
            (share.trailing_zeros() as u8).clamp(*CHUNK_SHIFTS.start(), *CHUNK_SHIFTS.end())
        }
    };
    let slack = options.catalogue_slack.map_or((smallest / 1024).clamp(64 << 10, 1 << 20), u64::from);
    let most: u64 = sizes.iter().map(|&units| u64::from(Geometry::chunks_on(units, 0, chunk_shift))).sum();
    let catalogue_bytes = most * size_of::<ChunkRef>() as u64 + slack.max(PAYLOAD as u64);
    let catalogue_units = catalogue_bytes.div_ceil(PAYLOAD as u64).next_multiple_of(METADATA_ALIGNMENT);
    if catalogue_units * PAYLOAD as u64 > u64::from(u32::MAX) {
        return Err(StoreFormatError::CatalogueSize { bytes: catalogue_bytes });
    }
    let first_chunk_unit = Geometry::first_chunk_unit_for(catalogue_units as u32);
    let mut members = Vec::with_capacity(drives.len());
    for (drive, &units) in drives.iter().zip(&sizes) {
        let chunk_count = Geometry::chunks_on(units, first_chunk_unit, chunk_shift);
        if chunk_count == 0 {
            return Err(StoreFormatError::TooSmall {
                drive: drive.name().to_owned(),
                size: drive.lba_count().saturating_mul(u64::from(lba_size)),
                needed: (first_chunk_unit + 2) * UNIT as u64 + (1 << chunk_shift),
            });
        }
        members.push(Member {
            uuid: Uuid::nil(),
            lba_count: drive.lba_count(),
            chunk_count,
            serial: cut(drive.serial()),
            vacant: false,
        });
    }
    Ok(Geometry {
        lba_shift: lba_size.trailing_zeros() as u8,
        chunk_shift,
        catalogue_units: catalogue_units as u32,
        first_chunk_unit,
        members,
    })
}

/// Empties all superblock slots of a drive: none of an earlier store may survive beside a new one's, nor outlive its catalogue.
pub(crate) fn empty_slots(drive: &dyn Drive) -> Result<(), DriveError> {
    let count = units(drive.lba_count(), drive.lba_size());
    for (slot, copy) in
        [(0, SuperblockCopy::Start), (1, SuperblockCopy::Start), (0, SuperblockCopy::Tail), (1, SuperblockCopy::Tail)]
    {
        crate::units::write(drive, superblock_unit(slot, copy, count), &[[0; UNIT]])?;
    }
    Ok(())
}

/// The serial as it can be stored: no zero bytes, at most [`MAX_SERIAL`] bytes, whole characters.
pub(crate) fn cut(serial: &str) -> String {
    let mut kept: String = serial.trim().chars().filter(|&c| c != '\0').collect();
    while kept.len() > MAX_SERIAL {
        kept.pop();
    }
    kept
}
