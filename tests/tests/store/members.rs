//! Drives that are damaged, missing, foreign, swapped or out of date: each gets an error that names it, and nothing is lost.

use anyhow::{Result, bail, ensure};
use warprow_layout::{Drive, MAGIC, OpenError, RepairKind};
use warprow_store::{Device, Store, StoreError};

use crate::rig::Rig;

const UNIT: usize = 4096;
/// A superblock's slots at the start of a drive, and at its end.
const SLOTS: usize = 2;

/// The superblocks of a drive: A and B at the start, A and B at the tail.
fn superblocks(rig: &Rig, drive: usize) -> Result<[Vec<u8>; 2]> {
    let drive = rig.driven(drive)?;
    let mut both = [vec![0; SLOTS * UNIT], vec![0; SLOTS * UNIT]];
    for (lba, bytes) in places(&drive).into_iter().zip(&mut both) {
        drive.read(lba, bytes)?;
    }
    Ok(both)
}

fn set_superblocks(rig: &Rig, drive: usize, both: &[Vec<u8>; 2]) -> Result<()> {
    let drive = rig.driven(drive)?;
    for (lba, bytes) in places(&drive).into_iter().zip(both) {
        drive.write(lba, bytes)?;
    }
    Ok(drive.flush()?)
}

fn places(drive: &impl Drive) -> [u64; 2] {
    [0, drive.lba_count() - (SLOTS * UNIT) as u64 / u64::from(drive.lba_size())]
}

