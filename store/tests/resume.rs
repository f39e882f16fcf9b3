//! A load that was killed goes on where it was; one that meets anything else begins anew.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use warprow_store::{DType, LoadOptions, LoadReport, OpenOptions, Store, StoreError, TableLoad};

use common::Table;

const ROWS: u64 = 60_000;
/// What a drive may have been given and not have carried out when a load ends, at most: eight extents.
const IN_FLIGHT: u64 = 8 * (512 << 10);

fn table(dim: u32, seed: u64) -> Table {
    let mut table = Table::random("t", ROWS, dim, DType::F16, &mut fastrand::Rng::with_seed(seed));
    (table.spec.permuted, table.spec.row_crc, table.ranks) = (false, true, None);
    table
}

/// Loads until `most` bytes are written, then stops as SIGKILL does: nothing is tidied up.
fn load(store: &Store, table: &Table, options: &LoadOptions, most: u64) -> Option<Result<LoadReport, StoreError>> {
    let source = &table.rows[..];
    load_as(store, TableLoad::new(&table.spec, &source), options, most)
}

fn load_as(
    store: &Store,
    load: TableLoad<'_>,
    options: &LoadOptions,
    most: u64,
) -> Option<Result<LoadReport, StoreError>> {
    let loads = [load];
    let mut go = |progress: warprow_store::LoadProgress| {
        assert!(progress.written < most, "killed");
        ControlFlow::Continue(())
    };
    catch_unwind(AssertUnwindSafe(|| store.load("m", &loads, options, &mut go))).ok()
}

fn holds(store: &Store, table: &Table) {
    let mut rows = 0;
    let mut row = |rank: u64, row: &[u8]| {
        assert_eq!(row, table.row(rank), "row {rank}");
        rows += 1;
        ControlFlow::Continue(())
    };
    store.scan("t", 0..u64::MAX, &mut row).unwrap();
    assert_eq!(rows, ROWS);
    let verified = store.verify("t", &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((verified.checked, verified.damaged), (true, 0));
}

#[test]
fn what_a_killed_load_wrote_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    for (dim, lba, sequential) in [(350, 512, false), (512, 4096, false), (512, 4096, true), (700, 512, false)] {
        let (drives, mut store) = common::store(3, 64 << 20, lba);
        let table = table(dim, 1);
        let options = LoadOptions::default().with_journal(&journal, "the same");
        let bytes = ROWS * u64::from(dim) * 2;
        let source = &table.rows[..];
        let rows = TableLoad::new(&table.spec, &source);
        let rows = if sequential { rows.with_sequential_rows() } else { rows };
        let reopened = |store: Store| {
            drop(store);
            Store::open(&common::devices(&drives), &OpenOptions::default()).unwrap()
        };
        for part in [bytes / 3, bytes / 2] {
            assert!(load_as(&store, rows, &options, part).is_none());
            store = reopened(store);
            assert!(store.table("t").is_none() && journal.exists());
        }
        // What is noted, and not there: noted by a lying journal, or overwritten.
        let mut noted = std::fs::read(&journal).unwrap();
        let end = noted.len();
        noted[end - 10] ^= 1;
        noted.extend([7; 5]);
        std::fs::write(&journal, noted).unwrap();
        let report = load_as(&store, rows, &options, u64::MAX).unwrap().unwrap();
        // But for the last extent, and the one that the journal lies about.
        let least = bytes / 2 - 3 * IN_FLIGHT - (2 << 20);
        assert!(report.resumed >= least && report.bytes >= bytes / 4, "{report:?}");
        assert!(!journal.exists(), "it is done");
        holds(&store, &table);
        holds(&reopened(store), &table);
    }
}

#[test]
fn nothing_of_another_load_is_taken_for_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let (_drives, store) = common::store(2, 64 << 20, 512);
    let first = table(100, 1);
    let second = table(100, 2);
    let options = |sources: &str| LoadOptions::default().with_journal(&journal, sources);
    assert!(load(&store, &first, &options("first"), 3 << 20).is_none());
    let report = load(&store, &second, &options("second"), u64::MAX).unwrap().unwrap();
    assert_eq!(report.resumed, 0);
    holds(&store, &second);

    // The epoch is another, and so is what may be found in the chunks.
    assert!(load(&store, &first, &options("first").with_replace(), 3 << 20).is_none());
    let kept = std::fs::read(&journal).unwrap();
    load(&store, &second, &LoadOptions::default().with_replace(), u64::MAX).unwrap().unwrap();
    std::fs::write(&journal, kept).unwrap();
    let report = load(&store, &first, &options("first").with_replace(), u64::MAX).unwrap().unwrap();
    assert_eq!(report.resumed, 0);
    holds(&store, &first);

    assert!(report.begun_anew, "there was one of another epoch");

    // As after a loss of power: the name is there, the content is not, or not all of it.
    let again = |noted: &[u8]| {
        std::fs::write(&journal, noted).unwrap();
        load(&store, &first, &options("first").with_replace(), u64::MAX).unwrap().unwrap()
    };
    for (noted, begun_anew) in [(&[0; 4096][..], true), (b"WRPLOAD1\0\0\0\0", true), (b"WRPL", true), (b"", false)] {
        let report = again(noted);
        assert_eq!((report.resumed, report.begun_anew), (0, begun_anew), "{noted:?}");
    }

    // Neither is what was never one; a mebibyte of zeros is more than a journal of this load can have.
    for other in [&b"precious"[..], &[0; 1 << 20], &[&[0; 4096][..], &[1]].concat()] {
        std::fs::write(&journal, other).unwrap();
        let refused = load(&store, &second, &options("second").with_replace(), u64::MAX).unwrap().unwrap_err();
        assert!(matches!(refused, StoreError::Journal { .. }), "{refused}");
        assert!(std::fs::read(&journal).unwrap() == other, "it was left as it is");
    }
}

