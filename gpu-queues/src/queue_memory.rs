//! Where the rings, the landing area and the PRP list of one queue lie.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use warprow_dma::{DmaMemory, Function, MappedMemory, MappedPeerMemory, PAGE};
use warprow_driver::{Controller, ExternalMemory, QueuePairMemory, RingPlace, RingSizes};
use warprow_vfio::Hold;

use crate::address_space::{AddressSpace, SharedMemory};
use crate::memory_placement::PlacedMemory;
use crate::{GpuQueueError, KeptMemoryError};

/// Memory of a GPU that drives write to: completion queues and landing areas of placement A⁻.
pub trait DriveWritable: Send + Sync + fmt::Debug {
    /// Allocates at least `bytes` of such memory, a multiple of 4096, for a queue of that drive.
    fn allocate(&self, function: &Arc<dyn Function>, bytes: usize) -> Result<DriveWritableBlock, GpuQueueError>;
}

/// A piece of a GPU's memory that drives can write to.
#[derive(Debug)]
pub struct DriveWritableBlock {
    /// The host's mapping of the GPU's memory, which VFIO maps for a drive. It is page-aligned.
    pub memory: DmaMemory,
    /// The address of the memory, for whoever drives the queues.
    pub address: u64,
    /// By what a keeper keeps this memory for that drive. Memory of a real GPU wants it. Dropped when the drive's mapping has ended.
    pub hold: Option<Hold>,
    /// What keeps the memory allocated. Dropped last.
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
    /// The addresses `sq`, `cq` and `landing` are for whoever drives the queue, and the other two for the drive.
    pub(crate) sq: u64,
    pub(crate) cq: u64,
    pub(crate) landing: u64,
    pub(crate) landing_iova: u64,
    pub(crate) list_iova: u64,
    /// Whether some of the memory is the GPU's, and so is lost when the GPU's context is.
    pub(crate) is_on_gpu: bool,
    /// Bytes of the landing area.
    landing_bytes: usize,
    /// Keeps the memory pinned, or allocated.
    _owners: Vec<Owner>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
enum Owner {
    Pinned(SharedMemory),
    Written(Written),
}

/// What keeps a block that a drive writes to.
#[derive(Debug)]
struct Written {
    /// Counts who else has the block: whoever mapped it for the drive.
    memory: DmaMemory,
    hold: Option<Hold>,
    owner: Arc<dyn Any + Send + Sync>,
}

impl Drop for Written {
    fn drop(&mut self) {
        if self.memory.is_shared() {
            tracing::error!(
                "memory of a GPU is still mapped for a drive: it stays allocated, and kept, until this process ends"
            );
            std::mem::forget((self.hold.take(), self.owner.clone()));
        }
    }
}

/// Refuses a block of a real GPU's memory that nobody keeps for the drive, because what a process that dies leaves behind must
/// not be the drive's target.
fn refuse_unkept(hold: Option<&Hold>, is_gpu: bool, function: &dyn Function) -> Result<(), KeptMemoryError> {
    let is_kept = hold.is_some_and(|hold| hold.keeps_for(function));
    if is_kept || !is_gpu {
        return Ok(());
    }
    Err(KeptMemoryError::Unkept { function: function.name().to_owned() })
}

/// A piece of the memory of a queue.
struct Block {
    memory: QueuePairMemory,
    /// The address of the first byte, for whoever drives the queue.
    address: u64,
    owner: Option<Owner>,
}

impl Block {
    fn pinned(controller: &Arc<Controller>, bytes: usize, side: &AddressSpace) -> Result<Self, GpuQueueError> {
        let memory = controller.allocate(bytes)?;
        let pinned = side.share(memory.memory().clone())?;
        let address = pinned.address();
        Ok(Self { memory: QueuePairMemory::Host(memory), address, owner: Some(Owner::Pinned(pinned)) })
    }

    fn writable(
        controller: &Arc<Controller>,
        bytes: usize,
        side: &AddressSpace,
        from: &dyn DriveWritable,
    ) -> Result<Self, GpuQueueError> {
        let function = controller.function();
        let DriveWritableBlock { memory, address, hold, owner } = from.allocate(function, bytes)?;
        // The drive's mapping has a count of its own.
        let memory = memory.alias();
        let written = Written { memory: memory.clone(), hold, owner };
        refuse_unkept(written.hold.as_ref(), side.is_gpu(), &**function)?;
        let memory = QueuePairMemory::Host(Arc::new(MappedMemory::new(function.clone(), memory)?));
        Ok(Self { memory, address, owner: Some(Owner::Written(written)) })
    }

