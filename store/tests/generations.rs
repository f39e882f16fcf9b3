//! Generations that stand by, switches under look-ups, and what pins what was read before.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::Table;
use warprow_layout::{FormatOptions, VolumeError};
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions, PrepareOptions};
use warprow_soft_controller::{Fault, Rule, SoftController};
use warprow_spec::NvmOpcode;
use warprow_store::{DType, LoadOptions, OpenOptions, Ranks, Store, StoreError, TableLoad, TableSpec};

const DIM: u32 = 16;
const ROWS: u64 = 3000;
const PATIENCE: Duration = Duration::from_secs(10);

/// An element of version `version`: exact in `f32`, and different in every version, table, row and column.
fn element(version: u64, table: u64, id: u64, column: usize) -> f32 {
    (version * 4_000_000 + table * 1_000_000 + id * 16 + column as u64) as f32
}

/// Two tables of a version: one in another order in each, one as it comes.
fn version(version: u64) -> [Table; 2] {
    [("a", 0), ("b", 1)].map(|(name, table)| {
        let mut spec = TableSpec::new(name, ROWS, DIM, DType::F32);
        (spec.permuted, spec.row_crc, spec.hot_rows) = (table == 0, true, 300);
        let counts: Vec<u64> = (0..ROWS).map(|id| (id * 7919 + version * 131) % ROWS).collect();
        let rows = (0..ROWS).flat_map(|id| (0..DIM as usize).map(move |column| element(version, table, id, column)));
        Table {
            rows: rows.flat_map(f32::to_le_bytes).collect(),
            ranks: spec.permuted.then(|| Ranks::by_hotness(&counts)),
            spec,
            keys: None,
        }
    })
}

fn load_as(store: &Store, model: &str, tables: &[Table], options: &LoadOptions) -> u64 {
    let sources: Vec<&[u8]> = tables.iter().map(|table| &table.rows[..]).collect();
    let loads: Vec<TableLoad<'_>> = tables
        .iter()
        .zip(&sources)
        .map(|(table, source)| {
            let load = TableLoad::new(&table.spec, source);
            table.ranks.as_ref().map_or(load, |ranks| load.with_ranks(ranks))
        })
        .collect();
    store.load(model, &loads, options, &mut |_| ControlFlow::Continue(())).unwrap().generation
}

/// Three drives of different sizes.
fn store() -> (Vec<std::sync::Arc<SoftController>>, Store) {
    let drives: Vec<_> = [24, 40, 64].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let options = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let store = Store::create(&common::devices(&drives), &options, &OpenOptions::default()).unwrap();
    (drives, store)
}

/// Looks ids up in both tables, unpooled, and compares all with what the version read must have; which version that is, by the
/// generation in the report.
fn check(plan: &warprow_lookup::Plan, random: &mut fastrand::Rng, mut version_of: impl FnMut(u64) -> u64) -> Duration {
    let ids: Vec<i64> = (0..64).map(|_| random.i64(0..ROWS as i64)).collect();
    let mut rows = vec![0.0; ids.len() * plan.width()];
    let mut slot = plan.slot().unwrap();
    let began = Instant::now();
    let report =
        slot.lookup(&Batch::new(&ids, 32), &mut Output::new(OutputRows::F32(&mut rows), plan.width())).unwrap();
    let took = began.elapsed();
    let version = version_of(report.generation);
    for (position, (id, row)) in ids.iter().zip(rows.chunks(plan.width())).enumerate() {
        for (column, &value) in row.iter().enumerate() {
            let wanted = element(version, (position / 32) as u64, *id as u64, column);
            assert_eq!(value, wanted, "generation {}, position {position}, id {id}", report.generation);
        }
    }
    took
}

fn plan(host: &HostExecutor, slots: u32) -> warprow_lookup::Plan {
    let features = [Feature::new("fa", "a"), Feature::new("fb", "b")];
    host.plan(&features, PlanOptions::default().with_max(32, 64).with_slots(slots)).unwrap()
}

#[test]
fn what_is_loaded_beside_is_found_after_a_switch_and_stays_so() {
    let (drives, store) = store();
    let first = load_as(&store, "model", &version(1), &LoadOptions::default());
    let second = load_as(&store, "model", &version(2), &LoadOptions::default().with_standby());
    let shown = |store: &Store| store.table("a").unwrap().generation;
    assert_eq!(shown(&store), first);
    assert_eq!(
        store.generations().iter().map(|generation| (generation.id, generation.found.len())).collect::<Vec<_>>(),
        [(first, 2), (second, 0)]
    );
    // Standing by, it is no table of the same name.
    assert!(matches!(store.drop_generation(first), Err(StoreError::Shown { tables, .. }) if tables == ["a", "b"]));
    store.switch(second, false).unwrap();
    assert_eq!(shown(&store), second);
    let opened = |store: Store| {
        drop(store);
        Store::open(&common::devices(&drives), &OpenOptions::default()).unwrap()
    };
    let store = opened(store);
    assert_eq!(shown(&store), second);
    // And back: the version before is still there.
    store.switch(first, false).unwrap();
    let store = opened(store);
    assert_eq!(shown(&store), first);
    store.drop_generation(second).unwrap();
    assert!(matches!(store.switch(second, false), Err(StoreError::Volume(VolumeError::NoSuchGeneration { .. }))));
    let free = store.free_bytes();
    assert_eq!(opened(store).free_bytes(), free);
}

