//! Which drives make a store, and what is said of those that do not.

mod common;

use common::*;
use uuid::Uuid;
use warprow_layout::{
    DType, FormatOptions, GenerationSpec, OpenError, SlotState, StoreAccess, StoreFormatError, StoreState, TableSpec,
    VolumeError, format, open, probe,
};

fn two_stores() -> (Vec<MemoryDrive>, Vec<MemoryDrive>) {
    let make = |seed, name: &str| {
        let mut fixture = Fixture::new(&[small(512, 4), small(512, 5)]);
        fixture.drives.iter_mut().for_each(|drive| drive.name = format!("{name}{}", drive.index));
        fixture.format(seed);
        switch(&fixture.open().volume, 1);
        fixture.drives
    };
    (make(1, "x"), make(2, "y"))
}

fn error(drives: &[MemoryDrive]) -> OpenError {
    let before: Vec<Image> = drives.iter().map(|drive| drive.image.lock().unwrap().clone()).collect();
    let error = open(drives.to_vec(), StoreAccess::ReadWrite).unwrap_err();
    let after: Vec<Image> = drives.iter().map(|drive| drive.image.lock().unwrap().clone()).collect();
    assert!(before == after, "a refusal loses nothing");
    error
}

#[test]
fn drives_are_found_in_any_order() {
    let (x, _) = two_stores();
    let opened = open(vec![x[1].clone(), x[0].clone()], StoreAccess::ReadWrite).unwrap();
    assert_eq!(opened.state, StoreState::Healthy);
    assert_eq!(opened.volume.positions(), [Some(1), Some(0)]);
    assert_eq!(opened.volume.drive(0).unwrap().name(), "x0");
    verify(&opened.volume, &opened.volume.latest("model").unwrap(), 1).unwrap();
}

#[test]
fn a_missing_member_is_named_and_the_rest_can_be_read() {
    let (x, _) = two_stores();
    match error(&x[..1]) {
        OpenError::MissingMember { store, missing } => {
            assert_eq!(store, Uuid::from_u128(1));
            assert_eq!((missing.len(), missing[0].index, missing[0].serial.as_str()), (1, 1, "x1"));
        }
        other => panic!("{other}"),
    }
    let opened = open(vec![x[0].clone()], StoreAccess::Degraded).unwrap();
    let StoreState::Degraded { missing } = &opened.state else { panic!("healthy") };
    assert_eq!(missing[0].index, 1);
    let volume = opened.volume;
    assert!(matches!(volume.begin(&model()), Err(VolumeError::ReadOnly { .. })));
    assert!(matches!(volume.drop_generation(0), Err(VolumeError::ReadOnly { .. })));
    let generation = volume.latest("model").unwrap();
    let mut row = vec![0; 64];
    let outcomes: Vec<_> = (0..199).map(|rank| volume.read_row(&generation, 2, rank, &mut row)).collect();
    assert!(outcomes.iter().any(Result::is_ok));
    let lost = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Err(VolumeError::MemberMissing { missing }) if missing.index == 1));
    assert_eq!(lost.count(), outcomes.iter().filter(|outcome| outcome.is_err()).count());
}

