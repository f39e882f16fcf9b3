//! Keys that are removed: missing in every look-up that begins later, over compaction and opening; or refused.

#[path = "../../lookup/tests/common/mod.rs"]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use common::{Keys, Table};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_layout::FormatOptions;
use warprow_lookup::{
    Batch, BoundsCheck, Feature, HostExecutor, HostOptions, LookupError, MissingPolicy, Output, OutputRows,
    PlanOptions, PrepareOptions,
};
use warprow_soft_controller::SoftController;
use warprow_store::{
    DType, FingerprintWidth, KeyKind, LoadOptions, MetadataReport, OpenOptions, Ranks, RowOrder, Store, StoreError,
    TableSpec, UpdateOptions,
};

/// Bytes of a row.
const ROW: usize = 24;
/// Keys that the table has at first, and keys that there are at all.
const ROWS: u64 = 150;
const ALL: u64 = 400;

type Model = BTreeMap<u64, Vec<u8>>;

fn key(number: u64) -> u64 {
    number * 1_000_003 + 5
}

fn row(number: u64, version: u64) -> Vec<u8> {
    let mut row = vec![0; ROW];
    fastrand::Rng::with_seed(number << 32 | version).fill(&mut row);
    row
}

fn creating() -> UpdateOptions {
    UpdateOptions::default().with_created_keys()
}

fn store() -> (Vec<Arc<SoftController>>, Store) {
    let drives: Vec<_> = [8, 12].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let options = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let store = Store::create(&common::devices(&drives), &options, &OpenOptions::default()).unwrap();
    (drives, store)
}

fn table(order: RowOrder, fingerprint: FingerprintWidth) -> Table {
    let spec = TableSpec { row_crc: true, hot_rows: 40, ..TableSpec::new("t", ROWS, ROW as u32, DType::U8) };
    let numbers = (0..ROWS).map(|number| key(number).into()).collect();
    let keys = Some(Keys { kind: KeyKind::U64, fingerprint, order, stored: true, numbers });
    Table { spec, rows: (0..ROWS).flat_map(|number| row(number, 0)).collect(), ranks: None, keys }
}

/// Another table of the generation, by ids.
fn dense() -> Table {
    let spec = TableSpec { row_crc: true, ..TableSpec::new("dense", 50, ROW as u32, DType::U8) };
    Table { spec, rows: (0..50).flat_map(|id| row(id, 77)).collect(), ranks: None, keys: None }
}

fn loaded() -> Model {
    (0..ROWS).map(|number| (key(number), row(number, 0))).collect()
}

fn attach(store: &Store, check_keys: bool, dram: u64, cache: u64) -> HostExecutor {
    let mut options = HostOptions::default().with_dram_bytes(dram).with_cache_bytes(cache).with_checked_rows();
    options.check_keys = check_keys;
    HostExecutor::attach(store, options).unwrap()
}

/// Looks up all keys that there are, twice each, at once and fetched ahead: rows, masks and counts are what `model` says.
fn look_up(host: &HostExecutor, model: &Model) {
    let options = PlanOptions::default().with_max(1, 2 * ALL as usize).with_out(DType::U8).with_prefetch();
    let plan = host.plan(&[Feature::new("f", "t")], options).unwrap();
    let ids: Vec<u64> = (0..2 * ALL).map(|at| key(at * 7 % ALL)).collect();
    for ahead in [false, true] {
        let mut rows = vec![7; ids.len() * ROW];
        let mut mask = vec![7; ids.len()];
        let mut out = Output::new(OutputRows::U8(&mut rows), ROW).with_mask(&mut mask);
        let mut slot = plan.slot().unwrap();
        let batch = Batch::new(&ids, 1);
        let report = match ahead {
            false => slot.lookup(&batch, &mut out).unwrap(),
            true => {
                slot.prefetch(&batch).unwrap();
                slot.lookup_prefetched(&mut out).unwrap()
            }
        };
        for ((id, row), mask) in ids.iter().zip(rows.chunks(ROW)).zip(&mask) {
            let wanted = model.get(id);
            assert_eq!((row, *mask), (wanted.map_or(&[0; ROW][..], |row| row), u8::from(wanted.is_some())), "key {id}");
        }
        assert_eq!(report.missing, mask.iter().filter(|&&mask| mask == 0).count() as u64);
        assert_eq!(report.ids, report.missing + report.ids_dram + report.ids_ssd + report.ids_cached);
    }
}