#[test]
fn what_was_overwritten_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let (_drives, store) = common::store(2, 64 << 20, 512);
    let first = table(100, 1);
    let second = table(100, 2);
    let options = LoadOptions::default().with_journal(&journal, "same name, other rows");
    assert!(load(&store, &first, &options, 4 << 20).is_none());
    // Another load in the same chunks that is killed too, without a journal.
    assert!(load(&store, &second, &LoadOptions::default(), 2 << 20).is_none());
    let report = load(&store, &first, &options, u64::MAX).unwrap().unwrap();
    assert!(report.resumed < 4 << 20, "{report:?}");
    holds(&store, &first);
}

#[test]
fn one_that_was_stopped_keeps_what_it_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let (_drives, store) = common::store(2, 64 << 20, 512);
    let table = table(350, 1);
    let options = LoadOptions::default().with_journal(&journal, "");
    let source = &table.rows[..];
    let loads = [TableLoad::new(&table.spec, &source)];
    let stopped = store.load("m", &loads, &options, &mut |progress| match progress.written > 20 << 20 {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(StoreError::Interrupted)));
    let report = load(&store, &table, &options, u64::MAX).unwrap().unwrap();
    assert!(report.resumed >= (19 << 20) - 2 * IN_FLIGHT, "{report:?}");
    holds(&store, &table);
}

/// Rows that are put in order: in memory, where each extent counts, and in parts, where each of these does.
#[test]
fn rows_that_are_put_in_order_are_found_too() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    for (memory, part) in [(1 << 30, 30 << 20), (8 << 20, 100 << 20)] {
        let (drives, store) = common::store(3, 64 << 20, 512);
        let mut table = table(350, 1);
        let mut order: Vec<u64> = (0..ROWS).collect();
        fastrand::Rng::with_seed(3).shuffle(&mut order);
        let ranks = warprow_layout::Ranks::from_u64(order).unwrap();
        (table.spec.permuted, table.ranks) = (true, Some(ranks.clone()));
        let options = LoadOptions::default().with_journal(&journal, "the same").with_memory(memory);
        let load = |store: &Store, ranks: &warprow_layout::Ranks, most: u64| {
            let source = &table.rows[..];
            let loads = [TableLoad::new(&table.spec, &source).with_ranks(ranks)];
            let mut go = |progress: warprow_store::LoadProgress| {
                assert!(progress.written < most, "killed");
                ControlFlow::Continue(())
            };
            catch_unwind(AssertUnwindSafe(|| store.load("m", &loads, &options, &mut go))).ok()
        };
        // 61 MB, of LBAs, or, in parts, twice that.
        assert!(load(&store, &ranks, part).is_none());
        drop(store);
        let store = Store::open(&common::devices(&drives), &OpenOptions::default()).unwrap();
        let kept = std::fs::read(&journal).unwrap();
        let report = load(&store, &ranks, u64::MAX).unwrap().unwrap();
        assert!(report.resumed >= 16 << 20, "{report:?}");
        assert!(!journal.exists());
        let ids = ranks.inverse();
        let mut row = |rank: u64, row: &[u8]| {
            assert_eq!(row, table.row(ids.get(rank).unwrap()), "rank {rank}");
            ControlFlow::Continue(())
        };
        store.scan("t", 0..u64::MAX, &mut row).unwrap();
        let verified = store.verify("t", &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((verified.checked, verified.rows, verified.damaged), (true, ROWS, 0));

        // Other ranks put other rows there.
        let (_drives, store) = common::store(3, 64 << 20, 512);
        std::fs::write(&journal, kept).unwrap();
        let report = load(&store, &ranks.inverse(), u64::MAX).unwrap().unwrap();
        assert_eq!(report.resumed, 0);
    }
}
