//! Tables with sparse keys in a whole store: what verify sees, what damage costs, how often a foreign key passes.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use common::{Keys, Table};
use warprow_layout::VolumeError;
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions};
use warprow_store::{
    CreateDrive, DType, Device, DriveAddress, FingerprintWidth, KeyKind, LoadOptions, Ranks, RowOrder, Store,
    StoreError, TableSpec,
};

const DIM: usize = 6;

/// Rows that begin with their key.
fn table(name: &str, rows: usize, fingerprint: FingerprintWidth, order: RowOrder, stored: bool) -> Table {
    let mut random = fastrand::Rng::with_seed(name.len() as u64);
    let mut numbers: HashSet<i128> = HashSet::new();
    while numbers.len() < rows {
        numbers.insert(i128::from(random.i64(..)));
    }
    let numbers: Vec<i128> = numbers.into_iter().collect();
    let content = numbers.iter().flat_map(|&key| {
        let mut row = [0; DIM * 4];
        row[..8].copy_from_slice(&(key as i64).to_le_bytes());
        row
    });
    let spec = TableSpec { row_crc: true, ..TableSpec::new(name, rows as u64, DIM as u32, DType::F32) };
    let keys = Keys { kind: KeyKind::I64, fingerprint, order, stored, numbers: numbers.clone() };
    Table { spec, rows: content.collect(), ranks: None, keys: Some(keys) }
}

fn look_up(
    host: &warprow_lookup::HostExecutor,
    table: &str,
    ids: &[i64],
) -> Result<(Vec<Vec<u8>>, Vec<u8>), StoreError> {
    let plan = host.plan(&[Feature::new("f", table)], PlanOptions::default().with_max(1, ids.len()))?;
    let mut rows = vec![0f32; ids.len() * DIM];
    let mut mask = vec![7; ids.len()];
    let mut out = Output::new(OutputRows::F32(&mut rows), DIM).with_mask(&mut mask);
    plan.slot()?.lookup(&Batch::new(ids, 1), &mut out).unwrap();
    let bytes = rows.chunks(DIM).map(|row| row.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect()).collect();
    Ok((bytes, mask))
}

fn go(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn loads_of_every_order_and_size_lead_every_key_to_its_row() {
    let (_drives, store) = common::store(3, 48 << 20, 512);
    let rows = 60_000;
    let ranks = Ranks::by_hotness(&(0..rows as u64).map(|position| position * 7919 % 1009).collect::<Vec<_>>());
    let orders = [RowOrder::Positions, RowOrder::Given, RowOrder::Ranks(ranks.clone())];
    for (number, order) in orders.into_iter().enumerate() {
        // In one piece, and in several that are written twice.
        for memory in [1 << 30, 300_000] {
            let table = table("t", rows, FingerprintWidth::Bits16, order.clone(), true);
            common::load(
                &store,
                std::slice::from_ref(&table),
                &LoadOptions::default().with_replace().with_memory(memory),
            );
            let ids: Vec<i64> = table.keys.as_ref().unwrap().numbers.iter().map(|&key| key as i64).collect();
            let host =
                HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(500_000).with_checked_rows())
                    .unwrap();
            let (found, mask) = look_up(&host, "t", &ids).unwrap();
            assert!(mask.iter().all(|&byte| byte == 1));
            found.iter().zip(0..).for_each(|(row, position)| assert_eq!(row, table.row(position)));
            // By rank: keys beside their rows, and the hottest first where ranks say so.
            let keys = store.keys("t").unwrap().unwrap();
            let mut at = 0;
            store
                .scan("t", 0..u64::MAX, &mut |rank, row| {
                    assert_eq!(row[..8], keys[rank as usize].to_le_bytes());
                    at += 1;
                    ControlFlow::Continue(())
                })
                .unwrap();
            assert_eq!(at, rows);
            match number {
                0 => assert!(store.ranks("t").unwrap().is_none()),
                1 => assert_eq!(keys, ids.iter().map(|&id| id as u64).collect::<Vec<_>>()),
                _ => {
                    assert!((0..rows).all(|index| keys[ranks.get(index as u64).unwrap() as usize] == ids[index] as u64))
                }
            }
            let verified = store.verify("t", &mut go).unwrap();
            assert!(verified.is_sound() && verified.checked_keys == rows as u64, "{verified:?}");
        }
    }
}

