//! Updates, those who follow them, and compactions beside both.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warprow_layout::{DType, FormatOptions, RowOrder, TableKeys, TableSpec};
use warprow_soft_controller::{Namespace, RamBacking, SoftController};

use super::replace::Ranked;
use super::*;
use crate::drive_access::lock;
use crate::overlay::Follower;
use crate::overlay::{CREATED, Overlay, OverlayEntry};
use crate::table_version::TableVersion;
use crate::{Device, LoadOptions, OpenOptions, TableLoad};
use crate::{Store, StoreError};
use std::sync::{Arc, Mutex};
use warprow_keys::KeyIndex;
use warprow_layout::{Generation, VolumeError};

const ROW: usize = 64;

/// What was told to it: number of the row, content.
#[derive(Debug, Default)]
struct Told {
    rows: Mutex<Vec<(u64, Vec<u8>)>>,
    full: AtomicBool,
    fails: AtomicBool,
}

impl Follower for Told {
    fn make_room(&self, table: u32, rows: usize) -> Result<(), StoreError> {
        assert!(table == 0 && rows > 0);
        match self.full.load(Ordering::Relaxed) {
            true => Err(StoreError::GpuOverlayFull { bytes: 2, bound: 1 }),
            false => Ok(()),
        }
    }

    fn publish(&self, entries: &[OverlayEntry], rows: &[u8]) -> Result<(), String> {
        let row = |entry: &OverlayEntry| (entry.key, rows[entry.begin..entry.begin + entry.bytes].to_vec());
        lock(&self.rows).extend(entries.iter().map(row));
        if self.fails.load(Ordering::Relaxed) { Err("it is asleep".to_owned()) } else { Ok(()) }
    }
}

/// With the overlay, which who follows holds.
fn follow(store: &Store) -> (Arc<Told>, Arc<Overlay>) {
    let generation = store.shared.volume.generations().pop().unwrap();
    let overlay = store.shared.updates.overlay(&store.shared.volume, &generation).unwrap();
    let (told, ()) = overlay
        .follow(|before| {
            let told = Arc::new(Told::default());
            let rows = before.into_iter().flat_map(|snapshot| snapshot.rows(0).chain(snapshot.rows(CREATED)));
            lock(&told.rows).extend(rows.map(|(id, row)| (id, row.to_vec())));
            Ok::<_, StoreError>((told.clone(), told as Arc<dyn Follower>, ()))
        })
        .unwrap();
    (told, overlay)
}

