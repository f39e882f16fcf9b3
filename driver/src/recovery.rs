//! The steps of recovery, which bring a controller back, from the mildest on; when none helps, the controller is given
//! up.
//!
//! time-out → Abort → queue deleted and made anew → controller reset → function reset → given up
//!
//! A *trial* begins with each recovery that a failed command caused. If a command of a queue that was made under the
//! latest trial fails, before any command has succeeded, then the step that recovery took last did not help, and the
//! next one is tried.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use crate::controller::Controller;
use crate::error::DriverError;
use crate::failure::{Blame, FailedStep, RecoveryFailure, RecoveryStep};
use crate::reset_kind::ResetKind;

/// The steps of recovery, in their order.
const STEPS: [(RecoveryStep, Option<ResetKind>); 3] = [
    (RecoveryStep::Queue, None),
    (RecoveryStep::ControllerReset, Some(ResetKind::Controller)),
    (RecoveryStep::FunctionReset, Some(ResetKind::Function)),
];
/// How often a reset may find queues in use before the controller is given up.
const MOST_IN_USE: u32 = 3;

/// The state of recovery, which all threads share.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Locked while a thread recovers the controller.
    progress: Mutex<Progress>,
    /// The number of the latest trial: how many recoveries a failed command has caused, plus successful retries. Queues
    /// note it when they are made.
    trial: AtomicU64,
    /// Whether no command has succeeded since the latest trial began.
    on_trial: AtomicBool,
    failed: AtomicBool,
    failure: RwLock<Option<Arc<RecoveryFailure>>>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Index of the step to begin with, if what the last recovery brought back fails before a command succeeds.
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
    /// Why the controller was given up; `None` if it was not. Until [`retry`](Self::retry) or a [`reset`](Self::reset)
    /// succeeds, nothing is sent to the controller, and every call that would send something fails at once with
    /// [`DriverError::GivenUp`] or [`DriverError::Stale`].
    pub fn failure(&self) -> Option<Arc<RecoveryFailure>> {
        if !self.recovery.failed.load(Ordering::Relaxed) {
            return None;
        }
        self.recovery.failure.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Brings a queue back after a time-out, a failure or a reset, by the mildest step that helps: a call of
    /// `recreate`, which is to call [`QueuePair::recreate`](crate::QueuePair::recreate); then a reset of the
    /// controller; then a reset of the function. `recreate` is called after each reset too. `let_go` is called before
    /// each reset: it is to call [`QueuePair::leave`](crate::QueuePair::leave) of queues that are idle. One thread
    /// recovers at a time.
    ///
    /// `blame` is the error of the command that failed, if one did. If no command has succeeded since the last
    /// recovery, the next step is tried and not the same again. So whoever sees a command succeed calls
    /// [`note_success`](Self::note_success).
    ///
    /// When the last step has failed, the controller is given up ([`DriverError::GivenUp`]); from then on this fails so
    /// at once. A device that is gone is given up without trying a step. [`DriverError::NoQueueLeft`], and a reset that
    /// finds queues in use ([`DriverError::QueuesInUse`], at most twice in a row), are not failures of the controller:
    /// the caller may try again.
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
            // A controller with a fatal error takes no commands, so making the queue anew cannot work.
            Err(error @ DriverError::Fatal { .. }) if first == 0 => {
                tracing::warn!(%error, "a reset is needed");
                first = 1;
            }
            _ => {}
        }
        if blamed {
            // Only failures of queues that are made from here on say something about this recovery.
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

    /// Says that a command has succeeded: recovery from the next failure begins with the mildest step again. Where no
    /// trial is open, this costs one load.
    #[inline]
    pub fn note_success(&self) {
        if self.recovery.on_trial.load(Ordering::Relaxed) {
            self.end_trial();
        }
    }

    #[cold]
    fn end_trial(&self) {
        // A thread that recovers the controller at this moment knows more than this success does.
        let mut progress = match self.recovery.progress.try_lock() {
            Ok(progress) => progress,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        *progress = Progress::default();
        self.recovery.on_trial.store(false, Ordering::SeqCst);
    }

    /// Gives the controller up if its registers read as all ones, so that nobody waits for it again. Returns whether it
    /// is given up now. While another thread recovers the controller, this does not look: that thread finds out.
    pub fn give_up_if_gone(&self) -> bool {
        if let Ok(mut progress) = self.recovery.progress.try_lock()
            && self.failure().is_none()
            // A reset that waits for the queues' owners may be waiting for the thread that calls this.
            && self.queues.try_lock().is_ok()
            && let Err(error @ DriverError::Gone { .. }) = self.look()
        {
            progress.steps.push(FailedStep { step: RecoveryStep::Registers, error });
            self.give_up(&mut progress);
        }
        self.failure().is_some()
    }

    /// Tries once to bring back a controller that was given up, by a reset of its function: to be called when somebody
    /// has a reason to think that it works again. After success its queues have to be recreated. Does nothing if the
    /// controller was not given up.
    ///
    /// Fails with [`DriverError::GivenUp`], which then lists the failed attempt too, or with
    /// [`DriverError::QueuesInUse`].
    pub fn retry(&self) -> Result<(), DriverError> {
        let mut progress = self.recovery.lock();
        let Some(failure) = self.failure() else { return Ok(()) };
        match self.reset(ResetKind::Function) {
            Ok(()) => {
                // The reset has begun a new trial: failures of older queues say nothing about it.
                self.recovery.trial.fetch_add(1, Ordering::SeqCst);
                self.recovery.on_trial.store(false, Ordering::SeqCst);
                *progress = Progress::default();
                Ok(())
            }
            Err(error @ DriverError::QueuesInUse { .. }) => Err(error),
            Err(error) => {
                progress.steps.clone_from(&failure.steps);
                // Kept are the steps of the first failure, and the latest retry.
                progress.steps.retain(|step| step.step != RecoveryStep::Retry);
                progress.steps.push(FailedStep { step: RecoveryStep::Retry, error });
                Err(self.give_up(&mut progress))
            }
        }
    }

    /// Reads the controller's status (CSTS) while no reset is under way.
    fn look(&self) -> Result<(), DriverError> {
        let _no_reset = self.lock_queues();
        self.registers().health("a look at its status").map(drop)
    }

    /// Gives the controller up: nothing is sent to it any more, and it reaches no memory any more.
    fn give_up(&self, progress: &mut Progress) -> DriverError {
        let failure = Arc::new(RecoveryFailure { steps: std::mem::take(&mut progress.steps) });
        *progress = Progress::default();
        let queues = self.lock_queues();
        self.gate.close();
        queues.keep_submitters_out();
        self.lock_admin().up = false;
        *self.recovery.failure.write().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
        self.recovery.failed.store(true, Ordering::SeqCst);
        self.recovery.on_trial.store(false, Ordering::SeqCst);
        // Data that is still on its way must not land. Quarantined memory stays out of use nevertheless, until a reset.
        if let Err(error) = self.registers().set_bus_master(false, "giving it up") {
            tracing::warn!(%error, "bus mastering of a drive that is given up");
        }
        tracing::error!(function = %self.name(), %failure, "the drive is given up");
        DriverError::GivenUp { function: self.name().clone(), failure }
    }
}
