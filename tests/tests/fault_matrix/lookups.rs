//! The faults of the table under a look-up of the store: what the look-up says, and that the next one is right.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use warprow_driver::DriverError;
use warprow_layout::FormatOptions;
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, LookupError, Output, OutputRows, PlanOptions, RowError, Slot};
use warprow_soft_controller::{Namespace, PowerCut, RamBacking, SoftController};
use warprow_store::{DType, Device, LoadOptions, OpenOptions, Store, TableLoad, TableSpec};
use warprow_tests::{VirtualClock, versions};

use crate::fixture::{LATE, PATIENCE};
use crate::table::{Command, LOOKUPS, Mishap, Next, Says};
use warprow_dma::Clock;

const ROWS: u64 = 400;
/// A row fills an LBA, and the rows that are looked up are no neighbours, on one drive or on three: a command each.
const DIM: usize = 512;

struct Fixture {
    // In the order in which they go.
    slot: Slot,
    store: Store,
    drives: Vec<Arc<SoftController>>,
    clock: Arc<VirtualClock>,
}

fn right(id: u64) -> Vec<u8> {
    let mut row = vec![0; DIM];
    versions::Rows { version: 1, table: 0 }.fill(id, &mut row);
    row
}

impl Fixture {
    fn new(drives: usize, checked: bool) -> Result<Self> {
        let clock = VirtualClock::new();
        let drive = |index| -> Result<_> {
            let name = format!("drive{index}");
            let builder = SoftController::builder().stepped().name(&name).serial(&name).queue_pairs(4);
            let drive = builder.max_transfer(16 << 10).namespace(Namespace::new(RamBacking::new(8 << 20)?)).build()?;
            clock.step_too(drive.clone());
            Ok(drive)
        };
        let drives = (0..drives).map(drive).collect::<Result<Vec<_>>>()?;
        let devices: Vec<_> = drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect();
        let options =
            OpenOptions::default().with_clock(clock.clone()).with_timeout(PATIENCE).with_admin_timeout(PATIENCE);
        let format = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
        let store = Store::create(&devices, &format, &options)?;
        let mut spec = TableSpec::new("table", ROWS, DIM as u32, DType::U8);
        spec.row_crc = true;
        let rows = versions::Rows { version: 1, table: 0 };
        let mut load = LoadOptions::default();
        load.stripe_unit = Some(512);
        store.load("model", &[TableLoad::new(&spec, &rows)], &load, &mut |_| ControlFlow::Continue(()))?;
        let options = HostOptions::default().with_depth(8);
        let host = HostExecutor::attach(&store, if checked { options.with_checked_rows() } else { options })?;
        let plan = host.plan(&[Feature::new("feature", "table")], PlanOptions::default().with_out(DType::U8))?;
        Ok(Self { slot: plan.slot()?, store, drives, clock })
    }

    /// Looks every second row up and compares what there is. The error, and how many rows were right.
    fn look_up(&mut self) -> Result<(Option<LookupError>, usize)> {
        let ids: Vec<u64> = (0..ROWS).step_by(2).collect();
        let mut rows = vec![0x5a; ids.len() * DIM];
        let mut mask = vec![0x5a; ids.len()];
        let result = {
            let mut out = Output::new(OutputRows::U8(&mut rows), DIM).with_mask(&mut mask);
            self.slot.lookup(&Batch::new(&ids, ids.len()), &mut out)
        };
        let (error, failed) = match result {
            Ok(_) => (None, Vec::new()),
            Err(LookupError::RowsFailed { report, positions, source }) => {
                let failed = positions.clone();
                (Some(LookupError::RowsFailed { report, positions, source }), failed)
            }
            Err(error) => bail!("{error}"),
        };
        let mut wrong = 0;
        for (at, (&id, row)) in ids.iter().zip(rows.chunks(DIM)).enumerate() {
            let lost = failed.contains(&at);
            ensure!(mask[at] == u8::from(!lost), "mask of id {id}");
            let want = if lost { vec![0; DIM] } else { right(id) };
            wrong += usize::from(row != want);
        }
        if wrong != 0 {
            return Err(Wrong(wrong).into());
        }
        Ok((error, ids.len() - failed.len()))
    }
}

