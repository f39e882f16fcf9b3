//! Tables looked up by keys: written, read back, damaged, and declared wrongly.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_keys::{FingerprintWidth, IndexOptions, KeyIndex};
use warprow_layout::{
    DType, Drive, GenerationSpec, Ranks, RowOrder, RowSource, StoreAccess, TableKeys, TableKeysError, TableSpec,
    Volume, VolumeError, open,
};

const WIDTHS: [FingerprintWidth; 3] = [FingerprintWidth::Bits8, FingerprintWidth::Bits16, FingerprintWidth::Bits32];

fn index(keys: &[i64], width: FingerprintWidth) -> Arc<KeyIndex> {
    let options = IndexOptions::default().with_fingerprint(width).with_threads(1);
    Arc::new(KeyIndex::build(keys, &options, &mut |_| ControlFlow::Continue(())).unwrap())
}

fn keys(count: usize, random: &mut fastrand::Rng) -> Vec<i64> {
    let mut seen = std::collections::HashSet::from([i64::MIN, -1, 0, i64::MAX]);
    while seen.len() < count {
        seen.insert(random.i64(..) >> random.u32(..60));
    }
    let mut keys: Vec<i64> = seen.into_iter().collect();
    keys.sort_unstable();
    random.shuffle(&mut keys);
    keys.truncate(count);
    keys
}

fn order(kind: u8, count: u64, random: &mut fastrand::Rng) -> RowOrder {
    match kind {
        0 => RowOrder::Positions,
        1 => RowOrder::Given,
        _ => RowOrder::Ranks(Ranks::by_hotness(&(0..count).map(|_| random.u64(..50)).collect::<Vec<_>>())),
    }
}

/// A plain table and a keyed one in one generation.
fn load(volume: &Volume, spec: TableSpec, keyed: &TableKeys<'_>) {
    let plain = TableSpec::new("plain", 40, 16, DType::F32);
    let mut transaction = volume.begin(&GenerationSpec::new("m", vec![plain, spec])).unwrap();
    let sources = [Rows { version: 1, table: 0 }, Rows { version: 1, table: 1 }];
    let placed = transaction.generation().clone();
    let plain = transaction.loader(0, &sources[0], None).unwrap();
    let loaders = [plain, transaction.keyed_loader(1, &sources[1], keyed).unwrap()];
    for loader in &loaders {
        let mut written = 0;
        for extent in loader.extents(64 << 10) {
            let mut bytes = vec![0xAA; extent.bytes];
            loader.fill(&extent, &mut bytes).unwrap();
            volume.drive(extent.drive).unwrap().write(extent.lba, &bytes).unwrap();
            written += bytes.len() as u64;
        }
        assert_eq!(written, loader.bytes());
    }
    assert_eq!(placed.tables.len(), 2);
    transaction.commit().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn every_key_leads_to_its_row(
        seed: u64,
        count in prop_oneof![1usize..6, 1usize..3000],
        drives in 1usize..4,
        lba in prop_oneof![Just(512u32), Just(4096)],
        kind in 0u8..3,
        width in 0usize..3,
        stored: bool,
        row_crc: bool,
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let keys = keys(count, &mut random);
        let fixture = Fixture::new(&vec![small(lba, 8); drives]);
        fixture.format(1);
        let index = index(&keys, WIDTHS[width]);
        let source = &keys[..];
        let keyed = TableKeys::new(index.clone(), &source, order(kind, count as u64, &mut random), stored).unwrap();
        let spec = TableSpec { row_crc, ..TableSpec::new("t", 0, random.u32(1..90), DType::F16) }.keyed(&keyed);
        load(&fixture.open().volume, spec.clone(), &keyed);

        let volume = open(fixture.drives.clone(), StoreAccess::ReadOnly).unwrap().volume;
        let generation = volume.latest("m").unwrap();
        let table = &generation.tables[1];
        prop_assert_eq!(table.rows, count as u64);
        prop_assert_eq!(Some(table.keys.unwrap().spec), spec.keys);
        prop_assert!(volume.read_key_index(&generation, 0).unwrap().is_none());
        let read = volume.read_key_index(&generation, 1).unwrap().unwrap();
        prop_assert!(read == *index);
        let ranks = volume.read_ranks(&generation, 1).unwrap();
        prop_assert_eq!(ranks.is_some(), kind != 0);
        let by_rank = volume.read_keys(&generation, 1).unwrap();
        prop_assert_eq!(by_rank.is_some(), stored);
        let row_bytes = table.row_bytes() as usize;
        let mut row = vec![0; row_bytes];
        let mut want = vec![0; row_bytes];
        for (position, &key) in keys.iter().enumerate() {
            let slot = read.position(key as u64).unwrap();
            let rank = ranks.as_ref().map_or(Some(slot), |ranks| ranks.get(slot)).unwrap();
            if kind == 1 {
                prop_assert_eq!(rank, position as u64);
            }
            if let Some(by_rank) = &by_rank {
                prop_assert_eq!(by_rank[rank as usize], key as u64);
            }
            volume.read_row(&generation, 1, rank, &mut row).unwrap();
            Rows { version: 1, table: 1 }.read(position as u64, row_bytes, &mut want).unwrap();
            prop_assert_eq!(&row, &want, "key {}", key);
        }
        // The other table is where it was.
        let mut row = vec![0; 64];
        let mut want = vec![0; 64];
        volume.read_row(&generation, 0, 39, &mut row).unwrap();
        Rows { version: 1, table: 0 }.read(39, 64, &mut want).unwrap();
        prop_assert_eq!(row, want);
    }
}

