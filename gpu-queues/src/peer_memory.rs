//! GPU memory that a drive reaches by its address, for rings and landing areas of placements A and A⁻. In tests, where
//! a thread of this process drives the queues in the GPU's place, it is memory of this process.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use warprow_dma::{DmaMemory, MemoryKind, PAGE, PeerMemory, PeerMemoryError, order};

use crate::address_space::{AddressSpace, QuietStream};
use crate::{DeviceMemory, GpuQueueError};

/// The longest copy that is made word by word.
const WORDS: usize = 2;

impl AddressSpace {
    /// Allocates at least `bytes` of zeroed memory: on the GPU, or, without a GPU, in this process.
    pub(crate) fn peer(&self, bytes: usize) -> Result<Arc<dyn PeerMemory>, GpuQueueError> {
        match self {
            Self::Gpu(gpu) => {
                let (bytes, stream) = (bytes.next_multiple_of(PAGE), QuietStream::new(gpu)?);
                // CUDA aligns to 256 bytes at least.
                let memory = DeviceMemory::new(gpu, (bytes + PAGE) as u64)?;
                let address = memory.address().next_multiple_of(PAGE as u64);
                Ok(Arc::new(GpuMemory { stream, _memory: memory, address, bytes }))
            }
            Self::Host => Ok(Arc::new(HostMemory(DmaMemory::allocate(bytes, MemoryKind::Anonymous)?))),
        }
    }
}

/// Memory of a GPU.
#[derive(Debug)]
struct GpuMemory {
    // Dropped first: it waits for copies.
    stream: QuietStream,
    _memory: DeviceMemory,
    address: u64,
    bytes: usize,
}

impl GpuMemory {
    fn place(&self, offset: usize, len: usize) -> Result<u64, PeerMemoryError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        let outside = || PeerMemoryError(format!("{len} bytes at {offset} of {} bytes of a GPU's memory", self.bytes));
        if inside { Ok(self.address + offset as u64) } else { Err(outside()) }
    }
}

impl PeerMemory for GpuMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        let from = self.place(offset, into.len())?;
        // SAFETY: inside the memory (checked), to a slice of that length, which is waited for.
        let copy = |stream| unsafe { sys::cuMemcpyDtoHAsync_v2(into.as_mut_ptr().cast(), from, into.len(), stream) };
        self.stream.run("copying from a queue's memory", copy).map_err(failed)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), PeerMemoryError> {
        let to = self.place(offset, from.len())?;
        let (words, rest) = from.as_chunks::<8>();
        if rest.is_empty() && words.len() <= WORDS && offset.is_multiple_of(8) {
            let stored = self.stream.run("storing words of a queue", |stream| {
                let stores = words.iter().enumerate().map(|(index, word)| {
                    let to = to + index as u64 * 8;
                    // SAFETY: inside the memory (checked), aligned (checked, and CUDA's memory begins at a page here);
                    // waited for.
                    unsafe { sys::cuStreamWriteValue64_v2(stream, to, u64::from_le_bytes(*word), 0) }
                });
                stores.into_iter().find(|code| *code != CUresult::CUDA_SUCCESS).unwrap_or(CUresult::CUDA_SUCCESS)
            });
            return stored.map_err(failed);
        }
        // SAFETY: inside the memory (checked), from a slice of that length, which is waited for.
        let copy = |stream| unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream) };
        self.stream.run("copying to a queue's memory", copy).map_err(failed)
    }
}

fn failed(error: GpuQueueError) -> PeerMemoryError {
    PeerMemoryError(error.to_string())
}

/// Memory of this process, where one of its threads stands in for the GPU.
#[derive(Debug)]
struct HostMemory(DmaMemory);

impl HostMemory {
    fn check(&self, offset: usize, len: usize) -> Result<(), PeerMemoryError> {
        let outside = || PeerMemoryError(format!("{len} bytes at {offset} of {} bytes", self.0.len()));
        if self.0.contains(offset, len) { Ok(()) } else { Err(outside()) }
    }
}

impl PeerMemory for HostMemory {
    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), PeerMemoryError> {
        self.check(offset, into.len())?;
        self.0.read(offset, into);
        Ok(())
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), PeerMemoryError> {
        self.check(offset, from.len())?;
        // What was written before is there before; the words of an entry are in order.
        order::before_phase();
        if from.len() <= WORDS * 8 {
            for (index, word) in from.chunks(8).enumerate() {
                order::before_phase();
                self.0.write(offset + index * 8, word);
            }
        } else {
            self.0.write(offset, from);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_thread_is_copied_and_checked() {
        let memory = AddressSpace::Host.peer(5000).unwrap();
        assert_eq!((memory.bytes(), memory.address() % PAGE as u64), (8192, 0));
        let bytes: Vec<u8> = (0..100).collect();
        for (offset, len) in [(0, 100), (8, 16), (24, 8), (8100, 92), (3, 5)] {
            memory.write(offset, &bytes[..len]).unwrap();
            let mut read = vec![0; len];
            memory.read(offset, &mut read).unwrap();
            assert_eq!(read, bytes[..len]);
        }
        for (offset, len) in [(8192, 1), (8100, 93), (usize::MAX, 2)] {
            assert!(memory.write(offset, &bytes[..len]).is_err() && memory.read(offset, &mut vec![0; len]).is_err());
        }
    }
}
