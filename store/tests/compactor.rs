//! A thread that compacts: before memory is full, beside updates and look-ups, reported when it fails.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::{Keys, Table};
use warprow_layout::{FormatOptions, VolumeError};
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions, PrepareOptions};
use warprow_soft_controller::SoftController;
use warprow_store::{
    CompactorOptions, DType, FingerprintWidth, KeyKind, LoadOptions, OpenOptions, RowOrder, Store, StoreError,
    UpdateOptions,
};

const BOUND: u64 = 60_000;
const ROW: usize = 64;

fn table(name: &str, rows: u64, random: &mut fastrand::Rng) -> Table {
    let mut table = Table::random(name, rows, ROW as u32, DType::U8, random);
    let numbers = (0..i128::from(rows)).map(|number| number * 1000).collect();
    let kind = KeyKind::U64;
    let fingerprint = FingerprintWidth::Bits16;
    let order = RowOrder::Given;
    table.keys = Some(Keys { numbers, kind, fingerprint, order, stored: true });
    table
}

/// A drive of so many bytes, and a store on it with table "t".
fn loaded(bytes: u64, seed: u64) -> (Vec<Arc<SoftController>>, Store, Table, fastrand::Rng) {
    loaded_rows(bytes, 800, seed)
}

/// As [`loaded`], with so many rows.
fn loaded_rows(bytes: u64, rows: u64, seed: u64) -> (Vec<Arc<SoftController>>, Store, Table, fastrand::Rng) {
    let drives = vec![common::drive("drive", bytes, 512)];
    let format = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let options = OpenOptions::default().with_overlay_bytes(BOUND);
    let store = Store::create(&common::devices(&drives), &format, &options).unwrap();
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let table = table("t", rows, &mut random);
    common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
    (drives, store, table, random)
}

fn rows_by_key(store: &Store, name: &str) -> Vec<(u64, Vec<u8>)> {
    let keys = store.keys(name).unwrap().unwrap();
    let mut all = store.created(name).unwrap();
    let mut take = |rank: u64, row: &[u8]| {
        all.push((keys[rank as usize], row.to_vec()));
        ControlFlow::Continue(())
    };
    store.scan(name, 0..u64::MAX, &mut take).unwrap();
    all.sort_unstable();
    all
}

fn wanted(table: &Table) -> Vec<(u64, Vec<u8>)> {
    let mut all: Vec<_> = (0..table.spec.rows).map(|at| (table.id(at) as u64, table.row(at).to_vec())).collect();
    all.sort_unstable();
    all
}

/// Gives some keys other rows, of which one in `new` is new, in the model too; 0: none is.
fn change(
    store: &Store,
    table: &mut Table,
    (count, new): (usize, u32),
    random: &mut fastrand::Rng,
) -> Result<u64, StoreError> {
    let mut after = table.clone();
    let mut keys = Vec::new();
    let mut rows = vec![0; count * ROW];
    random.fill(&mut rows);
    for row in rows.chunks(ROW) {
        let position = match new > 0 && random.u32(..new) == 0 {
            true => {
                let own = after.keys.as_mut().unwrap();
                let key = own.foreign(random);
                own.numbers.push(key);
                after.rows.resize(after.rows.len() + ROW, 0);
                after.spec.rows += 1;
                after.spec.rows as usize - 1
            }
            // The first two are for others.
            false => random.usize(2..after.spec.rows as usize),
        };
        after.rows[position * ROW..][..ROW].copy_from_slice(row);
        keys.push(after.id(position as u64) as u64);
    }
    let options = UpdateOptions::default().with_created_keys();
    let done = store.update_with(&table.spec.name, &keys, &rows, &options)?;
    *table = after;
    Ok(done)
}

/// Many times as much as memory holds, without anybody who calls `compact`: nothing is refused, and look-ups go on.
#[test]
fn updates_go_on_for_ever() {
    let (drives, store, mut table, mut random) = loaded(64 << 20, 1);
    let host = HostExecutor::attach(&store, HostOptions::default().with_checked_keys()).unwrap();
    let options = PlanOptions::default().with_max(1, 2).with_out(DType::U8).with_adopt_room();
    let plan = host.plan(&[Feature::new("f", "t")], options).unwrap();
    let compacted = Arc::new(AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let count = compacted.clone();
    let follows = host.clone();
    let compactor = store
        .start_compactor(&CompactorOptions::default(), move |_, done| {
            assert!(done.chunks.unwrap() > 0);
            let upcoming = follows.prepare(&PrepareOptions::default()).unwrap();
            follows.adopt(upcoming, Duration::from_secs(60)).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    // Two rows that are always updated together.
    let pair = [0u64, 1000];
    store.update("t", &pair, &[0; 2 * ROW]).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut slot = plan.slot().unwrap();
            let mut runs = 0u64;
            let mut last = 0;
            while !over.load(Ordering::Acquire) {
                let mut rows = [0; 2 * ROW];
                slot.lookup(&Batch::new(&pair, 1), &mut Output::new(OutputRows::U8(&mut rows), ROW)).unwrap();
                let version = rows[0];
                assert!(rows.iter().all(|&byte| byte == version), "{rows:?}");
                assert!(version >= last, "{version} after {last}");
                (runs, last) = (runs + 1, version);
            }
            runs
        });
        for version in 1..=120 {
            store.update("t", &pair, &[version; 2 * ROW]).unwrap();
            table.rows[..2 * ROW].fill(version);
            change(&store, &mut table, (30, 8), &mut random).unwrap();
        }
        over.store(true, Ordering::Release);
        assert!(reader.join().unwrap() > 0);
    });
    drop(compactor);
    assert!(compacted.load(Ordering::Relaxed) > 3, "{compacted:?}");
    assert_eq!(rows_by_key(&store, "t"), wanted(&table));
    drop((plan, host, store));
    let store = Store::open(&common::devices(&drives), &OpenOptions::default()).unwrap();
    assert_eq!(rows_by_key(&store, "t"), wanted(&table));
}

