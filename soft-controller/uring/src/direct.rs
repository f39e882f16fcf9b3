use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// What O_DIRECT asks of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// Addresses are multiples of this, bytes.
    pub memory: usize,
    /// File offsets and lengths are multiples of this, bytes.
    pub offset: usize,
}

/// Opens an existing file or block device for reading and writing past the page cache.
pub fn open_direct(path: &Path) -> Result<File> {
    // Another thing than that, which has come in its place, may have opening it wait.
    let flags = libc::O_DIRECT | libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// The file that is open as `file`, for reading past the page cache. Needs `/proc`.
pub fn reopen_direct(file: &File) -> Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// What O_DIRECT asks of transfers of this file. Kernels before 6.1 do not tell for files: then it is a page, which
/// every file system takes.
pub fn alignment(file: &File) -> Result<DirectAlignment> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string, the flag makes the descriptor the file, and the buffer is a statx.
    let result = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, stat.as_mut_ptr())
    };
    if result != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call has succeeded, and the structure was zeroed before: all of it is initialised.
    let stat = unsafe { stat.assume_init() };
    let is_file = file.metadata()?.file_type().is_file();
    if is_file && stat.stx_mask & libc::STATX_DIOALIGN != 0 && stat.stx_dio_offset_align == 0 {
        // It takes the flag, and reads through the page cache.
        return Err(Error::new(ErrorKind::Unsupported, "its file system cannot read it past the page cache"));
    }
    if stat.stx_mask & libc::STATX_DIOALIGN != 0 && stat.stx_dio_offset_align != 0 {
        return Ok(DirectAlignment {
            memory: stat.stx_dio_mem_align.max(4) as usize,
            offset: stat.stx_dio_offset_align as usize,
        });
    }
    if file.metadata()?.file_type().is_block_device() {
        let mut sector: libc::c_int = 0;
        // SAFETY: BLKSSZGET stores an int, which `sector` is.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut sector) } == 0 && sector > 0 {
            return Ok(DirectAlignment { memory: sector as usize, offset: sector as usize });
        }
    }
    Ok(DirectAlignment { memory: 4096, offset: 4096 })
}
