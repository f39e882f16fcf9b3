use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::fs::File as StdFile;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, XFS_SUPER_MAGIC, fstatfs};
use warprow_dma::{DmaMemory, FileMapping};

use super::file_end::FileEnd;
use super::interface::{Backing, DEPTH, PREFETCHED};
use super::media_error::MediaError;

/// File systems of local disks, on which reading a hole through a mapping needs no space. Elsewhere it may: a full tmpfs
/// answers with SIGBUS, as a file system of a network does when that fails. Those of ext2 to ext4 are one.
const MAPPED: [FsType; 5] = [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, ZFS];
const ZFS: FsType = FsType(0x2fc1_2fc1);

/// A file through the page cache: reads copy from a mapping of it where its file system is a local disk's (ext2 to ext4, XFS,
/// Btrfs, F2FS, ZFS) and are `pread` elsewhere, and where a mapping was lost; writes are `pwrite`. So a full file system or a
/// broken network is an error and not a signal. A flush is `fdatasync`.
///
/// Nobody may shorten the file meanwhile. Whoever opens it takes a lock on it, as [`DriveUri::open`] does. If somebody does,
/// reads of what is gone, all writes and flushes are errors; the length is looked at with each write and flush, and with reads
/// now and then.
///
/// [`DriveUri::open`]: crate::DriveUri::open
pub struct FileBacking {
    file: StdFile,
    len: u64,
    end: FileEnd,
    mapping: Option<FileMapping>,
    depth: u32,
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for FileBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBacking").field("len", &self.len).field("mapping", &self.mapping).finish_non_exhaustive()
    }
}

impl FileBacking {
    /// The whole of a file that was opened for reading and writing, or for reading alone: then writes fail. Its size is a positive
    /// multiple of 4096 bytes.
    pub fn new(file: StdFile) -> std::io::Result<Self> {
        let len = file.metadata()?.len();
        if len == 0 || !len.is_multiple_of(4096) {
            return Err(Error::new(ErrorKind::InvalidInput, "the size is not a positive multiple of 4096 bytes"));
        }
        let local = MAPPED.contains(&fstatfs(&file)?.filesystem_type());
        let mapping = local.then(|| FileMapping::new(&file, len)).transpose()?;
        Ok(Self { file, len, end: FileEnd::new(len, false), mapping, depth: DEPTH, _kept: None })
    }

    /// Has up to `depth` reads of each worker fetched from the disk at once, 256 by default; 0 or 1: one after another.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = if depth > 1 { depth } else { 0 };
        self
    }

    /// Keeps something, such as a lock, for as long as this is used.
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        self._kept = Some(Box::new(kept));
        self
    }

    fn pread(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        warprow_uring::read_at(&self.file, offset, to, at, len).map_err(MediaError::Read)?;
        self.look_again(offset, len)
    }

    /// Whether what was just read had gone before: behind the end of a file, the rest of its page reads as zeros.
    #[cold]
    fn look_again(&self, offset: u64, len: usize) -> Result<(), MediaError> {
        let _ = self.end.look(&self.file);
        self.end.check(offset, len as u64).map_err(MediaError::Read)
    }
}

/// Bytes of a read from which on the file's length is looked at every time.
const LARGE: usize = 32 << 10;
/// Reads of a thread of which one looks at the file's length.
const TURN: u32 = 256;

#[inline]
fn is_turn() -> bool {
    thread_local!(static READS: Cell<u32> = const { Cell::new(0) });
    READS.with(|reads| {
        reads.set(reads.get().wrapping_add(1));
        reads.get().is_multiple_of(TURN)
    })
}

impl Backing for FileBacking {
    fn size(&self) -> u64 {
        self.len
    }

    #[inline]
    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.end.check(offset, len as u64).map_err(MediaError::Read)?;
        match &self.mapping {
            Some(mapping)
                if (offset | len as u64) & 7 == 0 && mapping.copy_to(offset as usize, to, at, len).is_ok() =>
            {
                if len >= LARGE || is_turn() { self.look_again(offset, len) } else { Ok(()) }
            }
            // Also a piece of a command that its page boundaries cut at a multiple of 4.
            _ => self.pread(offset, to, at, len),
        }
    }

    fn prefetch(&self, offset: u64, len: usize) {
        if let Some(mapping) = &self.mapping {
            mapping.prefetch(offset as usize, len.min(PREFETCHED));
        }
    }

    fn prefetches(&self) -> bool {
        self.mapping.is_some()
    }

    fn will_need(&self, offset: u64, len: usize) {
        will_need(&self.file, offset, len as u64);
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.end.look(&self.file).map_err(MediaError::Write)?;
        warprow_uring::write_at(&self.file, offset, from, at, len).map_err(MediaError::of_write)
    }

    fn zero(&self, offset: u64, len: u64, _deallocate: bool) -> Result<(), MediaError> {
        self.end.look(&self.file).map_err(MediaError::Write)?;
        punch(&self.file, offset, len)
    }

    fn flush(&self) -> Result<(), MediaError> {
        self.end.look(&self.file).map_err(MediaError::Write)?;
        self.file.sync_data().map_err(MediaError::Write)
    }

    fn is_volatile(&self) -> bool {
        true
    }
}

