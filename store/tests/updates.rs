//! Updated rows: seen by look-ups, scans and whoever opens the store next; whole, in order, or refused.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Keys, Table};
use warprow_layout::{FormatOptions, VolumeError, row_crc};
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions, Pooling, PrepareOptions,
};
use warprow_soft_controller::{Fault, Rule, SoftController};
use warprow_spec::{NvmOpcode, Status, StatusCode};
use warprow_store::{
    DType, FingerprintWidth, KeyKind, LoadOptions, OpenOptions, Ranks, RowOrder, Store, StoreError, TableSpec,
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

/// Changes random rows of a table, in the store and in the model.
fn update(store: &Store, table: &mut Table, count: usize, random: &mut fastrand::Rng) {
    let bytes = table.row_bytes();
    let ids: Vec<u64> = (0..count).map(|_| random.u64(..table.spec.rows)).collect();
    let mut rows = vec![0; count * bytes];
    random.fill(&mut rows);
    // Numbers, so that sums can be compared.
    if table.spec.dtype == DType::F32 {
        rows.chunks_mut(4).for_each(|element| element.copy_from_slice(&random.f32().to_le_bytes()));
    }
    store.update(&table.spec.name, &ids, &rows).unwrap();
    for (&id, row) in ids.iter().zip(rows.chunks(bytes)) {
        table.rows[id as usize * bytes..][..bytes].copy_from_slice(row);
    }
}

fn scanned(store: &Store, table: &Table) {
    let name = &table.spec.name;
    let ids = store.ranks(name).unwrap().map(|ranks| ranks.inverse());
    let mut rows = 0;
    store
        .scan(name, 0..u64::MAX, &mut |rank, row| {
            let id = ids.as_ref().map_or(rank, |ids| ids.get(rank).unwrap());
            assert_eq!(row, table.row(id), "table {name}, id {id}");
            rows += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(rows, table.spec.rows);
}

/// Looks random ids up in all tables, unpooled in their own type, and compares every byte.
fn looked_up(host: &HostExecutor, tables: &[Table], random: &mut fastrand::Rng) {
    for table in tables {
        let options = PlanOptions::default().with_max(64, 300).with_out(DType::U8);
        let plan = host.plan(&[Feature::new("f", &*table.spec.name)], options).unwrap();
        let ids: Vec<i64> = (0..300).map(|_| random.i64(0..table.spec.rows as i64)).collect();
        let mut rows = vec![0; ids.len() * plan.width()];
        let mut out = Output::new(OutputRows::U8(&mut rows), plan.width());
        let report = plan.slot().unwrap().lookup(&Batch::new(&ids, 60), &mut out).unwrap();
        assert_eq!(report.ids, report.ids_dram + report.ids_ssd);
        assert_eq!(report.unique, report.rows_dram + report.rows_ssd);
        for (&id, row) in ids.iter().zip(rows.chunks(plan.width())) {
            assert_eq!(row, table.row(id as u64), "table {}, id {id}", table.spec.name);
        }
    }
}

fn bytes(name: &str, rows: u64, dim: u32, random: &mut fastrand::Rng) -> Table {
    Table::random(name, rows, dim, DType::U8, random)
}

#[test]
fn updates_are_seen_by_everybody_and_survive_opening() {
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (drives, mut store) = store();
        let mut tables = vec![
            bytes("a", 2000, 64, &mut random),
            bytes("b", 500, 1200, &mut random),
            bytes("c", 3000, 100, &mut random),
        ];
        common::load(&store, &tables, &LoadOptions::default());
        for turn in 0..6 {
            let dram = random.u64(..500_000);
            let host =
                HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(dram).with_checked_rows()).unwrap();
            for _ in 0..4 {
                let table = random.usize(..3);
                let count = [1, 3, 64, 400][random.usize(..4)];
                update(&store, &mut tables[table], count, &mut random);
                looked_up(&host, &tables, &mut random);
            }
            tables.iter().for_each(|table| scanned(&store, table));
            if turn % 2 == 1 {
                drop((host, store));
                let options = OpenOptions::default();
                let read_only = open(&drives, &options.clone().with_read_only());
                tables.iter().for_each(|table| scanned(&read_only, table));
                drop(read_only);
                store = open(&drives, &options);
            }
        }
    }
}

#[test]
fn compaction_changes_no_row_for_anybody() {
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (drives, mut store) = store();
        let mut tables = vec![bytes("a", 2000, 64, &mut random), bytes("b", 500, 1200, &mut random)];
        common::load(&store, &tables, &LoadOptions::default());
        let generation = store.generations()[0].id;
        for _ in 0..4 {
            let attach = |store: &Store, random: &mut fastrand::Rng| {
                let options = HostOptions::default().with_dram_bytes(random.u64(..300_000)).with_checked_rows();
                HostExecutor::attach(store, options).unwrap()
            };
            // One goes on with the old chunks, one goes over to the new.
            let old = attach(&store, &mut random);
            let new = attach(&store, &mut random);
            for turn in 0..4 {
                (0..2).for_each(|table| update(&store, &mut tables[table], 1 + 70 * turn, &mut random));
                let copied = store.compact(generation).unwrap();
                assert!(copied > 0);
                assert_eq!(store.compact(generation).unwrap(), 0, "nothing is left to do");
                update(&store, &mut tables[0], turn, &mut random);
                let attached = attach(&store, &mut random);
                let upcoming = new.prepare(&PrepareOptions::default()).unwrap();
                update(&store, &mut tables[1], 3, &mut random);
                assert!(new.adopt(upcoming, Duration::from_secs(10)).unwrap());
                [&old, &new, &attached].iter().for_each(|host| looked_up(host, &tables, &mut random));
                tables.iter().for_each(|table| scanned(&store, table));
                for table in &tables {
                    let verified = store.verify(&table.spec.name, &mut |_| ControlFlow::Continue(())).unwrap();
                    assert!(verified.is_sound(), "{verified:?}");
                }
            }
            let held = store.free_bytes();
            drop((old, new));
            assert!(store.free_bytes() > held, "the old chunks are free");
            drop(store);
            store = open(&drives, &OpenOptions::default());
            tables.iter().for_each(|table| scanned(&store, table));
        }
    }
}

