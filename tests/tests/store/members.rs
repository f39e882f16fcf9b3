//! Drives that are damaged, missing, foreign, swapped or out of date: each gets an error that names it, and nothing is lost.

use anyhow::{Result, bail, ensure};
use warprow_layout::{Drive, MAGIC, MetadataRepairKind, OpenError};
use warprow_store::{Device, Store, StoreError};

use crate::fixture::Fixture;

const UNIT: usize = 4096;
/// A superblock's slots at the start of a drive, and at its end.
const SLOTS: usize = 2;

/// The superblocks of a drive: A and B at the start, A and B at the tail.
fn superblocks(fixture: &Fixture, drive: usize) -> Result<[Vec<u8>; 2]> {
    let drive = fixture.driven(drive)?;
    let mut both = [vec![0; SLOTS * UNIT], vec![0; SLOTS * UNIT]];
    for (lba, bytes) in places(&drive).into_iter().zip(&mut both) {
        drive.read(lba, bytes)?;
    }
    Ok(both)
}

fn set_superblocks(fixture: &Fixture, drive: usize, both: &[Vec<u8>; 2]) -> Result<()> {
    let drive = fixture.driven(drive)?;
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
fn damage(fixture: &Fixture, drive: usize, mut change: impl FnMut(bool, usize, &mut [u8])) -> Result<()> {
    let mut both = superblocks(fixture, drive)?;
    for (tail, bytes) in [false, true].into_iter().zip(&mut both) {
        for (slot, block) in bytes.chunks_mut(UNIT).enumerate().filter(|(_, block)| block.starts_with(&MAGIC)) {
            change(tail, slot, block);
        }
    }
    set_superblocks(fixture, drive, &both)
}

fn open(fixture: &Fixture, devices: &[Device]) -> Result<Store, StoreError> {
    Store::open(devices, &fixture.options())
}

fn refused(fixture: &Fixture, devices: &[Device]) -> Result<OpenError> {
    match open(fixture, devices) {
        Err(StoreError::Open(error)) => Ok(error),
        Err(error) => bail!("{error}"),
        Ok(_) => bail!("it opened"),
    }
}

/// Version 1 with epoch 2, version 2 with epoch 3: the newest superblock is in slot B.
fn loaded(drives: usize) -> Result<Fixture> {
    let mut fixture = Fixture::new(drives)?;
    fixture.load(1)?;
    fixture.load(2)?;
    fixture.close();
    Ok(fixture)
}

#[test]
fn a_torn_superblock_is_repaired_from_its_other_copy() -> Result<()> {
    for (drives, at_tail) in [(1, false), (1, true), (3, false), (3, true)] {
        let mut fixture = loaded(drives)?;
        // The last bytes are old, or nobody's.
        damage(&fixture, drives - 1, |tail, slot, block| {
            if tail == at_tail && slot == 1 {
                block[128..].fill(0x77);
            }
        })?;
        fixture.reopen()?;
        fixture.check(2)?;
        let kinds: Vec<MetadataRepairKind> = fixture.store()?.inspect().1.iter().map(|repair| repair.kind).collect();
        ensure!(matches!(kinds[..], [MetadataRepairKind::Superblock(_)]), "{kinds:?}");
        fixture.reopen()?;
        ensure!(fixture.store()?.inspect().1.is_empty(), "repaired, and again");
        fixture.check(2)?;
    }
    Ok(())
}

#[test]
fn superblocks_torn_in_all_copies_are_named() -> Result<()> {
    let fixture = loaded(1)?;
    let right = superblocks(&fixture, 0)?;
    damage(&fixture, 0, |_, slot, block| block[200] ^= u8::from(slot == 1))?;
    let error = refused(&fixture, &fixture.devices())?;
    ensure!(matches!(&error, OpenError::LostSuperblock { drive, epoch: 2 } if drive == "drive0"), "{error}");
    damage(&fixture, 0, |_, slot, block| block[200] ^= u8::from(slot == 0))?;
    let error = refused(&fixture, &fixture.devices())?;
    ensure!(matches!(&error, OpenError::TornSuperblock { drive, .. } if drive == "drive0"), "{error}");
    // Nothing was written: put right, everything is there.
    set_superblocks(&fixture, 0, &right)?;
    let mut fixture = fixture;
    fixture.reopen()?;
    fixture.check(2)
}

#[test]
fn a_newer_version_is_named_and_left_alone() -> Result<()> {
    let mut fixture = loaded(3)?;
    let right = superblocks(&fixture, 1)?;
    damage(&fixture, 1, |_, _, block| {
        block[12] = 9;
        seal(block);
    })?;
    let newer = superblocks(&fixture, 1)?;
    let error = refused(&fixture, &fixture.devices())?;
    ensure!(matches!(&error, OpenError::NewerVersion { drive, found_major: 9, .. } if drive == "drive1"), "{error}");
    ensure!(superblocks(&fixture, 1)? == newer, "it was written to");
    set_superblocks(&fixture, 1, &right)?;
    fixture.reopen()?;
    fixture.check(2)
}

#[test]
fn missing_foreign_and_swapped_drives_are_named() -> Result<()> {
    let mut fixture = loaded(3)?;
    let other = loaded(3)?;
    let blank = Fixture::blank(1)?;
    other.drives.iter().chain(&blank.drives).for_each(|drive| fixture.clock.step_too(drive.clone()));
    let ours = fixture.devices();
    let theirs = other.devices();
    let name = |devices: &[Device]| refused(&fixture, devices);

    let error = name(&ours[..2])?;
    ensure!(matches!(&error, OpenError::MissingMember { missing, .. } if missing[0].serial == "drive2"), "{error}");
    let error = name(&[ours[0].clone(), ours[1].clone(), theirs[2].clone()])?;
    ensure!(matches!(&error, OpenError::SwappedMember { missing, .. } if missing[0].serial == "drive2"), "{error}");
    let error = name(&[&ours[..], &theirs[..1]].concat())?;
    ensure!(matches!(&error, OpenError::ForeignMember { drive, .. } if drive == "drive0"), "{error}");
    let twice = open(&fixture, &[&ours[..], &ours[..1]].concat());
    ensure!(matches!(&twice, Err(StoreError::OpenedTwice { drive }) if drive == "drive0"), "{twice:?}");
    let error = name(&[&ours[..2], &blank.devices()[..]].concat())?;
    ensure!(matches!(&error, OpenError::NotWarprow { drive } if drive == "drive0"), "{error}");

    fixture.reopen()?;
    fixture.check(2)
}

/// A member whose superblocks are from before: one commit behind it is brought up, two it is an old copy.
#[test]
fn a_member_that_is_behind() -> Result<()> {
    for behind in [1, 2] {
        let mut fixture = Fixture::new(3)?;
        fixture.load(1)?;
        fixture.load(2)?;
        fixture.close();
        let old = superblocks(&fixture, 2)?;
        fixture.reopen()?;
        for version in 3..3 + behind {
            fixture.load(version)?;
        }
        fixture.close();
        set_superblocks(&fixture, 2, &old)?;
        if behind == 1 {
            fixture.reopen()?;
            let repairs = fixture.store()?.inspect().1.to_vec();
            ensure!(repairs.len() == 1 && repairs[0].kind == MetadataRepairKind::RolledForward, "{repairs:?}");
            fixture.check(3)?;
            fixture.load(4)?;
            fixture.check(4)?;
        } else {
            let error = refused(&fixture, &fixture.devices())?;
            ensure!(
                matches!(&error, OpenError::StaleMember { drive, its_epoch: 3, epoch: 5 } if drive == "drive2"),
                "{error}"
            );
        }
    }
    Ok(())
}
