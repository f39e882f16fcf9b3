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

/// Reads `count` units from `first` on, one by one where they cannot be read together. `None` stands for a unit that the drive
/// cannot read although it reads others.
pub(crate) fn read_each(drive: &dyn Drive, first: u64, count: usize) -> Result<Vec<Option<[u8; UNIT]>>, DriveError> {
    if let Ok(units) = read(drive, first, count) {
        return Ok(units.into_iter().map(Some).collect());
    }
    // A drive that has its superblocks at neither end is not asked for one unit after another until each has timed out.
    let tail = crate::geometry::units(drive.lba_count(), drive.lba_size()).saturating_sub(2);
    let answers = || [0, tail].iter().any(|&unit| read(drive, unit, 1).is_ok());
    let one = |unit| match read(drive, unit, 1) {
        Ok(mut read) => Ok(read.pop()),
        Err(_) if answers() => Ok(None),
        Err(error) => Err(error),
    };
    (first..).take(count).map(one).collect()
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
