//! Keys that are removed under look-ups that go on, captured ones too.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use warprow_gpu::GpuExecutor;
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions, PrepareOptions};
use warprow_store::{DType, FingerprintWidth, KeyKind, LoadOptions, RowOrder, TableSpec, UpdateOptions};

use crate::common::{self, Keys, Table};
use crate::fixture::{Stream, gpu, patient, scaled, wait};
use crate::updates::{DIM, IDS, Over, Reader};

fn creating() -> UpdateOptions {
    UpdateOptions::default().with_created_keys()
}

fn bits(keys: &[i64]) -> Vec<u64> {
    keys.iter().map(|&key| key as u64).collect()
}

/// The table's keys and created ones, removed and created again, over a compaction that is not followed and one that is, from
/// each tier and from the cache: the model's rows, and the host's bits and counts, for keys that never were there too.
#[test]
fn removed_keys_are_missing_as_on_the_host() {
    let Some(gpu) = gpu() else { return };
    let shapes = [(0, 0, 0, false), (0, 0, 1 << 20, false), (0, 1 << 30, 0, true), (1 << 16, 1 << 16, 0, false)];
    for (seed, (checked, (hbm, dram, cache, direct))) in
        (0..).zip([false, true].into_iter().flat_map(|checked| shapes.map(|shape| (checked, shape))))
    {
        eprintln!("seed {seed}: keys compared: {checked}, {hbm} B in GPU memory, {dram} B in DRAM, {cache} B of cache");
        let mut random = fastrand::Rng::with_seed(seed);
        let (_drives, store) = common::store(2, 64 << 20, 512);
        let mut table = Table::random("t", 2000, DIM as u32, DType::F32, &mut random);
        table.rows = (0..2000 * DIM).flat_map(|_| random.f32().to_le_bytes()).collect();
        let own: Vec<i64> = (0..2000).map(|i| (random.i64(..) & !0xffff) + i).collect();
        let numbers = own.iter().map(|&key| key.into()).collect();
        let order = if seed % 2 == 0 { RowOrder::Given } else { RowOrder::Positions };
        // Of eight bits, so that foreign keys pass where they are not compared.
        let fingerprint = FingerprintWidth::Bits8;
        table.spec.default_row = None;
        table.keys = Some(Keys { numbers, kind: KeyKind::I64, fingerprint, order, stored: true });
        common::load(&store, std::slice::from_ref(&table), &LoadOptions::default());
        let mut model: HashMap<i64, Vec<u8>> =
            own.iter().copied().zip(table.rows.chunks(DIM * 4).map(Vec::from)).collect();
        // Each side holds 5,116 records. A removal below asks for 3,600 at most, which is within the 7/8 that is worth a change of sides; and a
        // side is full in the second of six turns.
        let mut options =
            patient().with_hbm_bytes(hbm).with_dram_bytes(dram).with_overlay_bytes(5 << 18).with_adopting();
        options.check_keys = checked;
        let options = if cache > 0 { options.with_cache_bytes(cache) } else { options };
        let options = if direct { options } else { options.with_direct_ids(0) };
        let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
        let mut host_options = HostOptions::default();
        host_options.check_keys = checked;
        let host = HostExecutor::attach(&store, host_options).unwrap();
        let features = [Feature::new("f", "t")];
        let plan_options = || PlanOptions::default().with_max(1, 6000).with_adopt_room();
        let on_gpu = executor.plan(&features, plan_options()).unwrap();
        let on_host = host.plan(&features, plan_options()).unwrap();
        let mut slot = on_gpu.slot().unwrap().copied().unwrap();
        let new: Vec<i64> = (0..1500).map(|i| (random.i64(..) & !0xffff) + 3000 + i).collect();
        let never: Vec<i64> = (0..1500).map(|i| (random.i64(..) & !0xffff) + 6000 + i).collect();
        let mut ids = [&own[..], &new[..], &never[..]].concat();
        random.shuffle(&mut ids);
        // `told`: keys of which an overlay or the index that is read knows. Others may pass where they are not compared, also those that
        // a compaction has taken out of the index.
        let mut look = |model: &HashMap<i64, Vec<u8>>, told: &HashSet<i64>, how: &str| {
            let arrays = || (vec![0f32; ids.len() * DIM], vec![7u8; ids.len()]);
            let ((mut due, mut due_mask), (mut rows, mut mask)) = (arrays(), arrays());
            let mut out = Output::new(OutputRows::F32(&mut due), DIM).with_mask(&mut due_mask);
            let by_host = on_host.slot().unwrap().lookup(&Batch::new(&ids, 1), &mut out).unwrap();
            let mut out = Output::new(OutputRows::F32(&mut rows), DIM).with_mask(&mut mask);
            let report = slot.lookup(&Batch::new(&ids, 1), &mut out).unwrap();
            assert_eq!((report.missing, report.failed), (by_host.missing, 0), "{how}");
            assert_eq!(mask, due_mask, "{how}");
            for (at, (id, row)) in ids.iter().zip(rows.chunks(DIM)).enumerate() {
                let row: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
                let due: Vec<u8> = due[at * DIM..][..DIM].iter().flat_map(|value| value.to_le_bytes()).collect();
                assert_eq!(row, due, "{how}, key {id}: not the host's row");
                let is_exact = checked || told.contains(id);
                match model.get(id) {
                    Some(wanted) => assert_eq!((&row, mask[at]), (wanted, 1), "{how}, key {id}"),
                    None if is_exact => assert_eq!((row, mask[at]), (vec![0; DIM * 4], 0), "{how}, key {id} is there"),
                    None => {}
                }
            }
        };
        let create = |model: &mut HashMap<i64, Vec<u8>>, random: &mut fastrand::Rng, keys: &[i64]| {
            let rows: Vec<u8> = (0..keys.len() * DIM).flat_map(|_| random.f32().to_le_bytes()).collect();
            store.update_with("t", &bits(keys), &rows, &creating()).unwrap();
            model.extend(keys.iter().copied().zip(rows.chunks(DIM * 4).map(Vec::from)));
        };
        let remove = |model: &mut HashMap<i64, Vec<u8>>, keys: &[i64]| {
            let there = keys.iter().filter(|&key| model.remove(key).is_some()).count() as u64;
            assert_eq!(store.remove("t", &bits(keys)).unwrap(), there);
        };
        let mut told: HashSet<i64> = own.iter().copied().collect();
        look(&model, &told, "as loaded");
        // Twice, so that rows are in the cache.
        look(&model, &told, "as loaded, again");
        remove(&mut model, &own[..300]);
        look(&model, &told, "the table's keys removed");
        told.extend(&new[..1000]);
        create(&mut model, &mut random, &new[..1000]);
        remove(&mut model, &[&new[..400], &own[200..500], &never[..3]].concat());
        look(&model, &told, "created ones removed too");
        create(&mut model, &mut random, &[&new[..100], &own[..100]].concat());
        look(&model, &told, "some created again");
        // The overlay's sides change places again and again.
        for turn in 0..6 {
            create(&mut model, &mut random, &[&new[..500], &own[1000..1800]].concat());
            remove(&mut model, &[&new[turn * 50..500], &own[1000 + turn * 100..1800]].concat());
        }
        look(&model, &told, "many times");
        store.compact(0).unwrap();
        look(&model, &told, "a compaction that nobody follows");
        remove(&mut model, &[&new[600..700], &own[600..700], &own[..50]].concat());
        create(&mut model, &mut random, &[&new[1000..1100], &own[250..300]].concat());
        told.extend(&new[1000..1100]);
        look(&model, &told, "changed by an index that is not the one read");
        let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
        remove(&mut model, &own[700..710]);
        executor.adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
        drop(upcoming);
        let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
        host.adopt(upcoming, scaled(Duration::from_secs(10))).unwrap();
        let mut told: HashSet<i64> = own[700..710].iter().copied().collect();
        look(&model, &told, "adopted");
        told.extend([&own[900..950], &new[1000..1050]].concat());
        remove(&mut model, &[&own[900..950], &new[1000..1050]].concat());
        look(&model, &told, "removed from what was adopted");
    }
}

