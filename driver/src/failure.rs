//! Why a controller was given up, and what was tried before.

use std::fmt;

use crate::error::DriverError;

/// What failed on the way to giving a controller up: a step of recovery, or what came before or after the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecoveryStep {
    /// The command whose failure made recovery necessary; nothing had been tried yet.
    Command,
    /// A look at the controller's registers, before the first step.
    Registers,
    /// Abort of what timed out, deletion of the queue, and making it anew.
    Queue,
    /// A reset of the controller (CC.EN), and making the queue anew.
    ControllerReset,
    /// A reset of the function, and making the queue anew.
    FunctionReset,
    /// [`Controller::retry`](crate::Controller::retry), after the controller had been given up.
    Retry,
}

impl fmt::Display for RecoveryStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Command => "a command",
            Self::Registers => "a look at its registers",
            Self::Queue => "making its queue anew",
            Self::ControllerReset => "a reset of the controller",
            Self::FunctionReset => "a reset of the function",
            Self::Retry => "a retry",
        })
    }
}

/// A step that failed, with its error.
#[derive(Clone, Debug)]
pub struct FailedStep {
    /// What was being done.
    pub step: RecoveryStep,
    /// How it failed.
    pub error: DriverError,
}

/// Why a controller was given up.
#[derive(Clone, Debug)]
pub struct RecoveryFailure {
    /// The steps that failed since a command last succeeded, in the order of time; at least one.
    pub steps: Vec<FailedStep>,
}

impl fmt::Display for RecoveryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, FailedStep { step, error }) in self.steps.iter().enumerate() {
            let then = if index == 0 { "" } else { "; then " };
            write!(f, "{then}{step} failed ({error})")?;
        }
        Ok(())
    }
}

/// The error of a command, and when its queue pair was made, so that
/// [`Controller::recover`](crate::Controller::recover) can tell whether its last step has helped.
/// [`QueuePair::blame`](crate::QueuePair::blame) makes it.
#[derive(Clone, Debug)]
pub struct Blame {
    pub(crate) trial: u64,
    /// The command's error.
    pub error: DriverError,
}