#[test]
fn a_full_overlay_is_emptied_by_compaction() {
    let (drives, store) = store();
    let mut random = fastrand::Rng::with_seed(8);
    let mut table = bytes("t", 1000, 64, &mut random);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    drop(store);
    let store = open(&drives, &OpenOptions::default().with_overlay_bytes(20_000));
    let mut compactions = 0;
    for id in 0..1000u64 {
        let row = [id as u8; 64];
        if let Err(error) = store.update("t", &[id], &row) {
            assert!(matches!(error, StoreError::OverlayFull { .. }), "{error}");
            store.compact(0).unwrap();
            store.update("t", &[id], &row).unwrap();
            compactions += 1;
        }
        table.rows[id as usize * 64..][..64].copy_from_slice(&row);
    }
    assert!((5..15).contains(&compactions), "{compactions}");
    scanned(&store, &table);
}

#[test]
fn bags_are_summed_from_updated_rows() {
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(9);
    let mut table = Table::random("t", 1000, 32, DType::F32, &mut random);
    table.rows.chunks_mut(4).for_each(|element| element.copy_from_slice(&random.f32().to_le_bytes()));
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(20_000)).unwrap();
    let plan =
        host.plan(&[Feature::new("f", "t").pooling(Pooling::Mean)], PlanOptions::default().with_max(64, 640)).unwrap();
    let mut slot = plan.slot().unwrap();
    for _ in 0..20 {
        update(&store, &mut table, 40, &mut random);
        let ids: Vec<i64> = (0..640).map(|_| random.i64(0..1000)).collect();
        let mut means = vec![0.0; 64 * 32];
        slot.lookup(&Batch::new(&ids, 64), &mut Output::new(OutputRows::F32(&mut means), 32)).unwrap();
        for (bag, mean) in ids.chunks(10).zip(means.chunks(32)) {
            let mut sum = [0f32; 32];
            for &id in bag {
                let row = common::widen(DType::F32, table.row(id as u64));
                sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            sum.iter_mut().for_each(|sum| *sum /= 10.0);
            assert_eq!(mean, sum);
        }
    }
}

