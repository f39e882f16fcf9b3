use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// An interrupt vector of a function, to be waited for.
pub trait Interrupt: Send + Sync + fmt::Debug {
    /// Sleeps until the device has interrupted, for `at_most`. Returns whether the device has interrupted since the
    /// last wait that returned `true`. If several threads wait, only one of them learns of each interrupt.
    fn wait(&self, at_most: Duration) -> bool;
}

/// An interrupt that the kernel, or another process, signals through an eventfd.
pub struct EventfdInterrupt(EventFd);

impl fmt::Debug for EventfdInterrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

impl EventfdInterrupt {
    /// Makes an interrupt that has not been signalled.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?))
    }
}

impl AsFd for EventfdInterrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Interrupt for EventfdInterrupt {
    fn wait(&self, at_most: Duration) -> bool {
        // Rounded up: a wait of less than a millisecond is not to spin.
        let millis = at_most.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128);
        let timeout = PollTimeout::try_from(millis as i32).unwrap_or(PollTimeout::MAX);
        let mut wanted = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        // A signal that interrupts the wait only ends it early.
        let _ = poll(&mut wanted, timeout);
        self.0.read().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_signal_wakes_once_and_silence_ends_in_time() {
        let event = EventfdInterrupt::new().unwrap();
        let began = Instant::now();
        assert!(!event.wait(Duration::from_micros(20_500)));
        assert!(began.elapsed() >= Duration::from_millis(20), "it did not wait");
        event.0.write(3).unwrap();
        assert!(event.wait(Duration::from_secs(60)));
        assert!(!event.wait(Duration::ZERO), "one signal, two interrupts");
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                event.0.write(1).unwrap();
            });
            assert!(event.wait(Duration::from_secs(60)));
        });
        assert!(began.elapsed() < Duration::from_secs(30), "it slept through the signal");
    }
}
