//! Metadata blocks to and from drives.

use crate::block::UNIT;
use crate::drive::{Drive, DriveError};

/// Units that one transfer of `drive` moves; 0: it cannot move one at once.
fn units_per_transfer(drive: &dyn Drive) -> usize {
    drive.max_transfer() / UNIT
}

fn lba(drive: &dyn Drive, unit: u64) -> u64 {
    unit * (UNIT as u64 / u64::from(drive.lba_size()))
}

/// Reads `count` units from unit `first` on.
pub(crate) fn read(drive: &dyn Drive, first: u64, count: usize) -> Result<Vec<[u8; UNIT]>, DriveError> {
    let mut units = vec![[0; UNIT]; count];
    let step = units_per_transfer(drive);
    for (i, part) in units.chunks_mut(step.max(1)).enumerate() {
        let at = lba(drive, first + (i * step.max(1)) as u64);
        if step > 0 {
            drive.read(at, part.as_flattened_mut())?;
        } else {
            for (i, lba) in (0..).zip(part.as_flattened_mut().chunks_mut(drive.lba_size() as usize)) {
                drive.read(at + i, lba)?;
            }
        }
    }
    Ok(units)
}

/// Writes `units` from unit `first` on.
pub(crate) fn write(drive: &dyn Drive, first: u64, units: &[[u8; UNIT]]) -> Result<(), DriveError> {
    let step = units_per_transfer(drive);
    for (i, part) in units.chunks(step.max(1)).enumerate() {
        let at = lba(drive, first + (i * step.max(1)) as u64);
        if step > 0 {
            drive.write(at, part.as_flattened())?;
        } else {
            for (i, lba) in (0..).zip(part.as_flattened().chunks(drive.lba_size() as usize)) {
                drive.write(at + i, lba)?;
            }
        }
    }
    Ok(())
}
