//! The copy of a namespace in GPU memory.

use cudarc::driver::sys;
use warprow_dma::{DmaMemory, MemoryKind};
use warprow_gpu_queues::DeviceMemory;
use warprow_soft_controller::Backing;

use crate::player::{Player, PlayerError, Stream};

/// Bytes that are copied at a time when a drive is opened.
const PIECE: u64 = 8 << 20;

/// All bytes of a namespace, in GPU memory. Those who write wait until their bytes are there.
#[derive(Debug)]
pub(crate) struct Image {
    // Dropped first: it waits for what uses the memory.
    stream: Stream,
    memory: DeviceMemory,
}

/// Why no copy could be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error(transparent)]
    Gpu(#[from] PlayerError),
    #[error("the drive's data cannot be read: {0}")]
    Read(String),
    #[error("{0}")]
    Host(String),
}

impl Image {
    /// Copies all of `backing`.
    pub(crate) fn of(player: &Player, backing: &dyn Backing) -> Result<Self, ImageError> {
        let gpu = player.gpu();
        let size = backing.size();
        let memory = DeviceMemory::new(gpu, size).map_err(PlayerError::from)?;
        let image = Self { stream: Stream::new(gpu)?, memory };
        let staging = DmaMemory::allocate(PIECE.min(size.max(4096)) as usize, MemoryKind::Anonymous)
            .map_err(|error| ImageError::Host(error.to_string()))?;
        let zeros = vec![0; staging.len()];
        let mut bytes = vec![0; staging.len()];
        let mut offset = 0;
        while offset < size {
            let len = PIECE.min(size - offset) as usize;
            backing.read(offset, &staging, 0, len).map_err(|error| ImageError::Read(error.to_string()))?;
            staging.read(0, &mut bytes[..len]);
            // GPU memory is zeroed to begin with, and much of a new drive is zeros.
            if bytes[..len] != zeros[..len] {
                image.write(offset, &staging, 0, len)?;
            }
            offset += len as u64;
        }
        Ok(image)
    }

    /// The address of its first byte on the GPU.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    fn place(&self, offset: u64, len: u64) -> u64 {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.memory.bytes()),
            "{len} bytes at {offset} of an image"
        );
        self.memory.address() + offset
    }

    /// Copies `len` bytes of `from`, from its byte `at`, to `offset`, and waits until they are there.
    pub(crate) fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), PlayerError> {
        assert!(from.contains(at, len), "{len} bytes at {at} of {}", from.len());
        let to = self.place(offset, len as u64);
        // SAFETY: both ranges are inside (checked), and are waited for.
        self.stream.with("copying to the GPU's copy of a drive", |stream| unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().add(at).cast(), len, stream)
        })?;
        self.stream.wait()
    }

    /// Sets bytes to zero, and waits until they are.
    pub(crate) fn zero(&self, offset: u64, len: u64) -> Result<(), PlayerError> {
        let to = self.place(offset, len);
        // SAFETY: the range is inside (checked), and is waited for.
        self.stream.with("clearing the GPU's copy of a drive", |stream| unsafe {
            sys::cuMemsetD8Async(to, 0, len as usize, stream)
        })?;
        self.stream.wait()
    }
}
