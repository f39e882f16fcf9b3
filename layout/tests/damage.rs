//! Damaged metadata is never believed, and never panics.

mod common;

use std::sync::LazyLock;

use common::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_layout::{Catalogue, Geometry, MAGIC, OpenError, StoreAccess, Superblock, UNIT, VERSION, open};

fn loaded(mebibytes: &[u64]) -> (Vec<Shape>, Vec<Image>, Geometry) {
    let shapes: Vec<Shape> = mebibytes.iter().map(|&mebibytes| small(512, mebibytes)).collect();
    let fixture = Fixture::new(&shapes);
    fixture.format(3);
    let volume = fixture.open().volume;
    switch(&volume, 1);
    switch(&volume, 2);
    (shapes, fixture.images(), volume.geometry().clone())
}

/// Units that carry metadata of `drive`.
fn metadata(shape: &Shape, geometry: &Geometry) -> Vec<u64> {
    let extents = [16, 16 + u64::from(geometry.catalogue_units)];
    let mut units = vec![0, 1, shape.units() - 2, shape.units() - 1];
    units.extend(extents.iter().flat_map(|&first| first..first + 2));
    units
}

/// Opens, and if that works, finds the newest version whole.
fn right_or_refused(fixture: &Fixture, access: StoreAccess) -> Result<(), OpenError> {
    let opened = open(fixture.drives.clone(), access)?;
    let generations = opened.volume.generations();
    assert_eq!(generations.len(), 1);
    assert_eq!(generations[0].id, 1, "an old version is wrong data");
    verify(&opened.volume, &generations[0], 2).unwrap();
    Ok(())
}

#[test]
fn a_flipped_bit_is_repaired_or_refused() {
    let mut rng = fastrand::Rng::with_seed(11);
    for sizes in [&[4u64][..], &[4, 5, 7]] {
        let (shapes, images, geometry) = loaded(sizes);
        let mut opened = 0;
        let mut refused = 0;
        for drive in 0..shapes.len() {
            for unit in metadata(&shapes[drive], &geometry) {
                for byte in (0..UNIT).filter(|&byte| byte < 300 || byte % 41 == 0) {
                    let fixture = Fixture::with_images(&shapes, images.clone());
                    let mut block = fixture.drives[drive].unit(unit);
                    block[byte] ^= 1 << rng.u8(..8);
                    fixture.drives[drive].set_unit(unit, &block);
                    match right_or_refused(&fixture, StoreAccess::ReadWrite) {
                        Ok(()) => {
                            opened += 1;
                            assert!(fixture.open().repairs.is_empty(), "repaired for good");
                        }
                        Err(OpenError::CatalogueDamaged { .. }) if shapes.len() == 1 => refused += 1,
                        Err(error) => panic!("drive {drive}, unit {unit}, byte {byte}: {error}"),
                    }
                }
            }
        }
        // Only the one copy of the catalogue on a single drive has no twin.
        assert!(opened > 2000 && (refused > 300) == (shapes.len() == 1), "{opened} opened, {refused} refused");
    }
}

#[test]
fn several_damaged_blocks_are_repaired_or_refused() {
    for sizes in [&[4u64][..], &[4, 5]] {
        let (shapes, images, geometry) = loaded(sizes);
        for seed in 0..2000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let fixture = Fixture::with_images(&shapes, images.clone());
            for _ in 0..rng.usize(1..8) {
                let drive = rng.usize(..shapes.len());
                let units = metadata(&shapes[drive], &geometry);
                let unit = units[rng.usize(..units.len())];
                let other = units[rng.usize(..units.len())];
                let mut block = match rng.u8(..3) {
                    0 => vec![0; UNIT],
                    // An intact block in the wrong place.
                    1 => {
                        let from = rng.usize(..shapes.len());
                        fixture.drives[from].unit(other.min(shapes[from].units() - 1))
                    }
                    _ => fixture.drives[drive].unit(unit),
                };
                let at = rng.usize(..UNIT - 64);
                if rng.bool() {
                    rng.fill(&mut block[at..at + 64]);
                }
                fixture.drives[drive].set_unit(unit, &block);
            }
            let read_only = right_or_refused(&fixture, StoreAccess::ReadOnly);
            let degraded = right_or_refused(&fixture, StoreAccess::Degraded);
            let read_write = right_or_refused(&fixture, StoreAccess::ReadWrite);
            assert_eq!(read_only.is_ok(), read_write.is_ok(), "seed {seed}: {read_only:?}, {read_write:?}");
            assert!(degraded.is_ok() || read_write.is_err(), "seed {seed}");
        }
    }
}

