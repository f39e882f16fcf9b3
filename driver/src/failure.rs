//! Why a controller was given up, and what was tried before.

use std::fmt;

use crate::error::DriverError;

/// A step of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecoveryStep {
    /// Nothing was tried yet: what made recovery necessary.
    Command,
    /// A look at the controller's registers.
    Registers,
    /// Abort of what timed out, deletion of the queue, and making it anew.
    Queue,
    /// A reset of the controller (CC.EN), and making the queue anew.
    ControllerReset,
    /// A reset of the function, and making the queue anew.
    FunctionReset,
    /// [`Controller::retry`](crate::Controller::retry).
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

/// Something that failed.
#[derive(Clone, Debug)]
pub struct FailedStep {
    /// What was being done.
    pub step: RecoveryStep,
    /// How it failed.
    pub error: DriverError,
}

/// Why a controller was given up.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What failed, in its order, since a command last succeeded; at least one.
    pub steps: Vec<FailedStep>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, FailedStep { step, error }) in self.steps.iter().enumerate() {
            let then = if index == 0 { "" } else { "; then " };
            write!(f, "{then}{step} failed ({error})")?;
        }
        Ok(())
    }
}

/// What a command of a queue pair died of: see [`QueuePair::blame`](crate::QueuePair::blame).
#[derive(Clone, Debug)]
pub struct Blame {
    pub(crate) trial: u64,
    /// The command's error.
    pub error: DriverError,
}
