use warprow_dma::{DmaMemory, Doorbell};

use super::ring::{RingDoorbell, RingWords};
use super::ring_sizes::RingSizes;
use crate::prp;

/// Where the list areas of the CIDs lie in the memory of a queue pair, in bytes: behind the rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) lists: usize,
    /// Bytes of one list area.
    pub(crate) list: usize,
    /// Bytes of the rings and the list areas together.
    pub(crate) len: usize,
}

impl Places {
    /// The places for rings of these sizes, and for commands of at most `max_transfer` bytes.
    pub(crate) fn new(sizes: RingSizes, max_transfer: u64) -> Self {
        // Dataset Management puts its ranges where lists go.
        let list = prp::list_bytes(max_transfer).max(512) as usize;
        let (lists, cids) = (sizes.bytes(), sizes.entries.min(sizes.completion_entries) as usize - 1);
        Self { lists, list, len: lists + cids * list }
    }
}

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

impl RingWords for RingMemory {
    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        self.memory.load_u64(self.offset + index * 8)
    }

    #[inline(always)]
    fn store<const N: usize>(&self, index: usize, values: [u64; N]) {
        self.memory.store_words(self.offset + index * 8, values);
    }
}

impl RingDoorbell for Doorbell {
    #[inline(always)]
    fn ring(&self, value: u32) {
        Doorbell::ring(self, value);
    }
}
