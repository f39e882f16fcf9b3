//! Swaps a model while threads look rows up: the next version is loaded on standby, prepared, switched to and adopted. Every
//! answer belongs wholly to one version.
//!
//!     cargo run -p warprow-examples --bin model_swap

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, Plan, PlanOptions, PrepareOptions,
};
use warprow_store::{
    CreateDrive, DType, Device, FormatConsent, FormatProposal, FormatSettings, LoadOptions, Store, TableLoad, TableSpec,
};

const READERS: usize = 3;
const ROWS: u64 = 20_000;
const DIM: usize = 32;
const BATCH: usize = 256;

/// Element `column` of row `id` in version `version` of the model.
fn element(version: u64, id: u64, column: usize) -> f32 {
    (version * 1_000_000 + id) as f32 + column as f32 / 64.0
}

/// Loads a version of the model; returns its generation.
fn load(store: &Store, version: u64, options: &LoadOptions) -> Result<u64> {
    let elements = (0..ROWS).flat_map(|id| (0..DIM).map(move |column| element(version, id, column)));
    let rows: Vec<u8> = elements.flat_map(f32::to_le_bytes).collect();
    let spec = TableSpec::new("user", ROWS, DIM as u32, DType::F32);
    let load = TableLoad::new(&spec, &rows);
    Ok(store.load("ranker", &[load], options, &mut |_| ControlFlow::Continue(()))?.generation)
}

/// What the readers and the swap tell each other.
#[derive(Default)]
struct Progress {
    readers_that_began: AtomicUsize,
    is_adopted: AtomicBool,
    has_failed: AtomicBool,
}

/// Looks batches up until some came from the second version; returns how many came from each.
fn read(plan: &Plan, generations: [u64; 2], reader: u64, progress: &Progress) -> Result<[u64; 2]> {
    let mut slot = plan.slot()?;
    let mut rows = vec![0f32; BATCH * DIM];
    let mut answers = [0; 2];
    for step in 0.. {
        let ids: Vec<u64> = (0..BATCH as u64).map(|n| (n * 7_919 + step * 31 + reader) % ROWS).collect();
        let must_be_new = progress.is_adopted.load(Ordering::Acquire);
        let report = slot.lookup(&Batch::new(&ids, BATCH), &mut Output::new(OutputRows::F32(&mut rows), DIM))?;
        let Some(version) = generations.iter().position(|&generation| generation == report.generation) else {
            return Err(anyhow!("an answer came from generation {}", report.generation));
        };
        ensure!(version == 1 || !must_be_new, "an old answer came after the new version was adopted");
        for (&id, row) in ids.iter().zip(rows.chunks(DIM)) {
            let is_right = |(column, &x): (usize, &f32)| x == element(version as u64 + 1, id, column);
            ensure!(row.iter().enumerate().all(is_right), "row {id} is not that of version {}", version + 1);
        }
        answers[version] += 1;
        if step == 0 {
            progress.readers_that_began.fetch_add(1, Ordering::Release);
        }
        if answers[1] == 10 || progress.has_failed.load(Ordering::Acquire) {
            break;
        }
    }
    Ok(answers)
}

/// Goes over from one generation to another while others look rows up.
fn swap(host: &HostExecutor, [old, new]: [u64; 2], progress: &Progress) -> Result<()> {
    let store = host.store();
    // Fills the tier in memory and checks that every plan has room for the new tables. Nothing is visible yet.
    let upcoming = host.prepare(&PrepareOptions::default().with_generation(new))?;
    // Durable: whoever opens the store from now on finds the new version.
    store.switch(new, false)?;
    // Look-ups that begin from now on read the new version; those that run end with the old one.
    ensure!(host.adopt(upcoming, Duration::from_secs(10))?, "a look-up still reads the old version");
    progress.is_adopted.store(true, Ordering::Release);
    store.drop_generation(old)?;
    Ok(())
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let address = format!("emulated:{},size=128M", folder.path().join("a.drive").display()).parse()?;
    let drive = Device::open(&address, CreateDrive::IfMissing)?;
    let store = FormatProposal::new(&[drive], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    let old = load(&store, 1, &LoadOptions::default())?;
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(256 << 10))?;
    let options = PlanOptions::default().with_max(BATCH, BATCH).with_slots(READERS as u32);
    let plan = host.plan(&[Feature::new("user", "user")], options)?;

    let new = load(&store, 2, &LoadOptions::default().with_standby())?;
    println!("version 1 is generation {old}; version 2 is generation {new}, on standby");
    let plan = &plan;
    let progress = &Progress::default();
    let generations = [old, new];
    let answers = thread::scope(|scope| -> Result<[u64; 2]> {
        let readers = (0..READERS).map(|reader| scope.spawn(move || read(plan, generations, reader as u64, progress)));
        let readers: Vec<_> = readers.collect();
        let began = || progress.readers_that_began.load(Ordering::Acquire);
        while began() < READERS && !readers.iter().any(|reader| reader.is_finished()) {
            thread::sleep(Duration::from_millis(1));
        }
        let swapped = swap(&host, generations, progress);
        progress.has_failed.store(swapped.is_err(), Ordering::Release);
        let mut total = [0; 2];
        for reader in readers {
            let answers = reader.join().map_err(|_| anyhow!("a reader panicked"))??;
            total.iter_mut().zip(answers).for_each(|(total, answers)| *total += answers);
        }
        swapped.map(|()| total)
    })?;
    println!("{READERS} readers had {} answers from version 1, then {} from version 2", answers[0], answers[1]);
    println!("every answer belongs wholly to one version");
    Ok(())
}
