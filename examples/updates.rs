//! Updates rows while another thread reads them: each call of `update` is seen whole or not at all, and by everybody who begins
//! after it. Then the updates are compacted, and the store is opened again.
//!
//!     cargo run -p warprow-examples --bin updates

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, Plan, PlanOptions, PrepareOptions, Slot,
};
use warprow_store::{
    CreateDrive, DType, Device, FormatConsent, FormatProposal, FormatSettings, LoadOptions, OpenOptions, Store,
    TableLoad, TableSpec,
};

const ROWS: u64 = 5_000;
const DIM: usize = 16;
/// The rows that are updated; the others stay at version 0.
const UPDATED: [u64; 5] = [3, 700, 701, 2_500, 4_999];
const UPDATES: u64 = 50;

/// Row `id` in its version `version`.
fn row(id: u64, version: u64) -> [f32; DIM] {
    std::array::from_fn(|column| (id * 100 + version) as f32 + column as f32 / 16.0)
}

fn load(store: &Store) -> Result<u64> {
    let rows: Vec<u8> = (0..ROWS).flat_map(|id| row(id, 0)).flat_map(f32::to_le_bytes).collect();
    let spec = TableSpec::new("user", ROWS, DIM as u32, DType::F32);
    let load = TableLoad::new(&spec, &rows);
    Ok(store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?.generation)
}

fn plan(host: &HostExecutor) -> Result<Plan> {
    Ok(host.plan(&[Feature::new("user", "user")], PlanOptions::default().with_max(ROWS as usize, ROWS as usize))?)
}

/// Looks up the rows that are updated, checks that all are of one version, and returns it.
fn version_of(slot: &mut Slot) -> Result<u64> {
    let mut rows = [0f32; UPDATED.len() * DIM];
    slot.lookup(&Batch::new(&UPDATED, UPDATED.len()), &mut Output::new(OutputRows::F32(&mut rows), DIM))?;
    let version = rows[0] as u64 - UPDATED[0] * 100;
    for (&id, found) in UPDATED.iter().zip(rows.chunks(DIM)) {
        ensure!(found == row(id, version), "row {id} is not of version {version}: {found:?}");
    }
    Ok(version)
}

/// Compares every row of the table.
fn check_all(slot: &mut Slot) -> Result<()> {
    let ids: Vec<u64> = (0..ROWS).collect();
    let mut rows = vec![0f32; ids.len() * DIM];
    slot.lookup(&Batch::new(&ids, ids.len()), &mut Output::new(OutputRows::F32(&mut rows), DIM))?;
    for (&id, found) in ids.iter().zip(rows.chunks(DIM)) {
        let wanted = row(id, if UPDATED.contains(&id) { UPDATES } else { 0 });
        ensure!(found == wanted, "row {id}: {found:?} instead of {wanted:?}");
    }
    Ok(())
}

/// Follows the updates until the last is seen; returns how many different versions were seen.
fn follow(slot: &mut Slot, durable: &AtomicU64) -> Result<u64> {
    let mut latest = 0;
    let mut seen = 1;
    while latest < UPDATES {
        let durable_before = durable.load(Ordering::Acquire);
        let version = version_of(slot)?;
        ensure!(version >= durable_before, "version {version} came after {durable_before} was durable");
        ensure!(version >= latest, "version {version} came after version {latest}");
        seen += u64::from(version > latest);
        latest = version;
    }
    Ok(seen)
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let address = format!("emulated:{},size=64M", folder.path().join("a.drive").display()).parse()?;
    let drive = Device::open(&address, CreateDrive::IfMissing)?;
    let store = FormatProposal::new(std::slice::from_ref(&drive), FormatSettings::default())?
        .run(&FormatConsent::None, &mut |_, _| {})?;
    let generation = load(&store)?;
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(16 << 10))?;
    let mut slot = plan(&host)?.slot()?;

    let durable = AtomicU64::new(0);
    let seen = thread::scope(|scope| -> Result<u64> {
        let reader = scope.spawn(|| follow(&mut slot, &durable));
        for version in 1..=UPDATES {
            let rows: Vec<u8> = UPDATED.iter().flat_map(|&id| row(id, version)).flat_map(f32::to_le_bytes).collect();
            // When this returns, the rows are durable, and every look-up that begins later sees them.
            store.update("user", &UPDATED, &rows)?;
            durable.store(version, Ordering::Release);
        }
        reader.join().map_err(|_| anyhow!("the reader panicked"))?
    })?;
    println!("{UPDATES} updates of {} rows; the reader saw {seen} versions, each whole", UPDATED.len());

    // The updates lie in a log, and in memory. Compaction brings them into the table.
    let pending = store.pending_updates(generation)?.context("there are updates")?;
    println!("the log has {} rows; compaction copies {} chunks", pending.updates, pending.compaction.chunks);
    store.compact(generation)?;
    ensure!(store.pending_updates(generation)?.is_none(), "the log is still there");
    // The host goes over to the compacted rows, and lets go of the updated ones in memory.
    let upcoming = host.prepare(&PrepareOptions::default())?;
    ensure!(host.adopt(upcoming, Duration::from_secs(10))?, "a look-up still reads the rows as they were");
    check_all(&mut slot)?;
    println!("after compaction all {ROWS} rows are right");

    drop((slot, host, store));
    let store = Store::open(&[drive], &OpenOptions::default().with_read_only())?;
    check_all(&mut plan(&HostExecutor::attach(&store, HostOptions::default())?)?.slot()?)?;
    println!("after re-opening all {ROWS} rows are right");
    Ok(())
}
