use std::fmt;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::DmaMemory;
use crate::sigbus::Guarded;

/// A file's bytes as this process sees them in the page cache, read-only. Writes to the file by any means show here.
///
/// The kernel answers a read of a page past the file's end, or of one that the disk cannot give, with SIGBUS. A handler for
/// that signal, installed with the first mapping, makes it a [`MappingLost`]; faults anywhere else go to the handler there was
/// before. A process that installs another one afterwards has to pass the signal on.
pub struct FileMapping {
    base: NonNull<u8>,
    len: usize,
    guarded: &'static Guarded,
    _map: MmapRaw,
}

// SAFETY: the mapping is read-only and reached by atomic loads of raw pointers.
unsafe impl Send for FileMapping {}
// SAFETY: as above.
unsafe impl Sync for FileMapping {}

impl fmt::Debug for FileMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileMapping").field("len", &self.len).finish_non_exhaustive()
    }
}

impl FileMapping {
    /// Maps the first `len` bytes of `file`; `len` is a non-zero multiple of 8 and at most the file's size.
    pub fn new(file: &File, len: u64) -> std::io::Result<Self> {
        let invalid = |why: &str| std::io::Error::new(std::io::ErrorKind::InvalidInput, why.to_owned());
        if len == 0 || !len.is_multiple_of(8) {
            return Err(invalid("a mapping's length is a non-zero multiple of 8"));
        }
        if len > file.metadata()?.len() {
            return Err(invalid("the file is smaller than the mapping"));
        }
        let len = usize::try_from(len).map_err(|_| invalid("the file is larger than the address space"))?;
        let map = MmapOptions::new().len(len).map_raw_read_only(file)?;
        // Rows are read at random: reading ahead would only evict others.
        let _ = map.advise(memmap2::Advice::Random);
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
        let guarded = Guarded::new(base.as_ptr().expose_provenance(), len)?;
        Ok(Self { base, len, guarded, _map: map })
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// How many bytes of the mapping lie in memory now, in whole pages: those that the page cache holds, whoever has
    /// read them. If the file neither belongs to this user nor is open for writing, Linux says that all of them do.
    pub fn resident(&self) -> std::io::Result<u64> {
        // SAFETY: asks for a number, and takes no pointer.
        let page = match unsafe { libc::sysconf(libc::_SC_PAGESIZE) } {
            page if page > 0 => page as usize,
            _ => return Err(std::io::Error::last_os_error()),
        };
        let mut pages = vec![0u8; self.len.div_ceil(page)];
        // SAFETY: the range is this mapping, which begins at a page; the vector has a byte for each page that the range touches.
        if unsafe { libc::mincore(self.base.as_ptr().cast(), self.len, pages.as_mut_ptr().cast()) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // The other bits mean nothing.
        Ok(pages.iter().filter(|&&flags| flags & 1 != 0).count() as u64 * page as u64)
    }

    /// Hints that `len` bytes at `offset` will be read soon, if their pages are in this process's page table; others are
    /// not asked for. Nothing happens outside the mapping.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            for line in (0..len).step_by(64) {
                // SAFETY: the address is inside the mapping (checked); a prefetch reads nothing that the program sees,
                // and never faults.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().add(offset + line).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, len);
    }

    /// Copies `len` bytes at `offset` to `target`; offset and length are multiples of 8. Panics outside either range. Past the end
    /// of a file that was shortened, what is in the same page reads as zeros.
    ///
    /// If it fails, as every call does from then on, `target` holds anything.
    pub fn copy_to(
        &self,
        offset: usize,
        target: &DmaMemory,
        target_offset: usize,
        len: usize,
    ) -> Result<(), MappingLost> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "outside the mapping");
        assert!((offset | len) & 7 == 0, "a mapping is read in whole words");
        // SAFETY: in bounds and aligned (checked; the base is page-aligned); atomics tolerate writers of the file.
        let words = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast::<AtomicU64>(), len / 8) };
        if target_offset.is_multiple_of(8) {
            let mut at = target_offset;
            let (blocks, rest) = words.as_chunks::<8>();
            for block in blocks {
                target.store_words::<8>(at, std::array::from_fn(|i| block[i].load(Ordering::Relaxed)));
                at += 64;
            }
            for word in rest {
                target.store_u64(at, word.load(Ordering::Relaxed));
                at += 8;
            }
        } else {
            for (i, word) in words.iter().enumerate() {
                target.write(target_offset + i * 8, &word.load(Ordering::Relaxed).to_ne_bytes());
            }
        }
        if self.guarded.is_lost() { Err(MappingLost) } else { Ok(()) }
    }

    /// Copies the bytes at `offset` to `out`, as `memcpy` does, from and to any address. Panics outside the mapping. Otherwise as
    /// [`copy_to`](Self::copy_to); what somebody writes to the file meanwhile may come in parts of any size.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), MappingLost> {
        assert!(offset.checked_add(out.len()).is_some_and(|end| end <= self.len), "outside the mapping");
        // SAFETY: in bounds (checked), and `out` is no part of the mapping, to which there are no references. Every byte is
        // initialised, whatever it is; the copy is made by the C library, for which one that is written meanwhile is some byte.
        unsafe { libc::memcpy(out.as_mut_ptr().cast(), self.base.as_ptr().add(offset).cast(), out.len()) };
        if self.guarded.is_lost() { Err(MappingLost) } else { Ok(()) }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        self.guarded.release();
    }
}

