//! A GPU with its CUDA context, and the few facts about it that the other crates need.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute_enum as Attribute, CUresult};

use crate::GpuQueueError;
use crate::error::cuda;

/// The CUDA version that the driver has to have, as `cuDriverGetVersion` gives it: 1000 × major + 10 × minor.
const DRIVER_NEEDED: i32 = 13_000;

/// A GPU with a context on it.
#[derive(Debug)]
pub struct Gpu {
    device: CUdevice,
    context: CUcontext,
    /// CUDA's number of the context, of which a process never has two alike.
    context_number: u64,
    /// Whether this retained the primary context, and so has to release it.
    retained: bool,
    name: String,
    driver_version: i32,
    capability: (u32, u32),
    sms: u32,
}

// SAFETY: CUDA's handles may be used from any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// While this lives, a GPU's context is current on the thread that called [`Gpu::enter`].
#[derive(Debug)]
pub struct CurrentContext {
    /// The type is a raw pointer's, so that the value stays on its thread.
    _here: std::marker::PhantomData<*mut ()>,
}

/// Initialises CUDA, and returns the CUDA version that the driver supports: 1000 × major + 10 × minor. Never panics
/// where there is no CUDA.
fn initialise() -> Result<i32, GpuQueueError> {
    // SAFETY: it looks for a library and calls nothing in it.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuQueueError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the library is there; it stores a number.
    cuda("its version", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    if version < DRIVER_NEEDED {
        return Err(GpuQueueError::DriverTooOld { version });
    }
    // SAFETY: the library is there.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_ERROR_NO_DEVICE => Err(GpuQueueError::NoDevice { ordinal: 0, count: 0 }),
        code => cuda("initialisation", code).map(|()| version),
    }
}

impl Gpu {
    /// How many GPUs there are; 0 also where there is no CUDA at all.
    pub fn count() -> u32 {
        let mut count = 0;
        let initialised = initialise().is_ok();
        // SAFETY: CUDA is initialised; it stores a number.
        let counted = initialised && unsafe { sys::cuDeviceGetCount(&mut count) } == CUresult::CUDA_SUCCESS;
        if counted { u32::try_from(count).unwrap_or(0) } else { 0 }
    }

    /// GPU number `ordinal`, with its primary context: the one that PyTorch and the CUDA runtime use.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, GpuQueueError> {
        let driver_version = initialise()?;
        let (mut count, mut device, mut context) = (0, 0, ptr::null_mut());
        // SAFETY: CUDA is initialised; it stores a number.
        cuda("the number of GPUs", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        let number = i32::try_from(ordinal).ok().filter(|number| *number < count);
        let number = number.ok_or(GpuQueueError::NoDevice { ordinal, count })?;
        // SAFETY: there is such a device; it stores a handle.
        cuda("the GPU", unsafe { sys::cuDeviceGet(&mut device, number) })?;
        // SAFETY: the device is one; it stores a handle, which is released when this is dropped.
        cuda("its primary context", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        Self::with(device, context, true, driver_version)
    }

    /// The GPU of a CUDA context that the caller made.
    ///
    /// # Safety
    /// `context` is a context of CUDA's, and outlives the result.
    pub unsafe fn of_context(context: CUcontext) -> Result<Arc<Self>, GpuQueueError> {
        let driver_version = initialise()?;
        let mut device = 0;
        // SAFETY: the caller's promise.
        cuda("the context", unsafe { sys::cuCtxPushCurrent_v2(context) })?;
        let _current = CurrentContext { _here: std::marker::PhantomData };
        // SAFETY: a context is current; it stores a handle.
        cuda("the context's GPU", unsafe { sys::cuCtxGetDevice(&mut device) })?;
        Self::with(device, context, false, driver_version)
    }

    fn with(
        device: CUdevice,
        context: CUcontext,
        retained: bool,
        driver_version: i32,
    ) -> Result<Arc<Self>, GpuQueueError> {
        let mut gpu = Self {
            device,
            context,
            context_number: 0,
            retained,
            name: String::new(),
            driver_version,
            capability: (0, 0),
            sms: 0,
        };
        // SAFETY: the context is one; it stores a number.
        cuda("the context's number", unsafe { sys::cuCtxGetId(context, &mut gpu.context_number) })?;
        gpu.capability = (
            gpu.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            gpu.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        gpu.sms = gpu.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let mut name = [0u8; 256];
        // SAFETY: the buffer is as long as is said.
        cuda("its name", unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device) })?;
        gpu.name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        Ok(Arc::new(gpu))
    }

