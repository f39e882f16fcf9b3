//! Last touches: what look-ups note, what is saved of it over updates, compactions and other tables, and which keys expire by it.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::{Keys, Table};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use warprow_layout::FormatOptions;
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, LookupError, MissingPolicy, Output, OutputRows, PlanOptions, Pooling,
    PrepareOptions,
};
use warprow_soft_controller::SoftController;
use warprow_store::{
    DType, ExpireOptions, FingerprintWidth, KeyKind, LastTouches, LoadOptions, OpenOptions, RowOrder, Store,
    StoreError, TableSpec, TouchesFileError, UpdateOptions,
};

/// Bytes of a row.
const ROW: usize = 24;
/// Keys that the table has at first, and keys that there are at all.
const ROWS: u64 = 120;
const ALL: u64 = 200;

fn key(number: u64) -> u64 {
    number * 1_000_003 + 5
}

fn keys(numbers: &[u64]) -> Vec<u64> {
    numbers.iter().map(|&number| key(number)).collect()
}

fn sparse(name: &str, order: RowOrder, stored: bool) -> Table {
    let spec = TableSpec { row_crc: true, hot_rows: 40, ..TableSpec::new(name, ROWS, ROW as u32, DType::U8) };
    let numbers = (0..ROWS).map(|number| key(number).into()).collect();
    let keys = Some(Keys { kind: KeyKind::U64, fingerprint: FingerprintWidth::Bits32, order, stored, numbers });
    Table { spec, rows: vec![9; ROWS as usize * ROW], ranks: None, keys }
}

fn dense() -> Table {
    let spec = TableSpec { row_crc: true, ..TableSpec::new("dense", 50, ROW as u32, DType::U8) };
    Table { spec, rows: vec![8; 50 * ROW], ranks: None, keys: None }
}

fn store(tables: &[Table]) -> (Vec<Arc<SoftController>>, Store) {
    let drives: Vec<_> = [8, 12].map(|size| common::drive(&format!("drive{size}"), size << 20, 512)).to_vec();
    let options = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let store = Store::create(&common::devices(&drives), &options, &OpenOptions::default()).unwrap();
    common::load(&store, tables, &LoadOptions::default());
    (drives, store)
}

fn attach(store: &Store, epoch: u16, hot: bool, cache: bool) -> HostExecutor {
    let dram = if hot { 50 * ROW as u64 } else { 0 };
    let cache = if cache { 64 << 10 } else { 0 };
    let options = HostOptions::default().with_dram_bytes(dram).with_cache_bytes(cache).with_touch_epoch(epoch);
    HostExecutor::attach(store, options.with_checked_rows().with_checked_keys()).unwrap()
}

/// Looks keys up, plainly or fetched ahead, as rows or as a sum.
fn look_up(host: &HostExecutor, table: &str, keys: &[u64], ahead: bool, pooled: bool) {
    let options = PlanOptions::default().with_max(1, keys.len()).with_out(DType::F32).with_prefetch();
    let feature = Feature::new("f", table);
    let feature = if pooled { feature.pooling(Pooling::Sum) } else { feature };
    let mut slot = host.plan(&[feature], options).unwrap().slot().unwrap();
    let mut rows = vec![0.0f32; keys.len() * ROW];
    let mut out = Output::new(OutputRows::F32(&mut rows), ROW);
    let batch = Batch::new(keys, 1);
    match ahead {
        true => {
            slot.prefetch(&batch).unwrap();
            slot.lookup_prefetched(&mut out).unwrap()
        }
        false => slot.lookup(&batch, &mut out).unwrap(),
    };
}

/// What an executor's look-ups have noted, by the words of `docs/updates.md`.
#[derive(Debug, Default)]
struct Model {
    epoch: u16,
    /// The epoch at which the executor was attached.
    began: u16,
    /// Keys of the store: those of the index, and the changes since.
    index: BTreeSet<u64>,
    updated: BTreeSet<u64>,
    removed: BTreeSet<u64>,
    created: BTreeSet<u64>,
    /// The index and changes that the executor reads.
    read: BTreeSet<u64>,
    read_updated: BTreeSet<u64>,
    read_removed: BTreeSet<u64>,
    noted: BTreeMap<u64, u16>,
    saved: BTreeMap<u64, u16>,
}

