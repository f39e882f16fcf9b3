//! Why a physical drive cannot have queues in GPU memory.

use warprow_vfio::KeeperError;

use crate::gdrdrv::GdrdrvError;

/// Why a physical drive cannot have queues in GPU memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeptMemoryError {
    /// gdrdrv does not give the memory.
    #[error(transparent)]
    Gdrdrv(#[from] GdrdrvError),
    /// The keeper does not keep it.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The drive is not behind VFIO.
    #[error("{function}: a keeper keeps memory for drives behind VFIO alone (a PCI address)")]
    NotVfio {
        /// The drive's function.
        function: String,
    },
    /// Nobody keeps the memory for this drive.
    #[error(
        "{function}: completion queues and landing areas in a GPU's memory want a keeper that holds the drive and the memory: without one, \
         a process that dies could leave memory of others as the drive's target (docs/gpu-rings.md); use KeptGpuMemory, or \
         memory of the host"
    )]
    Unkept {
        /// The drive's function.
        function: String,
    },
    /// There is no memory left to give out.
    #[error("{left} bytes are left, and {bytes} were asked for: give more to begin with")]
    Room {
        /// Bytes that were asked for, in whole pages.
        bytes: u64,
        /// Bytes that are left.
        left: u64,
    },
}