#[test]
fn most_drives_tell_which_store_is_meant() {
    let shape = Shape { lba_size: 512, bytes: 16 << 20, max_transfer: 1 << 17 };
    let many = Fixture::new(&[shape; 3]);
    let one = Fixture::new(&[shape]);
    format(&many.drives, &FormatOptions::default()).unwrap();
    format(&one.drives, &FormatOptions::default()).unwrap();
    let many_store = many.open().volume.store();
    let one_store = one.open().volume.store();
    // The other store is complete, and still the stranger.
    let stranger = MemoryDrive { name: "stranger".into(), ..one.drives[0].clone() };
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let drives = [many.drives[0].clone(), many.drives[2].clone(), stranger.clone()];
        match error(&order.map(|index| drives[index].clone())) {
            OpenError::SwappedMember { drive, its_store, store, missing } => {
                assert_eq!((drive.as_str(), its_store, store), ("stranger", one_store, many_store));
                assert_eq!((missing.len(), missing[0].index), (1, 1));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn strangers_are_named() {
    let (x, y) = two_stores();
    match error(&[x[0].clone(), y[1].clone()]) {
        OpenError::SwappedMember { drive, its_store, store, missing } => {
            assert_eq!((drive.as_str(), its_store, store), ("y1", Uuid::from_u128(2), Uuid::from_u128(1)));
            assert_eq!(missing[0].serial, "x1");
        }
        other => panic!("{other}"),
    }
    match error(&[y[0].clone(), x[0].clone(), x[1].clone()]) {
        OpenError::ForeignMember { drive, its_store, store } => {
            assert_eq!((drive.as_str(), its_store, store), ("y0", Uuid::from_u128(2), Uuid::from_u128(1)));
        }
        other => panic!("{other}"),
    }
    let mut blank = Fixture::new(&[small(512, 4)]).drives.remove(0);
    blank.name = "blank".into();
    assert!(matches!(error(&[x[0].clone(), blank]), OpenError::NotWarprow { drive } if drive == "blank"));
    assert!(matches!(open(Vec::<MemoryDrive>::new(), StoreAccess::ReadWrite), Err(OpenError::NoDrives)));
}

#[test]
fn a_copy_of_a_member_is_named() {
    let (x, _) = two_stores();
    let mut copy = x[0].clone();
    copy.name = "copy".into();
    match error(&[x[0].clone(), x[1].clone(), copy]) {
        OpenError::DuplicateMember { first, second, .. } => {
            assert_eq!((first.as_str(), second.as_str()), ("x0", "copy"))
        }
        other => panic!("{other}"),
    }
}

/// Two copies of a store go separate ways for one commit, with rows that differ and catalogues that do not.
#[test]
fn drives_of_different_copies_are_named() {
    let shapes = [small(512, 4), small(512, 5)];
    let fixture = Fixture::new(&shapes);
    fixture.format(1);
    let spec = GenerationSpec::new("m", vec![TableSpec::new("t", 199, 64, DType::I8)]);
    let fork = |version| {
        let fixture = Fixture::with_images(&shapes, fixture.images());
        let volume = fixture.open().volume;
        let mut tx = volume.begin(&spec).unwrap();
        load(&volume, &mut tx, version);
        tx.commit().unwrap();
        fixture.drives
    };
    let mut one = fork(1);
    let other = fork(2);
    assert_eq!(one[1].unit(16)[96..], other[1].unit(16)[96..], "the same catalogue");
    one[1] = other[1].clone();
    match error(&one) {
        OpenError::Disagreement { first, second } => assert_ne!(first, second),
        other => panic!("{other}"),
    }
}

#[test]
fn a_changed_drive_is_named() {
    let (x, _) = two_stores();
    let mut shrunk = x[1].clone();
    shrunk.shape.bytes -= 1 << 20;
    assert!(matches!(error(&[x[0].clone(), shrunk]), OpenError::Shrunk { drive, .. } if drive == "x1"));
    let mut grown = x[1].clone();
    grown.shape.bytes += 1 << 20;
    let opened = open(vec![x[0].clone(), grown], StoreAccess::ReadOnly).unwrap();
    verify(&opened.volume, &opened.volume.latest("model").unwrap(), 1).unwrap();
    // The copies at the end of a drive that grew are found where its store ended when it was made.
    let probe = warprow_layout::probe(&x[1].clone()).unwrap();
    let mut grown = x[1].clone();
    grown.shape.bytes += 1 << 20;
    assert_eq!(warprow_layout::probe(&grown).unwrap(), probe);

    // The same bytes behind another LBA size.
    let mut reformatted = Fixture::new(&[small(4096, 4)]).drives.remove(0);
    reformatted.name = "reformatted".into();
    for unit in 0..1024 {
        reformatted.set_unit(unit, &x[0].unit(unit));
    }
    assert!(matches!(
        error(&[reformatted, x[1].clone()]),
        OpenError::LbaSizeChanged { drive, lba_size: 4096, formatted: 512 } if drive == "reformatted"
    ));
}

#[test]
fn torn_superblocks_are_not_an_empty_drive() {
    let (x, _) = two_stores();
    for unit in [0, 1, x[0].shape.units() - 2, x[0].shape.units() - 1] {
        let mut block = x[0].unit(unit);
        block[100] ^= 1;
        x[0].set_unit(unit, &block);
    }
    assert!(matches!(error(&x), OpenError::TornSuperblock { drive, .. } if drive == "x0"));
    let refused = format(&x, &FormatOptions::default()).unwrap_err();
    assert!(matches!(refused, StoreFormatError::AlreadyFormatted { store: None, .. }), "{refused}");
}

#[test]
fn format_refuses_before_it_writes() {
    let fixture = Fixture::new(&[small(512, 8), small(512, 8)]);
    let one = &fixture.drives[0];
    let two = &fixture.drives[1];
    let refuse = |drives: &[MemoryDrive], options: &FormatOptions| format(drives, options).unwrap_err();
    let default = FormatOptions::default();

    let mut little = two.clone();
    little.shape.bytes = 1 << 20;
    match refuse(&[one.clone(), little.clone()], &default) {
        StoreFormatError::TooSmall { drive, size: 0x10_0000, needed } => {
            assert_eq!(drive, "memory:1");
            little.shape.bytes = needed;
            format(&[one.clone(), little], &default).unwrap();
            (0..1024).for_each(|unit| [one, two].iter().for_each(|drive| drive.set_unit(unit, &[0; 4096])));
            [one, two].iter().for_each(|drive| drive.image.lock().unwrap().clear());
        }
        other => panic!("{other}"),
    }
    fixture.take_log();
    let mut wide = two.clone();
    wide.shape.lba_size = 4096;
    assert!(matches!(refuse(&[one.clone(), wide], &default), StoreFormatError::MixedLbaSizes { .. }));
    let mut odd = two.clone();
    odd.shape.lba_size = 520;
    assert!(matches!(refuse(&[odd], &default), StoreFormatError::LbaSize { lba_size: 520, .. }));
    assert!(matches!(refuse(&[one.clone(), one.clone()], &default), StoreFormatError::Twice { .. }));
    assert!(matches!(refuse(&[], &default), StoreFormatError::DriveCount { given: 0 }));
    for chunk_size in [0, 1 << 19, 3 << 20, 1 << 27] {
        let options = FormatOptions { chunk_size: Some(chunk_size), ..default.clone() };
        assert!(matches!(refuse(&fixture.drives, &options), StoreFormatError::ChunkSize { .. }));
    }
    assert!(fixture.take_log().is_empty());

    format(&fixture.drives, &default).unwrap();
    let store = fixture.open().volume.store();
    let refused = refuse(&fixture.drives[1..], &default);
    assert!(
        matches!(refused, StoreFormatError::AlreadyFormatted { store: Some(found), .. } if found == store),
        "{refused}"
    );
    format(&fixture.drives[1..], &FormatOptions { overwrite: true, ..default }).unwrap();
    assert!(matches!(error(&fixture.drives), OpenError::SwappedMember { .. } | OpenError::ForeignMember { .. }));
}

/// A drive that rewrites up to 64 KiB for a torn LBA then spoils one structure, or the superblocks of one end.
#[test]
fn no_64_kib_belong_to_two_structures() {
    for (lba_size, mebibytes, slack) in
        [(512, 4, None), (4096, 5, None), (512, 9, Some(1 << 20)), (512, 300, None), (4096, 8192, None)]
    {
        let fixture = Fixture::new(&[Shape { bytes: (mebibytes << 20) + 12288, ..small(lba_size, 0) }]);
        let options = FormatOptions { catalogue_slack: slack, ..FormatOptions::default() };
        let geometry = format(&fixture.drives, &options).unwrap().geometry;
        let extent = u64::from(geometry.catalogue_units);
        let units = fixture.drives[0].shape.units();
        let chunks = u64::from(geometry.members[0].chunk_count) * geometry.chunk_size() / 4096;
        let first = geometry.first_chunk_unit;
        let structures = [0..2, 16..16 + extent, 16 + extent..16 + 2 * extent, first..first + chunks, units - 2..units];
        let mut before = None;
        for units in structures {
            assert!(before < Some(units.start / 16), "{geometry:?}: {units:?}");
            before = Some((units.end - 1) / 16);
        }
    }
}

#[test]
fn a_store_has_its_superblocks_at_both_ends() {
    let fixture = Fixture::new(&[small(4096, 8)]);
    fixture.format(1);
    let found = probe(&fixture.drives[0]).unwrap();
    assert_eq!((&found.start[0], &found.tail[0]), (&SlotState::Empty, &SlotState::Empty));
    assert_eq!(found.start[1], found.tail[1]);
    assert_eq!(found.newest().unwrap().epoch, 1);
}
