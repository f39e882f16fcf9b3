//! Modules of kernels, loaded into CUDA contexts.

use std::any::Any;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::{self, CUmodule, CUresult};

use crate::Gpu;
use crate::kept_memory;

/// The modules that are loaded.
static LOADED: Mutex<Vec<Weak<KernelModule>>> = Mutex::new(Vec::new());

/// A module of kernels in a CUDA context. It is unloaded when the last handle is dropped, but stays while there is a
/// [`MemoryKeeper`](crate::MemoryKeeper).
///
/// CUDA waits for every kernel of the context to load a module. So code that the context has already is not loaded
/// again.
#[derive(Debug)]
pub struct KernelModule {
    module: CUmodule,
    code: Vec<u8>,
    gpu: Arc<Gpu>,
}

// SAFETY: CUDA's handles may be used from any thread.
unsafe impl Send for KernelModule {}
// SAFETY: as above.
unsafe impl Sync for KernelModule {}

impl KernelModule {
    /// The module of `code`, which this loads if the context has none of just this code. The module's kernels have no
    /// variables: whoever uses the code shares them.
    ///
    /// # Safety
    /// `code` is a complete image for the device.
    pub unsafe fn load(gpu: &Arc<Gpu>, code: &[u8]) -> Result<Arc<Self>, CUresult> {
        if let Some(module) = Self::loaded(gpu).into_iter().find(|module| module.code == code) {
            kept_memory::keep_module(gpu, &(module.clone() as Arc<dyn Any + Send + Sync>));
            return Ok(module);
        }
        let _current = gpu.enter().map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let mut module = ptr::null_mut();
        // SAFETY: the caller's promise; a handle is stored.
        match unsafe { sys::cuModuleLoadData(&mut module, code.as_ptr().cast()) } {
            CUresult::CUDA_SUCCESS => {}
            code => return Err(code),
        }
        let module = Arc::new(Self { module, code: code.to_vec(), gpu: gpu.clone() });
        LOADED.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&module));
        kept_memory::keep_module(gpu, &(module.clone() as Arc<dyn Any + Send + Sync>));
        Ok(module)
    }

    /// CUDA's handle, valid while this lives.
    pub fn handle(&self) -> CUmodule {
        self.module
    }

    /// The modules of the context of `gpu`.
    fn loaded(gpu: &Gpu) -> Vec<Arc<Self>> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|module| module.strong_count() > 0);
        let modules: Vec<Arc<Self>> = loaded.iter().filter_map(Weak::upgrade).collect();
        // Modules of other contexts may be dropped here: not while the lock is held.
        drop(loaded);
        modules.into_iter().filter(|module| module.gpu.shares_context(gpu)).collect()
    }
}

impl Drop for KernelModule {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: loaded once, unloaded once. Launches have ended: whoever made them sees to it.
        unsafe { sys::cuModuleUnload(self.module) };
    }
}
