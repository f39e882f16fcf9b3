use std::fmt;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::DmaMemory;

/// A file's bytes as this process sees them in the page cache, read-only. Writes to the file by any means show here.
///
/// The file must not shrink while it is mapped: the kernel answers a read past its end with SIGBUS. Whoever maps it
/// holds a lock on it and opens it with its final size.
pub struct FileMapping {
    base: NonNull<u8>,
    len: usize,
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
        Ok(Self { base, len, _map: map })
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
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

    /// Copies `len` bytes at `offset` to `target`; offset and length are multiples of 8. Panics outside either range.
    pub fn copy_to(&self, offset: usize, target: &DmaMemory, target_offset: usize, len: usize) {
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
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::{Backing, PAGE};

    #[test]
    fn shows_what_is_written_to_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let map = FileMapping::new(&file, 8192).unwrap();
        let data: Vec<u8> = (0..600u32).map(|i| (i * 7) as u8).collect();
        file.write_all_at(&data, 4096).unwrap();
        let memory = DmaMemory::allocate(PAGE, Backing::Anonymous).unwrap();
        for target in [0, 4, 1001] {
            map.copy_to(4096, &memory, target, 600);
            let mut got = vec![0; 600];
            memory.read(target, &mut got);
            assert_eq!(got, data);
        }
    }

    #[test]
    fn refuses_more_than_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(FileMapping::new(&file, 8192).is_err());
        assert!(FileMapping::new(&file, 0).is_err());
    }
}
