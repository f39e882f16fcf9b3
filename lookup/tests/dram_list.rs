//! Rows that were listed for DRAM: look-ups find them there, and give the rows that they would give without a list.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Keys, Table};
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, LookupReport, Output, OutputRows, PlanOptions, Pooling, PrepareOptions,
    Slot,
};
use warprow_store::{
    AttachedTable, CreateDrive, DType, DamageKind, Device, DriveAddress, FingerprintWidth, KeyKind, LoadOptions,
    OpenOptions, Ranks, RerankOptions, RowOrder, Store, StoreError, TableSpec, UpdateOptions,
};

const ROWS: u64 = 3000;
const DIM: usize = 24;
const NAMES: [&str; 3] = ["plain", "permuted", "sparse"];

/// What the ids of each table stand for.
type Content = [BTreeMap<i64, Vec<u8>>; 3];

fn row_of(random: &mut fastrand::Rng) -> Vec<u8> {
    (0..DIM).map(|_| random.u8(..)).collect()
}

/// Three tables of random content: in the order of ids, in another order, and by sparse keys.
fn tables(random: &mut fastrand::Rng) -> (Vec<Table>, Content) {
    let mut content = Content::default();
    let tables = (0..3).map(|table| {
        let ids: Vec<i64> = (0..ROWS as i64).map(|n| if table == 2 { n * 1_000_003 - 77 } else { n }).collect();
        let mut rows = Vec::new();
        for &id in &ids {
            let row = row_of(random);
            rows.extend_from_slice(&row);
            content[table].insert(id, row);
        }
        let mut spec = TableSpec::new(NAMES[table], ROWS, DIM as u32, DType::U8);
        spec.row_crc = random.bool();
        let ranks = Ranks::by_hotness(&(0..ROWS).map(|_| random.u64(..50)).collect::<Vec<_>>());
        match table {
            0 => Table { spec, rows, ranks: None, keys: None },
            1 => Table { spec: TableSpec { permuted: true, ..spec }, rows, ranks: Some(ranks), keys: None },
            _ => {
                let numbers = ids.iter().map(|&id| id.into()).collect();
                let (order, fingerprint) = (RowOrder::Ranks(ranks), FingerprintWidth::Bits32);
                let keys = Keys { numbers, kind: KeyKind::I64, fingerprint, order, stored: true };
                Table { spec, rows, ranks: None, keys: Some(keys) }
            }
        }
    });
    (tables.collect(), content)
}

fn features() -> [Feature; 3] {
    NAMES.map(|name| Feature::new(name, name))
}

/// Different ids of a table, in random order.
fn some_ids(random: &mut fastrand::Rng, content: &BTreeMap<i64, Vec<u8>>, many: usize) -> Vec<i64> {
    let mut ids: Vec<i64> = content.keys().copied().collect();
    random.shuffle(&mut ids);
    ids.truncate(many);
    ids
}

fn raw(ids: &[i64]) -> Vec<u64> {
    ids.iter().map(|&id| id as u64).collect()
}

/// Looks `ids` of each table up, as many of each, and compares every row.
fn look_up(slot: &mut Slot, content: &Content, ids: &[Vec<i64>; 3]) -> LookupReport {
    let all = ids.concat();
    let mut rows = vec![7u8; all.len() * DIM];
    let mut mask = vec![7u8; all.len()];
    let mut output = Output::new(OutputRows::U8(&mut rows), DIM).with_mask(&mut mask);
    let report = slot.lookup(&Batch::new(&all, ids[0].len()), &mut output).unwrap();
    let of = |at: usize| (at / ids[0].len(), all[at]);
    for (at, row) in rows.chunks(DIM).enumerate() {
        let (table, id) = of(at);
        let want = content[table].get(&id);
        assert_eq!(row, want.map_or(&[0; DIM][..], |row| row), "table {table}, id {id}");
        assert_eq!(mask[at], u8::from(want.is_some()), "table {table}, id {id}");
    }
    assert_eq!(report.ids, report.missing + report.ids_dram + report.ids_cached + report.ids_ssd, "{report:?}");
    assert_eq!(report.unique, report.rows_dram + report.rows_cached + report.rows_ssd, "{report:?}");
    report
}

