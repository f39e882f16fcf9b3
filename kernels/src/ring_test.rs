//! The ring test of a drive, with the kernel on the GPU.

use std::ffi::c_void;
use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult, CUstream, CUstream_flags_enum};
use warprow_gpu_queues::abi::{LANES, RingReads};
use warprow_gpu_queues::{RingLaunchError, RingTest, RingTestError, RingTestReport};

use crate::{KernelError, Kernels};

/// How often the host looks whether the kernel has ended.
const GLANCE: Duration = Duration::from_micros(50);

impl Kernels {
    /// Runs a ring test on the GPU of these kernels. It takes a stream of its own, disturbs none of the caller's, and waits.
    pub fn test_ring(&self, test: &RingTest) -> Result<RingTestReport, RingTestError> {
        test.on_gpu(&self.gpu, |reads| self.read_lbas(reads, test.patience()))
    }

    fn read_lbas(&self, reads: &RingReads, patience: Duration) -> Result<(), RingLaunchError> {
        let failed = |error: KernelError| RingLaunchError::Failed(error.to_string());
        let _current = self.gpu.enter().map_err(|error| RingLaunchError::Failed(error.to_string()))?;
        let mut stream: CUstream = ptr::null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; it stores a handle, which is destroyed below.
        KernelError::check("a stream", unsafe { sys::cuStreamCreate(&mut stream, flags) }).map_err(failed)?;
        let mut parameters: [*mut c_void; 1] = [ptr::from_ref(reads).cast_mut().cast()];
        // SAFETY: the kernel takes this one parameter, whose addresses the test keeps until the launch has ended; grid and block are what
        // the kernel wants.
        let launched = unsafe {
            let parameters = parameters.as_mut_ptr();
            sys::cuLaunchKernel(self.test_ring, 1, 1, 1, LANES, 1, 1, 0, stream, parameters, ptr::null_mut())
        };
        let ended = match KernelError::check("the kernel `test_ring`", launched) {
            Ok(()) => wait(stream, patience),
            Err(error) => Err(failed(error)),
        };
        // SAFETY: created once, destroyed once; what still runs on it goes on.
        unsafe { sys::cuStreamDestroy_v2(stream) };
        ended
    }
}

/// Waits until everything on the stream has ended.
fn wait(stream: CUstream, patience: Duration) -> Result<(), RingLaunchError> {
    let began = Instant::now();
    loop {
        // SAFETY: the stream is the caller's, and its context is current.
        match unsafe { sys::cuStreamQuery(stream) } {
            CUresult::CUDA_SUCCESS => return Ok(()),
            CUresult::CUDA_ERROR_NOT_READY if began.elapsed() < patience => std::thread::sleep(GLANCE),
            CUresult::CUDA_ERROR_NOT_READY => return Err(RingLaunchError::Running(began.elapsed())),
            code => {
                let error = KernelError::Cuda { what: "the end of the kernel `test_ring`", code };
                return Err(RingLaunchError::Failed(error.to_string()));
            }
        }
    }
}