#[test]
fn damage_is_told_by_what_it_struck() {
    let mut random = fastrand::Rng::with_seed(1);
    let keys = keys(2000, &mut random);
    let source = &keys[..];
    let fixture = Fixture::new(&[small(512, 8)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    let keyed = TableKeys::new(index(&keys, FingerprintWidth::Bits16), &source, RowOrder::Given, true).unwrap();
    load(&volume, TableSpec::new("t", 0, 4, DType::F32).keyed(&keyed), &keyed);
    let generation = volume.latest("m").unwrap();
    let stored = generation.tables[1].keys.unwrap();
    let flip = |first_lba: u64, byte: usize| {
        let (_, lba) = generation.placement.locate(first_lba + byte as u64 / 512).unwrap();
        let mut block = vec![0; 512];
        fixture.drives[0].read(lba, &mut block).unwrap();
        block[byte % 512] ^= 16;
        fixture.drives[0].write(lba, &block).unwrap();
    };
    for byte in (0..stored.spec.index_bytes as usize).step_by(61) {
        flip(stored.index.first_lba, byte);
        match volume.read_key_index(&generation, 1) {
            Err(VolumeError::KeysDamaged { what: "key index", .. }) if byte < 128 => {}
            Err(VolumeError::KeysInvalid { source: Some(_), .. }) if byte >= 128 => {}
            other => panic!("byte {byte}: {other:?}"),
        }
        flip(stored.index.first_lba, byte);
    }
    let first = stored.keys.unwrap().first_lba;
    for byte in (0..16_000).step_by(997) {
        flip(first, byte);
        assert!(matches!(
            volume.read_keys(&generation, 1),
            Err(VolumeError::KeysDamaged { what: "array of keys", .. })
        ));
        flip(first, byte);
    }
    assert!(
        volume.read_key_index(&generation, 1).unwrap().is_some() && volume.read_keys(&generation, 1).unwrap().is_some()
    );
}

#[test]
fn keys_that_do_not_fit_are_refused() {
    let mut random = fastrand::Rng::with_seed(2);
    let mine = keys(100, &mut random);
    let other = keys(101, &mut random);
    let source = &mine[..];
    let other_source = &other[..];
    let own = index(&mine, FingerprintWidth::Bits8);
    assert!(matches!(
        TableKeys::new(own.clone(), &other_source, RowOrder::Positions, false),
        Err(TableKeysError::Count { index: 100, source_keys: 101 })
    ));
    // As many, but not the same; and the same bits, but as other numbers.
    let same_count = &other[..100];
    assert!(matches!(
        TableKeys::new(own.clone(), &same_count, RowOrder::Positions, false),
        Err(TableKeysError::Slots(_) | TableKeysError::Build(_))
    ));
    let unsigned: Vec<u64> = mine.iter().map(|&key| key as u64).collect();
    let unsigned = &unsigned[..];
    assert!(matches!(
        TableKeys::new(own.clone(), &unsigned, RowOrder::Positions, false),
        Err(TableKeysError::Count { .. })
    ));
    let short = RowOrder::Ranks(ranks(1, 99));
    assert!(matches!(
        TableKeys::new(own.clone(), &source, short, false),
        Err(TableKeysError::Ranks { given: 99, keys: 100 })
    ));

    let fixture = Fixture::new(&[small(512, 8)]);
    fixture.format(1);
    let volume = fixture.open().volume;
    let keyed = TableKeys::new(own.clone(), &source, RowOrder::Given, false).unwrap();
    let spec = GenerationSpec::new(
        "m",
        vec![TableSpec::new("keyed", 0, 4, DType::F32).keyed(&keyed), TableSpec::new("plain", 100, 4, DType::F32)],
    );
    let mut transaction = volume.begin(&spec).unwrap();
    let rows = Rows { version: 1, table: 0 };
    assert!(matches!(transaction.loader(0, &rows, None), Err(VolumeError::KeysNotGiven { .. })));
    assert!(matches!(transaction.keyed_loader(1, &rows, &keyed), Err(VolumeError::KeysMismatch { .. })));
    assert!(matches!(transaction.keyed_loader(2, &rows, &keyed), Err(VolumeError::NoSuchTable { .. })));
    let by_slot = TableKeys::new(own, &source, RowOrder::Positions, false).unwrap();
    assert!(matches!(transaction.keyed_loader(0, &rows, &by_slot), Err(VolumeError::KeysMismatch { .. })));
    assert!(matches!(transaction.commit(), Err(VolumeError::RanksNotGiven { .. } | VolumeError::KeysNotGiven { .. })));
    assert!(volume.generations().is_empty());
}
