use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{VFIO_BASE, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_TYPE};
use warprow_dma::pci::command::{BUS_MASTER, INTERRUPT_DISABLE, MEMORY_SPACE};
use warprow_dma::pci::{COMMAND, PciAccess};
use warprow_dma::{DmaMemory, Doorbell, EventfdInterrupt, Function, FunctionError, Interrupt, Mmio};

use crate::bar::Bar;
use crate::irq;
use crate::region::Region;
use crate::space::{AddressSpace, Lease, lock};
use crate::sysfs::System;
use crate::type1::GroupDevice;
use crate::{OpenError, PciAddress, VfioInterface};

/// Where doorbells begin in BAR0 (NVMe PCIe Transport 1.0, 3.1.2).
const DOORBELLS: u64 = 0x1000;

nix::ioctl_none_bad!(device_reset, nix::request_code_none!(VFIO_TYPE, VFIO_BASE + 11));

/// An NVMe controller's function, opened through VFIO.
///
/// Dropping this value stops the function's DMA, ends its mappings and closes the function; the kernel then resets it.
pub struct VfioFunction {
    name: String,
    // Fields are dropped in this order: the kernel does not release a group while a file of its devices is open.
    bar: Bar,
    config: Config,
    /// Memory by I/O virtual address.
    mappings: Mutex<HashMap<u64, DmaMemory>>,
    /// The eventfd that vector 0 signals; made when it is first asked for.
    event: OnceLock<Arc<EventfdInterrupt>>,
    /// Whether bus mastering was turned off for good.
    dma_stopped: AtomicBool,
    _group: Option<GroupDevice>,
    space: Lease,
}

/// The device's file, and where configuration space begins in it. The lock makes changes of a register one step.
struct Config {
    file: File,
    offset: u64,
    lock: Mutex<()>,
}

impl fmt::Display for VfioFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for VfioFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VfioFunction({})", self.name)
    }
}

impl VfioFunction {
    /// Opens the NVMe controller at a PCI address (`0000:01:00.0`; the domain may be left out).
    ///
    /// The function must be bound to `vfio-pci`, behind an IOMMU, and its group must hold nothing but functions that
    /// are bound to `vfio-pci`. The environment variable `WARPROW_VFIO` chooses the kernel's interface
    /// ([`VfioInterface`]). Bus mastering is off when this returns. An error names what is missing and the command that
    /// helps.
    pub fn open(address: &str) -> Result<Arc<Self>, OpenError> {
        Self::open_through(address, VfioInterface::from_env()?)
    }

    /// As [`open`](Self::open), through the interface given. Functions of one group all go through that of the first.
    pub fn open_through(address: &str, interface: VfioInterface) -> Result<Arc<Self>, OpenError> {
        let address: PciAddress = address.parse()?;
        let system = System::host();
        let group = system.check(address)?;
        let (space, (file, device)) = AddressSpace::open(&system, address, group, interface)?;
        let malformed = |what| OpenError::Malformed { address, what };
        let config = Region::read(&file, VFIO_PCI_CONFIG_REGION_INDEX)
            .map_err(|e| malformed(format!("cannot look at its configuration space: {e}")))?;
        if config.size < 64 {
            return Err(malformed("the kernel shows no configuration space".to_owned()));
        }
        let bar = Bar::open(&file).map_err(malformed)?;
        let function = Self {
            name: address.to_string(),
            bar,
            config: Config { file, offset: config.offset, lock: Mutex::new(()) },
            mappings: Mutex::default(),
            event: OnceLock::new(),
            dma_stopped: AtomicBool::new(false),
            _group: device,
            space,
        };
        function.command(MEMORY_SPACE | INTERRUPT_DISABLE, BUS_MASTER)?;
        function.present()?;
        Ok(Arc::new(function))
    }

    /// The interface that the function was opened through; never [`VfioInterface::Auto`].
    pub fn interface(&self) -> VfioInterface {
        self.space.interface()
    }

    /// Another descriptor of the device's file. As long as one is open, the kernel keeps the function open, and with it its group and
    /// container, and all that is mapped for the device.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.config.file.as_fd().try_clone_to_owned()
    }

    /// Stops the function's DMA for good: turns bus mastering off, and resets the function, because it may have begun to carry commands
    /// out. From now on the device reads and writes no memory, and what would turn bus mastering on fails. Doorbells that are stored
    /// meanwhile are lost.
    pub fn stop_dma(&self) -> Result<(), FunctionError> {
        let _one_at_a_time = lock(&self.config.lock);
        self.dma_stopped.store(true, Ordering::Relaxed);
        self.change_command(0, BUS_MASTER)?;
        // SAFETY: an ioctl without an argument on the device's open file.
        match unsafe { device_reset(self.config.file.as_raw_fd()) } {
            // Without a way to be reset, a function keeps bus mastering off all the same.
            Ok(_) | Err(Errno::EINVAL | Errno::ENOTTY) => Ok(()),
            Err(errno) => Err(self.os("resetting the function", errno.into())),
        }
    }

    /// Sets and clears bits of the command register. If a reset that the kernel did not see, such as one of the NVM
    /// subsystem, has cleared the BARs, the kernel sets them up again at a write that enables memory space.
    fn command(&self, set: u16, clear: u16) -> Result<(), FunctionError> {
        let _one_at_a_time = lock(&self.config.lock);
        if set & BUS_MASTER != 0 && self.dma_stopped.load(Ordering::Relaxed) {
            let why = "its DMA was stopped for good, because nothing keeps the memory that it writes to any more; close the function and open it again";
            return Err(self.os("turning bus mastering on", io::Error::other(why)));
        }
        self.change_command(set, clear)
    }

    /// Has the kernel signal the eventfd for vector 0.
    fn arm(&self, event: &EventfdInterrupt) -> Result<(), FunctionError> {
        irq::signal(&self.config.file, event.as_fd()).map_err(|e| self.os("turning an interrupt on", e))
    }
}

