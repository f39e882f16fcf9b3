//! Drives with a volatile write cache under a virtual clock, a store on them, and one table whose rows can be computed.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use warprow_driver::ControllerOptions;
use warprow_layout::FormatOptions;
use warprow_soft_controller::{Namespace, RamBacking, SoftController};
use warprow_store::{DType, Device, LoadOptions, OpenOptions, Store, StoreError, TableLoad, TableSpec};
use warprow_tests::versions::Rows;
use warprow_tests::{DrivenDrive, VirtualClock};

const PATIENCE: Duration = Duration::from_millis(250);

pub(crate) struct Fixture {
    store: Option<Store>,
    pub(crate) drives: Vec<Arc<SoftController>>,
    pub(crate) clock: Arc<VirtualClock>,
}

fn table() -> TableSpec {
    TableSpec::new("table", 500, 32, DType::F32)
}

impl Fixture {
    /// Drives with nothing on them.
    pub(crate) fn blank(count: usize) -> Result<Self> {
        let clock = VirtualClock::new();
        let drive = |index| -> Result<_> {
            let namespace = Namespace::new(RamBacking::new(8 << 20)?).write_cache(u64::MAX);
            let name = format!("drive{index}");
            let builder = SoftController::builder().stepped().name(&name).serial(&name).queue_pairs(8);
            let drive = builder.max_transfer(16 << 10).namespace(namespace).build()?;
            clock.step_too(drive.clone());
            Ok(drive)
        };
        let drives = (0..count).map(drive).collect::<Result<Vec<_>>>()?;
        Ok(Self { store: None, drives, clock })
    }

    /// Drives with an empty store, open.
    pub(crate) fn new(count: usize) -> Result<Self> {
        let mut fixture = Self::blank(count)?;
        let format = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
        fixture.store = Some(Store::create(&fixture.devices(), &format, &fixture.options())?);
        Ok(fixture)
    }

    pub(crate) fn devices(&self) -> Vec<Device> {
        self.drives.iter().map(|drive| Device::new(drive.clone(), 1)).collect()
    }

    pub(crate) fn options(&self) -> OpenOptions {
        OpenOptions::default().with_clock(self.clock.clone()).with_timeout(PATIENCE).with_admin_timeout(PATIENCE)
    }

    pub(crate) fn store(&self) -> Result<&Store> {
        self.store.as_ref().context("not open")
    }

    pub(crate) fn load(&self, version: u64) -> Result<(), StoreError> {
        let spec = table();
        let rows = Rows { version, table: 0 };
        let store = self.store.as_ref().ok_or(StoreError::Interrupted)?;
        let options = LoadOptions::default().with_replace();
        store.load("model", &[TableLoad::new(&spec, &rows)], &options, &mut |_| ControlFlow::Continue(())).map(drop)
    }

    /// Compares every row.
    pub(crate) fn check(&self, version: u64) -> Result<()> {
        let mut rows = 0;
        let mut wrong = 0;
        let mut want = vec![0; 128];
        self.store()?.scan("table", 0..u64::MAX, &mut |rank, row| {
            Rows { version, table: 0 }.fill(rank, &mut want);
            wrong += u64::from(row != want);
            rows += 1;
            ControlFlow::Continue(())
        })?;
        ensure!(rows == 500 && wrong == 0, "{wrong} of {rows} rows are wrong");
        Ok(())
    }

    pub(crate) fn close(&mut self) {
        self.store = None;
    }

    /// One of the drives, as the layout sees it. The store must be closed.
    pub(crate) fn driven(&self, drive: usize) -> Result<DrivenDrive> {
        let options = ControllerOptions { admin_timeout: PATIENCE, ..ControllerOptions::default() };
        Ok(DrivenDrive::open(self.drives[drive].clone(), self.clock.clone(), options)?)
    }

    /// Closes the store and opens it again, all drives being well.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.store = None;
        self.drives.iter().for_each(|drive| drive.faults().clear());
        self.store = Some(Store::open(&self.devices(), &self.options())?);
        Ok(())
    }
}