/// All ids of each table, and one that none has.
fn all_ids(content: &Content) -> [Vec<i64>; 3] {
    [0, 1, 2].map(|table| content[table].keys().copied().chain([-5]).collect())
}

fn slot_of(host: &HostExecutor, ids: usize) -> Slot {
    host.plan(&features(), PlanOptions::default().with_out(DType::U8).with_max(ids, 3 * ids)).unwrap().slot().unwrap()
}

#[test]
fn listed_rows_lie_in_dram_and_every_row_is_right() {
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(2, 64 << 20, if seed % 2 == 0 { 512 } else { 4096 });
        let (tables, content) = tables(&mut random);
        common::load(&store, &tables, &LoadOptions::default());
        let ids = all_ids(&content);
        let bytes = 3 * 600 * DIM as u64;
        let options = HostOptions::default().with_dram_bytes(bytes);
        let options = if seed == 3 { options.with_checked_rows().with_checked_keys() } else { options };
        // Without lists: the first ranks.
        let before = HostExecutor::attach(&store, options.clone()).unwrap();
        let found = look_up(&mut slot_of(&before, ids[0].len()), &content, &ids);
        assert_eq!(found.rows_dram, 3 * 600, "seed {seed}");
        // One table after another gets a list; of each other the list stays.
        let mut lists = Vec::new();
        for (table, name) in NAMES.iter().enumerate() {
            let listed = some_ids(&mut random, &content[table], 600);
            let mut given = raw(&listed);
            given.extend(given[..5].to_vec());
            given.push(if table == 2 { 1 } else { ROWS + 9 });
            let report = store.rerank(&RerankOptions::new(*name).with_ids(&given)).unwrap();
            let got = (report.listed, report.before, report.added, report.missing, report.repeated);
            assert_eq!(got, (600, None, 600, 1, 5), "seed {seed}");
            assert_eq!(store.dram_list(name).unwrap().unwrap().len(), 600);
            lists.push(listed);
        }
        let host = HostExecutor::attach(&store, options.clone()).unwrap();
        let mut slot = slot_of(&host, ids[0].len());
        let found = look_up(&mut slot, &content, &ids);
        assert_eq!((found.rows_dram, found.rows_ssd), (3 * 600, 3 * (ROWS - 600)), "seed {seed}");
        let listed = [lists[0].clone(), lists[1].clone(), lists[2].clone()];
        let found = look_up(&mut slot, &content, &listed);
        assert_eq!((found.rows_dram, found.rows_ssd), (3 * 600, 0), "seed {seed}: listed rows are in DRAM");
        assert_eq!(host.hot_rows("permuted"), Some(600));
        // Half of the memory holds the first half of each list.
        let half = HostExecutor::attach(&store, options.clone().with_dram_bytes(bytes / 2)).unwrap();
        let found = look_up(&mut slot_of(&half, 300), &content, &listed.clone().map(|list| list[..300].to_vec()));
        assert_eq!((found.rows_dram, found.rows_ssd), (3 * 300, 0), "seed {seed}");
        // More memory holds others besides, and all memory all rows.
        for (share, rows) in [(2, 3 * 1200), (5, 3 * ROWS)] {
            let more = HostExecutor::attach(&store, options.clone().with_dram_bytes(bytes * share)).unwrap();
            let found = look_up(&mut slot_of(&more, ids[0].len()), &content, &ids);
            assert_eq!(found.rows_dram, rows, "seed {seed}");
            let found = look_up(&mut slot_of(&more, 600), &content, &listed);
            assert_eq!(found.rows_ssd, 0, "seed {seed}");
        }
        // An executor that was attached before still has the first ranks, and sees none of this.
        let found = look_up(&mut slot_of(&before, ids[0].len()), &content, &ids);
        assert_eq!(found.rows_dram, 3 * 600, "seed {seed}");
        // Opened anew, the lists are there; taken back, the first ranks are.
        assert_eq!(store.rerank(&RerankOptions::new("plain")).unwrap().before, Some(600));
        assert_eq!((store.dram_list("plain").unwrap(), store.dram_list("sparse").unwrap().unwrap().len()), (None, 600));
        for name in NAMES {
            store.rerank(&RerankOptions::new(name)).unwrap();
        }
        let chunks = store.free_bytes();
        store.rerank(&RerankOptions::new("plain").with_ranks(&[17])).unwrap();
        assert!(store.free_bytes() < chunks);
        store.rerank(&RerankOptions::new("plain")).unwrap();
        assert_eq!(store.free_bytes(), chunks, "an empty list takes no space");
    }
}