/// Has the kernel fetch a part of a file into the page cache, if it is not there, without waiting for it.
pub fn will_need(file: &StdFile, offset: u64, len: u64) {
    if let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) {
        // A hint: where there is no page cache, reads are as fast as they were.
        let _ = posix_fadvise(file, offset, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
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
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use warprow_dma::PAGE;

    /// A file of a tmpfs.
    fn in_memory(len: u64) -> StdFile {
        let file = StdFile::from(memfd_create(c"drive", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn reads_what_was_written_at_any_dword() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        check_reads(&FileBacking::new(file).unwrap());
        check_reads(&FileBacking::new(in_memory(1 << 20)).unwrap());
    }

    /// A mapping would answer this with a signal that ends the process, as on a tmpfs that is full.
    #[test]
    fn what_a_tmpfs_cannot_give_is_an_error() {
        let file = in_memory(8192);
        let backing = FileBacking::new(file.try_clone().unwrap()).unwrap();
        assert!(!backing.prefetches());
        backing.prefetch(4096, 4096);
        file.set_len(4096).unwrap();
        let memory = DmaMemory::allocate(PAGE, warprow_dma::MemoryKind::Anonymous).unwrap();
        backing.read(0, &memory, 0, 4096).unwrap();
        let error = backing.read(4096, &memory, 0, 4096).unwrap_err();
        assert!(matches!(error, MediaError::Read(_)), "{error}");
    }

    #[test]
    fn a_file_that_was_shortened_is_read_as_far_as_it_goes() {
        let on_disk = tempfile::tempfile().unwrap();
        on_disk.set_len(1 << 20).unwrap();
        for file in [on_disk, in_memory(1 << 20)] {
            let backing = FileBacking::new(file.try_clone().unwrap()).unwrap();
            let memory = DmaMemory::allocate(1 << 20, warprow_dma::MemoryKind::Anonymous).unwrap();
            memory.fill(0, 1 << 20, 7);
            backing.write(0, &memory, 0, 1 << 20).unwrap();
            backing.flush().unwrap();
            let whole = [7; 4096];
            let good = |offset| {
                memory.fill(0, 4096, 0);
                backing.read(offset, &memory, 0, 4096).unwrap();
                let mut got = [0; 4096];
                memory.read(0, &mut got);
                assert_eq!(got, whole, "{offset}");
            };
            good(512 << 10);
            file.set_len((512 << 10) + 100).unwrap();
            // What is gone, at first and ever after, also if somebody makes room for it again; the rest goes on.
            for round in 0..3 {
                for offset in [516 << 10, (1 << 20) - 4096] {
                    let error = backing.read(offset, &memory, 0, 4096).unwrap_err();
                    assert!(matches!(error, MediaError::Read(_)), "{round}: {error}");
                }
                good(0);
                good(508 << 10);
                let error = backing.read(512 << 10, &memory, 0, 4096).unwrap_err();
                assert!(error.to_string().contains("shortened to 524388 bytes"), "{error}");
                if round == 1 {
                    file.set_len(1 << 20).unwrap();
                }
            }
        }
    }

    #[test]
    fn zeros_behind_the_end_are_noticed() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        for len in [LARGE, 4096] {
            let backing = FileBacking::new(file.try_clone().unwrap()).unwrap();
            let memory = DmaMemory::allocate(1 << 20, warprow_dma::MemoryKind::Anonymous).unwrap();
            file.set_len((1 << 20) - 100).unwrap();
            let reads = if len == LARGE { 1 } else { TURN };
            let failed = (0..reads).any(|_| backing.read((1 << 20) - len as u64, &memory, 0, len).is_err());
            assert!(failed, "{len}");
            file.set_len(1 << 20).unwrap();
        }
    }

    #[test]
    fn a_file_that_was_shortened_is_not_written() {
        let file = in_memory(1 << 20);
        let backing = FileBacking::new(file.try_clone().unwrap()).unwrap();
        let memory = DmaMemory::allocate(PAGE, warprow_dma::MemoryKind::Anonymous).unwrap();
        backing.write(8192, &memory, 0, 4096).unwrap();
        file.set_len(16384).unwrap();
        for result in [
            backing.write(1 << 19, &memory, 0, 4096),
            backing.write(0, &memory, 0, 4096),
            backing.zero(0, 1 << 20, true),
            backing.flush(),
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, MediaError::Write(_)) && error.to_string().contains("shortened"), "{error}");
        }
        assert_eq!(file.metadata().unwrap().len(), 16384, "nobody made it longer");
    }

    fn check_reads(backing: &FileBacking) {
        let memory = DmaMemory::allocate(4 * PAGE, warprow_dma::MemoryKind::Anonymous).unwrap();
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
            assert!(FileBacking::new(file).is_err(), "{len}");
        }
    }
}
