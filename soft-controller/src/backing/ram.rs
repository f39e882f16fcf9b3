use warprow_dma::{AllocateError, DmaMemory};

use super::interface::{Backing, PREFETCHED};
use super::media_error::MediaError;

/// Memory of this process.
#[derive(Debug)]
pub struct RamBacking {
    memory: DmaMemory,
    len: u64,
}

impl RamBacking {
    /// `len` bytes of zeros. The system provides pages as they are first written.
    pub fn new(len: u64) -> Result<Self, AllocateError> {
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        Ok(Self { memory: DmaMemory::allocate(size, warprow_dma::MemoryKind::Anonymous)?, len })
    }
}

impl Backing for RamBacking {
    fn size(&self) -> u64 {
        self.len
    }

    #[inline]
    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.memory.copy_to(offset as usize, to, at, len);
        Ok(())
    }

    fn prefetch(&self, offset: u64, len: usize) {
        self.memory.prefetch(offset as usize, len.min(PREFETCHED));
    }

    fn prefetches(&self) -> bool {
        true
    }

    #[inline]
    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        from.copy_to(at, &self.memory, offset as usize, len);
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, _deallocate: bool) -> Result<(), MediaError> {
        self.memory.discard(offset as usize, len as usize);
        Ok(())
    }

    fn flush(&self) -> Result<(), MediaError> {
        Ok(())
    }
}
