//! Memory that kernels reach: on the GPU, and pinned.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use warprow_dma::{Backing, DmaMemory};

use crate::error::cuda;
use crate::gpu::Relaxed;
use crate::{Gpu, GpuError};

/// Memory of a GPU, zeroed to begin with. Freed when dropped: nothing may use it any more then.
#[derive(Debug)]
pub struct DeviceMemory {
    address: u64,
    bytes: u64,
    gpu: Arc<Gpu>,
}

impl DeviceMemory {
    /// `bytes` of zeros, aligned to 256.
    pub fn new(gpu: &Arc<Gpu>, bytes: u64) -> Result<Self, GpuError> {
        let (_current, _relaxed) = (gpu.enter()?, Relaxed::new());
        let mut address = 0;
        let len = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: the context is current; it stores an address.
        let code = unsafe { sys::cuMemAlloc_v2(&mut address, len) };
        if code != CUresult::CUDA_SUCCESS {
            let free = gpu.memory().map_or(0, |(free, _)| free);
            return Err(GpuError::DeviceMemory { bytes, free, code });
        }
        let memory = Self { address, bytes, gpu: gpu.clone() };
        memory.zero()?;
        Ok(memory)
    }

    /// Its address on the GPU.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets all of it to zero, and waits until it is.
    pub fn zero(&self) -> Result<(), GpuError> {
        self.fill(0, self.bytes as usize)
    }

    /// Sets `len` bytes from byte `offset` on to zero, and waits until they are. Panics outside the memory, as a slice does.
    pub(crate) fn fill(&self, offset: u64, len: usize) -> Result<(), GpuError> {
        self.check(offset, len);
        if len == 0 {
            return Ok(());
        }
        let to = self.address + offset;
        // SAFETY: inside the memory (checked), which is waited for.
        self.gpu.run("clearing memory", |stream| unsafe { sys::cuMemsetD8Async(to, 0, len, stream) })
    }

    fn check(&self, offset: u64, len: usize) {
        let end = offset.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "{len} bytes at {offset} of {} on the GPU", self.bytes);
    }

    /// Copies `from` to byte `offset`, and waits until it is there, and for nothing else. Panics outside the memory, as a slice does.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), GpuError> {
        self.check(offset, from.len());
        if from.is_empty() {
            return Ok(());
        }
        let (to, len) = (self.address + offset, from.len());
        // SAFETY: inside the memory (checked), from a slice of that length, which is waited for.
        let copy = |stream| unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), len, stream) };
        self.gpu.run("copying to the GPU", copy)
    }

    /// Copies from byte `offset` on. It waits for nobody's launches: what is still being written is read as it is. Panics outside the
    /// memory.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), GpuError> {
        self.check(offset, into.len());
        if into.is_empty() {
            return Ok(());
        }
        let (from, to, len) = (self.address + offset, into.as_mut_ptr().cast(), into.len());
        // SAFETY: inside the memory (checked), to a slice of that length, which is waited for.
        let copy = |stream| unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, len, stream) };
        self.gpu.run("copying from the GPU", copy)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.enter() {
            let _relaxed = Relaxed::new();
            // SAFETY: allocated once, freed once.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Memory of this process that the GPU reaches too: pinned, for as long as this lives.
#[derive(Debug)]
pub struct Registered {
    address: u64,
    memory: DmaMemory,
    gpu: Arc<Gpu>,
}

impl Registered {
    /// Registers `memory` with CUDA, for all contexts. A piece of memory is registered once at a time.
    pub fn new(gpu: &Arc<Gpu>, memory: DmaMemory) -> Result<Self, GpuError> {
        let (_current, _relaxed) = (gpu.enter()?, Relaxed::new());
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let host = memory.as_ptr().cast();
        // SAFETY: the memory is mapped, and stays so: `memory` is kept.
        let code = unsafe { sys::cuMemHostRegister_v2(host, memory.len(), flags) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(GpuError::Pin { bytes: memory.len() as u64, code });
        }
        let mut registered = Self { address: 0, memory, gpu: gpu.clone() };
        // SAFETY: the memory was registered with a device mapping; it stores an address.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut registered.address, host, 0) };
        cuda("the address of pinned memory", code)?;
        Ok(registered)
    }

    /// `bytes` of zeros, on huge pages where there are any.
    pub fn allocate(gpu: &Arc<Gpu>, bytes: u64) -> Result<Self, GpuError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self::new(gpu, DmaMemory::allocate(len, Backing::Auto)?)
    }

    /// Its address on the GPU.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The memory.
    pub fn memory(&self) -> &DmaMemory {
        &self.memory
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.enter() {
            let _relaxed = Relaxed::new();
            // SAFETY: registered once, unregistered once.
            unsafe { sys::cuMemHostUnregister(self.memory.as_ptr().cast()) };
        }
    }
}
