//! The text that is written on a drive when it is removed from its store, so that whoever opens the drive later is told
//! so.
//!
//! The text lies where the superblocks lay. It does not begin with their magic, so a version of Warprow that does not
//! know it finds no store on the drive, as if there were zeros. Whatever makes the drive a member of a store again
//! writes over the text.

use uuid::Uuid;

use crate::block::UNIT;
use crate::drive::{Drive, DriveError};
use crate::geometry::{LBA_SHIFTS, SuperblockCopy, superblock_unit, units};
use crate::units;

/// The beginning of the text; the store's UUID follows.
const MARK: &str = "This drive was removed from the Warprow store ";
/// The superblock slots.
const SLOTS: [(u8, SuperblockCopy); 4] =
    [(0, SuperblockCopy::Start), (1, SuperblockCopy::Start), (0, SuperblockCopy::Tail), (1, SuperblockCopy::Tail)];

/// Writes the text over all superblocks.
pub(crate) fn mark(drive: &dyn Drive, store: Uuid) -> Result<(), DriveError> {
    let text = format!("{MARK}{store}\n");
    let mut unit = [0; UNIT];
    unit.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    let count = units(drive.lba_count(), drive.lba_size());
    SLOTS.into_iter().try_for_each(|(slot, copy)| units::write(drive, superblock_unit(slot, copy, count), &[unit]))
}

/// The store that a drive without superblocks was removed from, if it says so.
pub(crate) fn store_of(drive: &dyn Drive) -> Option<Uuid> {
    let size = drive.lba_size();
    let count = if size.is_power_of_two() { units(drive.lba_count(), size) } else { 0 };
    if !LBA_SHIFTS.contains(&(size.trailing_zeros() as u8)) || count < 4 {
        return None;
    }
    SLOTS.into_iter().find_map(|(slot, copy)| {
        let found = units::read(drive, superblock_unit(slot, copy, count), 1).ok()?;
        let text = found.first()?.strip_prefix(MARK.as_bytes())?.get(..36)?;
        std::str::from_utf8(text).ok()?.parse().ok()
    })
}
