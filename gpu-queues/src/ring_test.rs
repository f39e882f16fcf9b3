//! A ring test: whether reads through one queue, driven as the kernels drive it, bring what the host reads itself. The
//! test runs before a GPU stores to a drive's registers, or a drive writes to a GPU's memory. On some machines such
//! accesses get lost on the way, and nothing else shows it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use warprow_driver::{BlockIo, Controller, DriverError, Namespace, QueueOptions, Submitter};
use warprow_spec::Status;

use crate::abi::{DOORBELL_MMIO, FAULT_CLOSED, FAULT_TIMED_OUT, LANES, RingReads};
use crate::address_space::{AddressSpace, StateMemory};
use crate::{DoorbellAccess, DriveWritable, Gate, Gpu, GpuQueueError, MemoryPlacement, QueueSet, QueueSetOptions};

/// Launches of a test. The third one wraps the rings, which have room for two.
const ROUNDS: u64 = 3;
/// What the landing area holds before a launch: a drive that writes nothing there is found out, also where its LBAs
/// hold zeros.
const SCRIBBLE: u8 = 0xb5;

/// A ring test of one drive, by default with 5 s of patience and doorbells in memory. It reads from the drive and
/// writes nothing to it.
///
/// The test makes a queue pair of its own for the GPU and one for the host. Each launch reads 256 LBAs, spread over the
/// namespace, and every byte is compared with what the host reads from the same LBA.
#[derive(Clone, Debug)]
pub struct RingTest {
    /// The drive.
    pub drive: (Arc<Controller>, Namespace),
    /// Who stores to the doorbells.
    pub doorbells: DoorbellAccess,
    /// Which memory the queue and its landing area lie in.
    pub memory: MemoryPlacement,
    /// Memory of a GPU that the host has mapped, for the completion queue and the landing area, as
    /// [`QueueSetOptions::writable`](crate::QueueSetOptions::writable) has it: on a real GPU a keeper keeps it. `None`:
    /// `memory` says where they lie.
    pub writable: Option<Arc<dyn DriveWritable>>,
    /// The longest time from the doorbell to the last completion of a launch.
    pub timeout: Duration,
}

/// What a ring test that succeeded has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingTestReport {
    /// LBAs that were read both ways and compared.
    pub lbas: u64,
    /// How many different contents these LBAs have. Where all LBAs hold the same, as on a blank drive, the comparison
    /// cannot tell one place from another.
    pub contents: u64,
    /// How often the GPU stored to doorbells.
    pub doorbells: u64,
    /// Whether these doorbells are registers of the device.
    pub in_registers: bool,
}

/// Why a ring test has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingTestError {
    /// The queue could not be had.
    #[error(transparent)]
    Queues(#[from] GpuQueueError),
    /// The host could not read from the drive.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernel was not launched, or ended with an error.
    #[error("the kernel of the ring test failed: {0}")]
    Launch(String),
    /// The kernel has not ended in time. What it may still touch is never given back.
    #[error(
        "the kernel of the ring test has not ended within {0:?}: other kernels may occupy the GPU; try again when they have ended"
    )]
    Running(Duration),
    /// No completion came.
    #[error(
        "{function}: {outstanding} of {commands} commands were not answered within {waited:?}: {}",
        if *in_registers {
            "the GPU's stores to the doorbells do not reach the drive, or what the drive writes does not reach the queue"
        } else {
            "the drive does not answer, or what it writes does not reach the queue"
        }
    )]
    Silent {
        /// The drive's function.
        function: String,
        /// Commands without an answer.
        outstanding: u64,
        /// Commands that were sent.
        commands: u64,
        /// How long the GPU waited.
        waited: Duration,
        /// Whether the GPU stored to registers.
        in_registers: bool,
    },
    /// The drive was reset during the test.
    #[error("{function}: the drive was reset during the ring test; try again")]
    Reset {
        /// The drive's function.
        function: String,
    },
    /// A command failed that the host carried out well.
    #[error("{function}: LBA {lba} cannot be read for the GPU: {status}; the host reads it")]
    Status {
        /// The drive's function.
        function: String,
        /// The LBA.
        lba: u64,
        /// The command's status.
        status: Status,
    },
    /// What arrived is not what lies on the drive.
    #[error(
        "{function}: LBA {lba} differs from byte {byte} on: what the drive wrote for the GPU is not what the host reads{}",
        if *untouched { "; nothing was written there at all" } else { "" }
    )]
    Content {
        /// The drive's function.
        function: String,
        /// The LBA.
        lba: u64,
        /// The first byte that differs.
        byte: usize,
        /// Whether the memory is as it was before the command.
        untouched: bool,
    },
    /// Completions came that belong to no command.
    #[error(
        "{function}: {anomalies} completions belong to no command of the ring test: somebody else rings this queue"
    )]
    Anomalies {
        /// The drive's function.
        function: String,
        /// How many such completions came.
        anomalies: u32,
    },
    /// No LBA could be compared.
    #[error("{function}: the host can read none of the LBAs that were tried, so that nothing can be compared")]
    Nothing {
        /// The drive's function.
        function: String,
    },
}

