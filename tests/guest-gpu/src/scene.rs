//! A random table on the guest's drives, and look-ups of it by the kernels.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use fastrand::Rng;
use warprow_dma::{Function, SystemClock};
use warprow_driver::{BlockIo, Controller, ControllerOptions, Namespace, QueueOptions};
use warprow_gpu_queues::abi::{DOORBELL_MEMORY, DOORBELL_MMIO, QueueDescriptor};
use warprow_gpu_queues::{
    DoorbellAccess, DriveWritable, Gate, MemoryPlacement, QueueSet, QueueSetOptions, RingTest, RingTestError,
    RingTestReport,
};
use warprow_kernels::abi::{DriveQueues, Lookup, SlotPlaces};
use warprow_simt::batch::Batch;
use warprow_simt::buffer::Buffer;
use warprow_simt::rig::{Rig, Told, expect};
use warprow_simt::shim::{Shim, Turn};
use warprow_simt::world::{Shape, World};

use crate::completions::LateCompletions;
use crate::peer::PeerMemory;
use crate::pinned::PinnedMemory;

/// Longer than any command takes on a busy machine that emulates a processor.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The most ids of a look-up.
pub(crate) const IDS: u64 = 300;

/// Drives that hold the rows of a random table.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) rng: Rng,
    pub(crate) drives: Vec<(Arc<Controller>, Namespace)>,
}

/// Who stores to doorbells, and where completion queues and landing areas lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// A host thread stores to the registers; all memory is the host's (B′).
    HostThread,
    /// The kernels store to the registers; all memory is the host's (B).
    Registers,
    /// The kernels store to the registers; completion queues and landing areas lie in a peer's BAR (A⁻).
    Peer,
    /// The kernels store to doorbells that are memory, which another process serves; all memory is the host's (C).
    Memory,
    /// As `Peer`, and the real gdrdrv pins the memory, which a keeper keeps (A⁻).
    Pinned,
}

impl Placement {
    fn doorbells(self) -> DoorbellAccess {
        match self {
            Self::HostThread => DoorbellAccess::HostThread,
            Self::Registers | Self::Peer | Self::Pinned => DoorbellAccess::Registers,
            Self::Memory => DoorbellAccess::Memory,
        }
    }

    /// Which doorbells kernels are told of: memory, also where a host thread copies them to registers, or registers.
    pub(crate) fn doorbell_kind(self) -> u32 {
        match self {
            Self::HostThread | Self::Memory => DOORBELL_MEMORY,
            Self::Registers | Self::Peer | Self::Pinned => DOORBELL_MMIO,
        }
    }
}

/// Queues on the drives of a scene, and the gate before them.
pub(crate) struct Queues {
    // In the order in which they go.
    pub(crate) set: QueueSet,
    pub(crate) gate: Arc<Gate>,
    written: Written,
    launches: Cell<u32>,
}

/// The memory of another device that drives write to, if they do.
#[derive(Clone)]
pub(crate) enum Written {
    Host,
    Bar(Arc<PeerMemory>),
    Pinned(Arc<PinnedMemory>),
}

impl Written {
    fn of(placement: Placement) -> Result<Self> {
        Ok(match placement {
            Placement::Peer => Self::Bar(PeerMemory::new()?),
            Placement::Pinned => Self::Pinned(PinnedMemory::kept()?),
            Placement::HostThread | Placement::Registers | Placement::Memory => Self::Host,
        })
    }

    fn writable(&self) -> Option<Arc<dyn DriveWritable>> {
        match self {
            Self::Host => None,
            Self::Bar(peer) => Some(peer.clone()),
            Self::Pinned(pinned) => Some(pinned.clone()),
        }
    }

    fn assert_canaries(&self) -> Result<()> {
        match self {
            Self::Host => Ok(()),
            Self::Bar(peer) => peer.assert_canaries(),
            Self::Pinned(pinned) => pinned.assert_canaries(),
        }
    }
}

/// What came of a look-up whose rows were all compared: those that came are right, and the others are told as failed.
#[derive(Debug)]
pub(crate) struct Looked {
    /// Different rows that lie on drives.
    pub(crate) cold: usize,
    /// Rows that did not come.
    pub(crate) lost: usize,
    pub(crate) told: Told,
}

