//! Threads that share work.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::IndexBuildError;

/// Hears how many keys are done with.
pub(crate) type Tell<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

/// A number of threads that take jobs until none are left or one of them stops.
pub(super) struct WorkerThreads {
    pub(super) count: usize,
    stopped: AtomicBool,
}

impl WorkerThreads {
    pub(super) fn new(count: usize) -> Self {
        Self { count: count.max(1), stopped: AtomicBool::new(false) }
    }

    /// Nobody takes more work.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// The next of `jobs`, unless somebody has stopped.
    pub(super) fn next<T>(&self, jobs: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
        // Taken under the lock, so that whoever stops after a job knows that all before it were taken.
        let mut jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if self.stopped.load(Ordering::Relaxed) { None } else { jobs.next() }
    }

    /// Runs `body` on every thread; `tell` on this one alone. The first failure stops the others.
    pub(super) fn run(
        &self,
        tell: &mut Tell<'_>,
        body: &(impl Fn(&Self, &mut Tell<'_>) -> Result<(), IndexBuildError> + Sync),
    ) -> Result<(), IndexBuildError> {
        self.stopped.store(false, Ordering::Relaxed);
        let run = |tell: &mut Tell<'_>| body(self, tell).inspect_err(|_| self.stop());
        std::thread::scope(|scope| {
            // Without a thread the others do its work.
            let other = || std::thread::Builder::new().spawn_scoped(scope, || run(&mut |_| ControlFlow::Continue(())));
            let others: Vec<_> = (1..self.count).filter_map(|_| other().ok()).collect();
            let mine = run(tell);
            others.into_iter().fold(mine, |all, thread| match thread.join() {
                Ok(theirs) => all.and(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }
}
