//! Doorbells that are registers of a device, registered with CUDA once for all queues of a controller (placement B).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUresult};
use warprow_dma::{FunctionError, Mmio, PAGE};
use warprow_driver::Controller;
use warprow_spec::registers::offset::DOORBELLS;

use crate::address_space::AddressSpace;
use crate::capture_mode::RelaxedCapture;
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
    /// unregistering ends that (docs/gpu-rings.md). Dropped after [`Drop::drop`] has unregistered them.
    registers: Mmio,
    address: u64,
    by: Arc<dyn Registrar>,
}

/// Who makes pages of a device reachable for kernels, and takes them back: the context of a GPU.
trait Registrar: fmt::Debug + Send + Sync {
    /// Whether this is the context of that GPU.
    fn is_of(&self, gpu: &Gpu) -> bool;

    /// Registers the pages.
    fn register(&self, registers: &Mmio) -> Result<(), Refusal>;

    /// The address of registered pages, for kernels.
    fn address(&self, registers: &Mmio) -> Result<u64, Refusal>;

    /// Undoes [`register`](Self::register).
    fn unregister(&self, registers: &Mmio) -> CUresult;
}

impl DoorbellRegisters {
    /// The registers of all queues that the controller granted, and no register before them.
    /// [`GpuQueueError::DoorbellRegisters`] where they cannot be had.
    pub(crate) fn of(controller: &Controller, side: &AddressSpace) -> Result<Self, GpuQueueError> {
        let refuse = |why| GpuQueueError::DoorbellRegisters { function: controller.name().to_string(), why };
        let all = match controller.function().doorbell_registers() {
            Ok(mapped) => mapped.ok_or_else(|| refuse(RegisterRefusal::Unmapped))?,
            Err(gone @ FunctionError::Gone { .. }) => return Err(gone.into()),
            Err(error) => {
                tracing::warn!(%error, "the memory space of the function cannot be turned on");
                return Err(refuse(RegisterRefusal::MemorySpaceOff));
            }
        };
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
            Some((shared, _)) if !shared.by.is_of(gpu) || shared.registers.len() < registers.len() => {
                return Err(refuse(RegisterRefusal::AlreadyRegistered));
            }
            Some((shared, users)) => {
                *users += 1;
                shared.address
            }
            None => {
                let shared = Registered::new(gpu.clone(), registers.clone()).map_err(|error| match error {
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
#[derive(Debug)]
enum Refusal {
    Why(RegisterRefusal),
    Other(GpuQueueError),
}

impl Registered {
    fn new(by: Arc<dyn Registrar>, registers: Mmio) -> Result<Self, Refusal> {
        by.register(&registers)?;
        let mut registered = Self { registers, address: 0, by };
        registered.address = registered.by.address(&registered.registers)?;
        Ok(registered)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let code = self.by.unregister(&self.registers);
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

impl Registrar for Gpu {
    fn is_of(&self, gpu: &Gpu) -> bool {
        self.context() == gpu.context()
    }

    fn register(&self, registers: &Mmio) -> Result<(), Refusal> {
        let _current = self.enter().map_err(Refusal::Other)?;
        let _relaxed = RelaxedCapture::new();
        // CUDA follows the pages that are there, and VFIO makes them when they are first touched. A host should not
        // read doorbells; what it reads is vendor specific (NVMe PCIe Transport 1.0, 3.1.2). The last word of a page
        // mostly belongs to no queue.
        for page in (0..registers.len()).step_by(PAGE) {
            registers.read_u32(page + PAGE - 4);
        }
        // Of these two flags it is known that they work together (docs/gpu-rings.md); the registration is this
        // context's.
        let flags = sys::CU_MEMHOSTREGISTER_IOMEMORY | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the pages are mapped for as long as `registers` lives, which is until they are unregistered.
        let code = unsafe { sys::cuMemHostRegister_v2(registers.as_ptr().cast(), registers.len(), flags) };
        match code {
            CUresult::CUDA_SUCCESS => Ok(()),
            CUresult::CUDA_ERROR_NOT_PERMITTED => Err(Refusal::Why(RegisterRefusal::NotPermitted)),
            CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
                Err(Refusal::Why(RegisterRefusal::AlreadyRegistered))
            }
            code => Err(Refusal::Why(RegisterRefusal::Refused(code))),
        }
    }

    fn address(&self, registers: &Mmio) -> Result<u64, Refusal> {
        let _current = self.enter().map_err(Refusal::Other)?;
        let mut address = 0;
        // SAFETY: the pages are registered; it stores an address.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, registers.as_ptr().cast(), 0) };
        crate::error::cuda("the address of doorbell registers", code).map_err(Refusal::Other)?;
        Ok(address)
    }

    fn unregister(&self, registers: &Mmio) -> CUresult {
        match self.enter() {
            Ok(_current) => {
                let _relaxed = RelaxedCapture::new();
                // SAFETY: registered once, unregistered once.
                unsafe { sys::cuMemHostUnregister(registers.as_ptr().cast()) }
            }
            Err(GpuQueueError::ContextLost { code, .. } | GpuQueueError::Cuda { code, .. }) => code,
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        }
    }
}

/// Bytes of a page of the kernel's.
fn page_bytes() -> usize {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(PAGE)
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use warprow_dma::{DmaMemory, MemoryKind};

    use super::*;

    type Events = Arc<Mutex<Vec<&'static str>>>;

    fn note(events: &Events, event: &'static str) {
        events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// A registrar that notes what it is asked for, and answers that pages are unregistered like this.
    #[derive(Debug)]
    struct Noting {
        events: Events,
        unregistered: CUresult,
        has_address: bool,
    }

    impl Registrar for Noting {
        fn is_of(&self, _: &Gpu) -> bool {
            false
        }
        fn register(&self, _: &Mmio) -> Result<(), Refusal> {
            note(&self.events, "registered");
            Ok(())
        }
        fn address(&self, _: &Mmio) -> Result<u64, Refusal> {
            self.has_address.then_some(1 << 40).ok_or(Refusal::Why(RegisterRefusal::NotPermitted))
        }
        fn unregister(&self, _: &Mmio) -> CUresult {
            note(&self.events, "unregistered");
            self.unregistered
        }
    }

    /// What keeps the mapping, and with it the device open.
    struct Mapping {
        events: Events,
        memory: DmaMemory,
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            note(&self.events, "closed");
        }
    }

    /// Registers a page and drops the registration, after everybody else has let go of the mapping.
    fn events(unregistered: CUresult, has_address: bool) -> Vec<&'static str> {
        let events = Events::default();
        let mapping = Mapping { events: events.clone(), memory: DmaMemory::allocate(PAGE, MemoryKind::Auto).unwrap() };
        let base = NonNull::new(mapping.memory.as_ptr()).unwrap();
        // SAFETY: the owner that is handed over keeps the memory, which nothing reaches by a reference.
        let registers = unsafe { Mmio::new(base, PAGE, Arc::new(mapping)) };
        let by = Arc::new(Noting { events: events.clone(), unregistered, has_address });
        let registered = Registered::new(by, registers);
        assert_eq!(registered.is_ok(), has_address);
        drop(registered);
        events.lock().unwrap().clone()
    }

    /// A kernel's store still arrives after `munmap`: so the pages are unregistered first, and only then may VFIO let the device go.
    #[test]
    fn a_device_is_closed_after_its_registers_are_unregistered() {
        let all = ["registered", "unregistered", "closed"];
        assert_eq!(events(CUresult::CUDA_SUCCESS, true), all);
        assert_eq!(events(CUresult::CUDA_SUCCESS, false), all, "also if kernels get no address");
        // No kernel of a lost context runs.
        assert_eq!(events(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, true), all);
        // If CUDA keeps the registration, the device stays open.
        assert_eq!(events(CUresult::CUDA_ERROR_INVALID_VALUE, true), all[..2]);
    }
}