impl Looked {
    /// Every row came, and the drives answered nothing that nobody had asked for.
    pub(crate) fn assert_whole(&self) -> Result<()> {
        ensure!(
            self.lost == 0 && self.told.faults == 0,
            "{} of {} rows were lost: {:?}",
            self.lost,
            self.cold,
            self.told
        );
        ensure!(self.told.counters.anomalies == 0, "anomalies: {:?}", self.told);
        Ok(())
    }
}

impl Scene {
    /// Opens the drives and writes the table's rows to them.
    pub(crate) fn new(seed: u64, functions: Vec<Arc<dyn Function>>) -> Result<Self> {
        let scene = Self::found(seed, functions)?;
        for ((controller, namespace), image) in scene.drives.iter().zip(scene.world.images()) {
            let mut io = BlockIo::new(controller, namespace.clone(), &QueueOptions::default())?;
            io.write(0, &image)?;
            io.flush()?;
        }
        Ok(scene)
    }

    /// As [`new`](Self::new), of drives to which another has written the rows.
    pub(crate) fn found(seed: u64, functions: Vec<Arc<dyn Function>>) -> Result<Self> {
        let mut rng = Rng::with_seed(seed);
        // A kernel leaves at the end of its launch, which takes its time on an emulated processor.
        let options = ControllerOptions { leave_timeout: 3 * PATIENCE, ..ControllerOptions::default() };
        let drives = functions.into_iter().map(|function| {
            let controller = Controller::open(function, Arc::new(SystemClock::new()), options.clone())?;
            let namespace = controller.namespace(1)?;
            Ok((controller, namespace))
        });
        let drives = drives.collect::<Result<Vec<_>>>()?;
        let (row_bytes, rows) = [(40, 2000), (300, 1000), (600, 800), (8192, 80)][rng.usize(0..4)];
        let shape = Shape {
            drives: drives.len() as u32,
            tables: 1..3,
            rows: rows..rows + 1,
            row_bytes: row_bytes / 2..=row_bytes,
            lba_shift: drives.first().map(|(_, namespace)| namespace.lba_shift().into()),
            cold: true,
            ..Shape::without_drives(IDS)
        };
        let world = World::new(&mut rng, &shape);
        Ok(Self { world, rng, drives })
    }

    /// Whether the drives hold what was written to them.
    pub(crate) fn assert_unchanged(&self) -> Result<()> {
        for ((controller, namespace), image) in self.drives.iter().zip(self.world.images()) {
            let mut got = vec![0; image.len()];
            BlockIo::new(controller, namespace.clone(), &QueueOptions::default())?.read(0, &mut got)?;
            let differs = got.iter().zip(&image).position(|(got, want)| got != want);
            ensure!(differs.is_none(), "byte {differs:?} of {} has changed", controller.name());
        }
        Ok(())
    }

    /// Queues with so many batches in flight, and so long a wait for a command.
    pub(crate) fn queues(&self, placement: Placement, batches: u32, timeout: Duration) -> Result<Queues> {
        self.queues_in(placement, batches, timeout, Written::of(placement)?)
    }

    /// As [`queues`](Self::queues), with completion queues and landing areas in that memory.
    pub(crate) fn queues_in(
        &self,
        placement: Placement,
        batches: u32,
        timeout: Duration,
        written: Written,
    ) -> Result<Queues> {
        let gate = Arc::new(Gate::on_host()?);
        let options = QueueSetOptions {
            batches,
            landing_stride: self.world.landing_stride() as u32,
            windows: Vec::new(),
            timeout,
            doorbells: placement.doorbells(),
            host_doorbells: Vec::new(),
            memory: MemoryPlacement::Pinned,
            writable: written.writable(),
        };
        let set = QueueSet::on_host(&self.drives, &options, gate.clone())?;
        Ok(Queues { set, gate, written, launches: Cell::new(0) })
    }

    /// The ring test of the first drive, by the kernels, with so long a wait for a launch, and somebody beside it.
    pub(crate) fn test_ring(
        &mut self,
        shim: &mut Shim,
        placement: Placement,
        timeout: Duration,
        beside: Option<Turn<'_>>,
    ) -> Result<Result<RingTestReport, RingTestError>> {
        let written = Written::of(placement)?;
        let drive = self.drives.first().cloned().ok_or_else(|| anyhow!("a scene without a drive"))?;
        let test = RingTest {
            memory: MemoryPlacement::Pinned,
            writable: written.writable(),
            timeout,
            ..RingTest::new(drive, placement.doorbells())
        };
        let tested = shim.test_ring(&test, self.rng.u64(..), beside);
        written.assert_canaries()?;
        Ok(tested)
    }

