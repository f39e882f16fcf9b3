//! A GPU that plays drives: the answering kernel, loaded, and a stream to launch it on.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute_enum as Attribute, CUresult, CUstream};
use warprow_gpu_queues::{Gpu, GpuQueueError, KernelModule, MemoryKeeper, PinnedMemory, RelaxedCapture};
use warprow_kernels::{Arch, KernelError, compile_with};

use crate::abi::{SHARED_BYTES, THREADS, Turn};

const SOURCE: &str = include_str!("../cuda/answer.cu");
/// How long a kernel of the self-test waits for the other, at each attempt: others may use the GPU.
const MEETINGS: [Duration; 3] = [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(500)];
/// How long a launch is waited for: longer than look-ups wait for a drive by default, so that one that holds launches up ends before.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);
/// Looks at a stream before others are let on this thread's core.
const LOOKS: u32 = 200;
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
    #[error(
        "it does not reach the memory of GPU {ordinal} (cuCtxEnablePeerAccess: {code:?}): play the drive on that GPU (gpu={ordinal}), or ask \
         for MemoryPlacement::Pinned"
    )]
    Peer { ordinal: i32, code: CUresult },
    /// Found by the self-test.
    #[error(
        "kernels on this GPU wait for each other, so that a look-up would wait for itself: unset CUDA_LAUNCH_BLOCKING and \
         CUDA_DEVICE_MAX_CONNECTIONS, and leave out profilers that run one kernel at a time"
    )]
    OneAtATime,
    /// A launch has not ended in the time that it may take.
    #[error(
        "a launch has not ended within {0:?}: CUDA holds it back, for a call of another thread that waits for all kernels (cudaFree, \
         cudaHostRegister, a module that is loaded), or the GPU is taken by other kernels; play the drive on another GPU"
    )]
    HeldBack(Duration),
    /// Nothing that a kernel does ends that way.
    #[error("CUDA says that turn {0} of the answering kernel has ended, and the kernel does not")]
    Unended(u32),
    /// A launch would then have to set memory aside, and wait for every kernel that runs.
    #[error("the answering kernel needs {0} bytes of local memory on this GPU, where it must not need any")]
    Spills(i32),
}

/// How many streams may have work at once without waiting for each other (CUDA Programming Guide, CUDA_DEVICE_MAX_CONNECTIONS).
pub(crate) fn hardware_queues() -> usize {
    let asked = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().and_then(|value| value.parse::<usize>().ok());
    asked.map_or(8, |asked| asked.clamp(1, 32))
}

