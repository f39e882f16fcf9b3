//! Fetches the rows of the next batch while the model works on the one before, and prints what that saves. The emulated drive
//! takes as long for a read as a data centre drive.
//!
//!     cargo run -p warprow-examples --bin prefetch

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions, Slot};
use warprow_store::{
    CreateDrive, DType, Device, FormatConsent, FormatProposal, FormatSettings, LoadOptions, Store, TableLoad, TableSpec,
};

const ROWS: u64 = 50_000;
const DIM: usize = 64;
const STEPS: u64 = 40;
const BATCH: usize = 2_048;
/// How long the model works on a batch.
const MODEL: Duration = Duration::from_millis(4);

fn row(id: u64) -> [f32; DIM] {
    std::array::from_fn(|column| id as f32 + column as f32 / 64.0)
}

fn load(store: &Store) -> Result<()> {
    let rows: Vec<u8> = (0..ROWS).flat_map(row).flat_map(f32::to_le_bytes).collect();
    let spec = TableSpec::new("user", ROWS, DIM as u32, DType::F32);
    let load = TableLoad::new(&spec, &rows);
    store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// The ids of a step: all over the table.
fn ids(step: u64) -> Vec<u64> {
    (0..BATCH as u64).map(|n| (n * 24_593 + step * 7_907) % ROWS).collect()
}

/// The model, which runs elsewhere (on a GPU, say): this thread waits for it, and the rows are compared before.
fn work(step: u64, rows: &[f32]) -> Result<()> {
    for (id, found) in ids(step).into_iter().zip(rows.chunks(DIM)) {
        ensure!(found == row(id), "step {step}: row {id} is wrong");
    }
    thread::sleep(MODEL);
    Ok(())
}

/// Each batch is looked up when the model wants it.
fn one_after_another(slot: &mut Slot, rows: &mut [f32]) -> Result<Duration> {
    let began = Instant::now();
    for step in 0..STEPS {
        slot.lookup(&Batch::new(&ids(step), BATCH), &mut Output::new(OutputRows::F32(rows), DIM))?;
        work(step, rows)?;
    }
    Ok(began.elapsed())
}

/// While the model works on a batch, the drive reads the rows of the next.
fn a_step_ahead(slot: &mut Slot, rows: &mut [f32]) -> Result<Duration> {
    let began = Instant::now();
    slot.prefetch(&Batch::new(&ids(0), BATCH))?;
    for step in 0..STEPS {
        slot.lookup_prefetched(&mut Output::new(OutputRows::F32(rows), DIM))?;
        if step + 1 < STEPS {
            // Returns at once: a thread of the slot's does the reading. The ids are ours again.
            slot.prefetch(&Batch::new(&ids(step + 1), BATCH))?;
        }
        work(step, rows)?;
    }
    Ok(began.elapsed())
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("a.drive");
    let address = format!("emulated:{},size=64M,profile=gen5-tlc", image.display()).parse()?;
    let drive = Device::open(&address, CreateDrive::IfMissing)?;
    let store = FormatProposal::new(&[drive], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    load(&store)?;

    let host = HostExecutor::attach(&store, HostOptions::default())?;
    let options = PlanOptions::default().with_max(BATCH, BATCH).with_prefetch();
    let mut slot = host.plan(&[Feature::new("user", "user")], options)?.slot()?;
    let mut rows = vec![0f32; BATCH * DIM];
    let alone = one_after_another(&mut slot, &mut rows)?;
    let ahead = a_step_ahead(&mut slot, &mut rows)?;

    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    println!("{STEPS} steps of {BATCH} rows; the model works {:.1} ms on each", millis(MODEL));
    println!("one after another: {:.1} ms", millis(alone));
    let saved = (millis(alone) - millis(ahead)) / STEPS as f64;
    println!("a step ahead:      {:.1} ms, which saves {saved:.2} ms a step", millis(ahead));
    println!("every row is right, both ways");
    Ok(())
}