    /// A look-up of up to `ids` random ids by the kernels. Every row of its output is compared with the table's.
    pub(crate) fn look_up(&mut self, shim: &mut Shim, queues: &mut Queues, ids: u64) -> Result<Looked> {
        let descriptors = queues.set.descriptors().to_vec();
        self.look_up_by(shim, queues, &descriptors, ids, None)
    }

    /// A [look-up](Self::look_up) in which the last completion of each queue never comes: its kernel waits until the gate is closed, or
    /// for as long as it waits for a drive. `waits` is called while it does.
    pub(crate) fn look_up_late(
        &mut self,
        shim: &mut Shim,
        queues: &Queues,
        ids: u64,
        waits: impl Fn(),
    ) -> Result<Looked> {
        let mut late = LateCompletions::of(&queues.set)?;
        let descriptors: Vec<_> = queues.set.descriptors().iter().map(|queue| late.describe(queue)).collect();
        ensure!(descriptors.len() == 1, "completions are late on one queue only");
        let began = Instant::now();
        self.look_up_by(
            shim,
            queues,
            &descriptors,
            ids,
            Some(&mut |idle| {
                late.follow();
                // All lanes pause: those of the block that drives the queue do so only while commands are outstanding.
                if idle {
                    waits();
                    std::thread::yield_now();
                }
                began.elapsed().as_nanos() as u64
            }),
        )
    }

    /// As [`look_up`](Self::look_up), with these descriptors in the place of the queues' own, and somebody beside the kernel that drives
    /// the queues, who gives it the time.
    pub(crate) fn look_up_by(
        &mut self,
        shim: &mut Shim,
        queues: &Queues,
        descriptors: &[QueueDescriptor],
        ids: u64,
        beside: Option<Turn<'_>>,
    ) -> Result<Looked> {
        let batch = Batch::of(&mut self.rng, &self.world, ids);
        let small = self.rng.bool();
        let descriptors = Buffer::of_all(descriptors.iter().map(|queue| queue.as_bytes()));
        let plain = batch.lookup();
        queues.launches.set(queues.launches.get() + 1);
        let lookup = Lookup {
            slot: SlotPlaces { gate: queues.gate.address(), ticket: queues.launches.get() % 16, ..plain.slot },
            queues: DriveQueues { descriptors: descriptors.address(), ..plain.queues },
            ..plain
        };
        let expected = expect(&self.world, &batch).by_one_block(&self.world, small);
        let mut rig = Rig { shim, rng: self.rng.fork(), world: &self.world };
        let wrong = |wrong: String| anyhow!(wrong);
        rig.prepare(&lookup, small).map_err(wrong)?;
        rig.fetch(&lookup, beside).map_err(wrong)?;
        let keys = expected.uniques.iter().zip(self.world.slot.status.bytes());
        let lost: Vec<u64> = keys.filter(|&(_, status)| status != 0).map(|(&key, _)| key).collect();
        rig.expand(&lookup, small).map_err(wrong)?;
        let told =
            rig.check_ended(&batch, &lookup, &expected, |key| lost.binary_search(&key).is_ok()).map_err(wrong)?;
        Ok(Looked { cold: expected.uniques.len(), lost: lost.len(), told })
    }

    /// As [`look_up`](Self::look_up), of which every row must come.
    pub(crate) fn whole(&mut self, shim: &mut Shim, queues: &mut Queues, ids: u64) -> Result<Looked> {
        let looked = self.look_up(shim, queues, ids)?;
        looked.assert_whole()?;
        Ok(looked)
    }
}

impl Queues {
    /// Whether what drives wrote to a peer's BAR, if anything was to go there, went where it should and nowhere else.
    pub(crate) fn assert_peer(&self) -> Result<()> {
        match &self.written {
            Written::Host => {}
            Written::Bar(peer) => ensure!(peer.is_used(), "nothing came to the peer's BAR"),
            Written::Pinned(pinned) => pinned.assert_holds(self.set.descriptors())?,
        }
        self.written.assert_canaries()
    }

    /// Doorbells that the kernels stored since the queues were made.
    pub(crate) fn doorbells(&self) -> Result<u64> {
        Ok(self.set.states()?.iter().map(|state| state.doorbells).sum())
    }
}