/// Sixteen rows are always updated together, all elements to the number of the update: a look-up sees one number in all of them,
/// one that was acknowledged when it began or later, and none before what it saw last.
#[test]
fn look_ups_see_whole_updates_in_order() {
    const UPDATES: u64 = 3000;
    let (_drives, store) = store();
    let spec = TableSpec { hot_rows: 50, ..TableSpec::new("t", 400, 64, DType::F32) };
    let table = Table { rows: vec![0; 400 * 256], ranks: None, keys: None, spec };
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(50 * 256)).unwrap();
    let options = PlanOptions::default().with_max(16, 16).with_slots(2);
    let plan = host.plan(&[Feature::new("f", "t")], options).unwrap();
    let ids: Vec<u64> = (0..16).map(|i| i * 25).collect();
    let done = AtomicBool::new(false);
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut slot = plan.slot().unwrap();
                    let mut rows = vec![0f32; 1024];
                    let mut last = 0;
                    let mut seen = 0;
                    while !done.load(Ordering::Acquire) {
                        let least = acknowledged.load(Ordering::Acquire).max(last);
                        slot.lookup(&Batch::new(&ids, 16), &mut Output::new(OutputRows::F32(&mut rows), 64)).unwrap();
                        let number = rows[0] as u64;
                        assert!(rows.iter().all(|&value| value == number as f32), "{rows:?}");
                        assert!(number >= least, "{number} after {least}");
                        seen += u64::from(number != last);
                        last = number;
                    }
                    seen
                })
            })
            .collect();
        for number in 1..=UPDATES {
            let rows: Vec<u8> = (0..1024).flat_map(|_| (number as f32).to_le_bytes()).collect();
            store.update("t", &ids, &rows).unwrap();
            if number % 500 == 0 {
                store.compact(0).unwrap();
                let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
                assert!(host.adopt(upcoming, Duration::from_secs(10)).unwrap());
            }
            acknowledged.store(number, Ordering::Release);
        }
        done.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| assert!(reader.join().unwrap() > 20));
    });
}

#[test]
fn what_cannot_be_updated_is_refused_with_nothing_changed() {
    let (drives, store) = store();
    let mut random = fastrand::Rng::with_seed(2);
    let mut table = bytes("t", 1000, 64, &mut random);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    assert!(matches!(store.update("x", &[], &[]), Err(StoreError::NoSuchTable { .. })));
    let short = store.update("t", &[1, 2], &[0; 127]);
    assert!(matches!(short, Err(StoreError::UpdateRows { ids: 2, row_bytes: 64, given: 127, .. })), "{short:?}");
    let absent = store.update("t", &[1, 1000, 7, u64::MAX], &[0; 256]);
    assert!(
        matches!(&absent, Err(StoreError::NoSuchRow { rows: 1000, ids, .. }) if *ids == [1000, u64::MAX]),
        "{absent:?}"
    );
    scanned(&store, &table);
    drop(store);
    let store = open(&drives, &OpenOptions::default().with_read_only());
    assert!(matches!(store.update("t", &[1], &[0; 64]), Err(StoreError::Volume(VolumeError::ReadOnly { .. }))));
    drop(store);
    let store = open(&drives, &OpenOptions::default().with_overlay_bytes(20_000));
    let mut updated = 0;
    let full = loop {
        let rows = [updated as u8; 64];
        match store.update("t", &[updated], &rows) {
            Ok(_) => table.rows[updated as usize * 64..][..64].copy_from_slice(&rows),
            Err(error) => break error,
        }
        updated += 1;
    };
    assert!(matches!(full, StoreError::OverlayFull { bound: 20_000, .. }), "{full:?}");
    assert!((100..200).contains(&updated), "{updated}");
    scanned(&store, &table);
}