/// Sets bytes of a block and makes its checksum right again.
fn reseal(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c(&block[12..]);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_newer_major_version_is_named_and_left_alone() {
    let (shapes, images, _) = loaded(&[4]);
    let fixture = Fixture::with_images(&shapes, images);
    let mut block = fixture.drives[0].unit(0);
    assert_eq!(block[..8], MAGIC);
    reseal(&mut block, 12, &[4, 0, 7, 0]);
    fixture.drives[0].set_unit(0, &block);
    match open(fixture.drives.clone(), StoreAccess::ReadWrite) {
        Err(error @ OpenError::NewerVersion { found_major: 4, found_minor: 7, known_major, known_minor, .. }) => {
            assert_eq!((known_major, known_minor), VERSION);
            assert!(error.to_string().contains("4.7") && error.to_string().contains("3.0"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(fixture.take_log().is_empty());
}

/// A generation record of version 1 ends behind its tables: it was shown when it came, and has no log.
#[test]
fn a_catalogue_of_version_1_is_read() {
    let (shapes, images, _) = loaded(&[4, 5]);
    let volume = Fixture::with_images(&shapes, images).open().volume;
    let catalogue = Catalogue { next_id: 9, generations: volume.generations() };
    let mut bytes = catalogue.encode();
    assert_eq!(catalogue.generations.len(), 1);
    bytes.truncate(bytes.len() - 24);
    let length = (bytes.len() - 16) as u32;
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    assert_eq!(Catalogue::decode(&bytes, volume.geometry()).unwrap(), catalogue);
}

#[test]
fn a_newer_minor_version_is_read() {
    let (shapes, images, _) = loaded(&[4]);
    let fixture = Fixture::with_images(&shapes, images);
    for unit in [0, 1, shapes[0].units() - 2, shapes[0].units() - 1] {
        let mut block = fixture.drives[0].unit(unit);
        reseal(&mut block, 14, &[1, 0]);
        fixture.drives[0].set_unit(unit, &block);
    }
    right_or_refused(&fixture, StoreAccess::ReadOnly).unwrap();
}

static SEALED: LazyLock<(Vec<u8>, Vec<u8>, Geometry)> = LazyLock::new(|| {
    let (shapes, images, geometry) = loaded(&[4, 5, 7]);
    let fixture = Fixture::with_images(&shapes, images);
    let catalogue = open(fixture.drives.clone(), StoreAccess::ReadOnly).unwrap().volume;
    let bytes = Catalogue { next_id: 2, generations: catalogue.generations() }.encode();
    (fixture.drives[1].unit(1), bytes, geometry)
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    /// As if a checksum had let it through.
    #[test]
    fn any_superblock_is_decoded_or_refused(edits in prop::collection::vec((0usize..400, any::<u8>()), 0..12)) {
        let mut block = SEALED.0.clone();
        edits.iter().for_each(|&(at, byte)| reseal(&mut block, 12 + at, &[byte]));
        let block: [u8; UNIT] = block.try_into().unwrap();
        for slot in 0..2 {
            if let Ok(superblock) = Superblock::decode(&block, 1, slot) {
                let geometry = &superblock.geometry;
                prop_assert!(superblock.own().is_some());
                for member in &geometry.members {
                    let chunks = geometry.first_chunk_unit * 4096 + u64::from(member.chunk_count) * geometry.chunk_size();
                    prop_assert!(chunks + 8192 <= member.lba_count * u64::from(geometry.lba_size()));
                }
            }
        }
    }

    #[test]
    fn any_catalogue_is_decoded_or_refused(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (_, bytes, geometry) = &*SEALED;
        let mut bytes = bytes.clone();
        edits.iter().for_each(|(at, byte)| *at.get_mut(&mut bytes[..]) = *byte);
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        if let Ok(catalogue) = Catalogue::decode(&bytes, geometry) {
            let again = Catalogue::decode(&catalogue.encode(), geometry).unwrap();
            prop_assert_eq!(&again, &catalogue);
            for generation in &catalogue.generations {
                for (index, table) in generation.tables.iter().enumerate() {
                    prop_assert!(generation.row(index, table.rows - 1).is_some(), "all rows within the chunks");
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Catalogue::decode(&bytes, &SEALED.2);
    }
}
