use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::{AllocateError, DmaMemory, Doorbell, Interrupt, MemoryKind, Mmio, PeerMemory};

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

/// A PCIe function that carries an NVMe controller, as its driver sees it: BAR0, DMA, bus master, reset, and one
/// interrupt. The transports over VFIO and over vfio-user implement this trait, and so does the software controller. A
/// call fails with [`FunctionError::OutsideBar`] for a register or doorbell that BAR0 does not have, and with
/// [`FunctionError::Unsupported`] for what the transport cannot do at all.
///
/// The methods are for the one driver of the device. A device can be made to write only to [`DmaMemory`] that was
/// mapped; only a [`DmaBuffer`](crate::DmaBuffer) makes plain bytes of such memory, and whoever allocates a `DmaBuffer`
/// vouches for who calls these methods, and how.
///
/// Whoever needs what one kind of function alone can do, asks the value for its type ([`Any`]).
pub trait Function: Any + Send + Sync + fmt::Debug {
    /// The name of the function, as people write it: a PCI address, or a URI. Every error contains it.
    fn name(&self) -> &str;

    /// Loads a 32-bit register of BAR0. For a device that is gone this is an error, not all ones, wherever the
    /// transport can tell. All ones can also be the value of a register, except of CSTS: CSTS reads as all ones only if
    /// the device is gone.
    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError>;

    /// Loads a 64-bit register of BAR0, by one access or two of 32 bits, lower first (NVMe Base 2.0, 3.1.1).
    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError>;

    /// Stores a 32-bit register of BAR0.
    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError>;

    /// Stores a 64-bit register of BAR0, by one access or two of 32 bits, lower first.
    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError>;

    /// The doorbell register at `offset` of BAR0, for writing without further checks.
    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError>;

    /// The memory that holds the doorbells, where they are ordinary memory: its first byte is BAR0 + 1000h. This is for
    /// submitters that store to the doorbells by other means than [`Doorbell::ring`], such as a GPU, and so wake
    /// nobody. As long as the result or a clone of it lives, the controller that reads the doorbells polls them;
    /// [`wake`](Self::wake) tells it when a doorbell will be stored soon.
    fn doorbell_memory(&self) -> Option<DmaMemory> {
        None
    }

    /// The doorbell registers, where they are registers of a BAR that is mapped in this process: the first byte is BAR0 + 1000h, and
    /// the registers reach as far as the mapping does. This is for submitters that store to the registers by other means than
    /// [`Doorbell::ring`], such as a GPU. The result keeps the mapping, and the kernel keeps the device open while there is a
    /// mapping. `None` where doorbells are no registers, or where the operating system does not let them be mapped. An error where
    /// the function does not answer to its registers: it is gone, or its memory space is off and stays off.
    fn doorbell_registers(&self) -> Result<Option<Mmio>, FunctionError> {
        Ok(None)
    }

    /// Wakes whoever reads [`doorbell_memory`](Self::doorbell_memory), because a doorbell will be stored soon.
    fn wake(&self) {}

    /// Allocates zeroed memory of a kind that this function can reach, at least `len` bytes.
    fn allocate(&self, len: usize) -> Result<DmaMemory, AllocateError> {
        DmaMemory::allocate(len, MemoryKind::Auto)
    }

    /// Makes `memory` visible to the device, contiguously, and returns its I/O virtual address (page-aligned). Prefer
    /// [`MappedMemory`], which also unmaps it.
    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError>;

    /// Whether queues that somebody else drives belong in that one's memory ([`map_peer`](Self::map_peer)): the device reaches it as
    /// fast as memory of the host, or faster. False where the device would go by way of the host.
    fn favours_peer_memory(&self) -> bool {
        false
    }

    /// Makes memory of another device visible to this one, as [`map`](Self::map) does with memory of the host; [`unmap`](Self::unmap)
    /// ends it. The function keeps `memory` until then. Prefer [`MappedPeerMemory`](crate::MappedPeerMemory), which also unmaps it.
    fn map_peer(&self, memory: &Arc<dyn PeerMemory>) -> Result<u64, FunctionError> {
        let _ = memory;
        Err(FunctionError::Unsupported { function: self.name().to_owned(), what: "memory of another device" })
    }

    /// Ends a mapping that [`map`](Self::map) made. After this returns, no access of the device reaches the memory any
    /// more. The caller has made sure that no outstanding command names the memory, since its I/O virtual address may
    /// be given to other memory next.
    fn unmap(&self, iova: u64) -> Result<(), FunctionError>;

    /// Lets the function start DMA, or stops its DMA (PCI command register, bus master enable). After a call with
    /// `false` returns, no access of the device reaches memory any more.
    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError>;

    /// Resets the function (FLR where there is one) and sets up what the reset cleared, except bus master, which is off
    /// afterwards, also if the reset failed or is [`FunctionError::Unsupported`].
    fn reset(&self) -> Result<(), FunctionError>;

    /// Turns MSI-X on for vector 0, which is the admin completion queue's, and returns the [`Interrupt`] to wait for;
    /// every call returns the same one. It goes on working after resets. A driver that polls need not call this.
    fn interrupt(&self) -> Result<Arc<dyn Interrupt>, FunctionError> {
        Err(FunctionError::Unsupported { function: self.name().to_owned(), what: "waiting for interrupts" })
    }
}

/// Memory that is mapped for a device as long as this value lives.
#[derive(Debug)]
pub struct MappedMemory {
    function: Arc<dyn Function>,
    memory: DmaMemory,
    iova: u64,
}

impl MappedMemory {
    /// Maps `memory` for `function`.
    pub fn new(function: Arc<dyn Function>, memory: DmaMemory) -> Result<Self, FunctionError> {
        let iova = function.map(&memory)?;
        Ok(Self { function, memory, iova })
    }

    /// Maps `memory`, and keeps an alias of it: handles that are made from the alias are counted apart from those that
    /// the function keeps.
    pub(crate) fn aliased(function: Arc<dyn Function>, memory: &DmaMemory) -> Result<Self, FunctionError> {
        let iova = function.map(memory)?;
        Ok(Self { function, memory: memory.alias(), iova })
    }

    /// Whether no other handle of the memory exists that was made from this value's.
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

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // A failure leaves the memory mapped in the device's address space; it must then never be used again.
        if self.function.unmap(self.iova).is_err() {
            std::mem::forget(self.memory.clone());
        }
    }
}
