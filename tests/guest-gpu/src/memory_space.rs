//! Memory space of a drive that somebody else turns off: the drive does not answer to accesses of its registers then.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use warprow_dma::pci::COMMAND;
use warprow_dma::pci::command::MEMORY_SPACE;
use warprow_driver::ResetKind;
use warprow_gpu_queues::abi::FAULT_TIMED_OUT;
use warprow_simt::shim::Shim;
use warprow_vfio::VfioFunction;

use crate::scene::{IDS, PATIENCE, Placement, Scene};

/// Configuration space of the drive, past VFIO.
struct Configuration(File);

impl Configuration {
    /// What init has lent to the tester.
    fn new() -> Result<Self> {
        let path = std::env::var("NVME_CONFIG").context("NVME_CONFIG")?;
        Ok(Self(File::options().read(true).write(true).open(&path).context(path)?))
    }

    fn command(&self) -> Result<u16> {
        let mut bytes = [0; 2];
        self.0.read_exact_at(&mut bytes, COMMAND)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn turn_memory_space_off(&self) -> Result<()> {
        let on = self.command()?;
        ensure!(on & MEMORY_SPACE != 0, "memory space is off already: {on:#06x}");
        self.0.write_all_at(&(on & !MEMORY_SPACE).to_le_bytes(), COMMAND)?;
        ensure!(self.command()? & MEMORY_SPACE == 0, "memory space stays on");
        Ok(())
    }
}

/// Before queues are made, memory space is turned on again. If it goes off while kernels ring, rows are told as lost, and a reset of the
/// function brings the drive back. No LBA changes.
pub(crate) fn turned_off(shim: &mut Shim, address: &str) -> Result<()> {
    let mut scene = Scene::new(70, vec![VfioFunction::open(address)?])?;
    let configuration = Configuration::new()?;
    configuration.turn_memory_space_off()?;
    let mut queues = scene.queues(Placement::Registers, 1, Duration::from_secs(1))?;
    ensure!(configuration.command()? & MEMORY_SPACE != 0, "queues were made without memory space");
    scene.whole(shim, &mut queues, IDS)?;

    configuration.turn_memory_space_off()?;
    let looked = scene.look_up(shim, &mut queues, IDS)?;
    ensure!(looked.lost > 0 && looked.lost == looked.cold, "doorbells reach a drive without memory space: {looked:?}");
    let faults = queues.set.faults();
    ensure!(faults.iter().any(|fault| fault.kind == FAULT_TIMED_OUT), "{faults:?}");
    let began = Instant::now();
    scene.drives[0].0.reset(ResetKind::Function)?;
    queues.set.recover()?;
    ensure!(began.elapsed() < PATIENCE, "bringing the drive back took {:?}", began.elapsed());
    scene.whole(shim, &mut queues, IDS)?;
    drop(queues);
    scene.assert_unchanged()
}
