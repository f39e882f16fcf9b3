//! GPU memory for completion queues and landing areas of physical drives (placement A⁻), which stays until the drive has stopped, however
//! this process ends.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use warprow_dma::Function;
use warprow_vfio::{Keeper, VfioFunction};

use crate::gdrdrv::{GPU_PAGE, Gdrdrv, GdrdrvMemory};
use crate::{DeviceMemory, DriveWritable, DriveWritableBlock, Gpu, GpuQueueError, KeptMemoryError};

/// Memory of a GPU for completion queues and landing areas of physical drives: pinned and mapped by the module gdrdrv, and
/// kept by a [`Keeper`] until the drive can no longer write to it. A block takes whole pages of 64 KiB. Unproven on a real GPU
/// (docs/gpu-rings.md).
#[derive(Debug)]
pub struct KeptGpuMemory {
    gdrdrv: Gdrdrv,
    keeper: Arc<Keeper>,
    from: Source,
}

/// Where the memory comes from.
enum Source {
    Gpu(Arc<Gpu>),
    /// Addresses on a GPU that were not yet given out, for a thread of this process in the place of the kernels.
    Host(Mutex<Range<u64>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(gpu) => f.debug_tuple("Gpu").field(&gpu.name()).finish(),
            Self::Host(left) => f.debug_tuple("Host").field(left).finish(),
        }
    }
}

/// What keeps a block. The memory is unpinned before it is freed.
#[derive(Debug)]
struct Owner {
    _pinned: GdrdrvMemory,
    _allocated: Option<DeviceMemory>,
}

impl KeptGpuMemory {
    /// Memory of `gpu`, for [`QueueSet::new`](crate::QueueSet::new). Fails where gdrdrv is not there, or does not pin persistently.
    pub fn new(gpu: &Arc<Gpu>, keeper: Arc<Keeper>) -> Result<Self, KeptMemoryError> {
        Ok(Self { gdrdrv: Gdrdrv::open()?, keeper, from: Source::Gpu(gpu.clone()) })
    }

    /// As [`new`](Self::new), for [`QueueSet::on_host`](crate::QueueSet::on_host): whoever stands in for the kernels uses the
    /// host's mapping. `addresses` are those of memory that somebody has allocated on a GPU; each byte is given out once.
    pub fn on_host(addresses: Range<u64>, keeper: Arc<Keeper>) -> Result<Self, KeptMemoryError> {
        Ok(Self { gdrdrv: Gdrdrv::open()?, keeper, from: Source::Host(Mutex::new(addresses)) })
    }
}

/// Takes `bytes`, whole pages, from the beginning of what is left.
fn take(left: &mut Range<u64>, bytes: u64) -> Result<u64, KeptMemoryError> {
    let begin = left.start.next_multiple_of(GPU_PAGE);
    let end = begin.checked_add(bytes).filter(|&end| end <= left.end);
    let end = end.ok_or(KeptMemoryError::Room { bytes, left: left.end.saturating_sub(begin) })?;
    left.start = end;
    Ok(begin)
}

/// The drive, if a keeper can hold it.
fn behind_vfio(function: &Arc<dyn Function>) -> Result<Arc<VfioFunction>, KeptMemoryError> {
    let any: Arc<dyn Any + Send + Sync> = function.clone();
    any.downcast().map_err(|_| KeptMemoryError::NotVfio { function: function.name().to_owned() })
}

impl DriveWritable for KeptGpuMemory {
    fn allocate(&self, function: &Arc<dyn Function>, bytes: usize) -> Result<DriveWritableBlock, GpuQueueError> {
        let drive = behind_vfio(function)?;
        // Kept before the drive can write to it.
        let hold = self.keeper.hold(&drive, &[self.gdrdrv.file()]).map_err(KeptMemoryError::from)?;
        let bytes = (bytes as u64).next_multiple_of(GPU_PAGE);
        let (allocated, on_gpu) = match &self.from {
            Source::Gpu(gpu) => {
                // Whole pages of this allocation alone, because others lie in the same pages of the GPU elsewhere.
                let memory = DeviceMemory::new(gpu, bytes + GPU_PAGE)?;
                let begin = memory.address().next_multiple_of(GPU_PAGE);
                (Some(memory), begin)
            }
            Source::Host(left) => (None, take(&mut left.lock().unwrap_or_else(PoisonError::into_inner), bytes)?),
        };
        let pinned = self.gdrdrv.pin(on_gpu, bytes).map_err(KeptMemoryError::from)?;
        let memory = pinned.memory().clone();
        let address = if allocated.is_some() { on_gpu } else { memory.as_ptr() as u64 };
        let owner = Arc::new(Owner { _pinned: pinned, _allocated: allocated });
        Ok(DriveWritableBlock { memory, address, hold: Some(hold), owner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_soft_controller::SoftController;

    #[test]
    fn a_drive_in_software_is_refused_by_its_name() {
        let drive: Arc<dyn Function> = SoftController::builder().name("a drive").stepped().build().unwrap();
        let text = behind_vfio(&drive).unwrap_err().to_string();
        assert!(text.starts_with("a drive: ") && text.contains("PCI address"), "{text}");
    }

    #[test]
    fn whole_pages_are_given_out_once() {
        let mut left = 0x2_0001..0x9_0000;
        assert_eq!(take(&mut left, 0x2_0000).unwrap(), 0x3_0000);
        assert_eq!(take(&mut left, 0x3_0000).unwrap(), 0x5_0000);
        let error = take(&mut left, 0x2_0000).unwrap_err();
        assert!(matches!(error, KeptMemoryError::Room { bytes: 0x2_0000, left: 0x1_0000 }), "{error}");
        assert_eq!(take(&mut left, 0x1_0000).unwrap(), 0x8_0000);
        assert!(take(&mut left, 0x1_0000).is_err());
    }
}
