use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::Duration;

use warprow_dma::{Clock, Function, Interrupt, MappedMemory};
use warprow_spec::identify::{Cns, ControllerType, IdentifyController};
use warprow_spec::registers::{Cap, Vs, cq_head_doorbell, sq_tail_doorbell};
use warprow_spec::{Cqe, Sqe};

use crate::admin_queue::{self, AdminQueue};
use crate::enable::{self, AdminPlace};
use crate::error::DriverError;
use crate::host_memory::Loan;
use crate::identity::Identity;
use crate::late::LateWrites;
use crate::patience::Patience;
use crate::queue::{Queues, Ring, RingMemory};
use crate::recovery::Recovery;
use crate::registers::Registers;

/// How to drive a controller.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// I/O queue pairs to ask for; the controller may grant fewer.
    pub queue_pairs: u16,
    /// The longest wait for an admin command other than Format NVM.
    pub admin_timeout: Duration,
    /// The longest wait, in a reset, until the owners of queue pairs have let go of them: until each can ring no
    /// doorbell any more ([`QueuePair::leave`](crate::QueuePair::leave)).
    pub leave_timeout: Duration,
    /// The shortest time that a shutdown is given; the drive may ask for more (RTD3E).
    pub shutdown_timeout: Duration,
    /// Most bytes of this host's memory that a drive is lent if it asks for some
    /// ([`HostMemory`](crate::HostMemory)); 0 for none.
    pub host_memory_limit: u64,
    /// Whether a drive may change its power state by itself when it is idle, and so answer late afterwards.
    pub autonomous_power_states: bool,
    /// Whether waits for admin commands sleep until an interrupt (MSI-X vector 0), where the transport has interrupts,
    /// instead of polling every few milliseconds. Waits for commands that may take a minute or more, such as Format
    /// NVM, always sleep so. A wait polls ten times a second nevertheless: an interrupt that does not come costs 100 ms
    /// at most.
    pub admin_interrupts: bool,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            queue_pairs: 128,
            admin_timeout: Duration::from_secs(30),
            leave_timeout: Duration::from_secs(2),
            shutdown_timeout: Duration::from_secs(10),
            host_memory_limit: 128 << 20,
            autonomous_power_states: false,
            admin_interrupts: false,
        }
    }
}

/// The word by which a reset tells the owners of queue pairs to leave: twice the number of resets, plus one while a
/// reset wants them to leave or the controller is given up.
#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicU64);

impl Gate {
    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.0.fetch_or(1, Ordering::SeqCst);
    }

    /// Opens the gate again after a reset that did not come about: owners that have not left may go on.
    pub(crate) fn reopen(&self) {
        self.0.fetch_and(!1, Ordering::SeqCst);
    }

    /// Counts a reset and opens the gate, for queue pairs that are created on the device from now on.
    pub(crate) fn advance(&self) {
        let now = self.0.load(Ordering::SeqCst);
        self.0.store((now | 1) + 1, Ordering::SeqCst);
    }
}

