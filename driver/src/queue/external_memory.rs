//! Where the rings of a queue pair lie that another party drives.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use warprow_dma::{Function, MappedMemory, MappedPeerMemory, PAGE, PeerMemoryError};
use warprow_spec::{Cqe, Sqe};

use super::ring_sizes::RingSizes;

/// Memory that rings lie in, mapped for the queue's controller.
#[derive(Clone, Debug)]
pub enum QueuePairMemory {
    /// Of the host.
    Host(Arc<MappedMemory>),
    /// Of another device, such as the GPU that drives the queue.
    Peer(Arc<MappedPeerMemory>),
}

impl QueuePairMemory {
    /// Where the device sees its first byte.
    pub fn iova(&self) -> u64 {
        match self {
            Self::Host(memory) => memory.iova(),
            Self::Peer(memory) => memory.iova(),
        }
    }

    fn function(&self) -> &Arc<dyn Function> {
        match self {
            Self::Host(memory) => memory.function(),
            Self::Peer(memory) => memory.function(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Host(memory) => memory.memory().len(),
            Self::Peer(memory) => memory.memory().bytes(),
        }
    }

    /// Copies `from` to byte `offset`, and waits until it is there. Panics outside memory of the host, as a slice does.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), PeerMemoryError> {
        match self {
            Self::Host(memory) => {
                let memory = memory.memory();
                memory.write(offset, from);
                // The host may have mapped memory of another device there, which is written by way of buffers and a bus: a load behind a
                // full fence is answered when the stores have arrived.
                fence(Ordering::SeqCst);
                if !from.is_empty() {
                    std::hint::black_box(memory.load_u8(offset));
                }
                Ok(())
            }
            Self::Peer(memory) => memory.memory().write(offset, from),
        }
    }
}

/// A ring of a queue pair: from byte `offset` of `memory` on.
#[derive(Clone, Debug)]
pub struct RingPlace {
    /// The memory.
    pub memory: QueuePairMemory,
    /// Where the ring begins in the memory, bytes: a multiple of a page (4096 B).
    pub offset: usize,
}

impl RingPlace {
    /// Where the device sees the ring.
    pub fn iova(&self) -> u64 {
        self.memory.iova() + self.offset as u64
    }

    /// Why a ring of so many bytes cannot lie here.
    fn check(&self, ring: &str, bytes: usize, function: &Arc<dyn Function>) -> Result<(), String> {
        let len = self.memory.bytes();
        if !Arc::ptr_eq(self.memory.function(), function) {
            Err(format!("the memory of the {ring} is mapped for {}", self.memory.function().name()))
        } else if !self.offset.is_multiple_of(PAGE) {
            Err(format!("the {ring} begins at byte {} of its memory, which is no multiple of a page", self.offset))
        } else if self.offset.checked_add(bytes).is_none_or(|end| end > len) {
            Err(format!("the {ring} takes {bytes} bytes from byte {} on, and its memory has {len} bytes", self.offset))
        } else {
            Ok(())
        }
    }
}

/// Where the rings of a queue pair lie that another party drives, and which memory the party's commands name. A GPU may have the
/// submission queue in memory of the host, and the completion queue in memory of its own.
#[derive(Clone, Debug)]
pub struct ExternalMemory {
    /// The submission queue.
    pub sq: RingPlace,
    /// The completion queue.
    pub cq: RingPlace,
    /// Further memory that commands name. The queue keeps it mapped until the device has let go of it, as it does the rings'.
    pub named: Vec<Arc<MappedMemory>>,
}

impl ExternalMemory {
    /// Both rings in one memory, as [`RingSizes`] says.
    pub fn together(memory: Arc<MappedMemory>, sizes: RingSizes) -> Self {
        let memory = QueuePairMemory::Host(memory);
        let cq = RingPlace { memory: memory.clone(), offset: sizes.cq_offset() };
        Self { sq: RingPlace { memory, offset: 0 }, cq, named: Vec::new() }
    }

    /// Why rings of these sizes cannot lie here.
    pub(super) fn check(&self, sizes: RingSizes, function: &Arc<dyn Function>) -> Result<(), String> {
        self.sq.check("submission queue", sizes.entries as usize * size_of::<Sqe>(), function)?;
        self.cq.check("completion queue", sizes.completion_entries as usize * size_of::<Cqe>(), function)
    }

    /// All of it, for whoever keeps it mapped.
    pub(super) fn all(&self) -> Vec<QueuePairMemory> {
        let mut all = vec![self.sq.memory.clone(), self.cq.memory.clone()];
        all.extend(self.named.iter().cloned().map(QueuePairMemory::Host));
        all
    }
}