#[test]
fn pooled_rows_and_prefetched_ones_are_right_too() {
    let mut random = fastrand::Rng::with_seed(11);
    let (_drives, store) = common::store(1, 64 << 20, 512);
    let (tables, content) = tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    for (name, content) in NAMES.iter().zip(&content) {
        let listed = raw(&some_ids(&mut random, content, 500));
        store.rerank(&RerankOptions::new(*name).with_ids(&listed)).unwrap();
    }
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(3 * 500 * DIM as u64)).unwrap();
    let features = features().map(|feature| feature.pooling(Pooling::Sum));
    let plan = host.plan(&features, PlanOptions::default().with_max(100, 1200).with_prefetch()).unwrap();
    let mut slot = plan.slot().unwrap();
    for round in 0..20 {
        let ids: Vec<i64> = content.iter().flat_map(|content| some_ids(&mut random, content, 400)).collect();
        let mut sums = vec![0f32; 100 * 3 * DIM];
        let offsets: Vec<i64> = (0..300).map(|bag| bag * 4).collect();
        let batch = Batch::new(&ids, 100).with_offsets(&offsets);
        let mut output = Output::new(OutputRows::F32(&mut sums), 3 * DIM);
        let report = match round % 2 {
            0 => slot.lookup(&batch, &mut output).unwrap(),
            _ => {
                slot.prefetch(&batch).unwrap();
                slot.lookup_prefetched(&mut output).unwrap()
            }
        };
        assert!(report.rows_dram > 0 && report.rows_ssd > 0, "{report:?}");
        for bag in 0..300 {
            let (table, sample) = (bag / 100, bag % 100);
            for element in 0..DIM {
                let rows = ids[bag * 4..bag * 4 + 4].iter().map(|id| f32::from(content[table][id][element]));
                assert_eq!(
                    sums[sample * 3 * DIM + table * DIM + element],
                    rows.sum::<f32>(),
                    "round {round}, bag {bag}"
                );
            }
        }
    }
}