impl Model {
    fn note(&mut self, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            let noted = self.noted.entry(key).or_default();
            *noted = self.epoch.max(*noted);
        }
    }

    fn note_updated(&mut self) {
        let updated: Vec<u64> = self.read_updated.iter().copied().collect();
        self.note(updated);
    }

    fn has(&self, key: u64) -> bool {
        self.created.contains(&key) || self.index.contains(&key) && !self.removed.contains(&key)
    }

    fn look_up(&mut self, keys: &[u64]) {
        let found: Vec<u64> = keys.iter().copied().filter(|key| self.read.contains(key)).collect();
        self.note(found);
    }

    fn attach(&mut self) {
        (self.began, self.noted) = (self.epoch, BTreeMap::new());
        self.read = self.index.clone();
        (self.read_updated, self.read_removed) = (self.updated.clone(), self.removed.clone());
    }

    fn adopt(&mut self) {
        self.note_updated();
        let new: Vec<u64> = self
            .index
            .iter()
            .copied()
            .filter(|key| !self.read.contains(key) || self.read_removed.contains(key))
            .filter(|_| self.index != self.read)
            .collect();
        self.note(new);
        self.read = self.index.clone();
        (self.read_updated, self.read_removed) = (self.updated.clone(), self.removed.clone());
    }

    fn save(&mut self) {
        self.note_updated();
        self.saved.retain(|key, _| self.read.contains(key) && !self.read_removed.contains(key));
        for &key in self.read.iter().filter(|key| !self.read_removed.contains(key)) {
            let noted = self.noted.get(&key).copied();
            let saved = self.saved.get(&key).copied();
            self.saved.insert(key, noted.max(saved).unwrap_or(self.began));
        }
    }

    fn change(&mut self, key: u64, is_removal: bool) {
        // The executor's index has the key or not, whatever the store's has.
        for (index, updated, removed, created) in [
            (&self.index, &mut self.updated, &mut self.removed, Some(&mut self.created)),
            (&self.read, &mut self.read_updated, &mut self.read_removed, None),
        ] {
            match (index.contains(&key), is_removal) {
                (true, true) => {
                    removed.insert(key);
                    updated.remove(&key);
                }
                (true, false) => {
                    updated.insert(key);
                    removed.remove(&key);
                }
                (false, true) => created.into_iter().for_each(|created| {
                    created.remove(&key);
                }),
                (false, false) => created.into_iter().for_each(|created| {
                    created.insert(key);
                }),
            }
        }
    }

    fn compact(&mut self) {
        self.index = (0..ALL).map(key).filter(|&key| self.has(key)).collect();
        (self.updated, self.removed, self.created) = Default::default();
    }

    fn expired(&self, before: u16) -> Vec<u64> {
        let is_expired = |key: &u64| self.saved.get(key).is_some_and(|&last| last < before);
        let stays = |key: &u64| self.removed.contains(key) || self.updated.contains(key);
        self.index.iter().copied().filter(|key| is_expired(key) && !stays(key)).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    LookUp { numbers: Vec<u64>, ahead: bool, pooled: bool },
    Epoch(u16),
    Update(Vec<u64>),
    Remove(Vec<u64>),
    Compact,
    Adopt,
    Attach { hot: bool, cache: bool },
    Save,
    Expire { age: u16, batch: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let numbers = || prop::collection::vec(prop_oneof![0..20u64, 0..ALL], 1..40);
    let step = prop_oneof![
        6 => (numbers(), any::<bool>(), any::<bool>())
            .prop_map(|(numbers, ahead, pooled)| Step::LookUp { numbers, ahead, pooled }),
        3 => (0u16..3).prop_map(Step::Epoch),
        2 => numbers().prop_map(Step::Update),
        2 => numbers().prop_map(Step::Remove),
        2 => Just(Step::Compact),
        2 => Just(Step::Adopt),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(hot, cache)| Step::Attach { hot, cache }),
        3 => Just(Step::Save),
        2 => (0u16..4, 1usize..50).prop_map(|(age, batch)| Step::Expire { age, batch }),
    ];
    prop::collection::vec(step, 1..25)
}

