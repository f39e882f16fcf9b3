//! Long admin commands are slept for: the server's interrupt ends the sleep.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warprow_dma::{AllocateError, Clock, DmaMemory, Doorbell, Function, FunctionError, Interrupt, SystemClock};
use warprow_driver::{Controller, DriverError, FormatRequest, Options, ResetKind};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::AdminOpcode;
use warprow_vfio_user::VfioUserFunction;

use crate::rig::{Served, drive, works};

/// A clock that counts how often somebody sleeps on it.
#[derive(Default)]
struct Counting(SystemClock, AtomicU64);

impl Clock for Counting {
    fn now(&self) -> Duration {
        self.0.now()
    }
    fn relax(&self, turn: u32) {
        self.0.relax(turn);
    }
    fn sleep(&self, duration: Duration) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.sleep(duration);
    }
}

/// A function whose interrupts are counted, or that never gives any.
struct Overheard {
    inner: Arc<VfioUserFunction>,
    counted: Arc<Counted>,
}

struct Counted {
    inner: Arc<dyn Interrupt>,
    mute: bool,
    woken: AtomicU64,
    waits: AtomicU64,
}

impl fmt::Debug for Overheard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overheard")
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

impl Interrupt for Counted {
    fn wait(&self, at_most: Duration) -> bool {
        self.waits.fetch_add(1, Ordering::Relaxed);
        if self.mute {
            std::thread::sleep(at_most);
            return false;
        }
        let woken = self.inner.wait(at_most);
        self.woken.fetch_add(woken.into(), Ordering::Relaxed);
        woken
    }
}

impl Function for Overheard {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.inner.read_u32(offset)
    }
    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.inner.read_u64(offset)
    }
    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.inner.write_u32(offset, value)
    }
    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        self.inner.write_u64(offset, value)
    }
    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError> {
        self.inner.doorbell(offset)
    }
    fn allocate(&self, len: usize) -> Result<DmaMemory, AllocateError> {
        self.inner.allocate(len)
    }
    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
        self.inner.map(memory)
    }
    fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
        self.inner.unmap(iova)
    }
    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
        self.inner.set_bus_master(enabled)
    }
    fn reset(&self) -> Result<(), FunctionError> {
        self.inner.reset()
    }
    fn interrupt(&self) -> Result<Arc<dyn Interrupt>, FunctionError> {
        Ok(self.counted.clone())
    }
}

/// What formats take.
const FORMAT: Duration = Duration::from_millis(450);

struct Rig {
    controller: Arc<Controller>,
    counted: Arc<Counted>,
    clock: Arc<Counting>,
    served: Served,
}

impl Rig {
    fn new(mute: bool, options: Options) -> Self {
        let served = Served::new(drive().format_time(FORMAT));
        let inner = served.connect();
        let event = inner.interrupt().expect("the server has vectors");
        let counted = Arc::new(Counted { inner: event, mute, woken: AtomicU64::new(0), waits: AtomicU64::new(0) });
        let function = Arc::new(Overheard { inner, counted: counted.clone() });
        let clock = Arc::new(Counting::default());
        let controller = Controller::open(function, clock.clone(), options).expect("a controller");
        Self { controller, counted, clock, served }
    }

    /// Formats; how long it took, and how often the clock was slept on.
    fn format(&self) -> (Duration, u64) {
        let (began, slept) = (Instant::now(), self.clock.1.load(Ordering::Relaxed));
        self.controller.format(&FormatRequest::new(1, 512), |_| {}).expect("a format");
        (began.elapsed(), self.clock.1.load(Ordering::Relaxed) - slept)
    }

    fn waits(&self) -> u64 {
        self.counted.waits.load(Ordering::Relaxed)
    }

    fn woken(&self) -> u64 {
        self.counted.woken.load(Ordering::Relaxed)
    }
}

#[test]
fn a_format_is_slept_for_and_its_end_wakes() {
    let rig = Rig::new(false, Options::default());
    assert_eq!(rig.waits(), 0, "polling is the default");
    for kind in [None, Some(ResetKind::Controller), Some(ResetKind::Function)] {
        if let Some(kind) = kind {
            rig.controller.reset(kind).expect("a reset");
        }
        let (waits, woken) = (rig.waits(), rig.woken());
        let (took, slept) = rig.format();
        assert!(took >= FORMAT, "{kind:?}: {took:?}");
        assert!(rig.woken() > woken, "{kind:?}: no interrupt came");
        let waits = rig.waits() - waits;
        // A look each 100 ms, for each interrupt, and a few for the Identify commands around it.
        assert!(waits < 20 && slept < 20, "{kind:?}: {waits} waits, {slept} sleeps");
    }
    // Other commands are polled for.
    let waits = rig.waits();
    rig.controller.smart_log().expect("a log page");
    assert_eq!(rig.waits(), waits);
}

#[test]
fn interrupts_that_never_come_cost_little() {
    let rig = Rig::new(true, Options::default());
    let (took, _) = rig.format();
    assert!(took < FORMAT + Duration::from_secs(2), "{took:?}");
    assert!(rig.waits() >= 4, "{} waits", rig.waits());
}

#[test]
fn a_wait_on_an_interrupt_ends_in_time_or_when_the_drive_is_gone() {
    let limit = Duration::from_millis(400);
    let options = Options { admin_timeout: limit, admin_interrupts: true, ..Options::default() };
    let rig = Rig::new(false, options);
    let faults = rig.served.drive.faults();
    faults.inject(Rule::new(Fault::Swallow).admin(AdminOpcode::GET_LOG_PAGE));
    let began = Instant::now();
    let error = rig.controller.smart_log().unwrap_err();
    assert!(matches!(error, DriverError::TimedOut { .. }), "{error}");
    assert!((limit..limit * 10).contains(&began.elapsed()) && rig.waits() > 0, "{:?}", began.elapsed());
    faults.inject(Rule::new(Fault::Disappear).admin(AdminOpcode::GET_LOG_PAGE));
    let error = rig.controller.smart_log().unwrap_err();
    assert!(matches!(error, DriverError::Gone { .. }), "{error}");
}

#[test]
fn the_event_is_the_same_for_all_who_ask() {
    let served = Served::new(drive());
    let function = served.connect();
    let (one, other) = (function.interrupt().expect("one"), function.interrupt().expect("the same"));
    assert!(Arc::ptr_eq(&one, &other));
    // Whoever has it does not hold the function.
    works(function, 71);
    assert!(one.wait(Duration::ZERO), "admin completions announce themselves");
}