    fn peer(controller: &Arc<Controller>, bytes: usize, side: &AddressSpace) -> Result<Self, GpuQueueError> {
        let peer = side.peer(bytes)?;
        let address = peer.address();
        let mapped = MappedPeerMemory::new(controller.function().clone(), peer)?;
        Ok(Self { memory: QueuePairMemory::Peer(Arc::new(mapped)), address, owner: None })
    }
}

impl QueueMemory {
    /// In memory of the host, or of whoever drives the queues, as `placed` says; or the completion queue and the
    /// landing area in `writable` memory of a GPU.
    pub(crate) fn new(
        controller: &Arc<Controller>,
        bytes: QueueBytes,
        side: &AddressSpace,
        placed: PlacedMemory,
        writable: Option<&dyn DriveWritable>,
    ) -> Result<Self, GpuQueueError> {
        let sq_bytes = bytes.sizes.cq_offset();
        let cq_bytes = bytes.sizes.bytes() - sq_bytes;
        let read = sq_bytes + (bytes.list_entries * size_of::<u64>()).next_multiple_of(PAGE);
        let written = cq_bytes + bytes.landing;
        // One block for everything, or the submission queue and the list, which drives only read, in a block of their
        // own.
        let (first, second) = match (placed, writable) {
            (_, Some(writable)) => {
                (Block::pinned(controller, read, side)?, Some(Block::writable(controller, written, side, writable)?))
            }
            (PlacedMemory::Pinned, None) => (Block::pinned(controller, read + written, side)?, None),
            (PlacedMemory::A, None) => (Block::peer(controller, read + written, side)?, None),
            (PlacedMemory::AMinus, None) => {
                (Block::pinned(controller, read, side)?, Some(Block::peer(controller, written, side)?))
            }
        };
        let (behind, at) = second.as_ref().map_or((&first, read), |second| (second, 0));
        let landing_iova = behind.memory.iova() + (at + cq_bytes) as u64;
        let (sq, cq) = (first.address, behind.address + at as u64);
        // Commands find the pages of their places in this list, which never changes.
        let pages = (0..bytes.list_entries).map(|page| landing_iova + (page * PAGE) as u64);
        let list: Vec<u8> = pages.flat_map(u64::to_le_bytes).collect();
        first.memory.write(sq_bytes, &list)?;
        let external = ExternalMemory {
            sq: RingPlace { memory: first.memory.clone(), offset: 0 },
            cq: RingPlace { memory: behind.memory.clone(), offset: at },
            named: Vec::new(),
        };
        Ok(Self {
            external,
            sq,
            cq,
            landing: cq + cq_bytes as u64,
            landing_iova,
            list_iova: first.memory.iova() + sq_bytes as u64,
            is_on_gpu: writable.is_none() && placed != PlacedMemory::Pinned,
            landing_bytes: bytes.landing,
            _owners: [first.owner, second.and_then(|second| second.owner)].into_iter().flatten().collect(),
        })
    }

    /// Fills the landing area with `byte`.
    pub(crate) fn scribble(&self, byte: u8) -> Result<(), GpuQueueError> {
        let memory = &self.external.cq.memory;
        memory.write((self.landing_iova - memory.iova()) as usize, &vec![byte; self.landing_bytes])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_dma::MemoryKind;
    use warprow_soft_controller::SoftController;

    #[test]
    fn a_gpu_s_memory_that_nobody_keeps_is_refused_by_the_drive_s_name() {
        let drive = SoftController::builder().name("a drive").stepped().build().unwrap();
        let error = refuse_unkept(None, true, &*drive).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, KeptMemoryError::Unkept { .. }), "{text}");
        assert!(text.starts_with("a drive: ") && text.contains("keeper") && text.contains("KeptGpuMemory"), "{text}");
        // A thread in the GPU's place has memory that goes with the process.
        refuse_unkept(None, false, &*drive).unwrap();
    }

    #[test]
    fn a_block_that_is_still_mapped_stays_allocated() {
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(());
        let written = |memory: &DmaMemory| Written { memory: memory.clone(), hold: None, owner: owner.clone() };
        let memory = DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap();
        drop(written(&memory));
        assert_eq!(Arc::strong_count(&owner), 2, "whoever has it mapped goes on having it");
        let alone = Written { memory, hold: None, owner: owner.clone() };
        drop(alone);
        assert_eq!(Arc::strong_count(&owner), 2, "this one was let go");
    }
}