/// What became of a launch, for [`RingTest::on_host`] and [`RingTest::on_gpu`].
#[derive(Debug)]
pub enum RingLaunchError {
    /// Nothing of it runs any more, or ever did.
    Failed(String),
    /// The kernel has not ended in this time, and may still run.
    Running(Duration),
}

impl RingTest {
    /// A test of `drive` with the default patience, and doorbells stored to as `doorbells` says.
    pub fn new(drive: (Arc<Controller>, Namespace), doorbells: DoorbellAccess) -> Self {
        Self { drive, doorbells, memory: MemoryPlacement::default(), writable: None, timeout: Duration::from_secs(5) }
    }

    /// How long to wait for a launch: the kernel gives up at twice the time-out, and others may hold it up.
    pub fn patience(&self) -> Duration {
        self.timeout.saturating_mul(2) + Duration::from_secs(10)
    }

    /// Runs the test on a GPU: `launch` launches the kernel `warprow_test_ring` with these parameters and waits until
    /// it has ended.
    pub fn on_gpu(
        &self,
        gpu: &Arc<Gpu>,
        launch: impl FnMut(&RingReads) -> Result<(), RingLaunchError>,
    ) -> Result<RingTestReport, RingTestError> {
        self.run(&AddressSpace::Gpu(gpu.clone()), Gate::new(gpu)?, launch)
    }

    /// Runs the test with somebody in the place of the kernel: `launch` does what the kernel would do, with addresses
    /// of this process.
    pub fn on_host(
        &self,
        launch: impl FnMut(&RingReads) -> Result<(), RingLaunchError>,
    ) -> Result<RingTestReport, RingTestError> {
        self.run(&AddressSpace::Host, Gate::on_host()?, launch)
    }

    fn run(
        &self,
        side: &AddressSpace,
        gate: Gate,
        mut launch: impl FnMut(&RingReads) -> Result<(), RingLaunchError>,
    ) -> Result<RingTestReport, RingTestError> {
        let (controller, namespace) = &self.drive;
        let options = QueueSetOptions {
            batches: 1,
            landing_stride: namespace.lba_bytes(),
            windows: Vec::new(),
            timeout: self.timeout,
            doorbells: self.doorbells,
            host_doorbells: Vec::new(),
            memory: self.memory,
            writable: self.writable.clone(),
        };
        let mut host = HostReads(BlockIo::new(controller, namespace.clone(), &QueueOptions::default())?);
        let gate = Arc::new(gate);
        let set = QueueSet::build(side, std::slice::from_ref(&self.drive), &options, gate.clone())?;
        let descriptor = side.own(size_of_val(set.descriptors()))?;
        for queue in set.descriptors() {
            descriptor.write(0, queue.as_bytes())?;
        }
        let (count, lba_bytes) = (LANES as usize, namespace.lba_bytes() as usize);
        let buffers = Buffers {
            lbas: side.own(count * size_of::<u64>())?,
            landed: side.own(count * lba_bytes)?,
            is_read: side.own(count * size_of::<u32>())?,
            descriptor,
        };
        let mut contents = HashSet::new();
        let mut compared = 0;
        for round in 0..ROUNDS {
            let chosen = host.choose(round)?;
            if chosen.is_empty() {
                continue;
            }
            set.scribble(SCRIBBLE)?;
            let numbers: Vec<u8> = chosen.iter().flat_map(|(lba, _)| lba.to_le_bytes()).collect();
            buffers.lbas.write(0, &numbers)?;
            buffers.is_read.clear(0, count * size_of::<u32>())?;
            let reads = RingReads {
                queue: buffers.descriptor.address(),
                gate: gate.address(),
                launch: round + 1,
                lbas: buffers.lbas.address(),
                landed: buffers.landed.address(),
                is_read: buffers.is_read.address(),
                count: chosen.len() as u64,
            };
            // Drives in software may sleep, and doorbells in memory wake nobody.
            controller.function().wake();
            match launch(&reads) {
                Ok(()) => {}
                Err(RingLaunchError::Failed(why)) => return Err(RingTestError::Launch(why)),
                Err(RingLaunchError::Running(waited)) => {
                    // A launch that comes later finds the gate closed, in memory that stays.
                    gate.close();
                    std::mem::forget((set, buffers, gate));
                    return Err(RingTestError::Running(waited));
                }
            }
            self.check_ended(&set, &chosen, round + 1)?;
            compared += self.compare(&buffers, &chosen, &mut host)?;
            contents.extend(chosen.into_iter().map(|(_, content)| content));
        }
        let states = set.states()?;
        let state = states.first().copied().unwrap_or_default();
        let function = || controller.name().to_string();
        if state.anomalies != 0 {
            return Err(RingTestError::Anomalies { function: function(), anomalies: state.anomalies });
        }
        if compared == 0 {
            return Err(RingTestError::Nothing { function: function() });
        }
        let in_registers = set.descriptors().iter().any(|queue| queue.doorbell_kind == DOORBELL_MMIO);
        Ok(RingTestReport { lbas: compared, contents: contents.len() as u64, doorbells: state.doorbells, in_registers })
    }

