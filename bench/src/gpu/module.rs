//! Kernels of the benchmarks' own, compiled for the GPU that is there.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction, CUmodule};
use warprow_gpu_queues::Gpu;
use warprow_kernels::{Arch, compile_with};

use super::stream::{Stream, cuda};

const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// Sources in one unit, loaded. Functions are those of its kernels.
#[derive(Debug)]
pub(super) struct Module {
    module: CUmodule,
    gpu: Arc<Gpu>,
}

// SAFETY: CUDA's handles of modules and functions may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a [`Module`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel(CUfunction);

// SAFETY: as above.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// The machine code of `main`.
pub(super) fn code(main: &str, headers: &[(&str, &str)], arch: Arch) -> anyhow::Result<Vec<u8>> {
    Ok(compile_with(main, headers, &OPTIONS, arch)?)
}

impl Module {
    /// Compiles and loads `main`, with headers by name.
    pub(super) fn new(gpu: &Arc<Gpu>, main: &str, headers: &[(&str, &str)]) -> anyhow::Result<Self> {
        let _current = gpu.enter()?;
        let (major, minor) = gpu.capability();
        let code = code(main, headers, Arch { major, minor })?;
        let mut module = ptr::null_mut();
        // SAFETY: an image for this device.
        cuda("the benchmarks' kernels", unsafe { sys::cuModuleLoadData(&mut module, code.as_ptr().cast()) })?;
        Ok(Self { module, gpu: gpu.clone() })
    }

    /// A kernel by name, loaded at once: one that is held by the host must not meet one that is being loaded.
    pub(super) fn kernel(&self, name: &CStr) -> anyhow::Result<Kernel> {
        let _current = self.gpu.enter()?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a zero.
        unsafe {
            cuda("a kernel", sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr()))?;
            cuda("loading a kernel", sys::cuFuncLoad(function))?;
        }
        Ok(Kernel(function))
    }

    /// The GPU.
    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// # Safety
    /// The kernel is one of this module, takes `N` parameters of 64 bits, these, and what they name stays until it has ended.
    pub(super) unsafe fn launch<const N: usize>(
        &self,
        kernel: Kernel,
        stream: &Stream,
        blocks: u32,
        threads: u32,
        mut parameters: [u64; N],
    ) -> anyhow::Result<()> {
        let _current = self.gpu.enter()?;
        let mut parameters = parameters.each_mut().map(|value| ptr::from_mut(value).cast::<c_void>());
        let stream = stream.raw();
        let none = ptr::null_mut();
        // SAFETY: the caller's promise. CUDA copies the parameters.
        let launched = unsafe {
            sys::cuLaunchKernel(kernel.0, blocks, 1, 1, threads, 1, 1, 0, stream, parameters.as_mut_ptr(), none)
        };
        cuda("a kernel of the benchmarks", launched)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: loaded once; nothing of it runs any more, for streams wait when they are dropped.
        unsafe { sys::cuModuleUnload(self.module) };
    }
}
