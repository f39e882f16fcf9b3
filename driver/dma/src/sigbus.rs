//! SIGBUS of mapped files: what the kernel answers to a read of a page that it cannot give, because the file was shortened or
//! its disk failed. A handler puts pages of zeros where the file was and marks the mapping as lost. Whoever read then sees the
//! mark before believing what was read.

use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering, fence};

/// A mapping that the handler knows. It is never freed, since a handler may be looking at it, but used again for another mapping.
#[derive(Debug)]
pub(crate) struct Guarded {
    /// Odd while the next fields change, and another number afterwards.
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    protection: AtomicI32,
    mapped: AtomicBool,
    lost: AtomicBool,
    /// Whether no mapping uses this entry, so that the next one may take it.
    free: AtomicBool,
    next: *const Guarded,
}

// SAFETY: `next` never changes and leads to what is never freed; everything else is atomic or never changes.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

/// The newest entry, from which `next` leads to all others.
static NEWEST: AtomicPtr<Guarded> = AtomicPtr::new(ptr::null_mut());

/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Guarded {
    /// Guards the pages from `start` on, which were just mapped, until [`release`](Self::release).
    pub(crate) fn new(start: usize, len: usize) -> std::io::Result<&'static Self> {
        Self::with(start, len, libc::PROT_READ)
    }

    /// Guards pages that are written as well as read. What is written after they are lost reaches nobody.
    pub(crate) fn writable(start: usize, len: usize) -> std::io::Result<&'static Self> {
        Self::with(start, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn with(start: usize, len: usize, protection: c_int) -> std::io::Result<&'static Self> {
        install()?;
        let mut next = NEWEST.load(Ordering::Acquire).cast_const();
        // SAFETY: null, or what is never freed.
        while let Some(guarded) = unsafe { next.as_ref() } {
            if guarded.free.load(Ordering::Relaxed) && guarded.free.swap(false, Ordering::Acquire) {
                guarded.set(start, len, protection);
                return Ok(guarded);
            }
            next = guarded.next;
        }
        let new = Box::leak(Box::new(Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(start),
            len: AtomicUsize::new(len),
            protection: AtomicI32::new(protection),
            mapped: AtomicBool::new(true),
            lost: AtomicBool::new(false),
            free: AtomicBool::new(false),
            next: ptr::null(),
        }));
        let mut newest = NEWEST.load(Ordering::Acquire);
        loop {
            new.next = newest;
            match NEWEST.compare_exchange_weak(newest, ptr::from_mut(new), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(new),
                Err(other) => newest = other,
            }
        }
    }

    /// Takes an entry that was free for these pages.
    fn set(&self, start: usize, len: usize, protection: c_int) {
        // All in one order: a handler that sees any of these sees that the version has changed.
        self.version.fetch_add(1, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.len.store(len, Ordering::SeqCst);
        self.protection.store(protection, Ordering::SeqCst);
        self.lost.store(false, Ordering::SeqCst);
        self.mapped.store(true, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// The pages are about to be unmapped.
    pub(crate) fn release(&self) {
        self.mapped.store(false, Ordering::SeqCst);
        self.free.store(true, Ordering::Release);
    }

    /// Whether bytes that were read from these pages before this call may be zeros instead of the file's bytes.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        // What was read before must not be later than the mark: this pairs with the system call in the handler.
        fence(Ordering::Acquire);
        self.lost.load(Ordering::Relaxed)
    }

    /// Marks the mapping as lost and puts pages of zeros in its place, if `address` lies in it. Returns whether that
    /// was done.
    fn give_up(&self, address: usize) -> bool {
        let version = self.version.load(Ordering::SeqCst);
        let mapped = self.mapped.load(Ordering::SeqCst);
        let (start, len) = (self.start.load(Ordering::SeqCst), self.len.load(Ordering::SeqCst));
        let protection = self.protection.load(Ordering::SeqCst);
        // While a thread reads pages, their entry does not change. If this entry has changed, the faulting thread was
        // not reading its pages.
        if version % 2 == 1 || self.version.load(Ordering::SeqCst) != version {
            return false;
        }
        if !mapped || !(start..start + len).contains(&address) {
            return false;
        }
        self.lost.store(true, Ordering::SeqCst);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: these pages are a mapping of a file, which nobody unmaps while somebody is there, as whoever brought us here
        // is. Everybody who reads them asks afterwards whether they are lost, or takes zeros for an answer like any other.
        let zeros = unsafe { libc::mmap(ptr::with_exposed_provenance_mut(start), len, protection, flags, -1, 0) };
        zeros != libc::MAP_FAILED
    }
}

fn install() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let install = || {
        let failed = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        // SAFETY: all zeros are a valid `sigaction`, which the calls fill or read; the handler does only what a handler may:
        // atomics and system calls.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
                return Err(failed());
            }
            // Before the handler, which looks here.
            let _ = BEFORE.set(before);
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = handler as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigemptyset(&mut ours.sa_mask);
            if libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) != 0 {
                return Err(failed());
            }
        }
        Ok(())
    };
    INSTALLED.get_or_init(install).map_err(std::io::Error::from_raw_os_error)
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid one; a fault has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Else somebody has sent it.
    if code > 0 {
        let mut next = NEWEST.load(Ordering::Acquire).cast_const();
        // SAFETY: null, or what is never freed.
        while let Some(guarded) = unsafe { next.as_ref() } {
            if guarded.give_up(address) {
                return;
            }
            next = guarded.next;
        }
    }
    // SAFETY: the same arguments, for the handler that the signal would have had.
    unsafe { pass_on(code, signal, info, context) }
}

/// Does what the process would have done with the signal without this handler.
///
/// # Safety
///
/// The arguments are those that the kernel gave the handler of SIGBUS.
unsafe fn pass_on(code: i32, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: all zeros are the default.
    let before = BEFORE.get().copied().unwrap_or(unsafe { std::mem::zeroed() });
    match before.sa_sigaction {
        libc::SIG_IGN if code <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: a valid action. The access that faulted is made again, and ends the process; a signal that was sent is sent
            // again, and does so when this returns.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, ptr::null_mut());
                if code <= 0 {
                    libc::raise(signal);
                }
            }
        }
        function if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: installed with this flag, it is such a function.
            let function: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(function) };
            function(signal, info, context);
        }
        function => {
            // SAFETY: installed without the flag, it is such a function.
            let function: extern "C" fn(c_int) = unsafe { std::mem::transmute(function) };
            function(signal);
        }
    }
}