#[test]
fn a_generation_that_stands_by_is_updated_too_and_a_dropped_one_no_more() {
    let (drives, store) = store();
    let mut random = fastrand::Rng::with_seed(3);
    let mut first = bytes("t", 300, 64, &mut random);
    let second = bytes("t", 300, 64, &mut random);
    common::load(&store, std::slice::from_ref(&first), &LoadOptions::default());
    common::load(&store, std::slice::from_ref(&second), &LoadOptions::default().with_standby());
    let ids: Vec<u64> = store.generations().iter().map(|generation| generation.id).collect();
    update(&store, &mut first, 10, &mut random);
    let mut second = second;
    store.update_generation(ids[1], "t", &[5], &[9; 64]).unwrap();
    second.rows[5 * 64..6 * 64].fill(9);
    scanned(&store, &first);
    store.switch(ids[1], false).unwrap();
    scanned(&store, &second);
    drop(store);
    let store = open(&drives, &OpenOptions::default());
    scanned(&store, &second);
    let free = store.free_bytes();
    store.drop_generation(ids[0]).unwrap();
    assert_eq!(store.free_bytes(), free + (3 + 1) * (1 << 20), "chunks of rows on three drives, and one of the log");
    assert!(store.update_generation(ids[0], "t", &[5], &[9; 64]).is_err());
    scanned(&store, &second);
}

#[test]
fn drives_come_and_go_under_hosts_that_see_every_update() {
    let (drives, store) = store();
    let mut random = fastrand::Rng::with_seed(12);
    let mut tables = vec![bytes("a", 60_000, 64, &mut random), bytes("b", 3000, 1200, &mut random)];
    common::load(&store, &tables, &LoadOptions::default());
    let options = OpenOptions::default();
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(100_000)).unwrap();
    update(&store, &mut tables[0], 50, &mut random);
    // The host reads what lies on it: it stays.
    let in_use = store.remove_drive("drive40", &options, &mut |_, _| ControlFlow::Continue(()));
    assert!(matches!(in_use, Err(StoreError::Volume(VolumeError::MemberInUse { .. }))), "{in_use:?}");
    update(&store, &mut tables[0], 50, &mut random);
    looked_up(&host, &tables, &mut random);
    let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
    assert!(host.adopt(upcoming, Duration::from_secs(10)).unwrap());
    update(&store, &mut tables[1], 50, &mut random);
    looked_up(&host, &tables, &mut random);
    let removed = store.remove_drive("drive40", &options, &mut |_, _| ControlFlow::Continue(())).unwrap();
    looked_up(&host, &tables, &mut random);
    assert!(matches!(store.update("a", &[1], &[0; 64]), Err(StoreError::Volume(VolumeError::MembersChanged))));
    tables.iter().for_each(|table| scanned(&removed, table));
    drop((host, store));
    update(&removed, &mut tables[0], 50, &mut random);
    let another = common::drive("drive50", 50 << 20, 512);
    let device = warprow_store::Device::new(another.clone(), 1);
    // Stopped before all of its share was moved, the store goes on with the drive all the same.
    let joined = removed.add_drive(&device, false, &options, &mut |_, _| ControlFlow::Break(())).unwrap();
    assert!(matches!(joined.moved, Err(StoreError::Volume(VolumeError::Stopped))), "{:?}", joined.moved);
    update(&joined.store, &mut tables[0], 50, &mut random);
    let refused = removed.update("a", &[1], &[0; 64]);
    assert!(matches!(refused, Err(StoreError::Volume(VolumeError::MembersChanged))), "{refused:?}");
    let joined = joined.store.add_drive(&device, false, &options, &mut |_, _| ControlFlow::Continue(())).unwrap();
    joined.moved.unwrap();
    let added = joined.store;
    update(&added, &mut tables[1], 50, &mut random);
    let host = HostExecutor::attach(&added, HostOptions::default()).unwrap();
    looked_up(&host, &tables, &mut random);
    drop((host, added, removed));
    let store = open(&[drives[2].clone(), another, drives[0].clone()], &options);
    tables.iter().for_each(|table| scanned(&store, table));
}

