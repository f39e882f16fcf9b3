//! Who stores to the doorbells of a drive's queues, and where the doorbells are for whoever does.

use warprow_driver::Controller;

use crate::GpuQueueError;
use crate::abi::{DOORBELL_MEMORY, DOORBELL_MMIO};
use crate::address_space::AddressSpace;
use crate::doorbell_memory::DoorbellMemory;
use crate::doorbell_registers::DoorbellRegisters;

/// Who stores to the doorbells of the drives' queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellAccess {
    /// A host thread stores to all doorbells for the GPU, also to those that the GPU could reach: placement B′
    /// everywhere.
    HostThread,
    /// The GPU stores to doorbells that are memory (placement C), and a host thread stores to doorbells that are
    /// registers (placement B′).
    #[default]
    Memory,
    /// The GPU stores to all doorbells, those that are memory (placement C) and those that are registers (placement B).
    /// A queue set is refused where the registers of a drive cannot be registered with CUDA.
    Registers,
    /// As [`Registers`](Self::Registers), on every drive that passes a [ring test](crate::RingTest) that way; a host
    /// thread stores to the registers of the others. Whoever makes queue sets has run the tests, and names the others
    /// in [`QueueSetOptions::host_doorbells`](crate::QueueSetOptions::host_doorbells).
    Best,
}

impl DoorbellAccess {
    /// Whether the GPU is to store to doorbells that are registers.
    pub fn wants_registers(self) -> bool {
        matches!(self, Self::Registers | Self::Best)
    }
}

/// The doorbells of one controller, where the block that drives the queues stores to them.
#[derive(Debug)]
pub(crate) enum ReachedDoorbells {
    Memory(DoorbellMemory),
    Registers(DoorbellRegisters),
}

impl ReachedDoorbells {
    /// `None`: a host thread stores to them. `host_doorbells`: it does so to registers whatever `access` says.
    pub(crate) fn of(
        access: DoorbellAccess,
        host_doorbells: bool,
        controller: &Controller,
        side: &AddressSpace,
    ) -> Result<Option<Self>, GpuQueueError> {
        if access == DoorbellAccess::HostThread {
            return Ok(None);
        }
        match DoorbellMemory::of(&**controller.function(), side)? {
            Some(memory) => Ok(Some(Self::Memory(memory))),
            None if host_doorbells || !access.wants_registers() => Ok(None),
            None => DoorbellRegisters::of(controller, side).map(|registers| Some(Self::Registers(registers))),
        }
    }

    /// The address, for whoever drives the queues, of the doorbell at `offset` of BAR0; `None` if that lies outside.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        match self {
            Self::Memory(memory) => memory.address(offset),
            Self::Registers(registers) => registers.address(offset),
        }
    }

    /// [`QueueDescriptor::doorbell_kind`](crate::abi::QueueDescriptor::doorbell_kind).
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Memory(_) => DOORBELL_MEMORY,
            Self::Registers(_) => DOORBELL_MMIO,
        }
    }

    pub(crate) fn are_registers(&self) -> bool {
        matches!(self, Self::Registers(_))
    }
}
