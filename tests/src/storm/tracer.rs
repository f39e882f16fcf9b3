//! Running a child so that it can be stopped before the write of a number: the same place each time, unlike a moment.
//!
//! The child is traced (`ptrace`), and its system calls that write, erase or flush are counted. Where the system does not allow
//! that, it runs untraced.

use std::process::Child;

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What a shell runs so that the command waits, before it begins, until somebody traces it.
pub(crate) const WAIT_THEN_RUN: &str = "kill -STOP $$; exec \"$0\" \"$@\"";

/// How a traced child ended.
pub(crate) struct Traced {
    /// `None`: by a signal.
    pub(crate) exit: Option<i32>,
    pub(crate) signal: Option<Signal>,
    /// Writes, erasures and flushes that it began.
    pub(crate) writes: u64,
}

/// Whether a thread that stopped is about to begin a call that changes or flushes a file.
#[cfg(target_arch = "x86_64")]
fn begins_to_write(thread: Pid) -> bool {
    let Ok(registers) = ptrace::getregs(thread) else { return false };
    // The result of a call that has not begun.
    let begins = registers.rax as i64 == -i64::from(libc::ENOSYS);
    begins && is_write(registers.orig_rax as i64)
}

#[cfg(target_arch = "aarch64")]
fn begins_to_write(thread: Pid) -> bool {
    let Ok(registers) = ptrace::getregs(thread) else { return false };
    registers.regs[7] == 0 && is_write(registers.regs[8] as i64)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn begins_to_write(_: Pid) -> bool {
    false
}

fn is_write(call: i64) -> bool {
    [libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_fdatasync, libc::SYS_fsync, libc::SYS_fallocate].contains(&call)
}

/// Whether this machine and system can do that at all.
pub(crate) const fn is_possible() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
}

/// Runs the child of `WAIT_THEN_RUN` to its end. Before write `at`, the first being 1, `then` is called; if it says so, the
/// child is killed there. `None`: the child may not be traced; it runs on by itself.
pub(crate) fn run(child: &Child, at: u64, then: &mut dyn FnMut() -> Result<bool>) -> Result<Option<Traced>> {
    let pid = Pid::from_raw(child.id().cast_signed());
    match waitpid(pid, Some(WaitPidFlag::WUNTRACED))? {
        WaitStatus::Stopped(..) => {}
        other => bail!("the shell that should wait ended: {other:?}"),
    }
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    let allowed = ptrace::seize(pid, options);
    kill(pid, Signal::SIGCONT)?;
    match allowed {
        Ok(()) => {}
        Err(Errno::EPERM | Errno::ENOSYS | Errno::EACCES) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    let mut writes = 0;
    loop {
        // This thread's alone: another thread of this program may run children of its own.
        let status = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD))?;
        let (thread, signal) = match status {
            WaitStatus::Exited(it, exit) if it == pid => {
                return Ok(Some(Traced { exit: Some(exit), signal: None, writes }));
            }
            WaitStatus::Signaled(it, signal, _) if it == pid => {
                return Ok(Some(Traced { exit: None, signal: Some(signal), writes }));
            }
            WaitStatus::PtraceSyscall(thread) => {
                if begins_to_write(thread) {
                    writes += 1;
                    if writes == at && then()? {
                        kill(pid, Signal::SIGKILL)?;
                    }
                }
                (thread, None)
            }
            WaitStatus::PtraceEvent(thread, ..) => (thread, None),
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            _ => continue,
        };
        match ptrace::syscall(thread, signal) {
            // It was killed meanwhile.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
