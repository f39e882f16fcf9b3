//! Power cuts while updates create keys, while keys are removed, and while both are brought into their table, through the real driver, on drives with a volatile
//! write cache. After each the table has what was acknowledged, maybe some of what was under way, and nothing else, key by key.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use warprow_driver::ControllerOptions;
use warprow_keys::{IndexOptions as KeyOptions, KeyIndex};
use warprow_layout::{DType, FormatOptions, RowOrder, TableKeys, TableSpec, format};
use warprow_soft_controller::{Fault, Namespace, PowerCut, QueueMatch, RamBacking, Rule, SoftController};
use warprow_store::{Device, LoadOptions, OpenOptions, Store, TableLoad, UpdateOptions};
use warprow_tests::{DrivenDrive, VirtualClock};

type Model = BTreeMap<u64, Vec<u8>>;

const NAME: &str = "items";
const ROWS: u64 = 120;
const DIM: u32 = 25;

/// What is done: so many keys changed, or created, by one update each, or removed by one call; then all is brought into the table.
const STEPS: [Step; 10] = [
    Step::Change(3),
    Step::Remove(2),
    Step::Change(40),
    Step::Compact,
    Step::Change(1),
    Step::Remove(20),
    Step::Change(12),
    Step::Compact,
    Step::Change(2),
    Step::Remove(1),
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Change(usize),
    Remove(usize),
    Compact,
}

struct Fixture {
    drives: Vec<Arc<SoftController>>,
    clock: Arc<VirtualClock>,
    order: RowOrder,
}

fn row(key: u64, version: u64) -> Vec<u8> {
    let mut row = vec![0; DIM as usize * 4];
    fastrand::Rng::with_seed(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version).fill(&mut row);
    row
}

/// Key number `number`: those from `ROWS` on are not the table's.
fn key(number: u64) -> u64 {
    number * 1_000_003 + 5
}

/// A key with its new row; `None`: the key is removed.
type Changed = (u64, Option<Vec<u8>>);

/// All changes in their order: every other one with a row is of a key that nobody had. What is removed is there.
fn changes() -> Vec<Changed> {
    let mut random = fastrand::Rng::with_seed(9);
    let mut known = ROWS;
    let mut all: Vec<Changed> = Vec::new();
    for step in STEPS {
        match step {
            Step::Change(count) => {
                for _ in 0..count {
                    let version = all.len() as u64 + 1;
                    let number = if version.is_multiple_of(2) { known } else { random.u64(..known) };
                    known = known.max(number + 1);
                    all.push((key(number), Some(row(key(number), version))));
                }
            }
            Step::Remove(count) => {
                // Some of them were created, and some just now.
                let mut there: Vec<u64> = model(&all).into_keys().collect();
                random.shuffle(&mut there);
                all.extend(there.into_iter().take(count).map(|key| (key, None)));
            }
            Step::Compact => {}
        }
    }
    all
}

/// The table after so many changes.
fn model(changes: &[Changed]) -> Model {
    let mut model: Model = (0..ROWS).map(|number| (key(number), row(key(number), 0))).collect();
    for (key, row) in changes {
        match row {
            Some(row) => drop(model.insert(*key, row.clone())),
            None => drop(model.remove(key)),
        }
    }
    model
}

impl Fixture {
    fn new(count: usize, order: RowOrder) -> Result<Self> {
        let clock = VirtualClock::new();
        let drive = |index| {
            let namespace = Namespace::new(RamBacking::new(8 << 20)?).lba(512).write_cache(4 << 20);
            let builder = SoftController::builder().stepped().name(format!("drive {index}")).queue_pairs(8);
            Ok(builder.max_transfer(128 << 10).seed(index as u64).permute().namespace(namespace).build()?)
        };
        let drives = (0..count).map(drive).collect::<Result<Vec<Arc<SoftController>>>>()?;
        drives.iter().for_each(|drive| clock.step_too(drive.clone()));
        let driven = |drive: &Arc<SoftController>| {
            let options = ControllerOptions {
                queue_pairs: 2,
                admin_timeout: Duration::from_secs(1),
                ..ControllerOptions::default()
            };
            Ok(DrivenDrive::open(drive.clone(), clock.clone(), options)?)
        };
        {
            let driven = drives.iter().map(driven).collect::<Result<Vec<_>>>()?;
            format(&driven, &FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() })?;
        }
        Ok(Self { drives, clock, order })
    }

    fn store(&self) -> Result<Store> {
        let devices: Vec<Device> = self.drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
        let second = Duration::from_secs(1);
        let options = OpenOptions::default().with_clock(self.clock.clone());
        Ok(Store::open(&devices, &options.with_timeout(second).with_admin_timeout(second))?)
    }

    /// A table that keys are created in, and another of the same generation.
    fn load(&self) -> Result<()> {
        let keys: Vec<u64> = (0..ROWS).map(key).collect();
        let source = &keys[..];
        let options = KeyOptions::default().with_threads(1);
        let index = Arc::new(KeyIndex::build(source, &options, &mut |_| ControlFlow::Continue(()))?);
        let keyed = TableKeys::new(index, &source, self.order.clone(), true)?;
        let mut spec = TableSpec::new(NAME, ROWS, DIM, DType::F32).keyed(&keyed);
        spec.row_crc = true;
        let rows: Vec<u8> = keys.iter().flat_map(|&key| row(key, 0)).collect();
        let rows = &rows[..];
        let other = TableSpec { row_crc: true, ..TableSpec::new("other", ROWS, DIM, DType::F32) };
        let loads = [TableLoad::new(&spec, &rows).with_keys(&keyed), TableLoad::new(&other, &rows)];
        self.store()?.load("model", &loads, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
        Ok(())
    }

    /// Does the steps from where `done` changes are; how many changes were acknowledged, and are then under way.
    fn run(&self, changes: &[Changed], done: usize) -> (usize, usize, Result<()>) {
        let mut acknowledged = done;
        let mut under_way = done;
        let mut run = || -> Result<()> {
            let store = self.store()?;
            let mut next = 0;
            for step in STEPS {
                let (Step::Change(count) | Step::Remove(count)) = step else {
                    if next >= done {
                        store.compact(0)?;
                        ensure!(!store.has_key_changes(NAME)?, "created or removed keys are left");
                    }
                    continue;
                };
                let batch = changes.get(next.max(done)..next + count).unwrap_or_default();
                next += count;
                if batch.is_empty() {
                    continue;
                }
                let keys: Vec<u64> = batch.iter().map(|(key, _)| *key).collect();
                let rows: Vec<u8> = batch.iter().flat_map(|(_, row)| row.clone()).flatten().collect();
                under_way = next;
                match step {
                    Step::Remove(_) => ensure!(store.remove(NAME, &keys)? == keys.len() as u64, "a key was not there"),
                    _ => drop(store.update_with(NAME, &keys, &rows, &UpdateOptions::default().with_created_keys())?),
                }
                acknowledged = next;
            }
            Ok(())
        };
        let went = run();
        (acknowledged, under_way, went)
    }
}