#[test]
fn who_reads_since_before_a_switch_is_counted() {
    let (_drives, store) = store();
    let first = load_as(&store, "model", &version(1), &LoadOptions::default());
    let second = load_as(&store, "model", &version(2), &LoadOptions::default().with_standby());
    let readers = |id: u64| {
        store.generations().iter().find(|generation| generation.id == id).map(|generation| generation.readers)
    };
    assert_eq!((readers(first), readers(second)), (Some(0), Some(0)));
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let plan = plan(&host, 1);
    assert!(readers(first) >= Some(1));
    let held = readers(first);
    store.switch(second, false).unwrap();
    assert_eq!((readers(first), readers(second)), (held, Some(0)), "it reads what it read before");
    // The switch back changes the first once more, and the host has it as it was in the beginning.
    store.switch(first, false).unwrap();
    store.switch(second, false).unwrap();
    assert_eq!((readers(first), readers(second)), (held, Some(0)));
    check(&plan, &mut fastrand::Rng::with_seed(3), |generation| if generation == first { 1 } else { 2 });
    drop(plan);
    drop(host);
    assert_eq!((readers(first), readers(second)), (Some(0), Some(0)));
}

#[test]
fn a_switch_hides_no_table_unasked() {
    let (_drives, store) = store();
    let first = load_as(&store, "model", &version(1), &LoadOptions::default());
    let [a, _] = version(2);
    let second = load_as(&store, "model", &[a], &LoadOptions::default().with_standby());
    let refused = store.switch(second, false);
    assert!(
        matches!(&refused, Err(StoreError::Volume(VolumeError::TablesVanish { tables, .. })) if *tables == ["b"]),
        "{refused:?}"
    );
    assert_eq!(store.table("a").unwrap().generation, first);
    store.switch(second, true).unwrap();
    assert!(store.table("b").is_none());
}

#[test]
fn a_load_drops_what_it_hides_and_not_what_stands_by() {
    let (_drives, store) = store();
    load_as(&store, "model", &version(1), &LoadOptions::default());
    let standby = load_as(&store, "model", &version(2), &LoadOptions::default().with_standby());
    let third = load_as(&store, "model", &version(3), &LoadOptions::default().with_replace());
    assert_eq!(store.generations().iter().map(|generation| generation.id).collect::<Vec<_>>(), [standby, third]);
}

#[test]
fn other_models_are_not_hidden() {
    let (_drives, store) = store();
    let [a, b] = version(1);
    let first = load_as(&store, "ma", &[a], &LoadOptions::default());
    let other = load_as(&store, "mb", &[b], &LoadOptions::default());
    let [a, _] = version(2);
    let second = load_as(&store, "ma", &[a], &LoadOptions::default().with_standby());
    store.switch(second, false).unwrap();
    assert_eq!((store.table("a").unwrap().generation, store.table("b").unwrap().generation), (second, other));
    store.drop_generation(first).unwrap();
}

#[test]
fn tables_that_do_not_fit_a_plan_are_refused_before_anything_changes() {
    let (_drives, store) = store();
    load_as(&store, "model", &version(1), &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(u64::MAX >> 20)).unwrap();
    let plan = plan(&host, 1);
    let mut random = fastrand::Rng::with_seed(5);
    // Another dimension; other rows on drives than were (none).
    let mut wider = version(2);
    wider[0].spec.dim = DIM * 2;
    wider[0].spec.rows = ROWS / 2;
    wider[0].ranks = Some(Ranks::by_hotness(&(0..ROWS / 2).collect::<Vec<_>>()));
    let wider = load_as(&store, "model", &wider, &LoadOptions::default().with_standby());
    let refused = host.prepare(&PrepareOptions::default().with_generation(wider));
    assert!(matches!(&refused, Err(StoreError::Unfit { .. })), "{refused:?}");
    let [a, _] = version(2);
    let narrow = load_as(&store, "model", &[a], &LoadOptions::default().with_standby());
    let refused = host.prepare(&PrepareOptions::default().with_generation(narrow));
    assert!(matches!(&refused, Err(StoreError::NoSuchTable { table, .. }) if table == "b"), "{refused:?}");
    let unknown = host.prepare(&PrepareOptions::default().with_generation(99));
    assert!(matches!(unknown, Err(StoreError::Volume(VolumeError::NoSuchGeneration { id: 99 }))));
    check(&plan, &mut random, |_| 1);
}