/// A table of sparse keys, all rows 7.
fn keyed() -> (Store, u64) {
    let namespace = Namespace::new(RamBacking::new(24 << 20).unwrap());
    let controller = SoftController::builder().name("drive").namespace(namespace).build().unwrap();
    let options = OpenOptions::default();
    let store = Store::create(&[Device::new(controller, 1)], &FormatOptions::default(), &options).unwrap();
    let keys: Vec<u64> = (0..100).map(|key| key * 1000).collect();
    let source = &keys[..];
    let go_on = &mut |_| ControlFlow::Continue(());
    let index = Arc::new(KeyIndex::build(source, &warprow_keys::IndexOptions::default(), go_on).unwrap());
    let keyed = TableKeys::new(index, &source, RowOrder::Positions, true).unwrap();
    let spec = TableSpec::new("a", 100, 16, DType::F32).keyed(&keyed);
    let rows = vec![7u8; 100 * ROW];
    let source = &rows[..];
    let load = TableLoad::new(&spec, &source).with_keys(&keyed);
    let loaded = store.load("m", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    (store, loaded.generation)
}

/// By the key itself, for as long as it reads an index that does not have it.
#[test]
fn who_follows_is_told_of_created_keys() {
    let (store, generation) = keyed();
    let create =
        |key, byte| store.update_with("a", &[key], &[byte; ROW], &UpdateOptions::default().with_created_keys());
    let (first, pinned) = follow(&store);
    create(12_345, 1).unwrap();
    assert_eq!(*lock(&first.rows), [(12_345, vec![1; ROW])]);
    create(1000, 2).unwrap();
    let last = |told: &Told| lock(&told.rows).last().cloned().unwrap();
    assert!(last(&first).0 < 100, "by its slot");
    store.compact(generation).unwrap();
    let (second, _pinned) = follow(&store);
    assert!(!Arc::ptr_eq(&pinned, &_pinned) && lock(&second.rows).is_empty());
    create(12_345, 3).unwrap();
    assert_eq!(last(&first), (12_345, vec![3; ROW]));
    let (slot, row) = last(&second);
    assert!(slot < 101 && row == [3; ROW], "it is in the table now");
    create(67_890, 4).unwrap();
    assert_eq!((last(&first), last(&second)), ((67_890, vec![4; ROW]), (67_890, vec![4; ROW])));
    // Who comes later is told of what is there.
    let (third, _) = follow(&store);
    let mut rows = lock(&third.rows).clone();
    rows.sort_unstable();
    assert_eq!(rows, [(slot, vec![3; ROW]), (67_890, vec![4; ROW])]);
}

/// What a compaction has changed of what somebody reads is known; of all else that gives a generation other chunks it is not.
#[test]
fn rows_that_no_update_has_changed_are_known_over_compactions() {
    let (store, generation) = keyed();
    let view = store.view();
    let now = || view.tables().pop().unwrap();
    let (first, overlay) = view.with_overlay(now());
    let overlay = overlay.unwrap();
    let changed = |before: &TableVersion, overlay: &Overlay| {
        let mut rows = view.changed_rows(before, overlay, &now())?;
        rows.sort_unstable();
        Some(rows)
    };
    let index = view.read_key_index(&first).unwrap().unwrap();
    let slot = |key: u64| index.position(key).unwrap();
    let slots = |keys: &[u64]| {
        let mut slots: Vec<u64> = keys.iter().map(|&key| slot(key)).collect();
        slots.sort_unstable();
        Some(slots)
    };
    assert_eq!(changed(&first, &overlay), slots(&[]));
    store.update("a", &[1000, 5000], &[1; 2 * ROW]).unwrap();
    store.compact(generation).unwrap();
    assert_ne!(now().generation.placement, first.generation.placement);
    assert_eq!(changed(&first, &overlay), slots(&[1000, 5000]));
    let (second, of_second) = view.with_overlay(now());
    let of_second = of_second.unwrap();
    store.update("a", &[1000, 7000], &[2; 2 * ROW]).unwrap();
    store.compact(generation).unwrap();
    assert_eq!(changed(&first, &overlay), slots(&[1000, 5000, 7000]));
    assert_eq!(changed(&second, &of_second), slots(&[1000, 7000]));
    // What is not in chunks yet may be among them.
    store.update("a", &[9000], &[3; ROW]).unwrap();
    assert_eq!(changed(&second, &of_second), slots(&[1000, 7000, 9000]));
    store.compact(generation).unwrap();
    // Rows that are replaced are no updates.
    let (third, of_third) = view.with_overlay(now());
    let of_third = of_third.unwrap();
    let fill = |_: usize, row: &mut [u8]| row.fill(4);
    store.replace_rows(generation, "a", &[3], &fill).unwrap();
    assert_eq!((changed(&first, &overlay), changed(&third, &of_third)), (None, None));
    // What follows is kin of what was replaced, and not of what was before.
    let (fourth, of_fourth) = view.with_overlay(now());
    let of_fourth = of_fourth.unwrap();
    store.update("a", &[1000], &[5; ROW]).unwrap();
    store.compact(generation).unwrap();
    assert_eq!(changed(&fourth, &of_fourth), slots(&[1000]));
    assert_eq!(changed(&third, &of_third), None);
    // Created keys have the generation written anew, and so have removed ones, with the keys of before in the end.
    for changes in [true, false] {
        let (before, of_before) = view.with_overlay(now());
        let of_before = of_before.unwrap();
        match changes {
            true => {
                let create = UpdateOptions::default().with_created_keys();
                store.update_with("a", &[12_345], &[6; ROW], &create).unwrap();
            }
            false => _ = store.remove("a", &[12_345]).unwrap(),
        }
        store.compact(generation).unwrap();
        assert_eq!(changed(&before, &of_before), None, "{changes}");
        assert_eq!(changed(&fourth, &of_fourth), None, "{changes}");
    }
}

/// The caller may compact too, while the compactor lives.
#[test]
fn an_update_without_room_waits_for_somebody_else_s_compaction() {
    let (store, generation) = keyed();
    let (told, reports) = std::sync::mpsc::channel();
    let compactor =
        store.start_compactor(&CompactorOptions::default(), move |_, done| told.send(done).unwrap()).unwrap();
    store.update("a", &[1000], &[1; ROW]).unwrap();
    let others = store.shared.volume.begin_rewrite(generation, []).unwrap();
    let full = AtomicBool::new(true);
    let attempt = || match full.swap(false, Ordering::Relaxed) {
        true => Err(StoreError::GpuOverlayFull { bytes: 2, bound: 1 }),
        false => Ok(()),
    };
    std::thread::scope(|scope| {
        let update = scope.spawn(|| store.with_room(generation, attempt));
        assert!(reports.recv_timeout(Duration::from_millis(100)).is_err(), "it goes on to wait");
        drop(others);
        update.join().unwrap().unwrap();
    });
    assert!(reports.recv().unwrap().chunks.is_ok());
    store.update("a", &[1000], &[2; ROW]).unwrap();
    // Nor does it wait longer than the compactor lives.
    let _others = store.shared.volume.begin_rewrite(generation, []).unwrap();
    full.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let update = scope.spawn(|| store.with_room(generation, attempt));
        while full.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        drop(compactor);
        assert!(matches!(update.join().unwrap(), Err(StoreError::GpuOverlayFull { .. })));
    });
}

