//! Where the rings, the landing area and the PRP list of one queue lie.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use warprow_dma::{DmaMemory, MappedMemory, PAGE};
use warprow_driver::{Controller, ExternalMemory, RingPlace, RingSizes};

use crate::GpuQueueError;
use crate::address_space::{AddressSpace, Shared};

/// Memory of a GPU that drives write to: completion queues and landing areas of placement A⁻.
pub trait DriveWritable: Send + Sync + fmt::Debug {
    /// At least `bytes` of it, a multiple of 4096.
    fn allocate(&self, bytes: usize) -> Result<DriveWritableBlock, GpuQueueError>;
}

/// A piece of a GPU's memory that drives can write to.
#[derive(Debug)]
pub struct DriveWritableBlock {
    /// The host's mapping of it, which VFIO maps for a drive. Page-aligned.
    pub memory: DmaMemory,
    /// Its address, for whoever drives the queues.
    pub address: u64,
    /// What keeps it allocated.
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for QueueMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueMemory").field("sq", &self.sq).field("cq", &self.cq).finish_non_exhaustive()
    }
}

/// How much memory a queue takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueBytes {
    pub(crate) sizes: RingSizes,
    /// Bytes of the landing area, a multiple of a page.
    pub(crate) landing: usize,
    /// Entries of the PRP list, one for each page of the landing area; 0: there is no list.
    pub(crate) list_entries: usize,
}

/// The memory of one queue, with its addresses for whoever drives the queue and for the drive.
pub(crate) struct QueueMemory {
    pub(crate) external: ExternalMemory,
    /// The submission queue, for whoever drives the queue; and so on.
    pub(crate) sq: u64,
    pub(crate) cq: u64,
    pub(crate) landing: u64,
    pub(crate) landing_iova: u64,
    pub(crate) list_iova: u64,
    /// Bytes of the landing area.
    landing_bytes: usize,
    /// Keeps the memory pinned, or allocated.
    _owners: Vec<Owner>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
enum Owner {
    Pinned(Shared),
    Gpu(Arc<dyn Any + Send + Sync>),
}

impl QueueMemory {
    /// All of it in memory of the host, or the completion queue and the landing area in `writable` memory of a GPU.
    pub(crate) fn new(
        controller: &Arc<Controller>,
        bytes: QueueBytes,
        side: &AddressSpace,
        writable: Option<&dyn DriveWritable>,
    ) -> Result<Self, GpuQueueError> {
        let sq_bytes = bytes.sizes.cq_offset();
        let cq_bytes = bytes.sizes.bytes() - sq_bytes;
        let list_bytes = bytes.list_entries * size_of::<u64>();
        let written = cq_bytes + bytes.landing;
        // The submission queue and the list, which drives only read, are in memory of the host in every placement.
        let in_host = if writable.is_none() { written } else { 0 };
        let read = controller.allocate(sq_bytes + list_bytes.next_multiple_of(PAGE) + in_host)?;
        let pinned = side.share(read.memory().clone())?;
        let (sq, list) = (pinned.address(), read.iova() + sq_bytes as u64);
        let (landing_memory, at, address, mut owners) = match writable {
            None => {
                let at = sq_bytes + list_bytes.next_multiple_of(PAGE);
                (read.clone(), at, sq + at as u64, Vec::new())
            }
            Some(writable) => {
                let block = writable.allocate(written)?;
                let mapped = MappedMemory::new(controller.function().clone(), block.memory)?;
                (Arc::new(mapped), 0, block.address, vec![Owner::Gpu(block.owner)])
            }
        };
        owners.push(Owner::Pinned(pinned));
        let landing_iova = landing_memory.iova() + (at + cq_bytes) as u64;
        // Commands find the pages of their places in this list, which never changes.
        for page in 0..bytes.list_entries {
            read.memory().store_u64(sq_bytes + page * size_of::<u64>(), landing_iova + (page * PAGE) as u64);
        }
        let external = ExternalMemory {
            sq: RingPlace { memory: read, offset: 0 },
            cq: RingPlace { memory: landing_memory, offset: at },
            named: Vec::new(),
        };
        Ok(Self {
            external,
            sq,
            cq: address,
            landing: address + cq_bytes as u64,
            landing_iova,
            list_iova: list,
            landing_bytes: bytes.landing,
            _owners: owners,
        })
    }

    /// Fills the landing area with `byte`.
    pub(crate) fn scribble(&self, byte: u8) {
        let memory = &self.external.cq.memory;
        memory.memory().fill((self.landing_iova - memory.iova()) as usize, self.landing_bytes, byte);
    }
}