    pub(crate) fn attribute(&self, attribute: Attribute) -> Result<u32, GpuQueueError> {
        let mut value = 0;
        // SAFETY: the device is one; it stores a number.
        cuda("an attribute of the GPU", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Makes the context current on this thread, until the result is dropped.
    pub fn enter(&self) -> Result<CurrentContext, GpuQueueError> {
        // SAFETY: the context lives as long as this.
        cuda("the context", unsafe { sys::cuCtxPushCurrent_v2(self.context) })?;
        Ok(CurrentContext { _here: std::marker::PhantomData })
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    /// Tells the context from all others that the process has or had, also from one that lay at its address.
    pub(crate) fn context_number(&self) -> u64 {
        self.context_number
    }

    /// Whether the context is the GPU's primary one, and not one that the caller made.
    pub(crate) fn is_primary(&self) -> bool {
        self.retained
    }

    /// Lets kernels of this context read and write memory of another GPU's context; whether they can.
    pub fn reach(&self, other: &Self) -> Result<bool, GpuQueueError> {
        if self.context_number == other.context_number {
            return Ok(true);
        }
        if self.device != other.device {
            let mut can = 0;
            // SAFETY: both are devices; it stores a number.
            cuda("whether GPUs reach each other", unsafe {
                sys::cuDeviceCanAccessPeer(&mut can, self.device, other.device)
            })?;
            if can == 0 {
                return Ok(false);
            }
        }
        let _current = self.enter()?;
        // SAFETY: the context is current, and the other is a context.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            code => cuda("reaching another GPU's memory", code).map(|()| true),
        }
    }

    /// Waits until everything that anybody launched in the context has ended.
    pub fn synchronize(&self) -> Result<(), GpuQueueError> {
        let _current = self.enter()?;
        // SAFETY: the context is current.
        cuda("waiting for the GPU", unsafe { sys::cuCtxSynchronize() })
    }

    /// The CUDA context that this GPU is used with.
    pub fn context(&self) -> CUcontext {
        self.context
    }

    /// The model's name, as NVIDIA has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compute capability, major and minor.
    pub fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// How many streaming multiprocessors the GPU has.
    pub fn sms(&self) -> u32 {
        self.sms
    }

    /// The CUDA version that the driver supports: 1000 × major + 10 × minor.
    pub fn driver_version(&self) -> i32 {
        self.driver_version
    }

    /// The GPU's PCI address, as `0000:41:00.0`.
    pub fn pci_address(&self) -> Result<String, GpuQueueError> {
        let mut text = [0u8; 32];
        // SAFETY: the buffer is as long as is said.
        cuda("its address", unsafe {
            sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, self.device)
        })?;
        Ok(String::from_utf8_lossy(&text).trim_end_matches('\0').to_lowercase())
    }

    /// Bytes of GPU memory: those that are free, and all.
    pub fn memory(&self) -> Result<(u64, u64), GpuQueueError> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; it stores two numbers.
        cuda("its memory", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.retained {
            // SAFETY: it was retained once.
            unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: the context was pushed on this thread, and what was pushed later has been popped.
        unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_cuda_gets_an_error_and_no_panic() {
        match Gpu::open(0) {
            Ok(gpu) => {
                assert!(gpu.sms() > 0 && !gpu.name().is_empty() && gpu.capability().0 >= 5);
                assert!(Gpu::count() > 0);
                assert!(matches!(Gpu::open(1 << 20), Err(GpuQueueError::NoDevice { .. })));
            }
            Err(error) => {
                assert_eq!(Gpu::count(), 0);
                assert!(!error.to_string().is_empty());
            }
        }
    }
}