impl PciAccess for VfioFunction {
    fn bar_bytes(&self) -> u64 {
        self.bar.bytes()
    }

    fn load(&self, offset: u64) -> Result<u32, FunctionError> {
        self.bar.read(&self.config.file, offset).map_err(|e| self.os("reading a register", e))
    }

    fn store(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.bar.write(&self.config.file, offset, value).map_err(|e| self.os("writing a register", e))
    }

    fn load_command(&self) -> Result<u16, FunctionError> {
        let (Config { file, offset, .. }, mut bytes) = (&self.config, [0; 2]);
        file.read_exact_at(&mut bytes, offset + COMMAND).map_err(|e| self.os("reading the PCI command register", e))?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn store_command(&self, value: u16) -> Result<(), FunctionError> {
        let Config { file, offset, .. } = &self.config;
        let written = file.write_all_at(&value.to_le_bytes(), offset + COMMAND);
        written.map_err(|e| self.os("writing the PCI command register", e))
    }
}

impl Function for VfioFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.load_u32(offset)
    }

    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.load_u64(offset)
    }

    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.store_u32(offset, value)
    }

    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        self.store_u64(offset, value)
    }

    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError> {
        self.check("a doorbell", offset, 4)?;
        let unsupported = || FunctionError::Unsupported {
            function: self.name.clone(),
            what: "a doorbell in a part of BAR0 that the kernel does not let be mapped",
        };
        let (mmio, inner) = self.bar.mapped(offset).ok_or_else(unsupported)?;
        Doorbell::mmio(mmio.clone(), inner).ok_or_else(unsupported)
    }

    fn doorbell_registers(&self) -> Result<Option<Mmio>, FunctionError> {
        // While memory space is off the kernel ends a process that touches the mapping.
        self.command(MEMORY_SPACE, 0)?;
        Ok(self.bar.mapped(DOORBELLS).and_then(|(mmio, inner)| mmio.part(inner, mmio.len() - inner)))
    }

    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
        let iova = self.space.map(memory).map_err(|why| FunctionError::Map {
            function: self.name.clone(),
            len: memory.len(),
            why: why.to_string(),
        })?;
        lock(&self.mappings).insert(iova, memory.clone());
        Ok(iova)
    }

    fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
        let mut mappings = lock(&self.mappings);
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("nothing is mapped at {iova:#x}"));
        let memory = mappings.get(&iova).ok_or_else(|| self.os("ending a DMA mapping", missing()))?;
        // After an error the entry stays, and the memory with it: the device may still reach it.
        self.space.unmap(iova, memory.len()).map_err(|e| self.os("ending a DMA mapping", e))?;
        mappings.remove(&iova);
        Ok(())
    }

    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
        if enabled { self.command(BUS_MASTER, 0) } else { self.command(0, BUS_MASTER) }
    }

    fn reset(&self) -> Result<(), FunctionError> {
        let _one_at_a_time = lock(&self.config.lock);
        // The kernel saves configuration space before the reset and restores it after, bus mastering included.
        self.change_command(0, BUS_MASTER)?;
        // SAFETY: an ioctl without an argument on the device's open file. (vfio-ioctls drops its answer.)
        match unsafe { device_reset(self.config.file.as_raw_fd()) } {
            Ok(_) => {}
            Err(Errno::EINVAL | Errno::ENOTTY) => {
                return Err(FunctionError::Unsupported { function: self.name.clone(), what: "resetting the function" });
            }
            Err(errno) => return Err(self.os("resetting the function", errno.into())),
        }
        self.change_command(MEMORY_SPACE | INTERRUPT_DISABLE, BUS_MASTER)?;
        if let Some(event) = self.event.get() {
            self.arm(event)?;
        }
        self.present()
    }

    fn interrupt(&self) -> Result<Arc<dyn Interrupt>, FunctionError> {
        if let Some(event) = self.event.get() {
            return Ok(event.clone());
        }
        let event = EventfdInterrupt::new().map_err(|e| self.os("making an eventfd", e))?;
        self.arm(&event)?;
        // Another thread may have stored its eventfd first. Then that one is armed instead.
        let kept = self.event.get_or_init(|| Arc::new(event));
        self.arm(kept)?;
        Ok(kept.clone())
    }
}

impl Drop for VfioFunction {
    fn drop(&mut self) {
        // A function that is gone has stopped by itself.
        let _ = self.command(0, BUS_MASTER);
        let left: Vec<u64> = lock(&self.mappings).keys().copied().collect();
        for iova in left {
            let _ = self.unmap(iova);
        }
    }
}
