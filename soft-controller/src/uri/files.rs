//! The files that a drive depends on, and whether one does.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::drive_uri::{BackingKind, DriveUri};
use super::holder::DriveInUse;
use super::sidecar::{ENDING, NEW, Sidecar, place_of, with};
use crate::regular::open_regular;

impl DriveUri {
    /// The files that the drive depends on, whether they are there or not: its image, its sidecar, and what the sidecar is
    /// replaced from. None, if it is in no file.
    pub fn files(&self) -> Vec<PathBuf> {
        if self.backing != BackingKind::File {
            return Vec::new();
        }
        let sidecar = self.sidecar();
        vec![self.path.clone(), with(&sidecar, NEW), sidecar]
    }

    /// The serial number and the file of the drive that has a sidecar at `sidecar`, if that is a sound one of a drive that is
    /// there.
    pub fn beside(sidecar: &Path) -> Option<(String, PathBuf)> {
        let drive = drive_of(sidecar).filter(|drive| drive.is_file() && place_of(drive) == sidecar)?;
        Some((Sidecar::read(sidecar).ok()??.serial, drive))
    }
}

/// Whether something in use, in this process or another, depends on the file at `path`, which need not be there: then it must
/// neither be written nor replaced. A drive depends on its image and its sidecar. Whatever else is kept open by others for as
/// long as they need it as it is, such as a table that is looked up in a file, or a journal, they have locked.
///
/// A symbolic link stands for what it leads to.
pub fn in_use(path: &Path) -> io::Result<Option<DriveInUse>> {
    let locked = |path: &Path| locked(path, false);
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(found) = locked(&target)? {
        return Ok(Some(found));
    }
    // A sidecar goes by its name: one that is not there yet has no lock.
    let drives = [path, &target].into_iter().filter_map(drive_of);
    drives.map(|drive| locked(&drive)).find(|found| !matches!(found, Ok(None))).unwrap_or(Ok(None))
}

/// The drive whose sidecar would be called so.
fn drive_of(sidecar: &Path) -> Option<PathBuf> {
    let name = sidecar.as_os_str().as_bytes();
    let drive = name.strip_suffix(NEW.as_bytes()).unwrap_or(name).strip_suffix(ENDING.as_bytes())?;
    Some(OsStr::from_bytes(drive).into())
}

impl DriveInUse {
    /// Whether what was wanted is still refused; an error of a system call counts as no.
    pub fn is_still(&self) -> bool {
        let found = if self.for_reading { locked(&self.path, true) } else { in_use(&self.path) };
        matches!(found, Ok(Some(_)))
    }
}

/// Whether anybody has locked a file, in whatever way; or, `for_reading`, for itself alone.
fn locked(path: &Path, for_reading: bool) -> io::Result<Option<DriveInUse>> {
    let file = match open_regular(path) {
        Ok(file) => file,
        // What is not there, or no file, nobody has locked.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    let lock = if for_reading { FlockArg::LockSharedNonblock } else { FlockArg::LockExclusiveNonblock };
    match Flock::lock(file, lock) {
        Ok(_) => Ok(None),
        Err((_, Errno::EWOULDBLOCK)) => Ok(Some(DriveInUse::new(path, &metadata, for_reading))),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// A file that is needed as it is, which [`in_use`] tells others until this is dropped.
#[derive(Debug)]
pub struct FileLock {
    _lock: Flock<fs::File>,
}

/// Holds a file, if there is one that can be locked.
pub fn lock_file(path: &Path) -> Option<FileLock> {
    let lock = Flock::lock(open_regular(path).ok()?, FlockArg::LockSharedNonblock).ok()?;
    Some(FileLock { _lock: lock })
}
