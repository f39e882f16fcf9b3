//! The steps by which a controller is brought back, from the mildest on, and what comes when none helps.
//!
//! time-out → Abort → queue deleted and made anew → controller reset → function reset → given up

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use crate::controller::Controller;
use crate::error::DriverError;
use crate::failure::{Blame, FailedStep, Failure, RecoveryStep};
use crate::reset_kind::ResetKind;

/// The steps of recovery, in their order.
const STEPS: [(RecoveryStep, Option<ResetKind>); 3] = [
    (RecoveryStep::Queue, None),
    (RecoveryStep::ControllerReset, Some(ResetKind::Controller)),
    (RecoveryStep::FunctionReset, Some(ResetKind::Function)),
];
/// How often a reset may find queues in use before the controller is given up.
const MOST_IN_USE: u32 = 3;

/// How far recovery has come.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Held while somebody climbs.
    progress: Mutex<Progress>,
    /// Counts the recoveries that somebody was blamed into: queues made since are on trial.
    trial: AtomicU64,
    /// No command has succeeded since a recovery.
    on_trial: AtomicBool,
    failed: AtomicBool,
    failure: RwLock<Option<Arc<Failure>>>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Where to begin if what the last climb brought back fails without a single success.
    next: usize,
    in_use: u32,
    steps: Vec<FailedStep>,
}

impl Recovery {
    pub(crate) fn trial(&self) -> u64 {
        self.trial.load(Ordering::SeqCst)
    }

