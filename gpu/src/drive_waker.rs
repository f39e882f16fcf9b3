//! Whoever wakes the drives' threads, so that callers of look-ups do not spend their own time on each of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const CALLED: u8 = 2;
const ENDED: u8 = 3;

/// A thread that does something whenever it is called, and sleeps otherwise. Calls while it is at it count as one.
#[derive(Debug)]
pub(crate) struct DriveWaker {
    state: Arc<AtomicU8>,
    /// Nanoseconds from `began` to the end of the lull after the last call that counted.
    quiet_until: AtomicU64,
    began: Instant,
    lull: Duration,
    thread: Option<JoinHandle<()>>,
}

impl DriveWaker {
    /// `lull`: calls so soon after another are not needed.
    pub(crate) fn new(name: &str, lull: Duration, tell: impl Fn() + Send + 'static) -> io::Result<Self> {
        let state = Arc::new(AtomicU8::new(AWAKE));
        let thread = Builder::new().name(name.to_owned()).spawn({
            let state = state.clone();
            move || {
                loop {
                    match state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => std::thread::park(),
                        Err(ENDED) => return,
                        // Woken by nobody, or by a call.
                        Err(_)
                            if state.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire).is_ok() => {}
                        Err(_) => {
                            if state.compare_exchange(CALLED, AWAKE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                                tell();
                            }
                        }
                    }
                }
            }
        })?;
        Ok(Self { state, quiet_until: AtomicU64::new(0), began: Instant::now(), lull, thread: Some(thread) })
    }

    /// What came before happens before what the thread then does, if the call counts.
    pub(crate) fn call(&self) {
        let now = self.began.elapsed();
        if (now.as_nanos() as u64) < self.quiet_until.load(Ordering::Relaxed) {
            return;
        }
        self.quiet_until.store((now + self.lull).as_nanos() as u64, Ordering::Relaxed);
        if self.state.swap(CALLED, Ordering::AcqRel) == ASLEEP
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }
}

impl Drop for DriveWaker {
    fn drop(&mut self) {
        self.state.store(ENDED, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_lost() {
        let asked = Arc::new(AtomicU64::new(0));
        let told = Arc::new(AtomicU64::new(0));
        let waker = DriveWaker::new("waker", Duration::ZERO, {
            let asked = asked.clone();
            let told = told.clone();
            move || told.store(asked.load(Ordering::Relaxed), Ordering::Relaxed)
        })
        .unwrap();
        let limit = Instant::now() + Duration::from_secs(20);
        for turn in 1..=5000 {
            asked.store(turn, Ordering::Relaxed);
            waker.call();
            // Every few turns only: calls that meet count as one.
            while turn % 3 == 0 && told.load(Ordering::Relaxed) != turn {
                assert!(Instant::now() < limit, "call {turn} was lost");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_lull_is_kept() {
        let told = Arc::new(AtomicU64::new(0));
        let waker = DriveWaker::new("waker", Duration::from_secs(3600), {
            let told = told.clone();
            move || {
                told.fetch_add(1, Ordering::Relaxed);
            }
        })
        .unwrap();
        waker.call();
        let limit = Instant::now() + Duration::from_secs(20);
        while told.load(Ordering::Relaxed) == 0 {
            assert!(Instant::now() < limit, "the call was lost");
            std::thread::yield_now();
        }
        for _ in 0..20 {
            waker.call();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }
}
