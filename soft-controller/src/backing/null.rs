use warprow_dma::DmaMemory;

use super::interface::Backing;
use super::media_error::MediaError;

/// Nothing: reads leave the host's memory as it was and writes go nowhere. For measuring rings alone.
#[derive(Debug)]
pub struct NullBacking {
    len: u64,
}

impl NullBacking {
    /// A backing that claims `len` bytes.
    pub fn new(len: u64) -> Self {
        Self { len }
    }
}

impl Backing for NullBacking {
    fn size(&self) -> u64 {
        self.len
    }

    #[inline]
    fn read(&self, _offset: u64, _to: &DmaMemory, _at: usize, _len: usize) -> Result<(), MediaError> {
        Ok(())
    }

    #[inline]
    fn write(&self, _offset: u64, _from: &DmaMemory, _at: usize, _len: usize) -> Result<(), MediaError> {
        Ok(())
    }

    fn zero(&self, _offset: u64, _len: u64, _deallocate: bool) -> Result<(), MediaError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), MediaError> {
        Ok(())
    }
}
