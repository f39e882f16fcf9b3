//! An emulated drive that fails under look-ups: a read that ends with an error, one that is never answered, and a drive that is
//! gone. What the typed errors say, which rows are still served, and how the store comes back.
//!
//!     cargo run -p warprow-examples --bin fault

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use warprow_lookup::{
    Batch, Feature, HostExecutor, HostOptions, LookupError, Output, OutputRows, PlanOptions, RowError, Slot,
};
use warprow_soft_controller::{Fault, NvmOpcode, PowerCut, Rule, StatusCode};
use warprow_store::{
    CreateDrive, DType, Device, DriverError, FormatConsent, FormatProposal, FormatSettings, LoadOptions, OpenOptions,
    Store, TableLoad, TableSpec,
};

const ROWS: u64 = 1_000;
const DIM: usize = 128;
/// The first rows stay in memory.
const IN_MEMORY: u64 = 100;
/// The longest wait for a read.
const TIMEOUT: Duration = Duration::from_millis(300);

fn row(id: u64) -> [f32; DIM] {
    std::array::from_fn(|column| id as f32 + column as f32 / 128.0)
}

fn load(store: &Store) -> Result<()> {
    let rows: Vec<u8> = (0..ROWS).flat_map(row).flat_map(f32::to_le_bytes).collect();
    let spec = TableSpec::new("user", ROWS, DIM as u32, DType::F32);
    let load = TableLoad::new(&spec, &rows);
    store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// A row in memory, and rows on the drive that have no neighbours among them.
fn ids() -> Vec<u64> {
    std::iter::once(7).chain((IN_MEMORY..ROWS).step_by(30)).collect()
}

/// Looks rows up. Those that could not be read must be zeros with a mask of 0, and all others right. Returns how many failed,
/// and the first cause.
fn look_up(slot: &mut Slot) -> Result<Option<(usize, RowError)>> {
    let ids = ids();
    let mut rows = vec![0f32; ids.len() * DIM];
    let mut mask = vec![0; ids.len()];
    let mut output = Output::new(OutputRows::F32(&mut rows), DIM).with_mask(&mut mask);
    let failed = match slot.lookup(&Batch::new(&ids, ids.len()), &mut output) {
        Ok(_) => None,
        Err(LookupError::RowsFailed { positions, source, .. }) => Some((positions, source)),
        Err(other) => return Err(other.into()),
    };
    for (position, (&id, found)) in ids.iter().zip(rows.chunks(DIM)).enumerate() {
        let has_failed = failed.as_ref().is_some_and(|(positions, _)| positions.contains(&position));
        let wanted = if has_failed { [0.0; DIM] } else { row(id) };
        ensure!(found == wanted && mask[position] == u8::from(!has_failed), "row {id} is wrong");
        ensure!(!has_failed || id >= IN_MEMORY, "row {id} lies in memory, and failed");
    }
    Ok(failed.map(|(positions, source)| (positions.len(), source)))
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let address = format!("emulated:{},size=64M", folder.path().join("a.drive").display()).parse()?;
    let drive = Device::open(&address, CreateDrive::IfMissing)?;
    let controller = drive.soft_controller().context("the drive is emulated")?.clone();
    let settings = FormatSettings::default().with_open(OpenOptions::default().with_timeout(TIMEOUT));
    let store = FormatProposal::new(&[drive], settings)?.run(&FormatConsent::None, &mut |_, _| {})?;
    load(&store)?;
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(IN_MEMORY * DIM as u64 * 4))?;
    let mut slot = host.plan(&[Feature::new("user", "user")], PlanOptions::default().with_max(100, 100))?.slot()?;
    ensure!(look_up(&mut slot)?.is_none(), "a look-up failed without a fault");

    // A status: the rows of that command fail, and no others.
    let unreadable = Fault::Status(StatusCode::UnrecoveredReadError.into());
    controller.faults().inject(Rule::new(unreadable).io(NvmOpcode::READ).nth(5));
    let (failed, error) = look_up(&mut slot)?.context("the read failed")?;
    ensure!(matches!(error, RowError::Drive(DriverError::Command { .. })), "another error: {error}");
    println!("unreadable:  {failed} of {} rows: {error}", ids().len());
    ensure!(look_up(&mut slot)?.is_none(), "the fault is over, and the look-up failed");

    // No answer: the wait has a limit. The next look-up starts the queue anew by itself.
    controller.faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).nth(5));
    let began = Instant::now();
    let (failed, error) = look_up(&mut slot)?.context("the read was not answered")?;
    ensure!(matches!(error, RowError::Drive(DriverError::TimedOut { .. })), "another error: {error}");
    ensure!(began.elapsed() >= TIMEOUT, "the limit was not waited for");
    println!("no answer:   {failed} of {} rows: {error}", ids().len());
    ensure!(look_up(&mut slot)?.is_none(), "the queue was not started anew");

    // The drive is gone: its rows fail at once, and those in memory are served.
    controller.faults().inject(Rule::new(Fault::Disappear).io(NvmOpcode::READ));
    look_up(&mut slot)?.context("the drive is gone")?;
    let Some((failed, RowError::Drive(error @ DriverError::GivenUp { .. }))) = look_up(&mut slot)? else {
        bail!("the drive was not given up");
    };
    println!("gone:        {failed} of {} rows: {error}", ids().len());
    ensure!(store.drive_states()[0].failure.is_some(), "the store does not know that the drive is gone");
    // Somebody plugs it in again, and says so.
    controller.power_cut(PowerCut::KeepAll)?;
    ensure!(store.retry_drives()[0].failure.is_none(), "the drive did not come back");
    ensure!(look_up(&mut slot)?.is_none(), "the drive is back, and the look-up failed");
    println!("after each fault every row is right again");
    Ok(())
}