/// Rows that replace others wait for somebody else's compaction, and not for ever.
#[test]
fn replaced_rows_wait_for_somebody_else_s_compaction() {
    let (store, generation) = keyed();
    let rewriting = |done| matches!(done, Err(StoreError::Volume(VolumeError::Rewriting { .. })));
    let moment = Duration::from_millis(30);
    let rows = || {
        let mut rows = Vec::new();
        let scanned = store.scan("a", 0..u64::MAX, &mut |_, row| {
            rows.push(row[0]);
            ControlFlow::Continue(())
        });
        scanned.map(|()| rows).unwrap()
    };
    let replace = |byte: u8, patience| {
        store.replace_rows_within(generation, "a", &[3, 50], &|_, row: &mut [u8]| row.fill(byte), patience)
    };
    // With an update to be compacted before, and with none.
    for (turn, byte) in [(0, 20), (1, 30)] {
        let slot = store.key_index("a").unwrap().unwrap().position(7000).unwrap() as usize;
        if turn == 0 {
            store.update("a", &[7000], &[9; ROW]).unwrap();
        }
        let before = rows();
        let others = store.shared.volume.begin_rewrite(generation, []).unwrap();
        assert!(rewriting(replace(byte, moment)) && rewriting(store.compact_within(generation, moment)));
        assert_eq!(rows(), before, "nothing has moved");
        std::thread::scope(|scope| {
            let replaced = scope.spawn(|| replace(byte, Duration::from_secs(60)));
            let compacted = scope.spawn(|| store.compact_within(generation, Duration::from_secs(60)));
            std::thread::sleep(moment);
            assert!(!replaced.is_finished() && !compacted.is_finished());
            drop(others);
            replaced.join().unwrap().unwrap();
            compacted.join().unwrap().unwrap();
        });
        let mut wanted = before;
        (wanted[slot], wanted[3], wanted[50]) = (9, byte, byte);
        assert_eq!(rows(), wanted);
    }
    // Keys that came into the table meanwhile have given its rows other ranks.
    let created = UpdateOptions::default().with_created_keys();
    store.update_with("a", &[1], &[4; ROW], &created).unwrap();
    assert!(matches!(replace(40, moment), Err(StoreError::CreatedKeys { .. })));
    let begin = |ranked| store.begin_replacing(generation, ("a", ranked), &[3], Instant::now());
    assert!(matches!(begin(Ranked { rows: 99, keys: None }), Err(StoreError::CreatedKeys { .. })));
    // A key that was removed has changed ranks too, though there are as many rows as before.
    let ranked = || Ranked::of(store.locate("a").unwrap().table());
    let before = ranked();
    assert_eq!(store.remove("a", &[7000]).unwrap(), 1);
    assert!(matches!(replace(40, moment), Err(StoreError::CreatedKeys { .. })));
    store.compact(generation).unwrap();
    assert_eq!(ranked().rows, before.rows);
    assert!(matches!(begin(before), Err(StoreError::CreatedKeys { .. })));
    assert!(begin(ranked()).is_ok());
}

/// Who holds a generation as it was before compactions gets an overlay of its index, or none.
#[test]
fn overlays_are_of_the_index_that_is_read() {
    let (store, generation) = keyed();
    let now = || store.shared.volume.generation(generation).unwrap();
    let create = |key| store.update_with("a", &[key], &[1; ROW], &UpdateOptions::default().with_created_keys());
    create(1000).unwrap();
    let first = now();
    let oldest = store.shared.updates.overlay(&store.shared.volume, &first).unwrap();
    create(1).unwrap();
    store.compact(generation).unwrap();
    let grown = now();
    create(2000).unwrap();
    store.compact(generation).unwrap();
    // The one that was between is gone. The first has all rows, but by other slots.
    assert!(oldest.base() < grown.base_sequence);
    assert!(store.shared.updates.overlay_of(&store.shared.volume, &grown).unwrap().is_none());
    let of = |held: &Arc<Generation>| store.shared.updates.overlay_of(&store.shared.volume, held).unwrap().unwrap();
    assert!(Arc::ptr_eq(&of(&first), &oldest));
    assert!(of(&now()).base() > grown.base_sequence);
}

