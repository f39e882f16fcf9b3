use warprow_dma::{DmaMemory, Doorbell};

use super::ring::{Bell, Words};

/// DMA memory from some offset on, as the words of a ring. (Words in memory are little endian, as is the host: the
/// specification's types do not compile for another.)
#[derive(Clone, Debug)]
pub struct RingMemory {
    memory: DmaMemory,
    offset: usize,
}

impl RingMemory {
    /// The words from byte `offset` on, a multiple of 64.
    pub fn new(memory: DmaMemory, offset: usize) -> Self {
        Self { memory, offset }
    }
}

impl Words for RingMemory {
    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        self.memory.load_u64(self.offset + index * 8)
    }

    #[inline(always)]
    fn store<const N: usize>(&self, index: usize, values: [u64; N]) {
        self.memory.store_words(self.offset + index * 8, values);
    }
}

impl Bell for Doorbell {
    #[inline(always)]
    fn ring(&self, value: u32) {
        Doorbell::ring(self, value);
    }
}
