//! Opening what has to be a regular file, without waiting for what is none.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a regular file for reading. Anything else is refused ([`ErrorKind::InvalidInput`]), at once: a FIFO would wait for
/// somebody who writes to it, and a device may have no end.
pub fn open_regular(path: &Path) -> Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::new(ErrorKind::InvalidInput, "it is no regular file")),
    }
}