#[test]
fn foreign_keys_pass_at_the_stated_rate_unless_they_are_compared() {
    let (_drives, store) = common::store(1, 48 << 20, 512);
    let rows = 20_000;
    let tables = [
        table("stored", rows, FingerprintWidth::Bits8, RowOrder::Given, true),
        table("bare", rows, FingerprintWidth::Bits8, RowOrder::Given, false),
    ];
    common::load(&store, &tables, &LoadOptions::default());
    let mut random = fastrand::Rng::with_seed(9);
    let known: HashSet<i128> = tables.iter().flat_map(|table| table.keys.as_ref().unwrap().numbers.clone()).collect();
    let foreign: Vec<i64> =
        std::iter::repeat_with(|| random.i64(..)).filter(|&id| !known.contains(&id.into())).take(100_000).collect();
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(1 << 20)).unwrap();
    for table in ["stored", "bare"] {
        let (found, mask) = look_up(&host, table, &foreign).unwrap();
        let passed = mask.iter().filter(|&&byte| byte == 1).count() as f64;
        let expected = foreign.len() as f64 / 256.0;
        assert!((passed - expected).abs() < 6.0 * expected.sqrt(), "{passed} passed, not {expected}");
        // All others get the default row, which is zeros.
        assert!(found.iter().zip(&mask).all(|(row, &mask)| mask == 1 || row.iter().all(|&byte| byte == 0)));
    }
    let host =
        HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(1 << 20).with_checked_keys()).unwrap();
    let (found, mask) = look_up(&host, "stored", &foreign).unwrap();
    assert!(mask.iter().all(|&byte| byte == 0) && found.iter().flatten().all(|&byte| byte == 0));
    let error = look_up(&host, "bare", &foreign).unwrap_err();
    assert!(matches!(&error, StoreError::KeysNotStored { table } if table == "bare"), "{error}");
}

#[test]
fn damaged_keys_harm_their_own_table_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let address: DriveAddress = format!("emulated:{},size=24M", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
    let store = Store::create(&[device], &Default::default(), &Default::default()).unwrap();
    let good = table("good", 1000, FingerprintWidth::Bits16, RowOrder::Given, true);
    let bad = table("bad", 1000, FingerprintWidth::Bits16, RowOrder::Given, true);
    common::load(&store, &[good.clone(), bad], &LoadOptions::default());
    let (generation, index) = store.generation("bad").unwrap();
    let stored = generation.tables[index].keys.unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let ids: Vec<i64> = good.keys.as_ref().unwrap().numbers.iter().map(|&key| key as i64).collect();
    for (region, checked) in [(stored.index, false), (stored.keys.unwrap(), true)] {
        let extent = generation.placement.extents(region, 1 << 20).next().unwrap();
        let mut before = [0; 16];
        file.read_exact_at(&mut before, extent.lba * 512).unwrap();
        file.write_all_at(&before.map(|byte| byte ^ 0x5a), extent.lba * 512).unwrap();
        let options = HostOptions::default();
        let host = HostExecutor::attach(&store, if checked { options.with_checked_keys() } else { options }).unwrap();
        let error = look_up(&host, "bad", &ids).unwrap_err();
        assert!(matches!(error, StoreError::Volume(VolumeError::KeysDamaged { .. })), "{error}");
        assert!(error.to_string().contains("\"bad\""), "{error}");
        let (found, _) = look_up(&host, "good", &ids).unwrap();
        found.iter().zip(0..).for_each(|(row, position)| assert_eq!(row, good.row(position)));
        let verified = store.verify("bad", &mut go).unwrap();
        assert_eq!((verified.rows, verified.damaged, verified.checked_keys), (1000, 0, 0));
        assert!(verified.damaged_keys.as_ref().unwrap().contains("\"bad\"") && !verified.is_sound());
        assert!(store.verify("good", &mut go).unwrap().is_sound());
        file.write_all_at(&before, extent.lba * 512).unwrap();
        assert!(store.verify("bad", &mut go).unwrap().is_sound());
    }
}
