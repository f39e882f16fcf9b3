//! Doorbells that are registers of a device, registered with CUDA once for all queues of a controller (placement B).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUresult};
use warprow_dma::{Mmio, PAGE};
use warprow_driver::Controller;
use warprow_spec::registers::offset::DOORBELLS;

use crate::address_space::AddressSpace;
use crate::memory::Relaxed;
use crate::register_refusal::RegisterRefusal;
use crate::{Gpu, GpuQueueError, register_facts};

/// Doorbell registers that are registered, by their address in this process, with the number of their users. They are
/// shared because CUDA registers a page only once at a time.
static REGISTERED: Mutex<BTreeMap<usize, (Registered, usize)>> = Mutex::new(BTreeMap::new());

/// The map, locked: registering and unregistering take turns.
fn registered() -> MutexGuard<'static, BTreeMap<usize, (Registered, usize)>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The doorbells of one controller, where they are registers: one use of registered pages.
#[derive(Debug)]
pub(crate) struct DoorbellRegisters {
    address: u64,
    registers: Mmio,
    /// Whether this is counted as a user in [`REGISTERED`].
    counted: bool,
}

/// Pages of a device that kernels reach, until this is dropped.
#[derive(Debug)]
struct Registered {
    /// Keeps the pages mapped, and so the device open: a kernel's store still arrives after `munmap`, and only
    /// unregistering ends that (docs/gpu-rings.md).
    registers: Mmio,
    address: u64,
    gpu: Arc<Gpu>,
}

impl DoorbellRegisters {
    /// The registers of all queues that the controller granted, and no register before them.
    /// [`GpuQueueError::DoorbellRegisters`] where they cannot be had.
    pub(crate) fn of(controller: &Controller, side: &AddressSpace) -> Result<Self, GpuQueueError> {
        let refuse = |why| GpuQueueError::DoorbellRegisters { function: controller.name().to_string(), why };
        let all = controller.function().doorbell_registers().ok_or_else(|| refuse(RegisterRefusal::Unmapped))?;
        let needed = 2 * (u64::from(controller.granted_queue_pairs()) + 1) * controller.cap().doorbell_stride();
        let too_short = || refuse(RegisterRefusal::TooShort { mapped: all.len() as u64, needed });
        let bytes = usize::try_from(needed).map_err(|_| too_short())?.next_multiple_of(PAGE);
        let registers = all.part(0, bytes).ok_or_else(too_short)?;
        let start = registers.as_ptr() as usize;
        let AddressSpace::Gpu(gpu) = side else {
            return Ok(Self { address: start as u64, registers, counted: false });
        };
        if !start.is_multiple_of(page_bytes()) || !bytes.is_multiple_of(page_bytes()) {
            return Err(refuse(RegisterRefusal::LargePages));
        }
        if let Some(why) = register_facts::refusal(gpu)? {
            return Err(refuse(why));
        }
        let mut pages = registered();
        let address = match pages.get_mut(&start) {
            // One registration has one address, in the context that made it.
            Some((shared, _)) if shared.gpu.context() != gpu.context() || shared.registers.len() < registers.len() => {
                return Err(refuse(RegisterRefusal::AlreadyRegistered));
            }
            Some((shared, users)) => {
                *users += 1;
                shared.address
            }
            None => {
                let shared = Registered::new(gpu, registers.clone()).map_err(|error| match error {
                    Refusal::Why(why) => refuse(why),
                    Refusal::Other(error) => error,
                })?;
                let address = shared.address;
                pages.insert(start, (shared, 1));
                address
            }
        };
        Ok(Self { address, registers, counted: true })
    }

    /// The address, for whoever drives the queues, of the doorbell at `offset` of BAR0; `None` if that lies outside.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        let at = offset.checked_sub(DOORBELLS)?;
        self.registers.holds(usize::try_from(at).ok()?, 4).then_some(self.address + at)
    }
}

impl Drop for DoorbellRegisters {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        let mut pages = registered();
        let start = self.registers.as_ptr() as usize;
        if let Some((_, users)) = pages.get_mut(&start) {
            *users -= 1;
            if *users == 0 {
                // With the lock held: whoever registers them next finds them unregistered.
                pages.remove(&start);
            }
        }
    }
}

/// What came of a registration that failed.
enum Refusal {
    Why(RegisterRefusal),
    Other(GpuQueueError),
}

impl Registered {
    fn new(gpu: &Arc<Gpu>, registers: Mmio) -> Result<Self, Refusal> {
        let _current = gpu.enter().map_err(Refusal::Other)?;
        let _relaxed = Relaxed::new();
        // CUDA follows the pages that are there, and VFIO makes them when they are first touched. A host should not
        // read doorbells; what it reads is vendor specific (NVMe PCIe Transport 1.0, 3.1.2). The last word of a page
        // mostly belongs to no queue.
        for page in (0..registers.len()).step_by(PAGE) {
            registers.read_u32(page + PAGE - 4);
        }
        // Of these two flags it is known that they work together (docs/gpu-rings.md); the registration is this
        // context's.
        let flags = sys::CU_MEMHOSTREGISTER_IOMEMORY | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let at = registers.as_ptr().cast();
        // SAFETY: the pages are mapped for as long as `registers` lives, which is until they are unregistered.
        let why = match unsafe { sys::cuMemHostRegister_v2(at, registers.len(), flags) } {
            CUresult::CUDA_SUCCESS => None,
            CUresult::CUDA_ERROR_NOT_PERMITTED => Some(RegisterRefusal::NotPermitted),
            CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => Some(RegisterRefusal::AlreadyRegistered),
            code => Some(RegisterRefusal::Refused(code)),
        };
        if let Some(why) = why {
            return Err(Refusal::Why(why));
        }
        let mut registered = Self { registers, address: 0, gpu: gpu.clone() };
        // SAFETY: the pages were just registered; it stores an address.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut registered.address, at, 0) };
        crate::error::cuda("the address of doorbell registers", code).map_err(Refusal::Other)?;
        Ok(registered)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let code = match self.gpu.enter() {
            Ok(_current) => {
                let _relaxed = Relaxed::new();
                // SAFETY: registered once, unregistered once.
                unsafe { sys::cuMemHostUnregister(self.registers.as_ptr().cast()) }
            }
            Err(GpuQueueError::ContextLost { code, .. } | GpuQueueError::Cuda { code, .. }) => code,
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        };
        // No kernel of a lost context runs, so nobody stores to the pages then.
        let is_over = crate::error::stops_kernels(code);
        if code != CUresult::CUDA_SUCCESS && !is_over {
            tracing::error!(
                ?code,
                "doorbell registers cannot be unregistered: their device stays open until this process ends"
            );
            std::mem::forget(self.registers.clone());
        }
    }
}

/// Bytes of a page of the kernel's.
fn page_bytes() -> usize {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(PAGE)
}
