//! Memory that kernels and controllers share. Never behind a reference; what lies behind its end is watched.

use warprow_dma::{DmaMemory, MemoryKind};

const POISON: u8 = 0xa5;
/// Bytes behind the end that are watched, at least.
const SLACK: usize = 64;

pub struct Buffer {
    memory: DmaMemory,
    len: usize,
}

impl Buffer {
    /// Poisoned.
    pub fn new(len: usize) -> Self {
        let memory = DmaMemory::allocate(len + SLACK, MemoryKind::Anonymous).unwrap();
        memory.fill(0, memory.len(), POISON);
        Self { memory, len }
    }

    pub fn zeroed(len: usize) -> Self {
        Self::of(&vec![0; len])
    }

    pub fn of(bytes: &[u8]) -> Self {
        let buffer = Self::new(bytes.len());
        buffer.write(0, bytes);
        buffer
    }

    /// Of structures one after the other.
    pub fn of_all<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Self {
        Self::of(&parts.flatten().copied().collect::<Vec<u8>>())
    }

    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn memory(&self) -> &DmaMemory {
        &self.memory
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        self.memory.write(at, bytes);
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes);
        bytes
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.read(0, self.len)
    }

    pub fn u32_at(&self, at: usize) -> u32 {
        self.memory.load_u32(at)
    }

    pub fn u64_at(&self, at: usize) -> u64 {
        self.memory.load_u64(at)
    }

    pub fn words(&self) -> Vec<u32> {
        (0..self.len / 4).map(|i| self.u32_at(i * 4)).collect()
    }

    pub fn longs(&self) -> Vec<u64> {
        (0..self.len / 8).map(|i| self.u64_at(i * 8)).collect()
    }

    pub fn poison(&self) {
        self.memory.fill(0, self.len, POISON);
    }

    pub fn is_zero(&self) -> bool {
        self.bytes().iter().all(|&byte| byte == 0)
    }

    /// Whether nobody wrote past the end.
    pub fn is_sound(&self) -> bool {
        self.read(self.len, self.memory.len() - self.len).iter().all(|&byte| byte == POISON)
    }
}

pub const fn poison() -> u8 {
    POISON
}
