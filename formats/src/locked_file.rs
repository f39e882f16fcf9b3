//! Files that other processes must not write to while they are in use.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// A file that is needed as it is, which others can see until this is dropped: it has a shared lock (flock(2)).
#[derive(Debug)]
pub struct LockedFile(Option<Flock<File>>);

impl LockedFile {
    /// Locks a file that is open. A file that cannot be locked, because its file system has no locks, stays unlocked, which is no
    /// worse than before.
    pub fn new(file: &File) -> Self {
        let again = file.try_clone().ok();
        Self(again.and_then(|file| Flock::lock(file, FlockArg::LockSharedNonblock).ok()))
    }

    /// As [`new`](Self::new), but fails if another process holds a lock for itself alone, as who writes does.
    pub(crate) fn shared(file: &File) -> io::Result<Self> {
        match Flock::lock(file.try_clone()?, FlockArg::LockSharedNonblock) {
            Ok(locked) => Ok(Self(Some(locked))),
            Err((_, Errno::EWOULDBLOCK)) => Err(io::ErrorKind::WouldBlock.into()),
            Err(_) => Ok(Self(None)),
        }
    }

    /// Whether the file is locked.
    pub fn is_locked(&self) -> bool {
        self.0.is_some()
    }
}
