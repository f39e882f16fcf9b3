use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::sigbus::Guarded;

/// A page as the driver and the software controller use it, bytes.
pub const PAGE: usize = 4096;
/// A huge page, bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// What memory for DMA is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MemoryKind {
    /// 2 MiB huge pages where the system has them reserved and the length is at least one of them, else anonymous.
    #[default]
    Auto,
    /// Anonymous pages.
    Anonymous,
    /// 2 MiB huge pages, or an error.
    HugePages,
    /// A memfd, which another process can map.
    Memfd,
}

/// Memory for DMA could not be had.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot allocate {len} bytes of DMA memory ({backing:?}): {source}{}", remedy(*.backing))]
pub struct AllocateError {
    /// Length asked for, bytes.
    pub len: usize,
    /// What it was to be made of.
    pub backing: MemoryKind,
    /// The system's answer.
    pub source: Arc<std::io::Error>,
}

fn remedy(backing: MemoryKind) -> &'static str {
    match backing {
        MemoryKind::HugePages => "; reserve huge pages: echo 512 > /proc/sys/vm/nr_hugepages",
        _ => "; free some memory, or ask for less",
    }
}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
    file: Option<File>,
    huge: bool,
    /// The guard against SIGBUS, where the memory shows a file that others may shorten.
    guarded: Option<&'static Guarded>,
    _owner: Owner,
}

/// A weak handle of [`DmaMemory`]: says whether the memory still exists, without keeping it.
#[derive(Clone)]
pub struct WeakMemory(Weak<Mapping>);

impl fmt::Debug for WeakMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakMemory").field("is_gone", &self.is_gone()).finish()
    }
}

impl WeakMemory {
    /// Whether nobody has the memory any more.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// The file that memory shows, and where in it the memory begins.
struct File {
    fd: Arc<OwnedFd>,
    offset: u64,
}

/// What unmaps the memory when the last handle is dropped.
enum Owner {
    Itself(MmapRaw),
    Whole(#[allow(dead_code, reason = "kept, not used")] DmaMemory),
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let (Some(guarded), Owner::Itself(_)) = (self.guarded, &self._owner) {
            guarded.release();
        }
    }
}

/// A file cannot be mapped as DMA memory.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Offset or length is not a multiple of [`PAGE`], the length is zero, or both together overflow.
    #[error("{len} bytes at {offset:#x} of a file are not whole pages")]
    Pages {
        /// Offset in the file, bytes.
        offset: u64,
        /// Length, bytes.
        len: u64,
    },
    /// The descriptor is not a regular file's.
    #[error("the descriptor is not of a regular file")]
    NotAFile,
    /// The file ends before the mapping does.
    #[error("the file has {size} bytes; the mapping would end at {end}")]
    TooShort {
        /// The file's size, bytes.
        size: u64,
        /// Where the mapping would end, bytes.
        end: u64,
    },
    /// The system refuses.
    #[error("the file cannot be mapped: {0}")]
    System(#[from] std::io::Error),
}

// SAFETY: the memory is only reached through atomic accesses of raw pointers, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Zeroed, page-aligned memory of this process that a device may read and write at any time. Cloning shares it.
///
/// Every access is atomic and relaxed, so that a device, real or a thread of this process, may race with it: the worst
/// outcome is a stale or mixed value. Order comes from [`crate::order`]. Words that two sides use to synchronise (the
/// phase word of a CQE, 64 bits; doorbells, 32 bits) have one width on both. Racing accesses of different widths
/// (a copy against a late DMA) are outside what the language defines for threads; they happen only after a protocol
/// error, on memory whose contents are then discarded, and we rely on compilers treating them as the hardware does.
///
/// Offsets and lengths are in bytes; an access outside the memory, or misaligned, panics as a slice does. Whoever takes an
/// offset from a device checks it first ([`contains`](Self::contains)).
#[derive(Clone)]
pub struct DmaMemory(Arc<Mapping>);

impl fmt::Debug for DmaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaMemory").field("len", &self.0.len).field("huge", &self.0.huge).finish_non_exhaustive()
    }
}