/// The LBAs of the first unit of a log's first chunk, and the drive that has it.
fn first_of_log(store: &Store, table: &str) -> (usize, std::ops::Range<u64>) {
    let (generation, _) = store.generation(table).unwrap();
    let chunk = generation.log[0].chunk;
    let placement = &generation.placement;
    let first = placement.base_lba() + (u64::from(chunk.chunk()) << placement.chunk_lba_shift());
    (usize::from(chunk.drive()), first..first + 8)
}

/// However many tables a generation has, and whoever asks, its log is read once when that is damaged.
#[test]
fn a_damaged_log_is_read_once_and_harms_no_other_generation() {
    let (drives, store) = store();
    let mut random = fastrand::Rng::with_seed(13);
    let mut tables: Vec<Table> = ["a", "b", "c", "d"].iter().map(|name| bytes(name, 300, 64, &mut random)).collect();
    common::load(&store, &tables[..3], &LoadOptions::default());
    common::load(&store, &tables[3..], &LoadOptions::default());
    (0..3).for_each(|_| update(&store, &mut tables[0], 100, &mut random));
    update(&store, &mut tables[3], 10, &mut random);
    let (drive, lbas) = first_of_log(&store, "a");
    drop(store);
    let store = open(&drives, &OpenOptions::default());
    let unreadable = Fault::Status(Status::from(StatusCode::UnrecoveredReadError));
    let rule = drives[drive].faults().inject(Rule::new(unreadable).io(NvmOpcode::READ).lbas(lbas).always());
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let once = drives[drive].faults().fired(rule);
    assert!((1..=4).contains(&once), "{once} reads");
    let damaged = |result: Result<(), StoreError>| {
        assert!(matches!(result, Err(StoreError::Volume(VolumeError::LogDamaged { .. }))), "{result:?}");
    };
    for table in &tables[..3] {
        let name = &table.spec.name;
        damaged(store.scan(name, 0..1, &mut |_, _| ControlFlow::Continue(())));
        damaged(store.update(name, &[1], &[0; 64]).map(drop));
        let options = PlanOptions::default().with_max(8, 8).with_out(DType::U8);
        damaged(host.plan(&[Feature::new("f", &**name)], options).map(drop));
    }
    damaged(store.compact(0).map(drop));
    HostExecutor::attach(&store, HostOptions::default()).unwrap();
    looked_up(&host, &tables[3..], &mut random);
    update(&store, &mut tables[3], 10, &mut random);
    scanned(&store, &tables[3]);
    assert_eq!(drives[drive].faults().fired(rule), once);
}

