use std::fmt;
use std::sync::Arc;

use crate::{Function, FunctionError};

/// Memory of another device than the host, such as a GPU. Drives may write to it and read from it, and this process does neither by
/// loads and stores: it copies.
pub trait PeerMemory: Send + Sync + fmt::Debug {
    /// Address of the first byte, as whoever owns the memory uses it; a multiple of a page (4096 B). On GPUs that is the address that all
    /// GPUs of this process have for it.
    fn address(&self) -> u64;

    /// Bytes of it, a multiple of a page.
    fn bytes(&self) -> usize;

    /// Copies `into.len()` bytes from byte `offset` on, and waits until they are here.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), PeerMemoryError>;

    /// Copies `from` to byte `offset`, and waits until it is there; what was copied before is there before. Up to 16 bytes at a multiple of
    /// 8 are copied as words of 8 bytes: whoever looks meanwhile sees each word as a whole, and the first no later than the second.
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), PeerMemoryError>;
}

/// Memory of another device could not be copied; the text says why.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct PeerMemoryError(pub String);

/// Memory of another device that is mapped for a function as long as this value lives.
#[derive(Debug)]
pub struct MappedPeerMemory {
    function: Arc<dyn Function>,
    memory: Arc<dyn PeerMemory>,
    iova: u64,
}

impl MappedPeerMemory {
    /// Maps `memory` for `function`.
    pub fn new(function: Arc<dyn Function>, memory: Arc<dyn PeerMemory>) -> Result<Self, FunctionError> {
        let iova = function.map_peer(&memory)?;
        Ok(Self { function, memory, iova })
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<dyn PeerMemory> {
        &self.memory
    }

    /// The function it is mapped for.
    pub fn function(&self) -> &Arc<dyn Function> {
        &self.function
    }

    /// Where the device sees its first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }
}

impl Drop for MappedPeerMemory {
    fn drop(&mut self) {
        // A failure leaves the memory mapped in the device's address space; it must then never be used again.
        if self.function.unmap(self.iova).is_err() {
            std::mem::forget(self.memory.clone());
        }
    }
}
