//! Which memory the rings and landing areas of queues lie in.

use warprow_dma::Function;

use crate::{DoorbellAccess, GpuQueueError};

/// Which memory the rings and landing areas of queues that a GPU drives lie in. `A` and `AMinus` are the placements
/// that [`QueuePlacement`](crate::QueuePlacement) calls by these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemoryPlacement {
    /// GPU memory, as in placement A, on drives that favour it ([`Function::favours_peer_memory`]) and whose doorbells
    /// the GPU stores to itself; pinned memory on all others, and where GPU memory cannot be had.
    #[default]
    Best,
    /// Pinned memory of the host, as in placements B, B′ and C.
    Pinned,
    /// Completion queues and landing areas in GPU memory; submission queues and PRP lists, which drives only read, in
    /// pinned memory.
    AMinus,
    /// Rings, PRP lists and landing areas in GPU memory.
    A,
}

/// Where one queue's memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlacedMemory {
    Pinned,
    AMinus,
    A,
}

impl MemoryPlacement {
    /// Where the memory of queues of this drive is to lie.
    pub(crate) fn on(self, function: &dyn Function, doorbells: DoorbellAccess) -> PlacedMemory {
        let by_gpu = doorbells != DoorbellAccess::HostThread;
        match self {
            Self::Best if by_gpu && function.favours_peer_memory() => PlacedMemory::A,
            Self::Best | Self::Pinned => PlacedMemory::Pinned,
            Self::AMinus => PlacedMemory::AMinus,
            Self::A => PlacedMemory::A,
        }
    }
}

impl PlacedMemory {
    /// Says of an error that this placement is the one that cannot be had, and what can.
    pub(crate) fn refused(self, function: &dyn Function, error: GpuQueueError) -> GpuQueueError {
        let name = match (self, &error) {
            (Self::A, GpuQueueError::Function(_)) => "A",
            (Self::AMinus, GpuQueueError::Function(_)) => "A⁻",
            _ => return error,
        };
        GpuQueueError::Unsupported(format!(
            "{}: its queues cannot lie in GPU memory (placement {name}): {error}; an emulated drive reaches GPU memory, and one that a GPU \
             plays (an address with gpu=) at its full speed; a physical drive writes to memory that a keeper keeps (KeptGpuMemory), \
             where it is given; MemoryPlacement::Best takes what each drive reaches",
            function.name()
        ))
    }
}
