//! A DRAM tier that follows what is looked up: counts, rounds by hand and by a thread, every row compared beside them, and processes
//! that are killed in the middle.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Keys, Table};
use warprow_lookup::{
    Batch, CounterOptions, Feature, HostExecutor, HostOptions, LookupReport, Output, OutputRows, PlanOptions, Pooling,
    PrepareOptions, RerankerOptions, Slot,
};
use warprow_store::{
    CreateDrive, DType, Device, DriveAddress, FingerprintWidth, FormatConsent, FormatProposal, FormatSettings, KeyKind,
    LoadOptions, OpenOptions, Ranks, RerankOptions, RowOrder, Store, StoreError, TableSpec,
};

const ROWS: u64 = 3000;
const DIM: usize = 8;
/// Rows in DRAM.
const HOT: u64 = 200;
const DRAM: u64 = HOT * DIM as u64 * 4;

fn row(id: u64) -> [f32; DIM] {
    std::array::from_fn(|column| (id * DIM as u64 + column as u64) as f32)
}

fn content() -> Vec<u8> {
    (0..ROWS).flat_map(row).flat_map(f32::to_le_bytes).collect()
}

/// A table "t", in another order than that of its ids if `permuted`.
fn store(permuted: bool) -> (Vec<std::sync::Arc<warprow_soft_controller::SoftController>>, Store) {
    let (drives, store) = common::store(2, 64 << 20, 512);
    let spec = TableSpec { permuted, row_crc: true, ..TableSpec::new("t", ROWS, DIM as u32, DType::F32) };
    let counts: Vec<u64> = (0..ROWS).map(|id| (id * 7919) % ROWS).collect();
    let ranks = permuted.then(|| Ranks::by_hotness(&counts));
    common::load(&store, &[Table { spec, rows: content(), ranks, keys: None }], &LoadOptions::default());
    (drives, store)
}

fn counting(every: u32) -> HostOptions {
    let counters = CounterOptions::new(1 << 20).with_every(every).with_halved_after(4000);
    HostOptions::default().with_dram_bytes(DRAM).with_checked_rows().with_counters(counters)
}

fn slot(host: &HostExecutor) -> Slot {
    host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_max(1000, 1000)).unwrap().slot().unwrap()
}

/// Looks up, and compares every row.
fn look_up(slot: &mut Slot, ids: &[u64]) -> LookupReport {
    let mut rows = vec![-1.0f32; ids.len() * DIM];
    let report = slot.lookup(&Batch::new(ids, ids.len()), &mut Output::new(OutputRows::F32(&mut rows), DIM)).unwrap();
    for (&id, got) in ids.iter().zip(rows.as_chunks().0) {
        assert_eq!(*got, row(id), "row {id}");
    }
    report
}

