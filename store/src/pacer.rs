//! Keeps threads that read together at a rate.

use std::sync::Mutex;
use std::time::Duration;

use warprow_dma::Clock;

use crate::drive_access::lock;

/// A sleep takes some 60 µs longer than asked for. So nobody sleeps before this much is due, and small reads go out several at once.
const AHEAD: Duration = Duration::from_millis(2);
/// Reading that has fallen behind its rate, because a sleep or a drive took long, makes up for so much of that. So in any time it reads what
/// the rate allows in that time and 22 ms more, at most.
const BEHIND: Duration = Duration::from_millis(20);

/// A rate that threads keep together.
pub(crate) struct Pacer {
    bytes_per_second: u64,
    /// When the next read may begin.
    free_at: Mutex<Duration>,
}

impl Pacer {
    /// A rate that is kept from `now` on.
    pub(crate) fn new(bytes_per_second: u64, now: Duration) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), free_at: Mutex::new(now) }
    }

    /// Takes so many bytes of the rate. Returns when they may be read, if that is worth a sleep.
    pub(crate) fn reserve(&self, clock: &dyn Clock, bytes: usize) -> Option<Duration> {
        let now = clock.now();
        let mut free_at = lock(&self.free_at);
        let at = (*free_at).max(now.saturating_sub(BEHIND));
        *free_at = at + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        Some(at).filter(|&at| at > now + AHEAD)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A clock on which every sleep takes 60 µs longer than asked for.
    #[derive(Default)]
    struct Late(AtomicU64);

    impl Late {
        fn pass(&self, time: Duration) {
            self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    impl Clock for Late {
        fn now(&self) -> Duration {
            Duration::from_nanos(self.0.load(Ordering::Relaxed))
        }

        fn relax(&self, _turn: u32) {}

        fn sleep(&self, duration: Duration) {
            self.pass(duration + Duration::from_micros(60));
        }
    }

    const RATE: u64 = 64 << 20;

    /// Reads `count` times `bytes` bytes, each of which takes `each`. Never were more bytes read than `most` and what the rate allows.
    /// Returns how long it took.
    fn read(clock: &Late, pacer: &Pacer, (count, bytes): (u64, usize), each: Duration, most: f64) -> Duration {
        let began = clock.now();
        for nth in 0..count {
            if let Some(at) = pacer.reserve(clock, bytes) {
                clock.sleep(at - clock.now());
            }
            // Nanoseconds are whole: a read of 512 B takes 7,629 of them, and by the rate 7,629.4.
            let allowed = (clock.now() - began).as_secs_f64() * RATE as f64 * 1.0001 + most;
            assert!(nth as f64 * bytes as f64 <= allowed, "read number {nth} begins early");
            clock.pass(each);
        }
        clock.now() - began
    }

    #[test]
    fn reads_of_every_size_are_as_fast_as_the_rate() {
        let early = AHEAD.as_secs_f64() * RATE as f64;
        for (count, bytes) in [(20_000, 512), (20_000, 4096), (512, 512 << 10)] {
            let clock = Late::default();
            clock.pass(Duration::from_secs(5));
            let pacer = Pacer::new(RATE, clock.now());
            let took = read(&clock, &pacer, (count, bytes), Duration::from_micros(2), early);
            let due = Duration::from_secs_f64(count as f64 * bytes as f64 / RATE as f64);
            assert!(
                took <= due + due / 20 && took + due / 20 >= due,
                "{count} reads of {bytes} B: {took:?}, not {due:?}"
            );
        }
    }

    #[test]
    fn a_rest_is_not_made_up_for() {
        let clock = Late::default();
        let pacer = Pacer::new(RATE, clock.now());
        clock.pass(Duration::from_secs(60));
        let most = (AHEAD + BEHIND).as_secs_f64() * RATE as f64;
        let took = read(&clock, &pacer, (20_000, 4096), Duration::ZERO, most);
        assert!(took >= Duration::from_secs_f64((20_000.0 * 4096.0 - most) / RATE as f64), "{took:?}");
    }
}