/// The kernel on one GPU, loaded once for all drives of the process.
#[derive(Debug)]
pub(crate) struct Player {
    gpu: Arc<Gpu>,
    module: Arc<KernelModule>,
    answer: CUfunction,
    /// While drives are played, nothing is given back to CUDA, which would hold the drives up.
    _keeper: MemoryKeeper,
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
        let mut loading = sys::CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING;
        // SAFETY: the context is current; a number is stored.
        cuda("how modules are loaded", unsafe { sys::cuModuleGetLoadingMode(&mut loading) })?;
        if loading == sys::CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING {
            tracing::warn!(
                gpu = gpu.name(),
                "CUDA loads modules lazily: while a kernel waits for a drive that this GPU plays, the first use of another kernel on the same \
                 GPU holds the drive up until the look-up's time-out. Set CUDA_MODULE_LOADING=EAGER before CUDA is used, use each kernel once \
                 before, or have another GPU play the drive"
            );
        }
        // SAFETY: an image for this device, fresh from the compiler or from its cache.
        let module = unsafe { KernelModule::load(&gpu, &code) };
        let module = module.map_err(|code| PlayerError::Cuda("the answering kernel", code))?;
        let keeper = MemoryKeeper::new(&gpu);
        // Loaded at once: a launch that loads the kernel may wait for kernels that wait for the drive.
        let answer = module.function(c"answer").map_err(|code| PlayerError::Cuda("the answering kernel", code))?;
        let player = Self { gpu: gpu.clone(), module, answer, _keeper: keeper };
        let mut local = 0;
        // SAFETY: the module is loaded; a number is stored.
        unsafe {
            let shared = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            cuda("its shared memory", sys::cuFuncSetAttribute(player.answer, shared, SHARED_BYTES as i32))?;
            let spilled = Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
            cuda("its local memory", sys::cuFuncGetAttribute(&mut local, spilled, player.answer))?;
        }
        if local != 0 {
            return Err(PlayerError::Spills(local));
        }
        player.check_kernels_meet()?;
        Ok(player)
    }

    /// The self-test: a kernel of one stream waits for one of another. Whatever keeps the second from the GPU meanwhile would keep the
    /// answering kernel from it while a look-up waits for the drive.
    fn check_kernels_meet(&self) -> Result<(), PlayerError> {
        // Loaded at once, as above.
        let function =
            |name: &CStr| self.module.function(name).map_err(|code| PlayerError::Cuda("the self-test", code));
        let (hold, release) = (function(c"hold")?, function(c"release")?);
        let words = PinnedMemory::allocate(&self.gpu, 4096)?;
        let (released, outcome) = (words.address(), words.address() + 128);
        for limit in MEETINGS {
            words.memory().fill(0, 256, 0);
            let (first, second) = (Stream::new(&self.gpu)?, Stream::new(&self.gpu)?);
            // SAFETY: the words stay until both streams are done, also where something fails: a stream that is dropped waits.
            unsafe {
                launch(hold, &first, &mut [released, outcome, limit.as_nanos() as u64])?;
                launch(release, &second, &mut [released])?;
            }
            first.wait_for(PATIENCE)?;
            second.wait_for(PATIENCE)?;
            if words.memory().load_u32(128) == 1 {
                return Ok(());
            }
        }
        Err(PlayerError::OneAtATime)
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Lets the answering kernel reach the GPU memory at `address`, of whichever GPU it is.
    pub(crate) fn reach(&self, address: u64) -> Result<(), PlayerError> {
        use sys::CUpointer_attribute_enum as About;
        let (mut ordinal, mut context) = (0i32, ptr::null_mut::<c_void>());
        let _current = self.gpu.enter()?;
        // SAFETY: the address is memory's that CUDA has allocated; a number and a handle are stored.
        unsafe {
            let about = About::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            cuda("the GPU of memory", sys::cuPointerGetAttribute(ptr::from_mut(&mut ordinal).cast(), about, address))?;
            let about = About::CU_POINTER_ATTRIBUTE_CONTEXT;
            cuda(
                "the context of memory",
                sys::cuPointerGetAttribute(ptr::from_mut(&mut context).cast(), about, address),
            )?;
        }
        if context == self.gpu.context().cast() {
            return Ok(());
        }
        // SAFETY: both contexts live: this one's is current, and the other has the memory.
        match unsafe { sys::cuCtxEnablePeerAccess(context.cast(), 0) } {
            CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => Err(PlayerError::Peer { ordinal, code }),
        }
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

/// Launches a kernel of one thread with words for parameters.
///
/// # Safety
/// The kernel takes these, and what they name stays until the stream is done. The context is current.
unsafe fn launch(kernel: CUfunction, stream: &Stream, words: &mut [u64]) -> Result<(), PlayerError> {
    let mut parameters: Vec<*mut c_void> = words.iter_mut().map(|word| ptr::from_mut(word).cast()).collect();
    // SAFETY: the caller's promise; CUDA copies the parameters.
    cuda("the self-test", unsafe {
        sys::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream.stream, parameters.as_mut_ptr(), ptr::null_mut())
    })
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
        let _relaxed = RelaxedCapture::new();
        cuda(what, enqueue(self.stream))
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

    /// As [`wait`](Self::wait), by looking, and no longer than `patience`.
    pub(crate) fn wait_for(&self, patience: Duration) -> Result<(), PlayerError> {
        let (mut looks, began) = (0, Instant::now());
        while !self.is_done()? {
            looks += 1;
            if looks > LOOKS {
                if began.elapsed() > patience {
                    return Err(PlayerError::HeldBack(patience));
                }
                std::thread::yield_now();
            }
        }
        Ok(())
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
