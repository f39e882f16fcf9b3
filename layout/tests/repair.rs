//! Metadata is mended from its copies, whatever of it is damaged; what would be a guess is refused.

mod common;

use common::cuts::*;
use common::*;
use warprow_layout::{OpenError, RepairProposal, RepairTarget, StoreAccess, open};

const SIZES: [&[u64]; 2] = [&[4], &[4, 5, 7]];

/// Two versions of the model, one after the other: the store is at epoch 3.
fn loaded(mebibytes: &[u64]) -> (Vec<Shape>, Vec<Image>) {
    let shapes: Vec<Shape> = mebibytes.iter().map(|&mebibytes| small(512, mebibytes)).collect();
    let fixture = Fixture::new(&shapes);
    fixture.format(9);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    switch(&volume, 2);
    (shapes, fixture.images())
}

/// Units of the four superblocks: slots A and B at the start, then at the tail. Epoch 3 is in B.
fn slots(shape: &Shape) -> [u64; 4] {
    [0, 1, shape.units() - 2, shape.units() - 1]
}

fn garbage(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn plan(fixture: &Fixture) -> Result<RepairProposal, OpenError> {
    let plan = RepairProposal::new(fixture.drives.clone());
    assert!(fixture.take_log().is_empty(), "a plan writes nothing");
    plan
}

/// Mends what a plan finds; then there is nothing left to mend, and the store has version 2.
fn mended(fixture: &Fixture) -> Result<usize, String> {
    let first = plan(fixture).map_err(|error| error.to_string())?;
    first.apply().map_err(|error| error.to_string())?;
    let left = RepairProposal::new(fixture.drives.clone()).map_err(|error| error.to_string())?;
    if !left.writes().is_empty() {
        return Err(format!("still to be mended: {:?}", left.writes()));
    }
    let opened = open(fixture.drives.clone(), StoreAccess::ReadOnly).map_err(|error| error.to_string())?;
    if opened.volume.epoch() != 3 || !opened.repairs.is_empty() {
        return Err(format!("epoch {}, {:?}", opened.volume.epoch(), opened.repairs));
    }
    match opened.volume.generations().as_slice() {
        [only] => verify(&opened.volume, only, 2)?,
        all => return Err(format!("{} generations", all.len())),
    }
    Ok(first.writes().len())
}

#[test]
fn every_set_of_damaged_superblocks_of_a_drive_is_mended_or_refused() {
    for sizes in SIZES {
        let (shapes, images) = loaded(sizes);
        for drive in 0..shapes.len() {
            for set in 0..16u64 {
                let fixture = Fixture::with_images(&shapes, images.clone());
                let damaged: Vec<u64> =
                    (0..4).filter(|i| set >> i & 1 == 1).map(|i| slots(&shapes[drive])[i as usize]).collect();
                damaged.iter().for_each(|&unit| fixture.drives[drive].set_unit(unit, &garbage(unit)));
                let current_left = set & 0b1010 != 0b1010;
                if sizes.len() == 1 && !current_left {
                    // The one copy of epoch 3 is gone: epoch 2 is whole or not, and out of date.
                    let error = plan(&fixture).unwrap_err();
                    assert!(
                        matches!(error, OpenError::LostSuperblock { .. } | OpenError::NotWarprow { .. }),
                        "{set:04b}: {error}"
                    );
                    continue;
                }
                let mended = mended(&fixture).unwrap_or_else(|error| panic!("drive {drive}, {set:04b}: {error}"));
                assert_eq!(mended, damaged.len(), "drive {drive}, {set:04b}");
            }
        }
    }
}

#[test]
fn a_plan_says_what_stands_where_and_where_the_copy_comes_from() {
    let (shapes, images) = loaded(&[4, 5, 7]);
    let fixture = Fixture::with_images(&shapes, images);
    let tail = shapes[1].units() - 1;
    fixture.drives[1].set_unit(tail, &garbage(1));
    slots(&shapes[2]).into_iter().for_each(|unit| fixture.drives[2].set_unit(unit, &[0; 4096]));
    let plan = plan(&fixture).unwrap();
    let said: Vec<_> = plan
        .writes()
        .iter()
        .map(|write| (&*write.drive, write.lba, write.lbas, write.what, write.epoch, &*write.found, &*write.from))
        .collect();
    use RepairTarget::Superblock;
    use warprow_layout::SuperblockCopy::{Start, Tail};
    let end = shapes[2].units();
    assert_eq!(
        said,
        [
            ("memory:1", tail * 8, 8, Superblock(Tail), 3, "no Warprow block", "its copy at the drive's start"),
            ("memory:2", 8, 8, Superblock(Start), 3, "zeros", "memory:0"),
            ("memory:2", (end - 1) * 8, 8, Superblock(Tail), 3, "zeros", "memory:0"),
            ("memory:2", 0, 8, Superblock(Start), 2, "zeros", "memory:0"),
            ("memory:2", (end - 2) * 8, 8, Superblock(Tail), 2, "zeros", "memory:0"),
        ]
    );
}

#[test]
fn a_damaged_catalogue_is_copied_from_another_drive_and_from_nowhere_else() {
    let (shapes, images) = loaded(&[4, 5, 7]);
    let first = 16 + u64::from(rig_catalogue_units(&shapes, &images));
    for drive in 0..3 {
        let fixture = Fixture::with_images(&shapes, images.clone());
        fixture.drives[drive].set_unit(first, &garbage(3));
        assert_eq!(mended(&fixture), Ok(1));
    }
    let fixture = Fixture::with_images(&shapes, images);
    fixture.drives.iter().for_each(|drive| drive.set_unit(first, &garbage(3)));
    assert!(matches!(plan(&fixture).unwrap_err(), OpenError::CatalogueDamaged { epoch: 3, .. }));
}

fn rig_catalogue_units(shapes: &[Shape], images: &[Image]) -> u32 {
    let fixture = Fixture::with_images(shapes, images.to_vec());
    open(fixture.drives.clone(), StoreAccess::ReadOnly).unwrap().volume.geometry().catalogue_units
}

#[test]
fn a_drive_without_superblocks_is_known_by_its_catalogue_alone() {
    let (shapes, images) = loaded(&[4, 5, 7]);
    let first = 16 + u64::from(rig_catalogue_units(&shapes, &images));
    // Two of three, in any order.
    let mut fixture = Fixture::with_images(&shapes, images.clone());
    for drive in [0, 2] {
        slots(&shapes[drive]).into_iter().for_each(|unit| fixture.drives[drive].set_unit(unit, &garbage(unit)));
    }
    fixture.drives.reverse();
    assert_eq!(mended(&fixture), Ok(8));
    // Without its catalogue it may be any drive; so may one that is blank, and one of another store.
    let blank = || Image::new();
    let stranger = {
        let other = Fixture::new(&shapes);
        other.format(10);
        switch(&other.open().volume, 1);
        switch(&other.open().volume, 2);
        let drive = &other.drives[2];
        slots(&shapes[2]).into_iter().for_each(|unit| drive.set_unit(unit, &[0; 4096]));
        other.images().remove(2)
    };
    let without_catalogue = {
        let fixture = Fixture::with_images(&shapes, images.clone());
        slots(&shapes[2]).into_iter().for_each(|unit| fixture.drives[2].set_unit(unit, &garbage(unit)));
        fixture.drives[2].set_unit(first, &garbage(4));
        fixture.images().remove(2)
    };
    for third in [blank(), stranger, without_catalogue] {
        let fixture = Fixture::with_images(&shapes, vec![images[0].clone(), images[1].clone(), third]);
        match plan(&fixture).unwrap_err() {
            OpenError::Unidentified { drive, missing, .. } => {
                assert_eq!((&*drive, missing.len(), missing[0].index), ("memory:2", 1, 2));
            }
            error => panic!("{error}"),
        }
    }
    // Nor is a member that is not there mended.
    let fixture = Fixture::with_images(&shapes[..2], images[..2].to_vec());
    assert!(matches!(plan(&fixture).unwrap_err(), OpenError::MissingMember { .. }));
}

#[test]
fn a_lost_slot_is_restored_only_where_no_commit_can_have_been_in_it() {
    for sizes in SIZES {
        let (shapes, images) = loaded(sizes);
        let fixture = Fixture::with_images(&shapes, images);
        for (drive, shape) in fixture.drives.iter().zip(&shapes) {
            [0, shape.units() - 2].into_iter().for_each(|unit| drive.set_unit(unit, &garbage(unit)));
        }
        assert!(matches!(
            open(fixture.drives.clone(), StoreAccess::ReadWrite).unwrap_err(),
            OpenError::LostSuperblock { epoch: 3, .. }
        ));
        let before = fixture.images();
        assert_eq!(mended(&fixture), Ok(2 * shapes.len()));
        // One member's extent does not prove it: a commit may have begun, and come to its end.
        for drive in 0..shapes.len() {
            let fixture = Fixture::with_images(&shapes, before.clone());
            fixture.drives[drive].set_unit(16, &garbage(5));
            assert!(matches!(plan(&fixture).unwrap_err(), OpenError::LostSuperblock { epoch: 3, .. }));
        }
    }
    // A commit of epoch 4 of which the superblocks are lost: epoch 3 is whole, and out of date.
    let (shapes, images) = loaded(&[4]);
    let fixture = Fixture::with_images(&shapes, images);
    switch(&fixture.open().volume, 3);
    fixture.take_log();
    [0, shapes[0].units() - 2].into_iter().for_each(|unit| fixture.drives[0].set_unit(unit, &garbage(unit)));
    assert!(matches!(plan(&fixture).unwrap_err(), OpenError::LostSuperblock { epoch: 3, .. }));
}

/// Damages of which a repair has to make several writes.
fn damages(shapes: &[Shape], images: &[Image]) -> Vec<Fixture> {
    let last = shapes.len() - 1;
    let catalogue = 16 + u64::from(rig_catalogue_units(shapes, images));
    let [a, b, a_tail, b_tail] = slots(&shapes[last]);
    let mut sets = vec![vec![a, b_tail], vec![b, a_tail], vec![a, b], vec![a_tail, b_tail], vec![a, a_tail]];
    if shapes.len() > 1 {
        sets.extend([vec![a, b, a_tail, b_tail], vec![b_tail, catalogue], vec![a, a_tail, b, catalogue]]);
    }
    let fixture = |set: Vec<u64>| {
        let fixture = Fixture::with_images(shapes, images.to_vec());
        set.into_iter().for_each(|unit| fixture.drives[last].set_unit(unit, &garbage(unit)));
        fixture
    };
    sets.into_iter().map(fixture).collect()
}

#[test]
fn a_power_cut_during_a_repair_leaves_one_that_goes_on() {
    for sizes in SIZES {
        let (shapes, images) = loaded(sizes);
        let mut checked = 0;
        for fixture in damages(&shapes, &images) {
            let base = fixture.images();
            plan(&fixture).unwrap().apply().unwrap();
            let log = fixture.take_log();
            checked += enumerate(&shapes, &base, &log, 0, 12, |crash| {
                let fixture = Fixture::with_images(&shapes, crash.images);
                // Whoever opens it without a repair finds the same version, or is refused.
                if let Ok(opened) = open(fixture.drives.clone(), StoreAccess::ReadOnly) {
                    assert_eq!(opened.volume.epoch(), 3);
                    fixture.take_log();
                }
                mended(&fixture).map(drop)
            })
            .unwrap();
        }
        assert!(checked > 200, "{checked} cuts");
    }
}

#[test]
fn the_flush_between_the_ends_of_a_drive_is_needed() {
    let (shapes, images) = loaded(&[4]);
    let mut caught = 0;
    for fixture in damages(&shapes, &images) {
        let base = fixture.images();
        plan(&fixture).unwrap().apply().unwrap();
        let log = fixture.take_log();
        let flushes = log.iter().filter(|op| matches!(op, Op::Flush { .. })).count();
        for nth in 0..flushes {
            let Some((log, from)) = without_flush(&log, nth) else { break };
            let found = enumerate(&shapes, &base, &log, from, 12, |crash| {
                mended(&Fixture::with_images(&shapes, crash.images)).map(drop)
            });
            caught += usize::from(found.is_err());
        }
    }
    assert!(caught > 0, "without flushes nothing goes wrong");
}

#[test]
fn random_damage_is_mended_or_refused() {
    for sizes in SIZES {
        let (shapes, images) = loaded(sizes);
        let catalogue = u64::from(rig_catalogue_units(&shapes, &images));
        let mut whole = 0;
        let mut refused = 0;
        for seed in 0..600 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let fixture = Fixture::with_images(&shapes, images.clone());
            for _ in 0..rng.usize(1..7) {
                let drive = rng.usize(..shapes.len());
                let units = [&slots(&shapes[drive])[..], &[16, 16 + catalogue]].concat();
                let unit = units[rng.usize(..units.len())];
                let other = units[rng.usize(..units.len())];
                let mut block = fixture.drives[drive].unit(unit);
                match rng.u8(..4) {
                    0 => block[rng.usize(..4096)] ^= 1 << rng.u8(..8),
                    1 => block.fill(0),
                    2 => block = garbage(rng.u64(..)),
                    _ => block = fixture.drives[drive].unit(other),
                }
                fixture.drives[drive].set_unit(unit, &block);
            }
            match plan(&fixture) {
                Ok(_) => {
                    mended(&fixture).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                    whole += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(whole > 100 && refused > 5, "{whole} mended, {refused} refused");
    }
}