/// Some page of the mapping could not be read: its file was shortened, or its disk failed. Nothing can be read through this
/// mapping any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the mapped file was shortened, or its disk cannot read it")]
pub struct MappingLost;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::{MemoryKind, PAGE};

    #[test]
    fn shows_what_is_written_to_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let map = FileMapping::new(&file, 8192).unwrap();
        let data: Vec<u8> = (0..600u32).map(|i| (i * 7) as u8).collect();
        file.write_all_at(&data, 4096).unwrap();
        let memory = DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap();
        for target in [0, 4, 1001] {
            map.copy_to(4096, &memory, target, 600).unwrap();
            let mut got = vec![0; 600];
            memory.read(target, &mut got);
            assert_eq!(got, data);
        }
        for (offset, len) in [(4096, 600), (4099, 7), (4100, 0), (8192, 0)] {
            let mut got = vec![0; len];
            map.read(offset, &mut got).unwrap();
            assert_eq!(got, data[..].get(offset - 4096..).unwrap_or_default().get(..len).unwrap_or_default());
        }
    }

    #[test]
    fn a_file_that_was_shortened_is_an_error() {
        let files: Vec<File> = (0..3).map(|_| tempfile::tempfile().unwrap()).collect();
        let maps: Vec<FileMapping> = files
            .iter()
            .map(|file| {
                file.set_len(1 << 20).unwrap();
                file.write_all_at(&[7; 8192], 0).unwrap();
                FileMapping::new(file, 1 << 20).unwrap()
            })
            .collect();
        let memory = DmaMemory::allocate(1 << 20, MemoryKind::Anonymous).unwrap();
        files[1].set_len(8192).unwrap();
        // Several threads run into it at once, one of them in the part that is left.
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for _ in 0..4 {
                threads.push(scope.spawn(|| {
                    let memory = DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap();
                    maps[1].copy_to(8192, &memory, 0, PAGE)
                }));
            }
            for thread in threads {
                assert_eq!(thread.join().unwrap(), Err(MappingLost));
            }
        });
        assert_eq!(maps[1].copy_to(0, &memory, 0, 4096), Err(MappingLost));
        assert_eq!(maps[1].read(0, &mut [0; 8]), Err(MappingLost));
        for map in [&maps[0], &maps[2]] {
            map.copy_to(0, &memory, 0, 1 << 20).unwrap();
            assert_eq!(memory.load_u64(8184), 0x0707_0707_0707_0707);
        }
    }

    /// In a process of its own, which dies of it.
    #[test]
    fn other_faults_end_the_process_as_ever() {
        use std::os::unix::process::ExitStatusExt;
        const NAME: &str = "file_mapping::tests::other_faults_end_the_process_as_ever";
        match std::env::var("WARPROW_TEST_SIGBUS").as_deref() {
            Err(_) => {
                for how in ["sent", "fault"] {
                    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
                    test.args(["--exact", NAME, "--nocapture"]).env("WARPROW_TEST_SIGBUS", how);
                    let output = test.output().unwrap();
                    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{how}: {output:?}");
                }
            }
            Ok(how) => {
                nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0).unwrap();
                let file = tempfile::tempfile().unwrap();
                file.set_len(8192).unwrap();
                let _guarded = FileMapping::new(&file, 8192).unwrap();
                let other = MmapOptions::new().len(8192).map_raw_read_only(&file).unwrap();
                file.set_len(0).unwrap();
                match how {
                    // The standard library's handler takes the first for a fault that will come again.
                    "sent" => (0..2).for_each(|_| nix::sys::signal::raise(nix::sys::signal::Signal::SIGBUS).unwrap()),
                    // SAFETY: inside the mapping; the read never returns.
                    _ => assert_eq!(unsafe { other.as_ptr().read_volatile() }, 0),
                }
            }
        }
    }

    #[test]
    fn tells_what_the_page_cache_holds() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let map = FileMapping::new(&file, 1 << 20).unwrap();
        assert_eq!(map.resident().unwrap(), 0, "nobody has read or written it");
        file.write_all_at(&[7; 4096], 64 << 10).unwrap();
        let page = map.resident().unwrap();
        assert!((4096..=64 << 10).contains(&page), "{page}");
        file.write_all_at(&vec![7; 1 << 20], 0).unwrap();
        assert_eq!(map.resident().unwrap(), 1 << 20);
        // The last page need not be whole.
        let part = FileMapping::new(&file, (512 << 10) + 8).unwrap();
        assert!(part.resident().unwrap() > 512 << 10);
    }

    #[test]
    fn refuses_more_than_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(FileMapping::new(&file, 8192).is_err());
        assert!(FileMapping::new(&file, 0).is_err());
    }
}
