//! Keys that updates create: found by all look-ups, by nobody else's, over compaction and opening; or refused.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::random::{Case, random_features};
use common::{Keys, Table};
use warprow_layout::FormatOptions;
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions, PrepareOptions};
use warprow_soft_controller::SoftController;
use warprow_store::{
    CreateDrive, DType, Device, DriveAddress, FingerprintWidth, KeyKind, LoadOptions, MetadataReport, OpenOptions,
    Ranks, RowOrder, Store, StoreError, TableSpec, UpdateOptions,
};

fn store() -> (Vec<Arc<SoftController>>, Store) {
    let drives: Vec<_> = [24, 40, 64].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let options = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let store = Store::create(&common::devices(&drives), &options, &OpenOptions::default()).unwrap();
    (drives, store)
}

fn open(drives: &[Arc<SoftController>], options: &OpenOptions) -> Store {
    Store::open(&common::devices(drives), options).unwrap()
}

fn creating() -> UpdateOptions {
    UpdateOptions::default().with_created_keys()
}

/// Gives `count` keys other rows, some of them new, in the store and in the model.
fn change(store: &Store, table: &mut Table, count: usize, random: &mut fastrand::Rng) {
    let bytes = table.row_bytes();
    let mut given = Vec::new();
    let mut rows = vec![0; count * bytes];
    random.fill(&mut rows);
    let before = table.spec.rows;
    for row in rows.chunks(bytes) {
        let Some(keys) = table.keys.as_mut().filter(|_| random.u32(..3) > 0) else {
            let position = random.usize(..table.spec.rows as usize);
            given.push(table.id(position as u64) as u64);
            table.rows[position * bytes..][..bytes].copy_from_slice(row);
            continue;
        };
        let number = keys.foreign(random);
        keys.numbers.push(number);
        table.rows.extend_from_slice(row);
        table.spec.rows += 1;
        given.push(number as u64);
    }
    let name = &table.spec.name;
    let new = table.spec.rows - before;
    assert_eq!(store.check_update_with(name, &given, &creating()).unwrap(), new);
    if new > 0 {
        let refused = store.update(name, &given, &rows);
        assert!(matches!(refused, Err(StoreError::NoSuchKey { .. })), "{refused:?}");
    }
    store.update_with(name, &given, &rows, &creating()).unwrap();
}

