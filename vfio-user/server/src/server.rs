//! The socket, and who is let in.

use std::fmt;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use warprow_soft_controller::SoftController;
use warprow_vfio_user_proto::Channel;
use warprow_vfio_user_proto::limits::MESSAGE_TIME;

use crate::claim::{SocketClaim, file_at};
use crate::session::{Session, turn_away};

/// How often the server looks whether it shall end.
const GLANCE: Duration = Duration::from_millis(100);
/// How long a client waits for the one before it to be gone.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long it rests when the system has no more descriptors.
const REST: Duration = Duration::from_millis(200);

/// Why a drive cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Somebody serves there.
    #[error("{} is in use: another server has it; end that one, or choose another path", .0.display())]
    InUse(PathBuf),
    /// Something else lies there.
    #[error("{} exists and is not a socket; choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The path does not fit a socket's address.
    #[error("{}: a socket's path has at most 107 bytes", .0.display())]
    TooLong(PathBuf),
    /// The controller's doorbells cannot be shown to another process.
    #[error("the controller was built without shared doorbells")]
    Private,
    /// The system refuses.
    #[error("cannot {what} {}: {source}", .path.display())]
    System {
        /// What was being done.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// What happens to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client is served.
    Connected,
    /// A client is not served any more.
    Ended {
        /// Why.
        why: String,
    },
    /// Another one wanted to be.
    TurnedAway,
    /// A request was answered with an error. Of each client, the first few are told.
    Refused {
        /// The command's number.
        command: u16,
        /// What was wrong.
        why: &'static str,
    },
}

impl fmt::Display for ServerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => write!(f, "a client has connected"),
            Self::Ended { why } => write!(f, "the client is served no more: {why}"),
            Self::TurnedAway => write!(f, "a second client was turned away"),
            Self::Refused { command, why } => write!(f, "command {command} was refused: {why}"),
        }
    }
}

/// A socket on which a controller can be reached, by one client at a time.
///
/// The socket is for this user alone. It is removed when this is dropped.
#[derive(Debug)]
pub struct VfioUserServer {
    claim: SocketClaim,
    /// Device and inode of the socket's file.
    file: Option<(u64, u64)>,
    listener: UnixListener,
    controller: Arc<SoftController>,
    limits: Limits,
}

/// What a client is given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For a message.
    pub(crate) time: Duration,
    /// DMA regions.
    pub(crate) regions: usize,
}

impl Drop for VfioUserServer {
    fn drop(&mut self) {
        // Another's may lie there by now.
        if self.file.is_some() && file_at(self.path()) == self.file {
            let _ = std::fs::remove_file(self.path());
        }
    }
}

impl VfioUserServer {
    /// [Claims](SocketClaim) the path and opens the socket there.
    pub fn bind(path: impl Into<PathBuf>, controller: Arc<SoftController>) -> Result<Self, ServeError> {
        Self::on(SocketClaim::new(path)?, controller)
    }

    /// Opens the socket on a path that was claimed. The controller must have
    /// [shared doorbells](warprow_soft_controller::ControllerBuilder::shared_doorbells), and nobody else to drive it.
    pub fn on(claim: SocketClaim, controller: Arc<SoftController>) -> Result<Self, ServeError> {
        if controller.doorbell_memory().file().is_none() {
            return Err(ServeError::Private);
        }
        let system = |what| claim.failed(what);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(system("make a socket for"))?;
        // The socket's file gets these rights when it is bound: there is no moment at which others could connect.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(system("set the rights of"))?;
        bind(&socket, &claim.address()?).map_err(|errno| match errno {
            Errno::ADDRINUSE => ServeError::InUse(claim.path().to_owned()),
            errno => system("bind a socket to")(errno),
        })?;
        let limits = Limits { time: MESSAGE_TIME, regions: 4096 };
        let file = file_at(claim.path());
        let server = Self { claim, file, listener: socket.into(), controller, limits };
        listen(&server.listener, 8).map_err(server.claim.failed("listen on"))?;
        Ok(server)
    }

    /// How long a message may take from its first byte to its last, either way; default [`MESSAGE_TIME`].
    #[must_use]
    pub fn message_time(mut self, time: Duration) -> Self {
        self.limits.time = time;
        self
    }

    /// How many DMA regions a client may have; default 4096.
    #[must_use]
    pub fn dma_regions(mut self, most: usize) -> Self {
        self.limits.regions = most;
        self
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        self.claim.path()
    }

    /// Serves clients, one after another, until `stop` is set. `tell` hears of them.
    pub fn run(&self, stop: &AtomicBool, tell: &(dyn Fn(ServerEvent) + Sync)) -> Result<(), ServeError> {
        std::thread::scope(|scope| {
            let mut client: Option<std::thread::ScopedJoinHandle<'_, ()>> = None;
            while !stop.load(Ordering::Relaxed) {
                let Some(stream) = self.accept()? else { continue };
                let Ok(mut channel) = Channel::new(stream) else { continue };
                let busy = || client.as_ref().is_some_and(|client| !client.is_finished());
                // The last one may be about to be seen off.
                let patience = Instant::now() + PATIENCE;
                while busy() && Instant::now() < patience {
                    std::thread::sleep(Duration::from_millis(2));
                }
                if busy() {
                    turn_away(&mut channel);
                    tell(ServerEvent::TurnedAway);
                    continue;
                }
                client = Some(scope.spawn(move || {
                    tell(ServerEvent::Connected);
                    let why = match Session::new(&self.controller, channel, self.limits) {
                        Ok(mut session) => {
                            session.run(stop, &|command, why| tell(ServerEvent::Refused { command, why }))
                        }
                        Err(error) => error.to_string(),
                    };
                    tell(ServerEvent::Ended { why });
                }));
            }
            Ok(())
        })
    }

    /// The next client, if one comes soon.
    fn accept(&self) -> Result<Option<UnixStream>, ServeError> {
        let time = Timespec { tv_sec: 0, tv_nsec: GLANCE.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&time)) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(self.failed(errno.into())),
        }
        match self.listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
                Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    std::thread::sleep(REST);
                    Ok(None)
                }
                _ => Err(self.failed(error)),
            },
        }
    }

    fn failed(&self, source: io::Error) -> ServeError {
        ServeError::System { what: "accept clients on", path: self.path().to_owned(), source }
    }
}