/// Sixteen keys, half of which the table did not have, are given a number together, or removed together: captured look-ups and calls
/// find all with one number, or none, and nothing that was over before they began.
#[test]
fn captured_look_ups_see_whole_removals() {
    let Some(gpu) = gpu() else { return };
    const VERSIONS: u64 = 200;
    // What a version shows: its number, or that all are missing.
    let shows = |version: u64| if version % 2 == 1 { version } else { 0 };
    for (dram, following) in [(0, true), (1 << 20, false)] {
        let (_drives, store) = common::store(2, 64 << 20, 512);
        let spec = TableSpec::new("a", 400, DIM as u32, DType::F32);
        let numbers = (0..400).map(|i| i * 1_000_003).collect();
        let fingerprint = FingerprintWidth::Bits32;
        let keys = Some(Keys { numbers, kind: KeyKind::U64, fingerprint, order: RowOrder::Given, stored: true });
        let table = Table { rows: vec![0; 400 * DIM * 4], ranks: None, keys, spec };
        common::load(&store, &[table], &LoadOptions::default());
        let mut options = patient().with_dram_bytes(dram).with_overlay_bytes(100_000);
        options.adopting = following;
        let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
        let options = PlanOptions::default().with_max(IDS, IDS).with_slots(2);
        let plan = executor
            .plan(&Reader::features(false), if following { options.with_adopt_room() } else { options })
            .unwrap();
        let together: Vec<u64> = (0..16).map(|i| i * 25 * 1_000_003 + i % 2).collect();
        store.remove("a", &together).unwrap();
        let over = AtomicBool::new(false);
        let [begun, ended] = [const { AtomicU64::new(0) }; 2];
        std::thread::scope(|scope| {
            let readers: Vec<_> = [false, true]
                .into_iter()
                .map(|captured| {
                    let (gpu, plan, together, over, begun, ended) = (&gpu, &plan, &together, &over, &begun, &ended);
                    scope.spawn(move || {
                        let reader = Reader::of(gpu, (0..IDS).map(|at| together[at % 16]).collect(), false);
                        let slot = plan.slot().unwrap();
                        let stream = Stream::new(gpu);
                        let graph = captured.then(|| reader.capture(gpu, &slot, &stream));
                        let (mut found, mut missed) = (0u64, 0u64);
                        while !over.load(Ordering::Acquire) {
                            let least = ended.load(Ordering::Acquire);
                            let report = match &graph {
                                Some((graph, ticket)) => {
                                    stream.launch(gpu, graph);
                                    stream.wait(gpu);
                                    wait(ticket).unwrap()
                                }
                                None => wait(&reader.launch(&slot, &stream).unwrap()).unwrap(),
                            };
                            let most = begun.load(Ordering::Acquire);
                            let got = reader.elements();
                            let number = got[0] as u64;
                            assert!(got.iter().all(|&other| other == number as f32), "{number}: {got:?}");
                            assert!(
                                (least..=most).any(|version| shows(version) == number),
                                "{number}, {least}..={most}"
                            );
                            assert_eq!(report.missing, if number == 0 { IDS as u64 } else { 0 }, "{report:?}");
                            (found, missed) = (found + u64::from(number > 0), missed + u64::from(number == 0));
                        }
                        (found, missed)
                    })
                })
                .collect();
            let ends = Over(&over);
            for version in 1..=VERSIONS {
                begun.store(version, Ordering::Release);
                match shows(version) {
                    0 => assert_eq!(store.remove("a", &together).unwrap(), 16),
                    number => {
                        let rows: Vec<u8> = (0..16 * DIM).flat_map(|_| (number as f32).to_le_bytes()).collect();
                        store.update_with("a", &together, &rows, &creating()).unwrap();
                    }
                }
                ended.store(version, Ordering::Release);
                if version.is_multiple_of(69) {
                    store.compact(0).unwrap();
                    if following {
                        let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
                        executor.adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
                    }
                }
            }
            drop(ends);
            for reader in readers {
                let (found, missed) = reader.join().unwrap();
                assert!(found > 3 && missed > 3, "{found} look-ups found them, {missed} did not");
            }
        });
    }
}