#[test]
fn a_list_is_adopted_under_look_ups_and_holds_with_updates_and_compactions() {
    let mut random = fastrand::Rng::with_seed(5);
    let (_drives, store) = common::store(2, 64 << 20, 512);
    let (tables, mut content) = tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let options = HostOptions::default().with_dram_bytes(3 * 400 * DIM as u64);
    let host = HostExecutor::attach(&store, options.clone()).unwrap();
    let (stop, looked_up) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let plan = PlanOptions::default().with_out(DType::U8).with_max(200, 600).with_adopt_room();
        let plan = host.plan(&features(), plan).unwrap();
        let (content, stop, looked_up) = (&content, &stop, &looked_up);
        scope.spawn(move || {
            let mut random = fastrand::Rng::with_seed(6);
            let mut slot = plan.slot().unwrap();
            while !stop.load(Ordering::Relaxed) {
                let ids = [0, 1, 2].map(|table| some_ids(&mut random, &content[table], 200));
                look_up(&mut slot, content, &ids);
                looked_up.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..12 {
            let table = round % 3;
            let listed = raw(&some_ids(&mut random, &content[table], 400));
            store.rerank(&RerankOptions::new(NAMES[table]).with_ids(&listed)).unwrap();
            let prepared = host.prepare(&PrepareOptions::default()).unwrap();
            assert!(host.adopt(prepared, Duration::from_secs(20)).unwrap());
            // Look-ups come between one list and the next.
            let before = looked_up.load(Ordering::Relaxed);
            while looked_up.load(Ordering::Relaxed) < before + 2 {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Rows that are listed and updated, before the executor is attached and afterwards.
    let listed = [0, 1, 2].map(|table| some_ids(&mut random, &content[table], 400));
    for (name, listed) in NAMES.iter().zip(&listed) {
        store.rerank(&RerankOptions::new(*name).with_ids(&raw(listed))).unwrap();
    }
    let update = |content: &mut Content, random: &mut fastrand::Rng, range: std::ops::Range<usize>| {
        for (table, listed) in listed.iter().enumerate() {
            let ids = &listed[range.clone()];
            let rows: Vec<Vec<u8>> = ids.iter().map(|_| row_of(random)).collect();
            store.update(NAMES[table], &raw(ids), &rows.concat()).unwrap();
            ids.iter().zip(rows).for_each(|(&id, row)| _ = content[table].insert(id, row));
        }
    };
    update(&mut content, &mut random, 0..50);
    let host = HostExecutor::attach(&store, options.clone()).unwrap();
    let ids = all_ids(&content);
    let mut slot = slot_of(&host, ids[0].len());
    look_up(&mut slot, &content, &ids);
    update(&mut content, &mut random, 25..100);
    look_up(&mut slot, &content, &ids);
    // A compaction leaves ranks as they are, and so the lists; whoever attached before sees the same rows.
    let generation = store.table("plain").unwrap().generation;
    store.compact(generation).unwrap();
    look_up(&mut slot, &content, &ids);
    assert_eq!(store.dram_list("sparse").unwrap().unwrap().len(), 400);
    let compacted = HostExecutor::attach(&store, options.clone()).unwrap();
    let found = look_up(&mut slot_of(&compacted, 400), &content, &listed);
    assert_eq!((found.rows_dram, found.rows_ssd), (3 * 400, 0));
    // Keys that a compaction takes in change ranks: the table's list does not count any more.
    let row = row_of(&mut random);
    store.update_with("sparse", &[5], &row, &UpdateOptions::default().with_created_keys()).unwrap();
    content[2].insert(5, row);
    store.compact(generation).unwrap();
    assert_eq!(store.dram_list("sparse").unwrap(), None);
    let rebuilt = HostExecutor::attach(&store, options.clone()).unwrap();
    let mut ids = all_ids(&content);
    ids[2].pop();
    look_up(&mut slot_of(&rebuilt, ids[0].len()), &content, &ids);
    // Nor does a list of a table that was replaced.
    let (tables, content) = self::tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default().with_replace());
    assert_eq!(NAMES.map(|name| store.dram_list(name).unwrap()), [None, None, None]);
    store.rerank(&RerankOptions::new("plain").with_ranks(&[9, 8])).unwrap();
    let host = HostExecutor::attach(&store, options).unwrap();
    look_up(&mut slot_of(&host, ROWS as usize + 1), &content, &all_ids(&content));
}

/// A store in a file, and the file.
fn in_file(dir: &Path) -> (std::fs::File, Device) {
    let path = dir.join("a.drive");
    let address: DriveAddress = format!("emulated:{},size=64M", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::IfMissing).unwrap();
    (std::fs::File::options().read(true).write(true).open(path).unwrap(), device)
}

/// Where lists begin in a file.
fn lists_in(file: &std::fs::File) -> Vec<u64> {
    let mut all = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    let blocks = all.chunks(512).enumerate().filter(|(_, block)| block.starts_with(b"\x89WPDRAM\n"));
    blocks.map(|(at, _)| at as u64 * 512).collect()
}

#[test]
fn a_damaged_list_is_reported_and_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let (file, device) = in_file(dir.path());
    let store = Store::create(std::slice::from_ref(&device), &Default::default(), &OpenOptions::default()).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let (tables, content) = tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    let listed = some_ids(&mut random, &content[1], 400);
    store.rerank(&RerankOptions::new("permuted").with_ids(&raw(&listed))).unwrap();
    assert!(store.verify_metadata().unwrap().bad.is_empty());
    drop(store);
    let [at] = lists_in(&file)[..] else { panic!("one list") };
    let mut byte = [0];
    file.read_exact_at(&mut byte, at + 500).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at + 500).unwrap();
    let store = Store::open(&[device], &OpenOptions::default()).unwrap();
    let bad = store.verify_metadata().unwrap().bad;
    assert_eq!(bad.len(), 1);
    assert_eq!((bad[0].what, bad[0].table.as_deref()), (DamageKind::DramList, Some("permuted")));
    assert!(matches!(store.dram_list("permuted"), Err(StoreError::DramListDamaged { .. })));
    let options = HostOptions::default().with_dram_bytes(3 * 400 * DIM as u64);
    let host = HostExecutor::attach(&store, options.clone()).unwrap();
    let found = look_up(&mut slot_of(&host, ROWS as usize + 1), &content, &all_ids(&content));
    assert_eq!(found.rows_dram, 3 * 400, "the first ranks");
    // A list of another table leaves it as it is; another list of the table mends it.
    store.rerank(&RerankOptions::new("plain").with_ranks(&[1])).unwrap();
    assert!(matches!(store.dram_list("permuted"), Err(StoreError::DramListDamaged { .. })));
    let report = store.rerank(&RerankOptions::new("permuted").with_ids(&raw(&listed))).unwrap();
    assert_eq!((report.before, report.listed), (None, 400));
    assert!(store.verify_metadata().unwrap().bad.is_empty());
    let host = HostExecutor::attach(&store, options).unwrap();
    let all = [0, 1, 2].map(|_| vec![listed[0]]);
    look_up(&mut slot_of(&host, 1), &content, &all);
}

#[test]
fn what_cannot_be_listed_is_refused_before_anything_is_written() {
    let (_drives, store) = common::store(1, 64 << 20, 512);
    let mut random = fastrand::Rng::with_seed(4);
    let (tables, content) = tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    store.rerank(&RerankOptions::new("plain").with_ranks(&[3, 2, 1])).unwrap();
    let unchanged = || {
        assert_eq!(store.dram_list("plain").unwrap().unwrap(), [3, 2, 1]);
        assert_eq!(store.generations().len(), 1, "the lists are no model");
        assert!(store.hidden_tables().is_empty());
    };
    let refused = store.rerank(&RerankOptions::new("plain").with_ranks(&[1, ROWS, 4]));
    assert!(matches!(refused, Err(StoreError::NoSuchRow { ids, .. }) if ids == [ROWS]));
    assert!(matches!(store.rerank(&RerankOptions::new("absent")), Err(StoreError::NoSuchTable { .. })));
    unchanged();
    // Beside a load, and beside a compaction.
    let spec = TableSpec::new("other", 10, 4, DType::U8);
    let source = &[1u8; 40][..];
    let loads = [warprow_store::TableLoad::new(&spec, &source)];
    let mut asked = 0;
    store
        .load("other", &loads, &LoadOptions::default().with_standby(), &mut |_| {
            let busy = store.rerank(&RerankOptions::new("plain").with_ranks(&[7]));
            assert!(matches!(&busy, Err(StoreError::RerankBusy { by, .. }) if by.contains("load")), "{busy:?}");
            asked += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert!(asked > 0);
    store.drop_generation(store.generations().last().unwrap().id).unwrap();
    let generation = store.table("plain").unwrap().generation;
    let busy = || {
        let busy = store.rerank(&RerankOptions::new("plain").with_ranks(&[7]));
        assert!(matches!(&busy, Err(StoreError::RerankBusy { by, .. }) if by.contains("compacted")), "{busy:?}");
        Ok(())
    };
    let row = content[0][&5].clone();
    store.replace_rows_checked(generation, "plain", &[5], &|_, to| to.copy_from_slice(&row), &|_| busy()).unwrap();
    unchanged();
    // The name of the lists is theirs, and nothing switches to them.
    let named =
        store.load(".dram-lists", &loads, &LoadOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(named.unwrap_err().to_string().contains(".dram-lists"));
    let lists = (1..20)
        .find(|&id| id != generation && store.switch(id, true).is_err_and(|e| e.to_string().contains(".dram-lists")));
    assert!(lists.is_some());
    unchanged();
    look_up(
        &mut slot_of(
            &HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(1000)).unwrap(),
            ROWS as usize + 1,
        ),
        &content,
        &all_ids(&content),
    );
}

/// A file of `rows` rows of 24 bytes, as numpy writes it.
fn npy(path: &Path, rows: &[u8]) {
    let shape = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({}, {DIM}), }}", rows.len() / DIM);
    let padded = (shape.len() + 11).next_multiple_of(64) - 10;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((padded as u16).to_le_bytes());
    bytes.extend(shape.bytes().chain(std::iter::repeat(b' ')).take(padded - 1).chain([b'\n']));
    bytes.extend(rows);
    std::fs::write(path, bytes).unwrap();
}

fn attached(path: &Path, tensor: &str) -> Store {
    let address: DriveAddress = format!("attached:{},tensor={tensor}", path.display()).parse().unwrap();
    let device = Device::open(&address, CreateDrive::Never).unwrap();
    Store::open(&[device], &OpenOptions::default().with_read_only()).unwrap()
}

fn lists_beside(dir: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().path());
    all.filter(|path| path.to_string_lossy().contains("warprow-dram-")).collect()
}

#[test]
fn attached_tables_have_lists_beside_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.npy");
    let mut random = fastrand::Rng::with_seed(9);
    let rows: Vec<u8> = (0..ROWS as usize * DIM).map(|_| random.u8(..)).collect();
    npy(&path, &rows);
    let check = |store: &Store, listed: &[u64], first: u64| {
        let host = HostExecutor::attach(store, HostOptions::default().with_dram_bytes(400 * DIM as u64)).unwrap();
        let table = store.tables().remove(0);
        let options = PlanOptions::default().with_out(DType::U8).with_max(ROWS as usize, ROWS as usize);
        let mut slot = host.plan(&[Feature::new("f", table.name)], options).unwrap().slot().unwrap();
        let mut look_up = |ids: &[u64]| {
            let mut out = vec![0u8; ids.len() * DIM];
            let report =
                slot.lookup(&Batch::new(ids, ids.len()), &mut Output::new(OutputRows::U8(&mut out), DIM)).unwrap();
            for (id, row) in ids.iter().zip(out.chunks(DIM)) {
                assert_eq!(row, &rows[(first + id) as usize * DIM..][..DIM], "row {id}");
            }
            report
        };
        let all: Vec<u64> = (0..table.rows).collect();
        assert_eq!(look_up(&all).rows_dram, 400);
        look_up(listed)
    };
    let listed: Vec<u64> = (0..400).map(|n| n * 7 + 100).collect();
    let store = attached(&path, "t=*");
    assert_eq!(check(&store, &listed, 0).rows_ssd, listed.iter().filter(|&&row| row >= 400).count() as u64);
    let report = store.rerank(&RerankOptions::new("t").with_ids(&listed)).unwrap();
    assert_eq!((report.listed, report.before), (400, None));
    assert_eq!(check(&store, &listed, 0).rows_ssd, 0);
    assert_eq!(lists_beside(dir.path()).len(), 1);
    // Another process that attaches the file has the list too; another slice of it has a list of its own.
    assert_eq!(check(&attached(&path, "t=*"), &listed, 0).rows_ssd, 0);
    let slice = attached(&path, "t=*,rows=1000..2500");
    assert_eq!(slice.dram_list("t").unwrap(), None);
    slice.rerank(&RerankOptions::new("t").with_ids(&listed[..200])).unwrap();
    assert_eq!(check(&slice, &listed[..200], 1000).rows_ssd, 0);
    assert_eq!(store.dram_list("t").unwrap().unwrap(), listed);
    drop(slice);
    // Killed while it wrote another list: the one before counts. While another process writes one: busy.
    let of_whole = |store: &Store| {
        let before = lists_beside(dir.path());
        store.rerank(&RerankOptions::new("t")).unwrap();
        let gone = before.into_iter().find(|path| !path.exists()).unwrap();
        store.rerank(&RerankOptions::new("t").with_ids(&listed)).unwrap();
        gone
    };
    let list = of_whole(&store);
    let whole = std::fs::read(&list).unwrap();
    let aside = PathBuf::from(format!("{}.new", list.display()));
    for written in [0, 1, 63, 64, whole.len() - 1, whole.len()] {
        std::fs::write(&aside, &whole[..written]).unwrap();
        assert_eq!(store.dram_list("t").unwrap().unwrap(), listed);
    }
    let other = std::fs::File::open(&aside).unwrap();
    other.lock().unwrap();
    let busy = store.rerank(&RerankOptions::new("t").with_ids(&[1]));
    assert!(matches!(busy, Err(StoreError::RerankBusy { by, .. }) if by.contains("process")));
    assert_eq!(store.dram_list("t").unwrap().unwrap(), listed);
    drop(other);
    store.rerank(&RerankOptions::new("t").with_ids(&listed)).unwrap();
    assert!(!aside.exists());
    // A damaged list, at each of some bytes: reported, not used, and made anew.
    for at in [0, 9, 30, 70, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&list, bytes).unwrap();
        assert!(matches!(store.dram_list("t"), Err(StoreError::DramListDamaged { .. })), "byte {at}");
        assert_eq!(store.verify_metadata().unwrap().bad[0].what, DamageKind::DramList);
        assert!(check(&store, &listed, 0).rows_ssd > 0);
    }
    // A byte more than a list has is damage too.
    std::fs::write(&list, [&whole[..], &[0]].concat()).unwrap();
    let longer = store.dram_list("t");
    assert!(matches!(&longer, Err(StoreError::DramListDamaged { what, .. }) if what.contains("behind")), "{longer:?}");
    // A list that cannot be read (here a link that leads to itself) is told as that, and is not damaged.
    std::fs::remove_file(&list).unwrap();
    std::os::unix::fs::symlink(&list, &list).unwrap();
    let unread = store.dram_list("t");
    assert!(matches!(&unread, Err(StoreError::DramListUnreadable { path, .. }) if *path == list), "{unread:?}");
    let bad = store.verify_metadata().unwrap().bad;
    assert!(bad[0].what == DamageKind::DramListFile && bad[0].unreadable, "{bad:?}");
    assert!(check(&store, &listed, 0).rows_ssd > 0);
    // A file in the place of the list that nobody can write over.
    std::fs::remove_file(&list).unwrap();
    std::fs::create_dir_all(list.join("folder")).unwrap();
    let refused = store.rerank(&RerankOptions::new("t").with_ids(&listed));
    assert!(matches!(&refused, Err(StoreError::DramListFile { path, .. }) if *path == list), "{refused:?}");
    std::fs::remove_dir_all(&list).unwrap();
    store.rerank(&RerankOptions::new("t").with_ids(&listed)).unwrap();
    // The file is another one: its list does not count.
    drop(store);
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let store = attached(&path, "t=*");
    assert_eq!(store.dram_list("t").unwrap(), None);
    assert!(check(&store, &listed, 0).rows_ssd > 0);
    // What a rerank that was killed left aside goes with the list.
    std::fs::write(&aside, &whole[..70]).unwrap();
    store.rerank(&RerankOptions::new("t")).unwrap();
    assert!(!list.exists() && !aside.exists());
}

