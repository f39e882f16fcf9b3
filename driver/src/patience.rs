use std::time::Duration;

use warprow_dma::{Clock, Interrupt};

/// How long a wait spins and yields before it sleeps between looks.
const SPIN: Duration = Duration::from_millis(2);
/// The longest sleep between looks, without and with an interrupt that ends it.
const LONGEST: Duration = Duration::from_millis(5);
const LONGEST_INTERRUPTIBLE: Duration = Duration::from_millis(100);

/// A bounded wait for something slow: registers, admin commands.
pub(crate) struct Patience<'a> {
    clock: &'a dyn Clock,
    began: Duration,
    limit: Duration,
    turn: u32,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(clock: &'a dyn Clock, limit: Duration) -> Self {
        Self { clock, began: clock.now(), limit, turn: 0 }
    }

    pub(crate) fn waited(&self) -> Duration {
        self.clock.now().saturating_sub(self.began)
    }

    /// Waits a little, then returns `true`. Returns `false` without waiting when the time is up: the caller then looks
    /// once more and gives up.
    pub(crate) fn wait(&mut self) -> bool {
        self.wait_for(None)
    }

    /// As [`wait`](Self::wait). If there is an `interrupt`, this sleeps until it comes, for 100 ms at most, once 2 ms
    /// of the whole wait are over.
    pub(crate) fn wait_for(&mut self, interrupt: Option<&dyn Interrupt>) -> bool {
        let waited = self.waited();
        if waited >= self.limit {
            return false;
        }
        if waited < SPIN {
            self.clock.relax(self.turn);
            self.turn = self.turn.saturating_add(1);
        } else if let Some(interrupt) = interrupt {
            interrupt.wait(LONGEST_INTERRUPTIBLE.min(self.limit - waited));
        } else {
            self.clock.sleep((waited / 16).min(LONGEST).min(self.limit - waited));
        }
        true
    }
}
