use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{VFIO_BASE, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_TYPE};
use warprow_dma::{DmaMemory, Doorbell, Function, FunctionError};

use crate::bar::Bar;
use crate::region::Region;
use crate::space::{AddressSpace, Lease, lock};
use crate::sysfs::System;
use crate::type1::GroupDevice;
use crate::{Interface, OpenError, PciAddress};

nix::ioctl_none_bad!(device_reset, nix::request_code_none!(VFIO_TYPE, VFIO_BASE + 11));

/// Offset of the command register in configuration space (PCI Local Bus 3.0, 6.2.2), and its bits.
const COMMAND: u64 = 4;
const MEMORY_SPACE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
const INTERRUPT_DISABLE: u16 = 1 << 10;

/// Controller Status (NVMe Base 2.0, 3.1.3.6): never all ones, unlike other registers (CRTO).
const CSTS: u64 = 0x1c;

/// An NVMe controller that VFIO lends to this process.
///
/// Dropping it stops the function's DMA, ends its mappings and gives it back; the kernel resets it then.
pub struct VfioFunction {
    name: String,
    // The order of these fields is that of their end: the kernel does not release a group whose device's file is open.
    bar: Bar,
    config: Config,
    /// Memory by I/O virtual address.
    mappings: Mutex<HashMap<u64, DmaMemory>>,
    _group: Option<GroupDevice>,
    space: Lease,
}

/// The device's file, and where configuration space begins in it. The lock makes changes of a register one step.
struct Config {
    file: File,
    offset: u64,
    lock: Mutex<()>,
}

impl fmt::Debug for VfioFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VfioFunction({})", self.name)
    }
}

impl VfioFunction {
    /// Opens the NVMe controller at a PCI address (`0000:01:00.0`; the domain may be left out).
    ///
    /// It must be bound to `vfio-pci`, behind an IOMMU, with nothing but itself and other `vfio-pci` functions in its
    /// group. The environment variable `WARPROW_VFIO` chooses the kernel's interface ([`Interface`]). Bus mastering is off when this returns. The error names what is missing and the command that helps.
    pub fn open(address: &str) -> Result<Arc<Self>, OpenError> {
        Self::open_through(address, Interface::from_env()?)
    }

    /// As [`open`](Self::open), through the interface given. Functions of one group all go through that of the first.
    pub fn open_through(address: &str, interface: Interface) -> Result<Arc<Self>, OpenError> {
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
            _group: device,
            space,
        };
        function.command(MEMORY_SPACE | INTERRUPT_DISABLE, BUS_MASTER)?;
        function.present()?;
        Ok(Arc::new(function))
    }

    /// Through what it was opened: never [`Interface::Auto`].
    pub fn interface(&self) -> Interface {
        self.space.interface()
    }

    fn os(&self, what: &'static str, source: io::Error) -> FunctionError {
        FunctionError::Os { function: self.name.clone(), what, source: source.into() }
    }

    fn gone(&self) -> FunctionError {
        FunctionError::Gone { function: self.name.clone() }
    }

    /// Fails unless an aligned register of `width` bytes lies in the BAR.
    fn check(&self, what: &'static str, offset: u64, width: u64) -> Result<(), FunctionError> {
        if self.bar.holds(offset, width) {
            Ok(())
        } else {
            Err(FunctionError::OutsideBar { function: self.name.clone(), what, offset })
        }
    }

    fn load(&self, offset: u64) -> Result<u32, FunctionError> {
        self.bar.read(&self.config.file, offset).map_err(|e| self.os("reading a register", e))
    }

    /// Fails if the function does not answer.
    fn present(&self) -> Result<(), FunctionError> {
        if self.load(CSTS)? == u32::MAX { Err(self.gone()) } else { Ok(()) }
    }

    fn store(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.bar.write(&self.config.file, offset, value).map_err(|e| self.os("writing a register", e))
    }

    /// Sets and clears bits of the command register, and makes sure that the function took them.
    fn command(&self, set: u16, clear: u16) -> Result<(), FunctionError> {
        let _one_at_a_time = lock(&self.config.lock);
        self.change_command(set, clear)
    }

    /// [`command`](Self::command), with the lock held. Always writes: at a write that has memory space enabled, the kernel sets
    /// the BARs up again if a reset that it did not see, such as one of the NVM subsystem, has cleared them.
    fn change_command(&self, set: u16, clear: u16) -> Result<(), FunctionError> {
        let Config { file, offset, .. } = &self.config;
        let at = offset + COMMAND;
        let read = || {
            let mut bytes = [0; 2];
            file.read_exact_at(&mut bytes, at).map_err(|e| self.os("reading the PCI command register", e))?;
            Ok(Some(u16::from_le_bytes(bytes)).filter(|&value| value != u16::MAX))
        };
        let old = read()?.ok_or_else(|| self.gone())?;
        let new = old & !clear | set;
        file.write_all_at(&new.to_le_bytes(), at).map_err(|e| self.os("writing the PCI command register", e))?;
        // Bit 10 is optional where a function has no interrupt line; polling needs no interrupts at all.
        let relevant = (set | clear) & !INTERRUPT_DISABLE;
        let now = read()?.ok_or_else(|| self.gone())?;
        if (now ^ new) & relevant != 0 {
            let text = format!("the function refused it: {new:#06x} written, {now:#06x} read");
            return Err(self.os("changing the PCI command register", io::Error::other(text)));
        }
        Ok(())
    }
}

impl Function for VfioFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.check("a 32-bit register", offset, 4)?;
        let value = self.load(offset)?;
        if value == u32::MAX {
            self.present()?;
        }
        Ok(value)
    }

    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.check("a 64-bit register", offset, 8)?;
        // Two halves: every controller takes them, and some break on 64-bit accesses.
        let value = u64::from(self.load(offset)?) | u64::from(self.load(offset + 4)?) << 32;
        if value == u64::MAX {
            self.present()?;
        }
        Ok(value)
    }

    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.check("a 32-bit register", offset, 4)?;
        self.store(offset, value)
    }

    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        self.check("a 64-bit register", offset, 8)?;
        self.store(offset, value as u32)?;
        self.store(offset + 4, (value >> 32) as u32)
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
        self.present()
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