/// An NVMe controller that is being driven. Threads share it: admin commands are synchronous and may come from any
/// thread; each queue pair belongs to one thread at a time. Every method that sends an admin command fails as
/// [`admin`](Self::admin) does.
///
/// Dropping the last reference disables the controller. Power off only after [`shutdown`](Self::shutdown).
///
/// ```
/// use std::sync::Arc;
/// use warprow_driver::{Controller, ControllerOptions};
/// # use warprow_soft_controller::{Namespace, RamBacking, SoftController};
/// # let namespace = Namespace::new(RamBacking::new(16 << 20)?).lba(4096);
/// # let function = SoftController::builder().serial("S1").namespace(namespace).build()?;
///
/// let controller = Controller::open(function, Arc::new(warprow_dma::SystemClock::new()), ControllerOptions::default())?;
/// assert_eq!(controller.info().serial().to_string(), "S1");
/// let namespace = controller.namespace(1)?;
/// assert_eq!((namespace.bytes(), namespace.lba_bytes()), (16 << 20, 4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Controller {
    registers: Registers,
    identity: Arc<Identity>,
    clock: Arc<dyn Clock>,
    options: ControllerOptions,
    cap: Cap,
    version: Vs,
    pub(crate) gate: Gate,
    pub(crate) late: LateWrites,
    /// Where both are locked, this is locked before `admin`.
    pub(crate) queues: Mutex<Queues>,
    admin: Mutex<AdminQueue>,
    info: RwLock<Arc<IdentifyController>>,
    pub(crate) loan: Mutex<Loan>,
    pub(crate) recovery: Recovery,
    /// The function's interrupt, asked for when an admin command first sleeps; `None` where the transport has none.
    pub(crate) interrupt: OnceLock<Option<Arc<dyn Interrupt>>>,
    /// The admin queue's memory. `None` only after it was leaked, because the controller could not be made to stop
    /// reaching it.
    memory: Option<MappedMemory>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("function", &self.registers.name)
            .field("version", &format_args!("{}", self.version))
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// Takes a controller over from whatever state it is in: disables it, sets up the admin queue, enables it, asks for
    /// queues, identifies it, and arms its events (NVMe Base 2.0, 3.5.1; NVMe 1.4, 7.6.1).
    ///
    /// Fails with [`DriverError::Unusable`], [`DriverError::NotReady`], [`DriverError::Fatal`], [`DriverError::Gone`], as
    /// the transport does ([`DriverError::Function`], [`DriverError::Allocate`]), or as [`admin`](Self::admin) does. The
    /// controller is then left disabled.
    pub fn open(
        function: Arc<dyn Function>,
        clock: Arc<dyn Clock>,
        options: ControllerOptions,
    ) -> Result<Arc<Self>, DriverError> {
        let registers = Registers::new(function);
        let cap = enable::checked_cap(&registers)?;
        let version = registers.vs()?;
        // Bus master stays off until the controller has forgotten the queues of whoever drove it before.
        registers.set_bus_master(false, "taking it over")?;
        enable::disable_or_reset(&registers, &*clock, cap)?;

        let memory = registers.function.allocate(admin_queue::MEMORY_BYTES)?;
        let mapped = MappedMemory::new(registers.function.clone(), memory)?;
        let place = |at| RingMemory::new(mapped.memory().clone(), at);
        let bell = |offset| registers.function.doorbell(offset);
        let entries = u32::from(admin_queue::ENTRIES);
        let ring = Ring::new(
            0,
            (place(0), entries, bell(sq_tail_doorbell(0, cap.dstrd()))?),
            (place(admin_queue::CQ_AT), entries, bell(cq_head_doorbell(0, cap.dstrd()))?),
        );
        let controller = Self {
            identity: Arc::new(Identity::new(registers.name.clone())),
            registers,
            clock,
            options,
            cap,
            version,
            gate: Gate::default(),
            late: LateWrites::default(),
            queues: Mutex::default(),
            admin: Mutex::new(AdminQueue::new(ring)),
            info: RwLock::new(Arc::new(zeroed_info())),
            loan: Mutex::default(),
            recovery: Recovery::default(),
            interrupt: OnceLock::new(),
            memory: Some(mapped),
        };
        // From here on, an error drops the controller, which disables it.
        let granted = controller.start()?;
        controller.lock_queues().granted = granted;
        Ok(Arc::new(controller))
    }

    /// Enables a disabled controller and does what must be done before its first I/O queue. Returns the queue pairs
    /// granted.
    pub(crate) fn start(&self) -> Result<u16, DriverError> {
        let iova = self.admin_memory().iova();
        let place = AdminPlace { entries: admin_queue::ENTRIES, sq: iova, cq: iova + admin_queue::CQ_AT as u64 };
        enable::enable(&self.registers, &*self.clock, self.cap, &place)?;
        self.lock_admin().up = true;
        let granted = self.request_queues(self.options.queue_pairs, self.options.admin_timeout)?;
        let info: IdentifyController = self.identify(Cns::CONTROLLER, 0)?;
        self.check(&info)?;
        *self.info.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(info);
        self.lend_host_memory()?;
        self.set_power_transitions()?;
        self.enable_events()?;
        Ok(granted)
    }

    fn check(&self, info: &IdentifyController) -> Result<(), DriverError> {
        let unusable = |why| Err(DriverError::Unusable { function: self.name().clone(), why });
        if !matches!(info.cntrltype, ControllerType::NOT_REPORTED | ControllerType::IO) {
            return unusable(format!("it is of type {}, not an I/O controller", info.cntrltype));
        }
        let fits = |size: warprow_spec::identify::EntrySize, ours| size.required() <= ours && ours <= size.maximum();
        if !fits(info.sqes, Sqe::SIZE_LOG2) || !fits(info.cqes, Cqe::SIZE_LOG2) {
            return unusable("its queue entries cannot be of 64 and 16 bytes (SQES, CQES)".into());
        }
        Ok(())
    }

    /// The name of the function, as people write it; every error contains it.
    pub fn name(&self) -> &Arc<str> {
        &self.registers.name
    }

    /// Identify Controller, as of the last start or reset (NVMe Base 2.0, 5.17.2.1; NVMe 1.4, 5.15.2.2).
    pub fn info(&self) -> Arc<IdentifyController> {
        self.info.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Controller Capabilities.
    pub fn cap(&self) -> Cap {
        self.cap
    }

    /// The version of the specification that the controller claims.
    pub fn version(&self) -> Vs {
        self.version
    }

    /// I/O queue pairs that the controller granted.
    pub fn granted_queue_pairs(&self) -> u16 {
        self.lock_queues().granted
    }

    /// Most bytes of data that one command may move (MDTS); `None` for no limit.
    pub fn max_transfer_bytes(&self) -> Option<u64> {
        self.info().max_transfer_bytes(self.cap.min_page_bytes())
    }

    /// Allocates zeroed memory of at least `len` bytes and maps it for the controller. Give it to the queue pairs that
    /// use it ([`QueuePair::keep`](crate::QueuePair::keep)), so that it outlives the commands that name it. Fails with
    /// [`DriverError::Allocate`], [`DriverError::Function`] or [`DriverError::GivenUp`].
    pub fn allocate(&self, len: usize) -> Result<Arc<MappedMemory>, DriverError> {
        if self.failure().is_some() {
            return Err(self.down());
        }
        let memory = self.registers.function.allocate(len)?;
        Ok(Arc::new(MappedMemory::new(self.registers.function.clone(), memory)?))
    }

    /// The function that carries the controller.
    pub fn function(&self) -> &Arc<dyn Function> {
        &self.registers.function
    }

    /// The clock by which the controller is driven.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The options that the controller was opened with.
    pub fn options(&self) -> &ControllerOptions {
        &self.options
    }

    /// How often the controller has been reset since it was opened. Writes that it had completed and not flushed before
    /// a reset may be lost, and a Flush after the reset does not say so: whoever writes and then flushes compares this
    /// number before the first write and after the Flush.
    pub fn resets(&self) -> u64 {
        self.gate.now() >> 1
    }

    /// Fails while the device may still carry out a write, deallocation or format that timed out, or that was in a
    /// queue which the device did not delete: such a command would overwrite what is written now. Until that queue is
    /// deleted ([`QueuePair::recreate`](crate::QueuePair::recreate)) or the controller [`reset`](Self::reset), every
    /// queue pair refuses writes ([`PushError::LateWrites`](crate::PushError)).
    pub fn check_late_writes(&self) -> Result<(), DriverError> {
        match self.late.count() {
            0 => Ok(()),
            count => Err(DriverError::LateWrites { function: self.name().clone(), count }),
        }
    }

    /// Whether the controller answers ([`DriverError::Gone`]), is ready and reports no fatal error
    /// ([`DriverError::Fatal`]), and is enabled at all ([`DriverError::Down`], [`DriverError::GivenUp`]).
    pub fn check_health(&self) -> Result<(), DriverError> {
        if !self.lock_admin().up {
            return Err(self.down());
        }
        self.registers.health("a health check").map(drop)
    }

    /// The identity of this controller, which its namespaces and queue pairs carry.
    pub(crate) fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    pub(crate) fn registers(&self) -> &Registers {
        &self.registers
    }

    pub(crate) fn patience(&self, limit: Duration) -> Patience<'_> {
        Patience::new(&*self.clock, limit)
    }

    pub(crate) fn admin_memory(&self) -> &MappedMemory {
        self.memory.as_ref().expect("taken only when the controller is dropped")
    }

    pub(crate) fn lock_admin(&self) -> MutexGuard<'_, AdminQueue> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the admin queue, unless another thread has it locked.
    pub(crate) fn try_lock_admin(&self) -> Option<MutexGuard<'_, AdminQueue>> {
        match self.admin.try_lock() {
            Ok(admin) => Some(admin),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn lock_queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a call on a controller that is not enabled.
    pub(crate) fn down(&self) -> DriverError {
        let function = self.name().clone();
        match self.failure() {
            Some(failure) => DriverError::GivenUp { function, failure },
            None => DriverError::Down { function },
        }
    }

    /// Keeps the controller from reaching memory any more, by whatever works: CC.EN = 0, a reset of the function, or
    /// turning bus master off. `false` if none of these worked.
    fn quiesce(&self) -> bool {
        let disabled = match enable::disable_or_reset(&self.registers, &*self.clock, self.cap) {
            // A device that is not there writes nothing; if it comes back, it comes back without bus master.
            Ok(()) | Err(DriverError::Gone { .. }) => true,
            Err(error) => {
                tracing::error!(%error, "the controller could not be disabled");
                false
            }
        };
        let stopped = self.registers.function.set_bus_master(false).is_ok();
        disabled || stopped
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if !self.quiesce() {
            // The device may still write: this memory must never serve anything else.
            tracing::error!(function = %self.registers.name, "leaking the memory that the device may still write");
            std::mem::forget(self.memory.take());
            std::mem::forget(std::mem::take(self.loan.get_mut().unwrap_or_else(PoisonError::into_inner)));
            let queues = self.queues.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(&mut queues.retained));
        }
    }
}

fn zeroed_info() -> IdentifyController {
    use warprow_spec::FromZeros;
    IdentifyController::new_zeroed()
}
