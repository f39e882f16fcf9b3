//! Memory that kernels reach: GPU memory, and pinned memory of the host.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use warprow_dma::{DmaMemory, MemoryKind};

use crate::address_space::QuietStream;
use crate::capture_mode::RelaxedCapture;
use crate::error::cuda;
use crate::kept_memory::{self, Registered};
use crate::pinned_ranges;
use crate::{Gpu, GpuQueueError};

/// Memory of a GPU, zeroed to begin with. Given up when dropped: nothing may use it any more then, and no kernel that
/// uses it may run, because while there is a [`MemoryKeeper`](crate::MemoryKeeper) the memory is used again at once.
#[derive(Debug)]
pub struct DeviceMemory {
    address: u64,
    bytes: u64,
    /// Bytes that CUDA has allocated.
    room: u64,
    gpu: Arc<Gpu>,
}

impl DeviceMemory {
    /// Allocates `bytes` of zeros in GPU memory, aligned to 256.
    pub fn new(gpu: &Arc<Gpu>, bytes: u64) -> Result<Self, GpuQueueError> {
        let memory = Self::allocate(gpu, bytes)?;
        memory.zero()?;
        Ok(memory)
    }

    /// Allocates memory that holds `content`, on a stream of its own: streams of whatever kind may be being captured
    /// meanwhile, on this thread too.
    pub fn holding(gpu: &Arc<Gpu>, content: &[u8]) -> Result<Self, GpuQueueError> {
        let memory = Self::allocate(gpu, content.len() as u64)?;
        memory.write_beside(0, content)?;
        Ok(memory)
    }

    fn allocate(gpu: &Arc<Gpu>, bytes: u64) -> Result<Self, GpuQueueError> {
        let room = bytes.max(1);
        if let Some((address, room)) = kept_memory::take_device(gpu, room) {
            return Ok(Self { address, bytes, room, gpu: gpu.clone() });
        }
        let (_current, _relaxed) = (gpu.enter()?, RelaxedCapture::new());
        let mut address = 0;
        let len = usize::try_from(room).unwrap_or(usize::MAX);
        // SAFETY: the context is current; it stores an address.
        let mut code = unsafe { sys::cuMemAlloc_v2(&mut address, len) };
        if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY && kept_memory::release_device(gpu) {
            // SAFETY: as before.
            code = unsafe { sys::cuMemAlloc_v2(&mut address, len) };
        }
        if code != CUresult::CUDA_SUCCESS {
            let free = gpu.memory().map_or(0, |(free, _)| free);
            return Err(GpuQueueError::DeviceMemory { bytes, free, code });
        }
        Ok(Self { address, bytes, room, gpu: gpu.clone() })
    }

    /// The memory's address on the GPU.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes the memory has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets all of the memory to zero, and waits until that is done.
    pub fn zero(&self) -> Result<(), GpuQueueError> {
        let (_current, _relaxed) = (self.gpu.enter()?, RelaxedCapture::new());
        // SAFETY: the memory is this one's, all of it.
        cuda("clearing memory", unsafe { sys::cuMemsetD8_v2(self.address, 0, self.bytes as usize) })?;
        // SAFETY: the context is current. The default stream is that of the calls above.
        cuda("clearing memory", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
    }

    fn check(&self, offset: u64, len: usize) {
        let end = offset.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "{len} bytes at {offset} of {} on the GPU", self.bytes);
    }

    /// Copies `from` to byte `offset`, and waits until it is there. Panics outside the memory, as a slice does.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), GpuQueueError> {
        self.check(offset, from.len());
        if from.is_empty() {
            return Ok(());
        }
        let (_current, _relaxed) = (self.gpu.enter()?, RelaxedCapture::new());
        // SAFETY: inside the memory (checked), from a slice of that length.
        let copied = unsafe { sys::cuMemcpyHtoD_v2(self.address + offset, from.as_ptr().cast(), from.len()) };
        cuda("copying to the GPU", copied)?;
        // A copy from pageable memory may return when the bytes are staged, and other streams do not wait for the rest.
        // SAFETY: the context is current. The default stream is that of the copy.
        cuda("copying to the GPU", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
    }