#[test]
fn chunks_that_look_ups_may_read_are_not_given_away() {
    let (_drives, store) = store();
    let first = load_as(&store, "model", &version(1), &LoadOptions::default());
    let empty_of_first = store.free_bytes();
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let plan = plan(&host, 1);
    let mut random = fastrand::Rng::with_seed(6);
    let second = load_as(&store, "model", &version(2), &LoadOptions::default().with_standby());
    let upcoming = host.prepare(&PrepareOptions::default().with_generation(second)).unwrap();
    store.switch(second, false).unwrap();
    store.drop_generation(first).unwrap();
    let both = store.free_bytes();
    assert!(both < empty_of_first, "the host still reads the first");
    check(&plan, &mut random, |_| 1);
    // Loads into all that is left do not touch it.
    let mut loaded = 0;
    while store.free_bytes() > 4 << 20 {
        loaded = load_as(&store, "other", &version(9), &LoadOptions::default().with_standby());
    }
    check(&plan, &mut random, |_| 1);
    assert!(host.adopt(upcoming, PATIENCE).unwrap(), "nobody reads the first any more");
    check(&plan, &mut random, |_| 2);
    let before = store.free_bytes();
    store.drop_generation(loaded).unwrap();
    assert!(store.free_bytes() > before);
    let of_first = empty_of_first - both;
    assert!(store.free_bytes() >= of_first, "{} {of_first}", store.free_bytes());
}

/// Readers look up all the time while two versions take turns, each switch durable, each version with a DRAM tier of its own.
#[test]
fn a_thousand_switches_under_readers_mix_nothing() {
    const SWITCHES: u64 = 1000;
    let (_drives, store) = store();
    let first = load_as(&store, "model", &version(1), &LoadOptions::default());
    let second = load_as(&store, "model", &version(2), &LoadOptions::default().with_standby());
    let host =
        HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(100 << 10).with_checked_rows()).unwrap();
    let plan = plan(&host, 3);
    let version_of = |generation| if generation == first { 1 } else { 2 };
    let stop = AtomicBool::new(false);
    let of_version = [const { AtomicU64::new(0) }; 3];
    let look = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut times = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            times.push(check(&plan, &mut random, |generation| {
                of_version[version_of(generation) as usize].fetch_add(1, Ordering::Relaxed);
                version_of(generation)
            }));
        }
        times
    };
    std::thread::scope(|scope| {
        let look = &look;
        let readers: Vec<_> = (1..3u64).map(|seed| scope.spawn(move || look(seed))).collect();
        let mut random = fastrand::Rng::with_seed(77);
        for turn in 0..SWITCHES {
            let (next, version) = if turn % 2 == 0 { (second, 2) } else { (first, 1) };
            let upcoming = host.prepare(&PrepareOptions::default().with_generation(next)).unwrap();
            store.switch(next, false).unwrap();
            assert!(host.adopt(upcoming, PATIENCE).unwrap(), "a look-up takes longer than {PATIENCE:?}");
            // What begins after it reads the new one.
            check(&plan, &mut random, |generation| {
                assert_eq!(generation, next);
                version
            });
        }
        stop.store(true, Ordering::Relaxed);
        let mut times: Vec<Duration> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        times.sort_unstable();
        let of_version = of_version.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert!(of_version[1..].iter().all(|&count| count > 100), "look-ups of the versions: {of_version:?}");
        println!(
            "{} look-ups, p50 {:?}, p99.9 {:?}",
            times.len(),
            times[times.len() / 2],
            times[times.len() * 999 / 1000]
        );
    });
    assert_eq!(store.generations().len(), 2);
}

/// Makes flushes take so long that others can begin in the middle of a commit.
fn slow_flushes(drives: &[std::sync::Arc<SoftController>]) {
    for drive in drives {
        drive.faults().inject(Rule::new(Fault::Delay(Duration::from_millis(60))).io(NvmOpcode::FLUSH).always());
    }
}

/// While a switch is under way: a drop of what is being shown by it, and a load that would replace what was shown before it.
#[test]
fn drops_and_loads_go_by_what_is_shown_when_they_commit() {
    let (drives, store) = store();
    let first = load_as(&store, "model", &version(1), &LoadOptions::default());
    let second = load_as(&store, "model", &version(2), &LoadOptions::default().with_standby());
    slow_flushes(&drives);
    std::thread::scope(|scope| {
        let switching = scope.spawn(|| store.switch(second, false));
        std::thread::sleep(Duration::from_millis(100));
        let dropped = store.drop_generation(second);
        assert!(matches!(&dropped, Err(StoreError::Shown { tables, .. }) if *tables == ["a", "b"]), "{dropped:?}");
        switching.join().unwrap().unwrap();
    });
    std::thread::scope(|scope| {
        let switching = scope.spawn(|| store.switch(first, false));
        std::thread::sleep(Duration::from_millis(100));
        let third = load_as(&store, "model", &version(3), &LoadOptions::default().with_replace());
        switching.join().unwrap().unwrap();
        let left: Vec<u64> = store.generations().iter().map(|generation| generation.id).collect();
        assert_eq!(left, [second, third], "what stood by since the switch stays, what it showed goes");
    });
}
