//! Look-ups whose rows are fetched ahead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_gpu::GpuExecutor;
use warprow_gpu::{GpuError, GpuOptions, GpuPlan, GpuSlot, PrefetchedBatch};
use warprow_gpu_queues::Gpu;
use warprow_lookup::PrepareOptions;
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{NvmOpcode, StatusCode};
use warprow_store::{LoadOptions, TableSpec};

use crate::common::random::{Case, random_features, random_tables};
use crate::common::{self, Table};
use crate::fixture::{
    DIM, Fixture, Flat, OnGpu, ROWS, Stream, check_report, failed, gpu, one_batch, patient, scaled, short, soon, wait,
};

/// Batches are prefetched and looked up in any order by the slots of a plan, some are forgotten, and some slots look up
/// at once.
fn ahead_of(gpu: &Arc<Gpu>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let lba = if random.bool() { 512 } else { 4096 };
    let (_drives, store) = common::store(random.usize(1..4), 24 << 20, lba);
    let checked = random.bool();
    let mut tables = random_tables(&mut random);
    for table in &mut tables {
        if random.bool() {
            *table = table.clone().with_random_keys(checked, &mut random);
        }
    }
    common::load(&store, &tables, &LoadOptions::default());
    let budget = |random: &mut fastrand::Rng| [0, random.u64(..600_000), 1 << 30][random.usize(..3)];
    let attach = patient().with_hbm_bytes(budget(&mut random)).with_dram_bytes(budget(&mut random));
    let mut attach = attach.with_queue_sets(random.u32(1..3));
    (attach.check_keys, attach.check_rows, attach.adopting) = (checked, random.bool(), random.bool());
    if random.bool() {
        attach.overlay_bytes = 1 << 20;
    }
    let executor = GpuExecutor::attach(&store, gpu.clone(), attach).unwrap();
    // A loader's, and a model's.
    let streams = [Stream::new(gpu), Stream::new(gpu)];
    for _ in 0..2 {
        let (features, mut options) = random_features(&tables, &mut random);
        if random.bool() {
            options = options.with_max(3000, 40_000);
        }
        let plan = executor.plan(&features, options.clone().with_slots(3).with_prefetch()).unwrap();
        type Held = Option<(Case, OnGpu, PrefetchedBatch)>;
        let mut slots: Vec<(GpuSlot, Held)> = (0..3).map(|_| (plan.slot().unwrap(), None)).collect();
        for _ in 0..12 {
            let (slot, held) = &mut slots[random.usize(..3)];
            let Some((mut case, on, prefetched)) = held.take() else {
                let mut case = Case::random(&tables, &features, &options, plan.width(), true, &mut random);
                let on = OnGpu::new(gpu, &mut case);
                let batch = on.batch(&case, random.bool(), options.max_batch);
                // SAFETY: the memory of `on` lives until the look-up has ended, or the slot's next.
                let prefetched = unsafe { slot.prefetch(streams[0].0, &batch) }.unwrap();
                *held = Some((case, on, prefetched));
                continue;
            };
            if random.u32(..4) == 0 {
                drop(prefetched);
                one_batch((gpu, &plan, slot, &streams[1]), &tables, &features, &options, &mut random);
                continue;
            }
            if random.bool() {
                fetched(&prefetched);
                on.spoil_ids();
            }
            // SAFETY: as above.
            let ticket = unsafe { slot.lookup_prefetched(prefetched, streams[1].0, &on.output(&case)) }.unwrap();
            let report = wait(&ticket).unwrap();
            on.download(&mut case);
            case.check(&(seed, &features, &options));
            check_report(&report, &case);
        }
        // Before their ids go.
        slots.iter().filter_map(|(_, held)| held.as_ref()).for_each(|(.., prefetched)| fetched(prefetched));
    }
}