fn seal(block: &mut [u8]) {
    let crc = crc32c::crc32c(&block[12..]);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// Changes the superblocks of a drive: `change` gets each, with whether it is at the tail and which slot it is in.
fn damage(rig: &Rig, drive: usize, mut change: impl FnMut(bool, usize, &mut [u8])) -> Result<()> {
    let mut both = superblocks(rig, drive)?;
    for (tail, bytes) in [false, true].into_iter().zip(&mut both) {
        for (slot, block) in bytes.chunks_mut(UNIT).enumerate().filter(|(_, block)| block.starts_with(&MAGIC)) {
            change(tail, slot, block);
        }
    }
    set_superblocks(rig, drive, &both)
}

fn open(rig: &Rig, devices: &[Device]) -> Result<Store, StoreError> {
    Store::open(devices, &rig.options())
}

fn refused(rig: &Rig, devices: &[Device]) -> Result<OpenError> {
    match open(rig, devices) {
        Err(StoreError::Open(error)) => Ok(error),
        Err(error) => bail!("{error}"),
        Ok(_) => bail!("it opened"),
    }
}

/// Version 1 with epoch 2, version 2 with epoch 3: the newest superblock is in slot B.
fn loaded(drives: usize) -> Result<Rig> {
    let mut rig = Rig::new(drives)?;
    rig.load(1)?;
    rig.load(2)?;
    rig.close();
    Ok(rig)
}

#[test]
fn a_torn_superblock_is_repaired_from_its_other_copy() -> Result<()> {
    for (drives, at_tail) in [(1, false), (1, true), (3, false), (3, true)] {
        let mut rig = loaded(drives)?;
        // The last bytes are old, or nobody's.
        damage(&rig, drives - 1, |tail, slot, block| {
            if tail == at_tail && slot == 1 {
                block[128..].fill(0x77);
            }
        })?;
        rig.reopen()?;
        rig.check(2)?;
        let kinds: Vec<RepairKind> = rig.store()?.inspect().1.iter().map(|repair| repair.kind).collect();
        ensure!(matches!(kinds[..], [RepairKind::Superblock(_)]), "{kinds:?}");
        rig.reopen()?;
        ensure!(rig.store()?.inspect().1.is_empty(), "repaired, and again");
        rig.check(2)?;
    }
    Ok(())
}

#[test]
fn superblocks_torn_in_all_copies_are_named() -> Result<()> {
    let rig = loaded(1)?;
    let right = superblocks(&rig, 0)?;
    damage(&rig, 0, |_, slot, block| block[200] ^= u8::from(slot == 1))?;
    let error = refused(&rig, &rig.devices())?;
    ensure!(matches!(&error, OpenError::LostSuperblock { drive, epoch: 2 } if drive == "drive0"), "{error}");
    damage(&rig, 0, |_, slot, block| block[200] ^= u8::from(slot == 0))?;
    let error = refused(&rig, &rig.devices())?;
    ensure!(matches!(&error, OpenError::TornSuperblock { drive, .. } if drive == "drive0"), "{error}");
    // Nothing was written: put right, everything is there.
    set_superblocks(&rig, 0, &right)?;
    let mut rig = rig;
    rig.reopen()?;
    rig.check(2)
}

#[test]
fn a_newer_version_is_named_and_left_alone() -> Result<()> {
    let mut rig = loaded(3)?;
    let right = superblocks(&rig, 1)?;
    damage(&rig, 1, |_, _, block| {
        block[12] = 9;
        seal(block);
    })?;
    let newer = superblocks(&rig, 1)?;
    let error = refused(&rig, &rig.devices())?;
    ensure!(matches!(&error, OpenError::NewerVersion { drive, found_major: 9, .. } if drive == "drive1"), "{error}");
    ensure!(superblocks(&rig, 1)? == newer, "it was written to");
    set_superblocks(&rig, 1, &right)?;
    rig.reopen()?;
    rig.check(2)
}

#[test]
fn missing_foreign_and_swapped_drives_are_named() -> Result<()> {
    let mut rig = loaded(3)?;
    let (other, blank) = (loaded(3)?, Rig::blank(1)?);
    other.drives.iter().chain(&blank.drives).for_each(|drive| rig.clock.step_too(drive.clone()));
    let (ours, theirs) = (rig.devices(), other.devices());
    let name = |devices: &[Device]| refused(&rig, devices);

    let error = name(&ours[..2])?;
    ensure!(matches!(&error, OpenError::MissingMember { missing, .. } if missing[0].serial == "drive2"), "{error}");
    let error = name(&[ours[0].clone(), ours[1].clone(), theirs[2].clone()])?;
    ensure!(matches!(&error, OpenError::SwappedMember { missing, .. } if missing[0].serial == "drive2"), "{error}");
    let error = name(&[&ours[..], &theirs[..1]].concat())?;
    ensure!(matches!(&error, OpenError::ForeignMember { drive, .. } if drive == "drive0"), "{error}");
    let twice = open(&rig, &[&ours[..], &ours[..1]].concat());
    ensure!(matches!(&twice, Err(StoreError::OpenedTwice { drive }) if drive == "drive0"), "{twice:?}");
    let error = name(&[&ours[..2], &blank.devices()[..]].concat())?;
    ensure!(matches!(&error, OpenError::NotWarprow { drive } if drive == "drive0"), "{error}");

    rig.reopen()?;
    rig.check(2)
}

/// A member whose superblocks are from before: one commit behind it is brought up, two it is an old copy.
#[test]
fn a_member_that_is_behind() -> Result<()> {
    for behind in [1, 2] {
        let mut rig = Rig::new(3)?;
        rig.load(1)?;
        rig.load(2)?;
        rig.close();
        let old = superblocks(&rig, 2)?;
        rig.reopen()?;
        for version in 3..3 + behind {
            rig.load(version)?;
        }
        rig.close();
        set_superblocks(&rig, 2, &old)?;
        if behind == 1 {
            rig.reopen()?;
            let repairs = rig.store()?.inspect().1.to_vec();
            ensure!(repairs.len() == 1 && repairs[0].kind == RepairKind::RolledForward, "{repairs:?}");
            rig.check(3)?;
            rig.load(4)?;
            rig.check(4)?;
        } else {
            let error = refused(&rig, &rig.devices())?;
            ensure!(
                matches!(&error, OpenError::StaleMember { drive, its_epoch: 3, epoch: 5 } if drive == "drive2"),
                "{error}"
            );
        }
    }
    Ok(())
}
