use std::time::{Duration, Instant};

/// Time, and what a thread does while it waits for a device. The driver gets its clock from its caller, so that a
/// simulation can control both.
pub trait Clock: Send + Sync {
    /// Time since some fixed point; never goes back.
    fn now(&self) -> Duration;

    /// Called in every turn of a polling loop that has found nothing; `turn` counts up from 0 while the loop finds
    /// nothing.
    fn relax(&self, turn: u32);

    /// Waits for about `duration`.
    fn sleep(&self, duration: Duration);

    /// Whether several threads may wait by this clock at once. `false` for a simulated clock that the waiting thread
    /// itself advances: with several threads the run would depend on how they are scheduled.
    fn is_concurrent(&self) -> bool {
        true
    }
}

/// The monotonic clock of the system.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock whose zero is now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn relax(&self, turn: u32) {
        // Spin through an NVMe latency, then let others run: with more waiters than cores, the awaited controller
        // thread may be waiting for this very core.
        if turn < 128 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}
