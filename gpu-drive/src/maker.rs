//! Offloads for addresses with `gpu=`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cudarc::driver::sys::CUresult;
use warprow_gpu_queues::{GpuQueueError, kept_memory};
use warprow_kernels::KernelError;
use warprow_soft_controller::{
    OffloadLack, OffloadLackKind, OffloadMaker, OffloadRequest, Offloaded, register_offloads,
};

use crate::image::{Image, ImageError};
use crate::mirrored::MirroredBacking;
use crate::offload::GpuOffload;
use crate::player::{Player, PlayerError};

/// Lets GPUs play drives of this process whose address says `gpu=`. More calls do nothing.
pub fn register() {
    register_offloads(Box::new(Maker));
}

/// Has GPU `request.gpu` play a drive that is built by hand: its controller gets the result's offload
/// ([`offload`](warprow_soft_controller::ControllerBuilder::offload)), and its first namespace the result's backing. All of the backing is
/// copied to the GPU first.
pub fn play(request: OffloadRequest) -> Result<Offloaded, OffloadLack> {
    Maker.make(request)
}

#[derive(Debug)]
struct Maker;

impl OffloadMaker for Maker {
    fn make(&self, request: OffloadRequest) -> Result<Offloaded, OffloadLack> {
        let player = Player::of(request.gpu).map_err(|error| lack(&error))?;
        let (size, gpu) = (request.backing.size(), player.gpu());
        let (free, _) = gpu.memory().map_err(|error| lack(&error.into()))?;
        let free = free + kept_memory(gpu).device.1;
        if size > free {
            let text = format!(
                "{} has {size} bytes, GPU {} ({}) has {free} free: free some (nvidia-smi shows who has it), spread the store over drives on \
                 several GPUs, or leave gpu= out",
                request.uri,
                request.gpu,
                gpu.name()
            );
            return Err(OffloadLack { kind: OffloadLackKind::Memory, text });
        }
        let image = Image::of(&player, &*request.backing).map_err(|error| match error {
            ImageError::Gpu(error) => lack(&error),
            error => OffloadLack { kind: OffloadLackKind::Other, text: error.to_string() },
        })?;
        let (image, stale) = (Arc::new(image), Arc::new(AtomicBool::new(false)));
        let offload =
            GpuOffload::new(player, image.clone(), stale.clone(), &request.rate).map_err(|error| lack(&error))?;
        let backing = Arc::new(MirroredBacking::new(request.backing, image, stale));
        Ok(Offloaded { backing, offload: Box::new(offload) })
    }
}

fn lack(error: &PlayerError) -> OffloadLack {
    use OffloadLackKind as Kind;
    let kind = match error {
        PlayerError::Gpu(GpuQueueError::NoDriver) => Kind::NoDriver,
        PlayerError::Gpu(GpuQueueError::DriverTooOld { .. }) => Kind::DriverTooOld,
        PlayerError::Gpu(GpuQueueError::NoDevice { .. }) => Kind::NoSuchGpu,
        PlayerError::Gpu(GpuQueueError::DeviceMemory { .. } | GpuQueueError::Pin { .. }) => Kind::Memory,
        PlayerError::Gpu(GpuQueueError::Cuda { code: CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE, .. }) => Kind::Taken,
        PlayerError::Kernel(KernelError::TooOld { .. }) => Kind::TooOld,
        PlayerError::Kernel(_) => Kind::Compiler,
        _ => Kind::Other,
    };
    OffloadLack { kind, text: error.to_string() }
}