#[test]
fn who_follows_is_told_everything_once_and_what_it_refuses_is_not_written() {
    let namespace = Namespace::new(RamBacking::new(24 << 20).unwrap());
    let controller = SoftController::builder().name("drive").namespace(namespace).build().unwrap();
    let devices = [Device::new(controller, 1)];
    let store = Store::create(&devices, &FormatOptions::default(), &OpenOptions::default()).unwrap();
    let spec = TableSpec::new("a", 100, 16, DType::F32);
    let rows = vec![7u8; 100 * ROW];
    let source = &rows[..];
    let loads = [TableLoad::new(&spec, &source)];
    let loaded = store.load("model", &loads, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    let update = |id: u64, byte: u8| store.update("a", &[id], &[byte; ROW]);
    update(3, 1).unwrap();
    let (first, pinned) = follow(&store);
    assert_eq!(*lock(&first.rows), [(3, vec![1; ROW])]);
    update(4, 2).unwrap();
    assert_eq!(lock(&first.rows).last(), Some(&(4, vec![2; ROW])));
    // Of the chunks before a compaction: it is told what comes later too, and so is who follows what is left.
    store.compact(loaded.generation).unwrap();
    let (second, _pinned) = follow(&store);
    assert!(lock(&second.rows).is_empty());
    update(5, 3).unwrap();
    for told in [&first, &second] {
        assert_eq!(lock(&told.rows).last(), Some(&(5, vec![3; ROW])));
    }
    first.full.store(true, Ordering::Relaxed);
    assert!(matches!(update(6, 4), Err(StoreError::GpuOverlayFull { .. })));
    first.full.store(false, Ordering::Relaxed);
    // It is written, and all are told, whatever one says.
    first.fails.store(true, Ordering::Relaxed);
    let behind = update(7, 5).unwrap_err();
    assert!(matches!(&behind, StoreError::GpuBehind { why } if why.contains("asleep")), "{behind}");
    assert_eq!(lock(&second.rows).last(), Some(&(7, vec![5; ROW])));
    drop((first, pinned));
    update(8, 6).unwrap();
    let told: Vec<u64> = lock(&second.rows).iter().map(|(id, _)| *id).collect();
    assert_eq!(told, [5, 7, 8]);
    let mut found = Vec::new();
    let mut take = |rank: u64, row: &[u8]| {
        found.extend((row[0] != 7).then_some((rank, row[0])));
        ControlFlow::Continue(())
    };
    drop(store);
    let store = Store::open(&devices, &OpenOptions::default()).unwrap();
    store.scan("a", 0..u64::MAX, &mut take).unwrap();
    assert_eq!(found, [(3, 1), (4, 2), (5, 3), (7, 5), (8, 6)]);
}

/// A table of rows with checksums, all 7, of which row 3 is 1 by an update.
fn checksummed(rows: u64) -> (Store, u64) {
    let namespace = Namespace::new(RamBacking::new(24 << 20).unwrap());
    let controller = SoftController::builder().name("drive").namespace(namespace).build().unwrap();
    let options = OpenOptions::default();
    let store = Store::create(&[Device::new(controller, 1)], &FormatOptions::default(), &options).unwrap();
    let spec = TableSpec { row_crc: true, ..TableSpec::new("a", rows, 16, DType::F32) };
    let bytes = vec![7u8; rows as usize * ROW];
    let source = &bytes[..];
    let loads = [TableLoad::new(&spec, &source)];
    let loaded = store.load("m", &loads, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    store.update("a", &[3], &[1; ROW]).unwrap();
    (store, loaded.generation)
}

/// What is updated, and compacted, while it reads is neither seen nor taken for damage.
#[test]
fn a_checked_scan_is_of_one_moment() {
    const ROWS: u64 = 20_000;
    let (store, generation) = checksummed(ROWS);
    let ids: Vec<u64> = (0..ROWS).collect();
    let mut found = vec![0; ROWS as usize];
    let mut first = true;
    let mut take = |rank: u64, row: &[u8]| {
        if std::mem::take(&mut first) {
            store.update("a", &ids, &vec![9; ROWS as usize * ROW]).unwrap();
            store.compact(generation).unwrap();
        }
        assert!(row.iter().all(|byte| *byte == row[0]), "rank {rank} is torn");
        found[rank as usize] = row[0];
        ControlFlow::Continue(())
    };
    store.scan_checked("a", &mut take).unwrap();
    let wanted = |rank| if rank == 3 { 1 } else { 7 };
    assert!(found.iter().enumerate().all(|(rank, byte)| *byte == wanted(rank)), "{:?}", &found[..8]);
    let mut rows = 0;
    let stopped = store.scan_checked("a", &mut |_, row| {
        assert_eq!(row, [9; ROW]);
        rows += 1;
        if rows == 100 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(stopped.is_ok() && rows == 100, "{stopped:?} behind {rows} rows");
}