/// Does the steps, and compares what is saved and what expires with the model.
fn check(order: RowOrder, steps: &[Step]) {
    let (_drives, store) = store(&[sparse("t", order, true), dense()]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("touches");
    let mut model = Model { epoch: 1, index: (0..ROWS).map(key).collect(), ..Model::default() };
    model.attach();
    let mut host = attach(&store, 1, true, false);
    for step in steps {
        match step {
            Step::LookUp { numbers, ahead, pooled } => {
                look_up(&host, "t", &keys(numbers), *ahead, *pooled);
                model.look_up(&keys(numbers));
            }
            Step::Epoch(further) => {
                model.epoch += further;
                host.set_touch_epoch(model.epoch).unwrap();
            }
            Step::Update(numbers) => {
                let options = UpdateOptions::default().with_created_keys();
                store.update_with("t", &keys(numbers), &vec![7; numbers.len() * ROW], &options).unwrap();
                keys(numbers).into_iter().for_each(|key| model.change(key, false));
            }
            Step::Remove(numbers) => {
                match store.remove("t", &keys(numbers)) {
                    Ok(_) => keys(numbers).into_iter().for_each(|key| model.change(key, true)),
                    Err(error) => assert!(matches!(error, StoreError::NoKeyLeft { .. }), "{error}"),
                };
            }
            Step::Compact => {
                store.compact(store.table("t").unwrap().generation).unwrap();
                model.compact();
            }
            Step::Adopt => {
                let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
                host.adopt(upcoming, Duration::from_secs(5)).unwrap();
                model.adopt();
            }
            Step::Attach { hot, cache } => {
                host = attach(&store, model.epoch, *hot, *cache);
                model.attach();
            }
            Step::Save => {
                host.save_touches(&path).unwrap();
                model.save();
                let saved = LastTouches::read(&path).unwrap().unwrap();
                assert_eq!(saved.of("t").collect::<BTreeMap<_, _>>(), model.saved);
                assert_eq!(saved.tables().collect::<Vec<_>>(), ["t"]);
            }
            Step::Expire { age, batch } => {
                let Some(saved) = LastTouches::read(&path).unwrap() else { continue };
                let before = model.epoch.saturating_sub(*age);
                let wanted = model.expired(before);
                let present = (0..ALL).map(key).filter(|&key| model.has(key)).count();
                let planned = store.expired_keys("t", &saved, before);
                if !wanted.is_empty() && wanted.len() == present {
                    assert!(matches!(planned, Err(StoreError::NoKeyLeft { .. })), "{planned:?}");
                    continue;
                }
                let planned = planned.unwrap();
                assert_eq!(planned.keys.iter().copied().collect::<BTreeSet<_>>(), wanted.iter().copied().collect());
                assert_eq!((planned.keys.len(), planned.present), (wanted.len(), present as u64));
                let done = store.expire("t", &saved, &ExpireOptions::before(before).with_batch(*batch)).unwrap();
                assert_eq!((done.removed, done.present), (wanted.len() as u64, present as u64));
                assert_eq!((done.unknown, done.updated), (planned.unknown, planned.updated));
                wanted.iter().for_each(|&key| model.change(key, true));
                let left = store.expired_keys("t", &saved, before).unwrap();
                assert!(left.keys.is_empty(), "{left:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

    #[test]
    fn what_is_saved_and_what_expires_is_what_was_touched(given: bool, steps in steps()) {
        check(if given { RowOrder::Given } else { RowOrder::Positions }, &steps);
    }
}

#[test]
fn hits_of_every_tier_and_each_feature_are_touches() {
    let (_drives, store) = store(&[sparse("t", RowOrder::Given, true), sparse("u", RowOrder::Positions, true)]);
    let host = attach(&store, 1, true, true);
    let all: Vec<u64> = (0..ROWS).map(key).collect();
    // Fills the cache.
    look_up(&host, "t", &all, false, false);
    host.set_touch_epoch(2).unwrap();
    let before = host.cache_statistics().unwrap().hits;
    look_up(&host, "t", &all, false, false);
    assert!(host.cache_statistics().unwrap().hits > before);
    assert!(host.hot_rows("t").unwrap() > 0);
    let touches = host.last_touches(LastTouches::default()).unwrap();
    assert_eq!(touches.of("t").collect::<Vec<_>>(), all.iter().map(|&key| (key, 2)).collect::<Vec<_>>());
    assert_eq!(touches.of("u").collect::<Vec<_>>(), all.iter().map(|&key| (key, 1)).collect::<Vec<_>>());
}

#[test]
fn missing_ids_and_padding_are_no_touches_and_a_refused_batch_is_one() {
    let (_drives, store) = store(&[sparse("t", RowOrder::Given, true)]);
    let host = attach(&store, 1, false, false);
    host.set_touch_epoch(3).unwrap();
    let feature = Feature::new("f", "t").pooling(Pooling::Sum).padding(key(7).into()).missing(MissingPolicy::Error);
    let mut slot = host.plan(&[feature], PlanOptions::default().with_max(1, 4)).unwrap().slot().unwrap();
    let mut sums = [0.0; ROW];
    let ids = [key(7), key(8), key(ROWS + 1)];
    let refused = slot.lookup(&Batch::new(&ids, 1), &mut Output::new(OutputRows::F32(&mut sums), ROW));
    assert!(matches!(refused, Err(LookupError::MissingIds { .. })), "{refused:?}");
    let touches = host.last_touches(LastTouches::default()).unwrap();
    assert_eq!(
        (touches.last("t", key(7)), touches.last("t", key(8)), touches.of("t").count()),
        (Some(1), Some(3), 120)
    );
}

#[test]
fn several_executors_are_put_together() {
    let (_drives, store) = store(&[sparse("t", RowOrder::Given, true)]);
    let hosts: Vec<HostExecutor> = (0..3).map(|_| attach(&store, 5, false, false)).collect();
    for (number, host) in (0..).zip(&hosts) {
        host.set_touch_epoch(6 + number as u16).unwrap();
        let host = host.clone();
        // Threads of one executor touch the same keys at once.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| look_up(&host, "t", &keys(&[number, number + 1, number + 50]), false, false));
            }
        });
    }
    let mut touches = LastTouches::default();
    hosts.iter().for_each(|host| touches.merge(&host.last_touches(LastTouches::default()).unwrap()));
    let last = |number| touches.last("t", key(number)).unwrap();
    assert_eq!([0, 1, 2, 3, 4, 50, 51, 52, 53].map(last), [6, 7, 8, 8, 5, 6, 7, 8, 5]);
    // The keys that one of them touched stay.
    let report = store.expire("t", &touches, &ExpireOptions::before(6)).unwrap();
    assert_eq!((report.removed, report.present, report.unknown), (ROWS - 7, ROWS, 0));
}

#[test]
fn what_makes_no_sense_is_named() {
    let (_drives, store) =
        store(&[sparse("t", RowOrder::Given, true), sparse("forgotten", RowOrder::Given, false), dense()]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("touches");
    let reason = |result: Result<(), StoreError>| match result {
        Err(StoreError::ExecutorOptions { reason }) => reason,
        other => panic!("{other:?}"),
    };
    let zero = HostExecutor::attach(&store, HostOptions::default().with_touch_epoch(0));
    assert!(reason(zero.map(drop)).contains("HostOptions::touch_epoch is 0"));
    let plain = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    assert_eq!(plain.touch_epoch(), None);
    assert!(reason(plain.set_touch_epoch(3)).contains("HostOptions::touch_epoch"));
    assert!(reason(plain.save_touches(&path)).contains("HostOptions::touch_epoch"));
    let host = attach_plain(&store);
    host.set_touch_epoch(4).unwrap();
    assert!(reason(host.set_touch_epoch(3)).contains("epoch 3 of last touches comes before 4"));
    assert_eq!(host.touch_epoch(), Some(4));
    // Of tables whose keys cannot be removed nothing is noted.
    host.save_touches(&path).unwrap();
    let saved = LastTouches::read(&path).unwrap().unwrap();
    assert_eq!(saved.tables().collect::<Vec<_>>(), ["t"]);
    let expire = |table: &str| store.expire(table, &saved, &ExpireOptions::before(9));
    let refused = expire("dense");
    assert!(matches!(&refused, Err(StoreError::NotRemovable { table }) if table == "dense"), "{refused:?}");
    let refused = expire("forgotten");
    assert!(matches!(&refused, Err(StoreError::NoTouches { table, known }) if table == "forgotten" && known == &["t"]));
    let refused = expire("nobody");
    assert!(matches!(&refused, Err(StoreError::NoSuchTable { .. })), "{refused:?}");
    let refused = expire("t");
    assert!(matches!(&refused, Err(StoreError::NoKeyLeft { table }) if table == "t"), "{refused:?}");
    let mut known = LastTouches::default();
    known.touch("forgotten", [(key(1), 1)]);
    let refused = store.expire("forgotten", &known, &ExpireOptions::before(9));
    assert!(matches!(&refused, Err(StoreError::NotUpdatable { table }) if table == "forgotten"), "{refused:?}");
    assert_eq!(store.removed("t").unwrap(), [] as [u64; 0]);
    std::fs::write(&path, b"something else").unwrap();
    let refused = host.save_touches(&path);
    let is_it = |error: &StoreError| matches!(error, StoreError::TouchesFile { path: named, source: TouchesFileError::NotOne } if *named == path);
    assert!(refused.as_ref().is_err_and(is_it), "{refused:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"something else");
}

fn attach_plain(store: &Store) -> HostExecutor {
    HostExecutor::attach(store, HostOptions::default().with_touch_epoch(1)).unwrap()
}

#[test]
fn keys_that_a_compaction_brings_are_touched_when_they_are_adopted() {
    let (_drives, store) = store(&[sparse("t", RowOrder::Given, true)]);
    let host = attach(&store, 1, false, false);
    let create = |numbers: &[u64]| {
        let options = UpdateOptions::default().with_created_keys();
        store.update_with("t", &keys(numbers), &vec![7; numbers.len() * ROW], &options).unwrap();
    };
    let compact = || store.compact(store.table("t").unwrap().generation).unwrap();
    let adopt = |epoch| {
        host.set_touch_epoch(epoch).unwrap();
        let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
        host.adopt(upcoming, Duration::from_secs(5)).unwrap();
    };
    let last = |number| host.last_touches(LastTouches::default()).unwrap().last("t", key(number));
    // A new key; a row that is updated, and by then in the chunks; a key that is removed, and created again.
    create(&[ROWS, 1]);
    store.remove("t", &keys(&[2])).unwrap();
    compact();
    create(&[2]);
    compact();
    assert_eq!([0, 1, 2, ROWS].map(last), [Some(1), Some(1), Some(1), None]);
    adopt(4);
    assert_eq!([0, 1, 2, ROWS].map(last), [Some(1), Some(4), Some(4), Some(4)]);
    // Of an index that stays, updated rows alone.
    create(&[3]);
    compact();
    adopt(6);
    assert_eq!([0, 1, 2, 3, ROWS].map(last), [Some(1), Some(4), Some(4), Some(6), Some(4)]);
    // A key that is removed while the executor has it, and comes back with another index.
    host.set_touch_epoch(7).unwrap();
    look_up(&host, "t", &keys(&[5]), false, false);
    store.remove("t", &keys(&[5])).unwrap();
    assert_eq!(last(5), None);
    compact();
    create(&[5, ROWS + 1]);
    compact();
    adopt(9);
    assert_eq!([0, 5, ROWS, ROWS + 1].map(last), [Some(1), Some(9), Some(4), Some(9)]);
}
