//! A server in this process, on a socket in a folder of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use warprow_dma::SystemClock;
use warprow_driver::{BlockIo, Controller, ControllerOptions, QueueOptions};
use warprow_soft_controller::{ControllerBuilder, Namespace, RamBacking, SoftController};
use warprow_vfio_user::VfioUserFunction;
use warprow_vfio_user_proto::limits::MESSAGE_TIME;
use warprow_vfio_user_server::{ServerEvent, VfioUserServer};

pub(crate) struct Served {
    pub(crate) path: PathBuf,
    pub(crate) drive: Arc<SoftController>,
    events: Arc<Mutex<Vec<ServerEvent>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

/// A drive of two namespaces.
pub(crate) fn drive() -> ControllerBuilder {
    let namespace = |bytes| Namespace::new(RamBacking::new(bytes).expect("memory")).lba(512);
    SoftController::builder().namespace(namespace(64 << 20)).namespace(namespace(16 << 20))
}

impl Served {
    pub(crate) fn new(builder: ControllerBuilder) -> Self {
        Self::with_time(builder, MESSAGE_TIME)
    }

    /// A fixture with a limit for DMA regions.
    pub(crate) fn with_regions(builder: ControllerBuilder, most: usize) -> Self {
        Self::with(builder, |server| server.dma_regions(most))
    }

    /// A fixture with a limit for the time that a message takes.
    pub(crate) fn with_time(builder: ControllerBuilder, time: Duration) -> Self {
        Self::with(builder, |server| server.message_time(time))
    }

    fn with(builder: ControllerBuilder, limited: impl FnOnce(VfioUserServer) -> VfioUserServer) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("drive.sock");
        let drive = builder.shared_doorbells().build().expect("a controller");
        let server = limited(VfioUserServer::bind(&path, drive.clone()).expect("a socket"));
        let stop = Arc::new(AtomicBool::new(false));
        let events = Arc::new(Mutex::new(Vec::new()));
        let its_stop = stop.clone();
        let its_events = events.clone();
        let run = move || {
            server.run(&its_stop, &|event| its_events.lock().expect("no panic").push(event)).expect("it serves");
        };
        Self { path, drive, events, stop, thread: Some(std::thread::spawn(run)), _folder: folder }
    }

    pub(crate) fn connect(&self) -> Arc<VfioUserFunction> {
        VfioUserFunction::open(&self.path).expect("a client")
    }

    pub(crate) fn events(&self) -> Vec<ServerEvent> {
        self.events.lock().expect("no panic").clone()
    }

    /// Waits until `seen` holds of the events.
    pub(crate) fn await_events(&self, seen: impl Fn(&[ServerEvent]) -> bool) -> Vec<ServerEvent> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let events = self.events();
            if seen(&events) {
                return events;
            }
            assert!(Instant::now() < deadline, "waited in vain: {events:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the `n`th client is gone; why it is.
    pub(crate) fn await_end(&self, n: usize) -> String {
        let ended = |events: &[ServerEvent]| {
            events
                .iter()
                .filter_map(|e| if let ServerEvent::Ended { why } = e { Some(why.clone()) } else { None })
                .nth(n)
        };
        ended(&self.await_events(|events| ended(events).is_some())).expect("it ended")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("dropped once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server died");
        assert!(!self.path.exists(), "the socket was left");
    }
}

/// Writes and reads blocks by the driver, and compares.
pub(crate) fn works(function: Arc<VfioUserFunction>, seed: u64) {
    let controller =
        Controller::open(function, Arc::new(SystemClock::new()), ControllerOptions::default()).expect("a controller");
    let namespace = controller.namespace(1).expect("a namespace");
    let mut io = BlockIo::new(&controller, namespace, &QueueOptions::default()).expect("a queue pair");
    let mut written = vec![0; 64 << 10];
    let mut read = vec![0; 64 << 10];
    warprow_conformance::fill(seed, 8, 512, &mut written);
    io.write(8, &written).expect("a write");
    io.read(8, &mut read).expect("a read");
    assert!(read == written, "other content (seed {seed})");
}