impl DmaMemory {
    /// Allocates at least `len` bytes (at least one page), rounded up to whole pages of the backing.
    pub fn allocate(len: usize, backing: MemoryKind) -> Result<Self, AllocateError> {
        let error = |source: std::io::Error| AllocateError { len, backing, source: source.into() };
        let page = if backing == MemoryKind::HugePages { HUGE_PAGE } else { PAGE };
        let rounded = len
            .max(1)
            .checked_next_multiple_of(page)
            .filter(|&len| isize::try_from(len).is_ok())
            .ok_or_else(|| error(std::io::ErrorKind::OutOfMemory.into()))?;
        match backing {
            MemoryKind::Anonymous => Ok(Self::new(anonymous(rounded).map_err(error)?.into(), None, false)),
            MemoryKind::HugePages => Ok(Self::new(huge(rounded).map_err(error)?.into(), None, true)),
            MemoryKind::Auto => {
                let wanted = if rounded >= HUGE_PAGE { rounded.checked_next_multiple_of(HUGE_PAGE) } else { None };
                match wanted.and_then(|len| huge(len).ok()) {
                    Some(map) => Ok(Self::new(map.into(), None, true)),
                    None => Self::allocate(len, MemoryKind::Anonymous),
                }
            }
            MemoryKind::Memfd => {
                let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
                let fd = memfd_create("warprow-dma", flags).map_err(|e| error(e.into()))?;
                nix::unistd::ftruncate(&fd, rounded as i64).map_err(|e| error(e.into()))?;
                // Whoever gets the descriptor cannot shrink the file under our feet, nor seal it against being mapped again.
                let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
                fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).map_err(|e| error(e.into()))?;
                let map = MmapOptions::new().len(rounded).map_raw(&fd).map_err(error)?;
                Ok(Self::new(map, Some(fd), false))
            }
        }
    }

    fn new(map: MmapRaw, fd: Option<OwnedFd>, huge: bool) -> Self {
        let file = fd.map(|fd| File { fd: Arc::new(fd), offset: 0 });
        Self::guarded(map, file, huge, None)
    }

    fn guarded(map: MmapRaw, file: Option<File>, huge: bool, guarded: Option<&'static Guarded>) -> Self {
        // A child must not share pages that a device writes, nor move them by copy-on-write. Best effort: kernels
        // since 5.12 keep pinned pages in place by themselves.
        let _ = map.advise(memmap2::Advice::DontFork);
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
        Self(Arc::new(Mapping { base, len: map.len(), file, huge, guarded, _owner: Owner::Itself(map) }))
    }

    /// Maps `len` bytes at `offset` of a file that another process has made; both are multiples of [`PAGE`]. If the
    /// mapping is not `shared`, nobody else sees what this process writes to it.
    ///
    /// Others may shorten the file. At the first access past the file's end, all of the memory is then replaced by
    /// zeros: writes to it reach nobody, and [`is_lost`](Self::is_lost) says so.
    pub fn import(fd: OwnedFd, offset: u64, len: u64, shared: bool) -> Result<Self, ImportError> {
        let pages = || ImportError::Pages { offset, len };
        let end = offset.checked_add(len).ok_or_else(pages)?;
        let size =
            usize::try_from(len).ok().filter(|&len| len != 0 && isize::try_from(len).is_ok()).ok_or_else(pages)?;
        if !(offset | len).is_multiple_of(PAGE as u64) || i64::try_from(end).is_err() {
            return Err(pages());
        }
        let file = std::fs::File::from(fd);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ImportError::NotAFile);
        }
        if metadata.len() < end {
            return Err(ImportError::TooShort { size: metadata.len(), end });
        }
        let mut options = MmapOptions::new();
        // What is private is never written but by mistake: no swap is set aside for that.
        options.len(size).offset(offset).no_reserve_swap();
        // SAFETY: a private mapping; its bytes are only reached atomically, through raw pointers.
        let map = if shared { options.map_raw(&file)? } else { unsafe { options.map_copy(&file)? }.into() };
        let guarded = Guarded::writable(map.as_mut_ptr().expose_provenance(), size)?;
        let file = File { fd: Arc::new(file.into()), offset };
        Ok(Self::guarded(map, Some(file), false, Some(guarded)))
    }

    /// Maps `len` bytes at `offset` of a device's file, behind which is memory of the device: both are multiples of [`PAGE`]. The memory
    /// holds what the device has in it, and the processor may reach it slowly. The caller keeps the device from taking it away while a
    /// handle of it lives: an access would then end the process.
    pub fn import_device(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, ImportError> {
        let pages = || ImportError::Pages { offset, len };
        let size =
            usize::try_from(len).ok().filter(|&len| len != 0 && isize::try_from(len).is_ok()).ok_or_else(pages)?;
        if !(offset | len).is_multiple_of(PAGE as u64) || i64::try_from(offset).is_err() {
            return Err(pages());
        }
        let map = MmapOptions::new().len(size).offset(offset).map_raw(&file)?;
        Ok(Self::guarded(map, None, false, None))
    }

    /// `len` bytes at `offset` of this memory, as a [`DmaMemory`] of their own. Both are multiples of [`PAGE`], and the
    /// bytes lie inside; otherwise this panics.
    pub fn part(&self, offset: usize, len: usize) -> Self {
        self.check(offset, len, PAGE);
        assert!(len != 0 && len.is_multiple_of(PAGE), "{len} bytes are not whole pages");
        // SAFETY: inside the mapping (checked), which the result keeps.
        let base = unsafe { self.0.base.add(offset) };
        let file = self.0.file.as_ref().map(|file| File { fd: file.fd.clone(), offset: file.offset + offset as u64 });
        let (huge, guarded) = (self.0.huge, self.0.guarded);
        Self(Arc::new(Mapping { base, len, file, huge, guarded, _owner: Owner::Whole(self.clone()) }))
    }

    /// A weak handle, to learn later whether anybody still has this memory. Handles of a [part](Self::part) do not
    /// count for the whole.
    pub fn downgrade(&self) -> WeakMemory {
        WeakMemory(Arc::downgrade(&self.0))
    }

    /// Whether the file behind [imported](Self::import) memory was shortened, or could not be read: nothing in the memory can be
    /// believed any more.
    pub fn is_lost(&self) -> bool {
        self.0.guarded.is_some_and(Guarded::is_lost)
    }

    /// Another handle to this memory, with its own count of holders ([`is_shared`](Self::is_shared)).
    pub fn alias(&self) -> Self {
        self.part(0, self.len())
    }

    /// Whether somebody else holds a clone of this handle. Another thread may drop or make one at any time.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Whether this is the only handle. If it is, what others did with theirs happened before this call returns.
    pub(crate) fn is_unshared(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }

    /// Length in bytes, a multiple of [`PAGE`].
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it is made of huge pages.
    pub fn is_huge(&self) -> bool {
        self.0.huge
    }

    /// The address of the memory in this process, for handing it to the kernel or to CUDA. Never make a Rust reference
    /// of it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// The file that the memory shows, if any, and the byte offset in that file at which the memory begins.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.0.file.as_ref().map(|file| (file.fd.as_fd(), file.offset))
    }

    /// Whether `len` bytes at `offset` lie inside.
    #[inline(always)]
    pub fn contains(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.0.len)
    }

    #[inline(always)]
    fn check(&self, offset: usize, len: usize, align: usize) {
        if !(self.contains(offset, len) && offset & (align - 1) == 0) {
            self.refuse(offset, len, align);
        }
    }

    /// Out of line, so that hot paths do not carry what the message needs.
    #[cold]
    #[inline(never)]
    fn refuse(&self, offset: usize, len: usize, align: usize) -> ! {
        panic!("{len} bytes at {offset:#x}, aligned to {align}, are not inside {:#x} bytes of DMA memory", self.0.len);
    }

    #[inline(always)]
    fn u8(&self, offset: usize) -> &AtomicU8 {
        self.check(offset, 1, 1);
        // SAFETY: in bounds (checked), valid for as long as `self`; all accesses to this memory are atomic. A
        // reference to an atomic has interior mutability, so another writer breaks no rule of aliasing.
        unsafe { AtomicU8::from_ptr(self.0.base.as_ptr().add(offset)) }
    }

    #[inline(always)]
    fn u32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4, 4);
        // SAFETY: as in `u8`; aligned because the base is page-aligned and the offset was checked.
        unsafe { AtomicU32::from_ptr(self.0.base.as_ptr().add(offset).cast()) }
    }

    #[inline(always)]
    fn u64(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8, 8);
        // SAFETY: as in `u32`.
        unsafe { AtomicU64::from_ptr(self.0.base.as_ptr().add(offset).cast()) }
    }

    /// Loads a byte.
    #[inline(always)]
    pub fn load_u8(&self, offset: usize) -> u8 {
        self.u8(offset).load(Ordering::Relaxed)
    }

    /// Stores a byte.
    #[inline(always)]
    pub fn store_u8(&self, offset: usize, value: u8) {
        self.u8(offset).store(value, Ordering::Relaxed);
    }

    /// Loads a 4-byte-aligned word.
    #[inline(always)]
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.u32(offset).load(Ordering::Relaxed)
    }

    /// Stores a 4-byte-aligned word.
    #[inline(always)]
    pub fn store_u32(&self, offset: usize, value: u32) {
        self.u32(offset).store(value, Ordering::Relaxed);
    }

    /// Loads an 8-byte-aligned word.
    #[inline(always)]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.u64(offset).load(Ordering::Relaxed)
    }

    /// Stores an 8-byte-aligned word.
    #[inline(always)]
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.u64(offset).store(value, Ordering::Relaxed);
    }

    /// Loads `N` 8-byte-aligned words, in order of address.
    #[inline(always)]
    pub fn load_words<const N: usize>(&self, offset: usize) -> [u64; N] {
        self.check(offset, N * 8, 8);
        // SAFETY: as in `u64`, for all N words at once.
        let words = unsafe { std::slice::from_raw_parts(self.0.base.as_ptr().add(offset).cast::<AtomicU64>(), N) };
        std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
    }

    /// Stores `N` 8-byte-aligned words, in order of address.
    #[inline(always)]
    pub fn store_words<const N: usize>(&self, offset: usize, values: [u64; N]) {
        self.check(offset, N * 8, 8);
        // SAFETY: as in `u64`, for all N words at once.
        let words = unsafe { std::slice::from_raw_parts(self.0.base.as_ptr().add(offset).cast::<AtomicU64>(), N) };
        for (word, value) in words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Hints that `len` bytes at `offset` will be read soon. Nothing happens outside the memory.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.contains(offset, len) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            for line in (0..len).step_by(64) {
                // SAFETY: the address is inside the mapping (checked); a prefetch reads nothing that the program sees.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.0.base.as_ptr().add(offset + line).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, len);
    }

    /// Copies out of the memory. If a device writes at the same time, each byte may be from before or after that write.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len(), 1);
        let head = offset.wrapping_neg() % 8;
        let (first, rest) = into.split_at_mut(head.min(into.len()));
        for (i, byte) in first.iter_mut().enumerate() {
            *byte = self.load_u8(offset + i);
        }
        let start = offset + first.len();
        let (words, last) = rest.as_chunks_mut::<8>();
        // SAFETY: as in `u64`: checked above, and `start` is 8-byte aligned if there is any word.
        let source = unsafe { atomics(self, start, words.len()) };
        for (word, atomic) in words.iter_mut().zip(source) {
            *word = atomic.load(Ordering::Relaxed).to_ne_bytes();
        }
        let start = start + words.len() * 8;
        for (i, byte) in last.iter_mut().enumerate() {
            *byte = self.load_u8(start + i);
        }
    }

    /// Copies into the memory.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len(), 1);
        let head = offset.wrapping_neg() % 8;
        let (first, rest) = from.split_at(head.min(from.len()));
        for (i, &byte) in first.iter().enumerate() {
            self.store_u8(offset + i, byte);
        }
        let start = offset + first.len();
        let (words, last) = rest.as_chunks::<8>();
        // SAFETY: as in `read`.
        let target = unsafe { atomics(self, start, words.len()) };
        for (word, atomic) in words.iter().zip(target) {
            atomic.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        let start = start + words.len() * 8;
        for (i, &byte) in last.iter().enumerate() {
            self.store_u8(start + i, byte);
        }
    }

    /// Sets `len` bytes to `byte`.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        self.check(offset, len, 1);
        let block = [byte; 4096];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(block.len());
            self.write(offset + done, &block[..n]);
            done += n;
        }
    }

    /// Sets `len` bytes to zero, and gives whole pages of anonymous memory back to the system until they are written
    /// again.
    pub fn discard(&self, offset: usize, len: usize) {
        self.check(offset, len, 1);
        let (start, end) = (offset.next_multiple_of(PAGE), (offset + len) / PAGE * PAGE);
        if self.0.file.is_some() || self.0.huge || start >= end {
            return self.fill(offset, len, 0);
        }
        self.fill(offset, start - offset, 0);
        self.fill(end, offset + len - end, 0);
        let discarded = match &self.0._owner {
            // SAFETY: the pages are private and anonymous, inside the mapping (checked), and read as zeros afterwards, as
            // if they had been written; they are only accessed atomically, and nothing relies on their content.
            Owner::Itself(map) => unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start).is_ok()
            },
            Owner::Whole(_) => false,
        };
        if !discarded {
            self.fill(start, end - start, 0);
        }
    }

    /// Copies `len` bytes to `target`, from one DMA memory into another. The two ranges do not overlap (if they do,
    /// the result mixes both).
    pub fn copy_to(&self, offset: usize, target: &DmaMemory, target_offset: usize, len: usize) {
        self.check(offset, len, 1);
        target.check(target_offset, len, 1);
        if (offset | target_offset | len) & 7 == 0 {
            // SAFETY: both ranges were checked, both are 8-byte aligned.
            let (from, to) = unsafe { (atomics(self, offset, len / 8), atomics(target, target_offset, len / 8)) };
            for (from, to) in from.iter().zip(to) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        } else {
            let mut block = [0; 512];
            let mut done = 0;
            while done < len {
                let n = (len - done).min(block.len());
                self.read(offset + done, &mut block[..n]);
                target.write(target_offset + done, &block[..n]);
                done += n;
            }
        }
    }
}