/// Every row of a table, by key: those in chunks and those that were created.
fn all(store: &Store, table: &Table) -> BTreeMap<u64, Vec<u8>> {
    let name = &table.spec.name;
    let keys = match table.keys {
        Some(_) => store.keys(name).unwrap().unwrap(),
        None => store.ranks(name).unwrap().map_or((0..table.spec.rows).collect(), |ranks| {
            let ids = ranks.inverse();
            (0..ids.len()).map(|rank| ids.get(rank).unwrap()).collect()
        }),
    };
    let mut rows = BTreeMap::new();
    store
        .scan(name, 0..u64::MAX, &mut |rank, row| {
            assert!(rows.insert(keys[rank as usize], row.to_vec()).is_none());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(rows.len(), keys.len());
    for (key, row) in store.created(name).unwrap() {
        assert!(rows.insert(key, row).is_none(), "key {key} twice");
    }
    rows
}

/// Random batches of random features, at once and fetched ahead, compared with the model.
fn look_up(host: &HostExecutor, tables: &[Table], random: &mut fastrand::Rng) {
    let (features, options) = random_features(tables, random);
    let plan = host.plan(&features, options.clone().with_prefetch()).unwrap();
    for ahead in [false, true] {
        let mut case = Case::random(tables, &features, &options, plan.width(), false, random);
        let mut slot = plan.slot().unwrap();
        let report = if ahead {
            slot.prefetch(&case.arrays().0).unwrap();
            slot.lookup_prefetched(&mut case.arrays().1).unwrap()
        } else {
            let (batch, mut out) = case.arrays();
            slot.lookup(&batch, &mut out).unwrap()
        };
        case.check(&(&features, &options));
        let wanted = &case.wanted;
        assert_eq!((report.missing, report.padding, report.failed), (wanted.missing, wanted.padding, 0));
        assert_eq!(report.first_missing, wanted.first_missing);
        assert_eq!(report.unique as usize, case.unique);
        assert_eq!(report.ids, report.padding + report.missing + report.ids_dram + report.ids_ssd);
    }
}

fn rows_of(table: &Table) -> BTreeMap<u64, Vec<u8>> {
    (0..table.spec.rows).map(|position| (table.id(position) as u64, table.row(position).to_vec())).collect()
}

/// What is said to be pending, against the rows that are found; and what a compaction would copy, against the chunks that there are.
fn check_pending(store: &Store, generation: u64, tables: &[Table]) {
    let Some(pending) = store.pending_updates(generation).unwrap() else {
        return assert!(tables.iter().all(|table| store.created(&table.spec.name).unwrap().is_empty()));
    };
    let all: u64 = pending.tables.iter().map(|table| table.rows + table.created).sum();
    assert!(pending.updates >= all, "{pending:?}");
    for table in tables {
        let of_table = pending.tables.iter().find(|other| other.table == table.spec.name);
        let created = store.created(&table.spec.name).unwrap().len() as u64;
        assert_eq!(of_table.map_or(0, |table| table.created), created, "{pending:?}");
        assert!(
            of_table.is_none_or(|of_table| of_table.rows <= table.spec.rows && of_table.rows + of_table.created > 0),
            "{pending:?}"
        );
    }
    let stored = store.inspect().0.generations[0].chunks.iter().sum::<u64>();
    let log = pending.log.len() as u64;
    let needs = pending.compaction;
    assert!(
        pending.log.iter().all(|chunk| chunk.bytes == u64::from(chunk.units) * 4096 && chunk.drive.is_some()),
        "{pending:?}"
    );
    assert_eq!(needs, store.compaction_needs(generation).unwrap());
    assert_eq!(needs.rewrites, pending.tables.iter().any(|table| table.created > 0));
    assert_eq!(needs.frees, log + if needs.rewrites { stored } else { needs.chunks });
    assert!(needs.rewrites || needs.chunks <= stored, "{needs:?}");
}

/// Updates, creations, compactions, and openings in any order, under hosts that are as old as they like, against a map.
fn created_at_random(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (drives, mut store) = store();
    let checked = random.bool();
    let mut table = |name: &str, rows: u64, dim: u32, keyed: bool| {
        let dtype = [DType::U8, DType::F16, DType::F32][random.usize(..3)];
        let table = Table::random(name, rows, dim, dtype, &mut random);
        if keyed { table.with_random_keys(checked, &mut random) } else { table }
    };
    let mut tables =
        vec![table("a", 700, 40, true), table("b", 300, 700, false), table("c", 200, 64, true), table("d", 9, 5, true)];
    common::load(&store, &tables, &LoadOptions::default());
    let generation = store.generations()[0].id;
    let mut hosts: Vec<HostExecutor> = Vec::new();
    for step in 0..12 {
        let attach = |store: &Store, random: &mut fastrand::Rng| {
            let mut options = HostOptions::default().with_dram_bytes(random.u64(..100_000)).with_checked_rows();
            options.check_keys = checked;
            HostExecutor::attach(store, options).unwrap()
        };
        if random.u32(..3) > 0 {
            hosts.push(attach(&store, &mut random));
        }
        for _ in 0..random.usize(1..4) {
            let table = &mut tables[random.usize(..4)];
            // Those whose keys are not stored are not updated.
            if table.keys.as_ref().is_none_or(|keys| keys.stored) {
                change(&store, table, [1, 3, 30, 120][random.usize(..4)], &mut random);
            }
        }
        match random.u32(..6) {
            0..2 => {
                check_pending(&store, generation, &tables);
                let needs = store.compaction_needs(generation).unwrap();
                let free = store.free_bytes() >> 20;
                let copied = store.compact(generation).unwrap() as u64;
                assert_eq!((copied, free), (needs.chunks, needs.free), "seed {seed}, step {step}: {needs:?}");
                assert!(needs.has_room() && needs.needs <= needs.chunks, "{needs:?}");
                assert_eq!(store.pending_updates(generation).unwrap(), None);
                for table in &tables {
                    let verified = store.verify(&table.spec.name, &mut |_| ControlFlow::Continue(())).unwrap();
                    assert!(verified.is_sound() && store.created(&table.spec.name).unwrap().is_empty(), "{verified:?}");
                    assert_eq!(verified.rows, table.spec.rows);
                }
                assert_eq!(store.compact(generation).unwrap(), 0, "nothing is left to do");
            }
            2 => {
                hosts.clear();
                drop(store);
                let read_only = open(&drives, &OpenOptions::default().with_read_only());
                check_pending(&read_only, generation, &tables);
                look_up(&attach(&read_only, &mut random), &tables, &mut random);
                drop(read_only);
                store = open(&drives, &OpenOptions::default());
            }
            3 if !hosts.is_empty() => {
                let host = &hosts[random.usize(..hosts.len())];
                let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
                change(&store, &mut tables[1], 2, &mut random);
                assert!(host.adopt(upcoming, Duration::from_secs(10)).unwrap());
            }
            4 if hosts.len() > 2 => drop(hosts.swap_remove(random.usize(..hosts.len()))),
            _ => {}
        }
        hosts.iter().for_each(|host| look_up(host, &tables, &mut random));
        look_up(&attach(&store, &mut random), &tables, &mut random);
        for table in tables.iter().filter(|table| table.keys.as_ref().is_none_or(|keys| keys.stored)) {
            assert!(all(&store, table) == rows_of(table), "seed {seed}, step {step}, table {}", table.spec.name);
        }
    }
    assert_eq!(store.generations().len(), 1);
    assert_eq!(store.verify_metadata().unwrap(), MetadataReport::default());
}

#[test]
fn a_store_is_a_map_whatever_is_created_when() {
    (0..6).for_each(created_at_random);
}

/// Some of many foreign keys pass for others by their fingerprints: until they are created, and never after it.
#[test]
fn a_created_key_has_its_own_row_whatever_fingerprints_say() {
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(5);
    let mut table = Table::random("t", 2000, 8, DType::U8, &mut random);
    table.spec.default_row = None;
    let numbers: Vec<i128> = (0..2000).map(|i| (i128::from(random.i64(..)) & !0xffff) + i).collect();
    let kind = KeyKind::I64;
    let fingerprint = FingerprintWidth::Bits8;
    let order = RowOrder::Given;
    table.keys = Some(Keys { numbers, kind, fingerprint, order, stored: true });
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let plan = host
        .plan(&[Feature::new("f", "t")], PlanOptions::default().with_max(1, 4000).with_out(DType::U8).with_adopt_room())
        .unwrap();
    let created: Vec<i64> = (0..4000).map(|i| (random.i64(..) & !0xffff) + 3000 + i).collect();
    let look_up = || {
        let mut rows = vec![0; created.len() * 8];
        let mut mask = vec![7; created.len()];
        let mut out = Output::new(OutputRows::U8(&mut rows), 8).with_mask(&mut mask);
        let report = plan.slot().unwrap().lookup(&Batch::new(&created, 1), &mut out).unwrap();
        assert_eq!(report.missing, mask.iter().filter(|&&byte| byte == 0).count() as u64);
        (rows, mask)
    };
    let passed = look_up().1.iter().filter(|&&byte| byte == 1).count();
    assert!((1..100).contains(&passed), "{passed}");
    let keys: Vec<u64> = created.iter().map(|&key| key as u64).collect();
    let mut rows = vec![0; keys.len() * 8];
    random.fill(&mut rows);
    for (keys, rows) in keys.chunks(500).zip(rows.chunks(4000)) {
        store.update_with("t", keys, rows, &creating()).unwrap();
    }
    assert_eq!(look_up(), (rows.clone(), vec![1; 4000]));
    store.compact(0).unwrap();
    let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
    assert!(host.adopt(upcoming, Duration::from_secs(10)).unwrap());
    assert_eq!(look_up(), (rows, vec![1; 4000]));
}

/// Ranks, and with them which rows are hot, are what they were; what was created is coldest.
#[test]
fn created_keys_come_behind_the_last_rank() {
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(6);
    let mut table = Table::random("t", 500, 16, DType::U8, &mut random);
    let ranks = Ranks::by_hotness(&(0..500).map(|_| random.u64(..50)).collect::<Vec<_>>());
    let numbers: Vec<i128> = (0..500).map(|i| i * 7_000_000_000).collect();
    let kind = KeyKind::U64;
    let fingerprint = FingerprintWidth::Bits16;
    let order = RowOrder::Ranks(ranks);
    table.keys = Some(Keys { numbers, kind, fingerprint, order, stored: true });
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let before = store.keys("t").unwrap().unwrap();
    let keys = [3, u64::MAX, 1 << 63, 12];
    store.update_with("t", &keys, &[9; 64], &creating()).unwrap();
    store.update("t", &[12], &[8; 16]).unwrap();
    assert_eq!(
        store.created("t").unwrap().iter().map(|(key, row)| (*key, row[0])).collect::<Vec<_>>(),
        [(3, 9), (12, 8), (1 << 63, 9), (u64::MAX, 9)]
    );
    let info = store.table("t").unwrap();
    assert!(store.compact(0).unwrap() > 0);
    assert_eq!(store.keys("t").unwrap().unwrap(), [&before[..], &[3, 12, 1 << 63, u64::MAX]].concat());
    let after = store.table("t").unwrap();
    assert_eq!((after.rows, after.hot_rows, after.generation), (504, info.hot_rows, info.generation));
}

#[test]
fn what_cannot_be_created_is_refused_with_nothing_changed() {
    let (drives, store) = store();
    let mut random = fastrand::Rng::with_seed(7);
    let mut tables: Vec<Table> = ["keyed", "forgotten", "dense"]
        .iter()
        .map(|name| Table::random(name, 300, 16, DType::U8, &mut random))
        .collect();
    for (table, stored) in tables.iter_mut().zip([true, false]) {
        let numbers = (0..300).map(|i| i * 1000).collect();
        let kind = KeyKind::U64;
        let fingerprint = FingerprintWidth::Bits16;
        let order = RowOrder::Positions;
        table.keys = Some(Keys { kind, fingerprint, order, stored, numbers });
    }
    common::load(&store, &tables, &LoadOptions::default());
    let create = |store: &Store, table: &str, id: u64| store.update_with(table, &[id], &[1; 16], &creating());
    let refused = create(&store, "forgotten", 1);
    assert!(matches!(refused, Err(StoreError::NotUpdatable { .. })), "{refused:?}");
    let refused = create(&store, "dense", 300);
    assert!(matches!(&refused, Err(StoreError::NoSuchRow { ids, .. }) if *ids == [300]), "{refused:?}");
    let refused = store.update("keyed", &[1000, 1, 2000, 2, 1], &[1; 80]);
    assert!(matches!(&refused, Err(StoreError::NoSuchKey { keys, .. }) if *keys == ["1", "2", "1"]), "{refused:?}");
    assert_eq!(store.check_update_with("keyed", &[1000, 1, 2, 1], &creating()).unwrap(), 2);
    assert_eq!(all(&store, &tables[0]), rows_of(&tables[0]));
    // A key that was created has no rank.
    create(&store, "keyed", 1).unwrap();
    let refused = store.replace_rows(0, "keyed", &[1], &|_, row| row.fill(0));
    assert!(matches!(refused, Err(StoreError::CreatedKeys { generation: 0 })), "{refused:?}");
    assert_eq!(store.created("keyed").unwrap().len(), 1);
    // For another table of the generation it is brought in.
    tables[2].rows[32..48].fill(5);
    let rank = store.ranks("dense").unwrap().map_or(2, |ranks| ranks.get(2).unwrap());
    store.replace_rows(0, "dense", &[rank], &|_, row| row.fill(5)).unwrap();
    assert_eq!((store.created("keyed").unwrap().len(), store.table("keyed").unwrap().rows), (0, 301));
    assert_eq!(all(&store, &tables[2]), rows_of(&tables[2]));
    create(&store, "keyed", 2).unwrap();
    drop(store);
    let store = open(&drives, &OpenOptions::default().with_overlay_bytes(20_000));
    let mut created = HashSet::from([2]);
    let full = loop {
        let key = random.u64(..) | 1;
        match create(&store, "keyed", key) {
            Ok(_) => assert!(created.insert(key)),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, StoreError::OverlayFull { bound: 20_000, .. }), "{full:?}");
    assert!((50..200).contains(&created.len()), "{}", created.len());
    let found: HashSet<u64> = store.created("keyed").unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(found, created);
    assert!(store.compact(0).unwrap() > 0);
    create(&store, "keyed", 4).unwrap();
    assert_eq!(store.table("keyed").unwrap().rows as usize, 301 + created.len());
}

/// A row whose checksum does not match is not written anew with one that does, and no copy is made of it.
#[test]
fn damage_is_not_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let address: DriveAddress = format!("emulated:{},size=24M", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
    let store = Store::create(&[device], &FormatOptions::default(), &OpenOptions::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(8);
    let tables = ["grows", "stays"].map(|name| {
        let mut table = Table::random(name, 300, 16, DType::U8, &mut random);
        table.spec.row_crc = true;
        let numbers = (0..300).map(|i| i * 1000).collect();
        let kind = KeyKind::U64;
        let fingerprint = FingerprintWidth::Bits16;
        let order = RowOrder::Given;
        table.keys = Some(Keys { kind, fingerprint, order, stored: true, numbers });
        table
    });
    common::load(&store, &tables, &LoadOptions::default());
    store.update_with("grows", &[7], &[1; 16], &creating()).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let flip = |table: &str, rank: u64| {
        let (generation, index) = store.generation(table).unwrap();
        let at = generation.row(index, rank).unwrap();
        let mut byte = [0];
        let at = at.lba * 512 + u64::from(at.byte);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    };
    let damaged = |table: &str| store.verify(table, &mut |_| ControlFlow::Continue(())).unwrap().first_damaged;
    flip("grows", 5);
    flip("stays", 6);
    let refused = store.compact(0);
    let Err(StoreError::RowDamaged { table, rank, drive }) = refused else { panic!("{refused:?}") };
    assert_eq!((&*table, rank, drive), ("grows", 5, store.drives()[0].clone().unwrap()));
    assert_eq!((damaged("grows"), store.created("grows").unwrap()), (vec![5], vec![(7, vec![1; 16])]));
    // Another row in its place is whole. Then the table that is copied has one.
    store.update("grows", &[5000], &[2; 16]).unwrap();
    let refused = store.compact(0);
    let Err(StoreError::RowDamaged { table, rank, drive }) = refused else { panic!("{refused:?}") };
    assert_eq!((&*table, rank, drive), ("stays", 6, store.drives()[0].clone().unwrap()));
    assert_eq!(damaged("stays"), [6]);
    // Read right, it goes over.
    flip("stays", 6);
    store.compact(0).unwrap();
    assert_eq!((damaged("grows"), damaged("stays")), (vec![], vec![]));
    assert_eq!(store.table("grows").unwrap().rows, 301);
    for (name, table) in [("grows", &tables[0]), ("stays", &tables[1])] {
        let mut wanted = rows_of(table);
        if name == "grows" {
            wanted.extend([(7, vec![1; 16]), (5000, vec![2; 16])]);
        }
        assert_eq!(all(&store, table), wanted);
    }
}

/// A row that a drive returns wrong once is not copied to other chunks, where it would be wrong for good: neither when updates come into
/// their chunks nor when rows are replaced. What a row is replaced by need not match.
#[test]
fn a_row_that_is_read_wrong_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let address: DriveAddress = format!("emulated:{},size=64M", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
    let format = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let store = Store::create(&[device], &format, &OpenOptions::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(9);
    // Two tables in a chunk; the rows of the second lie alone in LBAs of their own.
    let mut tables = [("small", 3000, 100), ("wide", 40, 1200)].map(|(name, rows, dim)| {
        let mut table = Table::random(name, rows, dim, DType::U8, &mut random);
        table.spec.row_crc = true;
        table
    });
    common::load(&store, &tables, &LoadOptions::default());
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let flip = |table: &Table, id: u64| {
        let name = &*table.spec.name;
        let (generation, index) = store.generation(name).unwrap();
        let rank = store.ranks(name).unwrap().map_or(id, |ranks| ranks.get(id).unwrap());
        let at = generation.row(index, rank).unwrap();
        let at = at.lba * 512 + u64::from(at.byte) + table.row_bytes() as u64 - 1;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        rank
    };
    let refused = |done: Result<usize, StoreError>, table: &Table, wanted: u64| {
        let Err(StoreError::RowDamaged { table: name, rank, drive }) = done else { panic!("{done:?}") };
        assert_eq!((&name, rank, drive), (&table.spec.name, wanted, store.drives()[0].clone().unwrap()));
    };
    let ranks_of = |name: &str, ids: [u64; 2]| {
        let ranks = store.ranks(name).unwrap();
        let mut found = ids.map(|id| ranks.as_ref().map_or(id, |ranks| ranks.get(id).unwrap()));
        found.sort_unstable();
        found
    };
    for (turn, (which, id)) in [(0, 2999), (1, 17), (0, 0), (1, 39)].into_iter().enumerate() {
        let other = [7, 8 + turn as u64];
        store.update("small", &other, &[turn as u8; 200]).unwrap();
        let free = store.free_bytes();
        let rank = flip(&tables[which], id);
        refused(store.compact(0), &tables[which], rank);
        assert_eq!((store.pending_updates(0).unwrap().is_some(), store.free_bytes()), (true, free));
        flip(&tables[which], id);
        assert!(store.compact(0).unwrap() > 0);
        // The row itself is replaced: whatever it was read as, it goes.
        flip(&tables[which], id);
        let bytes = tables[which].row_bytes();
        store.update(&tables[which].spec.name.clone(), &[id], &vec![9; bytes]).unwrap();
        assert!(store.compact(0).unwrap() > 0);
        tables[which].rows[id as usize * bytes..][..bytes].fill(9);
        // Many rows at once.
        let rank = flip(&tables[which], id);
        refused(
            store.replace_rows(0, "small", &ranks_of("small", other), &|_, row| row.fill(77)),
            &tables[which],
            rank,
        );
        flip(&tables[which], id);
        store.replace_rows(0, "small", &ranks_of("small", other), &|_, row| row.fill(77)).unwrap();
        for id in other {
            tables[0].rows[id as usize * 100..][..100].fill(77);
        }
        for table in &tables {
            assert!(store.verify(&table.spec.name, &mut |_| ControlFlow::Continue(())).unwrap().is_sound());
            assert_eq!(all(&store, table), rows_of(table));
        }
    }
}

/// Sixteen keys, half of which are created, are always updated together, all elements to the number of the update: a look-up sees one
/// number in all of them, also while their table is written anew and taken up.
#[test]
fn look_ups_see_whole_creations_in_order() {
    const UPDATES: u64 = 200;
    let (_drives, store) = store();
    let spec = TableSpec { hot_rows: 50, ..TableSpec::new("t", 400, 64, DType::F32) };
    let numbers = (0..400).map(|i| i * 1_000_003).collect();
    let kind = KeyKind::U64;
    let fingerprint = FingerprintWidth::Bits32;
    let order = RowOrder::Given;
    let keys = Some(Keys { kind, fingerprint, order, stored: true, numbers });
    common::load(&store, &[Table { rows: vec![0; 400 * 256], ranks: None, keys, spec }], &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(50 * 256)).unwrap();
    let options = PlanOptions::default().with_max(16, 16).with_slots(2);
    let plan = host.plan(&[Feature::new("f", "t")], options).unwrap();
    let ids: Vec<u64> = (0..16).map(|i| i * 25 * 1_000_003 + i % 2).collect();
    let done = AtomicBool::new(false);
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut slot = plan.slot().unwrap();
                    let mut rows = vec![0f32; 1024];
                    let mut last = 0;
                    loop {
                        let ends = done.load(Ordering::Acquire);
                        let least = acknowledged.load(Ordering::Acquire);
                        slot.lookup(&Batch::new(&ids, 16), &mut Output::new(OutputRows::F32(&mut rows), 64)).unwrap();
                        let number = rows[0] as u64;
                        assert!(rows.iter().all(|&value| value == number as f32), "{rows:?}");
                        assert!(number >= least.max(last), "{number} after {least} and {last}");
                        last = number;
                        if ends {
                            return last;
                        }
                    }
                })
            })
            .collect();
        for number in 1..=UPDATES {
            let rows: Vec<u8> = (0..17 * 64).flat_map(|_| (number as f32).to_le_bytes()).collect();
            // One more, that is new each time.
            let keys = [&ids[..], &[number * 1_000_003 + 7]].concat();
            store.update_with("t", &keys, &rows, &creating()).unwrap();
            if number.is_multiple_of(100) {
                store.compact(0).unwrap();
                let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
                assert!(host.adopt(upcoming, Duration::from_secs(60)).unwrap());
            }
            acknowledged.store(number, Ordering::Release);
        }
        done.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), UPDATES));
    });
    assert_eq!(store.table("t").unwrap().rows, 400 + 8 + UPDATES);
}
