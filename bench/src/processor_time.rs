//! What a thread has spent.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Processor time of the calling thread, by its own clock.
pub(crate) fn of_this_thread() -> anyhow::Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?))
}
