//! Completion queues and landing areas in memory that the real gdrdrv pins and maps, and that a keeper keeps. Where the memory is a GPU's
//! elsewhere, it is a peer's BAR here, by a kernel module that stands in for NVIDIA's (tests/guest/gdrdrv/gpu_stand_in.c).

use std::fs;
use std::ops::Range;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use warprow_dma::{DmaMemory, Function};
use warprow_gpu_queues::abi::QueueDescriptor;
use warprow_gpu_queues::{
    DriveWritable, DriveWritableBlock, Gdrdrv, GdrdrvError, GdrdrvMemory, GpuQueueError, Keeper, KeptGpuMemory,
};

use crate::scene::PATIENCE;

/// Addresses of the memory on the GPU that the kernel module plays.
const MEMORY: Range<u64> = 0x2_0000_0000..0x2_0200_0000;
/// A page of that memory.
const GPU_PAGE: u64 = 65_536;
const CANARY: u8 = 0xc7;

/// One block of the memory for a queue, and canaries in all the rest.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    keeper: Option<Arc<Keeper>>,
    gdrdrv: Gdrdrv,
    canaries: Mutex<Vec<GdrdrvMemory>>,
}

impl PinnedMemory {
    /// Memory that a keeper keeps.
    pub(crate) fn kept() -> Result<Arc<Self>> {
        let mut program = Command::new(std::env::current_exe()?);
        program.arg("keeper");
        Self::new(Some(Arc::new(Keeper::start(program)?)))
    }

    pub(crate) fn new(keeper: Option<Arc<Keeper>>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { keeper, gdrdrv: Gdrdrv::open()?, canaries: Mutex::default() }))
    }

    fn guard(&self, addresses: Range<u64>) -> Result<(), GpuQueueError> {
        let guard = self.gdrdrv.pin(addresses.start, addresses.end - addresses.start).map_err(unsupported)?;
        guard.memory().fill(0, guard.memory().len(), CANARY);
        self.canaries.lock().unwrap_or_else(PoisonError::into_inner).push(guard);
        Ok(())
    }

    /// Whether every byte outside of the block is as it was.
    pub(crate) fn assert_canaries(&self) -> Result<()> {
        let canaries = self.canaries.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(canaries.len() == 2, "no queue was made in pinned memory");
        canaries.iter().try_for_each(|guard| assert_untouched(guard.memory()))
    }

    /// Whether completion queues and landing areas lie in mappings of gdrdrv's.
    pub(crate) fn assert_holds(&self, queues: &[QueueDescriptor]) -> Result<()> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let mapped = maps.lines().filter(|line| line.ends_with("/dev/gdrdrv"));
        let mapped: Vec<Range<u64>> = mapped
            .map(|line| {
                let (start, end) = line.split(' ').next().and_then(|word| word.split_once('-')).context("a mapping")?;
                Ok(u64::from_str_radix(start, 16)?..u64::from_str_radix(end, 16)?)
            })
            .collect::<Result<_>>()?;
        for queue in queues {
            for address in [queue.cq, queue.landing] {
                ensure!(mapped.iter().any(|range| range.contains(&address)), "{address:#x} is not in {mapped:x?}");
            }
        }
        Ok(())
    }
}

fn unsupported(error: GdrdrvError) -> GpuQueueError {
    GpuQueueError::Unsupported(error.to_string())
}

fn assert_untouched(memory: &DmaMemory) -> Result<()> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    let touched = bytes.iter().position(|&byte| byte != CANARY);
    ensure!(touched.is_none(), "byte {touched:?} of pinned memory was written, and no drive was to write there");
    Ok(())
}

impl DriveWritable for PinnedMemory {
    fn allocate(&self, function: &Arc<dyn Function>, bytes: usize) -> Result<DriveWritableBlock, GpuQueueError> {
        let start = MEMORY.start + GPU_PAGE;
        let end = start + (bytes as u64).next_multiple_of(GPU_PAGE);
        let block = match &self.keeper {
            Some(keeper) => KeptGpuMemory::on_host(start..end, keeper.clone())?.allocate(function, bytes)?,
            None => {
                let pinned = self.gdrdrv.pin(start, end - start).map_err(unsupported)?;
                let memory = pinned.memory().clone();
                let address = memory.as_ptr() as u64;
                DriveWritableBlock { memory, address, hold: None, owner: Arc::new(pinned) }
            }
        };
        self.guard(MEMORY.start..start)?;
        self.guard(end..MEMORY.end)?;
        Ok(block)
    }
}

/// The memory's next owner: has all of it as soon as nobody else has any, and fills it with canaries.
pub(crate) struct NextOwner(GdrdrvMemory);

impl NextOwner {
    pub(crate) fn new() -> Result<Self> {
        let (gdrdrv, began) = (Gdrdrv::open()?, Instant::now());
        loop {
            match gdrdrv.pin(MEMORY.start, MEMORY.end - MEMORY.start) {
                Ok(all) => {
                    all.memory().fill(0, all.memory().len(), CANARY);
                    return Ok(Self(all));
                }
                Err(GdrdrvError::Pin { errno: Errno::EBUSY, .. }) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn is_untouched(&self) -> bool {
        assert_untouched(self.0.memory()).is_ok()
    }
}

/// What the real module answers to what it cannot do.
pub(crate) fn refusals() -> Result<()> {
    let gdrdrv = Gdrdrv::open()?;
    let refused = |address, bytes| match gdrdrv.pin(address, bytes) {
        Ok(_) => bail!("{bytes:#x} bytes at {address:#x} were pinned"),
        Err(error) => Ok(error),
    };
    ensure!(matches!(refused(MEMORY.start + 4096, GPU_PAGE)?, GdrdrvError::Unaligned { .. }));
    for address in [MEMORY.start - GPU_PAGE, MEMORY.end, GPU_PAGE] {
        let error = refused(address, GPU_PAGE)?;
        ensure!(matches!(error, GdrdrvError::Pin { errno: Errno::EINVAL, .. }), "{error}");
    }
    let first = gdrdrv.pin(MEMORY.start, 2 * GPU_PAGE)?;
    let error = refused(MEMORY.start + GPU_PAGE, GPU_PAGE)?;
    ensure!(matches!(error, GdrdrvError::Pin { errno: Errno::EBUSY, .. }), "{error}");
    // What is written by one mapping is there in the next.
    first.memory().write(GPU_PAGE as usize - 2, &[1, 2, 3, 4]);
    drop(first);
    let second = gdrdrv.pin(MEMORY.start, 2 * GPU_PAGE)?;
    let mut read = [0; 4];
    second.memory().read(GPU_PAGE as usize - 2, &mut read);
    ensure!(read == [1, 2, 3, 4], "{read:?}");
    Ok(())
}