/// # Safety
/// `offset` is 8-byte aligned unless `count` is 0, and the words lie inside `memory`.
#[inline(always)]
unsafe fn atomics(memory: &DmaMemory, offset: usize, count: usize) -> &[AtomicU64] {
    if count == 0 {
        return &[];
    }
    // SAFETY: in bounds and aligned as promised; atomics have interior mutability, so that a device may write.
    unsafe { std::slice::from_raw_parts(memory.0.base.as_ptr().add(offset).cast(), count) }
}

fn anonymous(len: usize) -> std::io::Result<MmapMut> {
    let map = MmapOptions::new().len(len).map_anon()?;
    #[cfg(target_os = "linux")]
    if len >= HUGE_PAGE {
        // Transparent huge pages are a kindness of the kernel: fine without.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    Ok(map)
}

fn huge(len: usize) -> std::io::Result<MmapMut> {
    MmapOptions::new().len(len).huge(Some(21)).map_anon()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    #[test]
    fn every_backing_is_zeroed_and_writable() {
        for backing in [MemoryKind::Auto, MemoryKind::Anonymous, MemoryKind::Memfd] {
            let memory = DmaMemory::allocate(3 * PAGE + 1, backing).unwrap();
            assert_eq!(memory.len(), 4 * PAGE);
            assert_eq!(memory.load_u64(4 * PAGE - 8), 0);
            memory.store_u64(8, 0x0102_0304_0506_0708);
            assert_eq!(memory.load_u32(8), 0x0506_0708);
            assert_eq!(memory.file().is_some(), backing == MemoryKind::Memfd);
        }
    }

    #[test]
    fn an_alias_is_the_same_memory_with_a_count_of_its_own() {
        for backing in [MemoryKind::Anonymous, MemoryKind::Memfd] {
            let memory = DmaMemory::allocate(PAGE, backing).unwrap();
            let alias = memory.alias();
            assert!(memory.is_shared() && !alias.is_shared(), "the alias keeps the memory");
            assert_eq!((alias.as_ptr(), alias.len()), (memory.as_ptr(), memory.len()));
            assert_eq!(alias.file().is_some(), backing == MemoryKind::Memfd);
            let clone = alias.clone();
            assert!(alias.is_shared());
            drop((clone, memory));
            assert!(!alias.is_shared());
            alias.store_u32(8, 7);
            alias.discard(0, PAGE);
            assert_eq!(alias.load_u32(8), 0);
        }
    }

    #[test]
    fn discarded_bytes_are_zero_and_others_stay() {
        for backing in [MemoryKind::Anonymous, MemoryKind::Memfd] {
            let memory = DmaMemory::allocate(4 * PAGE, backing).unwrap();
            for (offset, len) in [(0, 4 * PAGE), (100, 3 * PAGE), (PAGE, PAGE), (PAGE - 1, 2), (5, 0), (4 * PAGE, 0)] {
                memory.fill(0, 4 * PAGE, 0xcc);
                memory.discard(offset, len);
                for at in 0..4 * PAGE {
                    let want = if (offset..offset + len).contains(&at) { 0 } else { 0xcc };
                    assert_eq!(memory.load_u8(at), want, "{backing:?}: {at} of {len} at {offset}");
                }
            }
        }
    }

    #[test]
    fn a_file_of_somebody_else_is_shared_until_it_is_shortened() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * PAGE as u64).unwrap();
        let import = |offset, len, shared| DmaMemory::import(file.try_clone().unwrap().into(), offset, len, shared);
        let (page, mut bytes) = (PAGE as u64, [0; 8]);
        let (shared, private) = (import(page, 4 * page, true).unwrap(), import(page, 4 * page, false).unwrap());
        shared.store_u64(8, 0x1122_3344_5566_7788);
        file.read_exact_at(&mut bytes, page + 8).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 0x1122_3344_5566_7788);
        private.store_u64(16, 7);
        assert_eq!((private.load_u64(8), shared.load_u64(16)), (0x1122_3344_5566_7788, 0));

        let part = shared.part(2 * PAGE, PAGE);
        assert_eq!((part.len(), part.file().unwrap().1), (PAGE, 3 * page));
        part.store_u32(4, 99);
        assert_eq!(shared.load_u32(2 * PAGE + 4), 99);
        drop(shared);
        assert!(!part.is_lost());
        file.set_len(page).unwrap();
        part.store_u32(8, 1);
        assert_eq!(part.load_u32(4), 0);
        assert!(part.is_lost());
        private.load_u64(8 * 100);
        assert!(private.is_lost());
    }

    #[test]
    fn many_mappings_come_and_go_while_some_are_lost() {
        let threads: Vec<_> = (0..4u64)
            .map(|seed| {
                std::thread::spawn(move || {
                    for round in 0..200 {
                        let file = tempfile::tempfile().unwrap();
                        let pages = 1 + (seed * 7 + round) % 5;
                        file.set_len(pages * PAGE as u64).unwrap();
                        let fd = file.try_clone().unwrap().into();
                        let memory = DmaMemory::import(fd, 0, pages * PAGE as u64, true).unwrap();
                        let last = memory.len() - 8;
                        memory.store_u64(last, round + 1);
                        if round % 3 == 0 {
                            file.set_len(0).unwrap();
                            assert_eq!(memory.load_u64(last), 0);
                        } else {
                            assert_eq!(memory.load_u64(last), round + 1);
                        }
                        assert_eq!(memory.is_lost(), round % 3 == 0, "{seed} {round}");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn what_is_no_file_of_whole_pages_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * PAGE as u64).unwrap();
        let page = PAGE as u64;
        for (offset, len) in [
            (0, 0),
            (1, page),
            (0, page + 1),
            (page, 8 * page),
            (!(page - 1), page),
            (u64::MAX, page),
            (0, 1 << 63),
            (0, !(page - 1)),
        ] {
            assert!(DmaMemory::import(file.try_clone().unwrap().into(), offset, len, true).is_err(), "{offset} {len}");
        }
        let null = std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap();
        assert!(matches!(DmaMemory::import(null.into(), 0, page, true), Err(ImportError::NotAFile)));
        let (read, _write) = std::io::pipe().unwrap();
        assert!(matches!(DmaMemory::import(read.into(), 0, page, true), Err(ImportError::NotAFile)));
    }

    /// The device of zeros gives each mapping pages of its own, which stand for a device's memory.
    #[test]
    fn memory_of_a_device_is_mapped() {
        let device = std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap();
        let memory = DmaMemory::import_device(device.as_fd(), 0, 2 * PAGE as u64).unwrap();
        memory.write(PAGE - 3, &[1, 2, 3, 4, 5]);
        let mut read = [9; 7];
        memory.read(PAGE - 4, &mut read);
        assert_eq!((read, memory.len()), ([0, 1, 2, 3, 4, 5, 0], 2 * PAGE));
        assert!(memory.file().is_none(), "it cannot be handed to other processes");
        for (offset, len) in [(1, PAGE as u64), (0, 1), (0, 0), (u64::MAX - 4095, PAGE as u64)] {
            let refused = DmaMemory::import_device(device.as_fd(), offset, len);
            assert!(matches!(refused, Err(ImportError::Pages { .. })), "{offset} {len}");
        }
    }

    #[test]
    fn impossible_lengths_are_errors() {
        assert!(DmaMemory::allocate(usize::MAX, MemoryKind::Anonymous).is_err());
        assert!(DmaMemory::allocate(isize::MAX as usize, MemoryKind::Memfd).is_err());
    }

    #[test]
    #[should_panic(expected = "not inside")]
    fn access_past_the_end_panics() {
        DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap().load_u32(PAGE - 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn copies_match_a_plain_vector(
            data in proptest::collection::vec(any::<u8>(), 0..700),
            offset in 0usize..1000, target in 0usize..1000,
        ) {
            let a = DmaMemory::allocate(2 * PAGE, MemoryKind::Anonymous).unwrap();
            let b = DmaMemory::allocate(2 * PAGE, MemoryKind::Anonymous).unwrap();
            a.fill(0, a.len(), 0xa5);
            b.fill(0, b.len(), 0x5a);
            a.write(offset, &data);
            a.copy_to(offset, &b, target, data.len());
            let mut want = vec![0x5a; 2 * PAGE];
            want[target..target + data.len()].copy_from_slice(&data);
            let mut got = vec![0; 2 * PAGE];
            b.read(0, &mut got);
            prop_assert_eq!(&got, &want);
            let mut part = vec![0; data.len()];
            b.read(target, &mut part);
            prop_assert_eq!(part, data);
        }
    }
}
