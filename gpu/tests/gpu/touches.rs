//! When keys were last touched by look-ups on a GPU: as the host notes it, also in graphs that were captured in an earlier epoch.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use warprow_gpu::{BatchLen, GpuBatch, GpuError, GpuExecutor, GpuOptions, GpuOutput, GpuSlot};
use warprow_gpu_queues::{DeviceMemory, Gpu};
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions, Pooling, PrepareOptions,
};
use warprow_store::{
    DType, ExpireOptions, FingerprintWidth, KeyKind, LastTouches, LoadOptions, RowOrder, Store, StoreError, TableSpec,
    UpdateOptions,
};

use crate::common::{self, Keys, Table};
use crate::fixture::{Stream, gpu, patient, scaled, wait};

const DIM: usize = 16;
const ROWS: usize = 2000;

/// The key of a number; each has a number of its own in the lower bits.
fn key(number: usize) -> i64 {
    (number as i64).wrapping_mul(0x9e37_79b9_0000) ^ number as i64
}

fn keys(numbers: impl IntoIterator<Item = usize>) -> Vec<i64> {
    numbers.into_iter().map(key).collect()
}

fn bits(keys: &[i64]) -> Vec<u64> {
    keys.iter().map(|&key| key as u64).collect()
}

fn table(rows: usize, dim: usize, fingerprint: FingerprintWidth, order: RowOrder) -> Table {
    let spec = TableSpec::new("t", rows as u64, dim as u32, DType::F32);
    let numbers = keys(0..rows).into_iter().map(i128::from).collect();
    let keys = Some(Keys { numbers, kind: KeyKind::I64, fingerprint, order, stored: true });
    let content = (0..rows).flat_map(|number| (number as f32).to_le_bytes().repeat(dim)).collect();
    Table { rows: content, ranks: None, spec, keys }
}

/// How rows of the two executors are looked up.
#[derive(Clone, Copy, Debug)]
struct Shape {
    hbm: u64,
    dram: u64,
    cache: u64,
    direct: bool,
    few: bool,
    checked: bool,
    pooled: bool,
}

