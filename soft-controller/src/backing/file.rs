use std::any::Any;
use std::fmt;
use std::fs::File as StdFile;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use warprow_dma::{DmaMemory, FileMapping};

use super::{Backing, MediaError, PREFETCHED};

/// A file through the page cache: reads copy from a mapping of it, writes are `pwrite`, so that a full disk is an error
/// and not a signal; a flush is `fdatasync`.
///
/// Nobody may shorten the file meanwhile. Whoever opens it takes a lock on it, as [`DriveUri::open`] does.
///
/// [`DriveUri::open`]: crate::DriveUri::open
pub struct File {
    file: StdFile,
    mapping: FileMapping,
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("mapping", &self.mapping).finish_non_exhaustive()
    }
}

impl File {
    /// The whole of a file that was opened for reading and writing; its size is a positive multiple of 4096 bytes.
    pub fn new(file: StdFile) -> std::io::Result<Self> {
        let len = file.metadata()?.len();
        if len == 0 || !len.is_multiple_of(4096) {
            return Err(Error::new(ErrorKind::InvalidInput, "the size is not a positive multiple of 4096 bytes"));
        }
        Ok(Self { mapping: FileMapping::new(&file, len)?, file, _kept: None })
    }

    /// Keeps something, such as a lock, for as long as this is used.
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        self._kept = Some(Box::new(kept));
        self
    }
}

impl Backing for File {
    fn size(&self) -> u64 {
        self.mapping.len() as u64
    }

    #[inline]
    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        if (offset | len as u64) & 7 == 0 {
            self.mapping.copy_to(offset as usize, to, at, len);
            Ok(())
        } else {
            // A piece of a command that its page boundaries cut at a multiple of 4.
            warprow_uring::read_at(&self.file, offset, to, at, len).map_err(MediaError::Read)
        }
    }

    fn prefetch(&self, offset: u64, len: usize) {
        self.mapping.prefetch(offset as usize, len.min(PREFETCHED));
    }

    fn prefetches(&self) -> bool {
        true
    }

    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        warprow_uring::write_at(&self.file, offset, from, at, len).map_err(MediaError::of_write)
    }

    fn zero(&self, offset: u64, len: u64, _deallocate: bool) -> Result<(), MediaError> {
        punch(&self.file, offset, len)
    }

    fn flush(&self) -> Result<(), MediaError> {
        self.file.sync_data().map_err(MediaError::Write)
    }

    fn is_volatile(&self) -> bool {
        true
    }
}

/// Makes a range of a file read as zeros, as a hole where the file system can.
pub(super) fn punch(file: &StdFile, offset: u64, len: u64) -> Result<(), MediaError> {
    let range = |value: u64| i64::try_from(value).map_err(|_| MediaError::Write(ErrorKind::InvalidInput.into()));
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    match fallocate(file, flags, range(offset)?, range(len)?) {
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
            let zeros = vec![0; 1 << 20];
            let mut done = 0;
            while done < len {
                let part = (len - done).min(zeros.len() as u64);
                file.write_all_at(&zeros[..part as usize], offset + done).map_err(MediaError::of_write)?;
                done += part;
            }
            Ok(())
        }
        result => result.map_err(|errno| MediaError::of_write(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_dma::PAGE;

    #[test]
    fn reads_what_was_written_at_any_dword() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let backing = File::new(file).unwrap();
        let memory = DmaMemory::allocate(4 * PAGE, warprow_dma::Backing::Anonymous).unwrap();
        let data: Vec<u8> = (0..8192u32).map(|i| (i ^ i >> 7) as u8).collect();
        memory.write(20, &data);
        backing.write(4096, &memory, 20, 8192).unwrap();
        for (offset, at, len) in [(4096, 0, 8192), (4100, 8, 4), (4104, 4, 4088), (8192, 12, 4096)] {
            memory.fill(0, memory.len(), 0);
            backing.read(offset, &memory, at, len).unwrap();
            let mut got = vec![0; len];
            memory.read(at, &mut got);
            assert_eq!(got, data[offset as usize - 4096..][..len]);
        }
        backing.zero(4608, 512, true).unwrap();
        backing.read(4096, &memory, 0, 2048).unwrap();
        let mut got = vec![0; 2048];
        memory.read(0, &mut got);
        assert_eq!(got[..512], data[..512]);
        assert_eq!(got[512..1024], [0; 512]);
        assert_eq!(got[1024..], data[1024..2048]);
        backing.flush().unwrap();
    }

    #[test]
    fn odd_sizes_are_refused() {
        for len in [0, 4095, 8200] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(len).unwrap();
            assert!(File::new(file).is_err(), "{len}");
        }
    }
}