#[test]
fn prefetched_look_ups_match_the_naive_one() {
    let Some(gpu) = gpu() else { return };
    let seeds = std::env::var("WARPROW_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(24);
    for seed in 0..seeds {
        eprintln!("seed {seed}");
        ahead_of(&gpu, seed);
    }
}

/// Waits until rows are there.
fn fetched(prefetched: &PrefetchedBatch) {
    let began = Instant::now();
    while !prefetched.is_fetched().unwrap() {
        assert!(began.elapsed() < scaled(Duration::from_secs(60)), "the rows do not come");
        std::thread::yield_now();
    }
}

fn plan_of(fixture: &Fixture, gpu: &Arc<Gpu>, options: GpuOptions, slots: u32) -> GpuPlan {
    fixture.attach(gpu, options).plan(&Fixture::features(), Fixture::options(slots).with_prefetch()).unwrap()
}

fn unreadable() -> Fault {
    Fault::Status(StatusCode::UnrecoveredReadError.into())
}

/// Looked up when nothing can be read any more, behind a host that has nothing to wait for.
#[test]
fn rows_are_read_before_they_are_looked_up() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    for dram in [0, 500_000] {
        let plan = plan_of(&fixture, &gpu, patient().with_dram_bytes(dram), 2);
        let slots = [plan.slot().unwrap(), plan.slot().unwrap()];
        let stream = Stream::new(&gpu);
        let mut random = fastrand::Rng::with_seed(3);
        let flats = [900, 700].map(|count| Flat::new(&gpu, Fixture::ids(count, &mut random)));
        let ahead = [0, 1].map(|i: usize| flats[i].prefetch(&slots[i], &stream).unwrap());
        ahead.iter().for_each(fetched);
        for drive in &fixture.drives {
            drive.faults().inject(Rule::new(unreadable()).io(NvmOpcode::READ).always());
        }
        for ((flat, slot), prefetched) in flats.iter().zip(&slots).zip(ahead) {
            let ticket = flat.launch_prefetched(slot, prefetched, &stream).unwrap();
            let report = wait(&ticket).unwrap();
            assert_eq!(flat.check(&fixture, &"prefetched"), [0i64; 0]);
            assert_eq!((report.ids, report.failed), (flat.ids.len() as u64, 0));
            assert!(report.commands > 0 && report.rows_ssd == report.ids_ssd);
            assert_eq!(report.rows_dram, report.ids_dram, "rows in DRAM are fetched too");
        }
        assert!(failed(wait(&flats[0].launch(&slots[0], &stream).unwrap()), &"at once").ids > 0);
        fixture.drives.iter().for_each(|drive| drive.faults().clear());
    }
}

/// Another slot's look-up comes and goes while a command of a prefetch is under way.
#[test]
fn others_look_up_meanwhile() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = plan_of(&fixture, &gpu, patient(), 2);
    let ahead = plan.slot().unwrap();
    let now = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let (low, high): (Vec<i64>, Vec<i64>) = (0..ROWS as i64).partition(|id| *id < 1000);
    let slow = Flat::new(&gpu, low);
    let quick = Flat::new(&gpu, high[..900].to_vec());
    let lba = fixture.home(slow.ids[500] as u64).1;
    let late = Rule::new(Fault::Delay(scaled(Duration::from_secs(3)))).io(NvmOpcode::READ).lbas(lba..lba + 1);
    fixture.drives[0].faults().inject(late);
    let prefetched = slow.prefetch(&ahead, &stream).unwrap();
    for turn in 0..20 {
        quick.assert_found(&fixture, &now, &stream, &turn);
    }
    assert!(!prefetched.is_fetched().unwrap(), "one command takes three seconds");
    let report = wait(&slow.launch_prefetched(&ahead, prefetched, &stream).unwrap()).unwrap();
    assert_eq!(slow.check(&fixture, &"slow"), [0i64; 0]);
    assert_eq!((report.commands, report.anomalies), (1000, 0));
}

#[test]
fn what_befell_drives_is_told_by_the_look_up() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = plan_of(&fixture, &gpu, GpuOptions::default().with_timeout(short()), 2);
    let slot = plan.slot().unwrap();
    let other = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(4);
    for (what, fault) in [("lost", Fault::Drop), ("never carried out", Fault::Swallow), ("bad", unreadable())] {
        let flat = Flat::new(&gpu, Fixture::ids(900, &mut random));
        let resting = Flat::new(&gpu, Fixture::ids(900, &mut random));
        let held = resting.prefetch(&other, &stream).unwrap();
        fetched(&held);
        fixture.drives[0].faults().inject(Rule::new(fault).io(NvmOpcode::READ).nth(20));
        let prefetched = flat.prefetch(&slot, &stream).unwrap();
        fetched(&prefetched);
        let it = failed(wait(&flat.launch_prefetched(&slot, prefetched, &stream).unwrap()), &what);
        let lost = flat.check(&fixture, &what);
        assert!(it.ids > 0 && it.ids == lost.len() as u64, "{what}: {} failed, {} lost", it.ids, lost.len());
        let (cid, lba) = it.first.command;
        assert!(lost.iter().any(|&id| fixture.home(id as u64) == (0, lba)), "{what}: CID {cid:#x}, LBA {lba}");
        // The queue is started anew, for which nobody waits who rests; what rests is whole.
        let prefetched = flat.prefetch(&slot, &stream).unwrap();
        flat.reset();
        wait(&flat.launch_prefetched(&slot, prefetched, &stream).unwrap()).unwrap();
        assert_eq!(flat.check(&fixture, &what), [0i64; 0]);
        wait(&resting.launch_prefetched(&other, held, &stream).unwrap()).unwrap();
        assert_eq!(resting.check(&fixture, &what), [0i64; 0]);
        resting.assert_found(&fixture, &other, &stream, &what);
    }
}

