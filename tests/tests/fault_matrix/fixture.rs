//! One emulated drive under a virtual clock, a driver on it, and a model of what its blocks should hold.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use warprow_dma::Clock;
use warprow_driver::{BlockIo, Controller, ControllerOptions, DriverError, QueueOptions};
use warprow_soft_controller::{Namespace, PowerCut, RamBacking, SoftController};
use warprow_tests::VirtualClock;

pub(crate) const BLOCK: usize = 512;
/// Blocks that the model covers.
pub(crate) const BLOCKS: usize = 64;
/// Every wait of the driver ends after this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// A command that is delayed so long has certainly timed out.
pub(crate) const LATE: Duration = Duration::from_secs(3);

/// What a block may hold: one thing, or one of two after a write of which nobody knows how far it came.
pub(crate) type Model = Vec<Vec<Vec<u8>>>;

pub(crate) struct Fixture {
    // In the order in which they go.
    pub(crate) io: Option<BlockIo>,
    pub(crate) controller: Option<Arc<Controller>>,
    pub(crate) drive: Arc<SoftController>,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) model: Model,
}

pub(crate) fn pattern(seed: u64, block: usize) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    fastrand::Rng::with_seed(seed << 32 | block as u64).fill(&mut bytes);
    bytes
}

/// The blocks from `first` on as `seed` has them.
pub(crate) fn patterns(seed: u64, first: usize, count: usize) -> Vec<u8> {
    (first..first + count).flat_map(|block| pattern(seed, block)).collect()
}

impl Fixture {
    /// A drive with content, and nobody driving it.
    pub(crate) fn closed() -> Result<Self> {
        let namespace = Namespace::new(RamBacking::new(1 << 20)?).lba(BLOCK as u32);
        let builder = SoftController::builder().stepped().queue_pairs(4).max_transfer(64 << 10);
        let drive = builder.namespace(namespace).build()?;
        let clock = VirtualClock::new();
        clock.step_too(drive.clone());
        let mut fixture = Self { io: None, controller: None, drive, clock, model: Vec::new() };
        fixture.open()?;
        fixture.io()?.write(0, &patterns(1, 0, BLOCKS))?;
        fixture.model = (0..BLOCKS).map(|block| vec![pattern(1, block)]).collect();
        fixture.close();
        Ok(fixture)
    }

    /// A fixture whose store is opened.
    pub(crate) fn opened() -> Result<Self> {
        let mut fixture = Self::closed()?;
        fixture.open()?;
        Ok(fixture)
    }

    pub(crate) fn open_controller(&self) -> Result<Arc<Controller>, DriverError> {
        let options = ControllerOptions {
            queue_pairs: 4,
            admin_timeout: PATIENCE,
            shutdown_timeout: PATIENCE,
            ..ControllerOptions::default()
        };
        Controller::open(self.drive.clone(), self.clock.clone(), options)
    }

    pub(crate) fn queue_options() -> QueueOptions {
        QueueOptions { entries: 16, completion_entries: 16, timeout: PATIENCE, ..QueueOptions::default() }
    }

    pub(crate) fn open(&mut self) -> Result<(), DriverError> {
        let controller = self.controller.insert(self.open_controller()?);
        let namespace = controller.namespace(1)?;
        self.io = Some(BlockIo::new(controller, namespace, &Self::queue_options())?);
        Ok(())
    }

    /// Asks for the namespace again if a format came between: what was known of it is refused.
    pub(crate) fn describe_again(&mut self) -> Result<(), DriverError> {
        if let (Some(io), Some(controller)) = (&self.io, &self.controller)
            && io.namespace().check_of(controller).is_err()
        {
            let controller = controller.clone();
            self.io = None;
            let namespace = controller.namespace(1)?;
            self.io = Some(BlockIo::new(&controller, namespace, &Self::queue_options())?);
        }
        Ok(())
    }

    pub(crate) fn close(&mut self) {
        self.io = None;
        self.controller = None;
    }

    /// Puts a drive that had gone back, with what is on its media.
    pub(crate) fn replug(&mut self) -> Result<()> {
        self.close();
        self.drive.power_cut(PowerCut::KeepAll)?;
        Ok(())
    }

    pub(crate) fn controller(&self) -> Result<&Arc<Controller>> {
        self.controller.as_ref().context("nobody drives it")
    }

    pub(crate) fn io(&mut self) -> Result<&mut BlockIo> {
        self.io.as_mut().context("there is no queue")
    }

    /// Waits until every late command has been carried out, if it still is to be.
    pub(crate) fn outlast(&self) {
        self.clock.sleep(2 * LATE);
    }

    /// From now on these blocks hold what `seed` has; `perhaps`: or what they held.
    pub(crate) fn expect(&mut self, seed: u64, first: usize, count: usize, perhaps: bool) {
        for block in first..first + count {
            self.expect_block(block, pattern(seed, block), perhaps);
        }
    }

    /// From now on this block holds `bytes`; `perhaps`: or what it held.
    pub(crate) fn expect_block(&mut self, block: usize, bytes: Vec<u8>, perhaps: bool) {
        if !perhaps {
            self.model[block].clear();
        }
        self.model[block].push(bytes);
    }

    /// Reads everything and compares it; what was in doubt is then settled.
    pub(crate) fn verify(&mut self) -> Result<()> {
        let mut bytes = vec![0xee; BLOCKS * BLOCK];
        self.io()?.read(0, &mut bytes)?;
        for (block, (found, model)) in bytes.chunks_exact(BLOCK).zip(&mut self.model).enumerate() {
            ensure!(model.iter().any(|bytes| bytes == found), "block {block} holds what nobody wrote there");
            *model = vec![found.to_vec()];
        }
        Ok(())
    }
}
