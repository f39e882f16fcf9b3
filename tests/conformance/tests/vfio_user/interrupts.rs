//! Long admin commands are slept for: the server's interrupt ends the sleep.

use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use warprow_conformance::{CHECKS, Subject, Verdict};
use warprow_dma::{AllocateError, Clock, DmaMemory, Doorbell, Function, FunctionError, Interrupt, SystemClock};
use warprow_driver::{Controller, ControllerOptions, DriverError, FormatRequest, ResetKind};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::AdminOpcode;
use warprow_vfio_user::VfioUserFunction;
use warprow_vfio_user_proto::wire::{IrqSet, command, irq_set_flags};
use warprow_vfio_user_proto::{Channel, ChannelError};
use zerocopy::{FromBytes, IntoBytes};

use crate::fixture::{Served, drive, works};

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

struct Fixture {
    controller: Arc<Controller>,
    counted: Arc<Counted>,
    clock: Arc<Counting>,
    served: Served,
}

impl Fixture {
    fn new(mute: bool, options: ControllerOptions) -> Self {
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
        let began = Instant::now();
        let slept = self.clock.1.load(Ordering::Relaxed);
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
    let fixture = Fixture::new(false, ControllerOptions::default());
    assert_eq!(fixture.waits(), 0, "polling is the default");
    for kind in [None, Some(ResetKind::Controller), Some(ResetKind::Function)] {
        if let Some(kind) = kind {
            fixture.controller.reset(kind).expect("a reset");
        }
        let waits = fixture.waits();
        let woken = fixture.woken();
        let (took, slept) = fixture.format();
        assert!(took >= FORMAT, "{kind:?}: {took:?}");
        assert!(fixture.woken() > woken, "{kind:?}: no interrupt came");
        let waits = fixture.waits() - waits;
        // A look each 100 ms, for each interrupt, and a few for the Identify commands around it.
        assert!(waits < 20 && slept < 20, "{kind:?}: {waits} waits, {slept} sleeps");
    }
    // Other commands are polled for.
    let waits = fixture.waits();
    fixture.controller.smart_log().expect("a log page");
    assert_eq!(fixture.waits(), waits);
}

#[test]
fn interrupts_that_never_come_cost_little() {
    let fixture = Fixture::new(true, ControllerOptions::default());
    let (took, _) = fixture.format();
    assert!(took < FORMAT + Duration::from_secs(2), "{took:?}");
    assert!(fixture.waits() >= 4, "{} waits", fixture.waits());
}

#[test]
fn a_wait_on_an_interrupt_ends_in_time_or_when_the_drive_is_gone() {
    let limit = Duration::from_millis(400);
    let options = ControllerOptions { admin_timeout: limit, admin_interrupts: true, ..ControllerOptions::default() };
    let fixture = Fixture::new(false, options);
    let faults = fixture.served.drive.faults();
    faults.inject(Rule::new(Fault::Swallow).admin(AdminOpcode::GET_LOG_PAGE));
    let began = Instant::now();
    let error = fixture.controller.smart_log().unwrap_err();
    assert!(matches!(error, DriverError::TimedOut { .. }), "{error}");
    assert!((limit..limit * 10).contains(&began.elapsed()) && fixture.waits() > 0, "{:?}", began.elapsed());
    faults.inject(Rule::new(Fault::Disappear).admin(AdminOpcode::GET_LOG_PAGE));
    let error = fixture.controller.smart_log().unwrap_err();
    assert!(matches!(error, DriverError::Gone { .. }), "{error}");
}

#[test]
fn the_event_is_the_same_for_all_who_ask() {
    let served = Served::new(drive());
    let function = served.connect();
    let one = function.interrupt().expect("one");
    let other = function.interrupt().expect("the same");
    assert!(Arc::ptr_eq(&one, &other));
    // Whoever has it does not hold the function.
    works(function, 71);
    assert!(one.wait(Duration::ZERO), "admin completions announce themselves");
}

/// What the server behind a socket thinks of masks.
#[derive(Clone, Copy, Debug)]
enum Masks {
    /// Vectors are masked until somebody unmasks them: QEMU's.
    Set,
    /// There are none to be had.
    Refused,
}

/// Passes messages on until either side ends. How often the client unmasked.
fn between(client: UnixStream, server: &Path, masks: Masks) -> Result<u32, ChannelError> {
    const TIME: Duration = Duration::from_secs(5);
    let mut client = Channel::new(client).expect("a socket");
    let mut server = UnixStream::connect(server).and_then(Channel::new).expect("a server");
    let mut unmasked = 0;
    loop {
        let Ok(asked) = client.receive(Instant::now() + TIME, TIME) else { return Ok(unmasked) };
        let number = asked.header.command;
        let set = if number == command::DEVICE_SET_IRQS { IrqSet::read_from_prefix(&asked.payload).ok() } else { None };
        let does = |action| set.is_some_and(|(set, _)| set.flags & action != 0);
        if does(irq_set_flags::ACTION_UNMASK) {
            unmasked += 1;
            if matches!(masks, Masks::Refused) {
                client.refuse(&asked.header, Errno::INVAL, TIME)?;
                continue;
            }
        }
        let fds: Vec<_> = asked.fds.iter().map(AsFd::as_fd).collect();
        server.command(asked.header.id, number, &[&asked.payload], &fds, TIME)?;
        let got = server.receive(Instant::now() + TIME, TIME)?;
        assert_eq!(got.failure(), None, "command {number}");
        if let (Masks::Set, Some((set, _)), true) = (masks, set, does(irq_set_flags::ACTION_TRIGGER)) {
            let flags = irq_set_flags::DATA_NONE | irq_set_flags::ACTION_MASK;
            server.command(0xffff, number, &[IrqSet { flags, ..set }.as_bytes()], &[], TIME)?;
            assert_eq!(server.receive(Instant::now() + TIME, TIME)?.failure(), None);
        }
        let fds: Vec<_> = got.fds.iter().map(AsFd::as_fd).collect();
        client.reply(&asked.header, &[&got.payload], &fds, TIME)?;
    }
}

#[test]
fn vectors_are_unmasked_where_the_server_masks_them() {
    let check = CHECKS.iter().find(|check| check.name == "answers to admin commands interrupt").expect("the check");
    for masks in [Masks::Set, Masks::Refused] {
        let served = Served::new(drive());
        let path = served.path.with_extension("masks");
        let listener = UnixListener::bind(&path).expect("a socket");
        let to: PathBuf = served.path.clone();
        let thread = std::thread::spawn(move || between(listener.accept().expect("a client").0, &to, masks));
        let function = VfioUserFunction::open(&path).expect("a client");
        let verdict = check.run(&Subject { function, clock: Arc::new(SystemClock::new()) });
        assert!(matches!(verdict, Ok(Verdict::Passed)), "{masks:?}: {verdict:?}");
        let unmasked = thread.join().expect("no panic").expect("messages pass");
        // At first, where the event is kept, and after the reset of the function.
        assert_eq!(unmasked, 3, "{masks:?}");
    }
}
