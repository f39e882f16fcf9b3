//! Modules of kernels, loaded into CUDA contexts.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::sys::{self, CUfunction, CUmodule, CUresult};

use crate::Gpu;
use crate::capture_mode::RelaxedCapture;

/// The modules that are loaded. The lock is held while one is loaded, so that no code is loaded twice.
static LOADED: Mutex<Loaded> = Mutex::new(Loaded { kept: Vec::new(), held: Vec::new() });

/// A module of kernels in a CUDA context.
///
/// A module of a GPU's primary context stays loaded for as long as this context is there: CUDA's driver leaves about
/// 100 KiB of host memory with each load, look-up of functions and unload, and both a load and an unload hold kernels
/// up. So code that a context has already is not loaded again, and a context has no more modules than there are
/// different pieces of code. A module of a context that somebody else made is unloaded when its last handle is dropped.
#[derive(Debug)]
pub struct KernelModule {
    module: CUmodule,
    code: Vec<u8>,
    place: Place,
    /// The functions that were asked for, all loaded.
    functions: Mutex<BTreeMap<CString, Function>>,
    /// The GPU whose context the module is unloaded from when this is dropped: none, if it stays with a primary context.
    unloads: Option<Arc<Gpu>>,
}

/// The context that a module is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    device: i32,
    /// CUDA's number of the context. No two contexts of a process have one number, also where a later one has the address
    /// of one that is gone.
    context: u64,
}

#[derive(Clone, Copy, Debug)]
struct Function(CUfunction);

// SAFETY: CUDA's handles may be used from any thread.
unsafe impl Send for Function {}

// SAFETY: CUDA's handles may be used from any thread.
unsafe impl Send for KernelModule {}
// SAFETY: as above.
unsafe impl Sync for KernelModule {}

#[derive(Debug)]
struct Loaded {
    /// Modules of primary contexts.
    kept: Vec<Arc<KernelModule>>,
    /// Modules of other contexts.
    held: Vec<Weak<KernelModule>>,
}

impl Loaded {
    /// Forgets modules of primary contexts of this device that are gone: CUDA unloaded them with the context. A device has
    /// one primary context at a time.
    fn forget_former(&mut self, now: Place) {
        self.kept.retain(|module| module.place.device != now.device || module.place.context == now.context);
    }

    /// The module of `code` in a context, if there is one.
    fn find(&mut self, place: Place, code: &[u8]) -> Option<Arc<KernelModule>> {
        self.held.retain(|module| module.strong_count() > 0);
        let held = self.held.iter().filter_map(Weak::upgrade);
        // One of these handles may be the last by now. To unload the module takes no lock of ours.
        self.kept.iter().cloned().chain(held).find(|module| module.place == place && module.code == code)
    }
}

fn loaded() -> MutexGuard<'static, Loaded> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KernelModule {
    /// The module of `code`, which this loads if the context has none of just this code. The module's kernels have no
    /// variables: whoever uses the code shares them.
    ///
    /// # Safety
    /// `code` is a complete image for the device.
    pub unsafe fn load(gpu: &Arc<Gpu>, code: &[u8]) -> Result<Arc<Self>, CUresult> {
        let place = Place { device: gpu.device(), context: gpu.context_number() };
        let mut loaded = loaded();
        if gpu.is_primary() {
            loaded.forget_former(place);
        }
        if let Some(module) = loaded.find(place, code) {
            return Ok(module);
        }
        let _current = gpu.enter().map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        let _relaxed = RelaxedCapture::new();
        let mut module = ptr::null_mut();
        // SAFETY: the caller's promise; a handle is stored.
        match unsafe { sys::cuModuleLoadData(&mut module, code.as_ptr().cast()) } {
            CUresult::CUDA_SUCCESS => {}
            code => return Err(code),
        }
        let unloads = (!gpu.is_primary()).then(|| gpu.clone());
        let module = Arc::new(Self { module, code: code.to_vec(), place, functions: Mutex::default(), unloads });
        match module.unloads {
            None => loaded.kept.push(module.clone()),
            Some(_) => loaded.held.push(Arc::downgrade(&module)),
        }
        Ok(module)
    }

    /// How many modules stay loaded in primary contexts.
    pub fn kept() -> usize {
        loaded().kept.len()
    }

    /// The kernel of that name, loaded now if it was not asked for before: CUDA would else load it at its first launch, and
    /// could wait for others to end. The module's context is current.
    pub fn function(&self, name: &CStr) -> Result<CUfunction, CUresult> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(name) {
            return Ok(function.0);
        }
        let _relaxed = RelaxedCapture::new();
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded while its context is there; the name ends with a zero; a handle is stored.
        match unsafe { sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr()) } {
            CUresult::CUDA_SUCCESS => {}
            code => return Err(code),
        }
        // SAFETY: the function is one of the module's.
        match unsafe { sys::cuFuncLoad(function) } {
            CUresult::CUDA_SUCCESS => {}
            code => return Err(code),
        }
        functions.insert(name.to_owned(), Function(function));
        Ok(function)
    }
}

impl Drop for KernelModule {
    fn drop(&mut self) {
        let Some(gpu) = &self.unloads else { return };
        let Ok(_current) = gpu.enter() else { return };
        // SAFETY: loaded once, unloaded once. Launches have ended: whoever made them sees to it.
        unsafe { sys::cuModuleUnload(self.module) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(device: i32, context: u64, code: &[u8]) -> Arc<KernelModule> {
        let place = Place { device, context };
        let functions = Mutex::default();
        Arc::new(KernelModule { module: ptr::null_mut(), code: code.to_vec(), place, functions, unloads: None })
    }

    #[test]
    fn a_module_is_found_by_its_context_and_all_of_its_code() {
        let mut loaded = Loaded { kept: vec![module(0, 1, b"one"), module(1, 2, b"one")], held: Vec::new() };
        let of_other = module(0, 3, b"one");
        loaded.held.push(Arc::downgrade(&of_other));
        let mut found = |device, context, code: &[u8]| loaded.find(Place { device, context }, code);
        for (device, context) in [(0, 1), (1, 2), (0, 3)] {
            assert_eq!(found(device, context, b"one").unwrap().place, Place { device, context });
        }
        assert!(found(0, 1, b"two").is_none() && found(0, 2, b"one").is_none());
        drop(of_other);
        assert!(found(0, 3, b"one").is_none(), "nobody holds it any more");
        assert!(loaded.held.is_empty());
    }

    #[test]
    fn modules_go_with_their_device_s_primary_context() {
        let kept = vec![module(0, 1, b"one"), module(0, 1, b"two"), module(1, 2, b"one")];
        let mut loaded = Loaded { kept, held: Vec::new() };
        loaded.forget_former(Place { device: 0, context: 1 });
        assert_eq!(loaded.kept.len(), 3);
        loaded.forget_former(Place { device: 0, context: 4 });
        assert_eq!(loaded.kept.iter().map(|module| module.place.device).collect::<Vec<_>>(), [1]);
    }
}
