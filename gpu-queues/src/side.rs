//! Who drives the rings: a GPU, or a thread of this process that stands in for one.

use std::sync::Arc;

use warprow_dma::{Backing, DmaMemory};

use crate::{DeviceMemory, Gpu, GpuError, Registered};

/// Whose addresses a descriptor holds.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    /// A GPU's: memory is pinned, or the GPU's own.
    Gpu(Arc<Gpu>),
    /// This process's: a thread follows the protocol of the kernels.
    Host,
}

/// Memory of this process that the side reaches.
#[derive(Debug)]
pub(crate) enum Shared {
    Registered(Registered),
    Plain(DmaMemory),
}

/// Memory of the side's own.
#[derive(Debug)]
pub(crate) enum Own {
    Device(DeviceMemory),
    Plain(DmaMemory),
}

impl Side {
    pub(crate) fn share(&self, memory: DmaMemory) -> Result<Shared, GpuError> {
        match self {
            Self::Gpu(gpu) => Registered::new(gpu, memory).map(Shared::Registered),
            Self::Host => Ok(Shared::Plain(memory)),
        }
    }

    pub(crate) fn shared(&self, bytes: usize) -> Result<Shared, GpuError> {
        self.share(DmaMemory::allocate(bytes, Backing::Anonymous)?)
    }

    pub(crate) fn own(&self, bytes: usize) -> Result<Own, GpuError> {
        match self {
            Self::Gpu(gpu) => Ok(Own::Device(DeviceMemory::new(gpu, bytes as u64)?)),
            Self::Host => Ok(Own::Plain(DmaMemory::allocate(bytes, Backing::Anonymous)?)),
        }
    }
}

impl Shared {
    pub(crate) fn memory(&self) -> &DmaMemory {
        match self {
            Self::Registered(registered) => registered.memory(),
            Self::Plain(memory) => memory,
        }
    }

    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Registered(registered) => registered.address(),
            Self::Plain(memory) => memory.as_ptr() as u64,
        }
    }
}

impl Own {
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Device(memory) => memory.address(),
            Self::Plain(memory) => memory.as_ptr() as u64,
        }
    }

    /// Sets `len` bytes at `offset` to zero, and waits until they are.
    pub(crate) fn clear(&self, offset: usize, len: usize) -> Result<(), GpuError> {
        match self {
            Self::Device(memory) => memory.fill(offset as u64, len),
            Self::Plain(memory) => {
                memory.fill(offset, len, 0);
                Ok(())
            }
        }
    }

    /// Copies `from` to `offset`, and waits until it is there.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), GpuError> {
        match self {
            Self::Device(memory) => memory.write(offset as u64, from),
            Self::Plain(memory) => {
                memory.write(offset, from);
                Ok(())
            }
        }
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), GpuError> {
        match self {
            Self::Device(memory) => memory.read(offset as u64, into),
            Self::Plain(memory) => {
                memory.read(offset, into);
                Ok(())
            }
        }
    }
}