#[test]
fn a_slot_holds_one_batch() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = plan_of(&fixture, &gpu, patient(), 2);
    let slot = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let mut random = fastrand::Rng::with_seed(5);
    let flat = Flat::new(&gpu, Fixture::ids(900, &mut random));
    let second = Flat::new(&gpu, Fixture::ids(800, &mut random));
    let (graph, captured) = second.capture(&gpu, &slot, &stream);
    let prefetched = flat.prefetch(&slot, &stream).unwrap();
    assert!(matches!(second.prefetch(&slot, &stream), Err(GpuError::SlotHoldsBatch)));
    assert!(matches!(second.launch(&slot, &stream), Err(GpuError::SlotHoldsBatch)));
    fetched(&prefetched);
    stream.launch(&gpu, &graph);
    assert!(matches!(wait(&captured), Err(GpuError::Busy(_))));
    second.assert_untouched(&"a graph whose slot was busy");
    wait(&flat.launch_prefetched(&slot, prefetched, &stream).unwrap()).unwrap();
    assert_eq!(flat.check(&fixture, &"beside"), [0i64; 0]);
    // Forgotten ones end by themselves; more than there are tickets.
    for turn in 0..20 {
        let prefetched = flat.prefetch(&slot, &stream).unwrap();
        if turn % 2 == 0 {
            fetched(&prefetched);
        }
        drop(prefetched);
        if turn % 3 == 0 {
            second.assert_found(&fixture, &slot, &stream, &turn);
        }
    }
    // Another slot's, and a plan without room: each is refused.
    let other = plan.slot().unwrap();
    flat.reset();
    let prefetched = flat.prefetch(&slot, &stream).unwrap();
    assert!(matches!(flat.launch_prefetched(&other, prefetched, &stream), Err(GpuError::Invalid { .. })));
    let without = fixture.plan(&gpu, patient(), 1).slot().unwrap();
    assert!(matches!(flat.prefetch(&without, &stream), Err(GpuError::Invalid { .. })));
    flat.assert_untouched(&"refused");
    // A slot that goes with a batch goes back to its plan. Graphs and tickets hold it too.
    drop((graph, captured));
    soon("the graph has let the slot go", || slot.captured_places().0 == 0);
    let prefetched = flat.prefetch(&slot, &stream).unwrap();
    drop(slot);
    drop(prefetched);
    let slot = plan.slot().unwrap();
    flat.assert_found(&fixture, &slot, &stream, &"again");
}

/// Other tables wait for what was prefetched, which sees those before.
#[test]
fn a_look_up_reads_the_tables_of_its_prefetch() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let mut options = patient().with_dram_bytes(300_000);
    options.adopting = true;
    let executor = fixture.attach(&gpu, options);
    let plan = executor.plan(&Fixture::features(), Fixture::options(1).with_adopt_room().with_prefetch()).unwrap();
    let slot = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    let flat = Flat::new(&gpu, Fixture::ids(900, &mut fastrand::Rng::with_seed(6)));
    let prefetched = flat.prefetch(&slot, &stream).unwrap();
    let spec = TableSpec::new("t", ROWS, DIM, warprow_store::DType::F32);
    let rows: Vec<u8> = fixture.table.rows.iter().map(|byte| byte ^ 0x55).collect();
    let second = Table { spec, rows, ranks: None, keys: None };
    common::load(&fixture.store, std::slice::from_ref(&second), &LoadOptions::default().with_replace());
    let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
    let early = executor.adopt(&upcoming, Duration::from_millis(50));
    assert!(matches!(early, Err(GpuError::Busy(_))), "{early:?}");
    wait(&flat.launch_prefetched(&slot, prefetched, &stream).unwrap()).unwrap();
    assert_eq!(flat.check(&fixture, &"before"), [0i64; 0]);
    executor.adopt(&upcoming, scaled(Duration::from_secs(10))).unwrap();
    let prefetched = flat.prefetch(&slot, &stream).unwrap();
    flat.reset();
    wait(&flat.launch_prefetched(&slot, prefetched, &stream).unwrap()).unwrap();
    let fixture = Fixture { table: second, ..fixture };
    assert_eq!(flat.check(&fixture, &"after"), [0i64; 0]);
}
