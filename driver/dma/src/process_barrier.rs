//! A barrier for all threads of this process at once, paid by the one that asks for it.

use std::sync::OnceLock;

/// `membarrier(2)`'s commands (linux/membarrier.h).
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Whether the system has the barrier; known once a thread has asked for it.
static AVAILABLE: OnceLock<bool> = OnceLock::new();

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes two numbers (and a third that these commands ignore) and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether threads may rely on others calling [`process_barrier`]. Those that call it find out first, so whoever sees `true`
/// can be sure that every later sleeper uses it.
#[inline(always)]
pub(crate) fn is_available() -> bool {
    AVAILABLE.get().is_some_and(|&available| available)
}

/// A full barrier in this thread, and in all others of the process between its beginning and its end; false if the system
/// does not have that (kernels before 4.14, or a filter of system calls).
pub(crate) fn process_barrier() -> bool {
    *AVAILABLE.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED)) && membarrier(PRIVATE_EXPEDITED)
}