impl Fixture {
    /// Look-ups fail the rows of the last drive at once, and no others.
    fn is_given_up(&mut self) -> Result<()> {
        let drives = self.drives.len();
        for _ in 0..3 {
            let began = self.clock.now();
            let (error, rows) = self.look_up()?;
            ensure!(drives == 1 || rows >= 200 / drives, "only {rows} rows came");
            let Some(LookupError::RowsFailed { source: RowError::Drive(error), .. }) = error else {
                bail!("{error:?}");
            };
            let name = format!("drive{}", drives - 1);
            let DriverError::GivenUp { function, failure } = &error else { bail!("{error}") };
            ensure!(**function == *name && matches!(failure.steps[0].error, DriverError::Gone { .. }), "{error}");
            // What the other drives take; nothing is waited for.
            let took = self.clock.now() - began;
            ensure!(took < Duration::from_millis(10), "it took {took:?}");
            let states = self.store.drive_states();
            ensure!(states.iter().all(|state| state.failure.is_some() == (state.drive == name)), "{states:?}");
            ensure!(self.store.drive_states().iter().filter(|state| state.failure.is_some()).count() == 1);
        }
        Ok(())
    }
}

/// Rows that were returned as right and are not.
#[derive(Debug)]
struct Wrong(usize);

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rows are wrong", self.0)
    }
}

impl std::error::Error for Wrong {}

fn cell(drives: usize, mishap: Mishap, checked: bool, says: Says, next: Next) -> Result<()> {
    let mut fixture = Fixture::new(drives, checked)?;
    let (error, rows) = fixture.look_up()?;
    ensure!(error.is_none() && rows == 200, "before: {error:?}");
    let last = fixture.drives.len() - 1;
    let rule = fixture.drives[last].faults().inject(Command::Read.rule(mishap.fault(Command::Read)).nth(2));
    let looked_up = fixture.look_up();
    ensure!(fixture.drives[last].faults().fired(rule) == 1, "the fault did not happen");
    match (says, looked_up) {
        (Says::Nothing, Ok((None, 200))) => {}
        (Says::WrongRow, Err(error)) if error.is::<Wrong>() => {}
        (_, Ok((Some(LookupError::RowsFailed { source, report, .. }), rows))) => {
            let due = match (says, &source) {
                (Says::Status, RowError::Drive(DriverError::Command { status, .. })) => {
                    Some(status.code()) == mishap.status(Command::Read)
                }
                (Says::TimedOut, RowError::Drive(DriverError::TimedOut { .. })) => true,
                (Says::Fatal, RowError::Drive(DriverError::Fatal { csts, .. })) => csts.cfs(),
                (Says::Gone, RowError::Drive(DriverError::Gone { .. })) => true,
                (Says::Checksum, RowError::Checksum { .. }) => true,
                _ => false,
            };
            ensure!(due, "{says:?} is due, and it said {source} ({source:?})");
            ensure!(rows as u64 + report.failed == 200 && report.failed > 0);
            // The other drives' rows are there.
            ensure!(drives == 1 || rows >= 200 / drives, "only {rows} rows came");
        }
        (_, other) => bail!("{says:?} is due, and it said {other:?}"),
    }
    match next {
        Next::Right => {}
        Next::AfterRetry => {
            fixture.is_given_up().context("while it is gone")?;
            ensure!(fixture.store.retry_drives()[0].failure.is_some(), "it is back before its time");
            fixture.drives[last].power_cut(PowerCut::KeepAll)?;
            fixture.is_given_up().context("while nobody retries it")?;
            ensure!(fixture.store.retry_drives()[0].failure.is_none(), "it is not back");
            ensure!(
                fixture.store.drive_states().iter().all(|state| state.failure.is_none())
                    && fixture.store.retry_drives().is_empty()
            );
        }
    }
    for round in 0..2 {
        let (error, rows) = fixture.look_up().with_context(|| format!("look-up {round} after it"))?;
        ensure!(error.is_none() && rows == 200, "look-up {round} after it: {error:?}");
        fixture.clock.sleep(2 * LATE);
    }
    Ok(())
}

#[test]
fn every_look_up_holds() {
    let mut wrong = Vec::new();
    for (mishap, checked, says, next) in LOOKUPS {
        for drives in [1, 3] {
            if let Err(error) = cell(drives, mishap, checked, says, next) {
                wrong.push(format!("{}, {drives} drives, checked {checked}: {error:#}", mishap.title()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} look-ups:\n{}", wrong.len(), wrong.join("\n"));
}
