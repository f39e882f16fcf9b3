//! Rings, lists and data in another device's BAR: the kernel path by which a GPU's memory becomes the target of a drive's DMA.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use warprow_conformance::fill;
use warprow_dma::{
    AllocateError, DmaMemory, Doorbell, Function, FunctionError, Interrupt, MemoryKind, SystemClock, WeakMemory,
};
use warprow_driver::{BlockIo, Controller, ControllerOptions, QueueOptions};
use warprow_vfio::VfioFunction;

const PAGE: usize = 4096;

/// The BAR that init has lent to the tester: a file of sysfs, whose mapping is the device's memory.
pub(crate) fn bar() -> Result<DmaMemory> {
    let path = std::env::var("PEER_BAR").context("PEER_BAR")?;
    let file = File::options().read(true).write(true).open(&path).with_context(|| path.clone())?;
    let len = file.metadata()?.len();
    DmaMemory::import(file.into(), 0, len, true).with_context(|| path)
}

/// A function all of whose memory lies in a peer's BAR.
#[derive(Debug)]
pub(crate) struct InPeer {
    function: Arc<VfioFunction>,
    bar: DmaMemory,
    /// Offset and length of what was given out.
    given: Mutex<Vec<(usize, usize, WeakMemory)>>,
}

impl InPeer {
    pub(crate) fn new(function: Arc<VfioFunction>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { function, bar: bar()?, given: Mutex::default() }))
    }
}

impl Function for InPeer {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.function.read_u32(offset)
    }

    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.function.read_u64(offset)
    }

    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.function.write_u32(offset, value)
    }

    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        self.function.write_u64(offset, value)
    }

    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError> {
        self.function.doorbell(offset)
    }

    /// The first gap of the BAR that is long enough.
    fn allocate(&self, len: usize) -> Result<DmaMemory, AllocateError> {
        let len = len.max(1).next_multiple_of(PAGE);
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.retain(|(_, _, memory)| !memory.is_gone());
        given.sort_by_key(|&(offset, ..)| offset);
        let mut at = 0;
        for &(offset, taken, _) in given.iter() {
            if offset - at >= len {
                break;
            }
            at = offset + taken;
        }
        if !self.bar.contains(at, len) {
            let source = Arc::new(std::io::ErrorKind::OutOfMemory.into());
            return Err(AllocateError { len, backing: MemoryKind::Auto, source });
        }
        let memory = self.bar.part(at, len);
        memory.fill(0, len, 0);
        given.push((at, len, memory.downgrade()));
        Ok(memory)
    }

    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
        self.function.map(memory)
    }

    fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
        self.function.unmap(iova)
    }

    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
        self.function.set_bus_master(enabled)
    }

    fn reset(&self) -> Result<(), FunctionError> {
        self.function.reset()
    }

    fn interrupt(&self) -> Result<Arc<dyn Interrupt>, FunctionError> {
        self.function.interrupt()
    }
}

/// Through iommufd a BAR is no memory: the error says so, and what takes it.
pub(crate) fn refused(function: &VfioFunction) -> Result<()> {
    let Err(FunctionError::Map { why, .. }) = function.map(&bar()?) else { bail!("a BAR was mapped") };
    println!("       {why}");
    ensure!(why.contains("not ordinary memory") && why.contains("WARPROW_VFIO=type1"), "{why}");
    Ok(())
}

/// What the drive brings lies in the peer's memory, as a second mapping of it shows; nothing of the drive's lies elsewhere.
pub(crate) fn holds_everything(address: &str) -> Result<()> {
    let function = VfioFunction::open(address)?;
    let peer = InPeer::new(function.clone())?;
    let seen = bar()?;
    seen.fill(0, seen.len(), 0);
    let controller = Controller::open(peer.clone(), Arc::new(SystemClock::new()), ControllerOptions::default())?;
    let ns = controller.namespace(1)?;
    let block = ns.lba_bytes() as usize;
    let mut want = vec![0; 128 << 10];
    fill(0x9ee7, 0, block, &mut want);
    BlockIo::new(&controller, ns, &QueueOptions::default())?.write(0, &want)?;
    let target = controller.allocate(want.len())?;
    let start = target.memory().as_ptr().addr() - peer.bar.as_ptr().addr();
    let len = want.len();
    let ns = controller.namespace(1)?;
    let mut pair = controller.queue_pair(&QueueOptions::default())?;
    pair.keep(target.clone());
    let most = usize::try_from(pair.max_transfer())?.min(len);
    for at in (0..len).step_by(most) {
        let data = warprow_driver::prp::Data::Contiguous { iova: target.iova() + at as u64, len: most as u64 };
        pair.read(&ns, (at / block) as u64, (most / block) as u32, data, 0)?;
        let mut good = false;
        while pair.outstanding() != 0 {
            pair.wait(|completion| good = completion.is_success())?;
        }
        ensure!(good, "a read into the BAR failed");
    }
    let mut got = vec![0; len];
    seen.read(start, &mut got);
    ensure!(got == want, "the other mapping of the BAR shows something else");
    // Identify Controller came through the BAR as well: the serial number stands there.
    let serial = controller.info().serial().to_string();
    ensure!(serial.starts_with("WARPROW"), "{serial}");
    let mut all = vec![0; seen.len()];
    seen.read(0, &mut all);
    ensure!(all.windows(serial.len()).any(|part| part == serial.as_bytes()), "{serial} never was in the BAR");
    Ok(())
}