/// Ids that are hot in turn `turn`: as many as there is room for.
fn hot(turn: u64) -> Vec<u64> {
    (0..HOT).map(|number| (turn * 577 + number * 13) % ROWS).collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn what_is_looked_up_is_counted_and_nothing_else() {
    let (_drives, store) = common::store(1, 64 << 20, 512);
    let keys: Vec<i128> = (0..100).map(|number| i128::from(number) * 1_000_003 - 50_000_000).collect();
    let index = Keys {
        numbers: keys.clone(),
        kind: KeyKind::I64,
        fingerprint: FingerprintWidth::Bits32,
        order: RowOrder::Given,
        stored: true,
    };
    let table = |name: &str, keys| {
        let spec = TableSpec::new(name, 100, 1, DType::F32);
        Table { spec, rows: vec![0; 400], ranks: None, keys }
    };
    common::load(&store, &[table("dense", None), table("sparse", Some(index))], &LoadOptions::default());
    let counters = CounterOptions::new(1 << 20).with_every(1);
    let host = HostExecutor::attach(&store, HostOptions::default().with_counters(counters)).unwrap();
    for pooling in [Pooling::None, Pooling::Sum] {
        let before = |table: &str| host.popular(table, 1).unwrap().first().map_or(0, |row| row.count);
        let (dense, sparse) = (before("dense"), before("sparse"));
        let features =
            [Feature::new("d", "dense").pooling(pooling).padding(4), Feature::new("s", "sparse").pooling(pooling)];
        let plan = host.plan(&features, PlanOptions::default()).unwrap();
        let key = keys[7] as i64;
        // Of the dense table ids 9, 9, one that is missing and padding; of the sparse one a key three times, and what is no key.
        let ids = [9, 9, 5000, 4, key, key, key, 1];
        let mut out = [0.0f32; 8];
        let width = plan.width();
        let batch = Batch::new(&ids, 4);
        plan.slot().unwrap().lookup(&batch, &mut Output::new(OutputRows::F32(&mut out), width)).unwrap();
        let top = |table: &str| host.popular(table, 1).unwrap()[0];
        assert_eq!((top("dense").id, top("dense").count), (9, dense + 2), "{pooling:?}");
        assert_eq!((top("sparse").id as i64, top("sparse").count), (key, sparse + 3), "{pooling:?}");
    }
    // What was counted: of unpooled look-ups also the row of the padding id, for it is read.
    assert_eq!(host.popular("dense", 10).unwrap().len(), 2);
    assert_eq!(host.popular("sparse", 10).unwrap().len(), 1);
    assert_eq!(host.popular("absent", 10), None);
    let plain = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    assert_eq!(plain.popular("dense", 10), None);
}

#[test]
fn dram_follows_what_is_looked_up() {
    for permuted in [false, true] {
        let (_drives, store) = store(permuted);
        let host = HostExecutor::attach(&store, counting(1)).unwrap();
        let mut slot = slot(&host);
        let options = RerankerOptions::default();
        assert_eq!(host.rerank_by_counts(&options).unwrap().rows(), 0, "nothing was counted");
        for turn in 1..6 {
            let ids = hot(turn);
            let before = look_up(&mut slot, &ids);
            assert!(before.rows_ssd > HOT / 2, "turn {turn}: {before:?}");
            (0..60).for_each(|_| _ = look_up(&mut slot, &ids));
            let round = host.rerank_by_counts(&options).unwrap();
            assert!(round.rows() > HOT / 2, "turn {turn}: {round:?}");
            let after = look_up(&mut slot, &ids);
            assert_eq!((after.rows_dram, after.rows_ssd), (HOT, 0), "turn {turn}, permuted {permuted}");
            assert_eq!(store.dram_list("t").unwrap().unwrap().len() as u64, HOT);
            // Nothing has changed since.
            assert_eq!(host.rerank_by_counts(&options).unwrap().rows(), 0, "turn {turn}");
        }
        let all: Vec<u64> = (0..ROWS).collect();
        all.chunks(1000).for_each(|ids| _ = look_up(&mut slot, ids));
        // Another executor finds the list.
        let other = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(DRAM)).unwrap();
        assert_eq!(look_up(&mut self::slot(&other), &hot(5)).rows_ssd, 0);
    }
}

#[test]
fn rows_that_are_in_memory_are_not_read_again() {
    let (_drives, store) = store(false);
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(DRAM)).unwrap();
    let mut slot = slot(&host);
    // At this rate a single row takes a minute.
    let slowly = PrepareOptions::default().with_rate(8);
    let began = Instant::now();
    let upcoming = host.prepare(&slowly).unwrap();
    host.adopt(upcoming, Duration::from_secs(5)).unwrap();
    let first: Vec<u64> = (0..HOT).collect();
    assert_eq!(look_up(&mut slot, &first).rows_ssd, 0);
    // The order of the list is another, and so is nothing else.
    store.rerank(&RerankOptions::new("t").with_ranks(&first.iter().rev().copied().collect::<Vec<_>>())).unwrap();
    let upcoming = host.prepare(&slowly).unwrap();
    host.adopt(upcoming, Duration::from_secs(5)).unwrap();
    assert_eq!(look_up(&mut slot, &first).rows_ssd, 0);
    assert!(began.elapsed() < Duration::from_secs(30));
    // After a compaction rows lie elsewhere and may be others: they are read.
    store.update("t", &[3], &row(3).map(|x| x.to_le_bytes()).concat()).unwrap();
    store.compact(store.generations()[0].id).unwrap();
    let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
    host.adopt(upcoming, Duration::from_secs(5)).unwrap();
    assert_eq!(look_up(&mut slot, &first).rows_ssd, 0);
}

