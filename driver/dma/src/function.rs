use std::fmt;
use std::sync::Arc;

use crate::{AllocateError, Backing, DmaMemory, Doorbell, Interrupt};

/// What can go wrong between the driver and a PCIe function.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FunctionError {
    /// The function no longer answers: a register read returned all ones, or its transport is closed.
    #[error("{function}: the device is gone (removed, powered off, or its transport closed)")]
    Gone {
        /// The function's name.
        function: String,
    },
    /// A register, doorbell or range that the function's BAR does not have.
    #[error("{function}: {what} at offset {offset:#x} lies outside its BAR")]
    OutsideBar {
        /// The function's name.
        function: String,
        /// What was asked for.
        what: &'static str,
        /// Offset in BAR0, bytes.
        offset: u64,
    },
    /// Memory could not be made visible to the device.
    #[error("{function}: cannot map {len} bytes for DMA: {why}")]
    Map {
        /// The function's name.
        function: String,
        /// Length of the memory, bytes.
        len: usize,
        /// The cause and its remedy.
        why: String,
    },
    /// An operating system call of the transport failed.
    #[error("{function}: {what}: {source}")]
    Os {
        /// The function's name.
        function: String,
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: Arc<std::io::Error>,
    },
    /// The transport cannot do this.
    #[error("{function}: {what} is not supported by this transport")]
    Unsupported {
        /// The function's name.
        function: String,
        /// What was asked for.
        what: &'static str,
    },
}

/// A PCIe function that carries an NVMe controller, as its driver sees it: BAR0, DMA, and a few switches of its
/// configuration space. Implemented by VFIO, and by the software controller. Registers and doorbells that BAR0 does not
/// have are [`FunctionError::OutsideBar`]; what the transport cannot do at all is [`FunctionError::Unsupported`].
///
/// These are for the one driver of the device. All that a device can be made to write is [`DmaMemory`] that was mapped, of which
/// nothing but a [`DmaBuffer`](crate::DmaBuffer) makes plain bytes; whoever allocates one vouches for who uses these, and how.
pub trait Function: Send + Sync + fmt::Debug {
    /// What people call it: a PCI address, or a URI. Stands in every error.
    fn name(&self) -> &str;

    /// Loads a 32-bit register of BAR0. A device that is gone is an error, not all ones, wherever the transport can
    /// tell. All ones may be a register's value; CSTS alone never reads so of a device that is there.
    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError>;

    /// Loads a 64-bit register of BAR0, by one access or two of 32 bits, lower first (NVMe Base 2.0, 3.1.1).
    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError>;

    /// Stores a 32-bit register of BAR0.
    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError>;

    /// Stores a 64-bit register of BAR0, by one access or two of 32 bits, lower first.
    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError>;

    /// The doorbell register at `offset` of BAR0, for writing without further checks.
    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError>;

    /// The memory that holds the doorbells, where they are ordinary memory: its first byte is BAR0 + 1000h. For submitters
    /// that store to them by other means than [`Doorbell::ring`] and so wake nobody, such as a GPU: whoever reads them looks
    /// by itself for as long as the result or a clone of it lives, and is told with [`wake`](Self::wake) when that is worth
    /// while.
    fn doorbell_memory(&self) -> Option<DmaMemory> {
        None
    }

    /// Wakes whoever reads [`doorbell_memory`](Self::doorbell_memory), because a doorbell will be stored soon.
    fn wake(&self) {}

    /// Allocates zeroed memory of a kind that this function can reach, at least `len` bytes.
    fn allocate(&self, len: usize) -> Result<DmaMemory, AllocateError> {
        DmaMemory::allocate(len, Backing::Auto)
    }

    /// Makes `memory` visible to the device, contiguously, and returns its I/O virtual address (page-aligned).
    /// Prefer [`Mapped`], which undoes it.
    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError>;

    /// Ends what [`map`](Self::map) began. After it returns, no access of the device reaches the memory any more. The
    /// caller has made sure that no outstanding command names it: its address may be given to other memory next.
    fn unmap(&self, iova: u64) -> Result<(), FunctionError>;

    /// Lets the function start DMA, or stops it (PCI command register, bus master enable). After it returns from
    /// stopping, no access of the device reaches memory any more.
    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError>;

    /// Resets the function (FLR where there is one) and sets up what the reset cleared, except bus master, which is off
    /// afterwards, also if the reset failed or is [`FunctionError::Unsupported`].
    fn reset(&self) -> Result<(), FunctionError>;

    /// Turns MSI-X on for vector 0, which is the admin completion queue's, and returns what waits for it; the same every
    /// time. It outlives resets. Polling needs it not.
    fn interrupt(&self) -> Result<Arc<dyn Interrupt>, FunctionError> {
        Err(FunctionError::Unsupported { function: self.name().to_owned(), what: "waiting for interrupts" })
    }
}

/// Memory that a device can reach, for as long as this value lives.
#[derive(Debug)]
pub struct Mapped {
    function: Arc<dyn Function>,
    memory: DmaMemory,
    iova: u64,
}

impl Mapped {
    /// Maps `memory` for `function`.
    pub fn new(function: Arc<dyn Function>, memory: DmaMemory) -> Result<Self, FunctionError> {
        let iova = function.map(&memory)?;
        Ok(Self { function, memory, iova })
    }

    /// Maps `memory`, and has an alias of it: what is made of that is counted apart from what the function keeps.
    pub(crate) fn aliased(function: Arc<dyn Function>, memory: &DmaMemory) -> Result<Self, FunctionError> {
        let iova = function.map(memory)?;
        Ok(Self { function, memory: memory.alias(), iova })
    }

    /// Whether there is no other handle of the memory that was made of this one's.
    pub(crate) fn is_unshared(&mut self) -> bool {
        self.memory.is_unshared()
    }

    /// The memory.
    pub fn memory(&self) -> &DmaMemory {
        &self.memory
    }

    /// The function it is mapped for.
    pub fn function(&self) -> &Arc<dyn Function> {
        &self.function
    }

    /// Where the device sees its first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // A failure leaves the memory mapped in the device's address space; it must then never be used again.
        if self.function.unmap(self.iova).is_err() {
            std::mem::forget(self.memory.clone());
        }
    }
}