#[test]
fn a_compaction_that_fails_is_reported_and_loses_nothing() {
    // Of several chunks, so that one is not enough where the others do not become free.
    let (_drives, store, mut all, mut random) = loaded_rows(24 << 20, 40_000, 2);
    // The log has its chunk; the rest is taken.
    change(&store, &mut all, (1, 0), &mut random).unwrap();
    let other = table("other", 4000, &mut random);
    let beside = LoadOptions::default().with_standby();
    let mut standby = Vec::new();
    while let Ok(generation) = common::try_load(&store, std::slice::from_ref(&other), &beside) {
        standby.push(generation);
    }
    assert!(standby.len() > 2);
    // A reader who does not go over: the one chunk that is kept is not free again behind a compaction.
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let (told, reports) = mpsc::channel();
    let compactor =
        store.start_compactor(&CompactorOptions::default(), move |_, done| told.send(done).unwrap()).unwrap();
    let refused = loop {
        if let Err(error) = change(&store, &mut all, (5, 0), &mut random) {
            break error;
        }
    };
    let is_full = |refused: &StoreError| {
        matches!(
            refused,
            StoreError::OverlayFull { bound: BOUND, .. } | StoreError::Volume(VolumeError::NoLogSpace { .. })
        )
    };
    assert!(is_full(&refused), "{refused:?}");
    let failed: Vec<_> = reports.try_iter().filter(|done| done.chunks.is_err()).collect();
    // Again and again, but not for each update.
    assert!((1..12).contains(&failed.len()), "{}", failed.len());
    for done in &failed {
        let no_space = matches!(done.chunks, Err(StoreError::Volume(VolumeError::NoSpace { .. })));
        assert!(no_space && done.generation == 0, "{done:?}");
    }
    assert_eq!(rows_by_key(&store, "t"), wanted(&all));
    drop(host);
    standby.into_iter().for_each(|generation| store.drop_generation(generation).unwrap());
    for _ in 0..150 {
        change(&store, &mut all, (5, 20), &mut random).unwrap();
    }
    drop(compactor);
    let done: Vec<_> = reports.try_iter().collect();
    assert!(!done.is_empty() && done.iter().all(|report| report.chunks.is_ok()), "{done:?}");
    assert_eq!(rows_by_key(&store, "t"), wanted(&all));
    // Nobody makes room any more.
    let refused = loop {
        if let Err(error) = change(&store, &mut all, (5, 0), &mut random) {
            break error;
        }
    };
    assert!(is_full(&refused), "{refused:?}");
}

#[test]
fn an_update_waits_no_longer_than_it_may() {
    let (_drives, store, mut table, mut random) = loaded(24 << 20, 3);
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let options = CompactorOptions::default().with_at_percent(100).with_patience(Duration::from_millis(50));
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = Mutex::new(goes_on);
    // The host reads on what was before the compaction, so that this alone makes no room.
    let compactor = store
        .start_compactor(&options, move |_, _| {
            // It is told nothing: the other end goes.
            let _ = goes_on.lock().unwrap().recv_timeout(Duration::from_secs(60));
        })
        .unwrap();
    let mut refused = || loop {
        if let Err(error) = change(&store, &mut table, (5, 0), &mut random) {
            break error;
        }
    };
    let error = refused();
    assert!(matches!(error, StoreError::OverlayFull { .. }), "{error:?}");
    drop(go_on);
    // Nor for ever again, when compactions make none.
    let error = refused();
    assert!(matches!(error, StoreError::OverlayFull { .. }), "{error:?}");
    drop(compactor);
    drop(host);
    assert_eq!(rows_by_key(&store, "t"), wanted(&table));
}

#[test]
fn there_is_one_compactor_and_it_may_be_dropped_by_what_it_calls() {
    let (_drives, store, mut table, mut random) = loaded(24 << 20, 4);
    for percent in [0, 101] {
        let refused = store.start_compactor(&CompactorOptions::default().with_at_percent(percent), |_, _| ());
        assert!(matches!(refused, Err(StoreError::Compactor { .. })), "{refused:?}");
    }
    let options = CompactorOptions::default().with_at_percent(1);
    drop(store.start_compactor(&options, |_, _| ()).unwrap());
    let held = Arc::new(Mutex::new(None));
    let (drops, (told, dropped)) = (held.clone(), mpsc::channel());
    let compactor = store.start_compactor(&options, move |_, _| {
        let own: Option<warprow_store::Compactor> = drops.lock().unwrap().take();
        told.send(own.is_some()).unwrap();
    });
    *held.lock().unwrap() = Some(compactor.unwrap());
    let second = store.start_compactor(&options, |_, _| ());
    assert!(matches!(&second, Err(StoreError::Compactor { why }) if why.contains("drop")), "{second:?}");
    change(&store, &mut table, (60, 0), &mut random).unwrap();
    assert!(dropped.recv_timeout(Duration::from_secs(60)).unwrap());
    // Its thread ends: with what it would have told.
    assert!(dropped.recv_timeout(Duration::from_secs(60)).is_err());
    assert_eq!(rows_by_key(&store, "t"), wanted(&table));
}