/// What the store says that it has, without look-ups.
fn stored(store: &Store) -> Model {
    let keys = store.keys("t").unwrap().unwrap();
    let removed: BTreeSet<u64> = store.removed("t").unwrap().into_iter().collect();
    let ranks = store.removed_ranks("t").unwrap();
    assert_eq!(ranks.iter().map(|&rank| keys[rank as usize]).collect::<BTreeSet<_>>(), removed);
    let mut found: Model = store.created("t").unwrap().into_iter().collect();
    let mut scanned = 0;
    let mut take = |rank: u64, row: &[u8]| {
        scanned += 1;
        if ranks.binary_search(&rank).is_err() {
            assert!(found.insert(keys[rank as usize], row.to_vec()).is_none());
        }
        ControlFlow::Continue(())
    };
    store.scan("t", 0..u64::MAX, &mut take).unwrap();
    assert_eq!((scanned, store.table("t").unwrap().rows), (keys.len(), keys.len() as u64));
    found
}

#[derive(Debug, Clone)]
enum Step {
    Update(Vec<u64>),
    Create(Vec<u64>),
    Remove(Vec<u64>),
    Compact,
    Reopen,
    Attach { dram: u64, cache: bool },
    Adopt,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let numbers = || prop::collection::vec(prop_oneof![0..20u64, 0..ALL], 1..40);
    let step = prop_oneof![
        2 => numbers().prop_map(Step::Update),
        2 => numbers().prop_map(Step::Create),
        4 => numbers().prop_map(Step::Remove),
        2 => Just(Step::Compact),
        1 => Just(Step::Reopen),
        1 => (0u64..2500, any::<bool>()).prop_map(|(dram, cache)| Step::Attach { dram, cache }),
        1 => Just(Step::Adopt),
    ];
    prop::collection::vec(step, 1..14)
}

/// Does one step, in the store and in the model.
struct Course {
    drives: Vec<Arc<SoftController>>,
    store: Option<Store>,
    hosts: Vec<HostExecutor>,
    model: Model,
    version: u64,
    checked: bool,
}

impl Course {
    fn step(&mut self, step: &Step) {
        let store = self.store.clone().unwrap();
        self.version += 1;
        match step {
            Step::Update(numbers) | Step::Create(numbers) => {
                let keys: Vec<u64> = numbers.iter().map(|&number| key(number)).collect();
                let version = self.version;
                let given = || numbers.iter().zip(0..).map(|(&number, at)| row(number, version << 8 | at));
                let rows: Vec<u8> = given().flatten().collect();
                let absent: BTreeSet<u64> = keys.iter().copied().filter(|key| !self.model.contains_key(key)).collect();
                match step {
                    Step::Create(_) => {
                        let new = store.check_update_with("t", &keys, &creating()).unwrap();
                        assert_eq!(new, absent.len() as u64);
                        store.update_with("t", &keys, &rows, &creating()).unwrap();
                    }
                    _ if absent.is_empty() => drop(store.update("t", &keys, &rows).unwrap()),
                    _ => {
                        let refused = store.update("t", &keys, &rows);
                        assert!(matches!(refused, Err(StoreError::NoSuchKey { .. })), "{refused:?}");
                        return;
                    }
                }
                self.model.extend(keys.into_iter().zip(given()));
            }
            Step::Remove(numbers) => {
                let keys: Vec<u64> = numbers.iter().map(|&number| key(number)).collect();
                let there: BTreeSet<u64> = keys.iter().copied().filter(|key| self.model.contains_key(key)).collect();
                assert_eq!(store.remove("t", &keys).unwrap(), there.len() as u64);
                self.model.retain(|key, _| !there.contains(key));
            }
            Step::Compact => {
                let needs = store.compaction_needs(0).unwrap();
                let copied = store.compact(0).unwrap() as u64;
                assert_eq!((copied, true), (needs.chunks, needs.has_room()), "{needs:?}");
                assert_eq!(store.pending_updates(0).unwrap(), None);
                assert!(store.removed("t").unwrap().is_empty() && store.created("t").unwrap().is_empty());
                let keys: BTreeSet<u64> = store.keys("t").unwrap().unwrap().into_iter().collect();
                assert_eq!(keys, self.model.keys().copied().collect());
                for table in ["t", "dense"] {
                    let verified = store.verify(table, &mut |_| ControlFlow::Continue(())).unwrap();
                    assert!(verified.is_sound(), "{verified:?}");
                }
            }
            Step::Reopen => {
                self.hosts.clear();
                self.store = None;
                drop(store);
                let open = |options| Store::open(&common::devices(&self.drives), &options).unwrap();
                look_up(&attach(&open(OpenOptions::default().with_read_only()), self.checked, 0, 0), &self.model);
                self.store = Some(open(OpenOptions::default()));
            }
            Step::Attach { dram, cache } => {
                self.hosts.truncate(1);
                self.hosts.push(attach(&store, self.checked, *dram, if *cache { 1 << 16 } else { 0 }));
            }
            Step::Adopt => {
                for host in &self.hosts {
                    let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
                    assert!(host.adopt(upcoming, Duration::from_secs(10)).unwrap());
                }
            }
        }
    }

