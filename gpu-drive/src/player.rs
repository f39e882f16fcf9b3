//! A GPU that plays drives: the answering kernel, loaded, and a stream to launch it on.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute_enum as Attribute, CUmodule, CUresult, CUstream};
use warprow_gpu_queues::{Gpu, GpuQueueError};
use warprow_kernels::{Arch, KernelError, compile_with};

use crate::abi::{SHARED_BYTES, THREADS, Turn};

const SOURCE: &str = include_str!("../cuda/answer.cu");
const OPTIONS: [&str; 2] = ["--std=c++17", "-lineinfo"];

/// Why a GPU cannot play drives.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlayerError {
    #[error(transparent)]
    Gpu(#[from] GpuQueueError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error("CUDA refuses {0}: {1:?}")]
    Cuda(&'static str, CUresult),
    /// A launch would then have to set memory aside, and wait for every kernel that runs.
    #[error("the answering kernel needs {0} bytes of local memory on this GPU, where it must not need any")]
    Spills(i32),
}

/// The kernel on one GPU, loaded once for all drives of the process.
#[derive(Debug)]
pub(crate) struct Player {
    gpu: Arc<Gpu>,
    module: CUmodule,
    answer: CUfunction,
}

// SAFETY: CUDA's handles may be used from any thread.
unsafe impl Send for Player {}
// SAFETY: as above.
unsafe impl Sync for Player {}

static PLAYERS: Mutex<BTreeMap<u32, Weak<Player>>> = Mutex::new(BTreeMap::new());

pub(crate) fn cuda(what: &'static str, code: CUresult) -> Result<(), PlayerError> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(PlayerError::Cuda(what, code)) }
}

impl Player {
    /// The player of GPU `ordinal`; the first call compiles the kernel.
    pub(crate) fn of(ordinal: u32) -> Result<Arc<Self>, PlayerError> {
        let mut players = PLAYERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(player) = players.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(player);
        }
        let player = Arc::new(Self::new(ordinal)?);
        players.insert(ordinal, Arc::downgrade(&player));
        Ok(player)
    }

    fn new(ordinal: u32) -> Result<Self, PlayerError> {
        let gpu = Gpu::open(ordinal)?;
        let (major, minor) = gpu.capability();
        if major < 8 {
            return Err(KernelError::TooOld { major, minor }.into());
        }
        let code = compile_with(SOURCE, &[], &OPTIONS, Arch { major, minor })?;
        let _current = gpu.enter()?;
        let mut player = Self { gpu: gpu.clone(), module: ptr::null_mut(), answer: ptr::null_mut() };
        let mut local = 0;
        // SAFETY: an image for this device; handles and a number are stored. Loading at once: a launch that loads the kernel may wait for
        // kernels that wait for the drive.
        unsafe {
            cuda("the answering kernel", sys::cuModuleLoadData(&mut player.module, code.as_ptr().cast()))?;
            cuda(
                "the answering kernel",
                sys::cuModuleGetFunction(&mut player.answer, player.module, c"answer".as_ptr()),
            )?;
            cuda("the answering kernel", sys::cuFuncLoad(player.answer))?;
            let shared = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            cuda("its shared memory", sys::cuFuncSetAttribute(player.answer, shared, SHARED_BYTES as i32))?;
            let spilled = Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
            cuda("its local memory", sys::cuFuncGetAttribute(&mut local, spilled, player.answer))?;
        }
        if local != 0 {
            return Err(PlayerError::Spills(local));
        }
        Ok(player)
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Launches a turn for so many queues.
    ///
    /// # Safety
    /// What `turn` names is as `cuda/answer.cu` says, and stays until the stream is done.
    pub(crate) unsafe fn launch(&self, stream: &Stream, queues: u32, turn: &Turn) -> Result<(), PlayerError> {
        let _current = self.gpu.enter()?;
        let mut parameters = [ptr::from_ref(turn).cast_mut().cast::<c_void>()];
        // SAFETY: the caller's promise; the kernel takes one `Turn` by value, which CUDA copies.
        cuda("a launch of the answering kernel", unsafe {
            sys::cuLaunchKernel(
                self.answer,
                queues,
                1,
                1,
                THREADS,
                1,
                1,
                SHARED_BYTES,
                stream.stream,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: loaded once; whoever launched has waited for the end.
        unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// A stream that waits for no other, of the highest priority.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) stream: CUstream,
    gpu: Arc<Gpu>,
}

// SAFETY: CUDA's handles may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self, PlayerError> {
        let _current = gpu.enter()?;
        let (mut least, mut greatest, mut stream) = (0, 0, ptr::null_mut());
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; numbers and a handle are stored.
        unsafe {
            cuda("priorities", sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
            cuda("a stream", sys::cuStreamCreateWithPriority(&mut stream, flags, greatest))?;
        }
        Ok(Self { stream, gpu: gpu.clone() })
    }

    /// Lets `enqueue` put work into the stream. Captures of other threads are not disturbed.
    pub(crate) fn with(
        &self,
        what: &'static str,
        enqueue: impl FnOnce(CUstream) -> CUresult,
    ) -> Result<(), PlayerError> {
        let _current = self.gpu.enter()?;
        let mut mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: it exchanges a number with this thread's.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        let done = cuda(what, enqueue(self.stream));
        // SAFETY: as before; the mode is the one that was found.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        done
    }

    /// Whether everything enqueued has ended.
    pub(crate) fn is_done(&self) -> Result<bool, PlayerError> {
        let mut done = true;
        self.with("a look at the drive's stream", |stream| {
            // SAFETY: the stream is this one's.
            match unsafe { sys::cuStreamQuery(stream) } {
                CUresult::CUDA_ERROR_NOT_READY => {
                    done = false;
                    CUresult::CUDA_SUCCESS
                }
                code => code,
            }
        })?;
        Ok(done)
    }

    /// Waits until everything enqueued has ended.
    pub(crate) fn wait(&self) -> Result<(), PlayerError> {
        // SAFETY: the stream is this one's.
        self.with("waiting for the drive's stream", |stream| unsafe { sys::cuStreamSynchronize(stream) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: created once, destroyed once. Work that is still in it is waited for, because its memory goes next.
        unsafe {
            sys::cuStreamSynchronize(self.stream);
            sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/cubins.sh` disassembles what this compiles.
    #[test]
    fn it_compiles_for_every_architecture() {
        let folder = std::env::var_os("WARPROW_CUBINS").map(std::path::PathBuf::from);
        // SAFETY: it looks for a library and calls nothing in it.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            assert!(folder.is_none(), "libnvrtc cannot be found");
            return eprintln!("skipped: compiling the answering kernel needs libnvrtc");
        }
        for major in [8, 9, 10] {
            let arch = Arch { major, minor: 0 };
            let code = compile_with(SOURCE, &[], &OPTIONS, arch).unwrap();
            assert_eq!(code[..4], *b"\x7fELF", "{arch}");
            folder
                .iter()
                .for_each(|folder| std::fs::write(folder.join(format!("answer.{arch}.cubin")), &code).unwrap());
        }
    }
}
