//! Where the block that drives queues runs: on a GPU, or, in tests, as a thread of this process in a kernel's place.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUstream, CUstream_flags_enum};
use warprow_dma::{DmaMemory, MemoryKind};

use crate::capture_mode::RelaxedCapture;
use crate::error::cuda;
use crate::{DeviceMemory, Gpu, GpuQueueError, PinnedMemory};

/// The processor whose addresses queue descriptors hold.
#[derive(Clone, Debug)]
pub(crate) enum AddressSpace {
    /// Addresses on a GPU: memory is pinned, or the GPU's own.
    Gpu(Arc<Gpu>),
    /// Addresses of this process: one of its threads follows the protocol of the kernels.
    Host,
}

/// Memory of this process that whoever drives the queues reaches too.
#[derive(Debug)]
pub(crate) enum SharedMemory {
    Registered(PinnedMemory),
    Plain(DmaMemory),
}

/// Memory for the state of whoever drives the queues: GPU memory, or, without a GPU, plain memory of this process.
#[derive(Debug)]
pub(crate) enum StateMemory {
    Device(DeviceMemory, QuietStream),
    Plain(DmaMemory),
}

/// A CUDA stream that neither waits for the caller's streams nor disturbs a capture of one of them.
#[derive(Debug)]
pub(crate) struct QuietStream {
    stream: CUstream,
    gpu: Arc<Gpu>,
}

// SAFETY: CUDA's handles may be used from any thread.
unsafe impl Send for QuietStream {}
// SAFETY: as above.
unsafe impl Sync for QuietStream {}

impl QuietStream {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuQueueError> {
        let (_current, _relaxed) = (gpu.enter()?, RelaxedCapture::new());
        let mut stream = ptr::null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; it stores a handle, which is destroyed when this is dropped.
        cuda("a stream", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Self { stream, gpu: gpu.clone() })
    }

    /// Asks CUDA whether the context still lives. If it is lost, CUDA answers every call, and so this one, with the
    /// error that ended it.
    pub(crate) fn look(&self) -> Result<(), GpuQueueError> {
        match self.run_as("a look at the context", |stream| {
            // SAFETY: the stream is this one's.
            unsafe { sys::cuStreamQuery(stream) }
        }) {
            Err(GpuQueueError::Cuda { code: sys::CUresult::CUDA_ERROR_NOT_READY, .. }) => Ok(()),
            looked => looked,
        }
    }

    /// Lets `enqueue` put work into the stream, and waits until that work has ended.
    pub(crate) fn run(
        &self,
        what: &'static str,
        enqueue: impl FnOnce(CUstream) -> sys::CUresult,
    ) -> Result<(), GpuQueueError> {
        self.run_as(what, |stream| {
            let enqueued = enqueue(stream);
            // SAFETY: the stream is this one's. Waiting also after an error: whatever was enqueued uses the caller's
            // memory.
            let waited = unsafe { sys::cuStreamSynchronize(stream) };
            if enqueued == sys::CUresult::CUDA_SUCCESS { waited } else { enqueued }
        })
    }

    fn run_as(&self, what: &'static str, work: impl FnOnce(CUstream) -> sys::CUresult) -> Result<(), GpuQueueError> {
        let _current = self.gpu.enter()?;
        // Another thread may be capturing a stream of its own.
        let _relaxed = RelaxedCapture::new();
        cuda(what, work(self.stream))
    }
}

impl Drop for QuietStream {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.enter() {
            // SAFETY: created once, destroyed once.
            unsafe { sys::cuStreamDestroy_v2(self.stream) };
        }
    }
}

impl AddressSpace {
    /// Whether a real GPU drives the queues.
    pub(crate) fn is_gpu(&self) -> bool {
        matches!(self, Self::Gpu(_))
    }

    pub(crate) fn share(&self, memory: DmaMemory) -> Result<SharedMemory, GpuQueueError> {
        match self {
            Self::Gpu(gpu) => PinnedMemory::new(gpu, memory).map(SharedMemory::Registered),
            Self::Host => Ok(SharedMemory::Plain(memory)),
        }
    }

    pub(crate) fn shared(&self, bytes: usize) -> Result<SharedMemory, GpuQueueError> {
        match self {
            Self::Gpu(gpu) => {
                PinnedMemory::allocate_as(gpu, bytes as u64, MemoryKind::Anonymous).map(SharedMemory::Registered)
            }
            Self::Host => Ok(SharedMemory::Plain(DmaMemory::allocate(bytes, MemoryKind::Anonymous)?)),
        }
    }

    pub(crate) fn own(&self, bytes: usize) -> Result<StateMemory, GpuQueueError> {
        match self {
            Self::Gpu(gpu) => Ok(StateMemory::Device(DeviceMemory::new(gpu, bytes as u64)?, QuietStream::new(gpu)?)),
            Self::Host => Ok(StateMemory::Plain(DmaMemory::allocate(bytes, MemoryKind::Anonymous)?)),
        }
    }
}

impl SharedMemory {
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

impl StateMemory {
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Device(memory, _) => memory.address(),
            Self::Plain(memory) => memory.as_ptr() as u64,
        }
    }

    /// The address on the GPU of `len` bytes at `offset`. Panics outside the memory, as a slice does.
    fn place(memory: &DeviceMemory, offset: usize, len: usize) -> u64 {
        let inside = offset.checked_add(len).is_some_and(|end| end as u64 <= memory.bytes());
        assert!(inside, "{len} bytes at {offset} of {} on the GPU", memory.bytes());
        memory.address() + offset as u64
    }

    /// Sets `len` bytes at `offset` to zero, and waits until they are.
    pub(crate) fn clear(&self, offset: usize, len: usize) -> Result<(), GpuQueueError> {
        match self {
            Self::Device(memory, quiet) => {
                let to = Self::place(memory, offset, len);
                // SAFETY: inside the memory (checked), which is waited for.
                quiet.run("clearing a queue's state", |stream| unsafe { sys::cuMemsetD8Async(to, 0, len, stream) })
            }
            Self::Plain(memory) => {
                memory.fill(offset, len, 0);
                Ok(())
            }
        }
    }

    /// Copies `from` to `offset`, and waits until it is there.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), GpuQueueError> {
        match self {
            Self::Device(memory, quiet) => {
                let to = Self::place(memory, offset, from.len());
                // SAFETY: inside the memory (checked), from a slice of that length, which is waited for.
                let copy = |stream| unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream) };
                quiet.run("writing a queue's state", copy)
            }
            Self::Plain(memory) => {
                memory.write(offset, from);
                Ok(())
            }
        }
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), GpuQueueError> {
        match self {
            Self::Device(memory, quiet) => {
                let (from, to) = (Self::place(memory, offset, into.len()), into.as_mut_ptr().cast());
                // SAFETY: inside the memory (checked), to a slice of that length, which is waited for.
                let copy = |stream| unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, into.len(), stream) };
                quiet.run("reading a queue's state", copy)
            }
            Self::Plain(memory) => {
                memory.read(offset, into);
                Ok(())
            }
        }
    }
}