    fn check(&self) {
        let store = self.store.as_ref().unwrap();
        self.hosts.iter().for_each(|host| look_up(host, &self.model));
        look_up(&attach(store, self.checked, 2000, 0), &self.model);
        assert!(stored(store) == self.model);
        let pending = store.pending_updates(0).unwrap();
        let of_table = pending.iter().flat_map(|pending| &pending.tables).find(|table| table.table == "t");
        let counts = of_table.map_or((0, 0), |table| (table.created, table.removed));
        let found = (store.created("t").unwrap().len() as u64, store.removed("t").unwrap().len() as u64);
        assert_eq!(counts, found);
        assert_eq!(store.has_key_changes("t").unwrap(), found != (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    /// Whatever is updated, created and removed when, under hosts that are as old as they like.
    #[test]
    fn a_store_is_a_map(steps in steps(), order in 0..3, checked: bool) {
        let (drives, store) = store();
        let order = match order {
            0 => RowOrder::Given,
            1 => RowOrder::Positions,
            _ => RowOrder::Ranks(Ranks::by_hotness(&(0..ROWS).map(|number| number * 7919 % 101).collect::<Vec<_>>())),
        };
        let fingerprint = if checked { FingerprintWidth::Bits8 } else { FingerprintWidth::Bits32 };
        common::load(&store, &[table(order, fingerprint), dense()], &LoadOptions::default());
        let mut course = Course { drives, store: Some(store), hosts: Vec::new(), model: loaded(), version: 0, checked };
        for step in &steps {
            course.step(step);
            course.check();
        }
        let store = course.store.as_ref().unwrap();
        prop_assert_eq!(store.verify_metadata().unwrap(), MetadataReport::default());
        let mut of_dense = Vec::new();
        store.scan("dense", 0..u64::MAX, &mut |_, row| {
            of_dense.extend_from_slice(row);
            ControlFlow::Continue(())
        }).unwrap();
        prop_assert_eq!(of_dense, dense().rows);
    }
}

/// In each place of a batch, with each policy: whatever a look-up gives for a key that never was there, it gives for one that was
/// removed, whether that was the table's or had been created.
#[test]
fn a_removed_key_is_as_one_that_never_was() {
    let (_drives, store) = store();
    let mut table = table(RowOrder::Given, FingerprintWidth::Bits32);
    table.spec.default_row = Some(vec![9; ROW]);
    common::load(&store, &[table], &LoadOptions::default());
    let [own, made, never, present] = [3, 300, 301, 4].map(key);
    store.update_with("t", &[made], &row(300, 1), &creating()).unwrap();
    assert_eq!(store.remove("t", &[own, made, never, own]).unwrap(), 2);
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    for missing in [MissingPolicy::Default, MissingPolicy::Zero, MissingPolicy::Skip, MissingPolicy::Error] {
        for bounds in [BoundsCheck::Ignore, BoundsCheck::Count, BoundsCheck::Report] {
            // These two exclude each other.
            if missing == MissingPolicy::Error && matches!(bounds, BoundsCheck::Ignore) {
                continue;
            }
            for padded in [false, true] {
                let of = |absent: u64| {
                    let feature = Feature::new("f", "t").missing(missing).bounds(bounds);
                    let feature = if padded { feature.padding(absent.into()) } else { feature };
                    let options = PlanOptions::default().with_max(4, 4).with_out(DType::U8);
                    let plan = host.plan(&[feature], options).unwrap();
                    let ids = [present, absent, present, absent];
                    let (mut rows, mut mask) = (vec![7; 4 * ROW], vec![7; 4]);
                    let mut out = Output::new(OutputRows::U8(&mut rows), ROW).with_mask(&mut mask);
                    let done = plan.slot().unwrap().lookup(&Batch::new(&ids, 4), &mut out);
                    let done = match done {
                        Ok(report) => {
                            let first =
                                report.first_missing.map(|first| (first.position, first.id == i128::from(absent)));
                            Ok((report.missing, report.padding, first))
                        }
                        Err(LookupError::MissingIds { positions, report }) => Err((positions, report.missing)),
                        Err(other) => panic!("{other}"),
                    };
                    (done, rows, mask)
                };
                let wanted = of(never);
                assert_eq!(wanted.0.is_err(), missing == MissingPolicy::Error && !padded, "{missing:?} {padded}");
                assert_eq!(of(own), wanted, "{missing:?} {bounds:?} {padded}");
                assert_eq!(of(made), wanted, "{missing:?} {bounds:?} {padded}");
            }
        }
    }
}

/// Where keys are not compared, foreign ones pass by their fingerprints; one that was created and removed does not.
#[test]
fn a_key_that_was_created_and_removed_passes_for_no_other() {
    let (_drives, store) = store();
    common::load(&store, &[table(RowOrder::Given, FingerprintWidth::Bits8)], &LoadOptions::default());
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let ids: Vec<u64> = (ROWS..ROWS + 2000).map(key).collect();
    let options = PlanOptions::default().with_max(1, ids.len()).with_out(DType::U8);
    let plan = host.plan(&[Feature::new("f", "t")], options).unwrap();
    let found = || {
        let mut rows = vec![0; ids.len() * ROW];
        let report =
            plan.slot().unwrap().lookup(&Batch::new(&ids, 1), &mut Output::new(OutputRows::U8(&mut rows), ROW));
        ids.len() as u64 - report.unwrap().missing
    };
    assert!((1..40).contains(&found()), "{}", found());
    for ids in ids.chunks(500) {
        store.update_with("t", ids, &vec![1; ids.len() * ROW], &creating()).unwrap();
    }
    assert_eq!(found(), 2000);
    assert_eq!(store.remove("t", &ids).unwrap(), 2000);
    assert_eq!((found(), store.has_key_changes("t").unwrap()), (0, false));
    // Nothing is left to bring into the table, and the log goes.
    store.compact(0).unwrap();
    assert_eq!((store.pending_updates(0).unwrap(), store.table("t").unwrap().rows), (None, ROWS));
}

/// A reader of another generation has the row still; the rows behind a removed one keep their order, and what was hot is hot.
#[test]
fn generations_and_ranks_stay_apart() {
    let (_drives, store) = store();
    let first = table(RowOrder::Given, FingerprintWidth::Bits32);
    common::load(&store, std::slice::from_ref(&first), &LoadOptions::default());
    common::load(&store, &[first], &LoadOptions::default().with_standby());
    let ids: Vec<u64> = store.generations().iter().map(|generation| generation.id).collect();
    let [shown, standby] = ids[..] else { panic!("{ids:?}") };
    let old = attach(&store, true, 1 << 20, 0);
    let gone: Vec<u64> = [0, 7, 39, 40, 100].map(key).to_vec();
    assert_eq!(store.remove_with("t", &gone, &UpdateOptions::default().with_generation(standby)).unwrap(), 5);
    let mut left = loaded();
    look_up(&old, &left);
    assert!(stored(&store) == left);
    store.compact(standby).unwrap();
    store.switch(standby, false).unwrap();
    // As before, until it adopts.
    look_up(&old, &left);
    left.retain(|key, _| !gone.contains(key));
    look_up(&attach(&store, true, 1 << 20, 0), &left);
    assert_eq!(store.keys("t").unwrap().unwrap(), left.keys().copied().collect::<Vec<_>>());
    let info = store.table("t").unwrap();
    assert_eq!((info.rows, info.hot_rows), (ROWS - 5, 37));
    store.switch(shown, false).unwrap();
    look_up(&attach(&store, true, 0, 0), &loaded());
}

#[test]
fn what_cannot_be_removed_is_refused_with_nothing_changed() {
    let (drives, store) = store();
    let mut forgotten = table(RowOrder::Given, FingerprintWidth::Bits16);
    forgotten.spec.name = "forgotten".into();
    forgotten.keys.as_mut().unwrap().stored = false;
    common::load(
        &store,
        &[table(RowOrder::Given, FingerprintWidth::Bits16), dense(), forgotten],
        &LoadOptions::default(),
    );
    let refused = store.remove("dense", &[3]);
    assert!(matches!(&refused, Err(StoreError::NotRemovable { table }) if table == "dense"), "{refused:?}");
    let refused = store.remove("forgotten", &[key(3)]);
    assert!(matches!(refused, Err(StoreError::NotUpdatable { .. })), "{refused:?}");
    let refused = store.remove("other", &[3]);
    assert!(matches!(refused, Err(StoreError::NoSuchTable { .. })), "{refused:?}");
    // Not the last one, however it is asked for; one that was created is one.
    let all: Vec<u64> = (0..ROWS).map(key).collect();
    let refused = store.remove("t", &all);
    assert!(matches!(&refused, Err(StoreError::NoKeyLeft { table }) if table == "t"), "{refused:?}");
    assert_eq!((stored(&store), store.pending_updates(0).unwrap()), (loaded(), None));
    assert_eq!((store.remove("t", &[]).unwrap(), store.remove("t", &[key(300)]).unwrap()), (0, 0));
    assert_eq!(store.pending_updates(0).unwrap(), None, "nothing was to be written");
    store.update_with("t", &[key(300)], &row(300, 1), &creating()).unwrap();
    assert_eq!(store.remove("t", &all).unwrap(), ROWS);
    assert!(matches!(store.remove("t", &[key(300)]), Err(StoreError::NoKeyLeft { .. })));
    drop(store);
    let store = Store::open(&common::devices(&drives), &OpenOptions::default()).unwrap();
    assert!(matches!(store.remove("t", &[key(300)]), Err(StoreError::NoKeyLeft { .. })));
    store.compact(0).unwrap();
    assert_eq!(stored(&store), Model::from([(key(300), row(300, 1))]));
    drop(store);
    let store = Store::open(&common::devices(&drives), &OpenOptions::default().with_read_only()).unwrap();
    assert!(store.remove("t", &[key(300)]).is_err());
}

/// A removal after which the generation could not be written anew is refused; else a compaction gives back the room of the rows.
#[test]
fn a_compaction_gives_the_room_back() {
    let (_drives, store) = store();
    // 4 MiB of rows, on 19 chunks of 1 MiB or so.
    const WIDE: usize = 4096;
    let rows = 1024u64;
    let spec = TableSpec::new("t", rows, WIDE as u32, DType::U8);
    let numbers = (0..rows).map(|number| key(number).into()).collect();
    let order = RowOrder::Given;
    let keys = Keys { kind: KeyKind::U64, fingerprint: FingerprintWidth::Bits16, order, stored: true, numbers };
    let content: Vec<u8> = (0..rows).flat_map(|number| [number as u8; WIDE]).collect();
    let wide = Table { spec, rows: content, ranks: None, keys: Some(keys) };
    common::load(&store, std::slice::from_ref(&wide), &LoadOptions::default());
    let before = store.free_bytes() >> 20;
    let gone: Vec<u64> = (0..rows).filter(|number| number % 4 != 1).map(key).collect();
    assert_eq!(store.remove("t", &gone).unwrap(), rows - rows / 4);
    store.compact(0).unwrap();
    assert!(store.free_bytes() >> 20 >= before + 2, "{} MiB are free, {before} were", store.free_bytes() >> 20);
    let mut found = Vec::new();
    store
        .scan("t", 0..u64::MAX, &mut |rank, row| {
            assert_eq!(row, [(rank * 4 + 1) as u8; WIDE]);
            found.push(rank);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(found.len() as u64, rows / 4);
    // Another model takes all that is free, but for a chunk.
    let filler = Table::random(
        "filler",
        ((store.free_bytes() >> 20) - 1) * 256 - 8,
        WIDE as u32,
        DType::U8,
        &mut fastrand::Rng::with_seed(1),
    );
    let filler = Table { ranks: None, spec: TableSpec { permuted: false, hot_rows: 0, ..filler.spec }, ..filler };
    let sources = &filler.rows[..];
    let load = warprow_store::TableLoad::new(&filler.spec, &sources);
    store.load("other", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    let free = store.free_bytes() >> 20;
    let refused = store.remove("t", &[key(1)]);
    match refused {
        Err(StoreError::NoRoomToCreate { needed, free: found, .. }) => assert!(found == free && needed > free),
        other => panic!("{other:?}, with {free} chunks free"),
    }
    assert!(!store.has_key_changes("t").unwrap());
}