#[test]
fn the_generation_of_lists_is_dropped_by_no_number() {
    let mut random = fastrand::Rng::with_seed(11);
    let (drives, store) = common::store(1, 64 << 20, 512);
    let (tables, _) = tables(&mut random);
    common::load(&store, &tables, &LoadOptions::default());
    store.rerank(&RerankOptions::new("plain").with_ranks(&[5, 6])).unwrap();
    let loaded = store.generations()[0].id;
    // Generations are numbered one after another.
    for refused in [store.drop_generation(loaded + 1), store.drop_shown_generation(loaded + 1)] {
        assert!(matches!(&refused, Err(StoreError::DropsLists { id }) if *id == loaded + 1), "{refused:?}");
    }
    assert_eq!(store.dram_list("plain").unwrap().unwrap(), [5, 6]);
    let absent = store.drop_generation(loaded + 2);
    assert!(matches!(absent, Err(StoreError::Volume(_))), "{absent:?}");
    store.rerank(&RerankOptions::new("plain")).unwrap();
    drop((store, drives));
}

#[test]
fn attached_tables_that_are_no_file_have_no_place_for_a_list() {
    let rows: Arc<Vec<u8>> = Arc::new(vec![3; 100 * DIM]);
    struct InMemory(Arc<Vec<u8>>);
    impl warprow_store::RowSource for InMemory {
        fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
            let from = first as usize * row_bytes;
            rows.copy_from_slice(&self.0[from..from + rows.len()]);
            Ok(())
        }
    }
    let spec = TableSpec::new("t", 100, DIM as u32, DType::U8);
    let device = Device::attached("made", vec![AttachedTable { spec, source: Arc::new(InMemory(rows)) }]).unwrap();
    let store = Store::open(&[device], &OpenOptions::default().with_read_only()).unwrap();
    assert_eq!(store.dram_list("t").unwrap(), None);
    let refused = store.rerank(&RerankOptions::new("t").with_ranks(&[1]));
    assert!(matches!(refused, Err(StoreError::NoListPlace { .. })));
    HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(1000)).unwrap();
}
