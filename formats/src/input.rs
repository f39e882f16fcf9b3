//! A file that is read at positions.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};

use crate::error::{FileError, FileErrorKind};

/// A regular file, open for reading, whose content may be anything.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Bytes of the file when it was opened.
    pub(crate) len: u64,
    /// What identifies the file, as of when it was opened.
    identity: Identity,
}

/// What differs after a file was changed or replaced: device, inode, size, and the times at which its content and its
/// inode changed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Input {
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let cannot = |error: io::Error| FileError::io(path, "cannot be opened", error);
        let file = open_regular(path)?;
        let metadata = file.metadata().map_err(cannot)?;
        Ok(Self { path: path.to_owned(), file, len: metadata.len(), identity: Identity::of(&metadata) })
    }

    /// Fails if the file was written to, or replaced, since it was opened.
    pub(crate) fn unchanged(&self) -> Result<(), FileError> {
        let now = std::fs::metadata(&self.path).map_err(|error| FileError::io(&self.path, "is gone", error))?;
        let now = Identity::of(&now);
        let what = match &self.identity {
            before if *before == now => return Ok(()),
            before if before.inode != now.inode => "was replaced by another file while it was read".to_owned(),
            before if before.size != now.size => {
                format!("had {} bytes when it was opened, and now has {}", before.size, now.size)
            }
            _ => "was changed while it was read".to_owned(),
        };
        Err(self.error(FileErrorKind::Changed, what, "let nobody write to it meanwhile, and try again"))
    }

    /// What is seen of the file's name if that leads to another file now, or to none.
    pub(crate) fn replaced(&self) -> Option<String> {
        match std::fs::metadata(&self.path) {
            Ok(now) if Identity::of(&now).inode == self.identity.inode => None,
            Ok(_) => Some("was replaced by another file".to_owned()),
            Err(error) => Some(format!("is gone ({error})")),
        }
    }

    /// A text that differs for other files, and for this file after a change.
    pub(crate) fn identity(&self) -> String {
        format!("{:?} {:?}", self.path.canonicalize().unwrap_or_default(), self.identity)
    }

    /// Fills `buf` from byte `at` on.
    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), FileError> {
        self.file.read_exact_at(buf, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof if at.saturating_add(buf.len() as u64) <= self.len => {
                FileError::damaged(&self.path, "the file became shorter while it was read").at(at)
            }
            io::ErrorKind::UnexpectedEof => FileError::damaged(&self.path, "it is cut off").at(self.len),
            _ => FileError::io(&self.path, "cannot be read", error).at(at),
        })
    }

    /// Has the system drop pages of the file that it keeps in memory.
    pub(crate) fn forget_pages(&self, at: u64, bytes: u64) {
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        // Advice alone: whether it is taken matters to memory, not to rows.
        let _ = posix_fadvise(&self.file, at.cast_signed(), bytes.cast_signed(), advice);
    }

    /// `N` bytes from byte `at` on.
    pub(crate) fn array<const N: usize>(&self, at: u64) -> Result<[u8; N], FileError> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// The first bytes, `N` or what there is.
    pub(crate) fn start<const N: usize>(&self) -> Result<Vec<u8>, FileError> {
        let mut bytes = vec![0; self.len.min(N as u64) as usize];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// All of it, if it has at most `most` bytes.
    pub(crate) fn whole(&self, most: u64) -> Result<Vec<u8>, FileError> {
        if self.len > most {
            let what = format!("it has {} bytes, more than the {most} that such a file may have", self.len);
            return Err(self.error(FileErrorKind::Damaged, what, "look whether it is the right file"));
        }
        let mut bytes = self.room(self.len)?;
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// A buffer of as many zeros as the file says; an error if there is not so much memory.
    pub(crate) fn room(&self, bytes: u64) -> Result<Vec<u8>, FileError> {
        room(&self.path, bytes)
    }

    pub(crate) fn error(&self, kind: FileErrorKind, what: impl Into<String>, remedy: impl Into<String>) -> FileError {
        FileError::new(kind, &self.path, what, remedy)
    }

    pub(crate) fn damaged(&self, what: impl Into<String>) -> FileError {
        FileError::damaged(&self.path, what)
    }
}

/// Opens a regular file for reading. A pipe or a device is refused at once: it may have no end, and opening it may wait.
pub fn open_regular(path: &Path) -> Result<File, FileError> {
    let cannot = |error: io::Error| FileError::io(path, "cannot be opened", error);
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    // What cannot be opened may be no file either, which says more.
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let file = opened.or_else(|error| refuse_special(path).and(Err(cannot(error))))?;
    match file.metadata().map_err(cannot)?.is_file() {
        true => Ok(file),
        false => Err(special(path)),
    }
}

/// Fails if `path` is a pipe or a device, which may have no end, and which may make opening wait. If there is nothing
/// at `path`, whoever opens it will find that out.
pub fn refuse_special(path: &Path) -> Result<(), FileError> {
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(special(path)),
        _ => Ok(()),
    }
}

fn special(path: &Path) -> FileError {
    let remedy = "give a file; what comes through a pipe has to be written to one first";
    FileError::new(FileErrorKind::Special, path, "is no regular file", remedy)
}

/// `count` zeros, a number that the file at `path` says; an error if there is not so much memory.
pub(crate) fn room<T: Clone + Default>(path: &Path, count: u64) -> Result<Vec<T>, FileError> {
    let mut room = Vec::new();
    let count = usize::try_from(count).ok().filter(|&count| room.try_reserve_exact(count).is_ok());
    let count = count.ok_or_else(|| no_memory(path))?;
    room.resize(count, T::default());
    Ok(room)
}

/// The error of a file that asks for more memory than there is.
pub(crate) fn no_memory(path: &Path) -> FileError {
    let what = "needs more memory than there is, by what it says of its size";
    FileError::new(
        FileErrorKind::Memory,
        path,
        what,
        "look whether it is the right file; then free memory, or split it",
    )
}

/// The little-endian numbers of `bytes`.
pub(crate) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// See [`i32_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// See [`i32_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    i32_at(bytes, at).map(|value| value as u32)
}

/// See [`i32_at`].
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}