    /// Copies from byte `offset` on, after everything launched before on the default stream. Panics outside the memory.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), GpuQueueError> {
        self.check(offset, into.len());
        if into.is_empty() {
            return Ok(());
        }
        let (_current, _relaxed) = (self.gpu.enter()?, RelaxedCapture::new());
        // SAFETY: inside the memory (checked), to a slice of that length.
        let copied = unsafe { sys::cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), self.address + offset, into.len()) };
        cuda("copying from the GPU", copied)
    }

    /// Copies `from` to byte `offset` beside kernels that run, and waits until it is there: on a stream of its own, so that streams of
    /// whatever kind may be being captured meanwhile. Panics outside the memory.
    pub fn write_beside(&self, offset: u64, from: &[u8]) -> Result<(), GpuQueueError> {
        self.check(offset, from.len());
        QuietStream::new(&self.gpu)?.run("copying to the GPU", |stream| {
            // SAFETY: inside the memory (checked), from a slice of that length, and it is waited for.
            unsafe { sys::cuMemcpyHtoDAsync_v2(self.address + offset, from.as_ptr().cast(), from.len(), stream) }
        })
    }

    /// Copies from byte `offset` on beside kernels that run, after nothing but those that have ended: on a stream of its own, so that
    /// streams of whatever kind may be being captured meanwhile. Panics outside the memory.
    pub fn read_beside(&self, offset: u64, into: &mut [u8]) -> Result<(), GpuQueueError> {
        self.check(offset, into.len());
        QuietStream::new(&self.gpu)?.run("copying from the GPU", |stream| {
            // SAFETY: inside the memory (checked), to a slice of that length, and it is waited for.
            unsafe { sys::cuMemcpyDtoHAsync_v2(into.as_mut_ptr().cast(), self.address + offset, into.len(), stream) }
        })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        kept_memory::give_up_device(&self.gpu, self.address, self.room);
    }
}

/// Memory of this process that the GPU reaches too: pinned, for as long as this lives. When it is dropped nothing may use
/// the memory any more by its address for kernels, as with [`DeviceMemory`].
#[derive(Debug)]
pub struct PinnedMemory {
    address: u64,
    memory: DmaMemory,
    gpu: Arc<Gpu>,
}

impl PinnedMemory {
    /// Registers `memory` with CUDA, for all contexts. A piece of memory is registered once at a time.
    pub fn new(gpu: &Arc<Gpu>, memory: DmaMemory) -> Result<Self, GpuQueueError> {
        if let Some(address) = kept_memory::take_registration(gpu, &memory) {
            return Ok(Self::noted(gpu, memory, address));
        }
        let (_current, _relaxed) = (gpu.enter()?, RelaxedCapture::new());
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let host = memory.as_ptr().cast();
        // SAFETY: the memory is mapped, and stays so: `memory` is kept.
        let code = unsafe { sys::cuMemHostRegister_v2(host, memory.len(), flags) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(GpuQueueError::Pin { bytes: memory.len() as u64, code });
        }
        let mut registered = Self { address: 0, memory, gpu: gpu.clone() };
        // SAFETY: the memory was registered with a device mapping; it stores an address.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut registered.address, host, 0) };
        cuda("the address of pinned memory", code)?;
        pinned_ranges::note(&registered.memory, registered.address);
        Ok(registered)
    }

    fn noted(gpu: &Arc<Gpu>, memory: DmaMemory, address: u64) -> Self {
        pinned_ranges::note(&memory, address);
        Self { address, memory, gpu: gpu.clone() }
    }

    /// Allocates and registers `bytes` of zeros, on huge pages where there are any.
    pub fn allocate(gpu: &Arc<Gpu>, bytes: u64) -> Result<Self, GpuQueueError> {
        Self::allocate_as(gpu, bytes, MemoryKind::Auto)
    }

    pub(crate) fn allocate_as(gpu: &Arc<Gpu>, bytes: u64, kind: MemoryKind) -> Result<Self, GpuQueueError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(Registered { memory, address }) = kept_memory::take_pinned(gpu, len, kind == MemoryKind::Auto) {
            memory.fill(0, memory.len(), 0);
            return Ok(Self::noted(gpu, memory, address));
        }
        Self::new(gpu, DmaMemory::allocate(len, kind)?)
    }

    /// The memory's address as kernels use it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The memory, for use by this process.
    pub fn memory(&self) -> &DmaMemory {
        &self.memory
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        pinned_ranges::forget(&self.memory);
        let memory = self.memory.clone();
        kept_memory::give_up_pinned(&self.gpu, Registered { memory, address: self.address });
    }
}
