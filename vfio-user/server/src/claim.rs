//! Claims of sockets: which process serves at a path.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::ServeError;

/// How often a lock is taken again that was removed as it was taken.
const ATTEMPTS: u32 = 100;

/// A path that this server alone may have a socket at.
///
/// Whoever removes a stale socket must know that nobody is about to serve there: a socket that is bound and does not listen yet
/// looks stale. So a server first locks `PATH.lock` (flock(2)), and keeps it as long as it serves; a killed one's goes with it.
#[derive(Debug)]
pub struct SocketClaim {
    path: PathBuf,
    lock: PathBuf,
    /// The lock goes when this does.
    _held: File,
}

impl SocketClaim {
    /// Claims the path. A socket that nobody answers any more is removed from it; anything else that lies there stays, and is an
    /// error.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, ServeError> {
        let path = path.into();
        let mut lock = path.clone().into_os_string();
        lock.push(".lock");
        let lock = PathBuf::from(lock);
        address(&path)?;
        let held = held(&path, &lock)?;
        let claim = Self { path, lock, _held: held };
        clear(&claim.path)?;
        Ok(claim)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn address(&self) -> Result<SocketAddrUnix, ServeError> {
        address(&self.path)
    }

    /// The error where the system refuses to do something with the path.
    pub(crate) fn failed(&self, what: &'static str) -> impl Fn(Errno) -> ServeError + use<> {
        let path = self.path.clone();
        move |errno| ServeError::System { what, path: path.clone(), source: errno.into() }
    }
}

impl Drop for SocketClaim {
    fn drop(&mut self) {
        // Locked still: who waits for it finds that it is not the one that lies there, and takes that.
        let _ = std::fs::remove_file(&self.lock);
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, ServeError> {
    SocketAddrUnix::new(path).map_err(|_| ServeError::TooLong(path.to_owned()))
}

/// Device and inode of what lies at a path.
pub(crate) fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// The lock, held.
fn held(path: &Path, lock: &Path) -> Result<File, ServeError> {
    let system =
        |what, errno: Errno| ServeError::System { what, path: lock.to_owned(), source: io::Error::from(errno) };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..ATTEMPTS {
        let file = rustix::fs::open(lock, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| system("open", errno))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(ServeError::InUse(path.to_owned())),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(system("lock", errno)),
        }
        let file = File::from(file);
        // The one who had it may have removed it between the two.
        if file.metadata().is_ok_and(|file| Some((file.dev(), file.ino())) == file_at(lock)) {
            return Ok(file);
        }
    }
    Err(ServeError::InUse(path.to_owned()))
}

/// Removes a socket that nobody answers.
fn clear(path: &Path) -> Result<(), ServeError> {
    let system = |what, source| ServeError::System { what, path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("look at", error)),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(ServeError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    let deadline = Instant::now() + Duration::from_secs(1);
    // A connection to a server whose queue of clients is full waits; nobody has to.
    let refused = loop {
        match answers(path) {
            Err(Errno::CONNREFUSED) => break true,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::INTR) if Instant::now() < deadline => {}
            _ => break false,
        }
    };
    if !refused {
        return Err(ServeError::InUse(path.to_owned()));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(system("remove the stale socket", error)),
        _ => Ok(()),
    }
}

fn answers(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}
