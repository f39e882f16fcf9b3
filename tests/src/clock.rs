use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warprow_dma::Clock;
use warprow_soft_controller::SoftController;

/// What one turn of a polling loop costs.
const TURN: Duration = Duration::from_nanos(100);
/// Turns without an event after which time doubles its pace, and its fastest pace: a time-out of seconds is reached after
/// a few hundred turns.
const PATIENCE: u32 = 8;
const FASTEST: Duration = Duration::from_millis(1);

type Hook = Box<dyn FnMut(Duration) + Send>;

/// Time that passes only while somebody waits. Waiting steps the drives, so that host and drives run on one thread, in an
/// order that repeats.
#[derive(Default)]
pub struct VirtualClock {
    nanos: AtomicU64,
    drives: Mutex<Vec<Arc<SoftController>>>,
    hook: Mutex<Option<Hook>>,
}

impl VirtualClock {
    /// A clock that stands at zero.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn drives(&self) -> MutexGuard<'_, Vec<Arc<SoftController>>> {
        self.drives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps `drive` from now on; it was built with `stepped`, and its own time is this clock's.
    pub fn step_too(&self, drive: Arc<SoftController>) {
        self.drives().push(drive);
    }

    /// Calls `hook` with the time before each turn: for what happens to the drives from outside.
    pub fn on_turn(&self, hook: impl FnMut(Duration) + Send + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    fn set(&self, to: Duration) {
        self.nanos.store(u64::try_from(to.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Lets the drives do what they can do now. If they can do nothing, time goes on to their next event, but not past
    /// `until`.
    fn turn(&self, until: Duration) {
        if let Some(hook) = &mut *self.hook.lock().unwrap_or_else(PoisonError::into_inner) {
            hook(self.now());
        }
        let now = self.now();
        let mut idle = true;
        let mut next = until;
        for drive in self.drives().iter() {
            let progress = drive.step(now);
            idle &= progress.is_idle();
            // What is due already and was not done waits for something else.
            next = next.min(progress.next.filter(|&next| next > now).unwrap_or(until));
        }
        if idle {
            self.set(next.max(now));
        }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn relax(&self, turn: u32) {
        let pace = TURN.saturating_mul(1 << (turn / PATIENCE).min(24)).min(FASTEST);
        self.turn(self.now() + pace);
    }

    fn sleep(&self, duration: Duration) {
        let until = self.now() + duration;
        while self.now() < until {
            self.turn(until);
        }
    }

    fn is_concurrent(&self) -> bool {
        false
    }
}