    /// A reset has brought the controller back.
    pub(crate) fn end_failure(&self) {
        *self.failure.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.failed.store(false, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controller {
    /// Why it was given up, if it was. Until [`retry`](Self::retry) or a [`reset`](Self::reset) succeeds, nothing is sent to
    /// it, and everything that would be fails at once with [`DriverError::GivenUp`] or [`DriverError::Stale`].
    pub fn failure(&self) -> Option<Arc<Failure>> {
        if !self.recovery.failed.load(Ordering::Relaxed) {
            return None;
        }
        self.recovery.failure.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Brings a queue back after a time-out, a failure or a reset, by as little as does it: `recreate`
    /// ([`QueuePair::recreate`](crate::QueuePair::recreate)), then a reset of the controller, then one of the function,
    /// each with `recreate` after it. `let_go` is called before each reset, to have idle queues
    /// [left](crate::QueuePair::leave). One thread climbs at a time.
    ///
    /// `blame` is what the queue's command died of. If nothing has succeeded since the last recovery, the next step is tried
    /// and not the same again. Tell of successes with [`proven`](Self::proven).
    ///
    /// At the end of the ladder the controller is given up ([`DriverError::GivenUp`]), which is said at once from then on;
    /// a device that is gone is given up without a climb. [`DriverError::NoQueueLeft`], and a reset that finds queues in use
    /// ([`DriverError::QueuesInUse`], at most twice), are no failure of the controller, and are for the caller to try again.
    pub fn recover(
        &self,
        blame: Option<Blame>,
        mut recreate: impl FnMut() -> Result<(), DriverError>,
        mut let_go: impl FnMut(),
    ) -> Result<(), DriverError> {
        let mut progress = self.recovery.lock();
        if self.failure().is_some() {
            return Err(self.down());
        }
        let blamed = blame.as_ref().is_some_and(|blame| blame.trial == self.recovery.trial());
        let mut first = if progress.in_use != 0 || blamed { progress.next } else { 0 };
        if let Some(Blame { error, .. }) = blame.filter(|_| blamed) {
            progress.steps.push(FailedStep { step: RecoveryStep::Command, error });
        }
        match self.look() {
            Err(error @ DriverError::Gone { .. }) => {
                progress.steps.push(FailedStep { step: RecoveryStep::Registers, error });
                return Err(self.give_up(&mut progress));
            }
            // Such a controller takes no commands.
            Err(error @ DriverError::Fatal { .. }) if first == 0 => {
                tracing::warn!(%error, "a reset is needed");
                first = 1;
            }
            _ => {}
        }
        if blamed {
            // Queues that are made from here on are judged anew; those of before have been.
            self.recovery.trial.fetch_add(1, Ordering::SeqCst);
            self.recovery.on_trial.store(true, Ordering::SeqCst);
        }
        for (index, &(step, reset)) in STEPS.iter().enumerate().skip(first) {
            let climbed = match reset {
                None => recreate(),
                Some(kind) => {
                    tracing::warn!(function = %self.name(), ?kind, "resetting the controller");
                    let_go();
                    self.reset(kind).and_then(|()| recreate())
                }
            };
            let error = match climbed {
                Ok(()) => {
                    progress.in_use = 0;
                    if blamed {
                        progress.next = index + 1;
                    } else if !self.recovery.on_trial.load(Ordering::SeqCst) {
                        *progress = Progress::default();
                    }
                    return Ok(());
                }
                Err(error @ DriverError::NoQueueLeft { .. }) => return Err(error),
                Err(error) => error,
            };
            tracing::warn!(function = %self.name(), %error, "{step} failed");
            let in_use = matches!(error, DriverError::QueuesInUse { .. });
            let gone = matches!(error, DriverError::Gone { .. });
            progress.steps.push(FailedStep { step, error: error.clone() });
            if in_use && reset.is_some() {
                progress.in_use += 1;
                progress.next = index;
                if progress.in_use < MOST_IN_USE {
                    return Err(error);
                }
                break;
            }
            if gone {
                break;
            }
        }
        Err(self.give_up(&mut progress))
    }

    /// A command has succeeded since the last recovery: the next failure begins at the foot of the ladder. Cheap.
    #[inline]
    pub fn proven(&self) {
        if self.recovery.on_trial.load(Ordering::Relaxed) {
            self.end_trial();
        }
    }

    #[cold]
    fn end_trial(&self) {
        // Somebody who climbs at this moment has more to say.
        let mut progress = match self.recovery.progress.try_lock() {
            Ok(progress) => progress,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        *progress = Progress::default();
        self.recovery.on_trial.store(false, Ordering::SeqCst);
    }

    /// Gives the controller up if its registers read as all ones, so that nobody waits for it again. Returns whether it is
    /// given up now. While somebody climbs, that is for them to find.
    pub fn give_up_if_gone(&self) -> bool {
        if let Ok(mut progress) = self.recovery.progress.try_lock()
            && self.failure().is_none()
            // A reset that waits for its owners may wait for whoever calls.
            && self.queues.try_lock().is_ok()
            && let Err(error @ DriverError::Gone { .. }) = self.look()
        {
            progress.steps.push(FailedStep { step: RecoveryStep::Registers, error });
            self.give_up(&mut progress);
        }
        self.failure().is_some()
    }

    /// Tries to bring back a controller that was given up, by a reset of its function: once, when somebody says that it may
    /// work again. Queues are then to be recreated. Does nothing to one that was not given up.
    ///
    /// Fails with [`DriverError::GivenUp`], the failed attempt added, or with [`DriverError::QueuesInUse`].
    pub fn retry(&self) -> Result<(), DriverError> {
        let mut progress = self.recovery.lock();
        let Some(failure) = self.failure() else { return Ok(()) };
        match self.reset(ResetKind::Function) {
            Ok(()) => {
                // As good as new; old queues are not judged by it.
                self.recovery.trial.fetch_add(1, Ordering::SeqCst);
                self.recovery.on_trial.store(false, Ordering::SeqCst);
                *progress = Progress::default();
                Ok(())
            }
            Err(error @ DriverError::QueuesInUse { .. }) => Err(error),
            Err(error) => {
                progress.steps.clone_from(&failure.steps);
                // The first failure, and the latest retry.
                progress.steps.retain(|step| step.step != RecoveryStep::Retry);
                progress.steps.push(FailedStep { step: RecoveryStep::Retry, error });
                Err(self.give_up(&mut progress))
            }
        }
    }

    /// Looks at the controller's status, with no reset under way.
    fn look(&self) -> Result<(), DriverError> {
        let _no_reset = self.lock_queues();
        self.registers().health("a look at its status").map(drop)
    }

    /// Nothing is sent to the controller any more, and nothing of it reaches memory.
    fn give_up(&self, progress: &mut Progress) -> DriverError {
        let failure = Arc::new(Failure { steps: std::mem::take(&mut progress.steps) });
        *progress = Progress::default();
        let queues = self.lock_queues();
        self.gate.close();
        queues.keep_submitters_out();
        self.lock_admin().up = false;
        *self.recovery.failure.write().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
        self.recovery.failed.store(true, Ordering::SeqCst);
        self.recovery.on_trial.store(false, Ordering::SeqCst);
        // What is still on its way must not land; the memory stays withheld nevertheless until a reset.
        if let Err(error) = self.registers().set_bus_master(false, "giving it up") {
            tracing::warn!(%error, "bus mastering of a drive that is given up");
        }
        tracing::error!(function = %self.name(), %failure, "the drive is given up");
        DriverError::GivenUp { function: self.name().clone(), failure }
    }
}
