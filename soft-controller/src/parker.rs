//! Sleep of a worker, and the doorbell store that ends it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use warprow_dma::{Wake, order};

/// Where one worker sleeps.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Parker {
    /// Names the calling thread as the one that sleeps here.
    pub(crate) fn adopt(&self) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
    }

    /// Sleeps for at most what `limit` says after sleep was announced; zero is not at all.
    pub(crate) fn park(&self, limit: impl FnOnce() -> Duration) {
        self.asleep.store(true, Ordering::Relaxed);
        order::between_sleep_and_doorbell();
        let limit = limit();
        if !limit.is_zero() {
            std::thread::park_timeout(limit);
        }
        self.asleep.store(false, Ordering::Relaxed);
    }
}

impl Wake for Parker {
    #[inline]
    fn wake(&self) {
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Relaxed)
            && let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner)
        {
            thread.unpark();
        }
    }
}

/// All workers of a controller, for doorbells that any of them may look at.
pub(crate) struct Parkers(pub(crate) Box<[Arc<Parker>]>);

impl Wake for Parkers {
    #[inline]
    fn wake(&self) {
        self.0.iter().for_each(|parker| parker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    #[test]
    fn no_wake_is_lost() {
        let parker = Arc::new(Parker::default());
        let work = Arc::new(AtomicU32::new(0));
        let sleeper = std::thread::spawn({
            let parker = parker.clone();
            let work = work.clone();
            move || {
                parker.adopt();
                for turn in 1..=2000 {
                    while work.load(Ordering::Relaxed) < turn {
                        let done = || work.load(Ordering::Relaxed) >= turn;
                        parker.park(|| if done() { Duration::ZERO } else { Duration::from_secs(20) });
                    }
                }
            }
        });
        let start = Instant::now();
        for turn in 1..=2000 {
            work.store(turn, Ordering::Relaxed);
            order::between_doorbell_and_sleep();
            parker.wake();
            std::thread::yield_now();
        }
        sleeper.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "a wake was lost");
    }
}