#[test]
fn checksums_are_those_of_the_rows_that_are_read() {
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(14);
    let mut table = bytes("t", 700, 64, &mut random);
    table.spec.row_crc = true;
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    for compacted in [false, true] {
        update(&store, &mut table, 90, &mut random);
        if compacted {
            store.compact(0).unwrap();
        }
        let crcs = store.row_crcs("t").unwrap().unwrap();
        let mut rows = 0;
        store
            .scan("t", 0..u64::MAX, &mut |rank, row| {
                assert_eq!(crcs[rank as usize], row_crc(rank, row), "rank {rank}");
                rows += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(rows, 700);
    }
}

/// Updates of the same rows all the time take no more memory than the rows do.
#[test]
fn rows_that_are_updated_again_do_not_fill_the_overlay() {
    let (drives, store) = store();
    let mut random = fastrand::Rng::with_seed(15);
    let mut table = bytes("t", 1000, 64, &mut random);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    drop(store);
    let store = open(&drives, &OpenOptions::default().with_overlay_bytes(60_000));
    for turn in 0..400u64 {
        let ids: Vec<u64> = (0..40).map(|id| (id * 7 + turn % 3) % 120).collect();
        let rows: Vec<u8> = ids.iter().flat_map(|id| [(id + turn) as u8; 64]).collect();
        store.update("t", &ids, &rows).unwrap();
        for (&id, row) in ids.iter().zip(rows.chunks(64)) {
            table.rows[id as usize * 64..][..64].copy_from_slice(row);
        }
    }
    scanned(&store, &table);
}

/// Rows of a table that has keys are updated by these, over replay and compaction; what it does not have is refused.
#[test]
fn rows_are_updated_by_their_keys() {
    for order in
        [RowOrder::Positions, RowOrder::Given, RowOrder::Ranks(Ranks::by_hotness(&(0..2000).collect::<Vec<_>>()))]
    {
        let (drives, mut store) = store();
        let mut random = fastrand::Rng::with_seed(16);
        let mut table = bytes("t", 2000, 64, &mut random);
        table.spec.row_crc = true;
        let numbers: Vec<i128> = (0..2000).map(|i| (i128::from(random.i64(..)) & !0xfff) + i).collect();
        let fingerprint = FingerprintWidth::Bits8;
        table.keys = Some(Keys {
            kind: KeyKind::I64,
            fingerprint,
            order: order.clone(),
            stored: true,
            numbers: numbers.clone(),
        });
        common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
        let change = |store: &Store, table: &mut Table, count: usize, random: &mut fastrand::Rng| {
            let positions: Vec<usize> = (0..count).map(|_| random.usize(..2000)).collect();
            let keys: Vec<u64> = positions.iter().map(|&position| numbers[position] as i64 as u64).collect();
            let mut rows = vec![0; count * 64];
            random.fill(&mut rows);
            store.update("t", &keys, &rows).unwrap();
            for (&position, row) in positions.iter().zip(rows.chunks(64)) {
                table.rows[position * 64..][..64].copy_from_slice(row);
            }
        };
        let check = |store: &Store, table: &Table| {
            let host = HostExecutor::attach(store, HostOptions::default().with_dram_bytes(30_000).with_checked_keys())
                .unwrap();
            let options = PlanOptions::default().with_max(1, 2000).with_out(DType::U8);
            let plan = host.plan(&[Feature::new("f", "t")], options).unwrap();
            let ids: Vec<i64> = numbers.iter().map(|&number| number as i64).collect();
            let mut rows = vec![0; ids.len() * 64];
            plan.slot().unwrap().lookup(&Batch::new(&ids, 1), &mut Output::new(OutputRows::U8(&mut rows), 64)).unwrap();
            assert_eq!(rows, table.rows);
        };
        for turn in 0..4 {
            change(&store, &mut table, 1 + 100 * turn, &mut random);
            check(&store, &table);
            let absent = store.update("t", &[numbers[3] as i64 as u64, 7, 8], &[0; 192]);
            assert!(matches!(&absent, Err(StoreError::NoSuchKey { keys, .. }) if *keys == ["7", "8"]), "{absent:?}");
            if turn % 2 == 1 {
                store.compact(0).unwrap();
                check(&store, &table);
                assert!(store.verify("t", &mut |_| ControlFlow::Continue(())).unwrap().is_sound());
            }
            drop(store);
            store = open(&drives, &OpenOptions::default());
            check(&store, &table);
        }
    }
}

#[test]
fn keys_that_are_not_stored_are_not_updated() {
    let (_drives, store) = store();
    let mut random = fastrand::Rng::with_seed(17);
    let mut table = bytes("t", 300, 64, &mut random);
    let numbers = (0..300).map(|i| i * 1000).collect();
    let kind = KeyKind::U64;
    let fingerprint = FingerprintWidth::Bits32;
    let order = RowOrder::Positions;
    table.keys = Some(Keys { kind, fingerprint, order, stored: false, numbers });
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    let refused = store.update("t", &[1000], &[0; 64]);
    assert!(matches!(refused, Err(StoreError::NotUpdatable { .. })), "{refused:?}");
}