/// Look-ups, updates, created and removed keys, compactions that are adopted: both executors note the same touches, and expire the same
/// keys.
fn agree(gpu: &Arc<Gpu>, seed: u64, shape: Shape) {
    let Shape { hbm, dram, cache, direct, few, checked, pooled } = shape;
    let mut random = fastrand::Rng::with_seed(seed);
    let (_drives, store) = common::store(2, 64 << 20, 512);
    let order = if seed.is_multiple_of(2) { RowOrder::Given } else { RowOrder::Positions };
    // Of eight bits, so that foreign keys pass where they are not compared.
    common::load(&store, &[table(ROWS, DIM, FingerprintWidth::Bits8, order)], &LoadOptions::default());
    let options = patient().with_hbm_bytes(hbm).with_dram_bytes(dram).with_cache_bytes(cache);
    let mut options = options.with_overlay_bytes(4 << 20).with_adopting().with_touch_epoch(1);
    options.check_keys = checked;
    let options = if direct { options } else { options.with_direct_ids(0) };
    let options = if few { options.with_one_kernel_ids(1024) } else { options };
    let executor = GpuExecutor::attach(&store, gpu.clone(), options).unwrap();
    let mut host_options = HostOptions::default().with_touch_epoch(1);
    host_options.check_keys = checked;
    let host = HostExecutor::attach(&store, host_options).unwrap();
    let pooling = if pooled { Pooling::Sum } else { Pooling::None };
    let features = [Feature::new("f", "t").pooling(pooling).padding(key(7).into())];
    let plan_options = || PlanOptions::default().with_max(1, 3000).with_adopt_room();
    let on_gpu = executor.plan(&features, plan_options()).unwrap();
    let on_host = host.plan(&features, plan_options()).unwrap();
    let mut slot = on_gpu.slot().unwrap().copied().unwrap();
    let creating = UpdateOptions::default().with_created_keys();
    let patience = scaled(Duration::from_secs(10));
    let mut epoch = 1;
    let compare = |when: &str| {
        let touches = executor.last_touches(LastTouches::default()).unwrap();
        assert!(touches == host.last_touches(LastTouches::default()).unwrap(), "{shape:?}, seed {seed}, {when}");
        touches
    };
    let mut look = |ids: &[i64], when: &str| {
        let mut both = [(); 2].map(|()| vec![0f32; if pooled { DIM } else { ids.len() * DIM }]);
        let [due, got] = &mut both;
        let mut out = Output::new(OutputRows::F32(due), DIM);
        on_host.slot().unwrap().lookup(&Batch::new(ids, 1), &mut out).unwrap();
        slot.lookup(&Batch::new(ids, 1), &mut Output::new(OutputRows::F32(got), DIM)).unwrap();
        assert!(due == got, "{shape:?}, seed {seed}, {when}: rows differ");
    };
    let raise = |epoch: u16| {
        executor.set_touch_epoch(epoch).unwrap();
        host.set_touch_epoch(epoch).unwrap();
    };
    for step in 0..40 {
        let number = |random: &mut fastrand::Rng| if random.bool() { random.usize(..40) } else { random.usize(..3000) };
        let some = |random: &mut fastrand::Rng, most: usize| {
            keys((0..random.usize(1..most)).map(|_| number(random)).collect::<Vec<_>>())
        };
        match random.u32(..10) {
            0 => {
                epoch += random.u16(1..4);
                raise(epoch);
            }
            1 => {
                let changed = some(&mut random, 50);
                let rows = 9f32.to_le_bytes().repeat(changed.len() * DIM);
                store.update_with("t", &bits(&changed), &rows, &creating).unwrap();
            }
            2 => drop(store.remove("t", &bits(&some(&mut random, 30))).unwrap()),
            3 if random.bool() => {
                store.compact(store.table("t").unwrap().generation).unwrap();
                let upcoming = executor.prepare(&PrepareOptions::default()).unwrap();
                executor.adopt(&upcoming, patience).unwrap();
                let upcoming = host.prepare(&PrepareOptions::default()).unwrap();
                host.adopt(upcoming, patience).unwrap();
            }
            4 => drop(compare(&format!("step {step}"))),
            _ => {
                let most = if random.bool() { 100 } else { 2500 };
                look(&some(&mut random, most), &format!("step {step}"));
            }
        }
    }
    raise(epoch + 1);
    look(&keys(100..600), "at the end");
    let touches = compare("at the end");
    let gone = store.expired_keys("t", &touches, epoch + 1).unwrap().keys;
    assert!(gone.len() > 100, "{shape:?}, seed {seed}: {} keys expire", gone.len());
    assert!((100..600).all(|number| !gone.contains(&(key(number) as u64))));
    let done = store.expire("t", &touches, &ExpireOptions::before(epoch + 1)).unwrap();
    assert_eq!(done.removed, gone.len() as u64);
    let left = compare("when keys have expired");
    assert!(gone.iter().all(|&key| left.last("t", key).is_none()));
}

#[test]
fn touches_on_a_gpu_are_the_hosts() {
    let Some(gpu) = gpu() else { return };
    let shape = Shape { hbm: 0, dram: 0, cache: 0, direct: true, few: false, checked: false, pooled: false };
    let shapes = [
        Shape { few: true, ..shape },
        Shape { cache: 1 << 20, checked: true, ..shape },
        Shape { dram: 1 << 30, pooled: true, ..shape },
        Shape { hbm: 1 << 30, ..shape },
        Shape { hbm: 1 << 16, dram: 1 << 16, direct: false, checked: true, pooled: true, ..shape },
    ];
    for (seed, shape) in (0..).zip(shapes) {
        agree(&gpu, seed, shape);
    }
}

/// Look-ups of some keys by one slot, in memory that stays.
struct Reader {
    ids: DeviceMemory,
    rows: DeviceMemory,
    count: usize,
    dim: usize,
}

