//! A drive in software whose doorbells are a page that the kernel maps as it maps a BAR (`VM_PFNMAP`), so that CUDA has
//! to register it as I/O memory, and kernels store to it with `st.mmio`. The page is the first of a perf ring: since
//! Linux 6.14 the kernel maps that page by its frame number, and behind it is memory of this process's own. No device's
//! register is touched. It shows registration, privilege, the instruction and the order of stores; the way over PCIe to
//! a drive it does not show.

use std::arch::x86_64::{_mm_clflush, _mm_mfence};
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use warprow_dma::{DmaMemory, Doorbell, Function, FunctionError, Mmio};
use warprow_soft_controller::SoftController;

const PAGE: usize = 4096;
/// Where doorbells begin in BAR0 (NVMe PCIe Transport 1.0, 3.1.2).
const DOORBELLS: u64 = 0x1000;
/// The words before are perf's own. Doorbells of queues that a GPU drives lie behind, because their identifiers are
/// high.
const FIRST_WORD: usize = 32;
/// What a word of the page holds while nobody has stored to it.
const UNRUNG: u32 = 0xdead_be11;

/// What the controller's own word holds where there is no such queue.
const NO_QUEUE: u32 = u32::MAX;

/// The page, mapped as the kernel maps a BAR.
struct Page(MmapRaw);

impl Page {
    fn new() -> io::Result<Self> {
        /// The first 64 bytes of `perf_event_attr` (`PERF_ATTR_SIZE_VER0`).
        #[repr(C)]
        #[derive(Default)]
        struct Attributes {
            kind: u32,
            size: u32,
            config: u64,
            sample: [u64; 3],
            flags: u64,
            rest: [u64; 2],
        }
        /// A software event that never counts anything: disabled, without the kernel and the hypervisor.
        const SOFTWARE: (u32, u64) = (1, 9);
        const FLAGS: u64 = 1 | 1 << 5 | 1 << 6;
        let attributes = Attributes {
            kind: SOFTWARE.0,
            size: size_of::<Attributes>() as u32,
            config: SOFTWARE.1,
            flags: FLAGS,
            ..Attributes::default()
        };
        // SAFETY: the structure is as long as it says, and the kernel reads it alone.
        let file = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, 0) };
        let file = i32::try_from(file).ok().filter(|&file| file >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the descriptor was just opened, and nobody else has it.
        let file = unsafe { File::from_raw_fd(file) };
        let page = Self(MmapOptions::new().len(PAGE).map_raw(&file)?);
        // The first store has the kernel make the page writable.
        (FIRST_WORD..PAGE / 4).for_each(|word| page.store(word, UNRUNG));
        Ok(page)
    }

    /// Whether the kernel says of the mapping that it is one of page frames.
    fn is_of_frames(&self) -> bool {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let begin = format!("{:x}-", self.0.as_ptr() as usize);
        let lines = smaps.lines().skip_while(|line| !line.starts_with(&begin));
        lines.take(40).find_map(|line| line.strip_prefix("VmFlags:")).is_some_and(|flags| flags.contains(" pf"))
    }

    fn at(&self, word: usize) -> *mut u32 {
        assert!(word < PAGE / 4);
        self.0.as_mut_ptr().cast::<u32>().wrapping_add(word)
    }

    /// What a GPU stores to I/O memory may pass by the processor's caches, so no line of them is kept.
    fn load(&self, word: usize) -> u32 {
        let at = self.at(word);
        // SAFETY: inside the page, which no reference of Rust's reaches.
        unsafe {
            _mm_clflush(at.cast());
            _mm_mfence();
            at.read_volatile()
        }
    }

    fn store(&self, word: usize, value: u32) {
        let at = self.at(word);
        // SAFETY: as above.
        unsafe {
            at.write_volatile(value);
            _mm_clflush(at.cast());
            _mm_mfence();
        }
    }
}

/// A software controller behind the page. A thread plays the part of the device that notices stores to its registers.
pub(crate) struct StandIn {
    pub(crate) soft: Arc<SoftController>,
    page: Arc<Page>,
    /// Stores that the thread has seen.
    seen: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for StandIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StandIn").field(&self.soft).finish()
    }
}

impl StandIn {
    /// `None`, after saying why, where the kernel has no such page.
    pub(crate) fn new(soft: Arc<SoftController>) -> Option<Arc<Self>> {
        let page = match Page::new() {
            Ok(page) if page.is_of_frames() => Arc::new(page),
            Ok(_) => {
                eprintln!("skipped: this kernel maps a perf ring as ordinary memory (6.14 and later map page frames)");
                return None;
            }
            Err(error) => {
                eprintln!("skipped: no perf ring ({error}): it stands in for a BAR");
                return None;
            }
        };
        let (seen, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let device = Device { soft: soft.clone(), page: page.clone(), seen: seen.clone() };
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || device.run(&stop)
        });
        Some(Arc::new(Self { soft, page, seen, stop, thread: Some(thread) }))
    }

    /// Stores to the page that were seen.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's part.
struct Device {
    soft: Arc<SoftController>,
    page: Arc<Page>,
    seen: Arc<AtomicU64>,
}

impl Device {
    fn run(&self, stop: &AtomicBool) {
        let memory = self.soft.doorbell_memory();
        let bell = |word: usize| self.soft.doorbell(DOORBELLS + word as u64 * 4);
        let bells: Vec<_> = (0..PAGE / 4).map_while(|word| bell(word).ok()).collect();
        let words = bells.len();
        let mut last: Vec<u32> = (0..words).map(|word| memory.load_u32(word * 4)).collect();
        while !stop.load(Ordering::Relaxed) {
            for tail in (FIRST_WORD..words - 1).step_by(2) {
                // A tail that is seen was stored behind its head, so the head goes on first.
                let rung = [tail, tail + 1].map(|word| self.rung(&memory, &mut last, word));
                for (word, value) in [(tail + 1, rung[1]), (tail, rung[0])] {
                    if let Some(value) = value {
                        bells[word].ring(value);
                        last[word] = value;
                        self.seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            std::thread::sleep(Duration::from_micros(5));
        }
    }

    /// What was stored to a register since it was looked at last. Where the controller has made or deleted the
    /// register's queue since, what is there is from before.
    fn rung(&self, memory: &DmaMemory, last: &mut [u32], word: usize) -> Option<u32> {
        let now = memory.load_u32(word * 4);
        if now != last[word] {
            last[word] = now;
            self.page.store(word, UNRUNG);
            return None;
        }
        if now == NO_QUEUE {
            return None;
        }
        let stored = self.page.load(word);
        (stored != UNRUNG && stored != now).then_some(stored)
    }
}

impl Function for StandIn {
    fn name(&self) -> &str {
        self.soft.name()
    }
    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.soft.read_u32(offset)
    }
    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.soft.read_u64(offset)
    }
    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.soft.write_u32(offset, value)
    }
    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        self.soft.write_u64(offset, value)
    }
    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError> {
        self.soft.doorbell(offset)
    }
    fn doorbell_registers(&self) -> Result<Option<Mmio>, FunctionError> {
        // SAFETY: the page stays mapped for as long as the owner that is handed over lives, and no reference of Rust's
        // reaches it.
        let registers = |base| unsafe { Mmio::new(base, PAGE, self.page.clone()) };
        Ok(NonNull::new(self.page.0.as_mut_ptr()).map(registers))
    }
    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
        self.soft.map(memory)
    }
    fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
        self.soft.unmap(iova)
    }
    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
        self.soft.set_bus_master(enabled)
    }
    fn reset(&self) -> Result<(), FunctionError> {
        self.soft.reset()
    }
}
