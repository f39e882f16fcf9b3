//! A file that is read at positions.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{FormatError, Kind};

/// A regular file, open for reading, of which nothing is believed.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Its length when it was opened.
    pub(crate) len: u64,
}

impl Input {
    pub(crate) fn open(path: &Path) -> Result<Self, FormatError> {
        let cannot = |error: io::Error| FormatError::io(path, "cannot be opened", error);
        refuse_special(path)?;
        let file = File::open(path).map_err(cannot)?;
        let len = file.metadata().map_err(cannot)?.len();
        Ok(Self { path: path.to_owned(), file, len })
    }

    /// Fills `buf` from byte `at` on.
    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), FormatError> {
        self.file.read_exact_at(buf, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof if at.saturating_add(buf.len() as u64) <= self.len => {
                FormatError::damaged(&self.path, "the file became shorter while it was read").at(at)
            }
            io::ErrorKind::UnexpectedEof => FormatError::damaged(&self.path, "it is cut off").at(self.len),
            _ => FormatError::io(&self.path, "cannot be read", error).at(at),
        })
    }

    /// `N` bytes from byte `at` on.
    pub(crate) fn array<const N: usize>(&self, at: u64) -> Result<[u8; N], FormatError> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// The first bytes, `N` or what there is.
    pub(crate) fn start<const N: usize>(&self) -> Result<Vec<u8>, FormatError> {
        let mut bytes = vec![0; self.len.min(N as u64) as usize];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// All of it, if it has at most `most` bytes.
    pub(crate) fn whole(&self, most: u64) -> Result<Vec<u8>, FormatError> {
        if self.len > most {
            let what = format!("it has {} bytes, more than the {most} that such a file may have", self.len);
            return Err(self.error(Kind::Damaged, what, "look whether it is the right file"));
        }
        let mut bytes = vec![0; self.len as usize];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn error(&self, kind: Kind, what: impl Into<String>, remedy: impl Into<String>) -> FormatError {
        FormatError::new(kind, &self.path, what, remedy)
    }

    pub(crate) fn damaged(&self, what: impl Into<String>) -> FormatError {
        FormatError::damaged(&self.path, what)
    }
}

/// A pipe or a device may have no end, and opening it may wait. One that is not there is left to whoever opens it.
pub fn refuse_special(path: &Path) -> Result<(), FormatError> {
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(FormatError::new(
            Kind::Special,
            path,
            "is no regular file",
            "give a file; what comes through a pipe has to be written to one first",
        )),
        _ => Ok(()),
    }
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