impl Reader {
    fn new(gpu: &Arc<Gpu>, ids: &[i64], dim: usize) -> Self {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let rows = DeviceMemory::new(gpu, (ids.len() * dim * 4) as u64).unwrap();
        Self { ids: DeviceMemory::holding(gpu, &bytes).unwrap(), rows, count: ids.len(), dim }
    }

    fn launch(&self, slot: &GpuSlot, stream: &Stream) -> warprow_gpu::Ticket {
        let batch = GpuBatch::new(self.ids.address(), BatchLen::Host(self.count), 1);
        let out = GpuOutput::new(self.rows.address(), self.dim);
        // SAFETY: whoever launches waits for the stream while this lives.
        unsafe { slot.lookup(stream.0, &batch, &out) }.unwrap()
    }
}

fn attach(store: &Store, gpu: &Arc<Gpu>, options: GpuOptions, ids: usize) -> (GpuExecutor, GpuSlot) {
    let executor = GpuExecutor::attach(store, gpu.clone(), options).unwrap();
    let plan = executor.plan(&[Feature::new("f", "t")], PlanOptions::default().with_max(1, ids)).unwrap();
    let slot = plan.slot().unwrap();
    (executor, slot)
}

#[test]
fn a_graph_notes_the_epoch_of_its_replay() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = common::store(2, 64 << 20, 512);
    common::load(&store, &[table(ROWS, DIM, FingerprintWidth::Bits32, RowOrder::Given)], &LoadOptions::default());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("touches");
    for hbm in [0, 1 << 30] {
        let options = patient().with_hbm_bytes(hbm).with_touch_epoch(3);
        let (executor, slot) = attach(&store, &gpu, options, 100);
        let reader = Reader::new(&gpu, &keys(0..100), DIM);
        let stream = Stream::new(&gpu);
        let mut ticket = None;
        // The epoch may be raised, and touches saved, in the middle of a capture.
        let graph = stream.capture(&gpu, || {
            executor.set_touch_epoch(4).unwrap();
            ticket = Some(reader.launch(&slot, &stream));
            executor.save_touches(&file).unwrap();
        });
        let ticket = ticket.unwrap();
        let last = |number| executor.last_touches(LastTouches::default()).unwrap().last("t", key(number) as u64);
        assert_eq!([0, 99, 100].map(last), [Some(3); 3], "a capture touches nothing");
        for (epoch, ids) in [(4, 0..100), (9, 50..150), (10, 149..150)] {
            executor.set_touch_epoch(epoch).unwrap();
            let bytes: Vec<u8> = keys(ids).iter().flat_map(|id| id.to_le_bytes()).collect();
            reader.ids.write(0, &bytes).unwrap();
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            wait(&ticket).unwrap();
        }
        // The last replay has looked up 149, and the 99 ids behind it that were there before.
        assert_eq!([0, 49, 50, 51, 149, 150].map(last), [4, 4, 9, 10, 10, 3].map(Some));
        executor.save_touches(&file).unwrap();
        let saved = LastTouches::read(&file).unwrap().unwrap();
        assert_eq!(saved.of("t").collect::<Vec<_>>().len(), ROWS);
        assert_eq!((saved.latest(), saved.last("t", key(49) as u64)), (10, Some(4)));
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn what_makes_no_sense_is_named() {
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = common::store(2, 64 << 20, 512);
    common::load(&store, &[table(ROWS, DIM, FingerprintWidth::Bits32, RowOrder::Given)], &LoadOptions::default());
    let reason = |result: Result<(), GpuError>| match result {
        Err(GpuError::Store(StoreError::ExecutorOptions { reason })) => reason,
        other => panic!("{other:?}"),
    };
    let zero = GpuExecutor::attach(&store, gpu.clone(), patient().with_touch_epoch(0));
    assert!(reason(zero.map(drop)).contains("GpuOptions::touch_epoch is 0"));
    let plain = GpuExecutor::attach(&store, gpu.clone(), patient()).unwrap();
    assert_eq!(plain.touch_epoch(), None);
    assert!(reason(plain.set_touch_epoch(3)).contains("GpuOptions::touch_epoch"));
    assert!(reason(plain.save_touches("touches".as_ref())).contains("GpuOptions::touch_epoch"));
    let noting = GpuExecutor::attach(&store, gpu.clone(), patient().with_touch_epoch(4)).unwrap();
    assert!(reason(noting.set_touch_epoch(3)).contains("epoch 3 of last touches comes before 4"));
    assert_eq!(noting.touch_epoch(), Some(4));
}

/// The microseconds of each of so many look-ups, one behind the other: at most as many as a slot has tickets.
fn microseconds(gpu: &Gpu, reader: &Reader, slot: &GpuSlot, stream: &Stream, runs: u8) -> f32 {
    let event = || {
        let _current = gpu.enter().unwrap();
        let mut event = std::ptr::null_mut();
        // SAFETY: a context is current; it stores a handle.
        assert_eq!(unsafe { sys::cuEventCreate(&mut event, 0) }, CUresult::CUDA_SUCCESS);
        event
    };
    let [began, ended] = [event(), event()];
    let record = |event| {
        let _current = gpu.enter().unwrap();
        // SAFETY: both are handles of this context.
        assert_eq!(unsafe { sys::cuEventRecord(event, stream.0) }, CUresult::CUDA_SUCCESS);
    };
    record(began);
    let tickets: Vec<_> = (0..runs).map(|_| reader.launch(slot, stream)).collect();
    record(ended);
    stream.wait(gpu);
    tickets.iter().for_each(|ticket| assert_eq!(wait(ticket).unwrap().missing, 0));
    let _current = gpu.enter().unwrap();
    let mut time = 0.0;
    // SAFETY: both were recorded and have come; they are destroyed once.
    unsafe {
        assert_eq!(sys::cuEventElapsedTime_v2(&mut time, began, ended), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuEventDestroy_v2(began), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuEventDestroy_v2(ended), CUresult::CUDA_SUCCESS);
    }
    time * 1000.0 / f32::from(runs)
}

/// Look-ups of 262,144 ids that are found in GPU memory, with touches noted and without: how often the time of one the other takes.
#[test]
#[ignore = "measures times on an idle GPU"]
fn what_noting_costs() {
    const IDS: usize = 262_144;
    const ALL: usize = 300_000;
    let Some(gpu) = gpu() else { return };
    let (_drives, store) = common::store(2, 64 << 20, 512);
    common::load(&store, &[table(ALL, DIM, FingerprintWidth::Bits32, RowOrder::Given)], &LoadOptions::default());
    let mut random = fastrand::Rng::with_seed(1);
    let ids: Vec<i64> = (0..IDS).map(|_| key(random.usize(..ALL))).collect();
    let reader = Reader::new(&gpu, &ids, DIM);
    let stream = Stream::new(&gpu);
    let options = || patient().with_hbm_bytes(1 << 30);
    let (_plain, without) = attach(&store, &gpu, options(), IDS);
    let (noting, with) = attach(&store, &gpu, options().with_touch_epoch(1), IDS);
    let mut times = [f32::MAX; 3];
    let mut epoch = 1;
    for _ in 0..20 {
        times[0] = times[0].min(microseconds(&gpu, &reader, &without, &stream, 8));
        times[1] = times[1].min(microseconds(&gpu, &reader, &with, &stream, 8));
        // The first look-up of an epoch stores.
        epoch += 1;
        noting.set_touch_epoch(epoch).unwrap();
        times[2] = times[2].min(microseconds(&gpu, &reader, &with, &stream, 1));
    }
    let [without, again, first] = times;
    println!(
        "262,144 ids found in GPU memory: {without:.1} us; touches noted again {again:.1} us, {:.3} times",
        again / without
    );
    println!("the first look-up of an epoch {first:.1} us, {:.3} times", first / without);
    let touches = noting.last_touches(LastTouches::default()).unwrap();
    let touched = touches.of("t").filter(|&(_, last)| last == epoch).count();
    let different: std::collections::HashSet<i64> = ids.into_iter().collect();
    assert_eq!(touched, different.len());
}