    /// Whether every command of the launch was answered, with success.
    fn check_ended(&self, set: &QueueSet, chosen: &[(u64, Vec<u8>)], launch: u64) -> Result<(), RingTestError> {
        let function = || self.drive.0.name().to_string();
        let in_registers = set.descriptors().iter().any(|queue| queue.doorbell_kind == DOORBELL_MMIO);
        match set.faults().first() {
            Some(fault) if fault.kind == FAULT_TIMED_OUT => {
                return Err(RingTestError::Silent {
                    function: function(),
                    outstanding: fault.outstanding.into(),
                    commands: chosen.len() as u64,
                    waited: Duration::from_nanos(fault.waited_ns),
                    in_registers,
                });
            }
            Some(fault) if fault.kind == FAULT_CLOSED => return Err(RingTestError::Reset { function: function() }),
            Some(fault) => return Err(RingTestError::Launch(fault.to_string())),
            None if set.is_poisoned() => return Err(RingTestError::Reset { function: function() }),
            None => {}
        }
        match set.errors().find(|(_, failed)| failed.launch == launch) {
            Some((_, failed)) => {
                Err(RingTestError::Status { function: function(), lba: failed.lba, status: failed.status })
            }
            None => Ok(()),
        }
    }

    /// Compares what was read with what the host has read; how many LBAs. An LBA whose content changes meanwhile is
    /// left out.
    fn compare(
        &self,
        buffers: &Buffers,
        chosen: &[(u64, Vec<u8>)],
        host: &mut HostReads,
    ) -> Result<u64, RingTestError> {
        let lba_bytes = self.drive.1.lba_bytes() as usize;
        let mut landed = vec![0; chosen.len() * lba_bytes];
        let mut flags = vec![0; chosen.len() * size_of::<u32>()];
        buffers.landed.read(0, &mut landed)?;
        buffers.is_read.read(0, &mut flags)?;
        let mut compared = 0;
        let parts = landed.chunks_exact(lba_bytes).zip(flags.chunks_exact(size_of::<u32>()));
        for ((lba, expected), (got, flag)) in chosen.iter().zip(parts) {
            if flag.iter().all(|&byte| byte == 0) {
                // It was answered, and yet not taken: by a kernel that found its gate closed.
                return Err(RingTestError::Reset { function: self.drive.0.name().to_string() });
            }
            if got == expected {
                compared += 1;
                continue;
            }
            let again = host.read(*lba)?;
            if again.as_deref() != Some(expected) {
                continue;
            }
            let byte = got.iter().zip(expected).position(|(got, expected)| got != expected).unwrap_or(0);
            let untouched = got.iter().all(|&byte| byte == SCRIBBLE);
            return Err(RingTestError::Content {
                function: self.drive.0.name().to_string(),
                lba: *lba,
                byte,
                untouched,
            });
        }
        Ok(compared)
    }
}

/// Memory that the kernel reaches.
struct Buffers {
    descriptor: StateMemory,
    lbas: StateMemory,
    landed: StateMemory,
    is_read: StateMemory,
}

/// The host's own reads.
struct HostReads(BlockIo);

impl HostReads {
    /// What an LBA holds; `None` if the drive says that it cannot be read.
    fn read(&mut self, lba: u64) -> Result<Option<Vec<u8>>, DriverError> {
        let mut content = vec![0; self.0.namespace().lba_bytes() as usize];
        match self.0.read(lba, &mut content) {
            Ok(()) => Ok(Some(content)),
            Err(DriverError::Command { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// LBAs of a launch, spread over the namespace, with what they hold. Those that cannot be read are left out.
    fn choose(&mut self, round: u64) -> Result<Vec<(u64, Vec<u8>)>, DriverError> {
        let (all, lanes) = (u128::from(self.0.namespace().lba_count()), u64::from(LANES));
        let total = u128::from(ROUNDS * lanes);
        let mut chosen = Vec::new();
        for lane in 0..lanes {
            let lba = u64::try_from(u128::from(lane * ROUNDS + round) * all / total).unwrap_or(0);
            chosen.extend(self.read(lba)?.map(|content| (lba, content)));
        }
        Ok(chosen)
    }
}