/// What the store has.
fn stored(store: &Store) -> Result<Model> {
    let keys = store.keys(NAME)?.context("no keys are stored")?;
    let mut found: Model = store.created(NAME)?.into_iter().collect();
    let removed = store.removed_ranks(NAME)?;
    let created = found.len();
    let mut rows = 0;
    store.scan(NAME, 0..u64::MAX, &mut |rank, row| {
        if removed.binary_search(&rank).is_ok() {
            return ControlFlow::Continue(());
        }
        found.insert(keys.get(rank as usize).copied().unwrap_or(u64::MAX), row.to_vec());
        rows += 1;
        ControlFlow::Continue(())
    })?;
    ensure!(found.len() == created + rows, "a key is there twice");
    for table in [NAME, "other"] {
        let verified = store.verify(table, &mut |_| ControlFlow::Continue(()))?;
        ensure!(verified.is_sound(), "{table}: {verified:?}");
    }
    let mut number = 0;
    store.scan("other", 0..u64::MAX, &mut |id, found| {
        number += u64::from(found == row(key(id), 0));
        ControlFlow::Continue(())
    })?;
    ensure!(number == ROWS, "{number} of {ROWS} rows of the other table are right");
    Ok(found)
}

/// Cuts the power at each `step`th command of drive `on`, with each fate; how many cuts were checked.
fn cuts(order: &RowOrder, drives: usize, on: usize, step: usize, seeds: u64) -> Result<usize> {
    let changes = changes();
    let mut checked = 0;
    for command in (1u64..).step_by(step) {
        let mut happened = false;
        for fate in [PowerCut::LoseAll, PowerCut::KeepAll].into_iter().chain((0..seeds).map(PowerCut::Random)) {
            let what = || format!("command {command} of drive {on}, {fate:?}, {order:?}");
            let fixture = Fixture::new(drives, order.clone())?;
            fixture.load()?;
            let faults = fixture.drives[on].faults();
            let rule = faults.inject(Rule::new(Fault::Disappear).on(QueueMatch::Io).nth(command));
            let (acknowledged, under_way, went) = fixture.run(&changes, 0);
            let cut = fixture.drives[on].faults().fired(rule) == 1;
            ensure!(cut || went.is_ok(), "{}: it failed though there was power: {went:?}", what());
            happened |= cut;
            for (index, drive) in fixture.drives.iter().enumerate() {
                drive.faults().clear();
                drive.power_cut(match fate {
                    PowerCut::Random(seed) => PowerCut::Random(seed * 64 + index as u64),
                    other => other,
                })?;
            }
            let found = stored(&fixture.store().with_context(what)?).with_context(what)?;
            let there = (acknowledged..=under_way).find(|&count| model(&changes[..count]) == found);
            let there = there.with_context(|| {
                format!("{}: none of the states after {acknowledged} to {under_way} changes", what())
            })?;
            // It goes on.
            fixture.run(&changes, there).2.with_context(what)?;
            ensure!(stored(&fixture.store()?)? == model(&changes), "{}: what came later differs", what());
            checked += 1;
        }
        if !happened {
            break;
        }
    }
    Ok(checked)
}

#[test]
fn keys_created_on_one_drive() -> Result<()> {
    let checked = cuts(&RowOrder::Given, 1, 0, 3, 1)?;
    ensure!(checked > 40, "{checked} cuts");
    Ok(())
}

#[test]
fn keys_created_on_two_drives() -> Result<()> {
    let checked = cuts(&RowOrder::Positions, 2, 0, 5, 1)? + cuts(&RowOrder::Positions, 2, 1, 5, 1)?;
    ensure!(checked > 40, "{checked} cuts");
    Ok(())
}
