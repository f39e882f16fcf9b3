//! The driver's queue pair on a controller behind a vfio-user socket, for the measurements of [`crate::ring`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use warprow_soft_controller::ControllerBuilder;
use warprow_vfio_user::VfioUserFunction;
use warprow_vfio_user_server::VfioUserServer;

use crate::Cores;

/// A controller that is served on a socket, in a folder of its own, and a client's end of that.
#[derive(Debug)]
pub(crate) struct Served {
    /// What the driver drives.
    pub(crate) function: Arc<VfioUserFunction>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Served {
    /// Serves the drive; its worker runs on the answering core. The thread that reads the socket has nothing to do once queues
    /// are made: doorbells, queues and data lie in memory that both ends have.
    pub(crate) fn new(drive: ControllerBuilder, cores: Option<&Cores>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("a folder for the socket")?;
        let path = folder.path().join("ring.sock");
        let drive = Cores::answering(cores, 0, || drive.shared_doorbells().build())?;
        let server = VfioUserServer::bind(&path, drive)?;
        let stop = Arc::new(AtomicBool::new(false));
        let its_stop = stop.clone();
        let thread = Cores::answering(cores, 0, || {
            // What goes wrong with the socket shows at the client's end.
            std::thread::Builder::new().name("vfio-user".into()).spawn(move || {
                let _ = server.run(&its_stop, &|_| {});
            })
        })?;
        let mut served = Self { function: VfioUserFunction::open(&path)?, stop, thread: None, _folder: folder };
        served.thread = Some(thread);
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
