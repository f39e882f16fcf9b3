//! Memory for the rows that come behind the hottest: pinned memory of the host, or memory of another GPU.

use std::sync::Arc;

use warprow_dma::{DmaMemory, MemoryKind};
use warprow_gpu_queues::{DeviceMemory, Gpu, GpuQueueError, PinnedMemory};

use crate::error::GpuError;

/// Bytes copied to another GPU at once.
const CHUNK: usize = 8 << 20;

/// Rows that kernels read by their addresses, outside the memory of the GPU that they run on.
#[derive(Debug)]
pub(crate) enum SecondTier {
    Pinned(PinnedMemory),
    /// In another GPU's memory; its rows are gathered in memory of the host until all are there.
    Peer {
        memory: DeviceMemory,
        gathered: Option<DmaMemory>,
    },
}

impl SecondTier {
    /// Memory of zeros for `bytes`: on GPU number `peer`, if that is given, whose memory `gpu` is made to reach.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: u64, peer: Option<u32>) -> Result<Self, GpuError> {
        let Some(ordinal) = peer else { return Ok(Self::Pinned(PinnedMemory::allocate(gpu, bytes)?)) };
        let other = Gpu::open(ordinal)?;
        if !gpu.reach(&other)? {
            let why = format!("{} cannot reach the memory of GPU {ordinal}, {}", gpu.name(), other.name());
            return Err(GpuError::Invalid { what: "peer_gpu", why });
        }
        let memory = DeviceMemory::new(&other, bytes)?;
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let gathered = DmaMemory::allocate(len, MemoryKind::Auto).map_err(GpuQueueError::from)?;
        Ok(Self::Peer { memory, gathered: Some(gathered) })
    }

    /// The memory's address, as kernels use it.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Pinned(memory) => memory.address(),
            Self::Peer { memory, .. } => memory.address(),
        }
    }

    /// How many bytes the memory has.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Pinned(memory) => memory.memory().len() as u64,
            Self::Peer { memory, .. } => memory.bytes(),
        }
    }

    /// Up to how many ids a look-up reads each id's row by itself, where the caller does not say. Another GPU's memory is so fast that the
    /// search for different rows takes longer than what it spares.
    pub(crate) fn direct_ids(&self) -> u64 {
        match self {
            Self::Peer { .. } => u64::MAX,
            Self::Pinned(_) => match self.bytes() >> 30 {
                0..=2 => 1 << 19,
                3..=8 => 1 << 18,
                _ => 1 << 17,
            },
        }
    }

    /// Memory of the host that rows are written to, until [`finish`](Self::finish).
    pub(crate) fn filled(&self) -> Option<&DmaMemory> {
        match self {
            Self::Pinned(memory) => Some(memory.memory()),
            Self::Peer { gathered, .. } => gathered.as_ref(),
        }
    }

    /// The memory as this process has it; `None`: it is another GPU's.
    pub(crate) fn here(&self) -> Option<&DmaMemory> {
        match self {
            Self::Pinned(memory) => Some(memory.memory()),
            Self::Peer { .. } => None,
        }
    }

    /// Has what was written lie where kernels read it.
    pub(crate) fn finish(&mut self) -> Result<(), GpuError> {
        let Self::Peer { memory, gathered } = self else { return Ok(()) };
        let Some(rows) = gathered.take() else { return Ok(()) };
        // Memory of the host is whole pages, and may be longer than what it is copied to.
        let bytes = usize::try_from(memory.bytes()).map_or(rows.len(), |bytes| bytes.min(rows.len()));
        let mut part = vec![0; CHUNK.min(bytes)];
        for begin in (0..bytes).step_by(CHUNK) {
            let len = CHUNK.min(bytes - begin);
            let Some(part) = part.get_mut(..len) else { break };
            rows.read(begin, part);
            memory.write(begin as u64, part)?;
        }
        Ok(())
    }
}
