use std::fs::File;
use std::io::{Error, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::stat::fstat;

/// Where a file ends that must not become shorter. Once it was, it stays so here: what lies behind is gone, also if somebody
/// makes the file longer again.
#[derive(Debug)]
pub(super) struct FileEnd {
    whole: u64,
    seen: AtomicU64,
    /// Whether this is a block device: the length is fixed, and the system does not tell it as it tells a file's.
    is_device: bool,
}

impl FileEnd {
    /// The end of a file that has at least `whole` bytes, or of a block device.
    pub(super) fn new(whole: u64, is_device: bool) -> Self {
        Self { whole, seen: AtomicU64::new(whole), is_device }
    }

    /// Looks how long the file is; an error if it is shorter than it was, or was seen to be.
    pub(super) fn look(&self, file: &File) -> std::io::Result<()> {
        if !self.is_device {
            let len = fstat(file)?.st_size as u64;
            if len < self.whole {
                self.seen.fetch_min(len, Ordering::Relaxed);
            }
        }
        self.check(0, self.whole)
    }

    /// An error if a range ends behind the shortest length that was seen.
    #[inline]
    pub(super) fn check(&self, offset: u64, len: u64) -> std::io::Result<()> {
        let seen = self.seen.load(Ordering::Relaxed);
        if offset.saturating_add(len) <= seen { Ok(()) } else { Err(Self::shortened(seen)) }
    }

    #[cold]
    fn shortened(seen: u64) -> Error {
        Error::new(
            ErrorKind::UnexpectedEof,
            format!("the file was shortened to {seen} bytes while it served as a drive"),
        )
    }
}