/// Moves beside readers: how many, and the 99th percentile of look-ups in calm times and beside them.
fn moves_beside_readers(moves: u64, rate: u64) -> (u64, [Duration; 2]) {
    let (_drives, store) = store(true);
    let host = HostExecutor::attach(&store, counting(1)).unwrap();
    let options = RerankerOptions::default().with_rate(rate);
    let (over, calm, moved) = (AtomicBool::new(false), AtomicBool::new(true), AtomicU64::new(0));
    let times: Vec<[Vec<Duration>; 2]> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let mut slot = slot(&host);
                let (over, calm) = (&over, &calm);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let mut times = [Vec::new(), Vec::new()];
                    while !over.load(Ordering::Relaxed) {
                        let ids: Vec<u64> = (0..64).map(|_| random.u64(..ROWS)).collect();
                        let began = Instant::now();
                        look_up(&mut slot, &ids);
                        times[usize::from(!calm.load(Ordering::Relaxed))].push(began.elapsed());
                    }
                    times
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        calm.store(false, Ordering::Relaxed);
        let mut slot = slot(&host);
        for turn in 0..moves {
            let ids = hot(turn);
            (0..40).for_each(|_| _ = look_up(&mut slot, &ids[..40.min(ids.len())]));
            moved.fetch_add(u64::from(host.rerank_by_counts(&options).unwrap().rows() > 0), Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    let p99 = |beside: usize| {
        let mut all: Vec<Duration> = times.iter().flat_map(|times| times[beside].iter().copied()).collect();
        all.sort_unstable();
        all.get(all.len() * 99 / 100).copied().unwrap_or_default()
    };
    (moved.into_inner(), [p99(0), p99(1)])
}

/// `WARPROW_MOVES` sets how many.
#[test]
fn moves_beside_readers_lose_no_row() {
    let moves = std::env::var("WARPROW_MOVES").ok().and_then(|moves| moves.parse().ok()).unwrap_or(40);
    let (moved, [calm, beside]) = moves_beside_readers(moves, 64 << 20);
    eprintln!("{moved} of {moves} rounds moved rows; p99 {calm:?} in calm times, {beside:?} beside them");
    assert!(moved >= moves * 3 / 4, "{moved} of {moves}");
}

#[test]
fn a_thread_has_dram_follow() {
    let (_drives, store) = store(false);
    let host = HostExecutor::attach(&store, counting(4)).unwrap();
    let (told, rounds) = channel();
    let soon = RerankerOptions::default().with_interval(Duration::from_millis(5));
    let reranker = host.start_reranker(&soon, move |round| _ = told.send(round)).unwrap();
    let again = host.start_reranker(&soon, |_| ());
    assert!(matches!(&again, Err(StoreError::ExecutorOptions { reason }) if reason.contains("drop it")), "{again:?}");
    let mut slot = slot(&host);
    let ids = hot(9);
    let until = Instant::now() + Duration::from_secs(60);
    while look_up(&mut slot, &ids).rows_ssd > 0 {
        assert!(Instant::now() < until, "DRAM does not follow");
    }
    assert!(rounds.iter().any(|round| round.unwrap().rows() > 0));
    drop(reranker);
    // Another may be started, and one whose host is gone ends by itself.
    let reranker = host.start_reranker(&soon, |_| ()).unwrap();
    drop((slot, host));
    drop(reranker);
    for refused in [
        RerankerOptions::default().with_newcomer_factor(0.5),
        RerankerOptions::default().with_newcomer_factor(f64::NAN),
        RerankerOptions::default().with_rate(0),
    ] {
        let host = HostExecutor::attach(&store, counting(1)).unwrap();
        let refused = host.start_reranker(&refused, |_| ());
        assert!(matches!(refused, Err(StoreError::ExecutorOptions { .. })), "{refused:?}");
    }
    let uncounted = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let refused = uncounted.rerank_by_counts(&RerankerOptions::default());
    assert!(matches!(&refused, Err(StoreError::ExecutorOptions { reason }) if reason.contains("with_counters")));
}

/// A round beside a load is refused by name, and one beside a switch to another generation gives way to it.
#[test]
fn rounds_give_way_to_loads_and_switches() {
    let (_drives, store) = store(false);
    let host = HostExecutor::attach(&store, counting(1)).unwrap();
    let mut slot = slot(&host);
    (0..20).for_each(|_| _ = look_up(&mut slot, &hot(3)));
    let spec = TableSpec::new("other", 10, 1, DType::F32);
    let source = &[0u8; 40][..];
    let mut refused = None;
    let loads = [warprow_store::TableLoad::new(&spec, &source)];
    store
        .load("other", &loads, &LoadOptions::default(), &mut |_| {
            refused.get_or_insert_with(|| host.rerank_by_counts(&RerankerOptions::default()));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    let refused = refused.unwrap();
    assert!(matches!(&refused, Err(StoreError::RerankBusy { by, .. }) if by.contains("load")), "{refused:?}");
    assert_eq!(store.dram_list("t").unwrap(), None);
    assert!(host.rerank_by_counts(&RerankerOptions::default()).unwrap().rows() > 0);
    assert_eq!(look_up(&mut slot, &hot(3)).rows_ssd, 0);
}

const CHILD: &str = "WARPROW_RERANKER_CHILD";

fn open(path: &Path, create: CreateDrive) -> Device {
    let address: DriveAddress = format!("emulated:{}?size=64M", path.display()).parse().unwrap();
    Device::open(&address, create).unwrap()
}

/// Not a test of its own: the process that is killed. It moves rows until then, and tells of each move.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let store = Store::open(&[open(Path::new(&path), CreateDrive::Never)], &OpenOptions::default()).unwrap();
    let host = HostExecutor::attach(&store, counting(1)).unwrap();
    let mut slot = slot(&host);
    let first = fastrand::u64(..1000);
    for turn in first.. {
        (0..40).for_each(|_| _ = look_up(&mut slot, &hot(turn)[..40]));
        let round = host.rerank_by_counts(&RerankerOptions::default()).unwrap();
        println!("moved {}", round.rows());
    }
}

/// `WARPROW_KILLS` sets how many processes are killed.
#[test]
fn killed_at_any_moment_there_is_a_whole_list_and_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.drive");
    let device = open(&path, CreateDrive::IfMissing);
    let proposal = FormatProposal::new(&[device], FormatSettings::default()).unwrap();
    let formatted = proposal.run(&FormatConsent::None, &mut |_, _| {}).unwrap();
    let spec = TableSpec { row_crc: true, ..TableSpec::new("t", ROWS, DIM as u32, DType::F32) };
    common::load(&formatted, &[Table { spec, rows: content(), ranks: None, keys: None }], &LoadOptions::default());
    drop(formatted);
    let kills = std::env::var("WARPROW_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(6);
    let seed = 77;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut lists = BTreeSet::new();
    for kill in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Once it has moved rows, at some moment of a later move.
        let mut told = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("moved ") || line.trim() == "moved 0" {
            line.clear();
            let read = std::io::BufRead::read_line(&mut told, &mut line).unwrap();
            assert!(read > 0, "kill {kill}: the process ended by itself: {:?}", child.wait());
        }
        std::thread::sleep(Duration::from_micros(random.u64(..60_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let store = Store::open(&[open(&path, CreateDrive::Never)], &OpenOptions::default()).unwrap();
        let list = store.dram_list("t").unwrap().expect("a list was committed");
        assert_eq!(list.len() as u64, HOT, "seed {seed}, kill {kill}");
        lists.insert(list);
        assert_eq!(store.verify_metadata().unwrap().bad, [], "seed {seed}, kill {kill}");
        let host =
            HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(DRAM).with_checked_rows()).unwrap();
        let all: Vec<u64> = (0..ROWS).collect();
        let mut slot = slot(&host);
        all.chunks(1000).for_each(|ids| _ = look_up(&mut slot, ids));
    }
    assert!(lists.len() as u64 > kills / 2, "{} lists after {kills} kills", lists.len());
}
